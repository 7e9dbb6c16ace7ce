//! Cases on a pair that is split or on a GPU, with everything that may happen around a request.

use faser_actors::Logprobs;
use faser_engine::{Event, FinishReason};

use crate::cases::{BLOCK, solo};
use crate::rig::{Pair, Random, Rig, Times, have_it_prepare};

/// What happened over all cases.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) tokens: usize,
    pub(crate) accepted: u64,
    pub(crate) rejected: u64,
    pub(crate) pruned: u64,
    pub(crate) cancelled_inside: u64,
    pub(crate) devices_lost: u64,
    /// Requests whose cached prefix ended inside a block.
    pub(crate) parted_hits: u64,
    pub(crate) drawn: usize,
    pub(crate) penalties: usize,
    pub(crate) restricted: usize,
    pub(crate) logprobs: usize,
    pub(crate) outcomes: u64,
    pub(crate) outcomes_taken: u64,
}

/// How many there are, all within rounding of the whole model's.
fn near(found: &[Option<Logprobs>], expected: &[Option<Logprobs>]) -> usize {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        let of = |one: &Option<Logprobs>| one.as_ref().map_or((None, 0.0), |t| (Some(t.token), t.logprob));
        let ((found, a), (expected, b)) = (of(found), of(expected));
        assert!(found == expected && (a - b).abs() < 1e-4, "{found:?} {a} {expected:?} {b}");
    }
    found.iter().flatten().count()
}

/// Runs the cases of a seed on `other`: each gets the tokens that it gets of `pair` alone and without speculation, and log-probabilities
/// within rounding, where they can be had. Where that is on a GPU too, both sum in one order.
pub(crate) fn run(pair: &Pair, other: &Pair, seed: u64, tally: &mut Tally) {
    run_timed(pair, other, seed, Times::Any, tally);
}

/// The same, by a clock of which plans take so much.
pub(crate) fn run_timed(pair: &Pair, other: &Pair, seed: u64, times: Times, tally: &mut Tally) {
    let random = &mut Random(seed);
    let (mut config, mut cases) = (random.config(), random.cases());
    config.draft = pair.draft_source(config.draft);
    config.speculation.draft_copies = other.draft_copies();
    config.deterministic |= pair.cuda.is_some();
    if matches!(times, Times::Told) {
        have_it_prepare(&mut config);
    }
    random.want_more(&mut cases);
    let mut rig = Rig::new(other, &config);
    rig.disturb(Some(random.next()), random.chance(40).then_some(seed));
    let mut to_come = cases.iter();
    let mut device_may_fail = random.chance(40);
    loop {
        if to_come.len() > 0 && (rig.plans.is_empty() || random.chance(30)) {
            to_come.next().expect("one is to come").submit(&mut rig);
        } else if device_may_fail && random.chance(4) {
            device_may_fail = false;
            tally.devices_lost += 1;
            rig.tell(Event::DeviceLost);
            rig.tell(Event::DeviceReady);
        } else {
            let next = random.between(0, rig.plans.len().saturating_sub(1));
            let took = times.of(rig.plans.get(next), random);
            if !rig.work(next, took) && to_come.len() == 0 {
                break;
            }
        }
    }
    rig.finish();
    let totals = rig.engine.view().totals;
    tally.accepted += totals.accepted_tokens;
    tally.rejected += totals.draft_tokens - totals.accepted_tokens;
    tally.pruned += totals.rows_pruned;
    tally.cancelled_inside += rig.cancelled_inside;
    tally.outcomes += totals.outcomes_drafted;
    tally.outcomes_taken += totals.outcomes_taken;
    for case in &cases {
        let (found, expected) = (case.outcome(&mut rig), solo(pair, case));
        match found.reason {
            FinishReason::Cancelled => {
                assert!(expected.tokens.starts_with(&found.tokens), "seed {seed}: {case}");
            }
            reason => {
                assert_eq!(
                    (&found.tokens, reason),
                    (&expected.tokens, expected.reason),
                    "seed {seed}: {case}"
                );
                tally.logprobs += near(&found.logprobs, &expected.logprobs);
            }
        }
        tally.tokens += found.tokens.len();
        tally.parted_hits += u64::from(!found.usage.cached_tokens.is_multiple_of(BLOCK));
        tally.drawn += usize::from(case.sampling.temperature > 0.0);
        tally.penalties += usize::from(case.sampling.has_penalties());
        tally.restricted += usize::from(case.sampling.top_k > 0 || case.sampling.top_p < 1.0);
    }
}

impl Tally {
    /// Of everything that may happen there has been some.
    pub(crate) fn assert_all_happened(&self) {
        assert!(self.all_happened(), "{self:?}");
    }

    /// Whether there has been some of everything.
    pub(crate) fn all_happened(&self) -> bool {
        let happened = [
            self.accepted,
            self.rejected,
            self.pruned,
            self.cancelled_inside,
            self.devices_lost,
            self.parted_hits,
        ];
        let kinds = [self.drawn, self.penalties, self.restricted];
        happened.iter().all(|count| *count > 0) && kinds.iter().all(|count| *count > 5)
    }
}
