//! The draft lane's executor: catch-up rows for all chunks, then proposals, one token of every sequence per step.

use std::sync::Arc;
use std::time::Instant;

use faser_engine::{DraftPlan, Rivals, TokenId};
use faser_kernels::{Collective, SampleRow, ops};
use faser_models::{ForcedToken, Model};

use super::RunnerSpec;
use super::drafting::Drafting;
use super::falls::Falls;
use super::masks::Masks;
use super::passes::Passes;
use super::sequences::Sequences;
use crate::error::ServiceError;
use crate::lane_request::LaneRequest;
use crate::shed::Fallen;

/// Confidence in a token of text that a grammar forces, where the target could divide that text otherwise.
const LIKELY: f32 = 0.9;

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
    masks: Masks,
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
            masks: Masks::new(spec.mask_patience),
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
        self.masks.begin(plan.chunks.len(), &mut self.sequences);
        let mut job = Drafting::new(&plan);
        self.catch_up(&mut job);
        for step in 1..job.most_steps() {
            let layers = self.passes.layer_count() * step;
            self.falls.look(&self.passes, plan.step, layers, plan.chunks.iter().map(|chunk| chunk.seq));
            if !self.step(&mut job) {
                break;
            }
        }
        // Asked in vain, if a chunk stopped by its rule.
        self.hear(&mut job);
        let proposals = job.end();
        proposals.told(&mut plan, started.elapsed());
        plan
    }

    /// The rows of committed tokens; the last row of a chunk that drafts brings its first proposal, unless a grammar forces it.
    fn catch_up(&mut self, job: &mut Drafting<'_>) {
        let plan = job.plan;
        for (index, chunk) in plan.chunks.iter().enumerate() {
            let tokens = job.rows(chunk);
            self.sequences.of_mut(chunk.seq).rewind_and_extend(chunk.start, tokens);
            self.ask(index, job);
        }
        self.hear(job);
        for (index, chunk) in plan.chunks.iter().enumerate() {
            if let Some((&last, before)) = job.rows(chunk).split_last() {
                for (offset, &token) in before.iter().enumerate() {
                    self.push(token, chunk.start + offset, index, false, job);
                }
                self.draft_from(last, chunk.start + before.len(), index, job);
            }
        }
        self.forward(job);
    }

    /// One more proposal for every chunk that wants one: the row of its latest proposal. False if none does.
    fn step(&mut self, job: &mut Drafting<'_>) -> bool {
        let mut wanted = false;
        self.hear(job);
        for index in 0..job.plan.chunks.len() {
            if let Some((latest, position)) = job.goes_on(index, self.falls.gone()) {
                self.draft_from(latest, position, index, job);
                wanted = true;
            }
        }
        self.forward(job);
        wanted
    }

    /// Adds the row of a chunk's latest token, which brings the next proposal. Where a grammar forces that, it takes no step: its own row
    /// follows in the same pass.
    fn draft_from(&mut self, latest: TokenId, position: usize, chunk: usize, job: &mut Drafting<'_>) {
        let (mut latest, mut position) = (latest, position);
        for ForcedToken { token, certain } in self.masks.take_forced(chunk) {
            self.push(latest, position, chunk, false, job);
            self.sequences.of_mut(job.plan.chunks[chunk].seq).push(token);
            job.drew(chunk, token, if certain { 1.0 } else { LIKELY }, Rivals::new());
            (latest, position) = (token, position + 1);
            if job.goes_on(chunk, self.falls.gone()).is_none() {
                // The KV of the last proposal is not computed.
                return;
            }
        }
        let drafts = job.missing(chunk) > 0;
        self.push(latest, position, chunk, drafts, job);
    }

    /// Asks what the grammar of a chunk's sequence allows next, if it has one and more is to be drafted.
    fn ask(&mut self, index: usize, job: &Drafting<'_>) {
        let seq = job.plan.chunks[index].seq;
        if let (Some(following), most @ 1..) = (&mut self.sequences.of_mut(seq).following, job.missing(index))
        {
            self.masks.ask_forced(index, seq, following, most);
        }
    }

    /// Waits for what was asked. Where it is not known in time what a grammar allows, nothing more is drafted.
    fn hear(&mut self, job: &mut Drafting<'_>) {
        self.masks.settle(&self.passes, &mut self.sequences);
        for index in 0..job.plan.chunks.len() {
            if self.masks.places(index) == Some(0) {
                job.cease(index);
                // In a group another rank may not know it.
                self.masks.take_forced(index);
            }
        }
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
        let (sequences, masks) = (&self.sequences, &self.masks);
        let sample_row = |(row, &index): (usize, &usize)| {
            let sequence = sequences.of(job.plan.chunks[index].seq);
            SampleRow {
                row,
                position: sequence.history.len() as u32,
                sampling: &sequence.request.sampling,
                history: &sequence.history,
                since: &[],
                allowed: masks.bits(index, 0),
            }
        };
        let rows: Vec<SampleRow<'_>> = self.awaited.iter().enumerate().map(sample_row).collect();
        self.sampled.clear();
        self.sampled.resize(rows.len(), 0);
        self.confidence.clear();
        self.confidence.resize(rows.len(), 0.0);
        ops::sample(lane, logits, &rows, &mut self.sampled);
        let allowed: Vec<Option<&[u32]>> = rows.iter().map(|row| row.allowed).collect();
        ops::confidence(lane, logits, &self.sampled, &allowed, &mut self.confidence);
        self.top.clear();
        if job.plan.rivals {
            self.top.resize(rows.len(), [0; ops::TOP_TOKENS]);
            ops::top_tokens(lane, logits, &mut self.top);
        }
        let mut awaited = std::mem::take(&mut self.awaited);
        for (place, index) in awaited.drain(..).enumerate() {
            let (token, confidence) = (self.sampled[place], self.confidence[place]);
            // Rivals that a grammar forbids say nothing of what the target draws under it.
            let free = self.masks.bits(index, 0).is_none();
            let rivals =
                self.top.get(place).filter(|_| free).map_or_else(Rivals::new, |top| Rivals::from(*top));
            self.sequences.of_mut(job.plan.chunks[index].seq).push(token);
            job.drew(index, token, confidence, rivals);
            self.ask(index, job);
        }
        self.awaited = awaited;
    }
}
