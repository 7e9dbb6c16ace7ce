//! Survival: the probability that a proposal and all before it are accepted.
//!
//! What is known of a proposal before the target has seen it is the draft's own confidence in it. Confidence is
//! calibrated online, per model pair, into a probability of acceptance ([`Calibration`]); a factor per request, learned
//! from its own history and decaying towards one, corrects for texts that are easier or harder than most ([`Level`]).

use std::ops::{Index, IndexMut};

use crate::counts::Counts;
use crate::request::CANDIDATES;

/// Bins of confidence. Their borders are even in probability.
pub const CONFIDENCE_BINS: usize = 16;

/// Acceptances that a fresh bin is believed to have seen.
const PRIOR_WEIGHT: f64 = 8.0;
/// What an observation still counts after one more in the same bin: the memory is about 2,000 proposals.
const BIN_MEMORY: f64 = 0.9995;
/// What is remembered of all bins together, at most.
const SEEN_AT_MOST: f64 = 1.0 / (1.0 - BIN_MEMORY);
/// Acceptance expected before anything is known.
const TYPICAL_AT_FIRST: f64 = 0.7;
/// No probability of acceptance is taken for certain.
const CERTAIN: f32 = 0.995;
/// None is taken for impossible, so that a draft that has become good again is noticed.
const HOPELESS: f32 = 0.02;

/// Where a proposal comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The draft model.
    Draft,
    /// Prompt-lookup: from the sequence's own text.
    Text,
    /// A predicted output: from what the client predicts.
    Prediction,
    /// Past outputs: from what followed the same suffix there.
    Suffix,
}

impl Source {
    /// All of them.
    pub const ALL: [Source; 4] = [Source::Draft, Source::Text, Source::Prediction, Source::Suffix];
}

/// One of something for each source of proposals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerSource<T>([T; 4]);

impl<T> PerSource<T> {
    /// Each made of its source.
    pub fn of(make: impl FnMut(Source) -> T) -> PerSource<T> {
        PerSource(Source::ALL.map(make))
    }
}

impl<T> Index<Source> for PerSource<T> {
    type Output = T;

    fn index(&self, source: Source) -> &T {
        &self.0[source as usize]
    }
}

impl<T> IndexMut<Source> for PerSource<T> {
    fn index_mut(&mut self, source: Source) -> &mut T {
        &mut self.0[source as usize]
    }
}

impl PerSource<Calibration> {
    /// As fresh as can be.
    pub fn fresh() -> PerSource<Calibration> {
        PerSource::of(|source| {
            if source == Source::Draft { Calibration::default() } else { Calibration::of_lookups() }
        })
    }

    /// As fresh, but for what was learned elsewhere.
    pub fn begun_with(learned: &Learned) -> PerSource<Calibration> {
        let fresh = PerSource::fresh();
        PerSource::of(|source| fresh[source].clone().with(&learned.0[source]))
    }

    /// What was learned up to now.
    pub fn learned(&self) -> Learned {
        Learned(PerSource::of(|source| self[source].learned()))
    }

    /// The probability of acceptance per bin.
    pub fn tables(&self) -> PerSource<AcceptanceTable> {
        PerSource::of(|source| self[source].table())
    }

    /// Levels of a request of which nothing is known.
    pub fn levels(&self) -> PerSource<Level> {
        PerSource::of(|source| Level::new(self[source].typical()))
    }
}

/// What an engine learns of each source of proposals, and another one of the same pair can begin with. It may change speed, never text.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Learned(pub PerSource<LearnedOfSource>);

/// What is learned of the proposals of one source; all zero if nothing is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LearnedOfSource {
    /// By confidence, the lowest bin first.
    pub bins: [Counts; CONFIDENCE_BINS],
    /// All of them together.
    pub all: Counts,
}

/// What the lanes need of the calibration to stop drafting by themselves: one probability per bin.
pub type AcceptanceTable = [f32; CONFIDENCE_BINS];

