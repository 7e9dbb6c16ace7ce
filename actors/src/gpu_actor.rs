//! GpuActor: one device (a CPU is one, or what one rank has of it), from its first lane thread to its last. It owns its lanes, and through
//! them their KV memory.

use std::sync::Arc;
use std::time::Duration;

use actix::{Actor, Context, Handler, Recipient, ResponseFuture};

use crate::awake::Awake;
use crate::error::ServiceError;
use crate::failures::{Fault, Faults, OnLoss, Part};
use crate::lane::{Build, Follow, LaneDone, LaneEnd, LaneQueue, LaneThread, Pulse, Work};
use crate::meter::Meter;
use crate::runner::{DraftWork, VerifyWork};

/// `Attach` once, `Release` once, and one to spare.
const MAILBOX_CAPACITY: usize = 4;
/// Opens a device, as often as it takes: once for each generation.
pub(crate) type DeviceFactory = Arc<dyn Fn() -> Result<DeviceBuild, ServiceError> + Send + Sync>;

/// How to make the lanes of a device that is open.
#[derive(Clone)]
pub(crate) struct DeviceBuild {
    /// None if there is no draft model.
    pub(crate) draft: Option<Build<DraftWork>>,
    /// The draft has a device of its own, which is opened where its lane is built: the others can do without it.
    pub(crate) draft_apart: bool,
    pub(crate) verify: Build<VerifyWork>,
    /// The ranks after the first, if the models are split over a group.
    pub(crate) others: Vec<RankBuild>,
    /// Has what is given hear of it once the device is lost by another node, whatever its lanes do.
    pub(crate) on_loss: Vec<OnLoss>,
    /// How long whoever waits for the next plan or its result stays awake.
    pub(crate) awake: Awake,
}

impl DeviceBuild {
    /// The same device, without its draft.
    pub(crate) fn without_draft(mut self) -> DeviceBuild {
        self.draft = None;
        self.others.iter_mut().for_each(|rank| rank.draft = None);
        self
    }
}

/// How to make the lanes of a rank after the first: for the models that have a shard there.
#[derive(Clone)]
pub(crate) struct RankBuild {
    pub(crate) draft: Option<Build<Follow<DraftWork>>>,
    pub(crate) verify: Option<Build<Follow<VerifyWork>>>,
}

/// The ways to a device's lanes, for the dispatcher. Results carry the generation back.
#[derive(Clone)]
pub(crate) struct Device {
    pub(crate) generation: u64,
    pub(crate) awake: Awake,
    pub(crate) draft: Option<LaneQueue<DraftWork>>,
    pub(crate) verify: LaneQueue<VerifyWork>,
}

/// The owner of one device's lanes.
pub(crate) struct GpuActor {
    device: Option<Device>,
    lanes: Vec<LaneEnd>,
    pulses: Vec<(&'static str, Arc<Pulse>)>,
}

impl GpuActor {
    /// Opens the device and builds its lanes, each on its own thread; waits until they can take work: seconds, if the KV memory is
    /// large. Every generation has its own lanes and its own empty KV memory. One actor for each rank; the first one's device leads to
    /// the lanes of all. If it drafts no more, its draft lanes are left out.
    pub(crate) fn build(
        factory: &DeviceFactory,
        (generation, drafts): (u64, bool),
        results: &Recipient<LaneDone>,
        faults: &Faults,
        meter: &Meter,
    ) -> Result<Vec<GpuActor>, ServiceError> {
        let plan = factory()?;
        let plan = if drafts { plan } else { plan.without_draft() };
        let spawn = Spawn { generation, awake: &plan.awake, results, faults, meter };
        let drafting = if plan.draft_apart { Part::Draft } else { Part::Target };
        for on_loss in &plan.on_loss {
            let faults = faults.clone();
            on_loss(Box::new(move |reason| faults.report(Fault { generation, part: Part::Target, reason })));
        }
        let mut draft = spawn.lane_of(plan.draft.as_ref(), drafting)?;
        if let Some(draft) = draft.as_mut().filter(|_| plan.draft_apart) {
            // The next try comes at once where this one fails: the target's memory is not taken before.
            draft.wait_until_built()?;
        }
        let mut verify = spawn.lane(&plan.verify, Part::Target)?;
        let mut others = Vec::with_capacity(plan.others.len());
        for rank in &plan.others {
            let draft = spawn.lane_of(rank.draft.as_ref(), drafting)?;
            others.push((draft, spawn.lane_of(rank.verify.as_ref(), Part::Target)?));
        }
        for (follows_draft, follows_verify) in &others {
            if let (Some(draft), Some(follows)) = (&mut draft, follows_draft) {
                draft.lead(follows);
            }
            follows_verify.iter().for_each(|follows| verify.lead(follows));
        }
        let device = Device {
            generation,
            awake: plan.awake.clone(),
            draft: draft.as_ref().map(|lane| lane.queue.clone()),
            verify: verify.queue.clone(),
        };
        let mut ranks = vec![GpuActor::of_lanes(Some(device), draft, Some(verify))?];
        for (draft, verify) in others {
            ranks.push(GpuActor::of_lanes(None, draft, verify)?);
        }
        Ok(ranks)
    }

    /// The owner of these lanes, as soon as they can take work.
    fn of_lanes<D: Work, V: Work>(
        device: Option<Device>,
        draft: Option<LaneThread<D>>,
        verify: Option<LaneThread<V>>,
    ) -> Result<GpuActor, ServiceError> {
        let mut actor = GpuActor { device, lanes: Vec::new(), pulses: Vec::new() };
        actor.own(draft)?;
        actor.own(verify)?;
        Ok(actor)
    }

    fn own<W: Work>(&mut self, lane: Option<LaneThread<W>>) -> Result<(), ServiceError> {
        if let Some(mut lane) = lane {
            lane.wait_until_built()?;
            self.pulses.push((W::LANE, lane.pulse()));
            self.lanes.push(lane.end);
        }
        Ok(())
    }

    /// Name and pulse of each lane, for the watchdog.
    pub(crate) fn pulses(&self) -> Vec<(&'static str, Arc<Pulse>)> {
        self.pulses.clone()
    }
}

/// Starts lanes' threads.
struct Spawn<'a> {
    generation: u64,
    awake: &'a Awake,
    results: &'a Recipient<LaneDone>,
    faults: &'a Faults,
    meter: &'a Meter,
}

impl Spawn<'_> {
    fn lane<W: Work>(&self, build: &Build<W>, part: Part) -> Result<LaneThread<W>, ServiceError> {
        let (results, faults) = (self.results.clone(), self.faults.clone());
        LaneThread::spawn(
            (self.generation, part),
            self.awake.clone(),
            build.clone(),
            results,
            faults,
            self.meter,
        )
    }

    fn lane_of<W: Work>(
        &self,
        build: Option<&Build<W>>,
        part: Part,
    ) -> Result<Option<LaneThread<W>>, ServiceError> {
        build.map(|build| self.lane(build, part)).transpose()
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
    type Result = ResponseFuture<bool>;

    fn handle(&mut self, Release { within }: Release, _: &mut Self::Context) -> Self::Result {
        self.device = None;
        let lanes = std::mem::take(&mut self.lanes);
        Box::pin(async move {
            let all = async {
                for lane in lanes {
                    lane.wait().await;
                }
            };
            tokio::time::timeout(within, all).await.is_ok()
        })
    }
}
