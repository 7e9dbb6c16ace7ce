//! Outcomes: what a sequence goes on with, for each verdict that is likely, drafted under the pass that will bring the verdict.
//!
//! ```text
//!   committed .. anchor | p1  p2  p3 |            sent to verification
//!                         |   |   |   \- p4 ..     all accepted, and p4 is the bonus token: the sequence's own drafts go on
//!                         |   |   \----- c4 ..     all accepted, and the draft's next candidate for the fourth place comes instead
//!                         |   \--------- c3 ..     p3 is rejected, and its next candidate comes instead
//!                         \------------- c2 ..     p2 is rejected
//! ```
//! Draft and target draw with the same noise, so the draft's next candidates are ranked by it: how often the target's token is one of them does
//! not fall with temperature. A branch holds the blocks from where it parts, the first a copy if that is inside one; those before are its sequence's.
//! The verdict picks its branch, whose proposals stand at once, and ends all others: in the table, in the queue, and between two steps on the lane.
//!
//! Two plans under a pass: a step of each sequence past its frontier, which brings the candidates there (and the KV of the proposals, of a draft that
//! proposes in one pass), and then the steps of all branches together, in the first of which those that are far behind catch up.

use std::time::Duration;

use crate::branch::{Branch, DraftOut, Spent};
use crate::cost::Reach;
use crate::drafting::{Drafts, KV_SPARE, Wish};
use crate::engine::Engine;
use crate::plan::{DraftChunk, DraftPlan};
use crate::planner::{Execution, Odds, Preparing};
use crate::request::{CANDIDATES, SeqId, TokenId};
use crate::sequence::Sequence;
use crate::survival::Source;

/// Probability below which an outcome is not looked at.
const LEAST_ODDS: f32 = 0.01;
/// So many times as many outcomes are looked at as a plan has chunks: some of them need a step first.
const LOOKED_AT: usize = 2;
/// Fewer rows are not worth a chunk beside branches.
const LEAST_WAY: usize = 8;

impl Sequence {
    /// Calls `visit` with the probability of each verdict on its chunk of `sent` proposals for which there is or could be a candidate: how many proposals are
    /// accepted, and the rank of what comes behind them; none where that is the sequence's own next proposal, of which nobody has to have seen
    /// anything yet.
    pub(crate) fn verdicts(
        &self,
        sent: usize,
        ranks: &[f32; CANDIDATES],
        visit: &mut dyn FnMut(usize, Option<usize>, f32),
    ) {
        let mut survival = 1.0;
        for accepted in 0..=sent {
            let proposal = self.proposals.get(accepted);
            let acceptance =
                proposal.map_or_else(|| self.levels[Source::Draft].typical(), |proposal| proposal.acceptance);
            let rejects = survival * (1.0 - acceptance);
            // What no draft has looked at has no candidates.
            let looked_at = proposal.is_none_or(|proposal| !proposal.is_free());
            if self.history_free && looked_at {
                (0..CANDIDATES).for_each(|rank| visit(accepted, Some(rank), rejects * ranks[rank]));
            }
            survival *= acceptance;
        }
        visit(sent, None, survival);
    }

    /// Proposals that are of use behind the token that a verdict puts at this position.
    fn useful_behind(&self, at: usize) -> usize {
        let left = self.to_come().saturating_sub(at - self.tokens.len() + 1);
        self.k_max().min(left.saturating_sub(1))
    }

    /// Its verdict has come: `next` stands behind its committed tokens. If that was prepared for, those proposals are its own now, with their KV; all
    /// else that was prepared is over. The draft plan of the branch that it takes, and its place there.
    pub(crate) fn adopt(&mut self, at: usize, next: TokenId, spent: &mut Spent) -> Option<(u64, usize)> {
        let found = self.outcomes.iter().position(|outcome| (outcome.at, outcome.token) == (at, next));
        let taken = found.map(|found| self.outcomes[found].planned);
        if let Some(found) = found {
            let outcome = &mut self.outcomes[found];
            self.draft.table.join(at, &mut outcome.kv.table);
            self.draft.computed = outcome.kv.computed;
            std::mem::swap(&mut self.proposals, &mut outcome.proposals);
            std::mem::swap(&mut self.draft_out, &mut outcome.out);
            self.epoch += 1;
        }
        self.end_outcomes(spent);
        taken
    }

    /// All that was prepared is over.
    pub(crate) fn end_outcomes(&mut self, spent: &mut Spent) {
        self.outcomes.drain(..).for_each(|outcome| spent.take_back(outcome));
    }
}

