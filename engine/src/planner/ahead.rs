//! Whether to prepare for verdicts while a verify pass runs, for which of them, how deep, and on which partition.
//!
//! What is prepared is of use if its verdict comes: then the next round finds proposals ready. What that brings is a round's gain at the price that time
//! has in a round where nothing is ready; what it costs is the longer pass, on a part of the device and with another lane at its memory.
//! Which sequences find theirs is drawn from the odds, evenly spread, a few times over.

use super::budget::{Batch, Budget, Candidate};
use crate::config::MOST_COPIES;
use crate::cost::{PartitionCosts, PassCost, Reach};
use crate::request::K_LIMIT;
use crate::source::{RoundPasses, SourceNeeds};

/// Gain, as a share of a round's tokens, above which preparing is begun, and below which it ends.
const BEGIN_ABOVE: f64 = 0.02;
const END_BELOW: f64 = 0.01;

/// Where preparing could not win more than this share of a round it is not looked at.
const LEAST_DRAFT_SHARE: f64 = 0.02;

/// Share of a pass that is filled: what is late has everybody wait.
const USED_SHARE: f64 = 0.97;

/// The same where some are far behind: to catch up is worth being somewhat late more often (measured).
const CATCH_UP_SHARE: f64 = 1.0;

/// The golden ratio's fraction: its multiples are spread evenly over 0 to 1.
const GOLDEN: f64 = 0.618_033_988_749_894_9;

/// A verdict that could be prepared for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Odds {
    /// Whose it is, counted among those that are looked at.
    pub(crate) index: usize,
    /// The rank that drafts for it.
    pub(crate) rank: usize,
    pub(crate) probability: f32,
    /// Probability of acceptance of what would be drafted.
    pub(crate) typical: f32,
    /// What one of its tokens counts for.
    pub(crate) weight: f32,
    /// Tokens that its rows look at.
    pub(crate) context: usize,
    /// Its candidate is not known before a step past the sequence's frontier.
    pub(crate) past: bool,
    /// The first step behind it is that step.
    pub(crate) own: bool,
}

/// What to prepare under a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Preparing {
    /// A step past each frontier first, for the candidates there.
    pub(crate) past: bool,
    /// So many of the likeliest verdicts, without those whose candidates nobody knows.
    pub(crate) count: usize,
    /// So deep.
    pub(crate) steps: usize,
}

/// What time of a pass is left besides what is prepared under it: the first draft pass as it is, and how long it may take. As if all ranks had what
/// the fullest has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Besides {
    /// Of the first pass.
    pub(crate) rows: usize,
    reach: Reach,
    until_s: f64,
}

impl Odds {
    /// Keeps the `most` likeliest, the likeliest first.
    pub(crate) fn keep_likeliest(odds: &mut Vec<Odds>, most: usize) {
        let likelier = |a: &Odds, b: &Odds| {
            let by = |odds: &Odds| odds.probability * odds.weight;
            by(b).total_cmp(&by(a)).then(a.index.cmp(&b.index))
        };
        if odds.len() > most {
            odds.select_nth_unstable_by(most, likelier);
            odds.truncate(most);
        }
        odds.sort_unstable_by(likelier);
    }
}

/// What drafting costs on a partition, for a source that needs this.
#[derive(Clone, Copy, Debug)]
pub(super) struct Drafting<'a> {
    pub(super) needs: &'a SourceNeeds,
    pub(super) costs: &'a PassCost,
}

