//! The survival budget: who drafts how far, and what of it is verified.

use crate::cost::{Line, PartitionCosts, PassCost, Reach};
use crate::request::K_LIMIT;
use crate::source::{RoundPasses, SourceNeeds};

/// Survival below which nothing is considered.
pub(crate) const NEGLIGIBLE: f32 = 0.02;

/// Rows that a sequence brings to a draft plan in any round: the last proposal that was accepted, and the token behind it.
pub(crate) const ROUND_ROWS: usize = 2;

/// Gain below which drafting is not begun: estimates are off by about as much, and not to draft is certain.
pub(crate) const MIN_DRAFT_GAIN: f64 = 0.03;

/// Gain below which nothing is trimmed: what is not verified is not learned from either.
const MIN_TRIM_GAIN: f64 = 0.02;

/// What the planner knows of a sequence that decodes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    /// Proposals that could be used in all: bounded by the request's `k_max` and its tokens to come.
    pub(crate) useful: usize,
    /// Proposals there already, of those that are useful.
    pub(crate) ready: usize,
    /// Sum of their survivals: tokens they will bring.
    pub(crate) expected: f32,
    /// Survival of the last of them.
    pub(crate) survival: f32,
    /// Probability of acceptance of one not drafted yet.
    pub(crate) typical: f32,
    /// Tokens of its context.
    pub(crate) context: usize,
    /// Those of them that the draft has yet to compute, where they are many.
    pub(crate) behind: usize,
    /// Known tokens that the draft has yet to compute.
    pub(crate) missing: usize,
    /// Could the draft propose anything, if it were worth what it is behind?
    pub(crate) drafts: bool,
    /// Tokens that it is expected to get yet.
    pub(crate) to_come: usize,
    /// What one of its tokens counts for, in those of a sequence without latency targets.
    pub(crate) weight: f32,
    /// It is to try the draft, whatever that promises.
    pub(crate) tries: bool,
}

impl Candidate {
    /// Rows that it brings to a draft pass before its first proposal in any round, for what was committed since the last. More than a round commits
    /// are computed once: whether they pay is asked beside all tokens to come.
    pub(super) fn rows(&self) -> usize {
        if self.missing > K_LIMIT + 1 { 1 } else { self.missing.max(1) }
    }

    /// One that nothing is drafted for yet, eight of whose proposals could be used.
    #[cfg(test)]
    pub(super) fn fresh() -> Candidate {
        Candidate {
            useful: 8,
            ready: 0,
            expected: 0.0,
            survival: 1.0,
            typical: 0.7,
            context: 0,
            behind: 0,
            missing: 1,
            drafts: true,
            to_come: 100,
            weight: 1.0,
            tries: false,
        }
    }

    /// Rows that it has to catch up with, beyond those of any round.
    pub(crate) fn catches_up(&self) -> usize {
        if self.missing > K_LIMIT + 1 { self.missing } else { 0 }
    }
}

/// The sequences of a round, and what their verify pass has room for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch<'a> {
    pub(crate) candidates: &'a [Candidate],
    /// Rows left for proposals.
    pub(crate) rows: usize,
    pub(crate) prefill: Prefill,
    /// What a row displaces.
    pub(crate) displaced: Displaced,
}

/// The rows of prompts in a verify pass.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Prefill {
    /// Where nothing is proposed.
    pub(crate) rows: usize,
    /// Beyond so many rows of a pass they give way to proposals, but for the least of them.
    pub(crate) pass_rows: usize,
    pub(crate) least: usize,
}

impl Prefill {
    /// Those beside so many rows of sequences that decode.
    pub(crate) fn beside(&self, others: usize) -> usize {
        self.rows.min(self.pass_rows.saturating_sub(others).max(self.least))
    }

    /// Seconds that one of them takes of a pass, beside so many sequences that decode.
    pub(super) fn row_s(&self, sequences: usize, verify: &PassCost) -> f64 {
        let pass_s = |rows| verify.seconds(rows, Reach::NONE);
        (pass_s(sequences + self.rows) - pass_s(sequences)) / self.rows.max(1) as f64
    }
}

