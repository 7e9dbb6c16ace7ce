//! Draft plans on the device: catch-up rows for all chunks, then proposals, one token of every sequence per step.
//!
//! Steps follow one another on the device, which draws, applies the stop rules and writes the next pass. The host asks for a step while the one
//! before it runs, and for none when it hears that no sequence goes on: at most one step is asked for in vain, and it has no rows.

use faser_engine::{Alternatives, BlockId, Candidates, DraftChunk, DraftPlan, Drafted, K_LIMIT};
use faser_kernels::cuda::{CudaError, DraftState, DraftStepArgs};
use faser_kernels::ops::TOP_TOKENS;
use faser_kernels::sampling::CANDIDATES;
use faser_models::cuda::{self, Beside, CudaPasses, DraftInput, DrawInput};

use super::counts::CudaSequence;
use super::{ASK_EVERY, CudaBackend};
use crate::cancellation::Cancelled;
use crate::runner::backend::{Begins, LaneBackend, PassRows, Piece, candidates_of};
use crate::runner::sequences::Sequences;

impl CudaBackend {
    /// Carries out a plan whose tokens the device may draw without asking.
    pub(super) fn carry_out(
        &mut self,
        plan: &DraftPlan,
        sequences: &mut Sequences<CudaSequence>,
        cancelled: &mut Cancelled,
    ) -> Result<Vec<Vec<Drafted>>, CudaError> {
        let tables: Vec<&[BlockId]> = plan.chunks.iter().map(|chunk| plan.table(chunk)).collect();
        let most = plan.chunks.iter().map(|chunk| chunk.steps).max().unwrap_or(0);
        if most > 0 {
            self.begin(plan, &tables, sequences)?;
        }
        self.catch_up(plan, &tables, sequences)?;
        if most > 0 {
            self.steps(plan, most, cancelled)?;
            self.passes.fetch_draft()?;
        }
        self.passes.wait(&mut |_| {})?;
        let drafts = |number: usize| if most > 0 { self.drafted(number) } else { Vec::new() };
        let drafted: Vec<Vec<Drafted>> = (0..plan.chunks.len()).map(drafts).collect();
        for (chunk, drafted) in plan.chunks.iter().zip(&drafted).filter(|(chunk, _)| !chunk.outcome) {
            drafted.iter().for_each(|drafted| sequences.of_mut(chunk.seq).push(drafted.token));
        }
        Ok(drafted)
    }

    fn drafted(&self, number: usize) -> Vec<Drafted> {
        let drafted = self.passes.drafted(number);
        let mut alternatives = drafted.alternatives.chunks_exact(TOP_TOKENS);
        let mut candidates = drafted.candidates.chunks_exact(CANDIDATES);
        let found = drafted.tokens.iter().zip(drafted.confidence);
        let one = |(&token, &confidence)| {
            let alternatives =
                alternatives.next().map_or_else(Alternatives::new, |top| top.iter().copied().collect());
            let candidates = candidates.next().map_or_else(Candidates::new, candidates_of);
            Drafted { token, confidence, alternatives, candidates, forced: false }
        };
        found.map(one).collect()
    }

    /// Sends what all steps need.
    fn begin(
        &mut self,
        plan: &DraftPlan,
        tables: &[&[BlockId]],
        sequences: &Sequences<CudaSequence>,
    ) -> Result<(), CudaError> {
        let (mut adjusts, mut restricts) = (false, false);
        let mut chunks = Vec::with_capacity(plan.chunks.len());
        for (chunk, &table) in plan.chunks.iter().zip(tables) {
            let sequence = sequences.of(chunk.seq);
            if chunk.steps > 0 {
                adjusts |= sequence.on_device.adjusts();
                restricts |= sequence.request.sampling.restricts(self.vocab);
            }
            chunks.push(cuda::DraftChunkInput {
                state: state(plan, chunk),
                table,
                sampler: sequence.sampler(),
            });
        }
        self.passes.begin_draft(&DraftInput { chunks: &chunks, adjusts, restricts, beside: beside(plan) })
    }

