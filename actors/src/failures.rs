//! How the watchdog learns that a device has failed, how many failures it puts up with, and how long it waits after each.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

/// The back-off doubles up to this.
const LONGEST_BACK_OFF: Duration = Duration::from_secs(5);

/// Faults that may wait to be looked at: each of a generation's lanes can report one, those of a group all at once, and the dispatcher
/// one per plan it could not hand over. The first of a generation decides; what does not fit would only repeat it.
const FAULTS_CAPACITY: usize = 8;

/// What of a device has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// What nothing is served without.
    Target,
    /// The draft's device, where it has one of its own: the target goes on without it.
    Draft,
}

/// A device has failed.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) generation: u64,
    pub(crate) part: Part,
    pub(crate) reason: String,
}

/// Takes what is to hear why something is lost, once it is.
pub(crate) type OnLoss = Arc<dyn Fn(Box<dyn FnOnce(String) + Send>) + Send + Sync>;

/// The way to the watchdog for whoever notices a fault.
#[derive(Clone)]
pub(crate) struct Faults(mpsc::Sender<Fault>);

impl Faults {
    /// The way, and its other end.
    pub(crate) fn channel() -> (Faults, mpsc::Receiver<Fault>) {
        let (sender, receiver) = mpsc::channel(FAULTS_CAPACITY);
        (Faults(sender), receiver)
    }

    /// Never waits.
    pub(crate) fn report(&self, fault: Fault) {
        tracing::error!(generation = fault.generation, reason = fault.reason, "device fault");
        // Full: the watchdog has a fault of this device before it already. Closed: the service is stopping.
        let _ = self.0.try_send(fault);
    }
}

/// When the watchdog barks, and when it gives up.
#[derive(Clone, Debug)]
pub struct WatchdogConfig {
    /// A lane that has owed a result for longer is reported as stalled. Generous: a long prefill is no fault.
    pub lane_deadline: Duration,
    /// This many failures within `failure_window` are put up with; at one more the device is given up.
    pub max_failures: usize,
    /// See `max_failures`.
    pub failure_window: Duration,
    /// Wait before a device is built again; doubles with every further failure in the window, up to 5 s.
    pub back_off: Duration,
}

impl Default for WatchdogConfig {
    fn default() -> WatchdogConfig {
        WatchdogConfig {
            lane_deadline: Duration::from_secs(60),
            max_failures: 5,
            failure_window: Duration::from_secs(60),
            back_off: Duration::from_millis(100),
        }
    }
}

impl WatchdogConfig {
    /// Of a device over several nodes: it is never given up, for whichever node is missing is waited for, and comes when it can.
    pub fn over_nodes() -> WatchdogConfig {
        let failure_window = Duration::from_secs(5);
        WatchdogConfig { max_failures: usize::MAX, failure_window, ..WatchdogConfig::default() }
    }
}

/// The failures within the window. It is told the time.
pub(crate) struct Failures {
    config: WatchdogConfig,
    recent: VecDeque<Instant>,
}

impl Failures {
    pub(crate) fn new(config: WatchdogConfig) -> Failures {
        Failures { config, recent: VecDeque::new() }
    }

    /// Notes a failure; says how long to wait before the next try, or that there is to be none.
    pub(crate) fn note(&mut self, now: Instant) -> Option<Duration> {
        let old = |failure: &Instant| now.saturating_duration_since(*failure) > self.config.failure_window;
        while self.recent.front().is_some_and(old) {
            self.recent.pop_front();
        }
        self.recent.push_back(now);
        if self.recent.len() > self.config.max_failures {
            return None;
        }
        let doublings = u32::try_from(self.recent.len() - 1).unwrap_or(u32::MAX).min(16);
        Some(self.config.back_off.saturating_mul(1 << doublings).min(LONGEST_BACK_OFF))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_back_off_doubles_and_ends_when_failures_come_too_close() {
        let mut failures = Failures::new(WatchdogConfig { max_failures: 3, ..WatchdogConfig::default() });
        let start = Instant::now();
        let ms = Duration::from_millis;
        assert_eq!(failures.note(start), Some(ms(100)));
        assert_eq!(failures.note(start + ms(10)), Some(ms(200)));
        assert_eq!(failures.note(start + ms(20)), Some(ms(400)));
        assert_eq!(failures.note(start + ms(30)), None);
    }

    #[test]
    fn failures_are_forgotten_after_the_window() {
        let mut failures = Failures::new(WatchdogConfig { max_failures: 1, ..WatchdogConfig::default() });
        let start = Instant::now();
        for hour in 0..5 {
            let now = start + Duration::from_secs(3600 * hour);
            assert_eq!(failures.note(now), Some(Duration::from_millis(100)));
        }
    }

    #[test]
    fn the_back_off_has_a_bound() {
        let mut failures = Failures::new(WatchdogConfig { max_failures: 99, ..WatchdogConfig::default() });
        let start = Instant::now();
        let longest = (0..99).filter_map(|_| failures.note(start)).max();
        assert_eq!(longest, Some(LONGEST_BACK_OFF));
    }
}