/// What a row of a sequence that decodes costs beyond the time that it makes its pass longer: where prompts wait, a row of theirs comes later.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Displaced {
    /// Seconds of a row in a pass of the best size.
    pub(crate) row_s: f64,
    /// How far rows of prompts wait, 0 to 1: at 0 a row costs what the pass takes longer, at 1 what `row_s` says.
    pub(crate) share: f64,
    /// Seconds that a sequence costs by decoding for one round more.
    pub(crate) hold_s: f64,
}

impl Displaced {
    /// The cost of what takes `alone_s` on its own, and has so many rows.
    pub(super) fn price(&self, alone_s: f64, rows: usize) -> f64 {
        alone_s + self.share * (rows as f64 * self.row_s - alone_s)
    }

    /// The cost of a round for so many sequences that decode, beside that of their rows.
    pub(super) fn held(&self, sequences: usize) -> f64 {
        self.share * self.hold_s * sequences as f64
    }
}

/// Takes proposals in the order of survival, over all sequences together. Its buffers are kept from round to round.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    /// What the source needs of draft passes.
    needs: SourceNeeds,
    /// Seconds of a round beyond its passes: without drafts, and with some.
    between_s: [f64; 2],
    /// Survival of each sequence at the depth that is looked at; 0 for those that draft no further.
    survivals: Vec<f32>,
    /// Proposals by their [`rank`].
    order: Vec<u64>,
}

/// A round as it could be: what it commits, how long it takes, and how many draft steps it has.
#[derive(Clone, Copy, Debug)]
struct Choice {
    committed: f64,
    seconds: f64,
    depth: usize,
}

impl Choice {
    /// Tokens a second.
    fn rate(&self) -> f64 {
        self.committed / self.seconds.max(f64::MIN_POSITIVE)
    }
}

/// A proposal's place in the order of survival: a likelier one is less. Among equals the older sequence is first, so that plans are repeatable.
fn rank(survival: f32, sequence: usize) -> u64 {
    // The bits of what is not negative are in its order.
    u64::from(!survival.max(0.0).to_bits()) << 32 | sequence as u64
}

impl Budget {
    /// For a source that needs this.
    pub(super) fn new(needs: SourceNeeds) -> Budget {
        Budget { needs, ..Budget::default() }
    }

    /// What its source needs.
    pub(super) fn needs(&self) -> &SourceNeeds {
        &self.needs
    }

    /// Rounds take so long beyond their passes: without drafts, and with some.
    pub(super) fn between(&mut self, between_s: [f64; 2]) {
        self.between_s = between_s;
    }

    /// Speculative lengths before drafting, from what is typical of each sequence; what is ready already is not drafted
    /// again.
    ///
    /// A draft step costs nearly the same for one sequence as for all, and so does a pass that brings all proposals with one row more each, so
    /// lengths are searched by depth: at each, everyone whose survival pays a row drafts on, and the best depth is taken. `goodput` is the
    /// price of a second in tokens; since cost is a staircase, a round in which rows are free is tried as well.
    pub(super) fn plan(
        &mut self,
        batch: &Batch<'_>,
        goodput: f64,
        break_even_survival: f32,
        costs: &PartitionCosts,
        lengths: &mut Vec<usize>,
    ) {
        let value = |choice: &Choice| choice.committed - goodput * choice.seconds;
        let without = self.sweep(batch, f32::INFINITY, costs, value);
        let least_gain = MIN_DRAFT_GAIN * without.committed;
        let (mut best, mut floor) = (without, f32::INFINITY);
        for its_floor in [break_even_survival, NEGLIGIBLE] {
            let choice = self.sweep(batch, its_floor, costs, value);
            if value(&choice) > value(&best).max(value(&without) + least_gain) {
                (best, floor) = (choice, its_floor);
            }
        }
        lengths.clear();
        lengths.extend(batch.candidates.iter().map(|candidate| {
            let survivals = std::iter::successors(Some(candidate.survival * candidate.typical), |survival| {
                Some(survival * candidate.typical)
            });
            let most = best.depth.min(candidate.useful.saturating_sub(candidate.ready));
            let pays = |survival: &f32| survival * candidate.weight >= floor;
            candidate.ready + survivals.take(most).take_while(pays).count()
        }));
    }

