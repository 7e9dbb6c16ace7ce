//! Pruning inside a verify pass: at which checkpoint, from which logit margin on, or not at all (D3d).
//!
//! A pruning checkpoint is a place between two layers. There the state of a row is scored against the draft's own top-k alternatives:
//! by how many logits the best one leads over the proposal is the margin. What margins mean is learned: for each checkpoint, how
//! often each size of margin is seen of proposals that turn out right, and of those that turn out wrong. By Bayes' rule that
//! turns a proposal's acceptance, as it was believed before the pass, into one that knows the margin; if what is then
//! at stake is less than what the rest of the pass is shorter without the rows concerned, in tokens, they leave.

use crate::request::K_LIMIT;

/// Places of the checkpoints, as shares of the layers.
const DEPTHS: [f64; 3] = [0.25, 0.5, 0.75];

/// Upper ends of the bins of margins, in logits; the last bin is open. A proposal in the lead is in the first.
const ENDS: [f32; 7] = [0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0];
const BINS: usize = ENDS.len() + 1;

/// Margins of each bin that a fresh checkpoint is believed to have seen, of right proposals and of wrong ones alike.
const PRIOR: f64 = 2.0;
/// What an observation still counts after one more: the memory is about 5,000 proposals.
const MEMORY: f64 = 0.9998;
/// All checkpoints are watched in one pass of so many, even while none prunes.
const WATCH_EVERY: u32 = 64;
/// Until so many margins are known, every pass is watched.
const ENOUGH: u64 = 400;
/// Gain below which a pass is left whole, as a share of the tokens it commits.
const MIN_PRUNE_GAIN: f64 = 0.005;
/// A row that costs less than this, in tokens, never pays to prune.
const CHEAP_ROW: f64 = 0.01;
/// Of many proposals a pass is decided on by so many runs, of so many each.
const RUNS: usize = 4;
const RUN: usize = K_LIMIT;
/// Share of the proposals that leave a pass, before any was pruned; the weight of a new pass in its mean; and how far
/// a pass that nothing is to leave takes it back to the first.
const FIRST_LEAVING: f64 = 0.15;
const NEW_LEAVING: f64 = 1.0 / 16.0;
const FORGET_LEAVING: f64 = 1.0 / 64.0;

/// What is known of a proposal before the pass.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prospect {
    /// Probability of acceptance, given that all before it is accepted.
    pub(crate) acceptance: f32,
    /// Tokens that it and those behind it bring in the mean if it is right.
    pub(crate) at_stake: f32,
    /// Rows that leave if it fails: its own, and those behind it.
    pub(crate) rows: usize,
}

#[derive(Debug)]
pub(crate) struct Pruning {
    checkpoints: Vec<PruneCheckpoint>,
    wanted: bool,
    observed: u64,
    unwatched: u32,
    /// It is wanted, can be done, and rows cost enough that it may pay at all.
    may_pay: bool,
    /// The last pass pruned.
    active: bool,
    /// Share of the proposals that leave passes which prune.
    leaving: f64,
}

/// What a pass is to do about its proposals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PruneMode {
    /// No test.
    Off,
    /// Tests at all checkpoints, after which everything stays.
    Watch,
    /// Tests at this checkpoint.
    Prune(usize),
}

#[derive(Debug)]
struct PruneCheckpoint {
    layers: usize,
    /// Share of the pass behind it.
    left: f64,
    right: Margins,
    wrong: Margins,
}

/// How often margins were seen.
#[derive(Clone, Copy, Debug)]
struct Margins {
    /// Those of each bin and beyond.
    from: [f64; BINS],
    /// What one margin is of all.
    each: f64,
}

impl Pruning {
    /// Checkpoints for a target of so many layers; none if it has too few. They stay unused as long as pruning is not wanted.
    pub(crate) fn new(target_layers: usize, wanted: bool) -> Pruning {
        let checkpoint = |depth: f64| {
            let layers = (depth * target_layers as f64).round() as usize;
            let left = 1.0 - layers as f64 / target_layers.max(1) as f64;
            (layers > 0 && left > 0.0).then_some(PruneCheckpoint {
                layers,
                left,
                right: Margins::new(),
                wrong: Margins::new(),
            })
        };
        let mut checkpoints: Vec<PruneCheckpoint> = DEPTHS.into_iter().filter_map(checkpoint).collect();
        checkpoints.dedup_by_key(|checkpoint| checkpoint.layers);
        Pruning {
            checkpoints,
            wanted,
            observed: 0,
            unwatched: 0,
            may_pay: false,
            active: false,
            leaving: FIRST_LEAVING,
        }
    }

