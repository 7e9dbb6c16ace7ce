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

    /// Is anything offered?
    pub(crate) fn any(&self) -> bool {
        self.all().iter().any(|offer| !offer.proposals.is_empty())
    }

    /// Learns from what came in their place.
    pub(crate) fn learn(
        &self,
        came: &(impl Iterator<Item = TokenId> + Clone),
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

/// Where a sequence's further proposals come from.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Path {
    /// Which of the offers, if any.
    pub(crate) offer: Option<usize>,
    /// Proposals of it, beyond those that are there.
    pub(crate) taken: usize,
    /// Proposals that the draft is expected to add.
    pub(crate) drafted: usize,
    /// Tokens that all of them bring, less what their rows cost.
    gain: f64,
}

impl Path {
    /// What is foreseen of it, if it has one source alone.
    pub(crate) fn foreseen(&self, offers: &Offers, prices: &Prices) -> Option<Foreseen> {
        let source = match self.offer {
            Some(offer) if self.drafted == 0 => offers.all()[offer].source,
            None if self.drafted > 0 => Source::Draft,
            _ => return None,
        };
        Some(Foreseen { source, gain: self.gain, row: prices.row })
    }
}

impl Prospects {
    /// What is gained by drafting behind so much survival, where so many places are left: less what it costs, with it, and in how many proposals.
    fn drafted(&self, mut survival: f32, places: usize, prices: &Prices) -> (f64, f64, usize) {
        let (once, each) = prices.draft;
        let (mut net, mut gain, mut best) = (-once, 0.0, (0.0, 0.0, 0));
        for drafted in 1..=places {
            survival *= self.typical;
            net += f64::from(survival * self.weight) - each;
            gain += f64::from(survival * self.weight) - prices.row;
            if f64::from(survival * self.weight) < each {
                break;
            }
            if net > best.0 {
                best = (net, gain, drafted);
            }
        }
        // No more than the planner would draft for.
        if best.0 < MIN_DRAFT_GAIN * f64::from(self.weight) { (0.0, 0.0, 0) } else { best }
    }

    /// The best path over an offer, of whose proposals those not there yet have these acceptances, and what it is worth.
    fn over(&self, offer: usize, acceptances: impl Iterator<Item = f32>, prices: &Prices) -> (f64, Path) {
        let (mut survival, mut gain) = (self.survival, 0.0);
        let mut best = (f64::NEG_INFINITY, Path::default());
        let mut taken = 0;
        for acceptance in acceptances {
            survival *= acceptance;
            if survival < NEGLIGIBLE {
                break;
            }
            taken += 1;
            gain += f64::from(survival * self.weight) - prices.row;
            let left = if self.goes_on { self.room.saturating_sub(taken) } else { 0 };
            let (net, behind, drafted) = self.drafted(survival, left, prices);
            if gain + net > best.0 {
                best = (gain + net, Path { offer: Some(offer), taken, drafted, gain: gain + behind });
            }
        }
        // Where nothing is drafted behind them, it is left to the verify pass which of them pay: it knows where rows are cheap.
        if best.1.drafted == 0 {
            best.1.taken = taken;
        }
        best
    }

    /// The path behind the proposals that are there, with which an offer has to agree: over one of the offers, or by the draft alone.
    pub(crate) fn choose(
        &self,
        offers: &Offers,
        there: &(impl ExactSizeIterator<Item = TokenId> + Clone),
        tables: &PerSource<AcceptanceTable>,
        (levels, worth): (&PerSource<Level>, &PerSource<Worth>),
        prices: &Prices,
    ) -> Path {
        let (net, gain, drafted) = self.drafted(self.survival, self.room, prices);
        let net = net + gain * (worth[Source::Draft].factor() - 1.0);
        // Without a draft that pays, offers have the verify pass alone to convince.
        let net = if drafted > 0 { net } else { f64::NEG_INFINITY };
        let mut best = (net, Path { drafted, gain, ..Path::default() });
        let agrees = |offer: &Offer| {
            let mut offered = offer.proposals.iter().map(|(token, _)| *token);
            there.clone().all(|token| offered.next() == Some(token))
        };
        for (number, offer) in offers.all().into_iter().enumerate().filter(|(_, offer)| agrees(offer)) {
            let (table, level) = (&tables[offer.source], &levels[offer.source]);
            let further = offer.proposals.iter().skip(there.len());
            // A run of proposals multiplies what is believed of each: a level that is too high by chance, as that of few verdicts is, would promise
            // far too much.
            let believed = |calibrated: f32| level.acceptance(calibrated).min(calibrated);
            let acceptances = further.map(|(_, confidence)| believed(table[confidence_bin(*confidence)]));
            let (net, path) = self.over(number, acceptances, prices);
            let net = net + path.gain.max(0.0) * (worth[offer.source].factor() - 1.0);
            if net > best.0 {
                best = (net, path);
            }
        }
        best.1
    }
}