    /// The highest goodput that a round of this batch can be predicted to have, and its draft steps.
    pub(super) fn goodput(&mut self, batch: &Batch<'_>, costs: &PartitionCosts) -> (f64, usize) {
        let best = self.sweep(batch, NEGLIGIBLE, costs, Choice::rate);
        (best.rate(), best.depth)
    }

    /// The goodput of a round of this batch without proposals.
    pub(super) fn plain_goodput(&self, batch: &Batch<'_>, costs: &PartitionCosts) -> f64 {
        let [plain_s, _] = self.between_s;
        Pass::new(batch, costs).choice(plain_s, 0).rate()
    }

    /// The highest value of a round: its tokens, less those that its time would bring at this goodput.
    pub(super) fn value(&mut self, batch: &Batch<'_>, goodput: f64, costs: &PartitionCosts) -> f64 {
        let value = |choice: &Choice| choice.committed - goodput * choice.seconds;
        value(&self.sweep(batch, NEGLIGIBLE, costs, value))
    }

    /// The depth of the highest `value`, if everyone drafts as long as its survival is at least `floor`.
    fn sweep(
        &mut self,
        batch: &Batch<'_>,
        floor: f32,
        costs: &PartitionCosts,
        value: impl Fn(&Choice) -> f64,
    ) -> Choice {
        let mut pass = Pass::new(batch, costs).with_ready(batch.candidates);
        let mut draft = DraftTime { passes: self.needs.passes, ..DraftTime::default() };
        let masked = self.needs.passes.is_one();
        self.survivals.clear();
        self.survivals.extend(batch.candidates.iter().map(|candidate| candidate.survival));
        let [plain_s, drafted_s] = self.between_s;
        let mut best = pass.choice(plain_s, 0);
        for depth in 0..K_LIMIT {
            let (mut rows, mut reach, mut deeper) = (0, Reach::NONE, false);
            let behind = if masked { self.needs.more_rows_behind(depth + 1) } else { 1 };
            for (candidate, survival) in batch.candidates.iter().zip(&mut self.survivals) {
                *survival *= candidate.typical;
                if candidate.ready + depth < candidate.useful
                    && *survival * candidate.weight >= floor
                    && pass.proposals < batch.rows
                {
                    pass.add(*survival * candidate.weight, candidate.context);
                    let of_step = match depth {
                        0 if masked => behind + candidate.rows(),
                        0 => candidate.missing.clamp(1, ROUND_ROWS),
                        _ => behind,
                    };
                    rows += of_step;
                    reach.kv += candidate.context;
                    reach.rows += of_step * candidate.context;
                    deeper = true;
                } else {
                    *survival = 0.0;
                }
            }
            if !deeper {
                break;
            }
            draft.deepen(rows, reach, &costs.draft);
            let choice = pass.choice(draft.seconds + drafted_s, depth + 1);
            if value(&choice) > value(&best) {
                best = choice;
            }
        }
        best
    }

    /// What to verify of what is ready: only rows cost now, the draft steps are gone whatever is taken.
    /// `acceptances` are those of the proposals, of each sequence.
    pub(super) fn trim<A: Iterator<Item = f32>>(
        &mut self,
        batch: &Batch<'_>,
        acceptances: impl Iterator<Item = A>,
        goodput: f64,
        costs: &PartitionCosts,
        lengths: &mut Vec<usize>,
    ) {
        lengths.clear();
        let mut pass = Pass::new(batch, costs);
        let mut whole = pass.with_ready(batch.candidates);
        let cost = goodput * (whole.seconds() - pass.seconds());
        if whole.proposals <= batch.rows && cost < MIN_TRIM_GAIN * whole.committed {
            // Nothing could gain enough, in whatever order.
            lengths.extend(batch.candidates.iter().map(|candidate| candidate.ready));
            return;
        }
        self.order.clear();
        for ((sequence, candidate), acceptances) in batch.candidates.iter().enumerate().zip(acceptances) {
            let mut survival = candidate.weight;
            for acceptance in acceptances.take(candidate.ready) {
                survival *= acceptance;
                self.order.push(rank(survival, sequence));
            }
        }
        // No proposal is likelier than the one before it.
        self.order.sort_unstable();
        self.order.truncate(batch.rows);
        let mut best = (pass.value(goodput), 0);
        for (place, &ranked) in self.order.iter().enumerate() {
            let (survival, sequence) = (f32::from_bits(!(ranked >> 32) as u32), ranked as u32 as usize);
            pass.add(survival, batch.candidates[sequence].context);
            let value = pass.value(goodput);
            if value >= best.0 {
                best = (value, place + 1);
            }
        }
        if pass.value(goodput) + MIN_TRIM_GAIN * pass.committed > best.0 {
            best.1 = self.order.len();
        }
        lengths.resize(batch.candidates.len(), 0);
        self.order[..best.1].iter().for_each(|&ranked| lengths[ranked as u32 as usize] += 1);
    }
}

