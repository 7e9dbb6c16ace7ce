//! Pruning inside a verify pass: at which gate, from which gap on, or not at all (D3d).
//!
//! A gate is a place between two layers. There the state of a row is scored against the draft's own candidates for the next
//! token; by how much the best rival leads over the proposal is the gap. What gaps mean is learned: for each gate, how
//! often each size of gap is seen of proposals that turn out right, and of those that turn out wrong. By Bayes' rule that
//! turns a proposal's acceptance, as it was believed before the pass, into one that knows the gap; if what is then
//! at stake is worth less than the rest of the pass for the rows concerned, they leave.

/// Places of the gates, as shares of the layers.
const DEPTHS: [f64; 3] = [0.25, 0.5, 0.75];

/// Upper ends of the bins of gaps, in logits; the last bin is open. A proposal in the lead is in the first.
const ENDS: [f32; 7] = [0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0];
const BINS: usize = ENDS.len() + 1;

/// Gaps of each bin that a fresh gate is believed to have seen, of right proposals and of wrong ones alike.
const PRIOR: f64 = 2.0;
/// What an observation still counts after one more: the memory is about 5,000 proposals.
const MEMORY: f64 = 0.9998;
/// All gates are watched in one pass of so many, even while none prunes.
const WATCH_EVERY: u32 = 64;
/// Until so many gaps are known, every pass is watched.
const ENOUGH: u64 = 400;
/// Gain below which a pass is left whole, as a share of the tokens it commits.
const WORTH_A_GATE: f64 = 0.005;
/// A row that costs less than this, in tokens, is never worth pruning.
const CHEAP_ROW: f64 = 0.01;

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
    gates: Vec<Gate>,
    wanted: bool,
    observed: u64,
    unwatched: u32,
    /// Rows cost enough that pruning may pay at all.
    rows_cost: bool,
    /// The last pass pruned.
    active: bool,
}

/// What a pass is to do about its proposals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gating {
    /// No test.
    Open,
    /// Tests at all gates, after which everything stays.
    Watch,
    /// Tests at this gate.
    Prune(usize),
}

#[derive(Debug)]
struct Gate {
    layers: usize,
    /// Share of the pass behind it.
    left: f64,
    right: [f64; BINS],
    wrong: [f64; BINS],
}

impl Pruning {
    /// Gates for a target of so many layers; none if it has too few. They stay open as long as pruning is not wanted.
    pub(crate) fn new(target_layers: usize, wanted: bool) -> Pruning {
        let gate = |depth: f64| {
            let layers = (depth * target_layers as f64).round() as usize;
            let left = 1.0 - layers as f64 / target_layers.max(1) as f64;
            (layers > 0 && left > 0.0).then_some(Gate {
                layers,
                left,
                right: [PRIOR; BINS],
                wrong: [PRIOR; BINS],
            })
        };
        let mut gates: Vec<Gate> = DEPTHS.into_iter().filter_map(gate).collect();
        gates.dedup_by_key(|gate| gate.layers);
        Pruning { gates, wanted, observed: 0, unwatched: 0, rows_cost: false, active: false }
    }

    /// From now on it is wanted, or not; what was learned stays.
    pub(crate) fn want(&mut self, wanted: bool) {
        self.wanted = wanted;
        self.active &= wanted;
    }

    /// Should proposals be drafted with their rivals?
    pub(crate) fn wants_rivals(&self) -> bool {
        // A pass or two lie between a draft and its verification.
        let watch_is_near = self.observed < ENOUGH || self.unwatched + 4 >= WATCH_EVERY;
        self.wanted && !self.gates.is_empty() && self.rows_cost && (self.active || watch_is_near)
    }

    /// Decides on a pass that commits `tokens` in the mean, and whose rows cost `row_worth` tokens each.
    pub(crate) fn decide(&mut self, prospects: &[Prospect], row_worth: f64, tokens: f64) -> Gating {
        self.rows_cost = row_worth > CHEAP_ROW;
        self.active = false;
        if !self.wanted || self.gates.is_empty() || !self.rows_cost || prospects.is_empty() {
            return Gating::Open;
        }
        self.unwatched += 1;
        if self.observed < ENOUGH || self.unwatched >= WATCH_EVERY {
            self.unwatched = 0;
            return Gating::Watch;
        }
        let gain =
            |gate: &Gate| prospects.iter().map(|prospect| gate.best(prospect, row_worth).1).sum::<f64>();
        let gains = self.gates.iter().map(gain).enumerate();
        match gains.max_by(|a, b| a.1.total_cmp(&b.1)) {
            Some((gate, gain)) if gain > WORTH_A_GATE * tokens => {
                self.active = true;
                Gating::Prune(gate)
            }
            _ => Gating::Open,
        }
    }

    /// The layers done at the gates a pass has.
    pub(crate) fn layers(&self, gating: Gating) -> impl Iterator<Item = usize> {
        let gates = match gating {
            Gating::Open => &[],
            Gating::Watch => self.gates.as_slice(),
            Gating::Prune(gate) => &self.gates[gate..=gate],
        };
        gates.iter().map(|gate| gate.layers)
    }

    /// The gap above which a proposal leaves the pass.
    pub(crate) fn max_gap(&self, gating: Gating, prospect: &Prospect, row_worth: f64) -> f32 {
        match gating {
            Gating::Prune(gate) => self.gates[gate].max_gap(prospect, row_worth),
            Gating::Open | Gating::Watch => f32::INFINITY,
        }
    }

