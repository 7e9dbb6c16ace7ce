//! Whether a lane moves.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What a lane owes and when it last moved: written by the lane and its queue, read by the watchdog.
#[derive(Default)]
pub(crate) struct Pulse(Mutex<Beat>);

#[derive(Clone, Copy, Default)]
struct Beat {
    outstanding: usize,
    moved: Option<Instant>,
}

impl Pulse {
    /// The lane was given work.
    pub(crate) fn ordered(&self, now: Instant) {
        let mut beat = self.lock();
        if beat.outstanding == 0 {
            beat.moved = Some(now);
        }
        beat.outstanding += 1;
    }

    /// The lane finished a piece of work.
    pub(crate) fn done(&self, now: Instant) {
        let mut beat = self.lock();
        beat.outstanding = beat.outstanding.saturating_sub(1);
        beat.moved = Some(now);
    }

    /// How long the lane has owed a result without bringing any.
    pub(crate) fn silent_for(&self, now: Instant) -> Option<Duration> {
        let beat = *self.lock();
        beat.moved.filter(|_| beat.outstanding > 0).map(|moved| now.saturating_duration_since(moved))
    }

    fn lock(&self) -> MutexGuard<'_, Beat> {
        // Two plain values: whole whatever panicked while they were held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_is_silent_only_while_it_owes_a_result() {
        let pulse = Pulse::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(pulse.silent_for(at(9)), None);
        pulse.ordered(at(10));
        pulse.ordered(at(12));
        assert_eq!(pulse.silent_for(at(13)), Some(Duration::from_secs(3)));
        pulse.done(at(14));
        assert_eq!(pulse.silent_for(at(15)), Some(Duration::from_secs(1)));
        pulse.done(at(16));
        assert_eq!(pulse.silent_for(at(99)), None);
    }
}
