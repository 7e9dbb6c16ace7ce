//! A device without tensors: passes cost time, KV is a fingerprint per slot, and a token is a function of its prefix.
//!
//! A slot of KV memory holds the fingerprint of the prefix that ends there, so a pass can tell whether the block table
//! it was given leads to the sequence's own history. The target's token is a hash of the fingerprint; whether the draft
//! agrees is up to its `Acceptance`, another function of the prefix.

use super::acceptance::Acceptance;
use super::costs::{Deviation, DeviceCosts};
use super::kv::{Prefix, SimLane};
use super::random::mix;
use super::roofline::{Load, Work};
use crate::api::{
    DraftPlan, DraftResult, Drafted, DraftedChunk, TokenId, VerifiedChunk, VerifyChunk, VerifyPlan,
    VerifyResult,
};

/// The simulated device.
#[derive(Clone, Debug)]
pub struct SimDevice {
    costs: DeviceCosts,
    deviation: Deviation,
    block_size: usize,
    vocabulary: u32,
    acceptance: Acceptance,
    seed: u64,
    draft: SimLane,
    target: SimLane,
}

impl SimDevice {
    /// A device with these true costs, whose draft model is right as often as `acceptance` says; tokens are
    /// `0 .. vocabulary`.
    pub fn new(
        seed: u64,
        vocabulary: u32,
        acceptance: impl Into<Acceptance>,
        block_size: usize,
        costs: impl Into<DeviceCosts>,
    ) -> SimDevice {
        SimDevice {
            costs: costs.into(),
            deviation: Deviation::default(),
            block_size,
            vocabulary,
            acceptance: acceptance.into(),
            seed,
            draft: SimLane::new(block_size),
            target: SimLane::new(block_size),
        }
    }

    /// The same device, its passes taking other times than its costs say.
    pub fn deviating(self, deviation: Deviation) -> SimDevice {
        SimDevice { deviation, ..self }
    }

    /// The text any correct schedule must emit: up to `max_new_tokens` tokens after `prompt`, ended by `stop_tokens`.
    pub fn continuation(
        &self,
        prompt: &[TokenId],
        max_new_tokens: usize,
        stop_tokens: &[TokenId],
    ) -> Vec<TokenId> {
        let mut prefix = Prefix::of(prompt);
        let mut out = Vec::new();
        while out.len() < max_new_tokens {
            let token = self.target_token(&prefix);
            if stop_tokens.contains(&token) {
                break;
            }
            out.push(token);
            prefix = prefix.then(token);
        }
        out
    }

    pub(super) fn lose(&mut self) {
        self.draft = SimLane::new(self.block_size);
        self.target = SimLane::new(self.block_size);
    }

    /// Carries out a plan: its result, whose time is yet to be known, and the work it was.
    pub(super) fn draft(&mut self, plan: &DraftPlan) -> (DraftResult, Work) {
        self.draft.open(plan.step, &plan.retire, &plan.admit);
        let mut chunks = Vec::with_capacity(plan.chunks.len());
        for chunk in &plan.chunks {
            let mut prefix = self.draft.compute(chunk.seq, chunk.start, &chunk.tokens, &chunk.blocks);
            self.draft.remember(chunk.seq, chunk.start + chunk.tokens.len() + chunk.steps);
            let mut proposals = Vec::with_capacity(chunk.steps);
            let mut survival = chunk.stop.survival;
            for step in 0..chunk.steps {
                let (token, confidence) = self.draft_token(&prefix);
                proposals.push(Drafted { token, confidence });
                survival = chunk.stop.after(survival, confidence);
                if step + 1 == chunk.steps || survival < chunk.stop.below {
                    break;
                }
                let at = chunk.start + chunk.tokens.len() + step;
                prefix = self.draft.write(at, prefix, token, &chunk.blocks);
            }
            chunks.push(DraftedChunk { seq: chunk.seq, epoch: chunk.epoch, proposals });
        }
        let work = self.draft_work(plan, &chunks);
        (DraftResult { step: plan.step, chunks, ..DraftResult::default() }, work)
    }

