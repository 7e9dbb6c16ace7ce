//! What a round takes beyond its passes: results on their way, deciding, threads that wake, drafts that are late. With small models that is a fifth
//! of a round, which a round of several tokens has once; one with drafts has it twice. Where both lanes work on all cores that there are it takes
//! longer still, which can be more than preparing for verdicts brings.

use std::time::Duration;

/// The weight of a new round in the mean.
const NEW_ROUND: f64 = 1.0 / 16.0;
/// A round or a draft plan is believed to have taken no more than so many times the mean, and this: the rest is the machine doing something else, as
/// it does in passes without drafts.
const BELIEVED: f64 = 2.0;
const AT_LEAST_S: f64 = 1e-4;
/// The weight of a new draft plan in the mean.
const NEW_DRAFT: f64 = 0.25;
/// With each plain round what is known of the others is forgotten by so much: it is to be tried again some time.
const FORGOTTEN: f64 = 1.0 / 4096.0;

/// Rounds by the clock, from the end of one verify pass to that of the next.
#[derive(Debug, Default)]
pub(super) struct Overhead {
    /// The end of the last pass, if lanes have had work ever since.
    since: Option<Duration>,
    /// Time of draft plans since then for which the round waited.
    drafted: Duration,
    kinds: [Option<f64>; 3],
    /// How many times as long as the tables say draft plans took in the mean, if there were any.
    overrun: Option<f64>,
}

/// Kinds of rounds: without drafts, with drafts that the pass waited for, and with a draft lane that works beside the pass.
const PLAIN: usize = 0;
const DRAFTED: usize = 1;
const OVERLAPPED: usize = 2;

impl Overhead {
    /// A draft plan took so long, for which the pass waited.
    pub(super) fn drafted(&mut self, took: Duration) {
        self.drafted += took;
    }

    /// Seconds of a draft plan that took so long, where the tables say this, as far as they are the plan's.
    pub(super) fn believed_s(&mut self, predicted: Option<Duration>, took: Duration) -> f64 {
        let took_s = took.as_secs_f64();
        let Some(predicted_s) = predicted.map(|predicted| predicted.as_secs_f64()).filter(|s| *s > 0.0)
        else {
            return took_s;
        };
        let before = self.overrun.unwrap_or(1.0);
        let believed_s = took_s.min(BELIEVED * before * predicted_s + AT_LEAST_S);
        self.overrun = Some(before + NEW_DRAFT * (believed_s / predicted_s - before));
        believed_s
    }

    /// A verify pass is done that took so long, and by the tables so many seconds. Returns by how many seconds its round was longer than that and the
    /// drafts that it waited for, if lanes had work all the time.
    pub(super) fn round(
        &mut self,
        now: Duration,
        took: Duration,
        predicted_s: f64,
        overlapped: bool,
    ) -> Option<f64> {
        let drafted = std::mem::take(&mut self.drafted);
        let whole = now.saturating_sub(self.since.replace(now)?);
        let seconds = whole.saturating_sub(took + drafted).as_secs_f64();
        let kind = if overlapped { OVERLAPPED } else { usize::from(drafted > Duration::ZERO) };
        // The first may be the one in which the machine did something else, and of plain rounds there may never be another.
        let before = self.of(kind).unwrap_or(0.0);
        let believed = seconds.min(BELIEVED * before + AT_LEAST_S);
        self.kinds[kind] = Some(before + NEW_ROUND * (believed - before));
        if kind == PLAIN {
            let plain = before + NEW_ROUND * (believed - before);
            for other in self.kinds[DRAFTED..].iter_mut().flatten() {
                *other += FORGOTTEN * (plain - *other);
            }
        }
        Some(whole.saturating_sub(drafted).as_secs_f64() - predicted_s)
    }

    /// Of a kind; what is not known is taken to be that of the kind before it, or of any.
    fn of(&self, kind: usize) -> Option<f64> {
        self.kinds[..=kind].iter().rev().chain(&self.kinds[kind..]).copied().flatten().next()
    }

    /// No lane has work: the time until the next result is nobody's.
    pub(super) fn idle(&mut self) {
        (self.since, self.drafted) = (None, Duration::ZERO);
    }

    /// Seconds of a serial round beyond its passes: without drafts, and with some, which is no less.
    pub(super) fn serial_s(&self) -> [f64; 2] {
        let [plain_s, drafted_s] = [PLAIN, DRAFTED].map(|kind| self.of(kind).unwrap_or(0.0));
        [plain_s.min(drafted_s), drafted_s]
    }