impl Drafting<'_> {
    /// Seconds of so many proposals for each of some chunks, all of one row, behind so many tokens in all.
    fn seconds(&self, chunks: usize, proposals: usize, context: usize) -> f64 {
        let pass_s = |rows| self.costs.seconds(rows, Reach::single(context));
        match self.needs.passes {
            _ if proposals == 0 => 0.0,
            RoundPasses::One => pass_s(chunks * (1 + self.needs.rows_behind(proposals))),
            _ => proposals as f64 * pass_s(chunks),
        }
    }

    /// What is left of so many seconds besides so many proposals for each of these verdicts.
    pub(super) fn besides<'o>(
        &self,
        verdicts: impl Iterator<Item = &'o Odds>,
        proposals: usize,
        left_s: f64,
    ) -> Besides {
        let ranks = self.costs.ranks();
        let mut on_ranks = [(0, 0); MOST_COPIES];
        for odds in verdicts {
            let (chunks, context) = &mut on_ranks[odds.rank];
            (*chunks, *context) = (*chunks + 1, *context + odds.context);
        }
        let (chunks, context) = on_ranks.into_iter().max().unwrap_or_default();
        let (chunks, context) = (chunks * ranks, context * ranks);
        let behind = if self.needs.passes.is_one() { self.needs.rows_behind(proposals) } else { 0 };
        let (rows, reach) = (chunks * (1 + behind), Reach::single(context));
        let spare_s = CATCH_UP_SHARE * left_s - self.seconds(chunks, proposals, context);
        Besides { rows, reach, until_s: self.costs.seconds(rows, reach) + spare_s }
    }

    /// The first pass with so many rows more of one sequence, behind so many tokens of it.
    fn with(&self, besides: &Besides, rows: usize, start: usize) -> (usize, Reach) {
        let (ranks, reach) = (self.costs.ranks(), besides.reach);
        let of_rows = reach.rows + ranks * rows * (start + rows / 2);
        (besides.rows + ranks * rows, Reach { kv: reach.kv + ranks * (start + rows), rows: of_rows })
    }

    /// Rows of one sequence more, behind so many tokens of it, that there is time for; at most `most`.
    pub(super) fn rows_more(&self, besides: &Besides, start: usize, most: usize) -> usize {
        let (mut fit, mut beyond) = (0, most + 1);
        while beyond - fit > 1 {
            let middle = fit.midpoint(beyond);
            let (rows, reach) = self.with(besides, middle, start);
            *(if self.costs.seconds(rows, reach) <= besides.until_s { &mut fit } else { &mut beyond }) =
                middle;
        }
        fit
    }

    /// So many rows more of one sequence have their part of it.
    pub(super) fn takes(&self, besides: &mut Besides, rows: usize, start: usize) {
        (besides.rows, besides.reach) = self.with(besides, rows, start);
    }

    /// The most proposals for each, at most `most`, in so many seconds.
    fn depth(&self, chunks: usize, context: usize, left_s: f64, most: usize) -> usize {
        match self.needs.passes {
            RoundPasses::One => {
                (1..=most).rev().find(|k| self.seconds(chunks, *k, context) <= left_s).unwrap_or(0)
            }
            _ => ((left_s / self.seconds(chunks, 1, context)) as usize).min(most),
        }
    }
}

/// How many of the likeliest verdicts to prepare for, `most` of them, and how many steps deep, in so many seconds: few of them deep, or many less so,
/// whichever has more proposals ready in the mean; and whether a step past the frontiers, which takes `past_s`, is worth it.
pub(super) fn prepare(
    odds: &[Odds],
    left_s: f64,
    most: usize,
    past_s: f64,
    drafting: Drafting<'_>,
) -> Preparing {
    let left_s = USED_SHARE * left_s;
    let without = breadth_and_depth(odds.iter().filter(|odds| !odds.past), left_s, most, false, drafting);
    let with = breadth_and_depth(odds.iter(), left_s - past_s, most, true, drafting);
    let past = with.0 > without.0;
    let (_, (count, steps)) = if past { with } else { without };
    Preparing { past, count, steps }
}

/// The proposals ready in the mean, of how many verdicts, and how deep.
fn breadth_and_depth<'a>(
    odds: impl Iterator<Item = &'a Odds>,
    left_s: f64,
    most: usize,
    past: bool,
    drafting: Drafting<'_>,
) -> (f64, (usize, usize)) {
    let (mut best, mut chosen) = (0.0, (0, 0));
    let (mut mass, mut typical, mut own) = (0.0, 0.0, 0.0);
    let mut steps = K_LIMIT;
    let ranks = drafting.costs.ranks();
    // Chunks of each rank, and their tokens: all wait for the fullest.
    let mut on_ranks = [(0, 0); MOST_COPIES];
    let mut fullest = (0, 0);
    for (before, odds) in odds.take(most).enumerate() {
        let own_rank = &mut on_ranks[odds.rank];
        *own_rank = (own_rank.0 + 1, own_rank.1 + odds.context);
        fullest = fullest.max(*own_rank);
        let counts = f64::from(odds.probability * odds.weight);
        mass += counts;
        typical += counts * f64::from(odds.typical);
        own += if odds.own && !past { counts } else { 0.0 };
        // More of them are never deeper.
        steps = drafting.depth(fullest.0 * ranks, fullest.1 * ranks, left_s, steps);
        if steps == 0 {
            break;
        }
        let ready = |steps| run_length(typical / mass, steps);
        let value = (mass - own) * ready(steps) + own * ready(steps - 1);
        if value > best {
            (best, chosen) = (value, (before + 1, steps));
        }
    }
    (best, chosen)
}

