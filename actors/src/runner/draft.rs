//! The draft lane's executor: catch-up rows for all chunks, then proposals, one token of every sequence per step.

use std::sync::Arc;
use std::time::Instant;

use faser_engine::{BlockId, DraftChunk, DraftPlan, DraftResult, Drafted, DraftedChunk, TokenId};
use faser_kernels::{SampleRow, Sampling, ops};
use faser_models::Model;

use super::RunnerSpec;
use super::passes::Passes;
use super::sequences::Sequences;
use crate::error::ServiceError;

/// A draft plan, with what the engine does not know: how its sequences are sampled.
#[derive(Clone, Debug)]
pub struct DraftWork {
    /// The plan.
    pub plan: DraftPlan,
    /// One entry per admission of the plan, in order.
    pub sampling: Vec<Arc<Sampling>>,
}

/// Runs draft plans. Proposals stay with the lane from step to step; the host sees them when all are there.
pub struct DraftRunner {
    passes: Passes,
    sequences: Sequences,
    /// Chunks whose next proposal the pass in the making brings, in the order of its logits.
    awaited: Vec<usize>,
    sampled: Vec<TokenId>,
    /// The draft's confidence in each of `sampled`.
    confidence: Vec<f32>,
}

impl DraftRunner {
    /// A runner with empty KV memory.
    ///
    /// # Errors
    /// The lane's threads or its memory cannot be had.
    pub fn new(model: Arc<Model>, spec: &RunnerSpec) -> Result<DraftRunner, ServiceError> {
        let passes = Passes::new(model, spec)?;
        Ok(DraftRunner {
            passes,
            sequences: Sequences::default(),
            awaited: Vec::new(),
            sampled: Vec::new(),
            confidence: Vec::new(),
        })
    }

    /// Pins the calling thread to the first core of the partition in use, now and whenever that changes; false if the system does not allow it.
    pub fn pin_current_thread(&mut self) -> bool {
        self.passes.pin_current_thread()
    }

    /// Carries out a plan: first `retire`, then `admit`, then the chunks together.
    ///
    /// # Panics
    /// On a plan the engine would not make: a chunk of a sequence that was not admitted, or without tokens.
    pub fn run(&mut self, work: &DraftWork) -> DraftResult {
        let started = Instant::now();
        let plan = &work.plan;
        self.passes.work_on(plan.partition);
        self.sequences.update(&plan.retire, &plan.admit, &work.sampling);
        let mut job = Job {
            chunks: &plan.chunks,
            tables: plan.chunks.iter().map(|chunk| chunk.blocks.as_slice()).collect(),
            drafted: plan.chunks.iter().map(nothing_drafted).collect(),
            survival: plan.chunks.iter().map(|chunk| chunk.stop.survival).collect(),
        };
        self.catch_up(&mut job);
        let most = plan.chunks.iter().map(|chunk| chunk.steps).max().unwrap_or(0);
        for step in 1..most {
            if !self.step(step, &mut job) {
                break;
            }
        }
        DraftResult { step: plan.step, took: started.elapsed(), chunks: job.drafted }
    }

    /// The rows of committed tokens; the last row of a chunk that drafts brings its first proposal.
    fn catch_up(&mut self, job: &mut Job<'_>) {
        for (index, chunk) in job.chunks.iter().enumerate() {
            assert!(!chunk.tokens.is_empty(), "{} has a chunk without tokens", chunk.seq);
            self.sequences.of_mut(chunk.seq).history.rewind_and_extend(chunk.start, &chunk.tokens);
            for (offset, &token) in chunk.tokens.iter().enumerate() {
                let drafts = chunk.steps > 0 && offset + 1 == chunk.tokens.len();
                self.push(token, chunk.start + offset, index, drafts, job);
            }
        }
        self.forward(job);
    }

    /// One more proposal for every chunk that wants one: the row of its latest proposal. False if none does.
    fn step(&mut self, step: usize, job: &mut Job<'_>) -> bool {
        let mut wanted = false;
        for (index, chunk) in job.chunks.iter().enumerate() {
            if chunk.steps > step && job.survival[index] >= chunk.stop.below {
                let latest = job.drafted[index].proposals[step - 1].token;
                self.push(latest, chunk.start + chunk.tokens.len() + step - 1, index, true, job);
                wanted = true;
            }
        }
        self.forward(job);
        wanted
    }

    /// Adds a row to the pass; one that is full runs before.
    fn push(&mut self, token: TokenId, position: usize, chunk: usize, drafts: bool, job: &mut Job<'_>) {
        if !self.passes.fits(drafts) {
            self.forward(job);
        }
        self.passes.push(token, position, chunk, drafts);
        if drafts {
            self.awaited.push(chunk);
        }
    }

    /// Runs the pass; samples the proposals it brings, and appends them to what is drafted and to the histories.
    fn forward(&mut self, job: &mut Job<'_>) {
        let (lane, logits) = self.passes.forward(&job.tables);
        let sequences = &self.sequences;
        let sample_row = |(row, &index): (usize, &usize)| {
            let sequence = sequences.of(job.chunks[index].seq);
            SampleRow {
                row,
                position: sequence.history.len() as u32,
                sampling: &sequence.sampling,
                history: &sequence.history,
                since: &[],
            }
        };
        let rows: Vec<SampleRow<'_>> = self.awaited.iter().enumerate().map(sample_row).collect();
        self.sampled.clear();
        self.sampled.resize(rows.len(), 0);
        self.confidence.clear();
        self.confidence.resize(rows.len(), 0.0);
        ops::sample(lane, logits, &rows, &mut self.sampled);
        ops::confidence(lane, logits, &self.sampled, &mut self.confidence);
        for (index, (&token, &confidence)) in
            self.awaited.drain(..).zip(self.sampled.iter().zip(&self.confidence))
        {
            let chunk = &job.chunks[index];
            let history = &mut self.sequences.of_mut(chunk.seq).history;
            history.rewind_and_extend(history.len(), &[token]);
            job.survival[index] = chunk.stop.after(job.survival[index], confidence);
            job.drafted[index].proposals.push(Drafted { token, confidence });
        }
    }
}

/// A plan being carried out.
struct Job<'a> {
    chunks: &'a [DraftChunk],
    /// Block table of each chunk.
    tables: Vec<&'a [BlockId]>,
    /// Proposals of each chunk so far.
    drafted: Vec<DraftedChunk>,
    /// Survival of each chunk's last proposal.
    survival: Vec<f32>,
}

fn nothing_drafted(chunk: &DraftChunk) -> DraftedChunk {
    DraftedChunk { seq: chunk.seq, epoch: chunk.epoch, proposals: Vec::with_capacity(chunk.steps) }
}
