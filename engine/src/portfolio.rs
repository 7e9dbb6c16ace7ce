//! The portfolio: which sources a sequence's proposals of a round come from.
//!
//! Some sources are free: the sequence's own text, the client's prediction, past outputs. What they offer costs a row of
//! the verify pass each, and nothing to draft. The draft's proposals cost a row and a step. A path is so many proposals of
//! one free source, none included, and behind them what the draft adds where it can go on from there. The path is taken
//! that is worth most: the tokens that it is expected to bring, less what its rows and steps cost in tokens at the goodput
//! of the batch.
//!
//! Free offers are judged by what came in their place, whether they were taken or not: by invariant 1 the text would have
//! been the same. So they need no trial to be learned of; the draft does, now and then ([`Planner::draft_due`]).
//!
//! [`Planner::draft_due`]: crate::planner::Planner::draft_due

use arrayvec::ArrayVec;

use crate::planner::{MIN_DRAFT_GAIN, NEGLIGIBLE};
use crate::request::{K_LIMIT, TokenId};
use crate::survival::{AcceptanceTable, Calibration, Level, PerSource, Source, confidence_bin};

/// Tokens that may come next, with the confidence in each: in one bin of its source's calibration.
pub(crate) type Offered = ArrayVec<(TokenId, f32), K_LIMIT>;

/// What a free source offers.
#[derive(Debug)]
pub(crate) struct Offer {
    pub(crate) source: Source,
    pub(crate) proposals: Offered,
}

/// What the free sources offer a sequence.
#[derive(Debug)]
pub(crate) struct Offers {
    /// Tokens of the sequence that they are made for.
    pub(crate) behind: usize,
    /// Of its own text or the prediction.
    pub(crate) lookup: Offer,
    /// Of past outputs.
    pub(crate) suffix: Offer,
}

impl Default for Offers {
    /// None.
    fn default() -> Offers {
        let nothing = |source| Offer { source, proposals: Offered::new() };
        Offers { behind: 0, lookup: nothing(Source::Text), suffix: nothing(Source::Suffix) }
    }
}

impl Offers {
    /// Each of them.
    pub(crate) fn all(&self) -> [&Offer; 2] {
        [&self.lookup, &self.suffix]
    }

    /// Learns from what came in their place.
    pub(crate) fn learn(
        &self,
        came: impl Iterator<Item = TokenId> + Clone,
        calibrations: &mut PerSource<Calibration>,
        levels: &mut PerSource<Level>,
    ) {
        for Offer { source, proposals } in self.all() {
            for ((offered, confidence), came) in proposals.iter().zip(came.clone()) {
                let calibrated = calibrations[*source].acceptance(*confidence);
                let predicted = levels[*source].acceptance(calibrated);
                calibrations[*source].observe(*confidence, predicted, *offered == came);
                levels[*source].observe(calibrated, *offered == came);
                if *offered != came {
                    break;
                }
            }
        }
    }
}

/// What proposals cost in a round, in tokens.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Prices {
    /// A row.
    pub(crate) row: f64,
    /// To draft at all, and what each drafted proposal costs, its row included.
    pub(crate) draft: (f64, f64),
}

/// What of a sequence matters for its choice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prospects {
    /// Survival of the proposals there are.
    pub(crate) survival: f32,
    /// Proposals that the draft could add, and the probability that one of them is accepted.
    pub(crate) room: usize,
    pub(crate) typical: f32,
    /// The draft can go on from proposals of others.
    pub(crate) goes_on: bool,
    /// What a token counts for.
    pub(crate) weight: f32,
}

impl Prospects {
    /// What is gained by drafting behind so much survival, where so many places are left.
    fn drafted(&self, mut survival: f32, places: usize, prices: &Prices) -> f64 {
        let (once, each) = prices.draft;
        let (mut gain, mut best) = (-once, 0.0_f64);
        for _ in 0..places {
            survival *= self.typical;
            gain += f64::from(survival * self.weight) - each;
            if gain < best {
                break;
            }
            best = gain;
        }
        // No more than the planner would draft for.
        if best < MIN_DRAFT_GAIN * f64::from(self.weight) { 0.0 } else { best }
    }

    /// The best path over an offer, of whose proposals those not there yet have these acceptances: what it is worth, and how many of them it has.
    fn over(&self, acceptances: impl Iterator<Item = f32>, prices: &Prices) -> (f64, usize) {
        let (mut survival, mut gain) = (self.survival, 0.0);
        let (mut best, mut drafted) = ((f64::NEG_INFINITY, 0), 0.0);
        let mut considered = 0;
        for acceptance in acceptances {
            survival *= acceptance;
            if survival < NEGLIGIBLE {
                break;
            }
            considered += 1;
            gain += f64::from(survival * self.weight) - prices.row;
            let left = self.room.saturating_sub(considered);
            let behind = if self.goes_on { self.drafted(survival, left, prices) } else { 0.0 };
            if gain + behind > best.0 {
                (best, drafted) = ((gain + behind, considered), behind);
            }
        }
        // Where nothing is drafted behind them, it is left to the verify pass which of them pay: it knows where rows are cheap.
        if drafted > 0.0 { best } else { (best.0, considered) }
    }

