//! What overlapped rounds brought, beside what serial ones of the same sequences are predicted to. Preparing for verdicts is begun for its predicted
//! gain, and that is too high where a round ends up drafting for those who found nothing: what came of it decides whether it goes on.

/// Verdicts over which rounds are looked at, in the mean, and of how many at least.
const VERDICTS: f64 = 2048.0;
const LEAST_VERDICTS: f64 = 1024.0;
/// Share of their time that overlapped rounds may lose: less is within what predictions are off.
const MOST_LOST: f64 = 0.02;
/// Rounds without overlap after that; twice as many each time, up to so many doublings.
const PAUSE: u32 = 512;
const DOUBLINGS: u32 = 4;

/// A round that was overlapped, or whose proposals were prepared under the pass before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    /// Sequences that got a token.
    pub(super) sequences: usize,
    /// Tokens that they got.
    pub(super) committed: usize,
    /// Seconds that it took, at the prices that it was planned by.
    pub(super) seconds: f64,
    /// Tokens a second that a serial round of theirs is predicted to have, at its best.
    pub(super) serial_goodput: f64,
}

#[derive(Debug, Default)]
pub(super) struct Realised {
    verdicts: f64,
    /// In the mean of rounds, as seconds of serial ones: what they took less than those, and what they took.
    gain_s: f64,
    time_s: f64,
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
        let round = round.filter(|round| round.sequences > 0 && round.serial_goodput > 0.0);
        let Some(Round { sequences, committed, seconds, serial_goodput }) = round else { return };
        self.verdicts += sequences as f64;
        let weight = sequences as f64 / self.verdicts.min(VERDICTS);
        self.gain_s += weight.min(1.0) * (committed as f64 / serial_goodput - seconds - self.gain_s);
        self.time_s += weight.min(1.0) * (seconds - self.time_s);
        if self.verdicts < LEAST_VERDICTS {
            return;
        }
        if self.gain_s < -MOST_LOST * self.time_s {
            let paused = PAUSE << self.pauses;
            *self = Realised { paused, pauses: (self.pauses + 1).min(DOUBLINGS), ..Realised::default() };
        } else if self.verdicts >= 2.0 * VERDICTS {
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
        // 103 rounds until that is known, 512 without, 103, 1024, 103.
        assert_eq!(rounds(&mut realised, 18, 103 + 512), 103);
        assert_eq!(rounds(&mut realised, 18, 103 + 1024), 103);
        let overlapped = rounds(&mut realised, 18, 100_000);
        assert!(overlapped < 1500, "{overlapped}");
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
