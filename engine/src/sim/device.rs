//! A device without tensors: passes cost time, KV is a fingerprint per slot, and a token is a function of its prefix.
//!
//! A slot of KV memory holds the fingerprint of the prefix that ends there, so a pass can tell whether the block table
//! it was given leads to the sequence's own history. The target's token is a hash of the fingerprint; the draft
//! agrees with it with a probability of `acceptance`, drawn from another hash.

use std::collections::HashMap;
use std::time::Duration;

use crate::api::{
    Admission, BlockId, DraftPlan, DraftResult, DraftedChunk, SeqId, TokenId, VerifiedChunk, VerifyPlan,
    VerifyResult,
};

/// Time of passes: a fixed part (reading the weights, launching) and a part per row.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// One draft step, whatever its rows.
    pub draft_step: Duration,
    /// Every row of a draft step.
    pub draft_row: Duration,
    /// One verify pass, whatever its rows.
    pub verify_pass: Duration,
    /// Every row of a verify pass.
    pub verify_row: Duration,
}

/// The simulated device.
#[derive(Clone, Debug)]
pub struct SimDevice {
    costs: Costs,
    block_size: usize,
    vocabulary: u32,
    acceptance: f64,
    seed: u64,
    draft: SimLane,
    target: SimLane,
}

/// KV memory and knowledge of one lane.
#[derive(Clone, Debug, Default)]
struct SimLane {
    kv: HashMap<(BlockId, usize), KvSlot>,
    known: HashMap<SeqId, usize>,
    last_step: u64,
}

/// Fingerprints of the prefix before a position and of the one that ends with it.
#[derive(Clone, Copy, Debug)]
struct KvSlot {
    before: u64,
    after: u64,
}

const NO_PREFIX: u64 = 0x9e37_79b9_7f4a_7c15;

impl SimDevice {
    /// A device whose draft model is right with probability `acceptance`; tokens are `0 .. vocabulary`.
    pub fn new(seed: u64, vocabulary: u32, acceptance: f64, block_size: usize, costs: Costs) -> SimDevice {
        SimDevice {
            costs,
            block_size,
            vocabulary,
            acceptance,
            seed,
            draft: SimLane::default(),
            target: SimLane::default(),
        }
    }

    /// The text any correct schedule must emit: up to `max_new_tokens` tokens after `prompt`, ended by `stop_tokens`.
    pub fn continuation(
        &self,
        prompt: &[TokenId],
        max_new_tokens: usize,
        stop_tokens: &[TokenId],
    ) -> Vec<TokenId> {
        let mut prefix = prompt.iter().fold(NO_PREFIX, |prefix, &token| extend(prefix, token));
        let mut out = Vec::new();
        while out.len() < max_new_tokens {
            let token = self.target_token(prefix);
            if stop_tokens.contains(&token) {
                break;
            }
            out.push(token);
            prefix = extend(prefix, token);
        }
        out
    }

    pub(super) fn lose(&mut self) {
        self.draft = SimLane::default();
        self.target = SimLane::default();
    }

    pub(super) fn draft(&mut self, plan: &DraftPlan) -> DraftResult {
        self.draft.open(plan.step, &plan.retire, &plan.admit);
        let mut chunks = Vec::with_capacity(plan.chunks.len());
        let mut rows = 0;
        let longest = plan.chunks.iter().map(|chunk| chunk.steps).max().unwrap_or(0);
        for chunk in &plan.chunks {
            let mut prefix =
                self.draft.compute(chunk.seq, chunk.start, &chunk.tokens, &chunk.blocks, self.block_size);
            self.draft.remember(chunk.seq, chunk.start + chunk.tokens.len() + chunk.steps);
            rows += chunk.tokens.len() + chunk.steps.saturating_sub(1);
            let mut proposals = Vec::with_capacity(chunk.steps);
            for step in 0..chunk.steps {
                let token = self.draft_token(prefix);
                proposals.push(token);
                let at = chunk.start + chunk.tokens.len() + step;
                if step + 1 < chunk.steps {
                    self.draft.write(at, prefix, token, &chunk.blocks, self.block_size);
                }
                prefix = extend(prefix, token);
            }
            chunks.push(DraftedChunk { seq: chunk.seq, epoch: chunk.epoch, proposals });
        }
        let took = self.costs.draft_step * longest.max(1) as u32 + self.costs.draft_row * rows as u32;
        DraftResult { step: plan.step, took, chunks }
    }

