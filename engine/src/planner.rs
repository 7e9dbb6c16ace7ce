//! The planner: how many proposals everyone gets, which of them are verified, serial or overlapped, on which partition.
//!
//! One quantity decides: predicted goodput, committed tokens per second. A round of a batch of N sequences commits N tokens
//! and, of the proposals, the sum of their survivals; it costs its draft steps and its verify pass, both taken from the
//! cost tables. Proposals are added in the order of survival, over all sequences together, and the best sum over cost
//! met on the way is taken: cost is a staircase, so the first one that does not pay is not the end.

mod ahead;
mod budget;
mod overhead;
mod realised;
mod steering;

use std::time::Duration;

use crate::config::Tuning;
use crate::cost::{PartitionCosts, PassCost, Reach};
use crate::plan::{LaneKind, PartitionId, StepPrice};
use crate::policy::{Lengths, Mechanisms, Policy};
use crate::portfolio::Prices;
use crate::request::K_LIMIT;
use crate::source::{RoundPasses, SourceNeeds};
use crate::view::SteeringView;
use ahead::Ahead;
use budget::Budget;
use overhead::Overhead;
use realised::{Realised, Round};
use steering::Steering;

pub(crate) use ahead::{Besides, Leaving, Odds, Preparing, run_length};
pub(crate) use budget::{Batch, Candidate, Displaced, MIN_DRAFT_GAIN, NEGLIGIBLE, Prefill, ROUND_ROWS};
pub(crate) use steering::{OnTarget, Speculated, Waiting};

/// Rounds without a single proposal after which a probe begins: what is not looked at is never found to have changed.
const PROBE_AFTER: u32 = 32;
/// Rounds that a probe lasts: once its sequence has caught up the next ones cost little, and one verdict tells little.
const PROBE_ROUNDS: u32 = 8;
/// Rounds without a drafted one, where others were free, after which a sequence goes without those and tries some of the draft's.
const TRY_AFTER: u32 = 256;
const TRY_LENGTH: usize = 4;
/// Share of the time since then that it may take, with what its sequence has to catch up.
const PROBE_SHARE: f64 = 0.005;

/// Rows that a draft plan may catch up with while others wait for it: at least, and as long as nobody knows what they cost.
const LEAST_LONG_ROWS: usize = 64;
const FIRST_LONG_ROWS: usize = 128;
/// To so many their number is searched.
const LONG_ROWS_STEP: usize = 16;
/// A round is believed to have taken so many times its passes' time beyond them at most: the rest is the machine doing something else.
const MOST_BEYOND: f64 = 2.0;
/// Draft steps that a sequence which is alone may take beyond those that pay in the mean, as long as each pays by what is known then: how far depends on
/// how sure the draft is. Two and more even out, and rows beyond those that were planned are behind the edge of a step where passes go by steps.
const FURTHER_STEPS: usize = 4;
/// The weight of a new time in the mean of those observed.
const NEW_TIME: f64 = 0.25;
/// Passes of a lane in a row of which the device did something for the first time; the next are how passes are.
const COLD_IN_A_ROW: u32 = 16;
/// Catching up that takes no longer, in passes of its sequence alone, is begun whatever other sources may bring.
const BEGUN_AT_ONCE: f64 = 16.0;
/// The weight of a new plan in how many times as long as foreseen those take that catch up, and the most that is believed. By every verify pass what is
/// more than once fades by so much: where they seem too dear none tells otherwise.
const NEW_CATCH_UP: f64 = 0.5;
const CATCH_UP_FADES: f64 = 0.001;
const MOST_CATCH_UP_TIMES: f64 = 16.0;

/// A plan as far as its cost goes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PassShape {
    pub(crate) partition: PartitionId,
    /// Rows of the pass; of a draft plan, of its first step.
    pub(crate) rows: usize,
    pub(crate) reach: Reach,
    /// Draft steps; a verify pass is one.
    pub(crate) steps: usize,
    /// Sequences that draft, in the mean of its steps.
    pub(crate) sequences: usize,
}

/// Rows that left a verify pass at a pruning checkpoint.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pruned {
    pub(crate) rows: usize,
    /// Share of the pass that was behind it then.
    pub(crate) share_left: f64,
}

/// How the lanes work while a verify pass runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Execution {
    /// The pass has the whole device.
    #[default]
    Serial,
    /// The draft lane works past the frontier at the same time; each has its part of this partition.
    Overlapped(PartitionId),
}

impl Execution {
    /// Where plans run.
    pub fn partition(self) -> PartitionId {
        match self {
            Execution::Serial => PartitionId(0),
            Execution::Overlapped(partition) => partition,
        }
    }
}

/// Decides; holds the cost tables and the decision that stands.
#[derive(Debug)]
pub(crate) struct Planner {
    policy: Policy,
    mechanisms: Mechanisms,
    /// The one place in `partitions` for overlapped execution, if it is not to be chosen.
    partition: Option<usize>,
    /// The whole device first; of drafts by the rows of all ranks that have one.
    partitions: Vec<PartitionCosts>,
    /// Those ranks.
    copies: usize,
    execution: Execution,
    /// The goodput of the round, the price of a second in tokens: a row pays if its marginal goodput is higher.
    goodput: f64,
    /// Tokens that a sequence's part of a round without proposals is worth at that price: one where nobody speculates, more where others do.
    saved_round: f64,
    /// Rounds since anyone was given a proposal.
    quiet_rounds: u32,
    /// Rounds that are left of a probe.
    probe_rounds: u32,
    /// Rounds since anything was drafted.
    undrafted_rounds: u32,
    /// Where there are no tables: seconds of a verify pass, of a draft step, and of a row in a first step that catches up; 0 before the first.
    verify_s: f64,
    step_s: f64,
    catch_up_row_s: f64,
    /// Plans that catch up take so many times as long as the tables say: those say nothing of rows behind a long context but what few of them took.
    catch_up_times: f64,
    /// This round's proposals are there to be learned from.
    probing: bool,
    /// What the source needs of draft passes.
    needs: SourceNeeds,
    budget: Budget,
    ahead: Ahead,
    overhead: Overhead,
    realised: Realised,
    /// Seconds by the clock that the last round took beyond what the tables say of its passes, if lanes had work all the time.
    beyond_s: Option<f64>,
    /// The last pass was overlapped: what was prepared under it is in the next round.
    prepared: bool,
    /// Of each lane, passes in a row of which the device did something for the first time.
    cold_in_a_row: [u32; 2],
    steering: Steering,
    /// Sequences that decode in the round, and its prompts.
    anchors: usize,
    prefill: Prefill,
    /// Of the round's verify pass, without proposals.
    rows: usize,
    /// With those that it is to have.
    planned_rows: usize,
}