/// From the draft's confidence to the probability of acceptance, given that all before was accepted.
#[derive(Clone, Debug)]
pub struct Calibration {
    bins: [Counts; CONFIDENCE_BINS],
    /// All bins together.
    all: Counts,
    observed: u64,
    log_loss_sum: f64,
}

impl Default for Calibration {
    /// Trusts the draft, weakly: a bin's prior is its own middle.
    fn default() -> Calibration {
        Calibration::with_prior(|bin| (bin as f64 + 0.5) / CONFIDENCE_BINS as f64)
    }
}

/// The bin of a confidence; out of range and NaN go to the nearest end.
pub fn confidence_bin(confidence: f32) -> usize {
    // A float cast saturates, and takes NaN to 0.
    ((confidence * CONFIDENCE_BINS as f32) as usize).min(CONFIDENCE_BINS - 1)
}

impl Calibration {
    fn with_prior(prior: impl Fn(usize) -> f64) -> Calibration {
        let bin = |acceptance| Counts { seen: PRIOR_WEIGHT, accepted: acceptance * PRIOR_WEIGHT };
        let bins = std::array::from_fn(|index| bin(prior(index)));
        Calibration { bins, all: bin(TYPICAL_AT_FIRST), observed: 0, log_loss_sum: 0.0 }
    }

    /// Of proposals that were found in a text, whose bin is the higher the more tokens agreed before: hopeful, so that they are tried.
    fn of_lookups() -> Calibration {
        Calibration::with_prior(|agreed| 1.0 - 0.6 * 0.75_f64.powi(agreed as i32))
    }

    /// Takes over what was learned elsewhere, where it is to be believed.
    fn with(mut self, learned: &LearnedOfSource) -> Calibration {
        for (own, other) in self.bins.iter_mut().zip(&learned.bins).chain([(&mut self.all, &learned.all)]) {
            *own = other.believed().unwrap_or(*own);
        }
        self
    }

    fn learned(&self) -> LearnedOfSource {
        LearnedOfSource { bins: self.bins, all: self.all }
    }

    /// Learns from one proposal whose verdict is known, all before which were accepted. `predicted` is what was believed of it.
    pub fn observe(&mut self, confidence: f32, predicted: f32, accepted: bool) {
        for bin in [&mut self.bins[confidence_bin(confidence)], &mut self.all] {
            bin.seen = bin.seen * BIN_MEMORY + 1.0;
            bin.accepted = bin.accepted * BIN_MEMORY + f64::from(u8::from(accepted));
        }
        self.observed += 1;
        let right = if accepted { predicted } else { 1.0 - predicted };
        self.log_loss_sum -= f64::from(right.max(1e-6)).ln();
    }

    /// Acceptance over all requests and confidences, per proposal: as high as what was seen leaves likely, for what is never tried is never found
    /// to be better than it seemed. What that loses the regret account bounds.
    pub fn typical(&self) -> f32 {
        let mean = self.all.accepted / self.all.seen;
        let deviation = |seen: f64| (mean * (1.0 - mean) / seen).sqrt();
        bounded((mean + deviation(self.all.seen) - deviation(SEEN_AT_MOST)) as f32)
    }

    /// The probability of acceptance per bin.
    pub fn table(&self) -> AcceptanceTable {
        std::array::from_fn(|bin| self.of_bin(bin))
    }

    /// The probability of acceptance of a proposal with this confidence.
    pub fn acceptance(&self, confidence: f32) -> f32 {
        self.of_bin(confidence_bin(confidence))
    }

    fn of_bin(&self, bin: usize) -> f32 {
        bounded((self.bins[bin].accepted / self.bins[bin].seen) as f32)
    }

    /// Proposals learned from, and the mean log-loss of what was predicted of them, in nats.
    pub fn quality(&self) -> (u64, f64) {
        (self.observed, self.log_loss_sum / self.observed.max(1) as f64)
    }
}