    /// The rows of committed tokens; the last row of a chunk that drafts brings its first proposal.
    fn catch_up(
        &mut self,
        plan: &DraftPlan,
        tables: &[&[BlockId]],
        sequences: &mut Sequences<CudaSequence>,
    ) -> Result<(), CudaError> {
        let mut rows = PassRows::default();
        for (index, chunk) in plan.chunks.iter().enumerate() {
            let tokens = plan.rows(chunk);
            assert!(!tokens.is_empty(), "{} has a chunk without tokens", chunk.seq);
            if !chunk.outcome {
                sequences.of_mut(chunk.seq).rewind_and_extend(chunk.start, tokens);
            }
            let drawn = usize::from(chunk.steps > 0);
            let mut from = 0;
            while from < tokens.len() {
                let left = tokens.len() - from;
                let count = rows.room(self.bounds(), left, drawn);
                if count == 0 {
                    self.pass(&std::mem::take(&mut rows), plan, false, sequences)?;
                    continue;
                }
                let (seq, start) = (chunk.seq, chunk.start + from);
                let begins = plan.features(chunk).map_or(Begins::Alone, Begins::Features);
                let piece = Piece::drafting(seq, index, start, left - drawn).beginning(begins);
                rows.push(piece, &tokens[from..from + count], tables[index]);
                from += count;
            }
        }
        self.pass(&rows, plan, true, sequences)
    }

    /// Asks for a pass of committed tokens.
    fn pass(
        &mut self,
        rows: &PassRows<'_>,
        plan: &DraftPlan,
        last: bool,
        sequences: &mut Sequences<CudaSequence>,
    ) -> Result<(), CudaError> {
        self.send(rows, sequences)?;
        self.passes.layers(0..self.passes.model().config().layers.len())?;
        let mut drawn = None;
        if rows.pieces.iter().any(|piece| piece.drawn_from < piece.rows) {
            self.passes.finish()?;
            drawn = Some(self.passes.draw(&DrawInput { beside: beside(plan), ..DrawInput::default() })?);
        }
        if plan.chunks.iter().any(|chunk| chunk.steps > 0) {
            self.passes.record(drawn.as_ref(), last)?;
        }
        Ok(())
    }

    /// One more proposal with every step for the chunks that go on.
    fn steps(&mut self, plan: &DraftPlan, most: usize, cancelled: &mut Cancelled) -> Result<(), CudaError> {
        let layers = self.passes.model().config().layers.len();
        for step in 1..most {
            let mut rows = plan.chunks.iter().filter(|chunk| chunk.steps > step).count();
            ask(cancelled, &self.passes, plan, layers * step);
            if let Some(before) = step.checked_sub(2) {
                rows = rows.min(self.heard(plan, before, layers * step, cancelled)?);
            }
            // What is known already counts too; other ranks may not know it yet.
            if !self.passes.is_split() {
                rows = rows.min(self.passes.going(step - 1).unwrap_or(rows));
            }
            if rows == 0 {
                break;
            }
            self.passes.step(rows)?;
        }
        Ok(())
    }

    /// How many chunks go on behind a step: waits for it while another runs.
    fn heard(
        &mut self,
        plan: &DraftPlan,
        step: usize,
        layers: usize,
        cancelled: &mut Cancelled,
    ) -> Result<usize, CudaError> {
        let mut looks = 0usize;
        self.passes.wait_for_step(step, &mut |passes| {
            looks += 1;
            if looks.is_multiple_of(ASK_EVERY) {
                ask(cancelled, passes, plan, layers);
            }
        })
    }
}

/// Asks who was cancelled, and stops their chunks: also in steps that are asked for already.
fn ask(cancelled: &mut Cancelled, passes: &CudaPasses, plan: &DraftPlan, layers: usize) {
    let before = cancelled.chunks().len();
    cancelled.ask(plan.step, layers);
    for chunk in cancelled.chunks()[before..].iter().filter(|chunk| **chunk < plan.chunks.len()) {
        passes.stop_drafting(*chunk);
    }
}

/// What is told of each place beside its proposal.
fn beside(plan: &DraftPlan) -> Beside {
    Beside { alternatives: plan.alternatives, candidates: plan.candidates }
}

/// What the device has to know of a chunk.
fn state(plan: &DraftPlan, chunk: &DraftChunk) -> DraftState {
    DraftState {
        base: (chunk.start + chunk.rows.len()) as u32,
        steps: chunk.steps as u32,
        count: 0,
        alive: 1,
        survival: chunk.stop.survival,
        below: chunk.stop.below,
        next: chunk.stop.next,
        each: plan.step_price.each,
        step_cost: plan.step_price.all,
        acceptance: chunk.stop.acceptance,
    }
}

// No plan asks for more.
const _: () = assert!(K_LIMIT <= DraftStepArgs::STEPS);