/// The draft passes of a round in the making.
#[derive(Debug, Default)]
struct DraftTime {
    passes: RoundPasses,
    /// Of a single pass.
    rows: usize,
    reach: Reach,
    seconds: f64,
}

impl DraftTime {
    /// One proposal more for some sequences, by so many rows, behind so many tokens.
    fn deepen(&mut self, rows: usize, reach: Reach, costs: &PassCost) {
        if self.passes.is_one() {
            self.rows += rows;
            self.reach = Reach { kv: self.reach.kv.max(reach.kv), rows: self.reach.rows + reach.rows };
            self.seconds = costs.seconds(self.rows, self.reach);
        } else {
            self.seconds += costs.seconds(rows, reach);
        }
    }
}

/// The verify pass in the making.
#[derive(Clone)]
struct Pass<'a> {
    costs: &'a PartitionCosts,
    displaced: Displaced,
    /// Where in the cost table it is.
    line: Line,
    /// Rows of sequences that decode, without proposals.
    anchors: usize,
    prefill: Prefill,
    /// Time that a row of prompts takes of the pass. It is not counted: it brings tokens of its own, later, and would make those of this round look
    /// dear and their rows cheap. Where it gives way to a proposal that proposal takes it.
    prefill_row_s: f64,
    reach: Reach,
    proposals: usize,
    /// Tokens it will commit, as far as is known.
    committed: f64,
}

impl<'a> Pass<'a> {
    /// Without proposals.
    fn new(batch: &Batch<'_>, costs: &'a PartitionCosts) -> Pass<'a> {
        let (anchors, prefill) = (batch.candidates.len(), batch.prefill);
        Pass {
            costs,
            displaced: batch.displaced,
            line: costs.verify.line(anchors + prefill.beside(anchors)),
            anchors,
            prefill,
            prefill_row_s: prefill.row_s(anchors, &costs.verify),
            reach: Reach::single(batch.candidates.iter().map(|candidate| candidate.context).sum()),
            proposals: 0,
            committed: batch.candidates.iter().map(|candidate| f64::from(candidate.weight)).sum(),
        }
    }

    /// With all proposals that are ready.
    fn with_ready(&self, candidates: &[Candidate]) -> Pass<'a> {
        let mut pass = self.clone();
        for candidate in candidates {
            pass.proposals += candidate.ready;
            pass.committed += f64::from(candidate.expected * candidate.weight);
            pass.reach.rows += candidate.ready * candidate.context;
        }
        pass
    }

    fn add(&mut self, survival: f32, context: usize) {
        self.proposals += 1;
        self.committed += f64::from(survival);
        // It reads what its chunk reads anyway.
        self.reach.rows += context;
    }

    /// What its rows cost that are not prefill.
    fn seconds(&mut self) -> f64 {
        let rows = self.anchors + self.proposals;
        let prefill_rows = self.prefill.beside(rows);
        let all = rows + prefill_rows;
        if all >= self.line.end {
            self.line = self.costs.verify.line(all);
        }
        let alone_s = self.line.seconds(all) - prefill_rows as f64 * self.prefill_row_s;
        self.displaced.price(alone_s, rows)
            + self.displaced.held(self.anchors)
            + self.costs.verify.attention_seconds(self.reach)
    }

    fn choice(&mut self, other_s: f64, depth: usize) -> Choice {
        Choice { committed: self.committed, seconds: other_s + self.seconds(), depth }
    }

    /// Tokens, less those that the pass's time would bring at this goodput.
    fn value(&mut self, goodput: f64) -> f64 {
        self.committed - goodput * self.seconds()
    }
}