/// The costs of partitions on each of which so many ranks draft, each for its sequences.
fn divided(partitions: Vec<PartitionCosts>, copies: usize) -> Vec<PartitionCosts> {
    let of = |costs: PartitionCosts| PartitionCosts { draft: costs.draft.over(copies), ..costs };
    partitions.into_iter().map(of).collect()
}

/// Takes a new time into a mean.
fn observe(mean: &mut f64, seconds: f64) {
    *mean += (seconds - *mean) * if *mean > 0.0 { NEW_TIME } else { 1.0 };
}

impl Planner {
    /// For a source that needs this, on so many ranks, by costs of the device's partitions.
    pub(crate) fn new(
        tuning: &Tuning,
        partitions: Vec<PartitionCosts>,
        max_pass_rows: usize,
        (needs, copies): (SourceNeeds, usize),
    ) -> Planner {
        let mut planner = Planner {
            steering: Steering::new(&partitions, max_pass_rows),
            anchors: 0,
            prefill: Prefill::default(),
            rows: 0,
            planned_rows: 0,
            policy: tuning.policy.clone(),
            mechanisms: tuning.mechanisms,
            partition: tuning.partition,
            partitions: divided(partitions, copies),
            copies,
            execution: Execution::Serial,
            goodput: 0.0,
            saved_round: 1.0,
            quiet_rounds: 0,
            probe_rounds: 0,
            undrafted_rounds: 0,
            verify_s: 0.0,
            step_s: 0.0,
            catch_up_row_s: 0.0,
            catch_up_times: 1.0,
            probing: false,
            needs,
            budget: Budget::new(needs),
            ahead: Ahead::default(),
            overhead: Overhead::default(),
            realised: Realised::default(),
            beyond_s: None,
            prepared: false,
            cold_in_a_row: [0; 2],
        };
        planner.begin();
        planner
    }

    /// Decides by this from now on. Where that is not what it goes by, overlapped execution is decided on anew, by the next pass, and speculation
    /// begins with credit.
    pub(crate) fn tune(&mut self, tuning: &Tuning) {
        let Tuning { policy, mechanisms, partition, .. } = tuning;
        if (policy, mechanisms, partition) != (&self.policy, &self.mechanisms, &self.partition) {
            self.policy.clone_from(policy);
            (self.mechanisms, self.partition) = (*mechanisms, *partition);
            self.begin();
        }
    }

    fn begin(&mut self) {
        self.steering.tuned(self.predicts() && self.mechanisms.sizing);
        self.execution = Execution::Serial;
        self.ahead.forget();
        (self.realised, self.prepared) = (Realised::default(), false);
        self.probing = false;
    }

    /// Takes over what passes cost, measured anew.
    pub(crate) fn profiled(&mut self, partitions: &[PartitionCosts]) {
        self.partitions = divided(partitions.to_vec(), self.copies);
        self.catch_up_times = 1.0;
        self.ahead.forget();
        self.steering.profiled(partitions);
    }

