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
//! In decode each of these steps is a sequence's own; others may be elsewhere:
//!
//! ```text
//!              asked, and nothing pays: it rides with its anchor
//!            +---------------------------------------------------+
//!            |                                                   v
//!   anchor --+--> drafting --> proposals ready ----------> in a verify pass --verdict--+--> anchor
//!     ^             |  ^              ^                      | outcomes are drafted    |
//!     |             |  |              |                      v                         |
//!     |             |  +--------------|--- the branch that came is still drafted <-----+
//!     |             |                 +--- a branch, or what was drafted behind it <---+
//!     +-------------+ its drafts come too late, or none do
//! ```
//! It is asked once between two verdicts. A pass that waits for no drafts takes it from any of them. `check` holds this after every event, in debug
//! builds.
//!
//! Positions of a sequence that decodes, while both lanes work on it:
//!
//! ```text
//!   | committed ......... anchor | proposals: sent to verification | not sent | being drafted |
//!   0                     L-1    L                                 frontier   L+n
//! ```
//! A verdict commits the accepted prefix and the next token. If the next token is also what was proposed in its place,
//! the proposals behind it stand; otherwise they are cancelled, and the epoch moves on.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::api::{Emitted, EmittedTokens, FinishReason, Origin};
use crate::blocks::BlockPool;
use crate::branch::{DraftOut, Outcome, Proposal, SequenceKv, Spent};
use crate::investment::Investment;
use crate::lane_book::LaneBook;
use crate::lookup::Lookup;
use crate::plan::{Admission, CancelledChunk, Drafted, LaneKind, Verdict};
use crate::portfolio::{Foreseen, Offers, Path, Prices, Prospects, Worth};
use crate::request::{CANDIDATES, Handling, Request, SeqId, SpeculationMode, TokenId};
use crate::suffix::{Owner, PastOutputs};
use crate::survival::{AcceptanceTable, Calibration, Level, PerSource, Ranks, Source, confidence_bin};
use crate::usage::{Tried, Usage};
use crate::view::{RequestState, RequestView};

/// Failures by one lane's fault that a sequence is carried over as if nothing had been. At the next one of the whole device it is given up, lest one
/// request fell every device; of a draft on a device of its own it goes on without.
const LOSSES_FORGIVEN: u32 = 2;

/// A verify chunk that is out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VerifyOut {
    /// Committed tokens that have target KV once it is done.
    pub(crate) end: usize,
    /// Proposals sent with it.
    pub(crate) proposals: usize,
    /// Its place among the plan's chunks.
    pub(crate) chunk: usize,
}

#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) id: SeqId,
    /// Committed: prompt and output. Never shortened.
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) target: SequenceKv,
    pub(crate) draft: SequenceKv,
    /// Leading tokens whose features the target's lane has: a pass has been over the sequence since its admission, and so over what it copied.
    pub(crate) features: usize,
    /// Drafted and not verified; they follow `tokens`.
    pub(crate) proposals: VecDeque<Proposal>,
    pub(crate) draft_out: Option<DraftOut>,
    /// What its draft KV cost, and is not settled yet.
    pub(crate) investment: Investment,
    /// What was prepared for the verdict on the chunk that is out.
    pub(crate) outcomes: Vec<Outcome>,
    /// Do its draws look at no token before but by the model?
    pub(crate) history_free: bool,
    /// Are its tokens drawn, not the likeliest each?
    pub(crate) draws: bool,
    /// Its last verdict was prepared for, and what comes of the draft chunk that is out says whether rightly.
    hit_open: bool,
    pub(crate) verify_out: Option<VerifyOut>,
    /// Generation of `proposals`: a result with another one is late and dropped.
    pub(crate) epoch: u32,
    pub(crate) levels: PerSource<Level>,
    /// Where prompt-lookup copies from; none if it does not propose.
    pub(crate) lookup: Option<Lookup>,
    /// What free sources offered last.
    pub(crate) offers: Offers,
    /// What was foreseen of what it took of that, or left.
    foreseen: Option<Foreseen>,
    /// It goes without what they offer in this round, and tries the draft.
    pub(crate) tries: bool,
    /// Proposals the round wants it to have.
    pub(crate) wanted: usize,
    /// It was asked since its last verdict what to draft, and is not asked again before the next.
    pub(crate) asked: bool,
    pub(crate) usage: Usage,
    /// May KV of the prefix cache stand for its rows?
    pub(crate) cacheable: bool,
    /// Has it ever been admitted?
    pub(crate) admitted: bool,
    /// Past outputs were to be forgotten since it came; or it came with output of a device that was lost, of which nobody here knows.
    keeps_nothing: bool,
    handling: Handling,
    submitted: Duration,
    first_token: Option<Duration>,
    max_new_tokens: usize,
    stop_tokens: Arc<[TokenId]>,
    k_max: usize,
    /// Devices that were lost under it, by the lane whose fault that was.
    losses: [u32; 2],
}