/// How much easier or harder one request is than its draft's confidence says, and how far its proposals go.
///
/// What was seen fades by the verdict, not by the proposal: a verdict's last proposal is mostly the rejected one, and an
/// estimate that forgets by the proposal would be read just after it, too low.
#[derive(Clone, Copy, Debug)]
pub struct Level {
    seen: f32,
    accepted: f32,
    /// Sum of what the calibration expected of those seen.
    expected: f32,
}

/// Proposals a fresh request is believed to have behind it, with the acceptance of all requests together.
const LEVEL_PRIOR: f32 = 8.0;
/// What a verdict's proposals still count after one more verdict.
const LEVEL_MEMORY: f32 = 0.95;

impl Default for Level {
    /// Of a request that waits to be admitted.
    fn default() -> Level {
        Level::new(TYPICAL_AT_FIRST as f32)
    }
}

impl Level {
    /// Nothing known of the request; `typical` is the acceptance of all requests together.
    pub fn new(typical: f32) -> Level {
        let expected = LEVEL_PRIOR * typical;
        Level { seen: LEVEL_PRIOR, accepted: expected, expected }
    }

    /// Makes way for a new verdict. Called once per verdict, with or without proposals, so that after a long spell without
    /// speculation a request is given another chance.
    pub fn fade(&mut self, typical: f32) {
        let prior = Level::new(typical);
        let towards = |value: f32, prior: f32| prior + LEVEL_MEMORY * (value - prior);
        self.seen = towards(self.seen, prior.seen);
        self.accepted = towards(self.accepted, prior.accepted);
        self.expected = towards(self.expected, prior.expected);
    }

    /// Learns from one proposal whose verdict is known, all before which were accepted; `calibrated` was expected of it.
    pub fn observe(&mut self, calibrated: f32, accepted: bool) {
        self.seen += 1.0;
        self.accepted += f32::from(u8::from(accepted));
        self.expected += calibrated;
    }

    /// The probability of acceptance of a proposal with this calibrated probability.
    pub fn acceptance(&self, calibrated: f32) -> f32 {
        bounded(calibrated * self.accepted / self.expected)
    }

    /// The probability of acceptance of a proposal that is not drafted yet.
    pub fn typical(&self) -> f32 {
        bounded(self.accepted / self.seen)
    }
}

fn bounded(probability: f32) -> f32 {
    probability.clamp(HOPELESS, CERTAIN)
}

/// How often the target's token is one of the draft's next candidates, where it is not the proposal: of the first, the second, and so on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ranks {
    /// Counts that fade, of each rank and of none of them.
    counts: [f32; CANDIDATES + 1],
    /// Candidates have been told: not every lane can.
    told: bool,
}

/// Before anything was seen: as of the demo pair at temperature 0.7 (docs/results/2026-11-25-outcomes.md), with the weight of so many rejections.
const FIRST_RANKS: [f32; CANDIDATES] = [0.37, 0.16, 0.09, 0.06, 0.04, 0.03, 0.03, 0.02];
const FIRST_WEIGHT: f32 = 32.0;
/// Share of the counts that a rejection leaves.
const FADES: f32 = 1.0 - 1.0 / 1024.0;
/// A lower count is none: else it would fade to subnormal numbers, with which some processors take a hundred times as long.
const FADED: f32 = 1e-6;

impl Default for Ranks {
    fn default() -> Ranks {
        let mut counts = [0.0; CANDIDATES + 1];
        counts.iter_mut().zip(FIRST_RANKS).for_each(|(count, share)| *count = FIRST_WEIGHT * share);
        counts[CANDIDATES] = FIRST_WEIGHT * (1.0 - FIRST_RANKS.iter().sum::<f32>());
        Ranks { counts, told: false }
    }
}

