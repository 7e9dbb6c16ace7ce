//! KV memory of a simulated lane: per slot the fingerprint of the prefix that ends there, and a strict reader.

use std::collections::HashMap;

use super::random::mix;
use crate::blocks::{BlockCopy, BlockId};
use crate::plan::{Admission, DraftPlan};
use crate::request::{SeqId, TokenId};

/// What acceptance may know of a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    /// The first token, which stands for the class.
    pub(super) class: u32,
    /// Fingerprint of the first tokens, which stands for the request.
    pub(super) request: u64,
    /// Tokens so far.
    pub(super) length: u32,
}

/// A prefix of a sequence, as far as the simulated models look at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Prefix {
    pub(super) fingerprint: u64,
    pub(super) origin: Origin,
    pub(super) last: TokenId,
}

/// Tokens that make a request what it is.
const ORIGIN_TOKENS: u32 = 8;

impl Prefix {
    pub(super) const EMPTY: Prefix = Prefix {
        fingerprint: 0x9e37_79b9_7f4a_7c15,
        origin: Origin { class: 0, request: 0, length: 0 },
        last: 0,
    };

    pub(super) fn then(self, token: TokenId) -> Prefix {
        let Prefix { fingerprint, mut origin, .. } = self;
        let fingerprint = mix(fingerprint.wrapping_mul(31).wrapping_add(u64::from(token) + 1));
        if origin.length == 0 {
            origin.class = token;
        }
        if origin.length < ORIGIN_TOKENS {
            origin.request = fingerprint;
        }
        origin.length += 1;
        Prefix { fingerprint, origin, last: token }
    }

    pub(super) fn of(tokens: &[TokenId]) -> Prefix {
        tokens.iter().fold(Prefix::EMPTY, |prefix, &token| prefix.then(token))
    }
}

/// KV memory and knowledge of one lane.
#[derive(Clone, Debug)]
pub(super) struct SimLane {
    block_size: usize,
    /// By block and place in it. A slot nobody wrote is none.
    kv: Vec<Option<KvSlot>>,
    known: HashMap<SeqId, usize>,
    last_step: u64,
}

#[derive(Clone, Copy, Debug)]
struct KvSlot {
    /// Fingerprint of the prefix before.
    before: u64,
    after: Prefix,
}

impl SimLane {
    pub(super) fn new(block_size: usize) -> SimLane {
        SimLane { block_size, kv: Vec::new(), known: HashMap::new(), last_step: 0 }
    }

    /// Makes the copies of a plan, then takes its news; anything out of order is a bug of the engine.
    pub(super) fn open(&mut self, step: u64, copies: &[BlockCopy], retire: &[SeqId], admit: &[Admission]) {
        assert!(step > self.last_step, "plan {step} follows {}", self.last_step);
        self.last_step = step;
        copies.iter().for_each(|copy| self.copy(*copy));
        for seq in retire {
            assert!(self.known.remove(seq).is_some(), "{seq} is retired, but the lane does not know it");
        }
        for admission in admit {
            let known = self.known.insert(admission.seq, admission.tokens.len());
            assert!(known.is_none(), "{} is admitted twice", admission.seq);
            assert!(admission.prompt_len <= admission.tokens.len());
        }
    }

    /// As `open`, for what a rank's lane has of a draft plan: the news of those sequences that it drafts for, and copies between blocks of its own.
    pub(super) fn open_part(&mut self, plan: &DraftPlan, rank: usize) {
        let copies: Vec<_> = plan.copies.iter().copied().filter(|copy| copy.rank == rank).collect();
        let retire: Vec<_> = plan.retire.iter().copied().filter(|seq| self.known.contains_key(seq)).collect();
        let own = |seq| plan.chunks.iter().any(|chunk| (chunk.seq, chunk.rank) == (seq, rank));
        let admit: Vec<_> = plan.admit.iter().filter(|admission| own(admission.seq)).cloned().collect();
        self.open(plan.step, &copies, &retire, &admit);
    }

    /// Whether the lane was told of a sequence.
    pub(super) fn knows(&self, seq: SeqId) -> bool {
        self.known.contains_key(&seq)
    }