    fn draft_work(&self, plan: &DraftPlan, drafted: &[DraftedChunk]) -> Work {
        let mut first = Load::default();
        plan.chunks.iter().for_each(|chunk| first.add(chunk.start, chunk.tokens.len()));
        let mut work = self.costs.draft(plan.partition.0, first);
        for step in 1..drafted.iter().map(|chunk| chunk.proposals.len()).max().unwrap_or(0) {
            let mut load = Load::default();
            for (chunk, _) in
                plan.chunks.iter().zip(drafted).filter(|(_, drafted)| drafted.proposals.len() > step)
            {
                load.add(chunk.start + chunk.tokens.len() + step - 1, 1);
            }
            work = work.then(self.costs.draft(plan.partition.0, load));
        }
        work.times(self.deviation.draft * self.deviation.noise(self.seed, plan.step))
    }

    /// As `draft`.
    pub(super) fn verify(&mut self, plan: &VerifyPlan) -> (VerifyResult, Work) {
        self.target.open(plan.step, &plan.retire, &plan.admit);
        let mut load = Load::default();
        plan.chunks.iter().for_each(|chunk| load.add(chunk.start, chunk.tokens.len()));
        let chunks = plan.chunks.iter().map(|chunk| self.verify_chunk(chunk)).collect();
        let factor = self.deviation.verify * self.deviation.noise(!self.seed, plan.step);
        let work = self.costs.verify(plan.partition.0, load).times(factor);
        (VerifyResult { step: plan.step, chunks, ..VerifyResult::default() }, work)
    }

    fn verify_chunk(&mut self, chunk: &VerifyChunk) -> VerifiedChunk {
        let committed = chunk.tokens.len() - chunk.proposals;
        let (rows_before, proposals) = chunk.tokens.split_at(committed);
        let mut prefix = self.target.compute(chunk.seq, chunk.start, rows_before, &chunk.blocks);
        self.target.remember(chunk.seq, chunk.start + chunk.tokens.len());
        let mut accepted = 0;
        let mut next = chunk.sample.then(|| self.target_token(&prefix));
        for (i, &proposal) in proposals.iter().enumerate() {
            let accepts = accepted == i && next == Some(proposal);
            prefix = self.target.write(chunk.start + committed + i, prefix, proposal, &chunk.blocks);
            if accepts {
                accepted += 1;
                next = Some(self.target_token(&prefix));
            }
        }
        VerifiedChunk { seq: chunk.seq, epoch: chunk.epoch, accepted, next }
    }

    fn target_token(&self, prefix: &Prefix) -> TokenId {
        (mix(prefix.fingerprint ^ self.seed) % u64::from(self.vocabulary)) as TokenId
    }

    /// The draft's token and its confidence.
    fn draft_token(&self, prefix: &Prefix) -> (TokenId, f32) {
        let token = self.target_token(prefix);
        let (right, confidence) = self.acceptance.draw(self.seed, prefix.fingerprint, &prefix.origin);
        (if right { token } else { (token + 1) % self.vocabulary }, confidence)
    }
}

impl Load {
    /// Adds a chunk of `rows` rows from position `start`.
    fn add(&mut self, start: usize, rows: usize) {
        self.rows += rows;
        self.kv_tokens += start + rows;
        self.row_context += rows * (start + rows / 2);
    }
}

impl Work {
    /// This and then that, on the same lane.
    fn then(self, next: Work) -> Work {
        let seconds = self.seconds + next.seconds;
        let drawn = self.seconds * self.bandwidth + next.seconds * next.bandwidth;
        Work { seconds, bandwidth: if seconds > 0.0 { drawn / seconds } else { 0.0 } }
    }

    /// The same bytes in more or less time.
    fn times(self, factor: f64) -> Work {
        Work { seconds: self.seconds * factor, bandwidth: self.bandwidth / factor }
    }
}