/// Proposals accepted in the mean of so many, each with this probability after those before it.
pub(crate) fn run_length(acceptance: f64, proposals: usize) -> f64 {
    let acceptance = acceptance.clamp(0.0, 0.999);
    acceptance * (1.0 - acceptance.powi(proposals as i32)) / (1.0 - acceptance)
}

/// Passes that are not looked at where preparing was far from paying, unless the batch changes.
const LOOK_AGAIN_AFTER: u32 = 7;
/// Sequences for one such pass more where it nearly pays, or is done already on another partition: to look costs the host's time, which grows with them, while the device waits.
const LOOKS_FOR: usize = 8;
/// Look after look in vain twice as many are not looked at, up to one for so many sequences, and never more than so many: so
/// what looking costs a pass in the mean hardly grows with them.
const SEQUENCES_A_SKIP: usize = 2;
const MOST_SKIPS: u32 = 64;
/// The batch has changed if it has by so much of itself.
const CHANGED: f64 = 0.125;

/// Looks at a round whose verify pass is about to leave. Its buffers are kept.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// Passes that are not looked at any more, and the sequences of the one that was.
    skips: u32,
    sequences: usize,
    /// Looks at batches like that one that found nothing, one after the other.
    in_vain: u32,
    /// Overlapped passes for which no other partition than theirs is looked at any more, while that one pays.
    stays: u32,
    /// The sequences as they would be if nothing were prepared.
    bare: Vec<Candidate>,
    /// The sequences as they would be if some found theirs.
    imagined: Vec<Candidate>,
    /// Probability of each sequence that it does, and that the first step behind it is its own step past the frontier.
    hits: Vec<(f32, f32)>,
    /// Tokens a second of the best round where nothing is prepared, as of the last pass that was looked at; all tokens count the same.
    pub(super) serial_goodput: f64,
}

/// A pass that is about to leave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaving<'a> {
    /// Verdicts that could be prepared for, likeliest first, by the numbers of candidates.
    pub(crate) odds: &'a [Odds],
    /// The most of them that the draft lane takes together.
    pub(crate) most: usize,
    /// Rows of the pass.
    pub(crate) rows: usize,
    pub(crate) reach: Reach,
    /// Rows of a step of each sequence past its frontier.
    pub(crate) past_rows: usize,
    /// The draft lane is at work on what was begun under the pass before.
    pub(crate) draft_busy: bool,
}

impl Ahead {
    /// Is a pass of so many sequences to be looked at, where nothing is prepared now?
    pub(super) fn looks(&mut self, sequences: usize) -> bool {
        self.skips = self.skips.saturating_sub(1);
        self.skips == 0 || self.changed(sequences)
    }

    /// The next pass is looked at as the first was: what was found holds no more.
    pub(super) fn forget(&mut self) {
        (self.skips, self.in_vain, self.stays) = (0, 0, 0);
    }

    fn changed(&self, sequences: usize) -> bool {
        self.sequences.abs_diff(sequences) as f64 > CHANGED * self.sequences as f64
    }

    /// So many passes that are not looked at, or more where looks were in vain.
    fn rarely(&self, skips: u32) -> u32 {
        let most = MOST_SKIPS.min((self.sequences / SEQUENCES_A_SKIP) as u32);
        (skips << self.in_vain.min(8)).min(skips.max(most))
    }