    /// Decides without a draft from now on, by what passes have taught of the target; the source needs this.
    pub(crate) fn without_drafts(&mut self, needs: SourceNeeds) {
        (self.needs, self.budget) = (needs, Budget::new(needs));
        self.partitions.iter_mut().for_each(|costs| costs.draft = PassCost::nothing());
        self.begin();
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The execution of the last verify pass.
    pub(crate) fn execution(&self) -> Execution {
        self.execution
    }

    /// Decides how many proposals each candidate should have, those that are ready included.
    pub(crate) fn plan(&mut self, batch: &Batch<'_>, lengths: &mut Vec<usize>) {
        lengths.clear();
        (self.anchors, self.prefill) = (batch.candidates.len(), batch.prefill);
        self.rows = self.rows_with(0);
        self.planned_rows = self.rows;
        if !self.steering.speculates() {
            self.update_goodput(batch);
            lengths.resize(batch.candidates.len(), 0);
            return;
        }
        match self.policy.lengths(batch.candidates.len()) {
            Lengths::Same(k) => allocate(k, batch, lengths),
            Lengths::Goodput => {
                self.update_goodput(batch);
                let floor = self.break_even_survival();
                self.budget.plan(batch, self.goodput, floor, &self.partitions[0], lengths);
            }
        }
        self.probe(batch, lengths);
        self.planned_rows = self.rows_with(lengths.iter().sum());
    }

    /// Rows of the round's verify pass with so many proposals.
    fn rows_with(&self, proposals: usize) -> usize {
        let others = self.anchors + proposals;
        others + self.prefill.beside(others)
    }

    /// Seconds by which so many proposals make the round's verify pass longer, those of the prompts' rows that give way to them among them.
    fn longer_by_s(&self, proposals: usize, verify: &PassCost) -> f64 {
        let rows = self.rows_with(proposals);
        let pass_s = |rows: usize| verify.seconds(rows.max(1), Reach::NONE);
        let gave_way = self.rows + proposals - rows;
        let row_s = if gave_way > 0 { self.prefill.row_s(self.anchors, verify) } else { 0.0 };
        pass_s(rows) - pass_s(self.rows) + gave_way as f64 * row_s
    }

    /// May anything be proposed? Not while speculation has lost more than it may.
    pub(crate) fn speculates(&self) -> bool {
        self.steering.speculates()
    }

    /// Proposals were drafted.
    pub(crate) fn drafted(&mut self) {
        self.undrafted_rounds = 0;
    }

    /// Is it long since anything was drafted, so that this candidate is to try it, if it can?
    pub(crate) fn draft_due(&self, candidate: &Candidate) -> bool {
        self.undrafted_rounds >= TRY_AFTER
            && candidate.drafts
            && self.predicts()
            && self.steering.speculates()
            && self.affords_probe(candidate, (1, 1), self.undrafted_rounds)
    }

    /// What proposals cost where so many sequences draft: by a share of what it costs them all, and by what one of them costs that joins the others.
    pub(crate) fn prices(&self, drafting: usize) -> [Prices; 2] {
        let Some(costs) = self.whole() else {
            return Default::default();
        };
        let row = budget::row_cost(self.rows, self.goodput, costs, &self.steering.displaced());
        let shared @ (_, each) = self.proposal_cost(drafting);
        let joining = match self.needs.passes {
            RoundPasses::One => {
                let behind = self.needs.rows_behind(1);
                let row_s = costs.draft.row_seconds((1 + behind) * drafting);
                (self.goodput * behind as f64 * row_s, each)
            }
            _ => {
                let step_s = |sequences| costs.draft.seconds(sequences, Reach::NONE);
                let more_s = step_s(drafting) - step_s(drafting.saturating_sub(1).max(1));
                (0.0, row + self.goodput * more_s.max(0.0))
            }
        };
        [shared, joining].map(|draft| Prices { row, draft })
    }

    /// Tokens that drafting costs, where so many sequences draft one proposal or more, two or more, and so on; without their rows of the verify pass.
    pub(crate) fn drafting_cost(&self, drafting: &[usize; K_LIMIT]) -> f64 {
        let Some(costs) = self.whole() else { return 0.0 };
        let seconds = |sequences: usize| costs.draft.seconds(sequences, Reach::NONE);
        let drafting_s: f64 = match self.needs.passes {
            _ if drafting[0] == 0 => 0.0,
            // A row behind each anchor's, for what was committed since.
            RoundPasses::One => {
                let behind = |(&n, depth)| n * self.needs.more_rows_behind(depth);
                seconds(2 * drafting[0] + drafting.iter().zip(1..).map(behind).sum::<usize>())
            }
            _ => drafting.iter().take_while(|sequences| **sequences > 0).map(|&n| seconds(n)).sum(),
        };
        self.goodput * drafting_s
    }

    /// Looks at the blocks of target KV that are free, and the sequences that hold the others.
    pub(crate) fn look_at_kv(&mut self, free: usize, running: usize) {
        let predicts = self.predicts();
        self.steering.look_at_kv(free, if predicts { running } else { 0 });
    }

    /// Are blocks of target KV too short for proposals to get any?
    pub(crate) fn kv_short(&self) -> bool {
        self.steering.kv_short
    }

    /// To count the latency targets that passes of each size would meet.
    pub(crate) fn on_target(&self) -> OnTarget {
        self.steering.on_target(self.partitions.first().filter(|_| self.predicts()))
    }

    /// Looks at what waits as a round begins.
    pub(crate) fn look(&mut self, waiting: &Waiting) -> Displaced {
        let predicts = self.predicts();
        self.steering.look(waiting, self.partitions.first().filter(|_| predicts))
    }

    /// How far rows of prompts wait, 0 to 1; see [`Planner::look`].
    pub(crate) fn waiting(&self) -> f64 {
        self.steering.waiting()
    }

    /// What a row of this round displaces.
    pub(crate) fn displaced(&self) -> Displaced {
        self.steering.displaced()
    }

    /// Looks once more at prompts, of so many rows, as a pass with so many rows of `others` is about to leave.
    pub(crate) fn look_again(&mut self, prompt_rows: usize, prompts: usize, others: usize) {
        self.steering.look_again(prompt_rows, prompts, others);
    }

    /// So many rows of prompts, in passes beside which somebody decodes.
    pub(crate) fn prefill(&self, rows: usize) -> Prefill {
        self.steering.prefill(rows)
    }

    /// Rows of prompts that a pass takes at most beside so many others, if somebody decodes.
    pub(crate) fn prefill_rows(&self, others: usize) -> usize {
        self.steering.prefill_rows(others)
    }

    /// What the load asked for last.
    pub(crate) fn steering(&self) -> SteeringView {
        self.steering.view(self.predicts())
    }

    /// Seconds until so many rows of a prompt are computed, if it is the next in turn; 0 if nobody knows.
    pub(crate) fn prefill_s(&self, rows: usize) -> f64 {
        let costs = self.whole();
        costs.map_or(0.0, |costs| self.steering.prefill_s(rows, costs))
    }

    /// Could so many rows of a prompt, at most so many in a pass, be computed within so many seconds, if passes were filled with them?
    pub(crate) fn reaches(&self, rows: usize, most: Option<usize>, within_s: f64) -> bool {
        self.whole().is_none_or(|costs| self.steering.least_prefill_s(rows, most, costs) <= within_s)
    }

    /// What passes cost on the whole device, if it goes by that.
    fn whole(&self) -> Option<&PartitionCosts> {
        self.partitions.first().filter(|_| self.predicts())
    }

    /// Does it go by the cost tables?
    fn predicts(&self) -> bool {
        self.policy.traits().predicts && !self.partitions.is_empty()
    }

    /// Tokens that one, two and more proposals cost each of so many sequences, where all have as many: rows of the verify pass, and drafting.
    pub(crate) fn costs_by_length(&self, drafting: usize) -> [f64; K_LIMIT] {
        let Some(costs) = self.whole() else { return [0.0; K_LIMIT] };
        let draft_s = |rows| costs.draft.seconds(rows, Reach::NONE);
        let (step_s, displaced) = (draft_s(drafting), self.steering.displaced());
        std::array::from_fn(|deeper| {
            let k = deeper + 1;
            let rows_s = displaced.price(self.longer_by_s(k * drafting, &costs.verify), k * drafting);
            let drafting_s = match self.needs.passes {
                RoundPasses::One => draft_s((1 + self.needs.rows_behind(k)) * drafting),
                _ => k as f64 * step_s,
            };
            self.goodput * (rows_s + drafting_s) / drafting.max(1) as f64
        })
    }

    /// Tokens that it costs to draft at all, and that each proposal costs: a row, and its part of a draft step that `drafting` sequences share, or
    /// a row of the one draft pass, unless a block has that anyway.
    fn proposal_cost(&self, drafting: usize) -> (f64, f64) {
        let Some(costs) = self.whole() else { return (0.0, 0.0) };
        let rows = (1 + self.needs.rows_behind(1)) * drafting;
        let pass = self.goodput * costs.draft.seconds(rows, Reach::NONE) / drafting.max(1) as f64;
        let row = budget::row_cost(self.rows, self.goodput, costs, &self.steering.displaced());
        match self.needs.passes {
            RoundPasses::One => {
                let each_s = self.needs.more_rows_behind(2) as f64 * costs.draft.row_seconds(2 * drafting);
                (pass, row + self.goodput * each_s)
            }
            _ => (0.0, row + pass),
        }
    }

    /// Is what the draft would bring this sequence, over the tokens to come, worth the rows that it is behind? What proposals cost: see
    /// [`Planner::costs_by_length`]. Each that is accepted saves the sequence a round.
    pub(crate) fn pays_to_catch_up(&self, candidate: &Candidate, costs_by_length: &[f64; K_LIMIT]) -> bool {
        !self.predicts() || {
            let (mut survival, mut brought, mut best) = (1.0, 0.0, 0.0_f64);
            let verify = &self.partitions[0].verify;
            let read = self.goodput * verify.attention_seconds(Reach { kv: 0, rows: candidate.context });
            let lengths = candidate.ready..candidate.useful;
            for ((_, cost), rows) in lengths.zip(costs_by_length).zip(1..) {
                survival *= f64::from(candidate.typical);
                brought += survival;
                let saved = brought * f64::from(candidate.weight) * self.saved_round;
                best = best.max((saved - cost - f64::from(rows) * read) / (1.0 + brought));
            }
            best > 0.0 && best * candidate.to_come as f64 > self.goodput * self.catch_up_s(candidate)
        }
    }

    /// Would the account wait for what that brings, if it has not begun yet? What takes long waits until rounds have `shown` what other sources bring.
    pub(crate) fn may_begin_to_catch_up(&self, candidate: &Candidate, shown: bool) -> bool {
        !self.predicts() || {
            let round_s = self.partitions[0].verify.seconds(1, Reach::single(candidate.context));
            let catch_up_s = self.catch_up_s(candidate);
            (shown || catch_up_s <= BEGUN_AT_ONCE * round_s) && self.steering.may_begin(catch_up_s, round_s)
        }
    }

    /// Seconds that a draft step is longer by the rows that a candidate is behind.
    fn catch_up_s(&self, candidate: &Candidate) -> f64 {
        let Candidate { context, .. } = *candidate;
        let seconds = |rows| self.partitions[0].draft.seconds_of_one(rows, Reach::last(rows, context));
        self.catch_up_times * (seconds(candidate.catches_up().max(1)) - seconds(1)).max(0.0)
    }

    /// Is it long enough since anyone was given a proposal, beside the time that so many rounds of so many take, and does the account hold its catching
    /// up?
    fn affords_probe(&self, candidate: &Candidate, (rounds, k): (u32, usize), quiet_rounds: u32) -> bool {
        let PartitionCosts { draft, verify } = &self.partitions[0];
        let seconds = |cost: &PassCost, rows| cost.seconds(rows, Reach::NONE);
        let rows_s = self.longer_by_s(k, verify);
        let further_s = seconds(draft, 1 + self.needs.rows_behind(k));
        let first_s = draft.seconds_of_one(candidate.rows(), Reach::NONE);
        let catch_up_s = self.catch_up_s(candidate);
        let probe_s = catch_up_s + first_s + f64::from(rounds - 1) * further_s + f64::from(rounds) * rows_s;
        let quiet_s = f64::from(quiet_rounds) * self.verify_s;
        probe_s <= PROBE_SHARE * quiet_s && self.steering.affords(catch_up_s)
    }

    /// Is a draft plan that only catches up, by so many rows, worth what any plan takes, where that has so many proposals accepted a round sooner, and
    /// does the account hold it?
    pub(crate) fn affords_catching_up(&self, rows: usize, accepted: f64) -> bool {
        self.partitions.first().is_some_and(|PartitionCosts { draft, .. }| {
            let seconds = |rows| draft.seconds_of_one(rows, Reach::NONE);
            self.goodput * seconds(1) <= accepted && self.steering.affords(seconds(rows))
        })
    }

    fn probe(&mut self, batch: &Batch<'_>, lengths: &mut [usize]) {
        self.probing = false;
        self.undrafted_rounds += u32::from(self.undrafted_rounds < u32::MAX);
        for (candidate, length) in batch.candidates.iter().zip(lengths.iter_mut()) {
            if candidate.tries {
                *length = (*length).max(TRY_LENGTH.min(candidate.useful));
                self.probing = true;
            }
        }
        // Of those that could draft, who has the least to catch up.
        let able = batch.candidates.iter().enumerate().filter(|(_, candidate)| candidate.drafts);
        let Some((able, candidate)) = able.min_by_key(|(_, candidate)| candidate.behind) else { return };
        if lengths.iter().any(|&k| k > 0) {
            (self.quiet_rounds, self.probe_rounds) = (0, 0);
            return;
        }
        self.quiet_rounds += 1;
        // The places of one pass cost hardly more than the first of them.
        let k = if self.needs.passes.is_one() { TRY_LENGTH } else { 1 };
        let due = self.predicts() && self.quiet_rounds >= PROBE_AFTER && self.steering.speculates();
        if due
            && self.probe_rounds == 0
            && self.affords_probe(candidate, (PROBE_ROUNDS, k), self.quiet_rounds)
        {
            self.probe_rounds = PROBE_ROUNDS;
        }
        if due && self.probe_rounds > 0 {
            lengths[able] = k;
            self.probing = true;
            // Where it still catches up it goes on in the next round.
            if candidate.behind == 0 {
                self.probe_rounds -= 1;
            }
            if self.probe_rounds == 0 {
                self.quiet_rounds = 0;
            }
        }
    }

    /// Decides on the execution of a verify pass that is about to leave, serial if it was not looked at. While the draft lane works on what was begun under
    /// the pass before, no other partition than that one's is looked at.
    pub(crate) fn execute(&mut self, batch: &Batch<'_>, leaving: Option<&Leaving<'_>>) -> Execution {
        let Some(leaving) = leaving else {
            self.execution = Execution::Serial;
            return self.execution;
        };
        let now = match self.execution {
            Execution::Serial => None,
            Execution::Overlapped(partition) => Some(partition.0),
        };
        let only = self.partition;
        let more_s = self.overhead.more_s();
        let place =
            self.ahead.partition(batch, leaving, &self.partitions, (now, only, more_s), &mut self.budget);
        self.execution = place.map_or(Execution::Serial, |place| Execution::Overlapped(PartitionId(place)));
        self.execution
    }

    /// Whether it is to be looked at if verdicts of the next pass, of so many sequences, should be prepared for.
    pub(crate) fn looks_ahead(&mut self, sequences: usize) -> bool {
        let may = self.policy.traits().overlaps && self.mechanisms.overlap && self.partitions.len() > 1;
        let looks = may && (self.execution != Execution::Serial || self.ahead.looks(sequences));
        looks && self.steering.speculates() && self.realised.allows()
    }

    /// Of these verdicts, likeliest first, how many to prepare for, `most` of them, and how deep, if so much time is left of the pass that is out; and
    /// whether sequences should have a step past their frontiers first, which has so many rows that look at so much.
    pub(crate) fn outcomes(
        &self,
        odds: &[Odds],
        left: Duration,
        most: usize,
        (past_rows, reach): (usize, Reach),
    ) -> Preparing {
        let costs = self.partitions.get(self.execution.partition().0);
        let costs = costs.filter(|_| self.steering.speculates());
        costs.map_or_else(Preparing::default, |costs| {
            let past_s = costs.draft.seconds(past_rows, reach);
            let drafting = ahead::Drafting { needs: &self.needs, costs: &costs.draft };
            ahead::prepare(odds, left.as_secs_f64(), most, past_s, drafting)
        })
    }

    /// What is left of so much time of the pass that is out besides these verdicts, prepared for so many steps deep; none where nothing may be proposed.
    pub(crate) fn besides<'o>(
        &self,
        verdicts: impl Iterator<Item = &'o Odds>,
        steps: usize,
        left: Duration,
    ) -> Option<Besides> {
        let drafting = self.drafting_beside().filter(|_| self.steering.speculates())?;
        Some(drafting.besides(verdicts, steps, left.as_secs_f64()))
    }

