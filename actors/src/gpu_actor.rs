//! GpuActor: one device (a CPU is one), from its first lane thread to its last. It owns the two lanes, and through them
//! their KV memory; on its own thread, because releasing a device means waiting for its lanes.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use actix::{Actor, Context, Handler, Recipient};

use crate::error::ServiceError;
use crate::faults::Faults;
use crate::lane::{Build, LaneQueue, LaneThread};
use crate::message::Message;
use crate::pulse::Pulse;
use crate::runner::{DraftWork, VerifyWork};

/// `Attach` once, `Release` once, and one to spare.
const MAILBOX_CAPACITY: usize = 4;
/// How often a device that is being released looks whether its lanes have ended.
const RELEASE_TICK: Duration = Duration::from_millis(1);

/// Opens a device, as often as it takes: once for each generation.
pub(crate) type DeviceFactory = Arc<dyn Fn() -> Result<DeviceBuild, ServiceError> + Send + Sync>;

/// How to make the lanes of a device that is open.
#[derive(Clone)]
pub(crate) struct DeviceBuild {
    /// None if there is no draft model.
    pub(crate) draft: Option<Build<DraftWork>>,
    pub(crate) verify: Build<VerifyWork>,
}

/// The ways to a device's lanes, for the dispatcher. Results carry the generation back.
#[derive(Clone)]
pub(crate) struct Device {
    pub(crate) generation: u64,
    pub(crate) draft: Option<LaneQueue<DraftWork>>,
    pub(crate) verify: LaneQueue<VerifyWork>,
}

/// The owner of one device's lanes.
pub(crate) struct GpuActor {
    device: Option<Device>,
    threads: Vec<JoinHandle<()>>,
    pulses: Vec<(&'static str, Arc<Pulse>)>,
}

impl GpuActor {
    /// Opens the device and builds both lanes, each on its own thread; waits until they can take work: seconds, if the KV memory is
    /// large. Every generation has its own lanes and its own empty KV memory.
    pub(crate) fn build(
        factory: &DeviceFactory,
        generation: u64,
        results: &Recipient<Message>,
        faults: &Faults,
    ) -> Result<GpuActor, ServiceError> {
        let plan = factory()?;
        let spawn_draft = |build: &Build<DraftWork>| {
            LaneThread::spawn(generation, build.clone(), results.clone(), faults.clone())
        };
        let draft = plan.draft.as_ref().map(spawn_draft).transpose()?;
        let verify = LaneThread::spawn(generation, plan.verify.clone(), results.clone(), faults.clone())?;
        if let Some(draft) = &draft {
            draft.wait_until_built()?;
        }
        verify.wait_until_built()?;
        let device = Device {
            generation,
            draft: draft.as_ref().map(|lane| lane.queue.clone()),
            verify: verify.queue.clone(),
        };
        let mut pulses = vec![("verify", verify.pulse())];
        pulses.extend(draft.as_ref().map(|lane| ("draft", lane.pulse())));
        let threads = draft.map(|lane| lane.thread).into_iter().chain([verify.thread]).collect();
        Ok(GpuActor { device: Some(device), threads, pulses })
    }

    /// Name and pulse of each lane, for the watchdog.
    pub(crate) fn pulses(&self) -> Vec<(&'static str, Arc<Pulse>)> {
        self.pulses.clone()
    }
}

impl Actor for GpuActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(MAILBOX_CAPACITY);
    }
}

/// Asks for the device's queues, once: from then on the asker alone keeps the lanes alive. None the second time.
pub(crate) struct Attach;

impl actix::Message for Attach {
    type Result = Option<Device>;
}

impl Handler<Attach> for GpuActor {
    type Result = Option<Device>;

    fn handle(&mut self, _: Attach, _: &mut Self::Context) -> Option<Device> {
        self.device.take()
    }
}

/// Waits until the lanes have ended, at most `within`; true if they have. Their queues have to be dropped before.
/// A lane that never ends is left behind with its memory: there is no safe way to kill a thread.
pub(crate) struct Release {
    pub(crate) within: Duration,
}

impl actix::Message for Release {
    type Result = bool;
}

impl Handler<Release> for GpuActor {
    type Result = bool;

    fn handle(&mut self, Release { within }: Release, _: &mut Self::Context) -> bool {
        self.device = None;
        let give_up = Instant::now() + within;
        loop {
            // A lane that panicked has reported it already.
            self.threads.extract_if(.., |thread| thread.is_finished()).for_each(|thread| drop(thread.join()));
            if self.threads.is_empty() || Instant::now() >= give_up {
                return self.threads.is_empty();
            }
            std::thread::sleep(RELEASE_TICK);
        }
    }
}