    /// Learns what the gap at a gate meant.
    pub(crate) fn observe(&mut self, layers: usize, gap: f32, right: bool) {
        if gap.is_nan() {
            return;
        }
        let Some(gate) = self.gates.iter_mut().find(|gate| gate.layers == layers) else { return };
        self.observed += 1;
        let bins = if right { &mut gate.right } else { &mut gate.wrong };
        bins.iter_mut().for_each(|bin| *bin *= MEMORY);
        bins[bin_of(gap)] += 1.0;
    }
}

impl Gate {
    /// The bin from which on everything is best pruned, and the tokens' worth of time that this brings in the mean. `BINS`,
    /// and 0, if nothing is.
    fn best(&self, prospect: &Prospect, row_worth: f64) -> (usize, f64) {
        let saved = self.saved(prospect, row_worth);
        let (mut best, mut gain) = ((BINS, 0.0), 0.0);
        for bin in (1..BINS).rev() {
            gain += self.seen(bin, prospect) * saved - self.lost(bin, prospect);
            if gain > best.1 {
                best = (bin, gain);
            }
        }
        best
    }

    fn max_gap(&self, prospect: &Prospect, row_worth: f64) -> f32 {
        match self.best(prospect, row_worth).0 {
            BINS => f32::INFINITY,
            bin => ENDS[bin - 1],
        }
    }

    fn saved(&self, prospect: &Prospect, row_worth: f64) -> f64 {
        prospect.rows as f64 * self.left * row_worth
    }

    /// Probability of a gap in this bin.
    fn seen(&self, bin: usize, prospect: &Prospect) -> f64 {
        let wrong = f64::from(1.0 - prospect.acceptance) * share(&self.wrong, bin);
        f64::from(prospect.acceptance) * share(&self.right, bin) + wrong
    }

    /// Tokens lost in the mean by pruning gaps in this bin.
    fn lost(&self, bin: usize, prospect: &Prospect) -> f64 {
        f64::from(prospect.acceptance * prospect.at_stake) * share(&self.right, bin)
    }
}

fn share(bins: &[f64; BINS], bin: usize) -> f64 {
    bins[bin] / bins.iter().sum::<f64>()
}

fn bin_of(gap: f32) -> usize {
    ENDS.iter().position(|&end| gap <= end).unwrap_or(BINS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROSPECT: Prospect = Prospect { acceptance: 0.6, at_stake: 1.5, rows: 2 };

    /// Right proposals mostly lead, wrong ones mostly trail; the more the later the gate.
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
        assert_eq!(pruning.decide(&[PROSPECT; 10], 0.0, 20.0), Gating::Open);
        assert!(!pruning.wants_rivals());
    }

    #[test]
    fn at_first_it_watches_and_then_prunes_at_the_gate_that_pays() {
        let mut fresh = Pruning::new(32, true);
        assert_eq!(fresh.decide(&[PROSPECT; 10], 0.6, 20.0), Gating::Watch);
        assert!(fresh.wants_rivals());
        assert_eq!(fresh.layers(Gating::Watch).collect::<Vec<_>>(), [8, 16, 24]);
        let mut pruning = taught();
        let Gating::Prune(gate) = pruning.decide(&[PROSPECT; 10], 0.6, 20.0) else { panic!("it must pay") };
        assert!(gate > 0, "the first gate knows next to nothing");
        // A trailing proposal goes, a leading one stays.
        let max_gap = pruning.max_gap(Gating::Prune(gate), &PROSPECT, 0.6);
        assert!((0.0..3.0).contains(&max_gap), "{max_gap}");
        // One that is nearly certain stays whatever the gate says.
        let sure = Prospect { acceptance: 0.99, at_stake: 6.0, rows: 1 };
        assert_eq!(pruning.max_gap(Gating::Prune(gate), &sure, 0.1), f32::INFINITY);
    }

    #[test]
    fn gates_that_know_nothing_are_left_open() {
        let mut pruning = Pruning::new(32, true);
        for i in 0..4000 {
            for layers in [8, 16, 24] {
                pruning.observe(layers, (i % 5) as f32 - 1.0, i % 2 == 0);
            }
        }
        let decisions: Vec<_> = (0..200).map(|_| pruning.decide(&[PROSPECT; 10], 0.6, 20.0)).collect();
        assert!(decisions.iter().all(|gating| !matches!(gating, Gating::Prune(_))));
        let watched = decisions.iter().filter(|&&gating| gating == Gating::Watch).count();
        assert_eq!(watched, 200 / WATCH_EVERY as usize);
    }

    #[test]
    fn what_is_not_wanted_is_left_open_and_not_forgotten() {
        let mut pruning = taught();
        pruning.want(false);
        assert_eq!(pruning.decide(&[PROSPECT; 10], 0.6, 20.0), Gating::Open);
        assert!(!pruning.wants_rivals());
        pruning.want(true);
        assert!(matches!(pruning.decide(&[PROSPECT; 10], 0.6, 20.0), Gating::Prune(_)));
    }

    #[test]
    fn a_target_of_one_layer_has_no_gate() {
        assert!(Pruning::new(1, true).gates.is_empty());
        assert_eq!(Pruning::new(3, true).layers(Gating::Watch).collect::<Vec<_>>(), [1, 2]);
    }
}
