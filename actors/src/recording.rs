//! A recording of what the lanes do, while somebody waits for it: at most one at a time, and bounded.

use std::time::Duration;

use faser_engine::record::{Bounds, Record, Recorder};
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