    /// The place in `partitions`, not the first, that gains most; none if none gains enough. `now` is what stands; with `only` no other is
    /// looked at; an overlapped round takes `more_s` longer beyond its passes.
    pub(super) fn partition(
        &mut self,
        batch: &Batch<'_>,
        leaving: &Leaving<'_>,
        partitions: &[PartitionCosts],
        (now, only, more_s): (Option<usize>, Option<usize>, f64),
        budget: &mut Budget,
    ) -> Option<usize> {
        let whole = partitions.first()?;
        let sequences = batch.candidates.len();
        if self.changed(sequences) || now.is_some() {
            self.in_vain = 0;
        }
        self.sequences = sequences;
        self.skips = 1 + self.rarely(LOOK_AGAIN_AFTER);
        let soon = LOOK_AGAIN_AFTER.min((sequences / LOOKS_FOR) as u32);
        let stays = now.is_some() && self.stays > 0;
        self.stays = if stays { self.stays - 1 } else { soon };
        self.bare.clear();
        self.bare.extend(batch.candidates.iter().map(|candidate| Candidate {
            ready: 0,
            expected: 0.0,
            survival: 1.0,
            ..*candidate
        }));
        let bare = Batch { candidates: &self.bare, ..*batch };
        let (goodput, depth) = budget.goodput(&bare, whole);
        let weights: f64 = batch.candidates.iter().map(|candidate| f64::from(candidate.weight)).sum();
        self.serial_goodput = goodput * sequences as f64 / weights.max(f64::MIN_POSITIVE);
        let pass_s = whole.verify.seconds(leaving.rows, leaving.reach);
        let context: usize = batch.candidates.iter().map(|candidate| candidate.context).sum();
        let needs = budget.needs();
        let draft_s = Drafting { needs, costs: &whole.draft }.seconds(sequences, depth, context);
        let seconds = draft_s + pass_s;
        if draft_s < LEAST_DRAFT_SHARE * seconds {
            self.in_vain = self.in_vain.saturating_add(1);
            return None;
        }
        let (mut best, mut highest) = ((0.0, None), 0.0_f64);
        // The one that stands comes first: while it pays no other is looked at.
        let others = || partitions.iter().enumerate().skip(1);
        let standing = others().filter(|(place, _)| now == Some(*place));
        for (place, costs) in standing.chain(others().filter(|(place, _)| now != Some(*place))) {
            if stays && best.1.is_some() {
                break;
            }
            // What the draft lane has begun it ends where it began it.
            if leaving.draft_busy && now != Some(place) || only.is_some_and(|only| only != place) {
                continue;
            }
            let gain = self.gain(batch, leaving, costs, goodput, whole, budget) - goodput * more_s;
            let bar = if now == Some(place) { END_BELOW } else { BEGIN_ABOVE };
            if gain > best.0 && gain > bar * goodput * seconds {
                best = (gain, Some(place));
            }
            highest = highest.max(gain);
        }
        if leaving.draft_busy {
            self.skips = 0;
        } else if highest > END_BELOW * goodput * seconds {
            self.skips = 1 + self.rarely(soon);
        }
        self.in_vain = match best.1 {
            Some(_) => 0,
            // Where the draft lane is busy elsewhere nothing was tried.
            None => self.in_vain.saturating_add(u32::from(!leaving.draft_busy)),
        };
        best.1
    }

    /// Tokens that preparing on a partition is predicted to gain, negative infinity if there is nothing to prepare; time counts as tokens, at this goodput.
    fn gain(
        &mut self,
        batch: &Batch<'_>,
        leaving: &Leaving<'_>,
        costs: &PartitionCosts,
        goodput: f64,
        whole: &PartitionCosts,
        budget: &mut Budget,
    ) -> f64 {
        let context: usize = batch.candidates.iter().map(|candidate| candidate.context).sum();
        let pass_s = whole.verify.seconds(leaving.rows, leaving.reach);
        let longer_s = costs.verify.seconds(leaving.rows, leaving.reach);
        let past_s = costs.draft.seconds(leaving.past_rows, Reach::single(context));
        let drafting = Drafting { needs: budget.needs(), costs: &costs.draft };
        let Preparing { past, count, steps } =
            prepare(leaving.odds, longer_s, leaving.most, past_s, drafting);
        if count == 0 {
            return f64::NEG_INFINITY;
        }
        self.hits.clear();
        self.hits.resize(self.bare.len(), (0.0, 0.0));
        for odds in leaving.odds.iter().filter(|odds| past || !odds.past).take(count) {
            let (found, by_own_step) = &mut self.hits[odds.index];
            *found += odds.probability;
            *by_own_step += if odds.own && !past { odds.probability } else { 0.0 };
        }
        let next = self.next_round(batch, steps, goodput, whole, budget);
        next - goodput * (longer_s - pass_s)
    }

