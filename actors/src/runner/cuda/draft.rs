//! The draft lane's executor on a GPU: catch-up rows for all chunks, then proposals, one token of every sequence per step.
//!
//! Steps follow one another on the device, which draws, applies the stop rules and writes the next pass. The host asks for a step while the one
//! before it runs, and for none when it hears that no sequence goes on: at most one step is asked for in vain, and it has no rows.

use std::sync::Arc;
use std::time::Instant;

use faser_engine::{BlockId, DraftChunk, DraftPlan, Drafted, K_LIMIT, Rivals};
use faser_kernels::cuda::{CudaError, DraftState, DraftStepArgs, NcclSeat};
use faser_kernels::ops::TOP_TOKENS;
use faser_models::cuda::{self, CudaModel, CudaPasses, DraftInput};

use super::rows::{PassRows, Piece};
use super::sequences::CudaSequences;
use super::{CudaRunnerSpec, OrLost};
use crate::error::ServiceError;
use crate::runner::DraftWork;
use crate::runner::gone::Gone;
use crate::shed::Fallen;

/// Looks at the device between two questions of who fell, while a step runs.
const ASK_EVERY: usize = 256;

/// Runs draft plans on a GPU.
pub struct CudaDraftRunner {
    passes: CudaPasses,
    sequences: CudaSequences,
    gone: Gone,
}

impl CudaDraftRunner {
    /// A runner with empty KV memory.
    ///
    /// # Errors
    /// The GPU has not enough memory, or no stream.
    pub fn new(model: Arc<CudaModel>, spec: &CudaRunnerSpec) -> Result<CudaDraftRunner, ServiceError> {
        Ok(CudaDraftRunner {
            passes: CudaPasses::new(model, &spec.shares, true, spec.sizes)?,
            sequences: CudaSequences::default(),
            gone: Gone::default(),
        })
    }

    /// From now on this is the lane of one rank of a group, whose model is that rank's shard: all ranks are to be given the same plans.
    ///
    /// # Errors
    /// NCCL refuses, or the others do not join too.
    pub fn join(&mut self, seat: &NcclSeat) -> Result<(), ServiceError> {
        Ok(self.passes.join(seat)?)
    }

    /// From now on asks while steps run which sequences fell; in a group the first rank alone does.
    pub fn shedding(&mut self, fallen: Box<dyn Fallen>) {
        self.gone.listen(fallen);
    }

    /// Carries out a plan: first `retire`, then `admit`, then the chunks together. The plan comes back with its outcome.
    ///
    /// # Panics
    /// If the GPU fails; on a plan the engine would not make: a chunk of a sequence that was not admitted, or without tokens. In a group: if
    /// the ranks have different plans, or one is lost.
    pub fn run(&mut self, work: DraftWork) -> DraftPlan {
        let started = Instant::now();
        let DraftWork { mut plan, requests } = work;
        self.passes.work_on(plan.partition.0).or_lost();
        self.passes.agree_on(plan.step).or_lost();
        self.sequences.update(&mut self.passes, &plan.retire, &plan.admit, &requests).or_lost();
        self.gone.clear();
        if !plan.chunks.is_empty() {
            self.carry_out(&plan).or_lost();
        }
        let drafts = plan.chunks.iter().any(|chunk| chunk.steps > 0);
        let chunks = if drafts { plan.chunks.as_slice() } else { &[] };
        for (number, chunk) in chunks.iter().enumerate() {
            let drafted = self.passes.drafted(number);
            let sequence = self.sequences.of(chunk.seq);
            sequence.rewind_and_extend(sequence.len(), drafted.tokens);
            let mut rivals = drafted.rivals.chunks_exact(TOP_TOKENS);
            let found = drafted.tokens.iter().zip(drafted.confidence);
            plan.outcome.proposals.extend(found.map(|(&token, &confidence)| {
                let rivals = rivals.next().map_or_else(Rivals::new, |top| top.iter().copied().collect());
                Drafted { token, confidence, rivals }
            }));
            plan.outcome.counts.push(drafted.tokens.len());
        }
        plan.outcome.counts.resize(plan.chunks.len(), 0);
        plan.outcome.took = started.elapsed();
        plan
    }

    fn carry_out(&mut self, plan: &DraftPlan) -> Result<(), CudaError> {
        let tables: Vec<&[BlockId]> = plan.chunks.iter().map(|chunk| plan.table(chunk)).collect();
        let most = plan.chunks.iter().map(|chunk| chunk.steps).max().unwrap_or(0);
        if most > 0 {
            self.begin(plan, &tables)?;
        }
        self.catch_up(plan, &tables)?;
        if most > 0 {
            self.steps(plan, most)?;
            self.passes.fetch_draft()?;
        }
        self.passes.wait(&mut |_| {})
    }

