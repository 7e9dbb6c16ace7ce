//! What a sequence could go on with: proposals, their KV in the draft's pool, and the verdicts that were prepared for.

use std::collections::VecDeque;

use crate::blocks::{BlockPool, BlockTable};
use crate::plan::{Alternatives, Candidates, Drafted};
use crate::request::{K_LIMIT, SeqId, TokenId};
use crate::survival::{AcceptanceTable, Level, Source, confidence_bin};

/// Proposals that a running sequence has room for from the start: those of a pass, and as many drafted behind them.
pub(crate) const PROPOSALS_ROOM: usize = 2 * K_LIMIT;

/// The KV of one sequence in one pool.
#[derive(Debug)]
pub(crate) struct SequenceKv {
    /// Blocks held.
    pub(crate) table: BlockTable,
    /// Leading tokens, committed or (in the draft's pool) proposed, whose KV is there.
    pub(crate) computed: usize,
}

impl SequenceKv {
    /// Nothing held.
    pub(crate) fn empty(pool: &BlockPool, salt: u128) -> SequenceKv {
        SequenceKv { table: pool.table(salt), computed: 0 }
    }

    /// The beginning of `tokens` that is cached under the same salt, in whole blocks.
    pub(crate) fn from_cache(pool: &BlockPool, tokens: &[TokenId], salt: u128) -> SequenceKv {
        let table = pool.table_for_prefix(tokens, salt);
        SequenceKv { computed: table.cached_tokens(), table }
    }

    /// What is cached behind those too, to the token; see [`BlockTable::copy_tail`].
    pub(crate) fn copy_tail(&mut self) {
        self.computed = self.table.copy_tail();
    }

    /// What is there of committed tokens is for others from now on, to the token; what comes later once it fills a block.
    pub(crate) fn share(&mut self, committed: &[TokenId]) {
        self.table.register_part(committed, self.computed.min(committed.len()));
    }

    /// Gives all up. What is there of committed tokens stays in the prefix cache, to the token.
    pub(crate) fn leave(&mut self, committed: &[TokenId]) {
        self.table.leave(committed, self.computed.min(committed.len()));
        self.computed = 0;
    }

    /// Gives all up, and leaves nothing to others that they do not have.
    pub(crate) fn give_up(&mut self) {
        self.table.clear();
        self.computed = 0;
    }

    /// Notes that the KV of `computed` tokens is there; full blocks of committed ones enter the prefix cache.
    pub(crate) fn advance(&mut self, committed: &[TokenId], computed: usize) {
        self.computed = computed;
        self.table.register(committed, computed.min(committed.len()));
    }
}

/// A token that may come next and is not verified yet.
#[derive(Clone, Debug)]
pub(crate) struct Proposal {
    pub(crate) token: TokenId,
    pub(crate) source: Source,
    pub(crate) alternatives: Alternatives,
    /// What the draft would have drawn in its place, in order.
    pub(crate) candidates: Candidates,
    pub(crate) confidence: f32,
    /// Probability of acceptance, given that all before it is accepted.
    pub(crate) acceptance: f32,
}

impl Proposal {
    /// What a draft lane proposed, as its request's level and the table of acceptance by confidence see it.
    pub(crate) fn drafted(drafted: &Drafted, level: &Level, table: &AcceptanceTable) -> Proposal {
        Proposal {
            token: drafted.token,
            source: Source::Draft,
            alternatives: drafted.alternatives.clone(),
            candidates: drafted.candidates.clone(),
            confidence: drafted.confidence,
            acceptance: level.acceptance(table[confidence_bin(drafted.confidence)]),
        }
    }

    /// It cost no draft step, and no lane has looked at it.
    pub(crate) fn is_free(&self) -> bool {
        self.source != Source::Draft
    }
}

/// A draft chunk that is out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DraftOut {
    /// Position of its first proposal; the end of its rows.
    pub(crate) end: usize,
    /// Its place among the plan's chunks.
    pub(crate) chunk: usize,
}

/// A verdict that may come, and what was drafted for it.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Position of the token that comes behind the accepted prefix.
    pub(crate) at: usize,
    /// That token.
    pub(crate) token: TokenId,
    /// The branch's KV in the draft's pool, from where it parts on.
    pub(crate) kv: SequenceKv,
    /// What was drafted behind the token.
    pub(crate) proposals: VecDeque<Proposal>,
    /// Its chunk, while that is out.
    pub(crate) out: Option<DraftOut>,
    /// The draft plan that it is in, and its place there.
    pub(crate) planned: (u64, usize),
}

impl Outcome {
    /// One of nothing yet, in this pool.
    fn empty(pool: &BlockPool) -> Outcome {
        let mut kv = SequenceKv::empty(pool, 0);
        kv.table.reserve(PROPOSALS_ROOM);
        // They become the sequence's own.
        let proposals = VecDeque::with_capacity(PROPOSALS_ROOM);
        Outcome { at: 0, token: 0, kv, proposals, out: None, planned: (0, 0) }
    }
}

/// Outcomes that are over: their buffers are used again, their chunks are cancelled.
#[derive(Debug, Default)]
pub(crate) struct Spent {
    buffers: Vec<Outcome>,
    /// Places in the draft plan that is out of chunks that nobody waits for any more.
    pub(crate) cancelled: Vec<usize>,
}

impl Spent {
    /// An outcome is over.
    pub(crate) fn take_back(&mut self, mut outcome: Outcome) {
        self.cancelled.extend(outcome.out.take().map(|out| out.chunk));
        outcome.kv.give_up();
        outcome.proposals.clear();
        self.buffers.push(outcome);
    }

    pub(crate) fn next(&mut self, pool: &BlockPool) -> Outcome {
        self.buffers.pop().unwrap_or_else(|| Outcome::empty(pool))
    }

    /// The buffers belong to a pool that is gone.
    pub(crate) fn forget(&mut self) {
        *self = Spent::default();
    }
}

/// An outcome that could be prepared.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Branch {
    pub(crate) seq: SeqId,
    /// Where it parts; none of the sequence's own drafts, which go on.
    pub(crate) parts: Option<(usize, TokenId)>,
}