    /// From now on it is wanted, or not; what was learned stays.
    pub(crate) fn want(&mut self, wanted: bool) {
        self.wanted = wanted;
        self.may_pay &= wanted;
        self.active &= wanted;
    }

    /// Should proposals be drafted with their alternatives?
    pub(crate) fn wants_alternatives(&self) -> bool {
        // A pass or two lie between a draft and its verification.
        let watch_is_near = self.observed < ENOUGH || self.unwatched + 4 >= WATCH_EVERY;
        self.may_pay && (self.active || watch_is_near)
    }

    /// Of so many proposals, how many are expected to leave a pass that prunes.
    pub(crate) fn leaving(&self, proposals: usize) -> usize {
        (self.leaving * proposals as f64).round() as usize
    }

    /// Of so many proposals of the last pass, some of which were tested, so many left it.
    pub(crate) fn has_left(&mut self, pruned: usize, proposals: usize) {
        if self.active && proposals > 0 {
            let share = (pruned as f64 / proposals as f64).min(1.0);
            self.leaving += NEW_LEAVING * (share - self.leaving);
        }
    }

    /// Can a pass be pruned at all whose rows cost about `row_cost` tokens each?
    pub(crate) fn may_pay(&mut self, row_cost: f64) -> bool {
        self.may_pay = self.wanted && !self.checkpoints.is_empty() && row_cost > CHEAP_ROW;
        self.active = false;
        self.may_pay
    }

    /// Decides on a pass that commits `tokens` in the mean, and is shorter by `saved` tokens for each row that leaves it as it
    /// begins. After [`Pruning::may_pay`].
    pub(crate) fn decide(&mut self, prospects: &[Prospect], saved: f64, tokens: f64) -> PruneMode {
        if !self.may_pay || prospects.is_empty() {
            return PruneMode::Off;
        }
        self.unwatched += 1;
        if self.observed < ENOUGH || self.unwatched >= WATCH_EVERY {
            self.unwatched = 0;
            return PruneMode::Watch;
        }
        let sampled = sampled(prospects);
        let gain = |checkpoint: &PruneCheckpoint| {
            sampled.clone().map(|prospect| checkpoint.gain(prospect, saved)).sum::<f64>()
        };
        let gains = self.checkpoints.iter().map(gain).enumerate();
        let least =
            MIN_PRUNE_GAIN * tokens * (RUNS * RUN).min(prospects.len()) as f64 / prospects.len() as f64;
        match gains.max_by(|a, b| a.1.total_cmp(&b.1)) {
            Some((checkpoint, gain)) if gain > least => {
                self.active = true;
                PruneMode::Prune(checkpoint)
            }
            _ => {
                self.leaving += FORGET_LEAVING * (FIRST_LEAVING - self.leaving);
                PruneMode::Off
            }
        }
    }

    /// The layers done at the checkpoints a pass has.
    pub(crate) fn layers(&self, mode: PruneMode) -> impl Iterator<Item = usize> {
        let checkpoints = match mode {
            PruneMode::Off => &[],
            PruneMode::Watch => self.checkpoints.as_slice(),
            PruneMode::Prune(checkpoint) => &self.checkpoints[checkpoint..=checkpoint],
        };
        checkpoints.iter().map(|checkpoint| checkpoint.layers)
    }

    /// The margin above which a proposal leaves the pass.
    pub(crate) fn max_margin(&self, mode: PruneMode, prospect: &Prospect, saved: f64) -> f32 {
        match mode {
            PruneMode::Prune(checkpoint) => self.checkpoints[checkpoint].max_margin(prospect, saved),
            PruneMode::Off | PruneMode::Watch => f32::INFINITY,
        }
    }

    /// Learns what the margin at a checkpoint meant.
    pub(crate) fn observe(&mut self, layers: usize, margin: f32, right: bool) {
        if margin.is_nan() {
            return;
        }
        let Some(checkpoint) = self.checkpoints.iter_mut().find(|checkpoint| checkpoint.layers == layers)
        else {
            return;
        };
        self.observed += 1;
        let margins = if right { &mut checkpoint.right } else { &mut checkpoint.wrong };
        margins.observe(bin_of(margin));
    }
}