    /// Sends what all steps need.
    fn begin(&mut self, plan: &DraftPlan, tables: &[&[BlockId]]) -> Result<(), CudaError> {
        let vocab = self.passes.model().config().vocab;
        let (mut adjusts, mut restricts) = (false, false);
        let mut chunks = Vec::with_capacity(plan.chunks.len());
        for (chunk, &table) in plan.chunks.iter().zip(tables) {
            let sequence = self.sequences.of(chunk.seq);
            if chunk.steps > 0 {
                adjusts |= sequence.adjusts();
                restricts |= sequence.sampling.restricts(vocab);
            }
            chunks.push(cuda::DraftChunk { state: state(chunk), table, sampler: sequence.sampler() });
        }
        self.passes.begin_draft(&DraftInput { chunks: &chunks, adjusts, restricts, rivals: plan.rivals })
    }

    /// The rows of committed tokens; the last row of a chunk that drafts brings its first proposal.
    fn catch_up(&mut self, plan: &DraftPlan, tables: &[&[BlockId]]) -> Result<(), CudaError> {
        let vocab = self.passes.model().config().vocab;
        let mut rows = PassRows::default();
        for (index, chunk) in plan.chunks.iter().enumerate() {
            let mut left = plan.rows(chunk);
            assert!(!left.is_empty(), "{} has a chunk without tokens", chunk.seq);
            self.sequences.of(chunk.seq).rewind_and_extend(chunk.start, left);
            let mut start = chunk.start;
            while !left.is_empty() {
                let drafts = chunk.steps > 0;
                let room = rows.room(self.passes.sizes(), usize::from(drafts));
                if room == 0 {
                    self.forward(&std::mem::take(&mut rows), plan, false)?;
                    continue;
                }
                let (tokens, rest) = left.split_at(room.min(left.len()));
                let sampled_from = (drafts && rest.is_empty()).then(|| tokens.len() - 1);
                let table = tables[index];
                let piece = Piece { index, start, tokens, sampled_from, proposals: &[], table };
                rows.push(&piece, self.sequences.of(chunk.seq), vocab);
                (start, left) = (start + tokens.len(), rest);
            }
        }
        self.forward(&rows, plan, true)
    }

    /// Asks for a pass of committed tokens.
    fn forward(&mut self, rows: &PassRows<'_>, plan: &DraftPlan, last: bool) -> Result<(), CudaError> {
        let input = rows.input();
        let sampled =
            rows.of_plan.iter().zip(input.chunks).filter(|(_, chunk)| chunk.sampled_from < chunk.rows);
        self.sequences.count(&mut self.passes, sampled.map(|(&index, _)| plan.chunks[index].seq))?;
        self.passes.stage(&input)?;
        self.passes.layers(0..self.passes.model().config().layers)?;
        let mut drawn = None;
        if rows.samples() > 0 {
            self.passes.finish()?;
            drawn = Some(self.passes.draw(plan.rivals)?);
        }
        if plan.chunks.iter().any(|chunk| chunk.steps > 0) {
            self.passes.record(drawn.as_ref(), last)?;
        }
        Ok(())
    }

    /// One more proposal with every step for the chunks that go on.
    fn steps(&mut self, plan: &DraftPlan, most: usize) -> Result<(), CudaError> {
        let layers = self.passes.model().config().layers;
        for step in 1..most {
            let mut rows = plan.chunks.iter().filter(|chunk| chunk.steps > step).count();
            ask(&mut self.gone, &self.passes, plan, layers * step);
            if let Some(before) = step.checked_sub(2) {
                rows = rows.min(self.heard(plan, before, layers * step)?);
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
    fn heard(&mut self, plan: &DraftPlan, step: usize, layers: usize) -> Result<usize, CudaError> {
        let (gone, mut looks) = (&mut self.gone, 0usize);
        self.passes.wait_for_step(step, &mut |passes| {
            looks += 1;
            if looks.is_multiple_of(ASK_EVERY) {
                ask(gone, passes, plan, layers);
            }
        })
    }
}

/// Asks who fell, and stops their chunks: also in steps that are asked for already.
fn ask(gone: &mut Gone, passes: &CudaPasses, plan: &DraftPlan, layers: usize) {
    let before = gone.seqs.len();
    gone.ask(plan.step, layers);
    for seq in &gone.seqs[before..] {
        let number = plan.chunks.iter().position(|chunk| chunk.seq == *seq);
        number.into_iter().for_each(|number| passes.stop_drafting(number));
    }
}

/// What the device has to know of a chunk.
fn state(chunk: &DraftChunk) -> DraftState {
    DraftState {
        base: (chunk.start + chunk.rows.len()) as u32,
        steps: chunk.steps as u32,
        count: 0,
        alive: 1,
        survival: chunk.stop.survival,
        below: chunk.stop.below,
        acceptance: chunk.stop.acceptance,
    }
}

// No plan asks for more.
const _: () = assert!(K_LIMIT <= DraftStepArgs::STEPS);