    /// Tokens, time counted as such, of the next round in the mean, where who finds theirs has so many proposals ready, or one less where the first
    /// step was its own, less those of a round where nobody has any.
    fn next_round(
        &mut self,
        batch: &Batch<'_>,
        steps: usize,
        goodput: f64,
        whole: &PartitionCosts,
        budget: &mut Budget,
    ) -> f64 {
        let draws = if self.bare.len() <= 8 { 8 } else { 4 };
        let mut sum = 0.0;
        for draw in 0..draws {
            let offset = (draw as f64 + 0.5) / draws as f64;
            self.imagined.clear();
            self.imagined.extend(self.bare.iter().zip(&self.hits).enumerate().map(
                |(i, (candidate, &(found, by_own_step)))| {
                    let luck = (offset + GOLDEN * i as f64).fract();
                    if luck < f64::from(by_own_step) {
                        candidate.with_ready(steps - 1)
                    } else if luck < f64::from(found) {
                        candidate.with_ready(steps)
                    } else {
                        *candidate
                    }
                },
            ));
            sum += budget.value(&Batch { candidates: &self.imagined, ..*batch }, goodput, whole);
        }
        sum / f64::from(draws)
    }
}

impl Candidate {
    /// The same sequence with so many proposals ready, of typical acceptance.
    fn with_ready(self, ready: usize) -> Candidate {
        let ready = ready.min(self.useful);
        let survivals = (1..=ready as i32).map(|i| self.typical.powi(i));
        Candidate { ready, expected: survivals.sum(), survival: self.typical.powi(ready as i32), ..self }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::budget::{Displaced, Prefill};
    use super::*;
    use crate::cost::AttentionCost;

    fn odds(probabilities: &[f32], past: bool) -> Vec<Odds> {
        let of = |(index, &probability)| Odds {
            index,
            rank: 0,
            probability,
            typical: 0.8,
            weight: 1.0,
            context: 100,
            past,
            own: false,
        };
        probabilities.iter().enumerate().map(of).collect()
    }

    const MODEL: SourceNeeds = SourceNeeds {
        passes: RoundPasses::EachProposal,
        blocks: 1,
        keeps_proposals: true,
        hidden_states: false,
        block: None,
    };

    fn of_model(costs: &PassCost) -> Drafting<'_> {
        Drafting { needs: &MODEL, costs }
    }

    #[test]
    fn where_rows_are_free_all_are_prepared_for_and_where_they_cost_the_likeliest_deep() {
        let odds = odds(&[0.5, 0.1, 0.1, 0.05], false);
        let with = |row_us, left_s| {
            let draft = PassCost::linear(1000, row_us, AttentionCost::default());
            prepare(&odds, left_s, 64, 1e-3, of_model(&draft))
        };
        // Nearly all of 10 ms.
        assert_eq!(with(0, 0.01), Preparing { past: false, count: 4, steps: 9 });
        let few = with(1000, 0.01);
        assert!(few.count < 4 && few.steps > 1, "{few:?}");
        assert_eq!(with(0, 0.0005), Preparing::default());
    }

    #[test]
    fn a_step_past_the_frontiers_is_taken_for_what_it_brings() {
        let draft = PassCost::linear(1000, 0, AttentionCost::default());
        let of = |known: f32, unknown: f32| {
            let mut all = odds(&[known], false);
            all.extend(odds(&[unknown], true));
            prepare(&all, 0.01, 64, 1e-3, of_model(&draft))
        };
        assert_eq!(of(0.5, 0.01), Preparing { past: false, count: 1, steps: 9 });
        assert_eq!(of(0.3, 0.3), Preparing { past: true, count: 2, steps: 8 });
    }