/// Tokens that a further row of a pass of about `rows` rows costs, at this goodput.
pub(super) fn row_cost(rows: usize, goodput: f64, costs: &PartitionCosts, displaced: &Displaced) -> f64 {
    goodput * displaced.price(costs.verify.row_seconds(rows), 1)
}

/// Tokens by which a pass of `rows` rows is shorter for each that leaves it as it begins, if about so many do: nothing
/// where they share a step of the device's with rows that stay. How many leave is known in the mean alone, so half as many
/// and twice as many count too. No row of a prompt takes their place.
pub(super) fn saved_by_leaving(rows: usize, leaving: usize, goodput: f64, verify: &PassCost) -> f64 {
    if rows < 2 {
        return 0.0;
    }
    let pass_s = |rows| verify.seconds(rows, Reach::NONE);
    let leaving = leaving.max(2);
    let (mut saved_s, mut gone) = (0.0, 0);
    for leaving in [leaving / 2, leaving, 2 * leaving].map(|leaving| leaving.min(rows - 1)) {
        saved_s += pass_s(rows) - pass_s(rows - leaving);
        gone += leaving;
    }
    goodput * saved_s / gone as f64
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cost::AttentionCost;
    use crate::source::{DraftSource, ProposedBlock};

    /// How long each of some sequences drafts, where rows of drafts cost so much.
    fn lengths(source: DraftSource, draft_row_us: u64, sequences: usize) -> Vec<usize> {
        lengths_of(source, draft_row_us, sequences, 1)
    }

    /// The same for sequences without draft KV of so many tokens.
    fn lengths_of(source: DraftSource, draft_row_us: u64, sequences: usize, missing: usize) -> Vec<usize> {
        let candidate = Candidate { missing, ..Candidate::fresh() };
        let (candidates, displaced) = (vec![candidate; sequences], Displaced::default());
        let batch = Batch { candidates: &candidates, rows: 64, prefill: Prefill::default(), displaced };
        let costs = PartitionCosts {
            draft: PassCost::linear(10, draft_row_us, AttentionCost::default()),
            verify: PassCost::linear(1000, 20, AttentionCost::default()),
        };
        let mut budget = Budget::new(source.needs());
        let (goodput, _) = budget.goodput(&batch, &costs);
        let mut lengths = Vec::new();
        budget.plan(&batch, goodput, 0.0, &costs, &mut lengths);
        lengths
    }

    #[test]
    fn where_prompts_give_way_a_proposal_takes_the_place_of_their_row() {
        // Steps of 64 rows, 10 ms each, and 100 us a row; 40 of the 64 rows that the pass has are of prompts.
        let us = |rows: usize| 10_000 * rows.div_ceil(64) as u64 + 100 * rows as u64;
        let step = |rows: usize| (rows, Duration::from_micros(us(rows)));
        let verify = PassCost::new(&(1..=256).map(step).collect::<Vec<_>>(), AttentionCost::default());
        let costs = PartitionCosts { draft: PassCost::linear(500, 0, AttentionCost::default()), verify };
        let candidates = vec![Candidate::fresh(); 24];
        let of = |pass_rows, least| {
            let prefill = Prefill { rows: 40, pass_rows, least };
            let displaced = Displaced::default();
            let batch = Batch { candidates: &candidates, rows: 64, prefill, displaced };
            Budget::new(DraftSource::model(64).needs()).goodput(&batch, &costs)
        };
        // A proposal each: 24 rows of prompts give way. A second each would be in another step.
        let (gives_way, depth) = of(64, 0);
        let seconds = 500e-6 + 16.4e-3 - 16.0 * 100e-6;
        assert_eq!(depth, 1);
        assert!((gives_way - 24.0 * 1.7 / seconds).abs() < 0.5, "{gives_way}");
        // Where none give way the first is in that step.
        let (stays, _) = of(256, 0);
        assert!(gives_way > 1.2 * stays, "{gives_way} {stays}");
        assert_eq!(of(64, 40), of(256, 0));
        let prefill = Prefill { rows: 40, pass_rows: 64, least: 8 };
        assert_eq!([24, 34, 60, 900].map(|others| prefill.beside(others)), [40, 30, 8, 8]);
    }

    #[test]
    fn rows_that_leave_are_worth_what_the_pass_is_shorter() {
        // Steps of 16 rows, 10 ms each.
        let step = |rows: usize| (rows, Duration::from_millis(10 * rows.div_ceil(16) as u64));
        let verify = PassCost::new(&(1..=64).map(step).collect::<Vec<_>>(), AttentionCost::default());
        let saved = |rows, leaving| saved_by_leaving(rows, leaving, 100.0, &verify);
        assert_eq!([saved(48, 5), saved(48, 7), saved(40, 3)], [0.0; 3], "a step is a step, however full");
        // One token of time for two, four and eight rows, whichever leave.
        assert!((saved(49, 4) - 3.0 / 14.0).abs() < 1e-9, "{}", saved(49, 4));
        assert!((saved(54, 4) - 1.0 / 14.0).abs() < 1e-9, "{}", saved(54, 4));
        // Where none did so far one, two or four may.
        assert!((saved(49, 0) - 3.0 / 7.0).abs() < 1e-9, "{}", saved(49, 0));
        assert!((saved(2, 9) - 0.0).abs() < 1e-9 && saved(17, 100) > 0.0);
        assert_eq!([saved(1, 0), saved(1, 9), saved(0, 3)], [0.0; 3]);
    }

    #[test]
    fn what_is_ready_costs_its_attention_before_it_pays_for_others() {
        // Behind 6,000 tokens a row's attention takes 0.6 ms, and reading them 1.2 ms.
        let attention = AttentionCost { per_kv_fs: 200_000_000, per_row_fs: 100_000_000 };
        let costs =
            PartitionCosts { draft: PassCost::nothing(), verify: PassCost::linear(1000, 20, attention) };
        let offered = Candidate {
            useful: 15,
            ready: 15,
            expected: 14.5,
            survival: 0.95,
            context: 6000,
            drafts: false,
            ..Candidate::fresh()
        };
        let batch = Batch {
            candidates: &[offered],
            rows: 64,
            prefill: Prefill::default(),
            displaced: Displaced::default(),
        };
        let mut budget = Budget::new(DraftSource::Lookup.needs());
        let (goodput, _) = budget.goodput(&batch, &costs);
        let pass_s = costs.verify.seconds(16, Reach { kv: 6000, rows: 16 * 6000 });
        assert!((goodput - 15.5 / pass_s).abs() < 1e-6 * goodput, "{goodput} {pass_s}");
        // So all of them are worth a pass of that price.
        let mut lengths = Vec::new();
        let acceptances = std::iter::once(std::iter::repeat_n(0.995, 15));
        budget.trim(&batch, acceptances, goodput, &costs, &mut lengths);
        assert_eq!(lengths, [15]);
    }

    #[test]
    fn what_is_computed_once_is_not_held_against_one_round() {
        let masks = DraftSource::one_pass_head(64);
        let of = |missing| lengths_of(masks, 60, 2, missing);
        assert!(of(K_LIMIT)[0] < of(1)[0], "{:?} {:?}", of(K_LIMIT), of(1));
        assert_eq!(of(200), of(1));
    }

    #[test]
    fn a_block_costs_all_of_its_rows_from_the_first_proposal_on() {
        let block = DraftSource::block_head(64, ProposedBlock { rows: 8, proposals: 8 });
        let masks = DraftSource::one_pass_head(64);
        // Eight rows of 300 us for the first proposal do not pay, one does; where they pay at all, the others come with them.
        assert_eq!(lengths(block, 300, 1), [0]);
        assert!((1..8).contains(&lengths(masks, 300, 1)[0]), "{:?}", lengths(masks, 300, 1));
        let (block, masks) = (lengths(block, 60, 2), lengths(masks, 60, 2));
        assert!(block[0] > masks[0] && masks[0] > 0, "{block:?} {masks:?}");
    }
}
