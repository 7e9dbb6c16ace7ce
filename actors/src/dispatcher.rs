//! FrontierDispatcher: the only owner of the Engine. Two matches: messages become engine Events, engine Commands become
//! work for the lanes and updates for the streams. It decides nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::{Actor, ActorContext, Addr, AsyncContext, Context, Handler};
use faser_engine::{Admission, CancelledChunk, Command, Engine, Event, LaneKind, Refusal, SeqId};

use crate::awake::Wakeful;
use crate::error::SubmitError;
use crate::failures::{Fault, Faults, Part};
use crate::gpu_actor::Device;
use crate::kv_events::KvFeed;
use crate::lane::LaneDone;
use crate::latency::{Latencies, RequestClock};
use crate::load_monitor::{LoadBoard, LoadMonitor, LookNow};
use crate::message::{Control, Look, Message, Submit};
use crate::meter::Meter;
use crate::recording::{RecordAnswer, Recording, RecordingError, Watching};
use crate::requests::Requests;
use crate::runner::{DraftWork, VerifyWork};
use crate::stream::{CancelSet, Update};
use crate::submission::LaneRequest;

/// Messages that may wait. Handling one takes microseconds, so a burst of clients fits; a mailbox that is full all the
/// same means the dispatcher cannot keep up, and the next client is told to come back later.
pub(crate) const MAILBOX_CAPACITY: usize = 256;

enum DeviceState {
    Up(Device),
    Lost,
    GivenUp { reason: String },
}

/// What the dispatcher shares with the other actors.
pub(crate) struct Links {
    pub(crate) requests: Arc<Requests>,
    pub(crate) cancels: Arc<CancelSet>,
    pub(crate) board: Arc<LoadBoard>,
    pub(crate) monitor: Addr<LoadMonitor>,
    pub(crate) faults: Faults,
    pub(crate) meter: Meter,
}

/// The actor.
pub(crate) struct FrontierDispatcher {
    engine: Engine,
    device: DeviceState,
    links: Links,
    wakeful: Wakeful,
    latencies: Latencies,
    /// There if what is cached is published.
    kv_feed: Option<KvFeed>,
    /// Kept only while somebody waits for it.
    recording: Option<Box<Recording>>,
    recordings: u64,
    /// Kept only while somebody looks at it.
    watching: Option<Box<Watching>>,
    origin: Instant,
    commands: Vec<Command>,
    cancelled: Vec<SeqId>,
}

impl FrontierDispatcher {
    /// A dispatcher that waits for its first device.
    pub(crate) fn new(mut engine: Engine, links: Links, kv_feed: Option<KvFeed>) -> FrontierDispatcher {
        let mut commands = Vec::new();
        engine.handle(Duration::ZERO, Event::DeviceLost, &mut commands);
        if kv_feed.is_some() {
            engine.tell_kv_events();
        }
        links.board.put(engine.view());
        FrontierDispatcher {
            engine,
            device: DeviceState::Lost,
            latencies: Latencies::new(&links.meter),
            kv_feed,
            links,
            wakeful: Wakeful::default(),
            recording: None,
            recordings: 0,
            watching: None,
            origin: Instant::now(),
            commands,
            cancelled: Vec::new(),
        }
    }

    fn submit(&mut self, submit: Submit) {
        let Submit { request, submitted, verdict } = submit;
        let seq = request.seq;
        let clock = if request.output.is_empty() {
            RequestClock::new(submitted, request.max_new_tokens)
        } else {
            RequestClock::going_on(submitted, request.max_new_tokens, Instant::now())
        };
        if !self.links.requests.take(seq, clock) {
            return;
        }
        if let DeviceState::GivenUp { reason } = &self.device {
            let refusal = SubmitError::NotReady(reason.clone());
            self.links.requests.close(seq);
            // The other end may have gone away: then nobody wants the verdict.
            let _ = verdict.send(Err(refusal));
            return;
        }
        let refused = self.tell(Event::Submit(request), None);
        // As above. If it is gone, its stream is too, and the drop of that has asked for cancellation.
        let _ = verdict.send(refused.map_or(Ok(()), Err));
    }

    /// A lane has finished a plan. A result of another generation comes from a device that was lost: the engine has forgotten its plan.
    fn lane_done(&mut self, LaneDone { generation, done, ended }: LaneDone) {
        if matches!(&self.device, DeviceState::Up(device) if device.generation == generation) {
            if let Event::VerifyDone(plan) = &done {
                self.latencies.passed(plan.tokens.len());
            }
            self.tell(done, Some(ended));
        }
    }

    fn device_ready(&mut self, device: Device) {
        self.device = DeviceState::Up(device);
        self.tell(Event::DeviceReady, None);
    }

    fn device_lost(&mut self, part: Part) {
        self.device = DeviceState::Lost;
        let lost = match part {
            Part::Target => Event::DeviceLost,
            Part::Draft => Event::DraftLost,
        };
        self.tell(lost, None);
    }

