//! Whether to draft past the frontier while a verify pass runs, and on which partition.
//!
//! What is drafted past the frontier is of use if the whole chunk is accepted and the next token is what was drafted in its
//! place: then the next round finds proposals ready. What that brings is a round's gain at the price that time has in a
//! round where nothing is ready; what it costs is the longer pass, on a part of the device and with another lane at
//! its memory. Which sequences succeed is drawn from their survivals, evenly spread, a few times over.

use super::budget::{Batch, Budget, Candidate};
use crate::cost::{PartitionCosts, Reach};
use crate::request::K_LIMIT;

/// A chance of success below which a sequence does not draft ahead.
pub(crate) const MIN_CHANCE_AHEAD: f32 = 0.1;

/// Gain, as a share of a round's tokens, above which drafting ahead is begun, and below which it ends.
const BEGIN_ABOVE: f64 = 0.03;
const END_BELOW: f64 = 0.015;

/// Where drafting ahead could not win more than this share of a round it is not looked at.
const LEAST_DRAFT_SHARE: f64 = 0.02;

/// The golden ratio's fraction: its multiples are spread evenly over 0 to 1.
const GOLDEN: f64 = 0.618_033_988_749_894_9;

/// Looks at a round whose verify pass is about to leave. Its buffers are kept.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// The sequences as they would be if nothing were drafted ahead.
    bare: Vec<Candidate>,
    /// The sequences as they would be if some succeeded.
    imagined: Vec<Candidate>,
}

/// A pass that is about to leave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaving<'a> {
    /// For each candidate the probability that what is drafted behind its chunk will stand.
    pub(crate) chances: &'a [f32],
    /// Rows of the pass.
    pub(crate) rows: usize,
    pub(crate) reach: Reach,
    /// The draft lane is at work on what was begun under the pass before.
    pub(crate) draft_busy: bool,
}

impl Ahead {
    /// The place in `partitions`, not the first, that gains most; none if none gains enough. `now` is what stands; with `only` no other is
    /// looked at.
    pub(super) fn partition(
        &mut self,
        batch: &Batch<'_>,
        leaving: &Leaving<'_>,
        partitions: &[PartitionCosts],
        (now, only): (Option<usize>, Option<usize>),
        budget: &mut Budget,
    ) -> Option<usize> {
        let whole = partitions.first()?;
        let sequences = batch.candidates.len();
        self.bare.clear();
        self.bare.extend(batch.candidates.iter().map(|candidate| Candidate {
            ready: 0,
            expected: 0.0,
            survival: 1.0,
            ..*candidate
        }));
        let bare = Batch { candidates: &self.bare, ..*batch };
        let (goodput, depth) = budget.goodput(&bare, whole);
        let pass_s = whole.verify.seconds(leaving.rows, leaving.reach);
        let context: usize = batch.candidates.iter().map(|candidate| candidate.context).sum();
        let draft_s = depth as f64 * whole.draft.seconds(sequences, Reach::single(context));
        let seconds = draft_s + pass_s;
        if draft_s < LEAST_DRAFT_SHARE * seconds {
            return None;
        }
        let mut best = (0.0, None);
        for (place, costs) in partitions.iter().enumerate().skip(1) {
            // What the draft lane has begun it ends where it began it.
            if leaving.draft_busy && now != Some(place) || only.is_some_and(|only| only != place) {
                continue;
            }
            let gain = self.gain(batch, leaving, costs, goodput, whole, budget);
            let bar = if now == Some(place) { END_BELOW } else { BEGIN_ABOVE };
            if gain > best.0 && gain > bar * goodput * seconds {
                best = (gain, Some(place));
            }
        }
        best.1
    }

    /// Tokens that drafting ahead on a partition is predicted to gain; time counts as tokens, at this goodput.
    fn gain(
        &mut self,
        batch: &Batch<'_>,
        leaving: &Leaving<'_>,
        costs: &PartitionCosts,
        goodput: f64,
        whole: &PartitionCosts,
        budget: &mut Budget,
    ) -> f64 {
        let drafting = leaving.chances.iter().filter(|&&chance| chance >= MIN_CHANCE_AHEAD).count();
        if drafting == 0 {
            return 0.0;
        }
        let context: usize = batch.candidates.iter().map(|candidate| candidate.context).sum();
        let pass_s = whole.verify.seconds(leaving.rows, leaving.reach);
        let longer_s = costs.verify.seconds(leaving.rows, leaving.reach);
        let step_s = costs.draft.seconds(drafting, Reach::single(context));
        let steps = (longer_s / step_s) as usize;
        let next = if steps > 1 {
            self.next_round(batch, leaving, steps.min(K_LIMIT), goodput, whole, budget)
        } else {
            0.0
        };
        // The round waits for the step that is under way when the pass ends: half of one, in the mean.
        next - goodput * (longer_s + 0.5 * step_s - pass_s)
    }

    /// Tokens, time counted as such, that the next round gains in the mean from so many steps drafted ahead.
    fn next_round(
        &mut self,
        batch: &Batch<'_>,
        leaving: &Leaving<'_>,
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
            self.imagined.extend(self.bare.iter().zip(leaving.chances).enumerate().map(
                |(i, (candidate, &chance))| {
                    let luck = (offset + GOLDEN * i as f64).fract();
                    let stands = chance >= MIN_CHANCE_AHEAD && luck < f64::from(chance);
                    // The first of them took the next token's place.
                    if stands { candidate.with_ready(steps - 1) } else { *candidate }
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
