//! What a round takes beyond its passes: results on their way, deciding, threads that wake, drafts that are late. Where both lanes work on all
//! cores that there are, it takes longer; with small models that can be more than preparing for verdicts brings.

use std::time::Duration;

/// The weight of a new round in the mean.
const NEW_ROUND: f64 = 1.0 / 16.0;
/// A round is believed to have taken no more than so many times the mean, and this: the rest is the machine doing something else.
const BELIEVED: f64 = 2.0;
const AT_LEAST_S: f64 = 1e-4;
/// With each serial round what is known of overlapped ones is forgotten by so much: it is to be tried again some time.
const FORGOTTEN: f64 = 1.0 / 4096.0;

/// Rounds by the clock, from the end of one verify pass to that of the next.
#[derive(Debug, Default)]
pub(super) struct Overhead {
    /// The end of the last pass, if lanes have had work ever since.
    since: Option<Duration>,
    /// Time of draft plans since then for which the round waited.
    drafted: Duration,
    serial: Option<f64>,
    overlapped: Option<f64>,
}

impl Overhead {
    /// A draft plan took so long, for which the pass waited.
    pub(super) fn drafted(&mut self, took: Duration) {
        self.drafted += took;
    }

    /// A verify pass is done that took so long.
    pub(super) fn round(&mut self, now: Duration, took: Duration, overlapped: bool) {
        let drafted = std::mem::take(&mut self.drafted);
        let Some(since) = self.since.replace(now) else { return };
        let seconds = now.saturating_sub(since).saturating_sub(took + drafted).as_secs_f64();
        let mean = if overlapped { &mut self.overlapped } else { &mut self.serial };
        // What is not known is taken to be the same for both.
        let before = mean.or(self.serial).or(self.overlapped).unwrap_or(seconds);
        let believed = seconds.min(BELIEVED * before + AT_LEAST_S);
        let mean = if overlapped { &mut self.overlapped } else { &mut self.serial };
        *mean = Some(before + NEW_ROUND * (believed - before));
        if let (false, Some(serial), Some(overlapped)) = (overlapped, self.serial, &mut self.overlapped) {
            *overlapped += FORGOTTEN * (serial - *overlapped);
        }
    }

    /// No lane has work: the time until the next result is nobody's.
    pub(super) fn idle(&mut self) {
        (self.since, self.drafted) = (None, Duration::ZERO);
    }

    /// Seconds that an overlapped round takes more than a serial one, beyond its passes.
    pub(super) fn more_s(&self) -> f64 {
        self.overlapped.zip(self.serial).map_or(0.0, |(overlapped, serial)| overlapped - serial)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    #[test]
    fn what_is_beyond_the_passes_is_told_apart_by_execution() {
        let (mut overhead, mut now) = (Overhead::default(), Duration::ZERO);
        let mut rounds = |overhead: &mut Overhead, count, beyond: u32, overlapped| {
            for _ in 0..count {
                overhead.drafted(100 * US);
                now += (300 + beyond) * US;
                overhead.round(now, 200 * US, overlapped);
            }
        };
        rounds(&mut overhead, 200, 20, false);
        assert!(overhead.more_s().abs() < 1e-9, "what is not known is taken to be the same");
        rounds(&mut overhead, 200, 120, true);
        assert!((overhead.more_s() * 1e6 - 100.0).abs() < 2.0, "{}", overhead.more_s());
        // A hiccup is not believed.
        rounds(&mut overhead, 1, 100_000, false);
        assert!((overhead.more_s() * 1e6 - 100.0).abs() < 15.0, "{}", overhead.more_s());
        // It is to be tried again some time.
        rounds(&mut overhead, 40_000, 20, false);
        assert!((overhead.more_s() * 1e6).abs() < 1.0, "{}", overhead.more_s());
    }

    #[test]
    fn time_without_work_counts_for_nothing() {
        let mut overhead = Overhead::default();
        overhead.round(US, US, false);
        overhead.idle();
        overhead.round(1_000_000 * US, 10 * US, true);
        overhead.round(1_000_030 * US, 10 * US, true);
        overhead.round(1_000_050 * US, 10 * US, false);
        assert!(overhead.more_s() * 1e6 < 21.0, "{}", overhead.more_s());
    }
}