    /// Rows of one sequence, at most `most`, behind so many tokens of it, that there is time for.
    pub(crate) fn rows_more(&self, besides: &Besides, start: usize, most: usize) -> usize {
        self.drafting_beside().map_or(0, |drafting| drafting.rows_more(besides, start, most))
    }

    /// So many of them are in the plan.
    pub(crate) fn takes(&self, besides: &mut Besides, rows: usize, start: usize) {
        if let Some(drafting) = self.drafting_beside() {
            drafting.takes(besides, rows, start);
        }
    }

    /// What drafting costs beside the pass that is out.
    fn drafting_beside(&self) -> Option<ahead::Drafting<'_>> {
        let costs = self.partitions.get(self.execution.partition().0)?;
        Some(ahead::Drafting { needs: &self.needs, costs: &costs.draft })
    }

    /// Tokens that a further row costs in a verify pass of about `rows` rows. No row of a prompt is let into a pass that runs.
    pub(crate) fn row_cost(&self, rows: usize) -> f64 {
        let costs = self.whole();
        costs.map_or(0.0, |costs| budget::row_cost(rows, self.goodput, costs, &Displaced::default()))
    }

    /// Tokens by which a verify pass of `rows` rows is shorter for each that leaves it as it begins, if about so many do.
    pub(crate) fn saved_by_leaving(&self, rows: usize, leaving: usize) -> f64 {
        let costs = self.whole();
        costs.map_or(0.0, |costs| budget::saved_by_leaving(rows, leaving, self.goodput, &costs.verify))
    }

    /// Of the proposals that are ready, how many of each sequence to verify. `acceptances` are theirs, those of each sequence.
    pub(crate) fn trim<A: Iterator<Item = f32>>(
        &mut self,
        batch: &Batch<'_>,
        acceptances: impl Iterator<Item = A>,
        lengths: &mut Vec<usize>,
    ) {
        lengths.clear();
        if !self.steering.speculates() {
            lengths.resize(batch.candidates.len(), 0);
        } else if !self.policy.traits().trims || !self.mechanisms.trim || self.probing {
            let mut left = batch.rows;
            lengths.extend(batch.candidates.iter().map(|candidate| {
                let k = candidate.ready.min(left);
                left -= k;
                k
            }));
        } else {
            self.budget.trim(batch, acceptances, self.goodput, &self.partitions[0], lengths);
        }
    }

    /// A verify pass was timed, and is done now: the tables learn. What they said before, if there are any. Rows that left had a part of it.
    pub(crate) fn timed_verify(
        &mut self,
        shape: &PassShape,
        pruned: Pruned,
        took: Duration,
        now: Duration,
    ) -> Option<Duration> {
        observe(&mut self.verify_s, took.as_secs_f64());
        self.catch_up_times -= CATCH_UP_FADES * (self.catch_up_times - 1.0).max(0.0);
        let whole = self.predicted_verify(shape);
        let shorter = whole.map_or(1.0, |whole| {
            let rest = PassShape { rows: shape.rows - pruned.rows.min(shape.rows), ..*shape };
            let rest_s = self.predicted_verify(&rest).unwrap_or_default().as_secs_f64();
            let whole_s = whole.as_secs_f64().max(f64::MIN_POSITIVE);
            1.0 - pruned.share_left * (1.0 - rest_s / whole_s).max(0.0)
        });
        let predicted = whole.map(|whole| whole.mul_f64(shorter));
        self.ended_round(shape, took, predicted.unwrap_or(took), now);
        let predicted = predicted?;
        let costs = self.partitions.get_mut(shape.partition.0)?;
        let took = took.div_f64(shorter);
        let correction = costs.verify.observe(shape.rows, shape.reach, took);
        if shape.partition != PartitionId(0) {
            // The whole device is no slower than a part of it. Where nothing else teaches it, overlap could seem to pay for ever.
            let whole = self.partitions.first_mut().map(|costs| &mut costs.verify);
            if let Some(whole) = whole.filter(|it| it.seconds(shape.rows, shape.reach) > took.as_secs_f64()) {
                whole.observe(shape.rows, shape.reach, took);
            }
        } else {
            // All others are as much slower or faster than when they were profiled, as long as they tell nothing themselves.
            let [whole, parts @ ..] = self.partitions.as_mut_slice() else { return Some(predicted) };
            whole.draft.follow(correction.points);
            for PartitionCosts { draft, verify } in parts {
                draft.follow(correction.points);
                verify.follow(correction.points);
                verify.follow_attention(correction.attention);
            }
        }
        Some(predicted)
    }

    /// Whether a pass is to teach nothing, as the device did something of it for the first time.
    pub(crate) fn is_cold(&mut self, lane: LaneKind, cold: bool) -> bool {
        let in_a_row = match lane {
            LaneKind::Draft => &mut self.cold_in_a_row[0],
            LaneKind::Verify => &mut self.cold_in_a_row[1],
        };
        *in_a_row = if cold { in_a_row.saturating_add(1) } else { 0 };
        cold && *in_a_row <= COLD_IN_A_ROW
    }

    /// A verify pass was timed that is to teach the tables nothing. What they say of it, if there are any. If it was cold it took what it took; else it
    /// is part of what its round took beyond them.
    pub(crate) fn timed_and_not_taught(
        &mut self,
        shape: &PassShape,
        cold: bool,
        took: Duration,
        now: Duration,
    ) -> Option<Duration> {
        let predicted = self.predicted_verify(shape);
        self.ended_round(shape, took, predicted.filter(|_| !cold).unwrap_or(took), now);
        predicted
    }

    /// A round ended with a pass that took so long, and by the tables so long.
    fn ended_round(&mut self, shape: &PassShape, took: Duration, predicted: Duration, now: Duration) {
        let overlapped = shape.partition != PartitionId(0);
        self.beyond_s = self.overhead.round(now, took, predicted.as_secs_f64(), overlapped);
        self.budget.between(self.overhead.serial_s());
    }

    /// A round ended: what its speculation took is held against what it brought.
    pub(crate) fn settle(&mut self, shape: &PassShape, round: Speculated) {
        if let Some(costs) = self.partitions.first().filter(|_| self.policy.traits().predicts) {
            let on = |costs: &PartitionCosts| costs.verify.seconds(shape.rows, shape.reach);
            let longer_s = self.partitions.get(shape.partition.0).map_or(0.0, on) - on(costs);
            let between_s = self.overhead.serial_s();
            let passes_s =
                self.steering.verified(&Speculated { longer_s, between_s, ..round }, costs).max(0.0);
            let overlapped = shape.partition != PartitionId(0);
            let prepared = std::mem::replace(&mut self.prepared, overlapped);
            // By the clock: where both lanes and all else share few cores, no table has what that costs at first.
            let beyond_s = self.beyond_s.unwrap_or(0.0).clamp(-0.5 * passes_s, MOST_BEYOND * passes_s);
            self.realised.round((overlapped || prepared).then_some(Round {
                sequences: round.sequences,
                committed: round.committed,
                seconds: passes_s + beyond_s,
                serial_goodput: self.ahead.serial_goodput,
            }));
        }
    }

    /// What the tables say of a verify pass.
    pub(crate) fn predicted_verify(&self, shape: &PassShape) -> Option<Duration> {
        let costs = self.partitions.get(shape.partition.0)?;
        Some(Duration::from_secs_f64(costs.verify.seconds(shape.rows, shape.reach)))
    }

    /// What the tables say of a draft plan: a first step with all its rows, then one row per sequence.
    pub(crate) fn predicted_draft(&self, shape: &PassShape) -> Option<Duration> {
        let draft = &self.partitions.get(shape.partition.0)?.draft;
        let further_s = draft.seconds(shape.sequences, Reach::single(shape.reach.kv));
        let further = shape.steps.saturating_sub(1) as f64 * further_s;
        Some(Duration::from_secs_f64(draft.seconds(shape.rows, shape.reach) + further))
    }

    /// A draft plan was done; a round waited for it if it had the whole device. Returns the seconds that it is believed to have taken: if it
    /// `teaches` nothing, what the tables say.
    pub(crate) fn waited_for_drafts(&mut self, shape: &PassShape, took: Duration, teaches: bool) -> f64 {
        if shape.partition != PartitionId(0) {
            return took.as_secs_f64();
        }
        let predicted = self.predicted_draft(shape).filter(|_| self.policy.traits().predicts);
        let believed_s = match predicted.filter(|_| !teaches) {
            Some(predicted) => predicted.as_secs_f64(),
            None => self.overhead.believed_s(predicted, took),
        };
        self.steering.drafted(believed_s);
        self.overhead.drafted(took);
        believed_s
    }

    /// Of a draft plan that is believed to have taken so many seconds, what catching up took, as far as the account waits for what comes of it: this
    /// part of its first pass. It has the part of its rows, as those beside them would not wait for that long without them.
    pub(crate) fn invests(&mut self, shape: &PassShape, part: f64, believed_s: f64) -> f64 {
        let Some(costs) = self.partitions.first().filter(|_| self.policy.traits().predicts) else {
            return 0.0;
        };
        let caught_up_s = part * costs.draft.seconds(shape.rows, shape.reach);
        let whole_s = self.predicted_draft(shape).unwrap_or_default().as_secs_f64();
        let share = (caught_up_s / whole_s.max(f64::MIN_POSITIVE)).clamp(0.0, 1.0);
        self.steering.invests(share * believed_s)
    }

    /// So many of the seconds that were invested are to be settled: what they were for came, or never will.
    pub(crate) fn returns(&mut self, seconds: f64) {
        self.steering.returns(seconds);
    }

    /// No lane has work now.
    pub(crate) fn idle(&mut self) {
        self.overhead.idle();
    }

    /// A draft plan was timed: the tables learn, unless catching up dominated it. The first pass, or the only one, is looked up by its rows, a
    /// further step by its sequences.
    pub(crate) fn timed_draft(&mut self, shape: &PassShape, took: Duration) {
        let PassShape { rows, sequences, steps, .. } = *shape;
        if rows == 0 || sequences == 0 {
            return;
        }
        if self.needs.passes.is_one() {
            if let Some(costs) = self.partitions.get_mut(shape.partition.0) {
                costs.draft.observe(rows, shape.reach, took);
            }
            return;
        }
        if rows <= 3 * sequences {
            observe(&mut self.step_s, took.as_secs_f64() / steps as f64);
        }
        if let Some(costs) = self.partitions.get_mut(shape.partition.0).filter(|_| rows <= 3 * sequences) {
            let draft = &mut costs.draft;
            // Steps of as many rows as the first pass are of the same point.
            let further = if rows == sequences { 0 } else { steps.saturating_sub(1) as u32 };
            let took = if rows == sequences { took / steps.max(1) as u32 } else { took };
            let further_reach = Reach::single(shape.reach.kv);
            let [first_s, further_s] = [(rows, shape.reach), (sequences, further_reach)]
                .map(|(rows, reach)| draft.seconds(rows, reach));
            // What all took beyond what the tables say, each took by the same factor.
            let times = took.as_secs_f64() / (first_s + f64::from(further) * further_s);
            draft.observe(rows, shape.reach, Duration::from_secs_f64(times * first_s));
            if further > 0 {
                draft.observe(sequences, further_reach, Duration::from_secs_f64(times * further_s));
            }
        }
    }

    /// A draft plan was timed, most of whose rows caught up in its first step.
    pub(crate) fn timed_catch_up(&mut self, shape: &PassShape, took: Duration) {
        let (PassShape { rows, steps, .. }, took_s) = (*shape, took.as_secs_f64());
        let predicted = |shape: &PassShape| Some(self.predicted_draft(shape)?.as_secs_f64());
        // Of few rows the tables know what they take.
        if rows > (K_LIMIT + 1) * shape.sequences
            && shape.partition == PartitionId(0)
            && let (Some(all_s), Some(first_s)) =
                (predicted(shape), predicted(&PassShape { steps: 1, ..*shape }))
        {
            let (times, before) = ((took_s - (all_s - first_s)) / first_s, self.catch_up_times);
            let times = times.clamp(MOST_CATCH_UP_TIMES.recip(), MOST_CATCH_UP_TIMES).min(2.0 * before);
            self.catch_up_times += NEW_CATCH_UP * (times - before);
        }
        // The first step is the long one.
        let others_s = steps.saturating_sub(1) as f64 * self.step_s;
        let first_s = (took_s - others_s).max(took_s / steps.max(1) as f64);
        observe(&mut self.catch_up_row_s, first_s / rows as f64);
    }

    /// Rows of draft plans that may be of sequences with far to catch up, while others wait for them, at most `most`, in plans of `pass_rows`: as many as
    /// take no longer than the next verify pass, of `rows` rows, or than one that prompts fill, unless a first token is `awaited`. To catch up sooner
    /// takes no more time in all, and less where rows are cheaper by the many: what bounds it is the gap that others see, and prompts may make that.
    /// Where there are no tables, as many as take as long as verify passes did in the mean.
    pub(crate) fn long_rows(&self, rows: usize, awaited: bool, most: usize, pass_rows: usize) -> usize {
        let least = LEAST_LONG_ROWS.min(pass_rows);
        let most = most.max(least);
        if let Some(costs) = self.whole() {
            let rows = if awaited { rows } else { rows.max(self.steering.smallest_size()) };
            let pass_s = costs.verify.seconds(rows, Reach::NONE);
            let full_s = costs.draft.seconds_of_one(pass_rows, Reach::NONE);
            let plans_s = |rows: usize| {
                let (full, rest) = (rows / pass_rows, rows % pass_rows);
                let rest_s = if rest > 0 { costs.draft.seconds_of_one(rest, Reach::NONE) } else { 0.0 };
                full as f64 * full_s + rest_s
            };
            let (mut fits, mut beyond) = (least, most + 1);
            while beyond - fits > LONG_ROWS_STEP {
                let middle = fits.midpoint(beyond);
                let within = plans_s(middle) <= pass_s;
                *(if within { &mut fits } else { &mut beyond }) = middle;
            }
            fits
        } else if self.catch_up_row_s > 0.0 && self.verify_s > 0.0 {
            ((self.verify_s / self.catch_up_row_s) as usize).clamp(least, most)
        } else {
            FIRST_LONG_ROWS.min(most)
        }
    }

    /// Survival below which a further proposal does not pay its row of the round's verify pass.
    pub(crate) fn break_even_survival(&self) -> f32 {
        if !self.policy.traits().predicts {
            return self.policy.floor();
        }
        // It ends drafting; what is verified of that is decided by what all rows cost. So the cheapest row counts: of a pass without proposals, of one with
        // those that were planned, or the last of these. Where passes go by steps they end at the edge of one, behind which the next row is dear.
        let verify = &self.partitions[0].verify;
        let (rows, planned) = (self.rows, self.planned_rows);
        let rows_s =
            [verify.row_seconds(rows), verify.row_seconds(planned), verify.last_row_seconds(planned, rows)];
        let row_s = rows_s.into_iter().fold(f64::INFINITY, f64::min);
        let tokens = self.goodput * self.steering.displaced().price(row_s, 1);
        (tokens as f32).clamp(NEGLIGIBLE, 1.0)
    }

    /// Is a step taken only if it pays by then? Where all proposals come from one pass there is nothing to end, and of several ranks that draft
    /// none knows what the others would gain.
    fn ends_drafting(&self) -> bool {
        self.predicts() && !self.needs.passes.is_one() && self.copies == 1 && !self.probing
    }

    /// What a further draft step costs where so many sequences draft, behind so many tokens in all.
    pub(crate) fn step_price(&self, drafting: usize, context: usize) -> StepPrice {
        let Some(costs) = self.partitions.first().filter(|_| self.ends_drafting() && drafting > 0) else {
            return StepPrice::default();
        };
        let step_s =
            |sequences| costs.draft.seconds(sequences, Reach::single(context * sequences / drafting));
        let more_s = (step_s(drafting) - step_s(1)).max(0.0) / drafting.saturating_sub(1).max(1) as f64;
        let each = f64::from(self.break_even_survival()) + self.goodput * more_s;
        // However little it is, it is not free.
        let all = ((self.goodput * (step_s(1) - more_s)) as f32).max(f32::MIN_POSITIVE);
        StepPrice { all, each: each as f32 }
    }

    /// Steps that a sequence may draft beyond those that it is to have, where so many run and passes have so many rows. They end at an edge of
    /// the pass: a row there takes longer than its draft step and twice what rows take thereabouts.
    pub(crate) fn further_steps(&self, running: usize, most_rows: usize) -> usize {
        let Some(costs) = self.partitions.first().filter(|_| self.ends_drafting() && running == 1) else {
            return 0;
        };
        let verify_s = |rows| costs.verify.seconds(rows, Reach::NONE);
        let planned = self.planned_rows.max(1);
        let edge_s = costs.draft.seconds(1, Reach::NONE).max(2.0 * costs.verify.row_seconds(planned));
        let before_edge = |rows: &usize| verify_s(rows + 1) - verify_s(*rows) <= edge_s;
        (planned..most_rows).take(FURTHER_STEPS).take_while(before_edge).count()
    }

    /// Sets the price of a second: the highest goodput this round can have. What maximises tokens less that price of
    /// their time also maximises tokens per second (Dinkelbach 1967).
    fn update_goodput(&mut self, batch: &Batch<'_>) {
        if !batch.candidates.is_empty() {
            let plain = self.budget.plain_goodput(batch, &self.partitions[0]);
            self.goodput = self.budget.goodput(batch, &self.partitions[0]).0;
            self.saved_round = (self.goodput / plain.max(f64::MIN_POSITIVE)).max(1.0);
        } else if self.goodput == 0.0 {
            // Nobody has decoded yet, and the first will have a token of each pass.
            let pass_s = self.partitions[0].verify.seconds(1, Reach::NONE);
            self.goodput = if pass_s > 0.0 { pass_s.recip() } else { 0.0 };
        }
    }
}

