//! What can be seen of the engine from outside: gauges and running totals.

use std::time::Duration;

use crate::request::{CANDIDATES, K_LIMIT, SeqId};
use crate::usage::Usage;

/// A snapshot: gauges of this moment and totals since the start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LoadView {
    /// Sequences that hold KV.
    pub running: usize,
    /// Sequences that wait for admission, preempted ones included.
    pub waiting: usize,
    /// The partition of the last verify pass, 0 for the whole device.
    pub partition: usize,
    /// The target's pool.
    pub target_pool: PoolView,
    /// The draft's pool.
    pub draft_pool: PoolView,
    /// How well survival is predicted.
    pub calibration: CalibrationView,
    /// What the load asks of rounds.
    pub steering: SteeringView,
    /// Past outputs that are kept.
    pub suffix: SuffixView,
    /// Totals since the start.
    pub totals: Totals,
}

/// What a request is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestState {
    /// It holds no KV: not admitted yet, or preempted.
    Waiting,
    /// It holds KV, and more than its anchor has yet to be computed.
    Prefill,
    /// It decodes.
    Decode,
}

/// One request, as far as it can be seen without its text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RequestView {
    /// Its sequence.
    pub seq: SeqId,
    /// What it is at.
    pub state: RequestState,
    /// What it took so far.
    pub usage: Usage,
    /// Tokens it asked for.
    pub max_new_tokens: usize,
    /// Speculative length that this round wants it to have.
    pub k: usize,
    /// Proposals that are drafted and not verified.
    pub proposals: usize,
    /// Probability that a proposal of it is accepted, as its own history says.
    pub level: f32,
    /// Time since it came.
    pub age: Duration,
    /// From then to its first token.
    pub to_first_token: Option<Duration>,
}

/// Gauges of one block pool, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolView {
    /// Blocks of the pool.
    pub total: usize,
    /// Blocks no sequence holds: empty ones, and cached ones that may be evicted at any time.
    pub free: usize,
    /// Blocks that hold the KV of a cached prefix, whether a sequence uses them or not.
    pub cached: usize,
}

impl LoadView {
    /// Takes in another replica's view: sums, and the mean of what is one. Partition and steering stay this one's.
    pub fn add(&mut self, other: &LoadView) {
        self.running += other.running;
        self.waiting += other.waiting;
        self.target_pool = [self.target_pool, other.target_pool].into_iter().sum();
        self.draft_pool = [self.draft_pool, other.draft_pool].into_iter().sum();
        let (mine, theirs) = (self.calibration, other.calibration);
        let observed = mine.observed + theirs.observed;
        let nats = mine.log_loss_nats * mine.observed as f64 + theirs.log_loss_nats * theirs.observed as f64;
        self.calibration = CalibrationView { observed, log_loss_nats: nats / observed.max(1) as f64 };
        let (mine, theirs) = (&mut self.suffix, other.suffix);
        mine.bytes += theirs.bytes;
        mine.outputs += theirs.outputs;
        mine.tokens += theirs.tokens;
        self.totals.add(&other.totals);
    }
}

impl std::iter::Sum for PoolView {
    fn sum<I: Iterator<Item = PoolView>>(pools: I) -> PoolView {
        pools.fold(PoolView::default(), |sum, pool| PoolView {
            total: sum.total + pool.total,
            free: sum.free + pool.free,
            cached: sum.cached + pool.cached,
        })
    }
}

impl PoolView {
    /// The share of the blocks that sequences hold, 0 to 1.
    pub fn usage(&self) -> f64 {
        self.total.saturating_sub(self.free) as f64 / self.total.max(1) as f64
    }

    /// Nothing is held by any sequence.
    pub fn whole(&self) -> bool {
        self.free == self.total
    }
}

/// What the load asks of rounds, as it was decided last.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SteeringView {
    /// The policy goes by it; fixed lengths do not.
    pub decides: bool,
    /// Rows of a pass beside which somebody decodes, at most.
    pub pass_rows: usize,
    /// How far a further row is charged the row of a prompt that waits for it, 0 to 1.
    pub displaced_share: f64,
    /// Seconds that speculation may still lose before it is suspended.
    pub credit_s: f64,
    /// Speculation lost what it may lose: nothing is proposed until there is credit again.
    pub suspended: bool,
    /// Blocks of the target's KV are short: a request's proposals are no more than its own blocks hold.
    pub kv_short: bool,
}