/// How a source's paths turned out, in what was foreseen of them: a draft that knows where it will be wrong stops there and saves rows, and costs
/// of the whole batch may let no one draft. Neither is known of one sequence before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Worth {
    foreseen: f64,
    came: f64,
}

/// Tokens that a fresh source is believed to have brought, as many as were foreseen.
const WORTH_PRIOR: f64 = 30.0;
/// What a path still counts for after one more.
const WORTH_MEMORY: f64 = 0.98;

impl Default for Worth {
    /// As foreseen.
    fn default() -> Worth {
        Worth { foreseen: WORTH_PRIOR, came: WORTH_PRIOR }
    }
}

impl Worth {
    /// A path brought so much where so much was foreseen: tokens less what rows cost.
    pub(crate) fn observe(&mut self, foreseen: f64, came: f64) {
        let faded = |value: f64| WORTH_PRIOR + WORTH_MEMORY * (value - WORTH_PRIOR);
        *self = Worth { foreseen: faded(self.foreseen) + foreseen, came: faded(self.came) + came };
    }

    fn factor(&self) -> f64 {
        (self.came / self.foreseen).clamp(0.5, 1.5)
    }
}

/// What a sequence's path is foreseen to bring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Foreseen {
    source: Source,
    gain: f64,
    row: f64,
}

impl Foreseen {
    /// Takes in what came of it: so many proposals verified, and so many accepted.
    pub(crate) fn came(&self, verified: usize, accepted: usize, weight: f32, worth: &mut PerSource<Worth>) {
        // Of what was not worth its rows no share can be told.
        if self.gain > 0.0 {
            let came = accepted as f64 * f64::from(weight) - verified as f64 * self.row;
            worth[self.source].observe(self.gain, came);
        }
    }
}

/// Sequences of a batch that choose by the same prices.
///
/// A draft step costs about the same for one sequence as for all. By a share of it each, all would leave the draft together where each has
/// something a little better, though the steps that one of them still needs then cost as much as before; by what it costs to join others, nobody
/// would. So both are tried, and held against what steps cost those that take part.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Choices {
    gain: f64,
    /// Sequences that draft so many proposals or more, from one on.
    pub(crate) drafting: [usize; K_LIMIT],
}

impl Choices {
    /// One more sequence takes this path.
    pub(crate) fn add(&mut self, path: &Path) {
        self.gain += path.gain;
        self.drafting.iter_mut().take(path.drafted).for_each(|sequences| *sequences += 1);
    }

    /// Tokens that all bring, less what rows cost, and drafting: so many.
    pub(crate) fn worth(&self, drafting: f64) -> f64 {
        self.gain - drafting
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::survival::Learned;

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
        let path = of.choose(&offers, &[].into_iter(), &tables, (&levels, &PerSource::default()), prices);
        path.offer.map(|offer| (offers.all()[offer].source, path.taken))
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
    fn what_several_draft_is_held_against_what_its_steps_cost_together() {
        let path = |drafted, gain| Path { drafted, gain, ..Path::default() };
        let mut choices = Choices::default();
        for path in [path(3, 2.0), path(1, 0.5), path(0, 4.0)] {
            choices.add(&path);
        }
        assert_eq!(choices.drafting[..4], [2, 1, 1, 0]);
        assert_eq!(choices.worth(1.5), 5.0);
    }

    #[test]
    fn what_was_offered_is_learned_of_up_to_the_first_that_did_not_come() {
        let (mut calibrations, mut levels) = (PerSource::fresh(), PerSource::default());
        for source in Source::ALL {
            levels[source] = Level::new(0.5);
        }
        let before = calibrations.learned();
        let mut offers = Offers::default();
        offers.lookup.proposals = [(1, 0.03), (2, 0.4), (3, 0.9)].into_iter().collect();
        offers.learn(&[1, 9, 3].into_iter(), &mut calibrations, &mut levels);
        let after = calibrations.learned();
        let changed = |source, confidence| {
            let share = |learned: &Learned| {
                let counts = learned.0[source].bins[confidence_bin(confidence)];
                counts.accepted / counts.seen
            };
            share(&after).total_cmp(&share(&before)) as i8
        };
        assert_eq!([0.03, 0.4, 0.9].map(|confidence| changed(Source::Text, confidence)), [1, -1, 0]);
        assert_eq!(changed(Source::Suffix, 0.03), 0);
        assert_eq!(calibrations[Source::Text].quality().0, 2);
    }
}