    pub(super) fn verify(&mut self, plan: &VerifyPlan) -> VerifyResult {
        self.target.open(plan.step, &plan.retire, &plan.admit);
        let mut chunks = Vec::with_capacity(plan.chunks.len());
        let mut rows = 0;
        for chunk in &plan.chunks {
            rows += chunk.tokens.len();
            let committed = chunk.tokens.len() - chunk.proposals;
            let (rows_before, proposals) = chunk.tokens.split_at(committed);
            let mut prefix =
                self.target.compute(chunk.seq, chunk.start, rows_before, &chunk.blocks, self.block_size);
            self.target.remember(chunk.seq, chunk.start + chunk.tokens.len());
            let mut accepted = 0;
            let mut next = chunk.sample.then(|| self.target_token(prefix));
            for (i, &proposal) in proposals.iter().enumerate() {
                let accepts = accepted == i && next == Some(proposal);
                self.target.write(
                    chunk.start + committed + i,
                    prefix,
                    proposal,
                    &chunk.blocks,
                    self.block_size,
                );
                prefix = extend(prefix, proposal);
                if accepts {
                    accepted += 1;
                    next = Some(self.target_token(prefix));
                }
            }
            chunks.push(VerifiedChunk { seq: chunk.seq, epoch: chunk.epoch, accepted, next });
        }
        let took = self.costs.verify_pass + self.costs.verify_row * rows as u32;
        VerifyResult { step: plan.step, took, chunks }
    }

    fn target_token(&self, prefix: u64) -> TokenId {
        (mix(prefix ^ self.seed) % u64::from(self.vocabulary)) as TokenId
    }

    fn draft_token(&self, prefix: u64) -> TokenId {
        let token = self.target_token(prefix);
        let luck = mix(prefix.rotate_left(17) ^ !self.seed) as f64 / u64::MAX as f64;
        if luck < self.acceptance { token } else { (token + 1) % self.vocabulary }
    }
}

impl SimLane {
    /// Takes the news of a plan; anything out of order is a bug of the engine.
    fn open(&mut self, step: u64, retire: &[SeqId], admit: &[Admission]) {
        assert!(step > self.last_step, "plan {step} follows {}", self.last_step);
        self.last_step = step;
        for seq in retire {
            assert!(self.known.remove(seq).is_some(), "{seq} is retired, but the lane does not know it");
        }
        for admission in admit {
            let known = self.known.insert(admission.seq, admission.tokens.len());
            assert!(known.is_none(), "{} is admitted twice", admission.seq);
            assert!(admission.prompt_len <= admission.tokens.len());
        }
    }

    /// Writes the KV of `tokens` at `start..`, after the prefix the block table must lead to; the new prefix.
    fn compute(
        &mut self,
        seq: SeqId,
        start: usize,
        tokens: &[TokenId],
        blocks: &[BlockId],
        block_size: usize,
    ) -> u64 {
        let history = self.known.get(&seq).unwrap_or_else(|| panic!("{seq} was never admitted"));
        assert!(start <= *history, "{seq} goes on at {start}, but the lane knows {history} tokens of it");
        assert!(!tokens.is_empty(), "{seq} has a chunk without rows");
        let mut prefix = self.read(seq, start, blocks, block_size);
        for (i, &token) in tokens.iter().enumerate() {
            self.write(start + i, prefix, token, blocks, block_size);
            prefix = extend(prefix, token);
        }
        prefix
    }

    /// The lane has now seen `tokens` tokens of a sequence, proposals included.
    fn remember(&mut self, seq: SeqId, tokens: usize) {
        self.known.insert(seq, tokens);
    }

    /// The prefix that ends before `start`. Debug builds follow the chain through every position, as attention would.
    fn read(&self, seq: SeqId, start: usize, blocks: &[BlockId], block_size: usize) -> u64 {
        let mut prefix = NO_PREFIX;
        let first = if cfg!(debug_assertions) { 0 } else { start.saturating_sub(1) };
        for position in first..start {
            let Some(written) = self.kv.get(&slot(position, blocks, block_size)) else {
                panic!("{seq} reads KV of position {position} that nobody wrote");
            };
            assert!(
                position == first || written.before == prefix,
                "{seq} reads another's KV at position {position}"
            );
            prefix = written.after;
        }
        prefix
    }

    fn write(&mut self, position: usize, before: u64, token: TokenId, blocks: &[BlockId], block_size: usize) {
        self.kv.insert(slot(position, blocks, block_size), KvSlot { before, after: extend(before, token) });
    }
}

fn slot(position: usize, blocks: &[BlockId], block_size: usize) -> (BlockId, usize) {
    (blocks[position / block_size], position % block_size)
}

fn extend(prefix: u64, token: TokenId) -> u64 {
    mix(prefix.wrapping_mul(31).wrapping_add(u64::from(token) + 1))
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood 2014): a bijection that spreads every bit.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
