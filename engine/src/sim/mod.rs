//! The simulator: the real engine under a virtual clock, on a device that is only costs and a rule for tokens.
//!
//! Everything is seeded and exactly repeatable. The device is strict: it refuses (by panic, since that is a bug of the
//! engine) any plan that reads KV nobody wrote, so that every simulation is a test of the block accounting as well.
//!
//! ```text
//!   Workload --Happenings--> Simulation { Engine <--Event / Command--> SimDevice, lanes' clock } --> Report
//! ```

mod acceptance;
mod arrivals;
mod costs;
mod device;
mod hardware;
mod kv;
mod lanes;
mod lengths;
mod pair;
mod phrases;
mod preset;
mod random;
mod replay;
mod report;
mod roofline;
mod workload;

use std::collections::BTreeMap;
use std::time::Duration;

pub use acceptance::{Acceptance, TextClass};
pub use arrivals::Arrivals;
pub use costs::{Deviation, DeviceCosts};
pub use device::SimDevice;
pub use hardware::{Hardware, Links};
pub use lengths::Lengths;
pub use pair::{ModelShape, Pair};
pub use phrases::Phrases;
pub use preset::Preset;
pub use replay::{Trace, TracedRequest};
pub use report::{Outcome, Report};
pub use roofline::{PassParts, Roofline};
pub use workload::{Faults, Workload};

use crate::api::{Command, Event};
use crate::config::{EngineConfig, EngineError};
use crate::engine::Engine;
use crate::plan::{CancelledChunk, LaneKind};
use crate::record::{Bounds, Record, Recorder};
use crate::request::{Request, SeqId};
use lanes::{Lanes, PlanOut};

/// What happens to a simulated server from outside.
#[derive(Clone, Debug)]
pub enum Happening {
    /// A client asks.
    Arrival(Request),
    /// A client goes.
    Cancel(SeqId),
    /// The device fails, and a fresh one is there after `rebuild`.
    DeviceLost {
        /// Time until the fresh device is ready.
        rebuild: Duration,
    },
    /// The draft's device fails, and all is rebuilt after `rebuild`: without a draft, if it is lost `for_good`.
    DraftLost {
        /// Time until the fresh device is ready.
        rebuild: Duration,
        /// It does not come back.
        for_good: bool,
    },
    /// A lane becomes slow, for a while.
    SlowLane {
        /// Which.
        lane: LaneKind,
        /// It takes so many times as long.
        factor: f64,
        /// Until it is itself again.
        lasts: Duration,
    },
}

/// What is due at some time.
#[derive(Debug)]
enum Due {
    Engine(Box<Event>),
    Speed(LaneKind, f64),
}

/// One engine, one simulated device, one virtual clock.
#[derive(Debug)]
pub struct Simulation {
    engine: Engine,
    device: SimDevice,
    /// What comes from outside, in the order of its time, and of its making where times are equal.
    queue: BTreeMap<(Duration, u64), Due>,
    made: u64,
    lanes: Lanes,
    /// Chunks of the plans that are out that were cancelled, by lane.
    cancelled: [Vec<usize>; 2],
    recorder: Recorder,
    report: Report,
}

impl Simulation {
    /// A server that has just started.
    ///
    /// # Errors
    /// What `Engine::new` refuses.
    pub fn new(config: EngineConfig, device: SimDevice) -> Result<Simulation, EngineError> {
        let engine = Engine::new(config)?;
        Ok(Simulation {
            recorder: Recorder::of_passes(&engine),
            engine,
            device,
            queue: BTreeMap::new(),
            made: 0,
            lanes: Lanes::default(),
            cancelled: [Vec::new(), Vec::new()],
            report: Report::default(),
        })
    }

    /// Keeps every pass with its chunks, and the marks, for a trace. Without it, passes are kept alone.
    #[must_use]
    pub fn in_detail(mut self) -> Simulation {
        // The arrivals are the bound.
        let all = Bounds { passes: usize::MAX, chunks: usize::MAX, marks: usize::MAX };
        self.recorder = Recorder::in_detail(all, Duration::ZERO, &self.engine);
        self
    }

    /// Counts the tokens emitted before this time separately: a rate under load, without the drain at the end.
    #[must_use]
    pub fn counting_until(mut self, end: Duration) -> Simulation {
        self.report.counted_until = end;
        self
    }

    /// Plays `happenings` (times need not be in order) until nothing is left to do.
    pub fn run(self, happenings: impl IntoIterator<Item = (Duration, Happening)>) -> Report {
        self.run_seen(happenings, |_, _, _| ())
    }

