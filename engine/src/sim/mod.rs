//! The simulator: the real engine under a virtual clock, on a device that is only costs and a rule for tokens.
//!
//! Everything is seeded and exactly repeatable. The device is strict: it refuses (by panic, since that is a bug of the
//! engine) any plan that reads KV nobody wrote, so that every simulation is a test of the block accounting as well.

mod clock;
mod device;
mod report;

use std::collections::HashMap;
use std::time::Duration;

pub use device::{Costs, SimDevice};
pub use report::{Outcome, Report};

use crate::api::{Command, Event, Request, SeqId};
use crate::config::{EngineConfig, EngineError};
use crate::engine::Engine;
use clock::EventQueue;

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
}

/// One engine, one simulated device, one virtual clock.
#[derive(Debug)]
pub struct Simulation {
    engine: Engine,
    device: SimDevice,
    queue: EventQueue,
    report: Report,
    arrived_at: HashMap<SeqId, Duration>,
}

impl Simulation {
    /// A server that has just started.
    ///
    /// # Errors
    /// What `Engine::new` refuses.
    pub fn new(config: EngineConfig, device: SimDevice) -> Result<Simulation, EngineError> {
        Ok(Simulation {
            engine: Engine::new(config)?,
            device,
            queue: EventQueue::default(),
            report: Report::default(),
            arrived_at: HashMap::new(),
        })
    }

    /// Plays `happenings` (times need not be in order) until nothing is left to do.
    pub fn run(mut self, happenings: impl IntoIterator<Item = (Duration, Happening)>) -> Report {
        for (at, happening) in happenings {
            match happening {
                Happening::Arrival(request) => self.queue.push(at, Event::Submit(request)),
                Happening::Cancel(seq) => self.queue.push(at, Event::Cancel(seq)),
                Happening::DeviceLost { rebuild } => {
                    self.queue.push(at, Event::DeviceLost);
                    self.queue.push(at + rebuild, Event::DeviceReady);
                }
            }
        }
        let mut commands = Vec::new();
        while let Some((now, event)) = self.queue.pop() {
            match &event {
                Event::Submit(request) => {
                    self.arrived_at.entry(request.seq).or_insert(now);
                }
                Event::DeviceLost => self.device.lose(),
                _ => {}
            }
            self.engine.handle(now, event, &mut commands);
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
        self.report
    }

    fn carry_out(&mut self, now: Duration, command: Command) {
        match command {
            Command::Draft(plan) => {
                let result = self.device.draft(&plan);
                self.queue.push(now + result.took, Event::DraftDone(result));
            }
            Command::Verify(plan) => {
                let result = self.device.verify(&plan);
                self.queue.push(now + result.took, Event::VerifyDone(result));
            }
            Command::Emit { seq, tokens } => {
                let arrived = self.arrived_at.get(&seq).copied().unwrap_or(now);
                self.report.emitted(seq, now - arrived, &tokens);
            }
            Command::Finish { seq, reason, usage } => {
                let arrived = self.arrived_at.get(&seq).copied().unwrap_or(now);
                self.report.finished(seq, now, now - arrived, reason, usage);
            }
            Command::Reject { seq, why } => self.report.rejected(seq, why),
        }
    }
}
