//! The draft lane's executor on a GPU: catch-up rows for all chunks, then proposals, one token of every sequence per step.

use std::sync::Arc;
use std::time::Instant;

use faser_engine::{DraftPlan, Rivals, SeqId, TokenId};
use faser_kernels::cuda::CudaError;
use faser_kernels::ops::TOP_TOKENS;
use faser_models::cuda::{CudaModel, CudaPasses};

use super::rows::{PassRows, Piece};
use super::sequences::CudaSequences;
use super::{CudaRunnerSpec, OrLost};
use crate::error::ServiceError;
use crate::runner::DraftWork;
use crate::runner::drafting::{Drafting, Gone};
use crate::shed::Fallen;

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

    /// From now on asks between two steps which sequences fell.
    pub fn shedding(&mut self, fallen: Box<dyn Fallen>) {
        self.gone.listen(fallen);
    }

    /// Carries out a plan: first `retire`, then `admit`, then the chunks together. The plan comes back with its outcome.
    ///
    /// # Panics
    /// If the GPU fails; on a plan the engine would not make: a chunk of a sequence that was not admitted, or without tokens.
    pub fn run(&mut self, work: DraftWork) -> DraftPlan {
        let started = Instant::now();
        let DraftWork { mut plan, sampling } = work;
        self.passes.work_on(plan.partition.0).or_lost();
        self.sequences.update(&mut self.passes, &plan.retire, &plan.admit, &sampling).or_lost();
        self.gone.clear();
        let mut job = Drafting::new(&plan);
        self.catch_up(&mut job).or_lost();
        let layers = self.passes.model().config().layers;
        for step in 1..job.most_steps() {
            self.gone.ask(plan.step, layers * step);
            if !self.step(step, &mut job).or_lost() {
                break;
            }
        }
        let proposals = job.end();
        proposals.told(&mut plan, started.elapsed());
        plan
    }

    /// The rows of committed tokens; the last row of a chunk that drafts brings its first proposal.
    fn catch_up(&mut self, job: &mut Drafting<'_>) -> Result<(), CudaError> {
        let plan = job.plan;
        let mut rows = PassRows::default();
        for (index, chunk) in plan.chunks.iter().enumerate() {
            let mut left = job.rows(chunk);
            self.sequences.of(chunk.seq).rewind_and_extend(chunk.start, left);
            let mut start = chunk.start;
            while !left.is_empty() {
                let drafts = chunk.steps > 0;
                let room = rows.room(self.passes.sizes(), usize::from(drafts));
                if room == 0 {
                    self.forward(&std::mem::take(&mut rows), job)?;
                    continue;
                }
                let (tokens, rest) = left.split_at(room.min(left.len()));
                let sampled_from = (drafts && rest.is_empty()).then(|| tokens.len() - 1);
                let table = job.tables[index];
                self.push(
                    &mut rows,
                    &Piece { index, start, tokens, sampled_from, proposals: &[], table },
                    chunk.seq,
                );
                (start, left) = (start + tokens.len(), rest);
            }
        }
        self.forward(&rows, job)
    }

    /// One more proposal for every chunk that wants one: the row of its latest proposal. False if none does.
    fn step(&mut self, step: usize, job: &mut Drafting<'_>) -> Result<bool, CudaError> {
        let plan = job.plan;
        let going_on =
            |index| job.goes_on(index, step, &self.gone.seqs).map(|(token, at)| (index, [token], at));
        let latest: Vec<(usize, [TokenId; 1], usize)> = (0..plan.chunks.len()).filter_map(going_on).collect();
        let mut rows = PassRows::default();
        for (index, tokens, start) in &latest {
            if rows.room(self.passes.sizes(), 1) == 0 {
                self.forward(&std::mem::take(&mut rows), job)?;
            }
            let piece = Piece {
                index: *index,
                start: *start,
                tokens,
                sampled_from: Some(0),
                proposals: &[],
                table: job.tables[*index],
            };
            self.push(&mut rows, &piece, plan.chunks[*index].seq);
        }
        self.forward(&rows, job)?;
        Ok(!latest.is_empty())
    }

    fn push<'a>(&mut self, rows: &mut PassRows<'a>, piece: &Piece<'a>, seq: SeqId) {
        rows.push(piece, self.sequences.of(seq), self.passes.model().config().vocab);
    }

    /// Runs the pass, and appends the proposals it brings to what is drafted and to the histories.
    fn forward(&mut self, rows: &PassRows<'_>, job: &mut Drafting<'_>) -> Result<(), CudaError> {
        if rows.is_empty() {
            return Ok(());
        }
        let plan = job.plan;
        let input = rows.input();
        let sampled =
            || rows.of_plan.iter().zip(input.chunks).filter(|(_, chunk)| chunk.sampled_from < chunk.rows);
        for (&index, _) in sampled() {
            self.sequences.of(plan.chunks[index].seq).count(&mut self.passes)?;
        }
        self.passes.stage(&input)?;
        self.passes.layers(0..self.passes.model().config().layers)?;
        if rows.samples() == 0 {
            return self.passes.wait(&mut |_| {});
        }
        self.passes.finish()?;
        let drawn = self.passes.draw(plan.rivals)?;
        self.passes.fetch()?;
        self.passes.wait(&mut |_| {})?;
        let mut top = self.passes.top(&drawn).chunks_exact(TOP_TOKENS);
        let found = self.passes.tokens(&drawn).iter().zip(self.passes.confidence(&drawn));
        for ((&index, _), (&token, &confidence)) in sampled().zip(found) {
            let sequence = self.sequences.of(plan.chunks[index].seq);
            sequence.rewind_and_extend(sequence.len(), &[token]);
            let rivals = top.next().map_or_else(Rivals::new, |top| top.iter().copied().collect());
            job.drew(index, token, confidence, rivals);
        }
        Ok(())
    }
}