impl Ranks {
    /// A proposal was rejected: the target's token was the candidate of this rank, or none.
    pub(crate) fn observe(&mut self, rank: Option<usize>) {
        for count in &mut self.counts {
            *count = if *count > FADED { *count * FADES } else { 0.0 };
        }
        self.counts[rank.unwrap_or(CANDIDATES).min(CANDIDATES)] += 1.0;
    }

    /// The lane tells candidates.
    pub(crate) fn told(&mut self) {
        self.told = true;
    }

    /// Probability of each rank; none of any where no lane tells candidates.
    pub(crate) fn shares(&self) -> [f32; CANDIDATES] {
        let all: f32 = self.counts.iter().sum();
        std::array::from_fn(|rank| if self.told { self.counts[rank] / all } else { 0.0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_never_come_fade_to_nothing() {
        let mut ranks = Ranks::default();
        ranks.told();
        (0..200_000).for_each(|_| ranks.observe(Some(2)));
        let shares = ranks.shares();
        assert!(
            shares.iter().enumerate().all(|(rank, share)| *share == f32::from(u8::from(rank == 2))),
            "{shares:?}"
        );
    }

    /// A small generator, enough to flip coins.
    fn coins(mut state: u64) -> impl FnMut() -> f32 {
        move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1u64 << 24) as f32
        }
    }

    #[test]
    fn an_overconfident_draft_is_found_out() {
        let (mut calibration, mut coin) = (Calibration::default(), coins(1));
        for _ in 0..20_000 {
            let confidence = coin();
            let predicted = calibration.table()[confidence_bin(confidence)];
            calibration.observe(confidence, predicted, coin() < confidence * confidence);
        }
        for (bin, &p) in calibration.table().iter().enumerate() {
            let middle = (bin as f32 + 0.5) / CONFIDENCE_BINS as f32;
            assert!((p - (middle * middle).clamp(HOPELESS, CERTAIN)).abs() < 0.07, "bin {bin}: {p}");
        }
        // Better than knowing only the mean acceptance, a third: its entropy is 0.64 nats.
        assert!(calibration.quality().1 < 0.55, "{:?}", calibration.quality());
    }

    #[test]
    fn a_hard_request_is_told_from_an_easy_one_and_forgiven_in_time() {
        let (mut easy, mut hard, mut coin) = (Level::new(0.7), Level::new(0.7), coins(2));
        for _ in 0..100 {
            for (level, p) in [(&mut easy, 0.9), (&mut hard, 0.2)] {
                level.fade(0.7);
                (0..4).all(|_| {
                    let accepted = coin() < p;
                    level.observe(0.7, accepted);
                    accepted
                });
            }
        }
        assert!(easy.acceptance(0.7) > 0.8 && easy.typical() > 0.8, "{easy:?}");
        assert!(hard.acceptance(0.7) < 0.45 && hard.typical() < 0.45, "{hard:?}");
        for _ in 0..100 {
            hard.fade(0.7);
        }
        assert!((hard.acceptance(0.7) - 0.7).abs() < 0.05 && hard.typical() > 0.6, "{hard:?}");
    }

    #[test]
    fn no_confidence_is_out_of_range() {
        for (confidence, bin) in [(-1.0, 0), (0.0, 0), (0.999, 15), (1.0, 15), (7.0, 15), (f32::NAN, 0)] {
            assert_eq!(confidence_bin(confidence), bin);
        }
    }

    #[test]
    fn ranks_become_what_is_seen() {
        let mut ranks = Ranks::default();
        assert_eq!(ranks.shares(), [0.0; CANDIDATES], "nobody has told a candidate");
        ranks.told();
        let [first, ..] = ranks.shares();
        assert!((first - FIRST_RANKS[0]).abs() < 1e-6);
        for seen in 0..4000 {
            ranks.observe((seen % 5 == 0).then_some(1));
        }
        let [first, second, third, ..] = ranks.shares();
        assert!(first < 0.01 && third < 0.01 && (0.18..0.22).contains(&second), "{first} {second} {third}");
    }
}