/// Bounds of what a token of one sequence may count for, in those of a sequence without a target.
const LEAST_WEIGHT: f32 = 0.25;
const MOST_WEIGHT: f32 = 4.0;

/// Rounds that show what free sources bring.
const SHOWING: usize = 8;

/// A first token is late by far once it is late by so many times its target.
const TOO_LATE: u32 = 8;
/// A prompt without a target is late by far once it is so old.
const UNTARGETED_LATE: Duration = Duration::from_secs(10);

/// What a verdict did to a sequence.
#[derive(Debug, Default)]
pub(crate) struct Committed {
    pub(crate) emitted: EmittedTokens,
    /// Proposals that were verified: those sent, without those that left the pass.
    pub(crate) proposed: usize,
    pub(crate) accepted: usize,
    /// Those of both by where they came from.
    pub(crate) by_source: PerSource<Tried>,
    /// Proposals left the pass, and the first of them would have been accepted.
    pub(crate) pruned_in_vain: bool,
    /// The epoch that a rejection ended.
    pub(crate) cancelled: Option<CancelledDrafts>,
    /// Whether its proposals for what came were at hand, where any had been prepared, or a branch for it; not yet, while its own are drafted.
    pub(crate) hit: Option<bool>,
    /// The branch that took the place of what was drafted, by its draft plan and its place there.
    pub(crate) taken: Option<(u64, usize)>,
    /// Which of the draft's next candidates came in the place of what was rejected, counted from 0; [`CANDIDATES`] if none did.
    pub(crate) rank: Option<usize>,
    pub(crate) ended: Option<FinishReason>,
}

/// What a rejection cancelled, beyond what had been sent.
#[derive(Debug)]
pub(crate) struct CancelledDrafts {
    pub(crate) epoch: u32,
    /// Position of the first of them.
    pub(crate) frontier: usize,
    pub(crate) unsent: usize,
    /// A draft chunk was out.
    pub(crate) drafting: bool,
}

impl Sequence {
    /// A waiting sequence; `k_limit` is the most proposals it may ever get.
    pub(crate) fn new(
        request: Request,
        k_limit: usize,
        lookup: Option<Lookup>,
        pools: (&BlockPool, &BlockPool),
        now: Duration,
    ) -> Sequence {
        let mut tokens = Vec::with_capacity(request.prompt.len() + request.max_new_tokens);
        tokens.extend_from_slice(&request.prompt);
        tokens.extend_from_slice(&request.output);
        let mut sequence = Sequence {
            id: request.seq,
            usage: Usage {
                prompt_tokens: request.prompt.len(),
                output_tokens: request.output.len(),
                ..Usage::default()
            },
            tokens,
            handling: request.handling,
            submitted: now,
            first_token: None,
            target: SequenceKv::empty(pools.0, request.handling.salt),
            draft: SequenceKv::empty(pools.1, request.handling.salt),
            features: 0,
            proposals: VecDeque::new(),
            draft_out: None,
            investment: Investment::default(),
            outcomes: Vec::new(),
            hit_open: false,
            history_free: request.history_free,
            draws: request.draws,
            verify_out: None,
            epoch: 0,
            levels: PerSource::default(),
            lookup,
            offers: Offers::default(),
            foreseen: None,
            tries: false,
            wanted: 0,
            asked: false,
            losses: [0; 2],
            cacheable: !request.whole_prompt,
            admitted: false,
            keeps_nothing: !request.output.is_empty(),
            max_new_tokens: request.max_new_tokens,
            stop_tokens: request.stop_tokens,
            k_max: 0,
        };
        sequence.limit_k(k_limit);
        sequence
    }