    #[test]
    fn of_one_pass_all_are_as_deep_as_its_rows_fit() {
        let needs = SourceNeeds { passes: RoundPasses::One, keeps_proposals: false, ..MODEL };
        let odds = odds(&[0.4, 0.3], true);
        let with = |row_us, left_s| {
            let costs = PassCost::linear(1000, row_us, AttentionCost::default());
            prepare(&odds, left_s, 64, 1e-3, Drafting { needs: &needs, costs: &costs })
        };
        // A step past the frontiers, and a pass: depth is free as long as rows are.
        assert_eq!(with(0, 0.0025), Preparing { past: true, count: 2, steps: K_LIMIT });
        // Eight rows.
        assert_eq!(with(125, 0.00315), Preparing { past: true, count: 2, steps: 4 });
        assert_eq!(with(0, 0.0015), Preparing::default());
    }

    /// The partition that is chosen for a pass of so many sequences, whose verdicts are likely; their first step is their own.
    fn look(
        ahead: &mut Ahead,
        (sequences, own): (usize, bool),
        partitions: &[PartitionCosts],
        now: Option<usize>,
    ) -> Option<usize> {
        let candidates = vec![Candidate { context: 100, ..Candidate::fresh() }; sequences];
        let (prefill, displaced) = (Prefill::default(), Displaced::default());
        let batch = Batch { candidates: &candidates, rows: 512, prefill, displaced };
        let mut odds = odds(&vec![0.9; sequences], false);
        odds.iter_mut().for_each(|odds| odds.own = own);
        let reach = Reach::single(100 * sequences);
        let (rows, past_rows) = (3 * sequences, sequences);
        let leaving = Leaving { odds: &odds, most: 64, rows, reach, past_rows, draft_busy: false };
        ahead.partition(&batch, &leaving, partitions, (now, None, 0.0), &mut Budget::new(MODEL))
    }

    fn of_passes(draft_us: u64, verify_us: u64) -> PartitionCosts {
        let cost = |pass_us, row_us| PassCost::linear(pass_us, row_us, AttentionCost::default());
        PartitionCosts { draft: cost(draft_us, 0), verify: cost(verify_us, 20) }
    }

    #[test]
    fn a_step_of_its_own_leaves_one_proposal_less() {
        // There is time for two steps. The longest pass under which they pay:
        let longest = |own| {
            let pays = |us: &u64| {
                let partitions = [of_passes(4000, 10_000), of_passes(6000, *us)];
                look(&mut Ahead::default(), (8, own), &partitions, None).is_some()
            };
            (12_400..18_000).step_by(100).take_while(pays).last()
        };
        let (own, found) = (longest(true), longest(false));
        assert!(own > Some(12_400) && own < found && found < Some(17_900), "{own:?} {found:?}");
    }

    #[test]
    fn who_is_far_behind_has_the_time_that_is_left_of_the_fullest_rank() {
        // Steps of 64 rows, 1 ms each.
        let step = |rows: usize| (rows, Duration::from_millis(rows.div_ceil(64) as u64));
        let costs = PassCost::new(&(1..=512).map(step).collect::<Vec<_>>(), AttentionCost::default());
        let drafting = of_model(&costs);
        let odds = odds(&[0.5; 60], false);
        let left_s = 8.5e-3 / CATCH_UP_SHARE;
        let mut besides = drafting.besides(odds.iter(), 4, left_s);
        // Four steps of a millisecond; 60 rows are in the first, and four and a half are left.
        assert_eq!(drafting.rows_more(&besides, 0, 4096), 4 + 4 * 64);
        assert_eq!(drafting.rows_more(&besides, 0, 100), 100);
        drafting.takes(&mut besides, 100, 0);
        assert_eq!((besides.rows, drafting.rows_more(&besides, 0, 4096)), (160, 160));
        let late = drafting.besides(odds.iter(), 9, left_s);
        assert_eq!(drafting.rows_more(&late, 0, 4096), 0);
        // What its rows look at counts.
        let attention = AttentionCost { per_kv_fs: 0, per_row_fs: 1_000_000_000 };
        let costs = PassCost::linear(1000, 0, attention);
        let besides = of_model(&costs).besides(odds[..1].iter(), 1, 10e-3);
        let [near, far] = [100, 4000].map(|start| of_model(&costs).rows_more(&besides, start, 4096));
        assert!(far > 0 && near > 10 * far, "{near} {far}");
        // On the fullest of two ranks.
        let mut apart = odds[..40].to_vec();
        apart[..10].iter_mut().for_each(|odds| odds.rank = 1);
        let two = PassCost::new(&(1..=512).map(step).collect::<Vec<_>>(), AttentionCost::default()).over(2);
        let besides = of_model(&two).besides(apart.iter(), 1, 2.5e-3 / CATCH_UP_SHARE);
        assert_eq!((besides.rows, of_model(&two).rows_more(&besides, 0, 4096)), (60, 34 + 64));
    }