/// Past outputs that are kept to be proposed from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SuffixView {
    /// Memory that they may take, which is taken at the start.
    pub bytes: usize,
    /// Outputs that are there.
    pub outputs: usize,
    /// Their tokens, with the ends of their prompts.
    pub tokens: usize,
}

/// What the predictions of survival were worth, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CalibrationView {
    /// Verified proposals all before which were accepted: those whose prediction was put to the test.
    pub observed: u64,
    /// Mean log-loss of what was predicted of them, in nats; 0 before the first.
    pub log_loss_nats: f64,
}

impl CalibrationView {
    /// From [`Calibration::quality`](crate::survival::Calibration::quality).
    pub(crate) fn new((observed, log_loss_nats): (u64, f64)) -> CalibrationView {
        CalibrationView { observed, log_loss_nats }
    }
}

/// A sequence's epoch moved on: proposals were cancelled before anybody verified them, or at least may not be built on any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochMove {
    /// The sequence.
    pub seq: SeqId,
    /// The epoch that is over.
    pub epoch: u32,
    /// Position from which on proposals were cancelled unverified.
    pub frontier: usize,
    /// How many stood there.
    pub unsent: usize,
    /// The draft plan that was working on more, if one was.
    pub drafting: Option<u64>,
    /// What stands in their place from now on: the branch that was prepared for this verdict, by its draft plan and its place there.
    pub taken: Option<(u64, usize)>,
    /// A verdict rejected what was proposed before them. Otherwise the sequence lost its KV.
    pub rejected: bool,
}

impl EpochMove {
    /// A rejection cancelled something that had not been sent: drafted, or being drafted.
    pub fn cancelled(&self) -> bool {
        self.rejected && (self.unsent > 0 || self.drafting.is_some())
    }
}

/// What adds up over replicas.
pub(crate) trait Sum {
    /// Adds another replica's.
    fn add(&mut self, more: &Self);
}

impl Sum for u64 {
    fn add(&mut self, more: &u64) {
        *self += more;
    }
}

impl Sum for Duration {
    fn add(&mut self, more: &Duration) {
        *self += *more;
    }
}

impl<const N: usize> Sum for [u64; N] {
    fn add(&mut self, more: &[u64; N]) {
        self.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
    }
}

/// Buckets of one percent each, and a last one for everything from 100 % on.
const BUCKETS: usize = 101;

/// Relative errors |predicted - measured| / measured of verify passes, by whole percents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorHistogram([u64; BUCKETS]);

impl Default for ErrorHistogram {
    /// Nothing was predicted yet.
    fn default() -> ErrorHistogram {
        ErrorHistogram([0; BUCKETS])
    }
}

impl ErrorHistogram {
    /// Counts one pass.
    pub(crate) fn count(&mut self, predicted: Duration, measured: Duration) {
        let error = predicted.abs_diff(measured).as_nanos().saturating_mul(100);
        let percent = error.checked_div(measured.as_nanos()).unwrap_or(u128::MAX);
        self.0[percent.min(BUCKETS as u128 - 1) as usize] += 1;
    }

    /// Passes counted.
    pub fn passes(&self) -> u64 {
        self.0.iter().sum()
    }

    /// What was counted since `before`, an earlier state of the same histogram.
    #[must_use]
    pub fn since(&self, before: &ErrorHistogram) -> ErrorHistogram {
        ErrorHistogram(std::array::from_fn(|i| self.0[i].saturating_sub(before.0[i])))
    }

