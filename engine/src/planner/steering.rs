//! Steering: what the load asks of a round. How many rows a pass has, what a row displaces, and whether speculation may lose any more time.
//!
//! It sees the rows of prompts that wait, the cost tables, and what each round's speculation took and brought. It decides nothing by the clock:
//! the same rounds bring the same decisions, on a device and in the simulator.

use super::budget::{Displaced, Prefill};
use crate::cost::{PartitionCosts, PassCost, Reach};
use crate::view::SteeringView;

/// Sizes of a pass: up to which filling by what waits, and the smallest whose rows cost at most so many times those of the cheapest size. While
/// little waits, short passes bring the tokens of those that decode sooner; when much does, cheap rows bring everyone's.
const SIZES: [(f64, f64); 3] = [(0.3, 1.2), (0.5, 1.08), (1.0, 1.04)];

/// The last of them is the largest pass where it is at least this part of it: rows are a little cheaper there, and tokens hardly later.
const NEAR: (usize, usize) = (3, 4);

/// The least size that latency targets ask for: its rows cost at most so many times those of the cheapest size.
const TIGHT: f64 = 1.25;

/// Of a pass's size prompts get at least one row in so many.
const LEAST_PREFILL: usize = 4;

/// The displaced share is one where as many rows of prompts wait as so many passes of the best size have, and so many prompts of the mean length that
/// is left. In seconds alone it would be another load on each machine: a pass takes 3 ms on one and 3 s on another. The prompts are there since a few
/// long ones are the rows of many passes by chance.
const WAITING_PASSES: f64 = 10.0;
const WAITING_PROMPTS: f64 = 5.0;
/// Where passes are sized it is one as well, and they have the last size, where the rows of prompts take so many seconds: somebody waits for a first
/// token, and would for half as long again or, where those that decode fill short passes alone, for several times as long. Passes of 512 rows in 50 ms
/// compute 10,000 rows by then.
const WAITING_S: f64 = 1.0;
/// It grows with the prompts that wait for each sequence that decodes too, to one at so many: where passes are short, few rows are many prompts, and
/// who decodes would be alone for long, with rows that nobody else could fill.
const WAITING_EACH: f64 = 2.0;
/// It is never beyond this, unless passes are short of rows ([`BOUND`]): what decodes first ends first, which is better for the mean than that everyone
/// begins.
const MOST_DISPLACED: f64 = 0.9;
/// Rows left of a prompt, in the mean of those that wait, from which on they are long. Shorter ones count as more in the size of a pass, by the square
/// of how much shorter they are: they hold nobody up for long, and then decode beside the others, which makes the rows of all cheaper. A long one
/// among them lowers that: what passes are filled up to, it would fill.
const LONG_PROMPT: f64 = 512.0;
/// Fewer rows count as this many.
const SHORTEST_PROMPT: f64 = 16.0;
/// The displaced share of short prompts that fill passes and do not fit all the same. It is whole where passes have a size that was set: nothing but
/// fewer proposals makes room for them there.
const SHORT_PRICE: f64 = 0.4;

/// The share of a pass that one sequence fewer that decodes is worth where rows of prompts are displaced. While more comes than can be served, what was
/// computed for those that decode has brought nobody an end yet: with fewer of them the mean is lower by as many requests, once; with less capacity it
/// grows with every request that comes, and this many come before it is as high.
const HOLD: f64 = 1.0 / 2000.0;

/// Where a further row of the largest pass would cost less than so much of its mean row, passes are short of rows, not of time: then rows of prompts
/// are displaced wholly.
const BOUND: f64 = 0.7;

/// Blocks of target KV are short where so many times the free ones are fewer than the sequences that run: about so many need one in a round.
const KV_SHORT: usize = 4;

/// Share of the time of rounds that speculation may lose.
const CREDIT: f64 = 0.01;
/// What the account holds at first, and at most, in mean verify passes.
const FIRST_CREDIT: f64 = 8.0;
const MOST_CREDIT: f64 = 32.0;
/// What may be begun for tokens yet to come, in mean verify passes: on a CPU a draft reads a prompt of 2,000 tokens in some 35 of them. And what may
/// have been spent for such without being held against it: what takes longer than was foreseen is not left half done.
const MOST_BEGUN: f64 = 96.0;
const MOST_INVESTED: f64 = 128.0;
/// What it must hold again before speculation goes on, in mean verify passes, after the first time that it was empty; twice as much after each
/// further one, up to the last.
const RESUMES_AT: f64 = 0.25;
const RESUMES_AT_LAST: f64 = 4.0;
/// The weight of a new time in the mean of verify passes.
const NEW_TIME: f64 = 0.05;

/// Sizes that latency targets choose among: a tight one, all of [`SIZES`], and the largest pass.
const CHOICES: usize = SIZES.len() + 2;

/// Rows of a pass beside which somebody decodes, at each of [`SIZES`].
#[derive(Clone, Copy, Debug)]
struct Sizes {
    by_filling: [usize; SIZES.len()],
    tight: usize,
}

impl Sizes {
    /// From profiled costs of the whole device: what passes teach is of the rows that they have, and sizes are compared.
    fn of(partitions: &[PartitionCosts], most: usize) -> Sizes {
        let size =
            |slack| partitions.first().map_or(most, |costs| costs.verify.best_size(most, slack)).max(1);
        let mut by_filling = SIZES.map(|(_, slack)| size(slack));
        let last = &mut by_filling[SIZES.len() - 1];
        if *last * NEAR.1 >= most * NEAR.0 {
            *last = most;
        }
        Sizes { by_filling, tight: size(TIGHT) }
    }

    /// The size where what waits fills passes so far.
    fn at(&self, filling: f64) -> usize {
        self.by_filling[Sizes::place(filling)]
    }