    /// Seconds that an overlapped round takes more than a serial one with drafts, beyond its passes.
    pub(super) fn more_s(&self) -> f64 {
        self.kinds[OVERLAPPED].zip(self.of(DRAFTED)).map_or(0.0, |(overlapped, drafted)| overlapped - drafted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Duration = Duration::from_micros(1);

    #[test]
    fn what_is_beyond_the_passes_is_told_apart_by_execution() {
        let (mut overhead, mut now) = (Overhead::default(), Duration::ZERO);
        let mut rounds = |overhead: &mut Overhead, count, beyond: u32, drafts: bool, overlapped| {
            for _ in 0..count {
                if drafts {
                    overhead.drafted(100 * US);
                }
                now += (200 + 100 * u32::from(drafts) + beyond) * US;
                overhead.round(now, 200 * US, 200e-6, overlapped);
            }
        };
        let close = |a: f64, b: f64, by: f64| assert!((a * 1e6 - b).abs() < by, "{a} {b}");
        rounds(&mut overhead, 200, 20, true, false);
        close(overhead.more_s(), 0.0, 1e-3);
        // What is not known is taken to be the same.
        close(overhead.serial_s()[0], 20.0, 1.0);
        rounds(&mut overhead, 200, 120, true, true);
        close(overhead.more_s(), 100.0, 2.0);
        // A hiccup is not believed.
        rounds(&mut overhead, 1, 100_000, true, false);
        close(overhead.more_s(), 100.0, 15.0);
        rounds(&mut overhead, 200, 10, false, false);
        let [plain_s, drafted_s] = overhead.serial_s();
        close(plain_s, 10.0, 1.0);
        close(drafted_s, 28.0, 4.0);
        // It is to be tried again some time.
        rounds(&mut overhead, 40_000, 10, false, false);
        close(overhead.more_s(), 0.0, 1.0);
    }

    /// Else drafting would look cheap for ever, and there would be no plain round to tell otherwise.
    #[test]
    fn a_hiccup_in_the_first_round_is_not_believed_either() {
        for drafts in [false, true] {
            let (mut overhead, mut now) = (Overhead::default(), Duration::ZERO);
            let mut round = |beyond: u32, drafts: bool| {
                if drafts {
                    overhead.drafted(100 * US);
                }
                now += (200 + 100 * u32::from(drafts) + beyond) * US;
                overhead.round(now, 200 * US, 200e-6, false);
                overhead.serial_s().map(|seconds| seconds * 1e6)
            };
            round(0, drafts);
            let [plain_us, drafted_us] = round(60_000, drafts);
            assert!(plain_us < 10.0 && drafted_us < 10.0, "{plain_us} {drafted_us}");
            // What it is always is soon known all the same, and a plain round has no more of it than one with drafts.
            let [plain_us, drafted_us] = (0..100).map(|_| round(3000, drafts)).last().unwrap();
            assert!(plain_us > 2500.0 && drafted_us > 2500.0, "{plain_us} {drafted_us}");
            let [plain_us, drafted_us] = (0..400).map(|_| round(30, true)).last().unwrap();
            assert!(plain_us <= drafted_us && drafted_us < 40.0, "{plain_us} {drafted_us}");
        }
    }

    #[test]
    fn a_hiccup_of_a_draft_plan_is_not_believed_and_what_stays_is() {
        let mut overhead = Overhead::default();
        let mut believed = |took: u32| overhead.believed_s(Some(200 * US), took * US) * 1e6;
        assert_eq!((believed(150).round(), believed(210).round()), (150.0, 210.0));
        for _ in 0..20 {
            assert!(believed(20_000) < 900.0);
            assert!((0..19).all(|_| (believed(200) - 200.0).abs() < 1e-6));
        }
        let late = (0..40).map(|_| believed(20_000)).position(|us| (us - 20_000.0).abs() < 1e-6);
        assert!(late.is_some_and(|plans| plans < 30), "{late:?}");
        assert_eq!(overhead.believed_s(None, 7 * US), 7e-6);
    }

    #[test]
    fn time_without_work_counts_for_nothing() {
        let mut overhead = Overhead::default();
        overhead.round(US, US, 1e-6, false);
        overhead.idle();
        overhead.round(1_000_000 * US, 10 * US, 1e-5, true);
        overhead.round(1_000_030 * US, 10 * US, 1e-5, true);
        overhead.round(1_000_050 * US, 10 * US, 1e-5, false);
        assert!(overhead.more_s() * 1e6 < 21.0, "{}", overhead.more_s());
    }
}
