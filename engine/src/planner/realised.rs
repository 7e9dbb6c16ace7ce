//! What overlapped rounds brought, beside what serial ones of the same sequences are predicted to. Preparing for verdicts is begun for its predicted
//! gain, and that is too high where a round ends up drafting for those who found nothing: what came of it decides whether it goes on.

/// Share of their time that overlapped rounds may lose: less is within what predictions are off.
const MOST_LOST: f64 = 0.02;
/// What they may have lost beyond that before they are paused, in rounds of one sequence, and in rounds of many: so much is lost by chance alone once
/// in tens of thousands of rounds, where nothing is lost in the mean.
const BY_CHANCE: f64 = 48.0;
const LEAST_BY_CHANCE: f64 = 4.0;
/// Rounds without overlap after that, at least; twice as many each time, up to so many doublings.
const PAUSE: u32 = 512;
const DOUBLINGS: u32 = 4;
/// Verdicts without a pause after which those before it are forgotten.
const FORGOTTEN: usize = 4096;

/// A round that was overlapped, or whose proposals were prepared under the pass before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    /// Sequences that got a token.
    pub(super) sequences: usize,
    /// Tokens that they got.
    pub(super) committed: usize,
    /// Seconds that it took, at the prices that it was planned by; what it took longer than the tables say is among them.
    pub(super) seconds: f64,
    /// Tokens a second that a serial round of theirs is predicted to have, at its best.
    pub(super) serial_goodput: f64,
}

#[derive(Debug, Default)]
pub(super) struct Realised {
    /// What was lost beyond the share that may be, since rounds last did better than that (CUSUM, Page 1954): as a part of what chance explains.
    lost: f64,
    verdicts: usize,
    pauses: u32,
    paused: u32,
}

impl Realised {
    /// May rounds be overlapped?
    pub(super) fn allows(&self) -> bool {
        self.paused == 0
    }

    /// A round ended; none if it had nothing to do with overlap.
    pub(super) fn round(&mut self, round: Option<Round>) {
        self.paused = self.paused.saturating_sub(1);
        let round = round.filter(|round| round.sequences > 0 && round.seconds * round.serial_goodput > 0.0);
        let Some(Round { sequences, committed, seconds, serial_goodput }) = round else { return };
        let serial_rounds = committed as f64 / serial_goodput / seconds;
        let by_chance = (BY_CHANCE / sequences as f64).max(LEAST_BY_CHANCE);
        self.lost = (self.lost + (1.0 - MOST_LOST - serial_rounds) / by_chance).max(0.0);
        self.verdicts += sequences;
        if self.lost > 1.0 {
            let paused = PAUSE.max((by_chance / MOST_LOST) as u32) << self.pauses;
            *self = Realised { paused, pauses: (self.pauses + 1).min(DOUBLINGS), ..Realised::default() };
        } else if self.verdicts >= FORGOTTEN {
            self.pauses = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounds that commit so many tokens of every 10 sequences, where serial ones commit 20 in as much time.
    fn rounds(realised: &mut Realised, committed: usize, count: usize) -> usize {
        let round = Round { sequences: 10, committed, seconds: 0.02, serial_goodput: 1000.0 };
        let mut overlapped = 0;
        for _ in 0..count {
            let allowed = realised.allows();
            realised.round(allowed.then_some(round));
            overlapped += usize::from(allowed);
        }
        overlapped
    }

    #[test]
    fn overlap_that_loses_is_paused_and_tried_more_and_more_rarely() {
        let mut realised = Realised::default();
        // A tenth of a round is lost in each, of which a fiftieth may be: beyond 4.8 after 61 of them; then 512 without, 61, 1024, 61.
        assert_eq!(rounds(&mut realised, 18, 61 + 512), 61);
        assert_eq!(rounds(&mut realised, 18, 61 + 1024), 61);
        let overlapped = rounds(&mut realised, 18, 100_000);
        assert!(overlapped < 900, "{overlapped}");
    }

    #[test]
    fn what_loses_much_is_paused_at_once_and_so_is_it_of_one_sequence() {
        let mut realised = Realised::default();
        assert!(rounds(&mut realised, 10, 512) <= 11);
        let alone = Round { sequences: 1, committed: 1, seconds: 0.02, serial_goodput: 100.0 };
        let mut realised = Realised::default();
        let tried = (0..2000).filter(|_| {
            let allowed = realised.allows();
            realised.round(allowed.then_some(alone));
            allowed
        });
        assert!((90..110).contains(&tried.count()));
    }

    #[test]
    fn chance_alone_pauses_next_to_nothing() {
        let mut coin = 1_u64;
        // So many sequences for 300 rounds, then so many for 20.
        for sequences in [[1, 1], [4, 4], [16, 16], [1, 16], [16, 1]] {
            let mut realised = Realised::default();
            let mut paused = 0;
            for round in 0..20_000 {
                let sequences = sequences[usize::from(round % 320 >= 300)];
                // From one to four tokens each, 2.5 in the mean, as many as serial rounds have.
                let tokens = |_| {
                    coin =
                        coin.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    1 + (coin >> 62) as usize
                };
                let committed = (0..sequences).map(tokens).sum();
                let serial_goodput = 2.5 * sequences as f64 / 0.02;
                let allowed = realised.allows();
                let round = Round { sequences, committed, seconds: 0.02, serial_goodput };
                realised.round(allowed.then_some(round));
                paused += usize::from(!allowed);
            }
            assert!(paused < 3000, "{paused} of {sequences:?}");
        }
    }

    #[test]
    fn overlap_that_gains_goes_on_and_a_bad_spell_is_forgotten() {
        let mut realised = Realised::default();
        assert_eq!(rounds(&mut realised, 22, 2000), 2000);
        assert!(rounds(&mut realised, 10, 400) < 200);
        assert!(!realised.allows());
        rounds(&mut realised, 22, 600);
        assert!(realised.allows());
        rounds(&mut realised, 22, 600);
        assert_eq!(realised.pauses, 0);
    }
}
