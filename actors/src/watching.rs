//! What the lanes did lately, as long as somebody looks at it: bounded in time and size, and given up when nobody asks any more.

use std::collections::VecDeque;
use std::time::Duration;

use faser_engine::record::{Bounds, Mark, PassRecord, Recorder};
use faser_engine::{Command, Engine, Event};

/// Passes that are kept, and marks.
const MOST: usize = 8192;
/// Who asks less often than this begins anew.
const PATIENCE: Duration = Duration::from_secs(15);
/// What is collected before it is moved to what is kept.
const BOUNDS: Bounds = Bounds { passes: 1024, chunks: 65_536, marks: 4096 };

/// What the lanes did since a moment. All times are since the service started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recent {
    /// It is whole from here on: who asked for an earlier moment has missed something.
    pub from: Duration,
    /// Passes in the order of their ends, with their chunks.
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
}

impl Watching {
    pub(crate) fn new(now: Duration, engine: &Engine) -> Watching {
        Watching {
            recorder: Recorder::in_detail(BOUNDS, now, engine),
            passes: VecDeque::new(),
            marks: VecDeque::new(),
            from: now,
            asked: now,
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

    /// What ended after `since`.
    pub(crate) fn recent(&mut self, now: Duration, since: Duration) -> Recent {
        self.asked = now;
        self.collect();
        let passes = self.passes.iter().skip(self.passes.partition_point(|pass| pass.ended <= since));
        let marks = self.marks.iter().skip(self.marks.partition_point(|(at, _)| *at <= since));
        Recent { from: self.from, passes: passes.cloned().collect(), marks: marks.copied().collect() }
    }

    fn collect(&mut self) {
        let (passes, marks) = self.recorder.take();
        self.passes.extend(passes);
        self.marks.extend(marks);
        // Lanes end their passes independently of each other, and are heard of a little later.
        self.passes.make_contiguous().sort_by_key(|pass| pass.ended);
        self.marks.make_contiguous().sort_by_key(|(at, _)| *at);
        for _ in MOST..self.passes.len() {
            self.from = self.passes.pop_front().map_or(self.from, |pass| self.from.max(pass.ended));
        }
        for _ in MOST..self.marks.len() {
            self.from = self.marks.pop_front().map_or(self.from, |(at, _)| self.from.max(at));
        }
    }
}
