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
//!
//! Positions of a sequence that decodes, while both lanes work on it:
//!
//! ```text
//!   | committed ......... anchor | proposals: sent to verification | not sent | being drafted |
//!   0                     L-1    L                                 frontier   L+n
//! ```
//! A verdict commits the accepted prefix and the next token. If the next token is also what was proposed in its place,
//! the proposals behind it stand; otherwise they fall, and the epoch moves on.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::api::{Admission, Drafted, Emitted, FinishReason, Origin, Request, SeqId, TokenId, Usage};
use crate::blocks::{BlockPool, BlockTable};
use crate::survival::{AcceptanceTable, Calibration, Level, confidence_bin};

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
    pub(crate) fn empty(pool: &BlockPool) -> SequenceKv {
        SequenceKv { table: pool.table(), computed: 0 }
    }

    /// The cached beginning of `tokens`.
    pub(crate) fn from_cache(pool: &BlockPool, tokens: &[TokenId]) -> SequenceKv {
        let table = pool.table_for_prefix(tokens);
        SequenceKv { computed: table.cached_tokens(), table }
    }

    /// Notes that the KV of `computed` tokens is there; full blocks of committed ones enter the prefix cache.
    pub(crate) fn advance(&mut self, committed: &[TokenId], computed: usize) {
        self.computed = computed;
        self.table.register(committed, computed.min(committed.len()));
    }
}

/// A drafted token that is not verified yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Proposal {
    pub(crate) token: TokenId,
    confidence: f32,
    /// What confidence alone says of its acceptance.
    calibrated: f32,
    /// Probability of acceptance, given that all before it is accepted.
    pub(crate) acceptance: f32,
}

/// A draft chunk that is out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DraftOut {
    /// Position of its first proposal; the end of its rows.
    pub(crate) end: usize,
}

/// A verify chunk that is out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VerifyOut {
    /// Committed tokens that have target KV once it is done.
    pub(crate) end: usize,
    /// Proposals sent with it.
    pub(crate) proposals: usize,
}

#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) id: SeqId,
    /// Committed: prompt and output. Never shortened.
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) target: SequenceKv,
    pub(crate) draft: SequenceKv,
    /// Drafted and not verified; they follow `tokens`.
    pub(crate) proposals: VecDeque<Proposal>,
    pub(crate) draft_out: Option<DraftOut>,
    pub(crate) verify_out: Option<VerifyOut>,
    /// Generation of `proposals`: a result with another one is late and dropped.
    pub(crate) epoch: u32,
    pub(crate) level: Level,
    /// Proposals the round wants it to have.
    pub(crate) wanted: usize,
    pub(crate) usage: Usage,
    /// Devices that failed while this sequence ran on them.
    pub(crate) device_losses: u32,
    /// Has it ever been admitted?
    pub(crate) admitted: bool,
    max_new_tokens: usize,
    stop_tokens: Arc<[TokenId]>,
    k_max: usize,
}

/// What a verdict did to a sequence.
#[derive(Debug, Default)]
pub(crate) struct Committed {
    pub(crate) emitted: Vec<Emitted>,
    /// Proposals that were sent.
    pub(crate) proposed: usize,
    pub(crate) accepted: usize,
    /// Unsent proposals and drafts in flight that fell with a rejection.
    pub(crate) cancelled: bool,
    pub(crate) ended: Option<FinishReason>,
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
            proposals: VecDeque::new(),
            draft_out: None,
            verify_out: None,
            epoch: 0,
            level: Level::default(),
            wanted: 0,
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

    /// Committed tokens and proposals.
    pub(crate) fn known(&self) -> usize {
        self.tokens.len() + self.proposals.len()
    }

    /// Proposals that could be used in all: the last token to come is always the target's own.
    pub(crate) fn useful_proposals(&self) -> usize {
        let to_come = self.max_new_tokens - self.usage.output_tokens;
        if self.decoding() { self.k_max.min(to_come.saturating_sub(1)) } else { 0 }
    }

    /// The known tokens from position `from` on, `n` of them.
    pub(crate) fn known_tokens(&self, from: usize, n: usize) -> Vec<TokenId> {
        let proposed = self.proposals.iter().map(|proposal| proposal.token);
        self.tokens.iter().copied().chain(proposed).skip(from).take(n).collect()
    }

    /// Survival of all proposals there are.
    pub(crate) fn survival(&self) -> f32 {
        self.proposals.iter().map(|proposal| proposal.acceptance).product()
    }

    /// Acceptance by confidence, for this request.
    pub(crate) fn acceptance_table(&self, table: &AcceptanceTable) -> AcceptanceTable {
        table.map(|calibrated| self.level.acceptance(calibrated))
    }