    /// The median, as a share of the measured time, interpolated within its percent; 1 stands for everything from there on.
    /// `None` if nothing was counted.
    pub fn median(&self) -> Option<f64> {
        let half = self.passes() as f64 / 2.0;
        let mut below = 0.0;
        for (percent, &passes) in self.0.iter().enumerate().filter(|(_, passes)| **passes > 0) {
            let here = passes as f64;
            if below + here >= half {
                let within = if percent + 1 < BUCKETS { (half - below) / here } else { 0.0 };
                return Some((percent as f64 + within) / 100.0);
            }
            below += here;
        }
        None
    }
}

impl Sum for ErrorHistogram {
    fn add(&mut self, more: &ErrorHistogram) {
        self.0.add(&more.0);
    }
}

/// A struct whose sum is that of each field: none can be forgotten.
macro_rules! sums {
    ($(#[$about:meta])* pub struct $sums:ident { $($(#[$doc:meta])* pub $name:ident: $kind:ty,)* }) => {
        $(#[$about])*
        pub struct $sums { $($(#[$doc])* pub $name: $kind,)* }

        impl Sum for $sums {
            fn add(&mut self, more: &$sums) {
                $(self.$name.add(&more.$name);)*
            }
        }
    };
}

sums! {
    /// Running totals; none ever goes down.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct Totals {
        /// Requests taken.
        pub submitted: u64,
        /// Requests refused.
        pub refused: u64,
        /// Sequences that ended by a stop token or by length.
        pub finished: u64,
        /// Sequences that were cancelled.
        pub cancelled: u64,
        /// Sequences that were given up because the device failed under them.
        pub failed: u64,
        /// Sequences that lost their KV to others and were preempted: they wait again.
        pub preemptions: u64,
        /// Prompt tokens of admitted requests.
        pub prompt_tokens: u64,
        /// Those of them whose target KV came from the prefix cache.
        pub cached_prompt_tokens: u64,
        /// Tokens emitted.
        pub output_tokens: u64,
        /// Draft plans done.
        pub draft_passes: u64,
        /// Verify passes done.
        pub target_passes: u64,
        /// Rows of those verify passes.
        pub target_rows: u64,
        /// Verified chunks with at least one proposal.
        pub drafts: u64,
        /// Proposals verified.
        pub draft_tokens: u64,
        /// Proposals that came too late: their sequence had moved on or ended.
        pub late_drafts: u64,
        /// Chunks held back or being drafted that a verdict cancelled: by a rejection in front of them, or by another token in the place of the first.
        pub chunks_cancelled: u64,
        /// Branches that were drafted for verdicts yet to come.
        pub outcomes_drafted: u64,
        /// Verdicts on chunks for which such branches had been drafted.
        pub outcome_verdicts: u64,
        /// Those that found their proposals at hand, or a branch for what came.
        pub outcome_hits: u64,
        /// Those verdicts that were of sequences whose tokens are drawn at a temperature.
        pub outcome_verdicts_drawn: u64,
        /// The hits among them.
        pub outcome_hits_drawn: u64,
        /// Hits for which that was a branch: what came was not what the draft had there.
        pub outcomes_taken: u64,
        /// Draft steps of cancelled chunks that no lane ran.
        pub draft_steps_cancelled: u64,
        /// Which of the draft's next candidates the target's token was, where a proposal was rejected; the last for none of them.
        pub recovered_ranks: [u64; CANDIDATES + 1],
        /// Verify chunks from which nothing was drawn, since it was not known in time what their grammar allows.
        pub late_chunks: u64,
        /// Proposals whose rows left a verify pass before its end.
        pub rows_pruned: u64,
        /// Chunks that lost such rows although the first of them would have been accepted.
        pub pruned_in_vain: u64,
        /// Verify passes with at least one pruning checkpoint.
        pub pruning_passes: u64,
        /// Proposals accepted.
        pub accepted_tokens: u64,
        /// Proposals verified that came from prompt-lookup or a predicted output, and cost no draft step.
        pub prompt_lookup_tokens: u64,
        /// Those of them that were accepted.
        pub prompt_lookup_accepted_tokens: u64,
        /// Proposals verified that came from past outputs.
        pub suffix_tokens: u64,
        /// Those of them that were accepted.
        pub suffix_accepted_tokens: u64,
        /// Proposals accepted, by their place in the chunk.
        pub accepted_per_position: [u64; K_LIMIT],
        /// Proposals verified, by their place in the chunk.
        pub proposed_per_position: [u64; K_LIMIT],
        /// Verified chunks by their number of proposals.
        pub chunks_by_length: [u64; K_LIMIT + 1],
        /// Verify passes planned while the draft lane was to work beside them.
        pub overlapped_passes: u64,
        /// What the cost tables said of the verify passes done, before each.
        pub predicted_verify_time: Duration,
        /// Sum of the differences between that and the time each took, either way.
        pub verify_time_error: Duration,
        /// The same pass by pass, relative to the time it took.
        pub verify_errors: ErrorHistogram,
        /// Time the draft lane worked.
        pub draft_time: Duration,
        /// Time the verify lane worked.
        pub verify_time: Duration,
    }
}

impl Totals {
    /// Counts one verified chunk of `proposed` proposals.
    pub(crate) fn count_draft(&mut self, proposed: usize, accepted: usize) {
        self.drafts += u64::from(proposed > 0);
        self.chunks_by_length[proposed.min(K_LIMIT)] += 1;
        self.draft_tokens += proposed as u64;
        self.accepted_tokens += accepted as u64;
        self.proposed_per_position.iter_mut().take(proposed).for_each(|count| *count += 1);
        self.accepted_per_position.iter_mut().take(accepted).for_each(|count| *count += 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(errors_ms: &[u64]) -> ErrorHistogram {
        let mut histogram = ErrorHistogram::default();
        let measured = Duration::from_millis(1000);
        for &error in errors_ms {
            histogram.count(measured + Duration::from_millis(error), measured);
        }
        histogram
    }

    #[test]
    fn the_median_is_within_its_percent() {
        assert_eq!(ErrorHistogram::default().median(), None);
        // Two passes at 5 %, one at 60 %: the middle is three quarters through the first two.
        let median = of(&[50, 55, 600]).median().unwrap();
        assert!((median - 0.0575).abs() < 1e-12, "{median}");
        let all_over = of(&[5000, 7000]).median().unwrap();
        assert!((all_over - 1.0).abs() < 1e-12, "{all_over}");
    }

    #[test]
    fn errors_either_way_count_and_a_pass_of_no_time_is_all_error() {
        let mut histogram = ErrorHistogram::default();
        histogram.count(Duration::from_millis(90), Duration::from_millis(100));
        histogram.count(Duration::from_millis(110), Duration::from_millis(100));
        assert_eq!((histogram.0[10], histogram.passes()), (2, 2));
        histogram.count(Duration::from_millis(1), Duration::ZERO);
        assert_eq!(histogram.0[BUCKETS - 1], 1);
    }

    #[test]
    fn a_difference_leaves_what_came_later() {
        let before = of(&[50, 50]);
        let after = of(&[50, 50, 200]);
        assert_eq!(after.since(&before), of(&[200]));
    }

    #[test]
    fn views_of_replicas_add_up() {
        let mut view = LoadView {
            running: 2,
            target_pool: PoolView { total: 8, free: 3, cached: 1 },
            calibration: CalibrationView { observed: 3, log_loss_nats: 0.5 },
            ..LoadView::default()
        };
        view.totals.count_draft(3, 2);
        view.totals.verify_time = Duration::from_secs(1);
        let one = view.clone();
        view.calibration = CalibrationView { observed: 1, log_loss_nats: 0.9 };
        view.add(&one);
        assert_eq!((view.running, view.target_pool), (4, PoolView { total: 16, free: 6, cached: 2 }));
        assert_eq!(view.calibration.observed, 4);
        assert!((view.calibration.log_loss_nats - 0.6).abs() < 1e-12);
        assert_eq!((view.totals.draft_tokens, view.totals.accepted_per_position[1]), (6, 2));
        assert_eq!((view.totals.chunks_by_length[3], view.totals.verify_time), (2, Duration::from_secs(2)));
        // Nothing is the same as no replica.
        let mut sum = LoadView::default();
        sum.add(&one);
        assert_eq!(sum, one);
    }
}
