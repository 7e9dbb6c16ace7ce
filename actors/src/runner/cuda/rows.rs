//! The rows of a pass in the making.

use faser_engine::BlockId;
use faser_kernels::cuda::{Chunk, GateArgs, NOTHING, Sampler, Test};
use faser_models::cuda::{CudaSizes, PassInput};

use super::sequences::CudaSequence;

/// A test of a proposal, as a pass takes it.
pub(super) type RowTest = (Test, [u32; GateArgs::SCORED], f32);

/// Chunks, or pieces of them, that go into the next pass together.
#[derive(Default)]
pub(super) struct PassRows<'a> {
    tokens: Vec<u32>,
    positions: Vec<u32>,
    chunk_of: Vec<u32>,
    chunks: Vec<Chunk>,
    tables: Vec<&'a [BlockId]>,
    samplers: Vec<Sampler>,
    proposals: Vec<&'a [u32]>,
    samples: usize,
    adjusts: bool,
    restricts: bool,
    cuts: bool,
    /// Tests, and what they are of, as the runner counts.
    pub(super) tests: Vec<RowTest>,
    pub(super) tested: Vec<usize>,
    /// The plan's chunk of each chunk here.
    pub(super) of_plan: Vec<usize>,
    of_plan_words: Vec<u32>,
}

/// Some rows of a chunk of a plan.
pub(super) struct Piece<'a> {
    /// Which chunk.
    pub(super) index: usize,
    /// Position of the first row.
    pub(super) start: usize,
    /// The rows.
    pub(super) tokens: &'a [u32],
    /// From this row on, rows get a token each.
    pub(super) sampled_from: Option<usize>,
    /// The chunk's proposals.
    pub(super) proposals: &'a [u32],
    /// The chunk's block table.
    pub(super) table: &'a [BlockId],
}

impl<'a> PassRows<'a> {
    pub(super) fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Whether any row gets a token.
    pub(super) fn samples(&self) -> usize {
        self.samples
    }

    /// How many more rows fit, if `samples` of them get tokens.
    pub(super) fn room(&self, sizes: &CudaSizes, samples: usize) -> usize {
        if self.chunks.len() == sizes.max_chunks || self.samples + samples > sizes.max_logit_rows {
            return 0;
        }
        sizes.max_rows - self.tokens.len()
    }

    /// Appends a piece; its number among the chunks of the pass.
    pub(super) fn push(&mut self, piece: &Piece<'a>, sequence: &CudaSequence, vocab: usize) -> u32 {
        let (number, first, rows) = (self.chunks.len() as u32, self.tokens.len() as u32, piece.tokens.len());
        self.tokens.extend(piece.tokens);
        self.positions.extend((piece.start..piece.start + rows).map(|position| position as u32));
        self.chunk_of.extend(std::iter::repeat_n(number, rows));
        let sampled_from = piece.sampled_from.map_or(NOTHING, |row| row as u32);
        self.chunks.push(Chunk { first, rows: rows as u32, sampled_from, first_sample: 0 });
        self.tables.push(piece.table);
        self.samplers.push(sequence.sampler());
        self.proposals.push(piece.proposals);
        self.of_plan.push(piece.index);
        self.of_plan_words.push(piece.index as u32);
        if let Some(from) = piece.sampled_from {
            self.samples += rows - from;
            self.adjusts |= sequence.adjusts();
            self.restricts |= sequence.sampling.restricts(vocab);
            self.cuts |= sequence.sampling.cuts(vocab);
        }
        number
    }

    pub(super) fn input(&self) -> PassInput<'_> {
        PassInput {
            tokens: &self.tokens,
            positions: &self.positions,
            chunk_of: &self.chunk_of,
            chunks: &self.chunks,
            tables: &self.tables,
            samplers: &self.samplers,
            proposals: &self.proposals,
            adjusts: self.adjusts,
            restricts: self.restricts,
            cuts: self.cuts,
            of_plan: &self.of_plan_words,
            tests: &self.tests,
        }
    }
}