    /// Its place among them.
    fn place(filling: f64) -> usize {
        SIZES.iter().position(|(most, _)| filling <= *most).unwrap_or(SIZES.len() - 1)
    }
}

/// Rows of prompts as a round begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    /// Rows of prompts that were admitted. What waits for KV is not among them: it comes no sooner if passes are shorter.
    pub(crate) prompt_rows: usize,
    /// Those prompts.
    pub(crate) prompts: usize,
    /// Sequences that decode.
    pub(crate) sequences: usize,
    /// Rows of prompts that a pass takes at most, if that was set.
    pub(crate) most: Option<usize>,
    /// Of the prompt whose first token is due next, and can be there by then: its rows, and the seconds until then; infinite if there is none.
    pub(crate) due: (usize, f64),
    /// Targets that passes of each size would meet.
    pub(crate) on_target: OnTarget,
}

/// How many latency targets would be met with passes of each of some sizes, the smallest first.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OnTarget {
    /// Rows of a pass, and rows of prompts among them.
    sizes: [(usize, usize); CHOICES],
    /// Seconds of a round of such passes.
    seconds: [f64; CHOICES],
    met: [usize; CHOICES],
    /// Sequences that decode and have a target.
    held: usize,
    /// Rows of prompts that come first.
    queued: usize,
}

impl OnTarget {
    /// A sequence that decodes is on target if a round takes no longer than this.
    pub(crate) fn decodes(&mut self, within_s: f64) {
        self.held += 1;
        for (met, seconds) in self.met.iter_mut().zip(&self.seconds) {
            *met += usize::from(*seconds <= within_s);
        }
    }

    /// A prompt of so many rows is on target if it is computed within so many seconds. Those that are due sooner come first.
    pub(crate) fn prompt(&mut self, rows: usize, within_s: f64) {
        self.queued += rows;
        for ((met, seconds), (_, prompts)) in self.met.iter_mut().zip(&self.seconds).zip(&self.sizes) {
            let passes = self.queued.div_ceil((*prompts).max(1));
            *met += usize::from(passes as f64 * seconds <= within_s);
        }
    }

    /// The size with which most targets are met; of several the nearest to `place`, smaller ones first.
    fn best(&self, place: usize) -> usize {
        let most = self.met.iter().copied().max().unwrap_or(0);
        let best = |&at: &usize| self.met[at] == most;
        (0..=place).rev().find(best).or_else(|| (place..CHOICES).find(best)).unwrap_or(place)
    }
}

/// What the speculation of one round took and brought.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Speculated {
    /// Rows of the verify pass.
    pub(crate) rows: usize,
    /// Proposals among them.
    pub(crate) proposals: usize,
    /// Rows of prompts that gave way to those.
    pub(crate) gave_way: usize,
    /// Positions that the proposals attend to, summed.
    pub(crate) proposed_context: usize,
    /// Sequences that got a token.
    pub(crate) sequences: usize,
    /// What their attention reads.
    pub(crate) reach: Reach,
    /// Tokens that sequences took, a stop token among them; at least one each.
    pub(crate) committed: usize,
    /// Seconds that the pass took.
    pub(crate) pass_s: f64,
    /// Seconds that it took longer since the draft lane worked beside it.
    pub(crate) longer_s: f64,
    /// Seconds of a round beyond its passes: without drafts, and with some.
    pub(crate) between_s: [f64; 2],
}

/// Decides what the load asks of each round.
#[derive(Debug)]
pub(super) struct Steering {
    max_pass_rows: usize,
    sizes: Sizes,
    sized: bool,
    /// A first token would come too late if passes were not filled.
    hurried: bool,
    /// Rows of a pass that latency targets ask for.
    targeted: Option<usize>,
    /// How far what waits fills passes, 0 to 1.
    filling: f64,
    /// How far rows wait, 0 to 1, whatever the length of their prompts.
    waiting: f64,
    displaced: Displaced,
    account: Account,
    /// Seconds of draft plans that a round waited for, since the last verify pass.
    drafted_s: f64,
    /// Those of them that are settled later.
    deferred_s: f64,
    /// All that are yet to be settled.
    invested_s: f64,
    /// Those that are to be settled with the next pass.
    returned_s: f64,
    /// Seconds of draft plans that a round waits for, in the mean.
    draft_s: f64,
    /// Seconds of the last round beyond them and the rows of its pass: attention of those that decode, and what lies between passes.
    beside_s: f64,
    /// Sequences that decoded as the last round began.
    sequences: usize,
    /// Blocks of target KV are short: proposals get none.
    pub(super) kv_short: bool,
}

impl Steering {
    pub(super) fn new(partitions: &[PartitionCosts], max_pass_rows: usize) -> Steering {
        Steering {
            max_pass_rows,
            sizes: Sizes::of(partitions, max_pass_rows),
            sized: true,
            hurried: false,
            targeted: None,
            draft_s: 0.0,
            beside_s: 0.0,
            sequences: 0,
            kv_short: false,
            filling: 0.0,
            waiting: 0.0,
            displaced: Displaced::default(),
            account: Account::default(),
            drafted_s: 0.0,
            deferred_s: 0.0,
            invested_s: 0.0,
            returned_s: 0.0,
        }
    }

    /// Takes over what passes cost, measured anew.
    pub(super) fn profiled(&mut self, partitions: &[PartitionCosts]) {
        self.sizes = Sizes::of(partitions, self.max_pass_rows);
    }

    /// Another policy decides, which may size passes or not: it begins with credit.
    pub(super) fn tuned(&mut self, sized: bool) {
        self.sized = sized;
        self.account = Account::default();
        (self.displaced, self.filling, self.waiting) = (Displaced::default(), 0.0, 0.0);
        (self.drafted_s, self.deferred_s, self.returned_s) = (0.0, 0.0, 0.0);
        (self.draft_s, self.beside_s) = (0.0, 0.0);
    }