impl Margins {
    fn new() -> Margins {
        let from = std::array::from_fn(|bin| PRIOR * (BINS - bin) as f64);
        Margins { from, each: 1.0 / from[0] }
    }

    fn observe(&mut self, bin: usize) {
        self.from = self.from.map(|seen| seen * MEMORY);
        self.from[..=bin].iter_mut().for_each(|seen| *seen += 1.0);
        self.each = 1.0 / self.from[0];
    }
}

impl PruneCheckpoint {
    /// The tokens, time counted as such, that it brings in the mean to prune from each bin on.
    fn gains(&self, prospect: &Prospect, saved: f64) -> [f64; BINS] {
        let rest = prospect.rows as f64 * self.left * saved;
        // Tokens that pruning a right one loses are more than its rows are worth; the wrong ones' rows are won.
        let right = f64::from(prospect.acceptance) * (rest - f64::from(prospect.at_stake)) * self.right.each;
        let wrong = f64::from(1.0 - prospect.acceptance) * rest * self.wrong.each;
        std::array::from_fn(|bin| right * self.right.from[bin] + wrong * self.wrong.from[bin])
    }

    /// The most that pruning from some bin on brings; 0 if nothing is won. The first bin, of proposals in the lead, is never pruned.
    fn gain(&self, prospect: &Prospect, saved: f64) -> f64 {
        let [_, gains @ ..] = self.gains(prospect, saved);
        // Comparisons that compile to a maximum.
        gains.into_iter().fold(0.0, |best, gain| if gain > best { gain } else { best })
    }

    fn max_margin(&self, prospect: &Prospect, saved: f64) -> f32 {
        let gains = self.gains(prospect, saved);
        let best = (1..BINS).rev().fold((0.0, f32::INFINITY), |best, bin| {
            if gains[bin] > best.0 { (gains[bin], ENDS[bin - 1]) } else { best }
        });
        best.1
    }
}

/// Of many proposals some runs, each of which has the places of at least one chunk, if chunks are equal; of few all.
fn sampled<T>(proposals: &[T]) -> impl Iterator<Item = &T> + Clone {
    let (runs, run) = if proposals.len() > RUNS * RUN { (RUNS, RUN) } else { (1, proposals.len()) };
    (0..runs).flat_map(move |i| &proposals[i * proposals.len() / runs..][..run])
}

