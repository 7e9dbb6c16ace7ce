//! One token stream: its committed tokens, its KV in both pools, its proposals.
//!
//! ```text
//!             admit                    computed reaches the anchor
//!   waiting --------> running: prefill ---------------------------> running: decode --+
//!      ^                    |                                         |      ^        | draft, verify,
//!      |   preempt, device lost                                       |      +--------+ commit
//!      +--------------------+-----------------------------------------+
//!                                                                     | stop token, length, cancel
//!                                                                     v
//!                                                                 finished
//! ```
//! Prefill and decode differ only in how many committed tokens await their target KV: in decode it is one, the anchor.

use std::sync::Arc;

use crate::api::{Admission, Emitted, FinishReason, Origin, Request, SeqId, TokenId, Usage};
use crate::blocks::{BlockPool, BlockTable};

/// The KV of one sequence in one pool.
#[derive(Debug)]
pub(crate) struct SequenceKv {
    /// Blocks held.
    pub(crate) table: BlockTable,
    /// Leading committed tokens whose KV is there.
    pub(crate) computed: usize,
    /// What `computed` will be when the plan that is out is done, proposals aside.
    pub(crate) planned: usize,
}

impl SequenceKv {
    /// Nothing held.
    pub(crate) fn empty(pool: &BlockPool) -> SequenceKv {
        SequenceKv { table: pool.table(), computed: 0, planned: 0 }
    }

    /// The cached beginning of `tokens`.
    pub(crate) fn from_cache(pool: &BlockPool, tokens: &[TokenId]) -> SequenceKv {
        let table = pool.table_for_prefix(tokens);
        SequenceKv { computed: table.cached_tokens(), planned: 0, table }
    }

    /// Notes that the first `computed` of `tokens`, all committed, have their KV.
    pub(crate) fn advance(&mut self, tokens: &[TokenId], computed: usize) {
        self.computed = computed;
        self.table.register(tokens, computed);
    }
}

#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) id: SeqId,
    /// Committed: prompt and output. Never shortened.
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) target: SequenceKv,
    pub(crate) draft: SequenceKv,
    /// Drafted and not yet verified; they follow `tokens`.
    pub(crate) proposals: Vec<TokenId>,
    /// Generation of `proposals`: a result with another one is late and dropped.
    pub(crate) epoch: u32,
    pub(crate) usage: Usage,
    /// Devices that failed while this sequence ran on them.
    pub(crate) device_losses: u32,
    /// Has it ever been admitted?
    pub(crate) admitted: bool,
    max_new_tokens: usize,
    stop_tokens: Arc<[TokenId]>,
    k_max: usize,
}

impl Sequence {
    /// A waiting sequence; `k_limit` is the most proposals it may ever get.
    pub(crate) fn new(request: Request, k_limit: usize, pools: (&BlockPool, &BlockPool)) -> Sequence {
        Sequence {
            id: request.seq,
            usage: Usage { prompt_tokens: request.prompt.len(), ..Usage::default() },
            tokens: request.prompt.to_vec(),
            target: SequenceKv::empty(pools.0),
            draft: SequenceKv::empty(pools.1),
            proposals: Vec::new(),
            epoch: 0,
            device_losses: 0,
            admitted: false,
            max_new_tokens: request.max_new_tokens,
            stop_tokens: request.stop_tokens,
            k_max: request.k_max.map_or(k_limit, |k| k.min(k_limit)),
        }
    }

    /// Committed tokens without target KV, the anchor included: 1 in decode, more in prefill.
    pub(crate) fn uncomputed(&self) -> usize {
        self.tokens.len() - self.target.computed
    }

    pub(crate) fn decoding(&self) -> bool {
        self.uncomputed() == 1
    }

    /// May this request ever speculate?
    pub(crate) fn speculates(&self) -> bool {
        self.k_max > 0
    }

    /// Proposals that could still be used: the last token to come is always the target's own.
    pub(crate) fn useful_proposals(&self) -> usize {
        let to_come = self.max_new_tokens - self.usage.output_tokens;
        if self.decoding() { self.k_max.min(to_come.saturating_sub(1)) } else { 0 }
    }

    /// What a lane must know before the first chunk.
    pub(crate) fn admission(&self) -> Admission {
        Admission {
            seq: self.id,
            prompt_len: self.usage.prompt_tokens,
            tokens: self.tokens.as_slice().into(),
        }
    }

    /// Takes the accepted prefix of the proposals and the next token, up to a stop token or the length limit; what was
    /// emitted is appended to `emitted`. Says why the sequence ends, if it does.
    pub(crate) fn commit(
        &mut self,
        accepted: usize,
        next: TokenId,
        emitted: &mut Vec<Emitted>,
    ) -> Option<FinishReason> {
        let anchored = self.tokens.len();
        let proposals = std::mem::take(&mut self.proposals);
        self.epoch += 1;
        let verified = proposals[..accepted].iter().map(|&token| (token, Origin::Draft));
        for (token, origin) in verified.chain([(next, Origin::Target)]) {
            if self.stop_tokens.contains(&token) {
                return Some(FinishReason::StopToken(token));
            }
            self.tokens.push(token);
            self.usage.output_tokens += 1;
            emitted.push(Emitted { token, origin });
            if self.usage.output_tokens == self.max_new_tokens {
                return Some(FinishReason::Length);
            }
        }
        self.target.advance(&self.tokens, anchored + accepted);
        if !proposals.is_empty() {
            // The draft has the KV of all its proposals but the last.
            self.draft.advance(&self.tokens, anchored + accepted.min(proposals.len() - 1));
        }
        // The provisional KV of what was rejected goes back to the pools.
        self.target.table.shrink(self.tokens.len());
        self.draft.table.shrink(self.tokens.len());
        None
    }

    /// Gives back all KV, to be recomputed after the next admission. Committed tokens stay.
    pub(crate) fn evict(&mut self, pools: (&BlockPool, &BlockPool)) {
        self.target = SequenceKv::empty(pools.0);
        self.draft = SequenceKv::empty(pools.1);
        self.proposals.clear();
        self.epoch += 1;
    }
}