    fn device_given_up(&mut self, reason: String) {
        self.device = DeviceState::GivenUp { reason };
        self.tell(Event::DeviceGivenUp, None);
    }

    fn cancel_abandoned(&mut self) {
        let mut cancelled = std::mem::take(&mut self.cancelled);
        self.links.cancels.take(&mut cancelled);
        for seq in cancelled.drain(..) {
            self.tell(Event::Cancel(seq), None);
        }
        self.cancelled = cancelled;
    }

    /// Hands an event to the engine and carries out what it asks for. `ended` is when the pass ended that this event is
    /// about. The answer is the refusal of a `Submit`, if it was refused.
    fn tell(&mut self, event: Event, ended: Option<Instant>) -> Option<SubmitError> {
        let mut commands = std::mem::take(&mut self.commands);
        let now = self.origin.elapsed();
        let at = ended.map_or(now, |ended| ended.saturating_duration_since(self.origin));
        if let Some(recording) = &mut self.recording {
            recording.before(at, &event);
        }
        if let Some(watching) = &mut self.watching {
            watching.before(at, &event);
        }
        self.engine.handle(now, event, &mut commands);
        if let Some(watching) = &mut self.watching {
            watching.after(now, &self.engine, &commands);
            self.watching.take_if(|watching| watching.over(now));
        }
        if let Some(recording) = &mut self.recording {
            recording.after(now, &self.engine, &commands);
            if recording.over() {
                self.end_recording();
            }
        }
        // Lanes first: they wait for it.
        commands.iter_mut().for_each(|command| self.send_plan(command, ended));
        if let Some(feed) = &mut self.kv_feed {
            feed.pass_on(&self.engine);
        }
        // Before anyone hears of it: who has seen a stream end finds it in the figures.
        self.publish_load();
        let mut refused = None;
        for command in commands.drain(..) {
            match command {
                Command::Draft(_) | Command::Verify(_) => {}
                Command::CancelChunk(chunk) => self.cancel_chunk(chunk),
                Command::Emit { seq, tokens } => {
                    let (latencies, count) = (&self.latencies, tokens.len());
                    self.links.requests.send(seq, Update::Tokens(tokens), |clock| {
                        latencies.emitted(clock, Instant::now(), count);
                    });
                }
                Command::Finish { seq, reason, usage } => {
                    let latencies = &self.latencies;
                    self.links.requests.end(seq, Update::Finished { reason, usage }, |clock| {
                        latencies.ended(clock, Instant::now(), reason, &usage);
                    });
                }
                Command::Reject { seq, why } => {
                    self.links.requests.close(seq);
                    refused = Some(match why {
                        Refusal::QueueFull { capacity, .. } => SubmitError::Full { capacity },
                        why => SubmitError::Refused(why),
                    });
                }
            }
        }
        self.commands = commands;
        self.engine.tidy_up();
        refused
    }

    /// Sends a plan, if it is one, to its lane.
    fn send_plan(&mut self, command: &mut Command, ended: Option<Instant>) {
        match command {
            Command::Draft(plan) => {
                let (requests, plan) = (self.requests_of(&plan.admit), std::mem::take(plan));
                self.to_lane(|device| {
                    let lane = device.draft.as_ref();
                    let lane = lane.ok_or_else(|| ours("there is no draft model, but a draft plan"))?;
                    let sent = lane.send(DraftWork { plan, requests: requests.map_err(ours)? }, ended);
                    sent.map_err(|reason| (lane.part(), reason))
                });
            }
            Command::Verify(plan) => {
                let (requests, plan) = (self.requests_of(&plan.admit), std::mem::take(plan));
                self.to_lane(|device| {
                    let work = VerifyWork { plan, requests: requests.map_err(ours)? };
                    device.verify.send(work, ended).map_err(ours)
                });
            }
            _ => {}
        }
    }

    /// Does what an operator asks. Whoever asked may have gone: then nobody hears of it.
    fn control(&mut self, control: Control) {
        match control {
            Control::Look { requests, seen, answer } => {
                let now = self.origin.elapsed();
                let engine = &self.engine;
                let recent = seen.map(|seen| {
                    let watching = &mut self.watching;
                    watching.get_or_insert_with(|| Box::new(Watching::new(now, engine))).recent(now, seen)
                });
                let _ = answer.send(Look {
                    now,
                    view: engine.view(),
                    tuning: engine.tuning().clone(),
                    requests: engine.requests(now, requests),
                    recent,
                });
            }
            Control::Cancel { seq, answer } => {
                let there = self.links.requests.taken(seq);
                self.tell(Event::Cancel(seq), None);
                let _ = answer.send(there);
            }
            Control::Tunable { tuning, answer } => {
                let _ = answer.send(self.engine.config().tunable(&tuning));
            }
            Control::Tune { tuning, answer } => {
                let tunable = self.engine.config().tunable(&tuning);
                if tunable.is_ok() {
                    self.tell(Event::Tune(tuning), None);
                }
                let _ = answer.send(tunable);
            }
            Control::Profiled { partitions, answer } => {
                self.tell(Event::Profiled(partitions), None);
                let _ = answer.send(());
            }
            Control::Learned { answer } => {
                let _ = answer.send(self.engine.learned());
            }
            Control::ForgetOutputs { answer } => {
                let forgotten = self.engine.view().suffix.outputs;
                self.tell(Event::ForgetOutputs, None);
                let _ = answer.send(forgotten);
            }
        }
    }