    /// What a lane must know before the first chunk.
    pub(crate) fn admission(&self) -> Admission {
        Admission {
            seq: self.id,
            prompt_len: self.usage.prompt_tokens,
            tokens: self.tokens.as_slice().into(),
        }
    }

    /// Takes in what came of the draft chunk that is out. Verdicts may have come in between: proposals for positions that
    /// are committed by now must equal what is there, or all that follows is worthless.
    pub(crate) fn drafted(&mut self, drafted: &[Drafted], table: &AcceptanceTable) {
        let Some(DraftOut { end }) = self.draft_out.take() else { return };
        let overtaken = self.known() - end;
        let agreed = drafted
            .iter()
            .zip(self.tokens.get(end..).unwrap_or_default())
            .take_while(|(drafted, committed)| drafted.token == **committed)
            .count();
        // The KV of the last proposal is not computed.
        let right = if agreed < overtaken { agreed } else { drafted.len() };
        let computed = end + right.min(drafted.len().saturating_sub(1));
        if agreed == overtaken {
            self.proposals.extend(drafted.iter().skip(overtaken).map(|&Drafted { token, confidence }| {
                let calibrated = table[confidence_bin(confidence)];
                Proposal { token, confidence, calibrated, acceptance: self.level.acceptance(calibrated) }
            }));
        }
        self.draft.advance(&self.tokens, computed);
    }

    /// Commits a verdict on the verify chunk that is out: the accepted prefix of its proposals and the next token, up to a
    /// stop token or the length limit.
    pub(crate) fn verified(
        &mut self,
        accepted: usize,
        next: TokenId,
        calibration: &mut Calibration,
    ) -> Committed {
        let mut done = Committed::default();
        let Some(VerifyOut { end, proposals: sent }) = self.verify_out.take() else { return done };
        (done.proposed, done.accepted) = (sent, accepted.min(sent));
        self.learn(sent, done.accepted, calibration);
        self.usage.target_passes += 1;
        self.usage.proposed += sent;
        self.usage.accepted += done.accepted;
        for _ in 0..done.accepted {
            let Some(proposal) = self.proposals.pop_front() else { break };
            if self.take(proposal.token, Origin::Draft, &mut done) {
                return done;
            }
        }
        let behind_frontier = self.proposals.len() > sent - done.accepted || self.draft_out.is_some();
        let foreseen = self.proposals.pop_front().map(|proposal| proposal.token);
        if self.take(next, Origin::Target, &mut done) {
            return done;
        }
        self.target.advance(&self.tokens, end + done.accepted);
        if foreseen.is_some_and(|token| token != next) {
            done.cancelled = behind_frontier;
            self.reject();
        }
        self.draft.advance(&self.tokens, self.draft.computed);
        // The provisional KV of what was rejected goes back to the pool; what the draft holds it may still need.
        self.target.table.shrink(self.known());
        done
    }

    /// Proposals behind the frontier are on a path the target did not take.
    fn reject(&mut self) {
        self.proposals.clear();
        self.draft_out = None;
        self.epoch += 1;
        // The next token, committed last, took the place of what the draft has there.
        self.draft.computed = self.draft.computed.min(self.tokens.len() - 1);
        self.draft.table.shrink(self.tokens.len());
    }

    /// One token more; true if it ends the sequence.
    fn take(&mut self, token: TokenId, origin: Origin, done: &mut Committed) -> bool {
        if self.stop_tokens.contains(&token) {
            done.ended = Some(FinishReason::StopToken(token));
            return true;
        }
        self.tokens.push(token);
        self.usage.output_tokens += 1;
        done.emitted.push(Emitted { token, origin });
        if self.usage.output_tokens == self.max_new_tokens {
            done.ended = Some(FinishReason::Length);
        }
        done.ended.is_some()
    }

    /// What the verdict says of the draft: of every accepted proposal, and of the one that was not.
    fn learn(&mut self, sent: usize, accepted: usize, calibration: &mut Calibration) {
        self.level.fade(calibration.typical());
        for (i, proposal) in self.proposals.iter().take(sent.min(accepted + 1)).enumerate() {
            calibration.observe(proposal.confidence, proposal.acceptance, i < accepted);
            self.level.observe(proposal.calibrated, i < accepted);
        }
    }

    /// Gives back all KV, to be recomputed after the next admission. Committed tokens stay.
    pub(crate) fn evict(&mut self, pools: (&BlockPool, &BlockPool)) {
        self.target = SequenceKv::empty(pools.0);
        self.draft = SequenceKv::empty(pools.1);
        self.proposals.clear();
        self.draft_out = None;
        self.verify_out = None;
        self.epoch += 1;
    }
}