    /// Writes the KV of `tokens` at `start..`, after the prefix the block table must lead to; the new prefix.
    pub(super) fn compute(
        &mut self,
        seq: SeqId,
        start: usize,
        tokens: &[TokenId],
        blocks: &[BlockId],
    ) -> Prefix {
        let history = self.known.get(&seq).unwrap_or_else(|| panic!("{seq} was never admitted"));
        assert!(start <= *history, "{seq} goes on at {start}, but the lane knows {history} tokens of it");
        assert!(!tokens.is_empty(), "{seq} has a chunk without rows");
        let mut prefix = self.read(seq, start, blocks);
        for (i, &token) in tokens.iter().enumerate() {
            prefix = self.write(start + i, prefix, token, blocks);
        }
        prefix
    }

    /// Looks that this lane, the target's, has the tokens that a draft's rows begin with: `features` is its block table of them, `table` that of
    /// `draft`, whose rows are `tokens` from position `start` on.
    pub(super) fn assert_features(
        &self,
        seq: SeqId,
        (start, tokens): (usize, &[TokenId]),
        table: &[BlockId],
        features: &[BlockId],
        draft: &SimLane,
    ) {
        let mut prefix = draft.read(seq, start, table);
        assert!(
            start == 0 || prefix == self.read(seq, start, features),
            "{seq} drafts from another's features"
        );
        for (position, &token) in (start..).zip(&tokens[..tokens.len() - 1]) {
            prefix = prefix.then(token);
            let written = self.kv.get(self.slot(position, features)).copied().flatten();
            let right = written.is_some_and(|written| written.after == prefix);
            assert!(right, "{seq} drafts from features of position {position} that are not there");
        }
    }

    /// Copies a block, slot by slot.
    fn copy(&mut self, BlockCopy { from, to, .. }: BlockCopy) {
        let [from, to] = [from, to].map(|block| block as usize * self.block_size);
        assert!(self.kv.get(from).is_some_and(Option::is_some), "a block is copied that nobody wrote");
        let end = from.max(to) + self.block_size;
        if end > self.kv.len() {
            self.kv.resize(end, None);
        }
        self.kv.copy_within(from..from + self.block_size, to);
    }

    /// The lane has now seen `tokens` tokens of a sequence, proposals included.
    pub(super) fn remember(&mut self, seq: SeqId, tokens: usize) {
        self.known.insert(seq, tokens);
    }

    /// It has seen as many at least.
    pub(super) fn remember_at_least(&mut self, seq: SeqId, tokens: usize) {
        self.known.entry(seq).and_modify(|known| *known = (*known).max(tokens));
    }

    /// Writes one slot; the prefix that ends there.
    pub(super) fn write(
        &mut self,
        position: usize,
        before: Prefix,
        token: TokenId,
        blocks: &[BlockId],
    ) -> Prefix {
        let after = before.then(token);
        let slot = self.slot(position, blocks);
        if slot >= self.kv.len() {
            self.kv.resize(slot + 1, None);
        }
        self.kv[slot] = Some(KvSlot { before: before.fingerprint, after });
        after
    }

    /// A slot whose KV is not to be read again before it is written: its row left the pass.
    pub(super) fn spoil(&mut self, position: usize, blocks: &[BlockId]) {
        let slot = self.slot(position, blocks);
        if let Some(kv) = self.kv.get_mut(slot) {
            *kv = None;
        }
    }

    /// The prefix that ends before `start`. Debug builds follow the chain through every position, as attention would.
    fn read(&self, seq: SeqId, start: usize, blocks: &[BlockId]) -> Prefix {
        let mut prefix = Prefix::EMPTY;
        let first = if cfg!(debug_assertions) { 0 } else { start.saturating_sub(1) };
        for position in first..start {
            let Some(written) = self.kv.get(self.slot(position, blocks)).copied().flatten() else {
                panic!("{seq} reads KV of position {position} that nobody wrote");
            };
            assert!(
                position == first || written.before == prefix.fingerprint,
                "{seq} reads another's KV at position {position}"
            );
            prefix = written.after;
        }
        assert_eq!(prefix.origin.length as usize, start, "{seq} reads the KV of another position");
        prefix
    }

    fn slot(&self, position: usize, blocks: &[BlockId]) -> usize {
        blocks[position / self.block_size] as usize * self.block_size + position % self.block_size
    }
}