impl Engine {
    /// Fills `odds` with the verdicts of a pass about to leave for which something could be prepared.
    pub(crate) fn list_odds(&self, lengths: &[usize], odds: &mut Vec<Odds>) {
        odds.clear();
        let ranks = self.ranks.shares();
        let without_kv = !self.config.draft.needs().keeps_proposals;
        let decoding = self.running.iter().filter_map(|seq| self.sequences.get(seq)).filter(|s| s.decoding());
        for (index, (sequence, &k)) in decoding.zip(lengths).enumerate() {
            if !self.prepares(sequence) || sequence.room_ahead() == 0 {
                continue;
            }
            let (typical, weight) = (sequence.levels[Source::Draft].typical(), sequence.weight(self.now));
            let rank = sequence.draft.table.rank();
            let context = sequence.tokens.len();
            let known = sequence.proposals.len();
            sequence.verdicts(k, &ranks, &mut |accepted, candidate, probability| {
                if probability >= LEAST_ODDS {
                    let past = without_kv || candidate.is_some() && accepted == known;
                    let own = candidate.is_none() && k == known;
                    odds.push(Odds { index, rank, probability, typical, weight, context, past, own });
                }
            });
        }
        Odds::keep_likeliest(odds, LOOKED_AT * self.config.draft_chunks());
    }

    /// What the draft lane does next for the verdicts of the pass that is out: a step past the frontiers, if the candidates there are worth it; then the
    /// plan of all branches. None if nothing could be of use before the pass ends.
    pub(crate) fn prepare(&mut self, execution: Execution) -> Option<DraftPlan> {
        if self.prepared {
            return None;
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        self.list_branches(&mut scratch.odds, &mut scratch.branches);
        let left = self.verify_due.saturating_sub(self.now);
        let most = self.config.draft_chunks();
        let past_frontiers = self.past_frontiers();
        let Preparing { past, count, steps } =
            self.planner.outcomes(&scratch.odds, left, most, past_frontiers);
        if past && let Some(plan) = self.plan_draft(execution) {
            self.scratch = scratch;
            return Some(plan);
        }
        self.prepared = true;
        let mut plan = std::mem::take(&mut self.spent.0);
        plan.clear();
        let wish = self.wish(Drafts::Behind(steps));
        let mut rows_left = self.config.max_pass_rows;
        let chosen = scratch.odds.iter().filter(|odds| !odds.past).take(count);
        self.catch_up_besides(chosen, left, &wish, &mut rows_left, &mut plan);
        let count = count.min(most.saturating_sub(plan.chunks.len()));
        for odds in scratch.odds.iter().filter(|odds| !odds.past).take(count) {
            let Branch { seq, parts } = scratch.branches[odds.index];
            match parts {
                None => self.add_draft_chunk(seq, &wish, (&mut rows_left, &mut 0), &mut plan),
                Some(parts) => self.add_branch(seq, parts, &wish, &mut rows_left, &mut plan),
            }
        }
        self.scratch = scratch;
        self.send_drafts(plan, execution)
    }

    /// Could its verdicts be prepared for? Who is far behind catches up first.
    fn prepares(&self, sequence: &Sequence) -> bool {
        self.draft_room(sequence) > 0 && self.long_way(sequence) == 0
    }

    /// Is it far behind a draft that could propose for it?
    fn catches_up(&self, sequence: &Sequence) -> bool {
        sequence.room_ahead() > 0 && self.draft_room(sequence) > 0 && self.long_way(sequence) > 0
    }

    /// Adds those that decode and are far behind, by as many rows as there is time for besides these verdicts, in the order of a round's drafts. Else they would
    /// stay behind as long as there is too little to draft for a round to wait for.
    fn catch_up_besides<'o>(
        &mut self,
        verdicts: impl Iterator<Item = &'o Odds>,
        left: Duration,
        wish: &Wish,
        rows_left: &mut usize,
        plan: &mut DraftPlan,
    ) {
        let Drafts::Behind(steps) = wish.drafts else { return };
        let mut running = self.running.iter().filter_map(|seq| self.sequences.get(seq));
        if steps == 0 || !running.any(|sequence| self.catches_up(sequence)) {
            return;
        }
        let Some(mut besides) = self.planner.besides(verdicts, steps, left) else { return };
        let prepared = besides.rows;
        let mut order = std::mem::take(&mut self.draft_order);
        self.order_drafts((false, false), &mut order);
        for &(_, _, seq) in &order {
            let Some(sequence) = self.sequences.get(&seq).filter(|sequence| self.catches_up(sequence)) else {
                continue;
            };
            let (start, way) = (sequence.draft.computed, self.long_way(sequence));
            let rows = self.planner.rows_more(&besides, start, way.min(rows_left.saturating_sub(prepared)));
            // Branches are to find blocks.
            let table = &sequence.draft.table;
            let free = table.free().saturating_sub(table.missing(start + rows));
            if rows < LEAST_WAY || free < KV_SPARE * self.running.len() {
                continue;
            }
            let (before, mut long_rows_left) = (*rows_left, rows);
            self.add_draft_chunk(seq, wish, (rows_left, &mut long_rows_left), plan);
            if *rows_left < before {
                self.planner.takes(&mut besides, before - *rows_left, start);
            }
        }
        self.draft_order = order;
    }