fn bin_of(margin: f32) -> usize {
    ENDS.iter().position(|&end| margin <= end).unwrap_or(BINS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROSPECT: Prospect = Prospect { acceptance: 0.6, at_stake: 1.5, rows: 2 };

    /// Right proposals mostly lead, wrong ones mostly trail; the more the later the checkpoint.
    fn taught() -> Pruning {
        let mut pruning = Pruning::new(32, true);
        for i in 0..4000 {
            for (layers, reliable) in [(8, 55), (16, 75), (24, 95)] {
                let honest = i % 100 < reliable;
                pruning.observe(layers, if honest { -1.0 } else { 3.0 }, true);
                pruning.observe(layers, if honest { 3.0 } else { -1.0 }, false);
            }
        }
        pruning
    }

    #[test]
    fn nothing_is_tested_where_rows_are_free() {
        let mut pruning = taught();
        assert!(!pruning.may_pay(0.0));
        assert_eq!(pruning.decide(&[PROSPECT; 10], 0.6, 20.0), PruneMode::Off);
        assert!(!pruning.wants_alternatives());
    }

    #[test]
    fn what_leaves_is_learned_and_forgotten_where_nothing_is_to() {
        let mut pruning = taught();
        assert!(pruning.may_pay(0.6));
        assert_eq!(pruning.leaving(20), 3);
        pruning.has_left(20, 20);
        assert_eq!(pruning.leaving(20), 3, "nothing was to leave");
        for _ in 0..100 {
            assert!(matches!(
                pruning.decide(&[PROSPECT; 10], 0.6, 20.0),
                PruneMode::Prune(_) | PruneMode::Watch
            ));
            pruning.has_left(0, 20);
            pruning.has_left(9, 0);
        }
        assert_eq!(pruning.leaving(20), 0);
        for _ in 0..400 {
            assert!(!matches!(pruning.decide(&[PROSPECT; 10], 0.0, 20.0), PruneMode::Prune(_)));
        }
        assert_eq!(pruning.leaving(20), 3);
    }

    #[test]
    fn of_many_proposals_those_of_all_places_are_sampled() {
        for k in 1..=K_LIMIT {
            for sequences in [1, 2, 9, 33, 55, 64, 89, 144, 233] {
                let proposals: Vec<usize> = (0..k * sequences).collect();
                let mut places = [0; K_LIMIT];
                sampled(&proposals).for_each(|i| places[i % k] += 1);
                assert!(
                    places[..k].iter().all(|&seen| seen >= RUNS.min(sequences)),
                    "{sequences} of {k}: {places:?}"
                );
                assert_eq!(places.iter().sum::<usize>(), proposals.len().min(RUNS * RUN));
            }
        }
        // What all are, some are: they decide as all would.
        let mut many = taught();
        let hopeless = Prospect { acceptance: 0.99, at_stake: 6.0, rows: 1 };
        assert!(many.may_pay(0.6));
        let mode = |many: &mut Pruning, prospects: &[Prospect], tokens| many.decide(prospects, 0.6, tokens);
        assert!(matches!(mode(&mut many, &[PROSPECT; 256], 500.0), PruneMode::Prune(_)));
        assert_eq!(mode(&mut many, &[hopeless; 256], 500.0), PruneMode::Off);
    }

    #[test]
    fn at_first_it_watches_and_then_prunes_at_the_checkpoint_that_pays() {
        let mut fresh = Pruning::new(32, true);
        assert!(fresh.may_pay(0.6));
        assert_eq!(fresh.decide(&[PROSPECT; 10], 0.6, 20.0), PruneMode::Watch);
        assert!(fresh.wants_alternatives());
        assert_eq!(fresh.layers(PruneMode::Watch).collect::<Vec<_>>(), [8, 16, 24]);
        let mut pruning = taught();
        assert!(pruning.may_pay(0.6));
        let PruneMode::Prune(checkpoint) = pruning.decide(&[PROSPECT; 10], 0.6, 20.0) else {
            panic!("it must pay")
        };
        assert!(checkpoint > 0, "the first checkpoint knows next to nothing");
        // A trailing proposal goes, a leading one stays.
        let max_margin = pruning.max_margin(PruneMode::Prune(checkpoint), &PROSPECT, 0.6);
        assert!((0.0..3.0).contains(&max_margin), "{max_margin}");
        // One that is nearly certain stays whatever the checkpoint says.
        let sure = Prospect { acceptance: 0.99, at_stake: 6.0, rows: 1 };
        assert_eq!(pruning.max_margin(PruneMode::Prune(checkpoint), &sure, 0.1), f32::INFINITY);
    }

    #[test]
    fn checkpoints_that_know_nothing_are_left_unused() {
        let mut pruning = Pruning::new(32, true);
        for i in 0..4000 {
            for layers in [8, 16, 24] {
                pruning.observe(layers, (i % 5) as f32 - 1.0, i % 2 == 0);
            }
        }
        assert!(pruning.may_pay(0.6));
        let decisions: Vec<_> = (0..200).map(|_| pruning.decide(&[PROSPECT; 10], 0.6, 20.0)).collect();
        assert!(decisions.iter().all(|mode| !matches!(mode, PruneMode::Prune(_))));
        let watched = decisions.iter().filter(|&&mode| mode == PruneMode::Watch).count();
        assert_eq!(watched, 200 / WATCH_EVERY as usize);
    }

    #[test]
    fn what_is_not_wanted_is_left_open_and_not_forgotten() {
        let mut pruning = taught();
        assert!(pruning.may_pay(0.6));
        pruning.want(false);
        assert_eq!(pruning.decide(&[PROSPECT; 10], 0.6, 20.0), PruneMode::Off);
        assert!(!pruning.wants_alternatives());
        assert!(!pruning.may_pay(0.6));
        pruning.want(true);
        assert!(pruning.may_pay(0.6));
        assert!(matches!(pruning.decide(&[PROSPECT; 10], 0.6, 20.0), PruneMode::Prune(_)));
    }

    #[test]
    fn a_target_of_one_layer_has_no_checkpoint() {
        assert!(Pruning::new(1, true).checkpoints.is_empty());
        assert_eq!(Pruning::new(3, true).layers(PruneMode::Watch).collect::<Vec<_>>(), [1, 2]);
    }
}