    /// Begins a recording, which ends by itself.
    fn record(&mut self, length: Duration, answer: RecordAnswer, ctx: &mut Context<Self>) {
        if let Some(recording) = self.recording.as_ref().filter(|recording| !recording.over()) {
            // The other end may have gone away: then nobody wants to know.
            let _ = answer.send(Err(RecordingError::Busy(recording.length())));
            return;
        }
        let recording = Recording::new(length, answer, self.origin.elapsed(), &self.engine);
        self.recording = Some(Box::new(recording));
        self.recordings += 1;
        let number = self.recordings;
        ctx.run_later(length, move |dispatcher, _| {
            // It may have ended before its time, and another begun.
            if dispatcher.recordings == number {
                dispatcher.end_recording();
            }
        });
    }

    fn end_recording(&mut self) {
        if let Some(recording) = self.recording.take() {
            recording.finish(self.origin.elapsed());
        }
    }

    /// Tells a lane in the middle of its work.
    fn cancel_chunk(&self, CancelledChunk { lane, step, chunk, .. }: CancelledChunk) {
        let DeviceState::Up(device) = &self.device else { return };
        match lane {
            LaneKind::Draft => device.draft.iter().for_each(|lane| lane.cancel(step, chunk)),
            LaneKind::Verify => device.verify.cancel(step, chunk),
        }
    }

    fn publish_load(&mut self) {
        let view = self.engine.view();
        let quiet = view.running == 0 && view.waiting == 0;
        self.links.board.put(view);
        // `idle` also checks that both pools are whole.
        if quiet && self.engine.idle() {
            // Refused only if the monitor has such a message already, or has stopped.
            let _ = self.links.monitor.try_send(LookNow);
        }
    }

    fn requests_of(&self, admissions: &[Admission]) -> Result<Vec<Arc<LaneRequest>>, String> {
        let request = |admission: &Admission| {
            let for_lanes = self.links.requests.for_lanes(admission.seq);
            for_lanes.ok_or_else(|| format!("{} is admitted but unknown", admission.seq))
        };
        admissions.iter().map(request).collect()
    }

    /// Gives a plan to the device. A device that does not take it has failed, as far as the engine is concerned.
    fn to_lane(&self, send: impl FnOnce(&Device) -> Result<(), (Part, String)>) {
        if let DeviceState::Up(device) = &self.device {
            self.wakeful.stay(&device.awake);
            if let Err((part, reason)) = send(device) {
                self.links.faults.report(Fault { generation: device.generation, part, reason });
            }
        }
    }
}

/// Nothing is served while this stands.
fn ours(reason: impl Into<String>) -> (Part, String) {
    (Part::Target, reason.into())
}

impl Actor for FrontierDispatcher {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(MAILBOX_CAPACITY);
    }
}

impl Handler<Message> for FrontierDispatcher {
    type Result = ();

    fn handle(&mut self, message: Message, ctx: &mut Self::Context) {
        match message {
            Message::Submit(submit) => self.submit(*submit),
            Message::CancelsWaiting => {} // taken below, as after every message
            Message::DeviceLost(part) => self.device_lost(part),
            Message::DraftRetired => drop(self.tell(Event::DraftRetired, None)),
            Message::DeviceReady(device) => self.device_ready(device),
            Message::DeviceGivenUp { reason } => self.device_given_up(reason),
            Message::Probe { tokens, salt, answer } => {
                // Whoever asked may have gone.
                let _ = answer.send(self.engine.cached_tokens(&tokens, salt));
            }
            Message::Record { length, answer } => self.record(length, answer, ctx),
            Message::Control(control) => self.control(*control),
            Message::Heartbeat => {}
            #[cfg(test)]
            Message::Hang(until) => drop(until.recv()),
            Message::Stop => {
                self.device = DeviceState::Lost;
                self.links.requests.close_all();
                ctx.stop();
            }
        }
        self.cancel_abandoned();
    }
}

impl Handler<LaneDone> for FrontierDispatcher {
    type Result = ();

    fn handle(&mut self, done: LaneDone, _: &mut Self::Context) {
        self.lane_done(done);
        self.cancel_abandoned();
    }
}
