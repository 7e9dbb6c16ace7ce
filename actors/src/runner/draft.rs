//! The draft lane's executor: catch-up rows for all chunks, then proposals, one token of every sequence per step.

use std::sync::Arc;
use std::time::Instant;

use faser_engine::{DraftPlan, Rivals, TokenId};
use faser_kernels::{Collective, SampleRow, ops};
use faser_models::Model;

use super::RunnerSpec;
use super::drafting::Drafting;
use super::falls::Falls;
use super::passes::Passes;
use super::sequences::Sequences;
use crate::error::ServiceError;
use crate::lane_request::LaneRequest;
use crate::shed::Fallen;

/// A draft plan, with what the engine does not know of its sequences.
#[derive(Clone, Debug)]
pub struct DraftWork {
    /// The plan.
    pub plan: DraftPlan,
    /// One entry per admission of the plan, in order.
    pub requests: Vec<Arc<LaneRequest>>,
}

/// Runs draft plans. Proposals stay with the lane from step to step; the host sees them when all are there.
pub struct DraftRunner {
    passes: Passes,
    sequences: Sequences,
    falls: Falls,
    /// Chunks whose next proposal the pass in the making brings, in the order of its logits.
    awaited: Vec<usize>,
    sampled: Vec<TokenId>,
    /// The draft's confidence in each of `sampled`.
    confidence: Vec<f32>,
    /// The draft's likeliest tokens in each place.
    top: Vec<[TokenId; ops::TOP_TOKENS]>,
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
            falls: Falls::default(),
            awaited: Vec::new(),
            sampled: Vec::new(),
            confidence: Vec::new(),
            top: Vec::new(),
        })
    }

    /// From now on asks between two steps which sequences fell.
    pub fn shedding(&mut self, fallen: Box<dyn Fallen>) {
        self.falls.listen(fallen);
    }

    /// From now on this is the lane of one rank of a group, whose model is that rank's shard: all ranks are to be given the same plans.
    pub fn join(&mut self, group: &Arc<dyn Collective>) {
        self.passes.join(group);
    }

    /// Pins the calling thread to the first core of the partition in use, now and whenever that changes; false if the system does not allow it.
    pub fn pin_current_thread(&mut self) -> bool {
        self.passes.pin_current_thread()
    }

    /// Carries out a plan: first `retire`, then `admit`, then the chunks together. The plan comes back with its outcome.
    ///
    /// # Panics
    /// On a plan the engine would not make: a chunk of a sequence that was not admitted, or without tokens. In a group: if the ranks
    /// have different plans, or one is lost.
    pub fn run(&mut self, work: DraftWork) -> DraftPlan {
        let started = Instant::now();
        let DraftWork { mut plan, requests } = work;
        self.passes.work_on(plan.partition);
        self.passes.agree_on(plan.step);
        self.sequences.update(&plan.retire, &plan.admit, &requests);
        self.falls.begin();
        let mut job = Drafting::new(&plan);
        self.catch_up(&mut job);
        for step in 1..job.most_steps() {
            let layers = self.passes.layer_count() * step;
            self.falls.look(&self.passes, plan.step, layers, plan.chunks.iter().map(|chunk| chunk.seq));
            if !self.step(step, &mut job) {
                break;
            }
        }
        let proposals = job.end();
        proposals.told(&mut plan, started.elapsed());
        plan
    }

    /// The rows of committed tokens; the last row of a chunk that drafts brings its first proposal.
    fn catch_up(&mut self, job: &mut Drafting<'_>) {
        let plan = job.plan;
        for (index, chunk) in plan.chunks.iter().enumerate() {
            let tokens = job.rows(chunk);
            self.sequences.of_mut(chunk.seq).history.rewind_and_extend(chunk.start, tokens);
            for (offset, &token) in tokens.iter().enumerate() {
                let drafts = chunk.steps > 0 && offset + 1 == tokens.len();
                self.push(token, chunk.start + offset, index, drafts, job);
            }
        }
        self.forward(job);
    }

    /// One more proposal for every chunk that wants one: the row of its latest proposal. False if none does.
    fn step(&mut self, step: usize, job: &mut Drafting<'_>) -> bool {
        let mut wanted = false;
        for index in 0..job.plan.chunks.len() {
            if let Some((latest, position)) = job.goes_on(index, step, self.falls.gone()) {
                self.push(latest, position, index, true, job);
                wanted = true;
            }
        }
        self.forward(job);
        wanted
    }

    /// Adds a row to the pass; one that is full runs before.
    fn push(&mut self, token: TokenId, position: usize, chunk: usize, drafts: bool, job: &mut Drafting<'_>) {
        if !self.passes.fits(drafts) {
            self.forward(job);
        }
        self.passes.push(token, position, chunk, drafts);
        if drafts {
            self.awaited.push(chunk);
        }
    }

    /// Runs the pass; samples the proposals it brings, and appends them to what is drafted and to the histories.
    fn forward(&mut self, job: &mut Drafting<'_>) {
        self.passes.forward(&job.tables);
        let (lane, logits) = self.passes.whole_logits();
        let sequences = &self.sequences;
        let sample_row = |(row, &index): (usize, &usize)| {
            let sequence = sequences.of(job.plan.chunks[index].seq);
            SampleRow {
                row,
                position: sequence.history.len() as u32,
                sampling: &sequence.request.sampling,
                history: &sequence.history,
                since: &[],
                allowed: None,
            }
        };
        let rows: Vec<SampleRow<'_>> = self.awaited.iter().enumerate().map(sample_row).collect();
        self.sampled.clear();
        self.sampled.resize(rows.len(), 0);
        self.confidence.clear();
        self.confidence.resize(rows.len(), 0.0);
        ops::sample(lane, logits, &rows, &mut self.sampled);
        ops::confidence(lane, logits, &self.sampled, &[], &mut self.confidence);
        self.top.clear();
        if job.plan.rivals {
            self.top.resize(rows.len(), [0; ops::TOP_TOKENS]);
            ops::top_tokens(lane, logits, &mut self.top);
        }
        for (place, index) in self.awaited.drain(..).enumerate() {
            let (token, confidence) = (self.sampled[place], self.confidence[place]);
            let history = &mut self.sequences.of_mut(job.plan.chunks[index].seq).history;
            history.rewind_and_extend(history.len(), &[token]);
            let rivals = self.top.get(place).map_or_else(Rivals::new, |top| Rivals::from(*top));
            job.drew(index, token, confidence, rivals);
        }
    }
}