    #[test]
    fn where_the_partition_that_stands_does_not_pay_others_are_looked_at_at_once() {
        let (pays, loses) = (of_passes(5000, 10_500), of_passes(4500, 40_000));
        let mut ahead = Ahead::default();
        let partitions = [of_passes(4000, 10_000), pays.clone(), loses.clone()];
        assert_eq!(look(&mut ahead, (64, false), &partitions, None), Some(1));
        assert!(ahead.stays > 0);
        // Another pass, which takes longer on the first.
        let partitions = [of_passes(4000, 10_000), loses, pays];
        assert_eq!(look(&mut ahead, (64, false), &partitions, Some(1)), Some(2));
    }

    #[test]
    fn what_never_pays_is_looked_at_ever_more_rarely_until_the_batch_changes() {
        let candidate = Candidate { context: 100, ..Candidate::fresh() };
        let cost = |pass_us| PassCost::linear(pass_us, 20, AttentionCost::default());
        let of = |pass_us| PartitionCosts { draft: cost(1500), verify: cost(pass_us) };
        // Overlapped, a pass takes twice as long.
        let partitions = [of(20_000), of(40_000)];
        let passes_between_looks = |sequences: usize| {
            let candidates = vec![candidate; sequences];
            let batch = Batch {
                candidates: &candidates,
                rows: 512,
                prefill: Prefill::default(),
                displaced: Displaced::default(),
            };
            let odds = odds(&vec![0.3; sequences], false);
            let reach = Reach::single(100 * sequences);
            let leaving = Leaving {
                odds: &odds,
                most: 64,
                rows: 3 * sequences,
                reach,
                past_rows: sequences,
                draft_busy: false,
            };
            let (mut ahead, mut budget) = (Ahead::default(), Budget::new(MODEL));
            let mut look = |pass| {
                let looks = ahead.looks(sequences);
                if looks {
                    assert_eq!(
                        ahead.partition(&batch, &leaving, &partitions, (None, None, 0.0), &mut budget),
                        None
                    );
                }
                looks.then_some(pass)
            };
            let at: Vec<usize> = (0..402).filter_map(&mut look).collect();
            assert!(!ahead.looks(sequences));
            assert!(ahead.looks(2 * sequences) && ahead.looks(sequences / 2), "the batch has changed");
            // What was in vain for another batch, or by other costs, is tried as often as at first.
            (ahead.skips, ahead.sequences) = (0, 2 * sequences);
            let mut again = |ahead: &mut Ahead| {
                let look = (None, None, 0.0);
                ahead.partition(&batch, &leaving, &partitions, look, &mut budget);
                (0..100).position(|_| ahead.looks(sequences))
            };
            assert_eq!(again(&mut ahead), Some(7));
            ahead.forget();
            assert!(ahead.looks(sequences));
            assert_eq!(again(&mut ahead), Some(7));
            at.windows(2).map(|pair| pair[1] - pair[0]).collect::<Vec<_>>()
        };
        assert_eq!(passes_between_looks(64)[..5], [8, 15, 29, 33, 33]);
        assert_eq!(passes_between_looks(512)[..6], [8, 15, 29, 57, 65, 65]);
        assert!(passes_between_looks(8).iter().all(|&passes| passes == 8));
    }
}