    /// From now on it may get `k_limit` proposals at most. What is drafted beyond that is not sent.
    pub(crate) fn limit_k(&mut self, k_limit: usize) {
        let asked = match self.handling.mode {
            SpeculationMode::Off => Some(0),
            _ => self.handling.k_max,
        };
        self.k_max = asked.map_or(k_limit, |k| k.min(k_limit));
    }

    /// Of tokens to come, those that will not come from where proposals are free, going by those that there are.
    pub(crate) fn left_for_draft(&self, to_come: usize) -> usize {
        let free = [Source::Text, Source::Prediction, Source::Suffix];
        let free = free.iter().map(|source| self.usage.by_source[*source].accepted).sum();
        not_free(to_come, free, self.usage.output_tokens)
    }

    /// Were there rounds enough to see what of its text can be looked up, if anything may be?
    pub(crate) fn shows_what_lookup_brings(&self) -> bool {
        self.lookup.is_none() || self.usage.target_passes >= SHOWING
    }

    /// Time since its submission.
    pub(crate) fn age(&self, now: Duration) -> Duration {
        now.saturating_sub(self.submitted)
    }

    /// What can be seen of it from outside.
    pub(crate) fn view(&self, state: RequestState, now: Duration) -> RequestView {
        RequestView {
            seq: self.id,
            state,
            usage: self.usage,
            max_new_tokens: self.max_new_tokens,
            k: if state == RequestState::Decode { self.wanted.min(self.useful_proposals()) } else { 0 },
            proposals: self.proposals.len(),
            level: self.levels[Source::Draft].typical(),
            age: self.age(now),
            to_first_token: self.first_token.map(|first| first.saturating_sub(self.submitted)),
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

    /// May the draft model work for it?
    pub(crate) fn drafts(&self) -> bool {
        self.speculates()
            && self.handling.mode.drafts()
            && self.losses[LaneKind::Draft as usize] <= LOSSES_FORGIVEN
    }

    /// A device was lost under it, by the fault of this lane. False if that was too often; after too many of the draft's it is not drafted for.
    pub(crate) fn survives_loss(&mut self, fault: LaneKind) -> bool {
        let losses = &mut self.losses[fault as usize];
        *losses += 1;
        fault == LaneKind::Draft || *losses <= LOSSES_FORGIVEN
    }

    /// Who may see its output.
    pub(crate) fn owner(&self) -> Owner {
        (self.handling.owner, self.handling.salt)
    }

    /// Keeps its output, to be proposed from, unless it may be that this was to be forgotten.
    pub(crate) fn keep_in(&self, past: &mut PastOutputs) {
        if !self.keeps_nothing {
            let (prompt, output) = self.tokens.split_at(self.usage.prompt_tokens);
            past.keep(self.owner(), prompt, output);
        }
    }

    /// Its output is not to be kept.
    pub(crate) fn keep_nothing(&mut self) {
        self.keeps_nothing = true;
    }

    /// Whose cached prefixes it shares.
    pub(crate) fn salt(&self) -> u128 {
        self.handling.salt
    }

    /// Lower comes first.
    pub(crate) fn priority(&self) -> i32 {
        self.handling.priority
    }

    /// Committed tokens and proposals.
    pub(crate) fn known(&self) -> usize {
        self.tokens.len() + self.proposals.len()
    }

    /// Proposals that could be used in all: the last token to come is always the target's own. So is the first, also where the cache leaves
    /// nothing to compute before it: that waits for no draft.
    pub(crate) fn useful_proposals(&self) -> usize {
        if self.decoding() && self.first_token.is_some() {
            self.k_max.min(self.to_come().saturating_sub(1))
        } else {
            0
        }
    }

    /// The most proposals that it may have.
    pub(crate) fn k_max(&self) -> usize {
        self.k_max
    }

    /// Does the round want proposals of it that are not there?
    pub(crate) fn wants_drafts(&self) -> bool {
        !self.asked && self.wanted.min(self.useful_proposals()) > self.proposals.len()
    }

    /// Tokens that it may get yet.
    pub(crate) fn to_come(&self) -> usize {
        self.max_new_tokens - self.usage.output_tokens
    }

    /// Proposals that may still be drafted while a verify pass runs: of those sent one more than all could be committed.
    pub(crate) fn room_ahead(&self) -> usize {
        let sent = self.verify_out.map_or(0, |out| out.proposals);
        let most = (sent + 1 + self.k_max).min(self.to_come().saturating_sub(1));
        if self.decoding() { most.saturating_sub(self.proposals.len()) } else { 0 }
    }

    /// Appends the known tokens from position `from` on, `n` of them; the part of `out` they are.
    pub(crate) fn append_known(&self, from: usize, n: usize, out: &mut Vec<TokenId>) -> Range<usize> {
        let begin = out.len();
        let committed = self.tokens.get(from..).unwrap_or_default();
        out.extend(committed.iter().take(n));
        let more = n.saturating_sub(committed.len());
        let proposed = self.proposals.iter().skip(from.saturating_sub(self.tokens.len()));
        out.extend(proposed.map(|proposal| proposal.token).take(more));
        begin..out.len()
    }

    /// What one of its tokens counts for now, in those of a sequence without a target: more if it is behind its target time
    /// per token, less if it is ahead.
    pub(crate) fn weight(&self, now: Duration) -> f32 {
        let (Some(tpot), Some(first)) = (self.handling.slo.tpot, self.first_token) else { return 1.0 };
        let target = tpot.as_secs_f32() * self.usage.output_tokens as f32;
        (now.saturating_sub(first).as_secs_f32() / target.max(f32::MIN_POSITIVE))
            .clamp(LEAST_WEIGHT, MOST_WEIGHT)
    }

    /// Seconds that a round may take for it to meet its target time per token, if it has one and goes on to get as many tokens a round as
    /// up to now, so many more in all.
    pub(crate) fn round_within(&self, now: Duration, usual: f64, to_come: usize) -> Option<f64> {
        let (tpot, first) = (self.handling.slo.tpot?, self.first_token?);
        let Usage { output_tokens, target_passes, .. } = self.usage;
        let (done, to_come) = (output_tokens as f64, to_come as f64);
        let left_s = tpot.as_secs_f64() * (done - 1.0 + to_come) - now.saturating_sub(first).as_secs_f64();
        Some(left_s / to_come * ((done + usual) / (target_passes as f64 + 1.0)))
    }

    /// Is its first token yet to come?
    pub(crate) fn awaits_first_token(&self) -> bool {
        self.first_token.is_none()
    }

    /// When its first token is due, for a sequence that has a target and no token yet.
    pub(crate) fn first_token_due(&self) -> Option<Duration> {
        let due = self.handling.slo.ttft.map(|ttft| self.submitted + ttft);
        due.filter(|_| self.awaits_first_token())
    }

    /// From when on its prompt is late by far, if its first token has a target; where others have `targets`, also if not, or no more.
    pub(crate) fn too_late(&self, targets: bool) -> Option<Duration> {
        let ttft = self.handling.slo.ttft.filter(|_| self.awaits_first_token());
        let late = ttft.map_or(UNTARGETED_LATE, |ttft| ttft + TOO_LATE * ttft);
        Some(self.submitted + late).filter(|_| targets || ttft.is_some())
    }

    /// What a lane must know before the first chunk.
    pub(crate) fn admission(&self) -> Admission {
        Admission {
            seq: self.id,
            prompt_len: self.usage.prompt_tokens,
            tokens: self.tokens.as_slice().into(),
        }
    }

    /// Has prompt-lookup find the text up to here.
    pub(crate) fn keep_grams(&mut self) {
        self.lookup.iter_mut().for_each(|lookup| lookup.keep(&self.tokens));
    }

    /// Asks the free sources what they offer, if it could have any of it: its own text, and past outputs.
    pub(crate) fn ask_for_offers(&mut self, (looks_up, past): (bool, Option<&PastOutputs>)) -> bool {
        let (useful, owner) = (self.useful_proposals(), self.owner());
        if useful == 0 || self.draft_out.is_some() {
            return false;
        }
        let Offers { behind, lookup: copied, suffix } = &mut self.offers;
        *behind = self.tokens.len();
        match self.lookup.as_mut().filter(|_| looks_up) {
            Some(lookup) => {
                lookup.follow(&self.tokens);
                copied.source = lookup.offer(&self.tokens, useful, &mut copied.proposals);
            }
            None => copied.proposals.clear(),
        }
        match past.filter(|_| self.handling.mode.recalls()) {
            Some(past) => past.offer(owner, &self.tokens, useful, &mut suffix.proposals),
            None => suffix.proposals.clear(),
        }
        true
    }

    /// The path that is worth most at these prices.
    pub(crate) fn path(
        &self,
        prospects: &Prospects,
        tables: &PerSource<AcceptanceTable>,
        worth: &PerSource<Worth>,
        prices: &Prices,
    ) -> Path {
        let there = self.proposals.iter().map(|proposal| proposal.token);
        prospects.choose(&self.offers, &there, tables, (&self.levels, worth), prices)
    }

    /// Appends what a path takes of an offer. While speculation is suspended none of it is verified, and nothing can come of it.
    pub(crate) fn take_offer(
        &mut self,
        path: &Path,
        tables: &PerSource<AcceptanceTable>,
        prices: &Prices,
        suspended: bool,
    ) {
        let alone = self.proposals.is_empty();
        self.foreseen = path.foreseen(&self.offers, prices).filter(|_| alone && !suspended);
        let Some(offer) = path.offer.and_then(|number| self.offers.all().get(number).copied()) else {
            return;
        };
        let source = offer.source;
        let level = self.levels[source];
        for &(token, confidence) in offer.proposals.iter().skip(self.proposals.len()).take(path.taken) {
            let calibrated = tables[source][confidence_bin(confidence)];
            self.proposals.push_back(Proposal {
                token,
                source,
                alternatives: Default::default(),
                candidates: Default::default(),
                confidence,
                acceptance: level.acceptance(calibrated),
            });
        }
    }

    /// Survival of all proposals there are.
    pub(crate) fn survival(&self) -> f32 {
        self.proposals.iter().map(|proposal| proposal.acceptance).product()
    }

    /// Acceptance by confidence, for this request.
    pub(crate) fn acceptance_table(&self, table: &AcceptanceTable) -> AcceptanceTable {
        table.map(|calibrated| self.levels[Source::Draft].acceptance(calibrated))
    }

    /// Takes in what came of a draft chunk that is out, by its place in the plan; `with_kv` if its proposals have KV, all but the last. None if nobody
    /// waits for it. Verdicts may have come in between: proposals for positions that are committed by now must equal what is there, or all that
    /// follows is worthless. True if that makes the last verdict a hit, which was open.
    pub(crate) fn drafted(
        &mut self,
        chunk: usize,
        drafted: &[Drafted],
        with_kv: bool,
        table: &AcceptanceTable,
    ) -> Option<bool> {
        let level = &self.levels[Source::Draft];
        if let Some(outcome) = self.outcomes.iter_mut().find(|o| o.out.is_some_and(|out| out.chunk == chunk))
        {
            outcome.out = None;
            outcome.kv.computed = outcome.at + if with_kv { drafted.len() } else { drafted.len().min(1) };
            outcome.proposals.extend(drafted.iter().map(|drafted| Proposal::drafted(drafted, level, table)));
            return Some(false);
        }
        let DraftOut { end, .. } = self.draft_out.take_if(|out| out.chunk == chunk)?;
        let overtaken = self.known() - end;
        let agreed = drafted
            .iter()
            .zip(self.tokens.get(end..).unwrap_or_default())
            .take_while(|(drafted, committed)| drafted.token == **committed)
            .count();
        let right = if agreed < overtaken { agreed } else { drafted.len() };
        let computed = end + if with_kv { right.min(drafted.len().saturating_sub(1)) } else { 0 };
        let open = std::mem::take(&mut self.hit_open);
        if agreed == overtaken {
            let proposals = drafted.iter().skip(overtaken);
            self.proposals.extend(proposals.map(|drafted| Proposal::drafted(drafted, level, table)));
        }
        self.draft.advance(&self.tokens, computed);
        Some(open && !self.proposals.is_empty())
    }

    /// What the verdict says of the draft: of the first `known` proposals, the first `accepted` of which were right.
    pub(crate) fn learn(&mut self, known: usize, accepted: usize, calibrations: &mut PerSource<Calibration>) {
        for source in Source::ALL {
            self.levels[source].fade(calibrations[source].typical());
        }
        let drafted = |(_, proposal): &(usize, &Proposal)| !proposal.is_free();
        for (i, proposal) in self.proposals.iter().take(known).enumerate().filter(drafted) {
            let calibrated = calibrations[proposal.source].acceptance(proposal.confidence);
            calibrations[proposal.source].observe(proposal.confidence, proposal.acceptance, i < accepted);
            self.levels[proposal.source].observe(calibrated, i < accepted);
        }
    }

    /// What free sources offered is held against what came: so many proposals, and the next token.
    fn learn_of_offers(&mut self, accepted: usize, next: TokenId, calibrations: &mut PerSource<Calibration>) {
        if self.offers.behind == self.tokens.len() {
            let came = self.proposals.iter().take(accepted).map(|proposal| proposal.token).chain([next]);
            self.offers.learn(&came, calibrations, &mut self.levels);
        }
    }

    /// Commits a verdict on the verify chunk that is out: the accepted prefix of its proposals and the next token, up to a
    /// stop token or the length limit.
    pub(crate) fn verified(
        &mut self,
        verdict: &Verdict,
        next: TokenId,
        now: Duration,
        (calibrations, worth): (&mut PerSource<Calibration>, &mut PerSource<Worth>),
        (ranks, spent): (&mut Ranks, &mut Spent),
    ) -> Committed {
        let mut done = Committed::default();
        let Some(VerifyOut { end, proposals: sent, .. }) = self.verify_out.take() else { return done };
        (self.asked, self.hit_open) = (false, false);
        // What was not in the pass to its end counts as not sent.
        let verified = sent.saturating_sub(verdict.forbidden + verdict.pruned);
        let accepted = verdict.accepted.min(verified);
        (done.proposed, done.accepted) = (verified, accepted);
        let foretold = self.proposals.get(accepted).is_some_and(|proposal| proposal.token == next);
        done.pruned_in_vain = verified < sent && accepted == verified && foretold;
        // The row in front of a proposal that was pruned, or held back, was computed: its verdict is known too. Were nothing learned of those, whatever
        // has confidence enough to be sent would seem typical, and what was cut would never be found to be better than it seemed.
        self.learn(accepted + 1, accepted + usize::from(foretold), calibrations);
        self.learn_of_offers(accepted, next, calibrations);
        let foreseen = self.foreseen.take().filter(|_| self.offers.behind == self.tokens.len());
        if let Some(foreseen) = foreseen {
            foreseen.came(verified, accepted, self.weight(now), worth);
        }
        self.first_token.get_or_insert(now);
        let sources = self.proposals.iter().take(verified).map(|proposal| proposal.source);
        let at = now.saturating_sub(self.submitted);
        done.by_source = self.usage.count(sources, accepted, at);
        for _ in 0..accepted {
            let Some(proposal) = self.proposals.pop_front() else { break };
            if self.take(proposal.token, Origin::Draft, &mut done) {
                break;
            }
        }
        if done.ended.is_some() {
            return self.left(end + accepted, done);
        }
        let unsent = self.proposals.len().saturating_sub(sent - accepted);
        let foreseen = self.proposals.pop_front();
        let rejected = foreseen.as_ref().is_some_and(|proposal| proposal.token != next);
        if let Some(Proposal { candidates, .. }) = foreseen.filter(|p| rejected && !p.candidates.is_empty()) {
            ranks.observe(candidates.iter().position(|candidate| *candidate == next));
            done.rank = candidates.iter().position(|candidate| *candidate == next).or(Some(CANDIDATES));
        }
        let at = self.tokens.len();
        if rejected {
            // The next token takes the place of what the draft has there.
            self.draft.computed = self.draft.computed.min(at);
        }
        if self.take(next, Origin::Target, &mut done) {
            return self.left(end + accepted, done);
        }
        self.target.advance(&self.tokens, end + accepted);
        self.features = self.target.computed;
        let prepared = !self.outcomes.is_empty();
        if rejected {
            let (epoch, drafting) = (self.epoch, self.draft_out.is_some() && !self.drafts_from_text());
            done.cancelled = Some(CancelledDrafts { epoch, frontier: end + sent, unsent, drafting });
            done.taken = self.adopt(at, next, spent);
            if done.taken.is_none() {
                self.reject(spent);
            }
            done.hit = prepared.then_some(done.taken.is_some());
        } else {
            done.hit = prepared.then_some(!self.proposals.is_empty());
            self.hit_open = prepared && self.proposals.is_empty() && self.draft_out.is_some();
            self.end_outcomes(spent);
        }
        self.draft.advance(&self.tokens, self.draft.computed);
        if self.usage.target_passes == 1 {
            // Its prompt is computed, and others may begin with all of it: choices of one prompt do.
            self.target.share(&self.tokens);
            self.draft.share(&self.tokens);
        }
        // The provisional KV of what was rejected goes back to the pool; what the draft holds it may still need.
        self.target.table.shrink(self.known());
        done
    }

    /// It has ended: the KV of its tokens stays for others.
    fn left(&mut self, computed: usize, done: Committed) -> Committed {
        self.target.advance(&self.tokens, computed.min(self.tokens.len()));
        done
    }

    /// Proposals behind the frontier are on a path the target did not take. A chunk that is out for what is committed goes on: what of it is right
    /// is found out when it comes.
    fn reject(&mut self, spent: &mut Spent) {
        self.proposals.clear();
        self.epoch += 1;
        if !self.drafts_from_text() {
            spent.cancelled.extend(self.draft_out.take().map(|out| out.chunk));
            self.draft.table.shrink(self.tokens.len());
        }
    }

    /// Is a chunk of it out whose rows are all committed?
    fn drafts_from_text(&self) -> bool {
        self.draft_out.is_some_and(|out| out.end < self.tokens.len())
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

    /// Looks that where it stands goes with what is out on the lanes. Nothing is out for a sequence that waits.
    ///
    /// # Panics
    /// If not.
    pub(crate) fn check(&self, waits: bool, draft: &LaneBook, verify: &LaneBook) {
        let (seq, drafting) = (self.id, self.draft_out.is_some());
        let branches = self.outcomes.iter().filter(|outcome| outcome.out.is_some()).count();
        assert!(!drafting && branches == 0 || draft.busy(), "{seq} is drafted for by nobody");
        assert!(self.verify_out.is_none() || verify.busy(), "{seq} is verified by nobody");
        assert!(self.outcomes.is_empty() || self.verify_out.is_some(), "{seq} prepares for no verdict");
        for outcome in &self.outcomes {
            assert!(self.draft.table.bears(outcome.at), "{seq} has a branch whose beginning is gone");
            assert!(self.draft.table.is_apart(&outcome.kv.table), "{seq} shares blocks with a branch");
        }
        assert!(self.proposals.is_empty() || self.decoding(), "{seq} has proposals and no anchor");
        let idle = !drafting && self.verify_out.is_none() && self.proposals.is_empty();
        assert!(!waits || idle && self.target.table.is_empty(), "{seq} waits, and has something");
        if let Some(VerifyOut { end, proposals, .. }) = self.verify_out {
            assert!(
                end <= self.tokens.len() && proposals <= self.proposals.len(),
                "{seq} is beyond its text"
            );
        }
    }

    /// Its chunks of the plans that are out, which nobody waits for once it is cancelled or preempted.
    pub(crate) fn chunks_out(
        &self,
        draft: &LaneBook,
        verify: &LaneBook,
    ) -> impl Iterator<Item = CancelledChunk> + use<'_> {
        let seq = self.id;
        let (draft, verify) = (draft.outstanding(), verify.outstanding());
        let of =
            move |lane, step: Option<u64>, chunk| step.map(|step| CancelledChunk { lane, step, seq, chunk });
        let branches = self.outcomes.iter().filter_map(|outcome| outcome.out);
        let drafts = self.draft_out.into_iter().chain(branches);
        let drafts = drafts.filter_map(move |out| of(LaneKind::Draft, draft, out.chunk));
        drafts.chain(self.verify_out.and_then(move |out| of(LaneKind::Verify, verify, out.chunk)))
    }

    /// Evicts all draft KV; what is drafted stands.
    pub(crate) fn evict_draft(&mut self) {
        self.outcomes.clear();
        self.draft.leave(&self.tokens);
    }

    /// Gives up all KV. What is there of committed tokens stays for others as long as nobody needs its blocks.
    pub(crate) fn leave(&mut self) {
        self.target.leave(&self.tokens);
        self.draft.leave(&self.tokens);
    }

    /// Evicts all KV, to be recomputed after the next admission, in these pools. Committed tokens stay.
    pub(crate) fn evict(&mut self, pools: (&BlockPool, &BlockPool)) {
        self.leave();
        self.features = 0;
        self.target = SequenceKv::empty(pools.0, self.handling.salt);
        self.draft = SequenceKv::empty(pools.1, self.handling.salt);
        self.proposals.clear();
        self.outcomes.clear();
        self.draft_out = None;
        self.hit_open = false;
        self.verify_out = None;
        self.asked = false;
        self.epoch += 1;
    }
}

/// Of tokens to come, those that will not be free, if so many were of so many in all. A few that were not are taken to have come before.
fn not_free(to_come: usize, free: usize, all: usize) -> usize {
    let all = all.max(free) + SHOWING;
    (to_come as f64 * (all - free) as f64 / all as f64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_free_sources_bring_is_not_left_for_the_draft() {
        assert_eq!(not_free(1000, 0, 0), 1000);
        assert_eq!(not_free(1000, 0, 500), 1000);
        assert_eq!(not_free(1000, 92, 100), 148);
        // All that came was free, and the next may not be.
        assert!((1..100).contains(&not_free(1000, 100, 100)));
        // Of a request that is gone on with, free ones may be known that output is not.
        assert!(not_free(1000, 100, 0) < 100);
        assert_eq!(not_free(0, 5, 9), 0);
    }
}