    /// Looks at what waits as a round begins. Without costs nothing is known of what it displaces.
    pub(super) fn look(&mut self, waiting: &Waiting, costs: Option<&PartitionCosts>) -> Displaced {
        (self.displaced, self.filling, self.waiting) = (Displaced::default(), 0.0, 0.0);
        (self.hurried, self.targeted) = (false, None);
        self.sequences = waiting.sequences;
        if let Some(PartitionCosts { verify, .. }) = costs {
            let largest = self.sizes.at(1.0);
            let row_s = verify.seconds(largest, Reach::NONE) / largest as f64;
            let seconds = |rows: f64| if self.sized { (rows * row_s / WAITING_S).min(1.0) } else { 0.0 };
            // Whatever share stood before: what fits decides on the share, and the share on the size.
            self.filling = seconds(waiting.prompt_rows as f64);
            let least_size = self.sizes.at(self.filling);
            let (size, least) =
                if self.sized { (least_size, least_size / LEAST_PREFILL) } else { (self.max_pass_rows, 0) };
            let fits = size.saturating_sub(waiting.sequences);
            let (due_rows, due_s) = waiting.due;
            let passes = due_rows.div_ceil(fits.max(least).max(1));
            self.hurried = self.sized && passes as f64 * self.round_s(size, verify) > due_s;
            if waiting.most.is_none_or(|most| fits < most) {
                let beyond = waiting.prompt_rows.saturating_sub(fits.max(least)) as f64;
                let (each, short) = self.prompts_beyond(beyond, waiting.prompt_rows, waiting.prompts);
                let length = waiting.prompt_rows as f64 / waiting.prompts.max(1) as f64;
                let rows_at_one = WAITING_PASSES * largest as f64 + WAITING_PROMPTS * length;
                // Else prompts get what they get, whatever is proposed.
                let displaces = fits > least;
                let waits = (beyond / rows_at_one).max(each).min(1.0);
                self.waiting = if displaces { waits } else { 0.0 };
                let late = seconds(beyond);
                self.filling = self.filling.max(self.waiting).max(short);
                if displaces {
                    let bound = verify.row_seconds(largest) < BOUND * row_s;
                    let most = if bound { 1.0 } else { MOST_DISPLACED };
                    let hold_s = HOLD * verify.seconds(fits + waiting.sequences, Reach::NONE);
                    let fits = self.pass_rows().saturating_sub(waiting.sequences);
                    let left = waiting.prompt_rows.saturating_sub(fits) as f64 / beyond.max(1.0);
                    let price = if self.sized { SHORT_PRICE } else { 1.0 };
                    let share = self.waiting.max(late).max(price * short * left.min(1.0)).min(most);
                    self.displaced = Displaced { row_s, share, hold_s };
                }
            }
            let on_target = &waiting.on_target;
            if self.sized && on_target.held > 0 {
                let place = 1 + Sizes::place(self.filling);
                self.targeted = Some(on_target.sizes[on_target.best(place)].0);
                self.hurried = false;
            }
        }
        self.displaced
    }

    /// Looks once more as a pass is about to leave, which has so many rows of `others`: proposals are among them, and prompts came since. Short ones
    /// that do not fit fill it.
    pub(super) fn look_again(&mut self, prompt_rows: usize, prompts: usize, others: usize) {
        if self.sized && self.targeted.is_none() {
            let smallest = self.smallest_size();
            let fits = smallest.saturating_sub(others).max(smallest / LEAST_PREFILL);
            let beyond = prompt_rows.saturating_sub(fits) as f64;
            self.filling = self.filling.max(self.prompts_beyond(beyond, prompt_rows, prompts).1);
        }
    }

    /// Of prompts with so many rows, of which so many do not fit: how far they wait for each sequence that decodes, and how far they fill passes as
    /// they are short, 0 to 1.
    fn prompts_beyond(&self, beyond: f64, prompt_rows: usize, prompts: usize) -> (f64, f64) {
        let length = prompt_rows as f64 / prompts.max(1) as f64;
        let prompts = beyond / prompt_rows.max(1) as f64 * prompts as f64;
        let each = prompts / self.sequences.max(1) as f64 / WAITING_EACH;
        let shorter = LONG_PROMPT / length.clamp(SHORTEST_PROMPT, LONG_PROMPT);
        // One alone waits for its second pass, short or not.
        let several = (1.0 - 1.0 / prompts).max(0.0);
        (each, (several * each * shorter.powi(2)).min(1.0))
    }

    /// Looks at blocks of target KV. Proposals that would need one more are not worth their drafting where the tokens to come need all that are
    /// left: they find none, or are cut before anybody is preempted.
    pub(super) fn look_at_kv(&mut self, free: usize, running: usize) {
        self.kv_short = KV_SHORT * free < running;
    }

    /// To count the targets that passes of each size would meet.
    pub(super) fn on_target(&self, costs: Option<&PartitionCosts>) -> OnTarget {
        let Some(PartitionCosts { verify, .. }) = costs.filter(|_| self.sized) else {
            return OnTarget::default();
        };
        let [small, middle, large] = self.sizes.by_filling;
        let sizes = [self.sizes.tight, small, middle, large, self.max_pass_rows];
        OnTarget {
            sizes: sizes.map(|size| (size, size.saturating_sub(self.sequences).max(size / LEAST_PREFILL))),
            seconds: sizes.map(|size| self.round_s(size, verify)),
            ..OnTarget::default()
        }
    }

    /// How far rows of prompts wait, 0 to 1, whatever the length of their prompts.
    pub(super) fn waiting(&self) -> f64 {
        self.waiting
    }

    /// What a row of this round displaces.
    pub(super) fn displaced(&self) -> Displaced {
        self.displaced
    }

    /// Rows of prompts that a pass takes at most beside so many others, if somebody decodes: what the best size leaves, and some always.
    pub(super) fn prefill_rows(&self, others: usize) -> usize {
        self.prefill(usize::MAX).beside(others)
    }