    /// Rows of a step of each sequence past its frontier, and what they look at.
    fn past_frontiers(&self) -> (usize, Reach) {
        let (mut rows, mut reach) = (0, Reach::NONE);
        let decoding = self.running.iter().filter_map(|seq| self.sequences.get(seq)).filter(|s| s.decoding());
        for (sequence, out) in decoding.filter_map(|sequence| Some((sequence, sequence.verify_out?))) {
            let own = self.config.draft.needs().rows_past(std::iter::once(out.proposals));
            rows += own;
            reach.kv += sequence.tokens.len();
            reach.rows += own * sequence.tokens.len();
        }
        (rows, reach)
    }

    /// The branches that could be drafted now, and their odds, likeliest first.
    fn list_branches(&self, odds: &mut Vec<Odds>, branches: &mut Vec<Branch>) {
        odds.clear();
        branches.clear();
        let ranks = self.ranks.shares();
        let without_kv = !self.config.draft.needs().keeps_proposals;
        for (&seq, sequence) in self.running.iter().filter_map(|seq| Some((seq, self.sequences.get(seq)?))) {
            let Some(out) =
                sequence.verify_out.filter(|_| sequence.decoding() && sequence.draft_out.is_none())
            else {
                continue;
            };
            if !self.prepares(sequence) {
                continue;
            }
            let (typical, weight) = (sequence.levels[Source::Draft].typical(), sequence.weight(self.now));
            let rank = sequence.draft.table.rank();
            let (sent, context) = (out.proposals, sequence.tokens.len());
            sequence.verdicts(sent, &ranks, &mut |accepted, candidate, probability| {
                let at = context + accepted;
                let proposal = sequence.proposals.get(accepted);
                let token = |number| proposal.and_then(|proposal| proposal.candidates.get(number).copied());
                let parts = candidate.and_then(token).map(|token| (at, token));
                // What was sent has no KV yet, or nothing is known of what could come behind it.
                let unread = without_kv && sequence.draft.computed < context + sent;
                let past = unread || candidate.is_some() && proposal.is_none();
                let possible = match candidate {
                    None => sequence.room_ahead() > 0,
                    Some(_) if past => sequence.room_ahead() > 1 && sequence.useful_behind(at) > 0,
                    Some(_) => {
                        parts.is_some() && sequence.draft.computed >= at && sequence.useful_behind(at) > 0
                    }
                };
                if probability >= LEAST_ODDS && possible {
                    let index = branches.len();
                    let own = candidate.is_none() && proposal.is_none();
                    odds.push(Odds { index, rank, probability, typical, weight, context: at, past, own });
                    branches.push(Branch { seq, parts });
                }
            });
        }
        Odds::keep_likeliest(odds, LOOKED_AT * self.config.draft_chunks());
    }

    /// A branch, if the pool has blocks for it: it pushes nobody out.
    fn add_branch(
        &mut self,
        seq: SeqId,
        (at, token): (usize, TokenId),
        wish: &Wish,
        rows_left: &mut usize,
        plan: &mut DraftPlan,
    ) {
        let Drafts::Behind(steps) = wish.drafts else { return };
        let one = self.config.draft.needs().passes.is_one();
        let Some(sequence) = self.sequences.get_mut(&seq) else { return };
        let context = self.config.speculation.draft_context;
        let steps = steps.min(sequence.useful_behind(at)).min(context.saturating_sub(at));
        let steps = if one || *rows_left == 0 { steps.min(*rows_left) } else { steps };
        let mut outcome = self.outcomes.next(&self.draft_pools[0]);
        if steps == 0 || !sequence.draft.table.fork(at, at + steps, &mut outcome.kv.table) {
            return self.outcomes.take_back(outcome);
        }
        *rows_left = rows_left.saturating_sub(if one { steps } else { 1 });
        let chunk = plan.chunks.len();
        (outcome.at, outcome.token, outcome.kv.computed) = (at, token, at);
        outcome.out = Some(DraftOut { end: at + 1, chunk });
        outcome.planned = (self.draft_lane.next_step(), chunk);
        self.draft_lane.admit(seq, || sequence.admission());
        let rows = plan.tokens.len()..plan.tokens.len() + 1;
        plan.tokens.push(token);
        plan.chunks.push(DraftChunk {
            seq,
            epoch: sequence.epoch,
            start: at,
            rows,
            steps,
            stop: wish.stop_of_outcome(sequence),
            rank: outcome.kv.table.rank(),
            table: sequence.draft.table.append_branch_ids(at, &outcome.kv.table, &mut plan.blocks),
            features: 0..0,
            outcome: true,
        });
        sequence.outcomes.push(outcome);
        self.totals.outcomes_drafted += 1;
    }
}