    /// The offer to take behind the proposals that are there, which it has to agree with, and how many more of it; none if the draft does better
    /// alone.
    pub(crate) fn choose<'o>(
        &self,
        offers: &'o Offers,
        there: impl ExactSizeIterator<Item = TokenId> + Clone,
        tables: &PerSource<AcceptanceTable>,
        levels: &PerSource<Level>,
        prices: &Prices,
    ) -> Option<(&'o Offer, usize)> {
        let alone = self.drafted(self.survival, self.room, prices);
        // Without a draft that pays, offers have the verify pass alone to convince.
        let mut best = (if alone > 0.0 { alone } else { f64::NEG_INFINITY }, None);
        let agrees = |offer: &&Offer| {
            let mut offered = offer.proposals.iter().map(|(token, _)| *token);
            there.clone().all(|token| offered.next() == Some(token))
        };
        for offer in offers.all().into_iter().filter(agrees) {
            let (table, level) = (&tables[offer.source], &levels[offer.source]);
            let further = offer.proposals.iter().skip(there.len());
            let acceptances =
                further.map(|(_, confidence)| level.acceptance(table[confidence_bin(*confidence)]));
            let (worth, proposals) = self.over(acceptances, prices);
            if proposals > 0 && worth > best.0 {
                best = (worth, Some((offer, proposals)));
            }
        }
        best.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHEAP: Prices = Prices { row: 0.05, draft: (0.0, 0.2) };

    fn prospects(typical: f32, goes_on: bool) -> Prospects {
        Prospects { survival: 1.0, room: 8, typical, goes_on, weight: 1.0 }
    }

    /// What is chosen of two offers whose proposals are accepted so often.
    fn chosen(of: &Prospects, lookup: &[f32], suffix: &[f32], prices: &Prices) -> Option<(Source, usize)> {
        // A table that takes confidence at its word, nearly.
        let table: AcceptanceTable = std::array::from_fn(|bin| (bin as f32 + 0.5) / 16.0);
        let tables = PerSource::of(|_| table);
        let levels = PerSource::of(|_| Level::new(0.5));
        let offered = |shares: &[f32]| shares.iter().map(|share| (7, *share)).collect();
        let mut offers = Offers::default();
        offers.lookup.proposals = offered(lookup);
        offers.suffix.proposals = offered(suffix);
        of.choose(&offers, [].into_iter(), &tables, &levels, prices)
            .map(|(offer, proposals)| (offer.source, proposals))
    }

    #[test]
    fn the_source_that_is_worth_most_is_taken_as_far_as_it_is_worth_more_than_the_draft() {
        let (sure, poor) = ([0.97; 8], [0.3; 8]);
        for goes_on in [true, false] {
            let draft = prospects(0.8, goes_on);
            assert_eq!(chosen(&draft, &sure, &[], &CHEAP), Some((Source::Text, 8)));
            assert_eq!(chosen(&draft, &poor, &sure, &CHEAP), Some((Source::Suffix, 8)));
            assert_eq!(chosen(&draft, &poor, &poor, &CHEAP), None);
            assert_eq!(chosen(&draft, &[], &[], &CHEAP), None);
        }
        // Behind two sure ones the draft goes on, if it can; a head would have to wait for them.
        let mixed = [0.97, 0.97, 0.1, 0.1];
        assert_eq!(chosen(&prospects(0.8, true), &mixed, &[], &CHEAP), Some((Source::Text, 2)));
        assert_eq!(chosen(&prospects(0.8, false), &mixed[1..], &[], &CHEAP), None);
    }

    #[test]
    fn a_draft_that_does_not_pay_crowds_nobody_out_and_costs_decide() {
        let half = [0.47; 6];
        let dear = Prices { row: 0.05, draft: (0.0, 0.9) };
        assert_eq!(chosen(&prospects(0.8, false), &half, &[], &CHEAP), None);
        assert_eq!(chosen(&prospects(0.8, false), &half, &[], &dear), Some((Source::Text, 5)));
        // What a pass costs at all counts once.
        let one_pass = |once| Prices { row: 0.05, draft: (once, 0.05) };
        assert_eq!(chosen(&prospects(0.8, false), &half, &[], &one_pass(0.1)), None);
        assert_eq!(chosen(&prospects(0.8, false), &half, &[], &one_pass(3.0)), Some((Source::Text, 5)));
        // Where a row costs more than anything brings, the verify pass says no, and nothing is drafted.
        let rows = Prices { row: 2.0, draft: (0.0, 2.1) };
        assert_eq!(chosen(&prospects(0.8, true), &half, &[], &rows), Some((Source::Text, 5)));
    }

    #[test]
    fn what_was_offered_is_learned_of_up_to_the_first_that_did_not_come() {
        let (mut calibrations, mut levels) = (PerSource::fresh(), PerSource::default());
        for source in Source::ALL {
            levels[source] = Level::new(0.5);
        }
        let before = calibrations.tables();
        let mut offers = Offers::default();
        offers.lookup.proposals = [(1, 0.03), (2, 0.4), (3, 0.9)].into_iter().collect();
        offers.learn([1, 9, 3].into_iter(), &mut calibrations, &mut levels);
        let after = calibrations.tables();
        let changed = |source, confidence| {
            let bin = confidence_bin(confidence);
            after[source][bin].total_cmp(&before[source][bin]) as i8
        };
        assert_eq!([0.03, 0.4, 0.9].map(|confidence| changed(Source::Text, confidence)), [1, -1, 0]);
        assert_eq!(changed(Source::Suffix, 0.03), 0);
        assert_eq!(calibrations[Source::Text].quality().0, 2);
    }
}
