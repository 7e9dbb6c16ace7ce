//! Passes to be timed on any device: what a lane does for a plan, tokens drawn and read back.

use std::sync::Arc;

use faser_engine::{Admission, BlockId, SeqId};
use faser_kernels::Sampling;

use super::SAMPLED_ROWS;
use crate::device::LanePasses;
use crate::lane_request::LaneRequest;
use crate::runner::{Draw, LaneBackend, MASK_PATIENCE, Masks, PassOutputs, PassRows, Piece, Sequences};

/// The one sequence that all rows are of.
const SEQ: SeqId = SeqId(0);

/// Passes of one lane, of one rank.
pub(super) struct TimedPasses<B: LaneBackend> {
    backend: B,
    lane: LanePasses,
    sequences: Sequences<B::Sequence>,
    masks: Masks,
    blocks: Vec<BlockId>,
    tokens: Vec<u32>,
    outputs: PassOutputs,
}

impl<B: LaneBackend> TimedPasses<B> {
    /// Passes of a rank's lane.
    pub(super) fn new(mut backend: B, lane: LanePasses) -> TimedPasses<B> {
        let mut sequences = Sequences::default();
        let sampling = Sampling { temperature: 1.0, ..Sampling::default() };
        let admission = Admission { seq: SEQ, prompt_len: 1, tokens: [0].into() };
        sequences.update(&mut backend, &[], &[admission], &[Arc::new(LaneRequest::from(sampling))]);
        let (masks, outputs) = (Masks::new(MASK_PATIENCE), PassOutputs::default());
        let (blocks, tokens) = ((0..lane.blocks() as BlockId).collect(), vec![0; lane.context + 1]);
        TimedPasses { backend, lane, sequences, masks, blocks, tokens, outputs }
    }

    /// Whether it is this rank that measures.
    pub(super) fn leads(&self) -> bool {
        self.backend.rank().0 == 0
    }

    /// Does what the first rank does until it ends.
    pub(super) fn follow(&mut self) {
        loop {
            let (rows, context) = self.told(0, 0);
            if rows == 0 {
                return;
            }
            self.run(rows, context);
        }
    }

    /// Rows and context of the first rank's next pass; no rows: there is none.
    pub(super) fn told(&mut self, rows: usize, context: usize) -> (usize, usize) {
        match self.backend.rank().1 {
            1 => (rows, context),
            _ => {
                let words = self.backend.gather(&[rows as u32, context as u32]);
                (words[0] as usize, words[1] as usize)
            }
        }
    }

    /// Rows without context are a piece each, with a block of its own; rows with context are one piece that ends there. Nothing is read that
    /// another row writes.
    pub(super) fn run(&mut self, rows: usize, context: usize) {
        let rows = if context == 0 { rows } else { rows.min(context + 1) };
        let begin = (context + 1).saturating_sub(rows);
        let (pieces, each) = if context == 0 { (rows, 1) } else { (1, rows) };
        let start = if context == 0 { 0 } else { begin };
        self.sequences.of_mut(SEQ).rewind_and_extend(0, &self.tokens[..=start]);
        self.masks.begin(pieces, &mut self.sequences);
        let mut pass = PassRows::default();
        for number in 0..pieces {
            let drawn_from = if number < SAMPLED_ROWS { 0 } else { each };
            let piece = Piece {
                seq: SEQ,
                chunk: number,
                first: 0,
                start,
                rows: 0,
                logits_from: drawn_from,
                drawn_from,
                since: 0,
                proposals: &self.tokens[..each],
            };
            let table =
                if context == 0 { &self.blocks[number..=number] } else { &self.blocks[..self.lane.table] };
            pass.push(piece, &self.tokens[..each], table);
        }
        self.backend.stage(&pass, &mut self.sequences);
        self.backend.layers(&pass, 0..self.backend.layer_count());
        self.backend.finish();
        let how = Draw { masks: &self.masks, confidence: self.lane.drafts, rivals: false };
        self.backend.draw(&pass, &self.sequences, &how);
        self.backend.collect(&pass, &mut self.outputs, &mut |_| {});
    }

    /// Whether the first pass of a row count takes longer than those after it.
    pub(super) fn first_is_cold(&self) -> bool {
        B::FIRST_IS_COLD
    }
}