    /// So many rows of prompts, in passes beside which somebody decodes.
    pub(super) fn prefill(&self, rows: usize) -> Prefill {
        let pass_rows = self.pass_rows();
        let least = if self.sized && !self.hurried { (pass_rows / LEAST_PREFILL).max(1) } else { 0 };
        Prefill { rows, pass_rows, least }
    }

    /// Seconds of a round whose verify pass has so many rows, beside those that decode now.
    fn round_s(&self, rows: usize, verify: &PassCost) -> f64 {
        let beside_s = if self.sequences > 0 { self.draft_s + self.beside_s } else { 0.0 };
        beside_s + verify.seconds(rows, Reach::NONE)
    }

    /// Seconds until so many rows of prompts are computed beside those that decode, without what they look at themselves.
    pub(super) fn prefill_s(&self, rows: usize, costs: &PartitionCosts) -> f64 {
        let others = self.sequences;
        let fits = self.prefill_rows(others).min(self.max_pass_rows.saturating_sub(others)).max(1);
        rows.div_ceil(fits) as f64 * self.round_s(others + rows.min(fits), &costs.verify)
    }

    /// Seconds until so many rows of a prompt are computed, at most so many in a pass, if passes are filled beside those that decode.
    pub(super) fn least_prefill_s(&self, rows: usize, most: Option<usize>, costs: &PartitionCosts) -> f64 {
        let others = self.sequences;
        let fits = self.max_pass_rows.saturating_sub(others).min(most.unwrap_or(usize::MAX)).max(1);
        let seconds = |rows| self.round_s(others + rows, &costs.verify);
        let (full, rest) = (rows / fits, rows % fits);
        full as f64 * seconds(fits) + if rest > 0 { seconds(rest) } else { 0.0 }
    }

    /// Rows of a pass that prompts fill while few wait.
    pub(super) fn smallest_size(&self) -> usize {
        self.sizes.at(0.0)
    }

    /// Rows of a pass beside which somebody decodes.
    fn pass_rows(&self) -> usize {
        match self.targeted {
            _ if !self.sized || self.hurried => self.max_pass_rows,
            Some(rows) => rows,
            None => self.sizes.at(self.filling),
        }
    }

    /// May anything be proposed in this round?
    pub(super) fn speculates(&self) -> bool {
        !self.account.suspended
    }

    /// Can a probe, or a draft plan more, be paid that makes a round so many seconds longer, beside what it has waited for and is held against it?
    pub(super) fn affords(&self, seconds: f64) -> bool {
        seconds + self.drafted_s - self.deferred_s <= 0.5 * self.account.balance_s.max(0.0)
    }

    /// A round waited for a draft plan.
    pub(super) fn drafted(&mut self, seconds: f64) {
        self.drafted_s += seconds;
    }

    /// So many seconds of what was drafted since the last pass are for tokens yet to come. Returns those of them for which the account waits.
    pub(super) fn invests(&mut self, seconds: f64) -> f64 {
        let most_s = MOST_INVESTED * self.account.pass_s;
        let open_s = (self.drafted_s - self.deferred_s).min(most_s - self.invested_s);
        let granted = seconds.min(open_s).max(0.0);
        self.invested_s += granted;
        self.deferred_s += granted;
        granted
    }

    /// May so many seconds be begun that are for tokens yet to come? Where there was no pass yet, those to come take `round_s`.
    pub(super) fn may_begin(&self, seconds: f64, round_s: f64) -> bool {
        let pass_s = if self.account.pass_s > 0.0 { self.account.pass_s } else { round_s };
        // One may begin beside others, as long as those have not begun as much together. What the account holds always may.
        let most_s = MOST_BEGUN * pass_s;
        self.affords(seconds) || seconds.max(self.invested_s) <= most_s
    }

    /// So many of them are to be settled.
    pub(super) fn returns(&mut self, seconds: f64) {
        self.invested_s -= seconds;
        self.returned_s += seconds;
    }

    /// A verify pass ended: what speculation took beyond plain decoding is held against what it brought. Returns the seconds of the round's
    /// passes, without what prompts took of them.
    pub(super) fn verified(&mut self, round: &Speculated, costs: &PartitionCosts) -> f64 {
        let drafted_s = std::mem::take(&mut self.drafted_s);
        self.draft_s += NEW_TIME * (drafted_s - self.draft_s);
        let seconds = |rows| costs.verify.seconds(rows, Reach::NONE);
        let others = round.rows - round.proposals.min(round.rows);
        let gave_way = round.gave_way.min(round.proposals);
        let prefill =
            Prefill { rows: others.saturating_sub(round.sequences) + gave_way, ..Prefill::default() };
        let displaced_s = gave_way as f64 * prefill.row_s(round.sequences, &costs.verify);
        let proposals_s = seconds(round.rows) - seconds(others + gave_way) + displaced_s;
        let rows_s = self.displaced.price(proposals_s, round.proposals);
        let attention_s = costs.verify.attention_seconds(Reach { kv: 0, rows: round.proposed_context });
        let [plain_between_s, drafted_between_s] = round.between_s;
        let between_s = if drafted_s > 0.0 { drafted_between_s - plain_between_s } else { 0.0 };
        let settled_s =
            drafted_s - std::mem::take(&mut self.deferred_s) + std::mem::take(&mut self.returned_s);
        let took_s = settled_s + round.longer_s + rows_s + attention_s + between_s;
        // Without it each token more had taken a share of a pass of its own.
        let read_s = costs.verify.attention_seconds(round.reach);
        let alone_s = seconds(round.sequences);
        let more = round.committed.saturating_sub(round.sequences) as f64;
        let plain_s = self.displaced.price(alone_s, round.sequences)
            + self.displaced.held(round.sequences)
            + read_s
            + plain_between_s;
        let each_s = plain_s / round.sequences.max(1) as f64;
        self.beside_s = read_s + plain_between_s + between_s;
        self.account.settle(drafted_s + round.pass_s, alone_s + read_s, took_s - more * each_s);
        plain_s + took_s - plain_between_s - between_s
    }