/// The same length for everyone, as far as it is useful and rows last.
fn allocate(k: usize, batch: &Batch<'_>, lengths: &mut Vec<usize>) {
    let mut left = batch.rows;
    lengths.extend(batch.candidates.iter().map(|candidate| {
        let k = k.min(candidate.useful).min(left).min(K_LIMIT);
        left -= k;
        k
    }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::AttentionCost;
    use crate::source::DraftSource;

    #[test]
    fn a_second_has_a_price_before_anybody_decodes_and_keeps_it_while_nobody_does() {
        let cost = |millis: u64| PassCost::linear(1000 * millis, 100, AttentionCost::default());
        let costs = vec![PartitionCosts { draft: cost(2), verify: cost(20) }];
        let tuning = Tuning { policy: Policy::Faser, ..Tuning::default() };
        let mut planner = Planner::new(&tuning, costs, 64, (DraftSource::model(64).needs(), 1));
        // Ten tokens to come do not pay for 5,000 rows.
        let behind = Candidate { missing: 5000, to_come: 10, ..Candidate::fresh() };
        let mut lengths = Vec::new();
        let mut plan = |planner: &mut Planner, candidates: &[Candidate]| {
            let prefill = Prefill { rows: 16, pass_rows: 64, least: 0 };
            let batch = Batch { candidates, rows: 64, prefill, displaced: Displaced::default() };
            planner.plan(&batch, &mut lengths);
            planner.pays_to_catch_up(&behind, &planner.costs_by_length(1))
        };
        assert!(!plan(&mut planner, &[]));
        plan(&mut planner, &[Candidate::fresh(), Candidate::fresh()]);
        let price = planner.goodput;
        assert!(price > 0.0 && !plan(&mut planner, &[]) && planner.goodput == price);
    }

    #[test]
    fn drafting_does_not_end_short_of_the_edge_that_was_planned_for() {
        // Rows are dear up to 64, free up to 120, and dear again.
        let points = [(1, 4), (16, 30), (64, 64), (120, 66), (128, 91), (256, 160)];
        let points = points.map(|(rows, millis)| (rows, Duration::from_millis(millis)));
        let verify = PassCost::new(&points, AttentionCost::default());
        let draft = PassCost::linear(300, 180, AttentionCost::default());
        let tuning = Tuning { policy: Policy::Faser, ..Tuning::default() };
        let needs = DraftSource::model(512).needs();
        let costs = vec![PartitionCosts { draft, verify }];
        let mut planner = Planner::new(&tuning, costs, 512, (needs, 1));
        let candidates = [Candidate { useful: 16, typical: 0.8, ..Candidate::fresh() }; 16];
        let (prefill, displaced) = (Prefill::default(), Displaced::default());
        let batch = Batch { candidates: &candidates, rows: 496, prefill, displaced };
        let mut lengths = Vec::new();
        planner.plan(&batch, &mut lengths);
        let rows = 16 + lengths.iter().sum::<usize>();
        assert!((96..=120).contains(&rows), "{lengths:?}");
        // Less than a sixth proposal of each is expected to bring, where a row behind the edge would take four times as much.
        assert!(planner.break_even_survival() < 0.1, "{}", planner.break_even_survival());
    }

    #[test]
    fn the_whole_device_is_no_slower_than_a_part_of_it() {
        let cost = |millis: u64| PassCost::linear(1000 * millis, 0, AttentionCost::default());
        let costs = |millis| PartitionCosts { draft: cost(2), verify: cost(millis) };
        let tuning = Tuning { policy: Policy::Faser, ..Tuning::default() };
        let needs = DraftSource::model(64).needs();
        let mut planner = Planner::new(&tuning, vec![costs(20), costs(22)], 64, (needs, 1));
        let part = PassShape { rows: 32, steps: 1, partition: PartitionId(1), ..PassShape::default() };
        let whole = PassShape { partition: PartitionId(0), ..part };
        let mut after = |millis| {
            for pass in 0..100 {
                let took = Duration::from_millis(millis);
                planner.timed_verify(&part, Pruned::default(), took, took * 2 * pass);
            }
            planner.predicted_verify(&whole).unwrap_or_default().as_secs_f64()
        };
        assert!((after(25) - 0.02).abs() < 1e-4 && (after(15) - 0.015).abs() < 1e-3);
    }

    #[test]
    fn what_is_cold_for_long_is_how_passes_are_and_cold_drafts_are_charged_what_the_tables_say() {
        let cost = |millis: u64| PassCost::linear(1000 * millis, 0, AttentionCost::default());
        let costs = vec![PartitionCosts { draft: cost(2), verify: cost(20) }];
        let tuning = Tuning { policy: Policy::Faser, ..Tuning::default() };
        let mut planner = Planner::new(&tuning, costs, 64, (DraftSource::model(64).needs(), 1));
        for lane in [LaneKind::Draft, LaneKind::Verify] {
            assert!((0..COLD_IN_A_ROW).all(|_| planner.is_cold(lane, true)) && !planner.is_cold(lane, true));
            assert!(!planner.is_cold(lane, false) && planner.is_cold(lane, true));
        }
        let shape = PassShape { rows: 2, steps: 2, sequences: 1, ..PassShape::default() };
        let slow = Duration::from_millis(80);
        let first = planner.waited_for_drafts(&shape, slow, true);
        let mut cold = Planner { overhead: Overhead::default(), ..planner };
        assert!((0..9).all(|_| (cold.waited_for_drafts(&shape, slow, false) - 0.004).abs() < 1e-9));
        assert_eq!(cold.waited_for_drafts(&shape, slow, true), first, "they are forgotten");
    }

    #[test]
    fn a_step_past_frontiers_is_priced_by_what_it_reads_too() {
        // A step takes 2 ms, and as long again for each 16,000 tokens that it reads.
        let attention = AttentionCost { per_kv_fs: 125_000_000, per_row_fs: 0 };
        let draft = PassCost::linear(2000, 0, attention);
        let costs = PartitionCosts { draft, verify: PassCost::linear(20_000, 0, AttentionCost::default()) };
        let tuning = Tuning { policy: Policy::Faser, ..Tuning::default() };
        let needs = DraftSource::model(64).needs();
        let planner = Planner::new(&tuning, vec![costs.clone(), costs], 64, (needs, 1));
        let odds = |index, past| {
            let (probability, typical, weight) = (0.3, 0.8, 1.0);
            Odds { index, rank: 0, probability, typical, weight, context: 100, past, own: false }
        };
        let odds: Vec<Odds> = (0..16).map(|index| odds(index, index % 2 == 1)).collect();
        let past = |kv| {
            let left = Duration::from_millis(10);
            planner.outcomes(&odds, left, 64, (8, Reach::single(kv))).past
        };
        assert!(past(800) && !past(56_000));
    }

    #[test]
    fn a_pass_that_rows_left_teaches_what_it_would_have_taken_whole() {
        // Steps of 16 rows, 10 ms each.
        let step = |rows: usize| (rows, Duration::from_millis(10 * rows.div_ceil(16) as u64));
        let steps = PassCost::new(&(1..=64).map(step).collect::<Vec<_>>(), AttentionCost::default());
        let costs = vec![PartitionCosts { draft: PassCost::nothing(), verify: steps }];
        let tuning = Tuning { policy: Policy::Faser, ..Tuning::default() };
        let mut planner = Planner::new(&tuning, costs, 64, (DraftSource::model(64).needs(), 1));
        let shape = PassShape { rows: 49, steps: 1, sequences: 16, ..PassShape::default() };
        let pruned = Pruned { rows: 4, share_left: 0.5 };
        let took = Duration::from_millis(35);
        for pass in 0..100 {
            assert_eq!(planner.timed_verify(&shape, pruned, took, 100 * took * pass), Some(took));
        }
        for (rows, millis) in [(45, 30), (48, 30), (49, 40), (64, 40)] {
            let of = PassShape { rows, ..shape };
            assert_eq!(planner.predicted_verify(&of), Some(Duration::from_millis(millis)), "{rows} rows");
        }
        // More than there are: whoever says so, nothing breaks.
        let all = Pruned { rows: 99, share_left: 0.5 };
        assert!(planner.timed_verify(&shape, all, took, 20_000 * took) < Some(took));
    }
}
