//! What the lanes do, recorded while somebody waits for it, at most one recording at a time; and what they did lately, as long as somebody
//! looks at it. Both are bounded.

use std::collections::VecDeque;
use std::time::Duration;

use faser_engine::record::{Bounds, Mark, PassRecord, Record, Recorder};
use faser_engine::{Command, Engine, Event};
use tokio::sync::oneshot;

/// The longest recording.
pub const LONGEST_RECORDING: Duration = Duration::from_secs(60);

/// Some hundred megabytes at most, whatever runs.
const BOUNDS: Bounds = Bounds { passes: 200_000, chunks: 1_000_000, marks: 500_000 };

/// Why there is no recording.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordingError {
    /// Nobody can wait that long, or nothing would be seen.
    #[error("a recording lasts above 0 and up to {} s", LONGEST_RECORDING.as_secs())]
    Length,
    /// Somebody else is recording.
    #[error("a recording of {} s is under way already, and there is one at a time: try again after it", .0.as_secs_f64())]
    Busy(Duration),
    /// The service has stopped, or stopped meanwhile.
    #[error("the service has stopped")]
    Stopped,
}

/// The way back to whoever asked.
pub(crate) type RecordAnswer = oneshot::Sender<Result<Record, RecordingError>>;

/// A recording under way.
pub(crate) struct Recording {
    recorder: Recorder,
    length: Duration,
    answer: RecordAnswer,
}

impl Recording {
    pub(crate) fn new(length: Duration, answer: RecordAnswer, now: Duration, engine: &Engine) -> Recording {
        Recording { recorder: Recorder::in_detail(BOUNDS, now, engine), length, answer }
    }

    /// As [`Recorder::before`].
    pub(crate) fn before(&mut self, at: Duration, event: &Event) {
        self.recorder.before(at, event);
    }

    /// As [`Recorder::after`].
    pub(crate) fn after(&mut self, now: Duration, engine: &Engine, commands: &[Command]) {
        self.recorder.after(now, engine, commands);
    }

    /// How long it was asked to last.
    pub(crate) fn length(&self) -> Duration {
        self.length
    }

    /// Nothing further will be kept, or nobody waits any more.
    pub(crate) fn over(&self) -> bool {
        self.recorder.full() || self.answer.is_closed()
    }

    /// Hands over what there is.
    pub(crate) fn finish(self, now: Duration) {
        // Whoever asked may have gone.
        let _ = self.answer.send(Ok(self.recorder.finish(now)));
    }
}

/// Passes that are kept, and marks.
const MOST: usize = 8192;
/// Who asks less often than this begins anew.
const PATIENCE: Duration = Duration::from_secs(90);
/// What is collected before it is moved to what is kept.
const AT_ONCE: Bounds = Bounds { passes: 1024, chunks: 65_536, marks: 4096 };

/// How much somebody has seen of it: what came in all, when it was asked last. The default is nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    passes: u64,
    marks: u64,
}

/// What the lanes did since somebody looked last. All times are since the service started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recent {
    /// Nothing that came later is missing but what was asked for before.
    pub from: Duration,
    /// What to ask with next.
    pub seen: Seen,
    /// Passes in the order in which their ends were heard of, with their chunks.
    pub passes: Vec<PassRecord>,
    /// Moments in order.
    pub marks: Vec<(Duration, Mark)>,
}

/// Somebody is looking.
pub(crate) struct Watching {
    recorder: Recorder,
    passes: VecDeque<PassRecord>,
    marks: VecDeque<(Duration, Mark)>,
    from: Duration,
    asked: Duration,
    /// What came in all.
    came: Seen,
}

impl Watching {
    pub(crate) fn new(now: Duration, engine: &Engine) -> Watching {
        Watching {
            recorder: Recorder::in_detail(AT_ONCE, now, engine),
            passes: VecDeque::new(),
            marks: VecDeque::new(),
            from: now,
            asked: now,
            came: Seen::default(),
        }
    }

    /// As [`Recorder::before`].
    pub(crate) fn before(&mut self, at: Duration, event: &Event) {
        self.recorder.before(at, event);
    }

    /// As [`Recorder::after`].
    pub(crate) fn after(&mut self, now: Duration, engine: &Engine, commands: &[Command]) {
        self.recorder.after(now, engine, commands);
        if self.recorder.full() {
            self.collect();
        }
    }

    /// Nobody has asked for long.
    pub(crate) fn over(&self, now: Duration) -> bool {
        now.saturating_sub(self.asked) > PATIENCE
    }

    /// What is not `seen` yet.
    pub(crate) fn recent(&mut self, now: Duration, seen: Seen) -> Recent {
        self.asked = now;
        self.collect();
        let skip =
            |seen: u64, came: u64, kept: usize| kept.saturating_sub(came.saturating_sub(seen) as usize);
        let passes = self.passes.iter().skip(skip(seen.passes, self.came.passes, self.passes.len()));
        let marks = self.marks.iter().skip(skip(seen.marks, self.came.marks, self.marks.len()));
        Recent {
            from: self.from,
            seen: self.came,
            passes: passes.cloned().collect(),
            marks: marks.copied().collect(),
        }
    }

    fn collect(&mut self) {
        let (passes, marks) = self.recorder.take();
        self.came.passes += passes.len() as u64;
        self.came.marks += marks.len() as u64;
        self.passes.extend(passes);
        self.marks.extend(marks);
        for _ in MOST..self.passes.len() {
            self.from = self.passes.pop_front().map_or(self.from, |pass| self.from.max(pass.ended));
        }
        for _ in MOST..self.marks.len() {
            self.from = self.marks.pop_front().map_or(self.from, |(at, _)| self.from.max(at));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_sees_everything_once_and_the_oldest_go_first() {
        let engine = crate::service_tests::engine();
        let mut watching = Watching::new(Duration::ZERO, &engine);
        let happen = |watching: &mut Watching, at: u64| {
            let (at, event) = (Duration::from_millis(at), Event::DeviceReady);
            watching.before(at, &event);
            watching.after(at, &engine, &[]);
        };
        let at = |recent: &Recent| recent.marks.iter().map(|(at, _)| at.as_millis()).collect::<Vec<_>>();
        happen(&mut watching, 1);
        let one = watching.recent(Duration::ZERO, Seen::default());
        assert_eq!((at(&one), one.marks[0].1), (vec![1], Mark::DeviceReady));
        happen(&mut watching, 2);
        happen(&mut watching, 3);
        let two = watching.recent(Duration::ZERO, one.seen);
        assert_eq!(at(&two), [2, 3]);
        assert!(watching.recent(Duration::ZERO, two.seen).marks.is_empty());
        assert_eq!(at(&watching.recent(Duration::ZERO, Seen::default())), [1, 2, 3], "somebody else");
        (4..=4 + MOST as u64).for_each(|at| happen(&mut watching, at));
        let rest = watching.recent(Duration::from_secs(1), two.seen);
        assert_eq!((rest.marks.len(), rest.from), (MOST, Duration::from_millis(4)));
        assert!(!watching.over(Duration::from_secs(1) + PATIENCE));
        assert!(watching.over(Duration::from_secs(2) + PATIENCE));
    }
}