    /// As `run`; `seen` is shown the engine after every event, and what it asked for.
    pub fn run_seen(
        mut self,
        happenings: impl IntoIterator<Item = (Duration, Happening)>,
        mut seen: impl FnMut(Duration, &Engine, &[Command]),
    ) -> Report {
        happenings.into_iter().for_each(|(at, happening)| self.schedule(at, happening));
        let mut commands = Vec::new();
        while let Some((now, event)) = self.next() {
            if let Event::Submit(request) = &event {
                self.report.arrived(request.seq, now);
            }
            if matches!(event, Event::DeviceLost | Event::DraftLost | Event::DraftRetired) {
                self.device.lose();
                for (at, late) in self.lanes.lose(now) {
                    self.push(at, Due::Engine(Box::new(late)));
                }
            }
            self.recorder.before(now, &event);
            self.engine.handle(now, event, &mut commands);
            self.engine.tidy_up();
            self.recorder.after(now, &self.engine, &commands);
            seen(now, &self.engine, &commands);
            for command in commands.drain(..) {
                self.report.commands += 1;
                self.carry_out(now, command);
            }
        }
        assert!(
            self.engine.idle(),
            "nothing is left to happen, but the engine waits: {:?}",
            self.engine.view()
        );
        self.report.view = self.engine.view();
        self.report.any_lane_busy = self.lanes.any_busy;
        self.report.both_lanes_busy = self.lanes.both_busy;
        let Record { passes, marks, target_layers, .. } = self.recorder.finish(self.report.makespan);
        Report { passes, marks, target_layers, ..self.report }
    }

    fn push(&mut self, at: Duration, due: Due) {
        self.made += 1;
        self.queue.insert((at, self.made), due);
    }

    fn schedule(&mut self, at: Duration, happening: Happening) {
        match happening {
            Happening::Arrival(request) => self.push(at, Due::Engine(Box::new(Event::Submit(request)))),
            Happening::Cancel(seq) => self.push(at, Due::Engine(Box::new(Event::Cancel(seq)))),
            Happening::DeviceLost { rebuild } => {
                self.push(at, Due::Engine(Box::new(Event::DeviceLost)));
                self.push(at + rebuild, Due::Engine(Box::new(Event::DeviceReady)));
            }
            Happening::DraftLost { rebuild, for_good } => {
                self.push(at, Due::Engine(Box::new(Event::DraftLost)));
                if for_good {
                    self.push(at + rebuild, Due::Engine(Box::new(Event::DraftRetired)));
                }
                self.push(at + rebuild, Due::Engine(Box::new(Event::DeviceReady)));
            }
            Happening::SlowLane { lane, factor, lasts } => {
                self.push(at, Due::Speed(lane, factor));
                self.push(at + lasts, Due::Speed(lane, 1.0));
            }
        }
    }

    /// Whatever comes first; of what comes at the same time, news from outside.
    fn next(&mut self) -> Option<(Duration, Event)> {
        loop {
            let outside = self.queue.keys().next().map(|(at, _)| *at);
            if self.lanes.next().is_some_and(|end| outside.is_none_or(|at| end < at)) {
                return self.lanes.finish().map(|(at, _, event)| (at, event));
            }
            match self.queue.pop_first()? {
                ((at, _), Due::Engine(event)) => return Some((at, *event)),
                ((at, _), Due::Speed(lane, factor)) => self.lanes.slow(at, lane, factor),
            }
        }
    }

    /// What of a lane's work is left without the chunks that were cancelled since it began.
    fn cancel_chunk(&mut self, now: Duration, chunk: CancelledChunk) {
        let Some(plan) = self.lanes.out(chunk.lane).filter(|plan| plan.step() == chunk.step) else { return };
        let cancelled = &mut self.cancelled[chunk.lane as usize];
        let before = self.device.without(plan, cancelled);
        cancelled.push(chunk.chunk);
        let after = self.device.without(plan, cancelled);
        self.lanes.shorten(now, chunk.lane, if before > 0.0 { after / before } else { 1.0 });
    }

    fn carry_out(&mut self, now: Duration, command: Command) {
        match command {
            Command::Draft(mut plan) => {
                self.cancelled[LaneKind::Draft as usize].clear();
                let work = self.device.draft(&mut plan);
                self.lanes.start(now, work, PlanOut::Draft(plan));
            }
            Command::Verify(mut plan) => {
                self.cancelled[LaneKind::Verify as usize].clear();
                let work = self.device.verify(&mut plan);
                self.lanes.start(now, work, PlanOut::Verify(plan));
            }
            Command::CancelChunk(chunk) => self.cancel_chunk(now, chunk),
            Command::Emit { seq, tokens } => self.report.emitted(seq, now, &tokens),
            Command::Finish { seq, reason, usage } => self.report.finished(seq, now, reason, usage),
            Command::Reject { seq, why } => self.report.rejected(seq, why),
        }
    }
}