    /// What it decided last, and whether the policy goes by it.
    pub(super) fn view(&self, decides: bool) -> SteeringView {
        SteeringView {
            decides,
            pass_rows: self.pass_rows(),
            displaced_share: self.displaced.share,
            credit_s: self.account.balance_s,
            suspended: self.account.suspended,
            kv_short: self.kv_short,
        }
    }
}

/// What speculation may lose: credit grows with the time of rounds and with what speculation gains, and pays for what it loses. While the account
/// is empty nothing is proposed, so that the loss stays below the credit, whatever the draft does.
#[derive(Debug, Default)]
struct Account {
    balance_s: f64,
    /// Of verify passes without proposals and prompts, in the mean; 0 before the first.
    pass_s: f64,
    suspended: bool,
    /// Times that it was empty since it was full.
    times: u32,
}

impl Account {
    /// Settles a round of so many seconds, whose verify pass without proposals and prompts had taken so many, 0 if nobody decoded, and whose
    /// speculation lost so many, or gained them if below 0.
    fn settle(&mut self, round_s: f64, pass_s: f64, lost_s: f64) {
        if self.pass_s == 0.0 {
            // Prompts alone up to now: there is no mean pass to hold credit in.
            if pass_s == 0.0 {
                return;
            }
            (self.pass_s, self.balance_s) = (pass_s, FIRST_CREDIT * pass_s);
        }
        if pass_s > 0.0 {
            self.pass_s += NEW_TIME * (pass_s - self.pass_s);
        }
        let most_s = MOST_CREDIT * self.pass_s;
        // What is invested may be lost all at once, behind credit that was spent before.
        let least_s = -(MOST_CREDIT + MOST_INVESTED) * self.pass_s;
        self.balance_s = (self.balance_s + CREDIT * round_s - lost_s).clamp(least_s, most_s);
        if self.balance_s >= most_s {
            self.times = 0;
        }
        if self.suspended {
            let resumes_at = (RESUMES_AT * 2f64.powi(self.times as i32 - 1)).min(RESUMES_AT_LAST);
            self.suspended = self.balance_s < resumes_at * self.pass_s;
        } else if self.balance_s <= 0.0 {
            (self.suspended, self.times) = (true, (self.times + 1).min(16));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cost::{AttentionCost, PassCost};

    fn costs() -> PartitionCosts {
        let cost = |pass_us, row_us| PassCost::linear(pass_us, row_us, AttentionCost::default());
        PartitionCosts { draft: cost(1000, 0), verify: cost(20_000, 100) }
    }

    /// So many rows of so many prompts, beside sequences that decode; nothing is due.
    fn waiting(prompt_rows: usize, prompts: usize, sequences: usize) -> Waiting {
        let on_target = OnTarget::default();
        Waiting { prompt_rows, prompts, sequences, most: None, due: (0, f64::INFINITY), on_target }
    }

    #[test]
    fn what_another_policy_drafted_is_not_charged() {
        let costs = [costs()];
        let mut steering = Steering::new(&costs, 512);
        steering.drafted(60.0);
        steering.returns(60.0);
        steering.tuned(true);
        round(&mut steering, 4, 2);
        assert!(steering.speculates() && steering.view(true).credit_s > 0.0, "{:?}", steering.view(true));
    }

    #[test]
    fn targets_count_drafts_and_the_attention_of_those_that_decode() {
        let attention = AttentionCost { per_kv_fs: 1_000_000_000, per_row_fs: 1_000_000_000 };
        let costs = PartitionCosts {
            draft: PassCost::linear(1000, 0, AttentionCost::default()),
            verify: PassCost::linear(10_000, 0, attention),
        };
        let mut steering = Steering::new(std::slice::from_ref(&costs), 512);
        steering.tuned(true);
        let waiting = waiting(600, 1, 4);
        // Whether each of these would be in time: who decodes, by rounds; a prompt that takes two passes.
        let in_time = |steering: &mut Steering, within_s| {
            steering.look(&waiting, Some(&costs));
            let mut on_target = steering.on_target(Some(&costs));
            on_target.decodes(within_s);
            let fills = steering.least_prefill_s(600, None, &costs) <= 2.0 * within_s;
            (on_target.met.iter().sum::<usize>() > 0, fills)
        };
        assert_eq!(
            [0.009, 0.011].map(|within_s| in_time(&mut steering, within_s)),
            [(false, false), (true, true)]
        );
        // Sequences of 5,000 tokens in all: their attention takes as long as the rows.
        let reach = Reach { kv: 5000, rows: 5000 };
        let round =
            Speculated { rows: 4, sequences: 4, committed: 4, reach, pass_s: 0.02, ..Speculated::default() };
        steering.verified(&round, &costs);
        assert_eq!(
            [0.019, 0.021].map(|within_s| in_time(&mut steering, within_s)),
            [(false, false), (true, true)]
        );
        for _ in 0..200 {
            steering.drafted(0.01);
            steering.verified(&round, &costs);
        }
        assert_eq!(
            [0.029, 0.031].map(|within_s| in_time(&mut steering, within_s)),
            [(false, false), (true, true)]
        );
        // Nobody decodes any more.
        steering.look(&Waiting { sequences: 0, ..waiting }, Some(&costs));
        assert!(steering.least_prefill_s(600, None, &costs) < 0.021);
    }

    #[test]
    fn prompts_before_the_first_token_leave_the_account_as_it_is() {
        let mut account = Account::default();
        for _ in 0..3 {
            account.settle(1.0, 0.0, 0.0);
            assert_eq!((account.suspended, account.times), (false, 0));
        }
        account.settle(1.0, 0.1, 0.0);
        assert!(account.balance_s > 0.0, "{account:?}");
    }

    #[test]
    fn passes_are_filled_where_a_first_token_would_come_too_late() {
        let costs = costs();
        let mut steering = Steering::new(std::slice::from_ref(&costs), 2048);
        let mut rows = |due_s| {
            let waiting = Waiting {
                prompt_rows: 1000,
                prompts: 1,
                sequences: 10,
                most: None,
                due: (1000, due_s),
                on_target: OnTarget::default(),
            };
            steering.look(&waiting, Some(&costs));
            (steering.view(true).pass_rows, steering.prefill_rows(10))
        };
        let (size, prefill) = rows(f64::INFINITY);
        assert!(size < 2048 && prefill == size - 10, "{size} {prefill}");
        // 1,000 rows take 0.12 s alone.
        assert_eq!(rows(0.1205), (2048, 2038));
        assert_eq!(rows(10.0), (size, prefill));
    }

    #[test]
    fn proposals_are_charged_the_rows_of_prompts_that_gave_way_to_them() {
        // Steps of 16 rows, 1 ms each.
        let step = |rows: usize| (rows, Duration::from_millis(rows.div_ceil(16) as u64));
        let verify = PassCost::new(&(1..=128).map(step).collect::<Vec<_>>(), AttentionCost::default());
        let costs = PartitionCosts { verify, ..costs() };
        let seconds = |gave_way| {
            let (rows, proposals, sequences) = (64, 8, 8);
            let round =
                Speculated { rows, proposals, gave_way, sequences, committed: 12, ..Speculated::default() };
            Steering::new(std::slice::from_ref(&costs), 512).verified(&round, &costs)
        };
        // The pass is as long as without them; 56 rows of prompts would have taken 3 ms of it.
        assert!((seconds(8) - seconds(0) - 8.0 * 3e-3 / 56.0).abs() < 1e-9, "{} {}", seconds(8), seconds(0));
        // None gave way beyond what was proposed.
        assert!((seconds(80) - seconds(8)).abs() < 1e-12);
    }

    #[test]
    fn many_prompts_that_wait_displace_though_their_rows_are_few() {
        let costs = costs();
        let mut steering = Steering::new(std::slice::from_ref(&costs), 512);
        let mut share = |prompts, sequences| {
            let waiting = waiting(900, prompts, sequences);
            steering.look(&waiting, Some(&costs)).share
        };
        // Some 420 of 900 rows do not fit, less than a pass.
        let (one, many) = (share(1, 32), share(32, 8));
        assert!(one < 0.2 && many > 0.8, "{one} {many}");
        // Of those beside many that decode, it is as they are short.
        let (one, many) = (share(1, 64), share(32, 64));
        assert!(one < SHORT_PRICE && (SHORT_PRICE..0.8).contains(&many), "{one} {many}");
    }

    #[test]
    fn prompts_that_take_less_than_a_second_wait_as_far_on_each_machine_and_no_further_for_being_long() {
        let share = |micros: u64, prompts: usize, rows: usize| {
            let verify = PassCost::linear(24 * micros, micros, AttentionCost::default());
            let costs = PartitionCosts { verify, ..costs() };
            let mut steering = Steering::new(std::slice::from_ref(&costs), 512);
            let waiting = waiting(prompts * rows, prompts, 32);
            steering.look(&waiting, Some(&costs)).share
        };
        let slow = share(50, 10, 400);
        assert!((0.3..0.8).contains(&slow), "{slow}");
        assert_eq!(share(5, 10, 400), slow);
        assert!(share(5, 40, 400) >= MOST_DISPLACED && share(5, 2, 2000) < slow);
        // One alone is never many.
        assert!(share(1, 1, 100_000) < 1.0 / WAITING_PROMPTS);
    }

    #[test]
    fn a_prompt_that_takes_seconds_fills_passes_also_where_sequences_fill_short_ones_alone() {
        // Rows are nearly as cheap in passes of few.
        let look = |row_us, rows, sequences| {
            let point = |rows: usize| (rows, Duration::from_micros(row_us * (3 + rows as u64)));
            let verify = PassCost::new(&(1..=512).map(point).collect::<Vec<_>>(), AttentionCost::default());
            let costs = PartitionCosts { verify, ..costs() };
            let mut steering = Steering::new(std::slice::from_ref(&costs), 512);
            steering.look(&waiting(rows, 1, sequences), Some(&costs));
            (steering.view(true).pass_rows, steering.prefill_rows(sequences), steering.displaced().share)
        };
        let (smallest, _, share) = look(50, 1500, 4);
        assert!(smallest < 20 && share < 0.2, "{smallest} {share}");
        for sequences in [4, 16] {
            let (rows, prompts, share) = look(5000, 1500, sequences);
            assert!(rows > 64 && prompts == rows - sequences && share >= MOST_DISPLACED, "{rows} {share}");
            // What takes no longer than a few passes is computed in short ones.
            assert_eq!(look(5000, 40, sequences).0, smallest);
        }
    }

    #[test]
    fn a_bound_on_rows_of_prompts_makes_no_pass_smaller_where_more_wait() {
        let point = |rows: usize| (rows, Duration::from_millis(5 * (3 + rows as u64)));
        let verify = PassCost::new(&(1..=512).map(point).collect::<Vec<_>>(), AttentionCost::default());
        let costs = PartitionCosts { verify, ..costs() };
        let mut steering = Steering::new(std::slice::from_ref(&costs), 512);
        let mut rows = |most| {
            steering.look(&Waiting { most, ..waiting(15_000, 10, 4) }, Some(&costs));
            steering.view(true).pass_rows
        };
        let whole = rows(None);
        assert!(whole > 64, "{whole}");
        assert_eq!(rows(Some(40)), whole);
    }

    #[test]
    fn a_few_short_prompts_fill_passes_and_long_ones_or_one_alone_do_not() {
        let costs = costs();
        let mut steering = Steering::new(std::slice::from_ref(&costs), 8192);
        // Rows of a pass, what a row displaces, and how far rows wait for all that is short.
        let mut look = |prompts: usize, rows: usize, sequences| {
            let waiting = waiting(prompts * rows, prompts, sequences);
            steering.look(&waiting, Some(&costs));
            (steering.view(true).pass_rows, steering.displaced().share, steering.waiting())
        };
        let (smallest, ..) = look(0, 0, 64);
        let fits = smallest - 64;
        let prompts = fits / 32 + 8;
        let (filled, share, waits) = look(prompts, 32, 64);
        assert!(filled > smallest && waits < 0.2, "{filled} {smallest} {waits}");
        // They all fit then: nothing raises the price but how far rows wait; a long one of as many raises it less.
        let (long, as_long, long_waits) = look(1, prompts * 32, 64);
        assert!(long == smallest && long_waits < waits, "{long} {waits} {long_waits}");
        assert!((share - waits).abs() < 1e-9 && as_long < share, "{share} {as_long}");
        assert_eq!(look(1, fits + 20, 64).0, smallest);
        // Also where sequences leave prompts no more than they always get.
        assert!(look(fits, 16, smallest).0 > smallest && look(2, 1000, smallest).0 == smallest);
    }

    #[test]
    fn short_prompts_that_came_since_fill_the_pass_that_leaves() {
        let costs = costs();
        let mut steering = Steering::new(std::slice::from_ref(&costs), 8192);
        let nothing = waiting(0, 0, 64);
        let mut filled = |prompts: usize, rows: usize, sized| {
            steering.tuned(sized);
            steering.look(&nothing, Some(&costs));
            let smallest = steering.view(true).pass_rows;
            // Proposals leave prompts the quarter that they always get.
            steering.look_again(prompts * rows, prompts, smallest);
            let view = steering.view(true);
            assert_eq!(view.displaced_share, 0.0);
            view.pass_rows > smallest
        };
        let quarter = steering_quarter();
        assert!(filled(quarter / 32 + 8, 32, true));
        // They fit, or it is one alone, or the size was set.
        assert!(!filled(quarter / 32, 32, true) && !filled(1, quarter + 20, true));
        assert!(!filled(quarter / 32 + 8, 32, false));
    }

    /// Rows that prompts always get of the smallest pass.
    fn steering_quarter() -> usize {
        let costs = costs();
        Steering::new(std::slice::from_ref(&costs), 8192).smallest_size() / LEAST_PREFILL
    }

    #[test]
    fn in_passes_whose_size_was_set_short_prompts_displace_more_than_a_long_one() {
        let costs = costs();
        let mut steering = Steering::new(std::slice::from_ref(&costs), 512);
        steering.tuned(false);
        let mut share = |prompts: usize, rows: usize| {
            let waiting = waiting(prompts * rows, prompts, 64);
            steering.look(&waiting, Some(&costs)).share
        };
        let (long, short) = (share(1, 640), share(20, 32));
        assert!(long < SHORT_PRICE && short > 2.0 * long, "{long} {short}");
        // All fit.
        assert_eq!(share(10, 32), 0.0);
    }

    #[test]
    fn blocks_are_short_where_the_tokens_of_a_round_need_what_is_free() {
        let mut steering = Steering::new(&[costs()], 512);
        let mut short = |free, running| {
            steering.look_at_kv(free, running);
            steering.view(true).kv_short
        };
        assert!(short(0, 1) && short(4, 17) && short(0, 64));
        assert!(!short(0, 0) && !short(4, 16) && !short(1000, 64));
    }

    #[test]
    fn passes_are_as_small_as_targets_of_those_that_decode_ask_for() {
        // Sizes are chosen among the points of the table.
        let time = |i: u32| (32 * i as usize, Duration::from_micros(2000 + 3200 * u64::from(i)));
        let verify = PassCost::new(&(1..=64).map(time).collect::<Vec<_>>(), AttentionCost::default());
        let costs = PartitionCosts { verify, ..costs() };
        let mut steering = Steering::new(std::slice::from_ref(&costs), 2048);
        let mut rows = |within_s: Option<f64>, due_s: f64| {
            let mut on_target = steering.on_target(Some(&costs));
            if let Some(within_s) = within_s {
                (0..4).for_each(|_| on_target.decodes(within_s));
            }
            (0..3).for_each(|_| on_target.prompt(1000, due_s));
            let waiting = Waiting {
                prompt_rows: 9000,
                prompts: 3,
                sequences: 4,
                most: None,
                due: (1000, due_s),
                on_target,
            };
            steering.look(&waiting, Some(&costs));
            steering.view(true).pass_rows
        };
        let untargeted = rows(None, 100.0);
        let tight = costs.verify.best_size(2048, TIGHT);
        assert!(tight < untargeted, "{tight} {untargeted}");
        let tight_s = costs.verify.seconds(tight, Reach::NONE);
        assert_eq!(rows(Some(1.1 * tight_s), 100.0), tight);
        // Nothing is left to save, or all is well: as without targets.
        assert_eq!(rows(Some(0.5 * tight_s), 100.0), untargeted);
        assert_eq!(rows(Some(10.0), 100.0), untargeted);
        // Four decode on target in short passes alone, and no pass computes three prompts in time.
        assert_eq!(rows(Some(1.1 * tight_s), 0.05), tight);
    }

    /// One sequence, `proposals` of which so many were accepted, each drafted in a step of a millisecond.
    fn round(steering: &mut Steering, proposals: usize, accepted: usize) -> f64 {
        let rows = 1 + proposals;
        let pass_s = costs().verify.seconds(rows, Reach::NONE);
        steering.drafted(1e-3 * proposals as f64);
        let round = Speculated {
            rows,
            proposals,
            sequences: 1,
            committed: 1 + accepted,
            pass_s,
            ..Speculated::default()
        };
        steering.verified(&round, &costs());
        pass_s + 1e-3 * proposals as f64
    }

    #[test]
    fn what_speculation_loses_is_bounded_whatever_the_draft_does() {
        let costs = [costs()];
        let mut steering = Steering::new(&costs, 512);
        let (mut time_s, mut lost_s) = (0.0, 0.0);
        for _ in 0..10_000 {
            let proposals = if steering.speculates() { 8 } else { 0 };
            time_s += round(&mut steering, proposals, 0);
            lost_s += 1.1e-3 * f64::from(proposals as u32);
        }
        assert!(
            lost_s > 0.5 * CREDIT * time_s && lost_s < 1.2 * CREDIT * time_s + 0.7,
            "{lost_s} of {time_s}"
        );
    }

    #[test]
    fn what_is_invested_in_vain_is_bounded_too() {
        let costs = [costs()];
        let mut steering = Steering::new(&costs, 512);
        let (mut time_s, mut lost_s, mut times) = (0.0, 0.0, 0);
        for _ in 0..100_000 {
            if steering.speculates() {
                // As much as may be, and nobody stays until anything comes of it.
                steering.drafted(4.0);
                let granted = steering.invests(4.0);
                assert!(granted < 4.0);
                steering.returns(granted);
                (time_s, lost_s, times) = (time_s + 4.0, lost_s + 4.0, times + 1);
            }
            time_s += round(&mut steering, 0, 0);
        }
        assert!(times > 5 && lost_s < 1.2 * CREDIT * time_s + 4.0, "{lost_s} of {time_s}, {times} times");
    }

    #[test]
    fn what_takes_too_long_is_not_begun_and_what_the_account_holds_always_may() {
        let costs = [costs()];
        let mut steering = Steering::new(&costs, 512);
        let round_s = 0.02;
        assert!(steering.may_begin(95.0 * round_s, round_s) && !steering.may_begin(97.0 * round_s, round_s));
        (0..3000).for_each(|_| {
            round(&mut steering, 0, 0);
        });
        let pass_s = steering.account.pass_s;
        // More than may be begun is under way: nobody joins, but who takes no time.
        steering.drafted(100.0 * pass_s);
        assert!(steering.invests(100.0 * pass_s) > 99.0 * pass_s);
        assert!(!steering.may_begin(50.0 * pass_s, round_s) && steering.may_begin(0.0, round_s));
    }

    #[test]
    fn what_is_for_tokens_to_come_is_settled_with_them_and_not_without_bound() {
        let costs = [costs()];
        let mut steering = Steering::new(&costs, 512);
        let credit_s = |steering: &Steering| steering.view(true).credit_s;
        let settle = |steering: &mut Steering| {
            round(steering, 0, 0);
            credit_s(steering)
        };
        // Full: it holds no more.
        let full_s = (0..3000).map(|_| settle(&mut steering)).fold(0.0, f64::max);
        steering.drafted(0.25);
        assert_eq!((steering.invests(0.5), settle(&mut steering)), (0.25, full_s));
        steering.returns(0.125);
        assert!((full_s - settle(&mut steering) - 0.125).abs() < 1e-3);
        steering.returns(0.125);
        assert!((full_s - settle(&mut steering) - 0.25).abs() < 1e-3);
        // Beyond the bound it is charged at once.
        steering.drafted(60.0);
        let granted = steering.invests(60.0);
        assert!((granted - MOST_INVESTED * 0.0201).abs() < 1e-6, "{granted}");
        assert!(settle(&mut steering) < 0.0 && steering.invests(1.0) == 0.0);
    }

    #[test]
    fn tokens_are_worth_what_reading_their_sequences_takes_also_where_prompts_wait() {
        // A row takes a little more than 0.1 ms, and to read what a sequence attends to as long.
        let attention = AttentionCost { per_kv_fs: 100_000_000, per_row_fs: 0 };
        let verify = PassCost::linear(5000, 100, attention);
        let costs = PartitionCosts { verify, ..costs() };
        let suspended = |accepted| {
            let mut steering = Steering::new(std::slice::from_ref(&costs), 512);
            let (sequences, reach) = (64, Reach { kv: 64_000, rows: 0 });
            for _ in 0..1000 {
                let waiting = waiting(100_000, 100, sequences);
                let displaced = steering.look(&waiting, Some(&costs));
                assert!(displaced.share >= MOST_DISPLACED, "{displaced:?}");
                let rows = 2 * sequences;
                let round = Speculated {
                    rows,
                    proposals: sequences,
                    sequences,
                    reach,
                    committed: sequences + accepted,
                    pass_s: costs.verify.seconds(512, reach),
                    ..Speculated::default()
                };
                steering.verified(&round, &costs);
                if !steering.speculates() {
                    return true;
                }
            }
            false
        };
        // A proposal costs a row, and a token that it brings saves a row and what is read.
        assert!(!suspended(40) && suspended(16));
    }

    #[test]
    fn what_gains_is_never_suspended_and_soon_forgiven() {
        let costs = [costs()];
        let mut steering = Steering::new(&costs, 512);
        for i in 0..1000 {
            round(&mut steering, 4, if i % 4 == 0 { 0 } else { 2 });
            assert!(steering.speculates(), "{i}");
        }
        // A spell of bad luck ends it, and it comes back by itself.
        let mut rounds = 0;
        while steering.speculates() {
            round(&mut steering, 16, 0);
            rounds += 1;
        }
        assert!((10..200).contains(&rounds), "{rounds}");
        let mut quiet = 0;
        while !steering.speculates() {
            round(&mut steering, 0, 0);
            quiet += 1;
        }
        assert!((10..500).contains(&quiet), "{quiet}");
    }
}
