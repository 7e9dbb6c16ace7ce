//! The service: what the daemon holds. It starts the actors, takes requests, and ends it all.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use actix::dev::SendError;
use actix::{Actor, Addr, Arbiter, System};
use tokio::sync::oneshot;

use faser_engine::record::Record;
use faser_engine::{Engine, EngineConfig, Learned, LoadView, Request, SeqId, TokenId, Tuning};

use crate::device::DeviceSpec;
use crate::dispatcher::{FrontierDispatcher, Links, MAILBOX_CAPACITY};
use crate::error::{ServiceError, SubmitError, TuneError};
use crate::failures::{Faults, WatchdogConfig};
use crate::gpu_actor::DeviceFactory;
use crate::health::{DeviceStatus, Health};
use crate::kv_events::{KvFeed, KvSender};
use crate::load_metrics::LoadMetrics;
use crate::load_monitor::{LoadBoard, LoadMonitor};
use crate::message::{Control, Look, Message, Submit};
use crate::meter::Meter;
use crate::nodes::Nodes;
use crate::recording::{LONGEST_RECORDING, RecordingError, Seen};
use crate::requests::Requests;
use crate::stream::{CancelSet, Canceller, TokenStream};
use crate::submission::{LaneRequest, Submission};
use crate::watchdog::Watchdog;

/// A dispatcher answers at once; one that has not by then hangs, and nobody waits for it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 10 });

/// Everything a service is built from.
pub struct ServiceSpec {
    /// The pair and where it runs.
    pub device: DeviceSpec,
    /// The engine's bounds; it has blocks for a draft exactly when there is one.
    pub engine: EngineConfig,
    /// When a device counts as failed.
    pub watchdog: WatchdogConfig,
    /// Where it tells what of the target's KV is cached, if anybody is to know.
    pub kv_events: Option<KvSender>,
}

impl ServiceSpec {
    /// Checks what the parts say of each other.
    pub(crate) fn check(&self) -> Result<(), ServiceError> {
        self.device.check(&self.engine)?;
        let contradiction = |text: String| Err(ServiceError::Contradiction(text));
        let engine = &self.engine;
        let (target, draft) = (self.device.target(), self.device.draft());
        if draft.is_some() != engine.draft.drafts() {
            return contradiction(format!(
                "the engine plans for {}, and the device has another",
                engine.draft
            ));
        }
        let drafted = draft.map(|draft| {
            let holds = draft.config.max_context;
            ("draft_context", engine.max_context.min(engine.speculation.draft_context), holds)
        });
        let verified = ("max_context", engine.max_context, target.config.max_context);
        for (name, asked, holds) in std::iter::once(verified).chain(drafted) {
            if asked > holds {
                return contradiction(format!(
                    "{name} is {asked}, but the model has {holds} positions; lower it"
                ));
            }
        }
        let (known, there) = (engine.partitions.len(), self.device.partitions().len());
        if there == 0 || known > there {
            return contradiction(format!(
                "the engine knows what {known} partitions cost, and the device has {there}"
            ));
        }
        if let Some(tokens) = self.device.block_size().filter(|tokens| *tokens != engine.block_size) {
            let asked = engine.block_size;
            return contradiction(format!("KV blocks have {tokens} tokens on this device, not {asked}"));
        }
        Ok(())
    }
}

/// A running service. Clones are handles on the same one; without `stop` it lives as long as the actix System.
#[derive(Clone)]
pub struct Service(Arc<Inner>);

struct Inner {
    dispatcher: Addr<FrontierDispatcher>,
    requests: Arc<Requests>,
    canceller: Arc<Canceller>,
    board: Arc<LoadBoard>,
    metrics: Arc<LoadMetrics>,
    health: Arc<Health>,
    draining: AtomicBool,
    next_seq: AtomicU64,
    vocab: usize,
    max_context: usize,
    block_size: usize,
    running: Mutex<Option<Running>>,
}

/// What `stop` takes down.
struct Running {
    stop_watchdog: oneshot::Sender<()>,
    /// Who may wait for nodes to come.
    nodes: Option<Nodes>,
    watchdog_ended: oneshot::Receiver<()>,
    /// The dispatcher's thread, and the one LoadMonitor and watchdog share.
    arbiters: [Arbiter; 2],
}

impl Service {
    /// Starts the actors and waits until the device is built. Metrics go to the recorder that is installed by now.
    ///
    /// # Errors
    /// The specification contradicts itself, a lane cannot be built, or there is no actix System on this thread.
    pub async fn start(spec: ServiceSpec) -> Result<Service, ServiceError> {
        spec.check()?;
        let factory = spec.device.factory(&spec.engine);
        Service::start_with(spec, factory, Meter::default()).await
    }

    /// `start` with a device of the caller's making, as one of several replicas, which have their metrics apart.
    pub(crate) async fn start_with(
        spec: ServiceSpec,
        factory: DeviceFactory,
        meter: Meter,
    ) -> Result<Service, ServiceError> {
        System::try_current().ok_or(ServiceError::NoSystem)?;
        let vocab = spec.device.target().config.vocab;
        let nodes = spec.device.nodes().cloned();
        let (max_context, block_size) = (spec.engine.max_context, spec.engine.block_size);
        spec.engine.validate()?;
        let arbiter = |name| Arbiter::try_new().map_err(|source| ServiceError::Thread { name, source });
        // The dispatcher alone on its thread: whatever else is going on, a lane that waits is answered at once.
        let arbiters = [arbiter("the dispatcher")?, arbiter("the watchdog")?];
        let board = Arc::new(LoadBoard::default());
        let metrics = Arc::new(LoadMetrics::new(&meter));
        let health = Arc::new(Health::new(&meter));
        let kv_feed = spec.kv_events.map(|sender| KvFeed::new(sender, &meter));
        let requests = Arc::new(Requests::default());
        let cancels = Arc::new(CancelSet::default());
        let (faults, reported) = Faults::channel();
        let monitor = LoadMonitor::start_in_arbiter(&arbiters[1].handle(), {
            let (board, metrics) = (board.clone(), metrics.clone());
            move |_| LoadMonitor::new(board, metrics)
        });
        let links = Links {
            requests: requests.clone(),
            cancels: cancels.clone(),
            board: board.clone(),
            monitor,
            faults: faults.clone(),
            meter: meter.clone(),
        };
        let dispatcher = start_dispatcher(&arbiters[0], spec.engine, links, kv_feed).await?;
        let (stop_watchdog, stop) = oneshot::channel();
        let (started, first_build) = oneshot::channel();
        let (ended, watchdog_ended) = oneshot::channel();
        let watchdog = Watchdog {
            config: spec.watchdog,
            factory,
            drafts: true,
            dispatcher: dispatcher.clone(),
            health: health.clone(),
            requests: requests.clone(),
            meter,
            faults,
            reported,
            stop,
        };
        arbiters[1].spawn(async move {
            watchdog.run(started).await;
            // Nobody may be waiting for it.
            let _ = ended.send(());
        });
        let canceller = Arc::new(Canceller { set: cancels, dispatcher: dispatcher.clone().recipient() });
        let service = Service(Arc::new(Inner {
            dispatcher,
            requests,
            canceller,
            board,
            metrics,
            health,
            draining: AtomicBool::new(false),
            next_seq: AtomicU64::new(1),
            vocab,
            max_context,
            block_size,
            running: Mutex::new(Some(Running { stop_watchdog, nodes, watchdog_ended, arbiters })),
        }));
        if let Err(error) = first_build.await.unwrap_or(Err(ServiceError::NoSystem)) {
            service.stop().await;
            return Err(error);
        }
        Ok(service)
    }

    /// The dispatcher's mailbox.
    pub(crate) fn dispatcher(&self) -> &Addr<FrontierDispatcher> {
        &self.0.dispatcher
    }

    /// Hands a request in. Dropping the future, like dropping the stream, cancels the request.
    ///
    /// # Errors
    /// Why the request was not taken; nothing is left behind then.
    pub async fn submit(&self, submission: Submission) -> Result<TokenStream, SubmitError> {
        self.0.open_for_requests()?;
        self.hand_in(submission, Instant::now()).await
    }

    /// `submit` of a request that came to the replicas at this time, also while this one drains.
    pub(crate) async fn hand_in(
        &self,
        submission: Submission,
        submitted: Instant,
    ) -> Result<TokenStream, SubmitError> {
        let inner = &*self.0;
        submission.check(inner.vocab)?;
        let seq = SeqId(inner.next_seq.fetch_add(1, Ordering::Relaxed));
        let Submission {
            prompt,
            output,
            sampling,
            max_new_tokens,
            stop_tokens,
            prediction,
            handling,
            logprobs,
            constraint,
            whole,
        } = submission;
        let request = Request {
            seq,
            prompt: prompt.into(),
            output: output.into(),
            max_new_tokens,
            stop_tokens: stop_tokens.into(),
            prediction: prediction.into(),
            history_free: !sampling.reads_history() && constraint.is_none(),
            draws: sampling.temperature > 0.0,
            whole_prompt: logprobs.as_ref().is_some_and(|collector| collector.wants_prompt()),
            handling,
        };
        let for_lanes = Arc::new(LaneRequest { sampling: Arc::new(sampling), logprobs, constraint });
        // The engine will refuse more than the context holds; the stream's capacity must be sane before that.
        let updates = inner.requests.open(seq, max_new_tokens.min(inner.max_context), for_lanes, whole);
        let stream = TokenStream::new(seq, updates, inner.canceller.clone());
        let (verdict, decided) = oneshot::channel();
        let submit = Submit { request, submitted, verdict };
        let sent = inner.serving().and_then(|()| {
            inner.dispatcher.try_send(Message::Submit(Box::new(submit))).map_err(|refused| match refused {
                SendError::Full(_) => SubmitError::Full { capacity: MAILBOX_CAPACITY },
                SendError::Closed(_) => SubmitError::Stopped,
            })
        });
        if let Err(refused) = sent {
            inner.requests.close(seq);
            stream.disarm();
            return Err(refused);
        }
        match decided.await {
            Ok(Ok(())) => Ok(stream),
            Ok(Err(refused)) => {
                stream.disarm();
                Err(refused)
            }
            Err(_) => Err(SubmitError::Stopped),
        }
    }

    /// Looks at it: at its `requests` oldest requests, and, if `seen` is given, at what the lanes did beyond that. The first
    /// look with `seen` finds nothing; from then on that is kept, for a while behind the latest look. `None` if it has stopped or hangs.
    pub async fn look(&self, requests: usize, seen: Option<Seen>) -> Option<Look> {
        self.ask(|answer| Control::Look { requests, seen, answer }).await
    }

    /// Ends a request as if its client had gone, but that the client hears of it; `false` if there is none of that number. `None` if
    /// the service has stopped or hangs.
    pub async fn cancel(&self, seq: SeqId) -> Option<bool> {
        self.ask(|answer| Control::Cancel { seq, answer }).await
    }

    pub(crate) async fn tunable(&self, tuning: Tuning) -> Result<(), TuneError> {
        let asked = self.ask(|answer| Control::Tunable { tuning, answer }).await;
        Ok(asked.ok_or(TuneError::Stopped)??)
    }

    /// Has it decide otherwise from now on; streams go on.
    ///
    /// # Errors
    /// It cannot, and nothing has changed; or it has stopped or hangs: if it goes on, it does what it was told.
    pub async fn tune(&self, tuning: Tuning) -> Result<(), TuneError> {
        let asked = self.ask(|answer| Control::Tune { tuning, answer }).await;
        Ok(asked.ok_or(TuneError::Stopped)??)
    }

    /// What it has learned of its drafts; none if it has stopped or hangs.
    pub async fn learned(&self) -> Option<Learned> {
        self.ask(|answer| Control::Learned { answer }).await
    }

    pub(crate) async fn ask<A>(&self, control: impl FnOnce(oneshot::Sender<A>) -> Control) -> Option<A> {
        let (answer, answered) = oneshot::channel();
        let asked = async {
            self.dispatcher().send(Message::Control(Box::new(control(answer)))).await.ok()?;
            answered.await.ok()
        };
        tokio::time::timeout(ANSWER_TIMEOUT, asked).await.ok()?
    }

    /// The device serves and new requests are taken.
    pub fn ready(&self) -> bool {
        self.0.open_for_requests().is_ok()
    }

    /// What the device is doing.
    pub fn status(&self) -> DeviceStatus {
        self.0.health.get()
    }

    /// Why the draft is retired, if it is: its own device is lost for good, and all goes on without it.
    pub fn draft_retired(&self) -> Option<String> {
        self.0.health.draft_retired()
    }

    /// What the device is doing, and that its draft is retired, on one line.
    pub fn words(&self) -> String {
        match (self.status(), self.draft_retired()) {
            (DeviceStatus::Serving, Some(why)) => {
                format!("serving without its draft, which is retired until the daemon is restarted: {why}")
            }
            (status, _) => status.to_string(),
        }
    }

    /// The device serves.
    pub(crate) fn serving(&self) -> bool {
        self.0.health.serving()
    }

    /// There will be no device any more.
    pub(crate) fn given_up(&self) -> bool {
        self.0.health.given_up()
    }

    /// Waits until there will be none.
    pub(crate) async fn until_given_up(&self) {
        self.0.health.until_given_up().await;
    }

    /// Leading tokens of a prompt whose KV is there under this salt; 0 if the dispatcher has more to do than to look.
    pub(crate) async fn cached_tokens(&self, tokens: &Arc<[TokenId]>, salt: u128) -> usize {
        let (answer, cached) = oneshot::channel();
        let probe = Message::Probe { tokens: tokens.clone(), salt, answer };
        if self.0.dispatcher.try_send(probe).is_err() {
            return 0;
        }
        cached.await.unwrap_or(0)
    }

    /// Tokens that free KV blocks of the target have room for, as of the last event.
    pub(crate) fn free_tokens(&self) -> usize {
        self.view().target_pool.free * self.0.block_size
    }

    /// The engine's load, as of the last event it handled.
    pub fn view(&self) -> LoadView {
        self.0.board.get()
    }

    /// Brings all metrics that follow from `view` up to date: for the moment before they are read.
    pub fn publish_metrics(&self) {
        self.0.metrics.publish(&self.view());
    }

    /// Waits for `length`, up to [`LONGEST_RECORDING`], and says what the lanes did in that time; in less, if there was more than a record
    /// holds. Times in it are since the service started. Dropping the future ends the recording.
    ///
    /// # Errors
    /// The length cannot be had, somebody else is recording, or the service has stopped.
    pub async fn record(&self, length: Duration) -> Result<Record, RecordingError> {
        if length.is_zero() || length > LONGEST_RECORDING {
            return Err(RecordingError::Length);
        }
        let (answer, recorded) = oneshot::channel();
        let asked = self.0.dispatcher.send(Message::Record { length, answer }).await;
        asked.map_err(|_| RecordingError::Stopped)?;
        recorded.await.unwrap_or(Err(RecordingError::Stopped))
    }

    /// Sends a message through the dispatcher's mailbox and waits until it was handled, behind all that were sent before it. An idle
    /// dispatcher answers at once, one that hangs does not; `false` if it has stopped.
    pub async fn heartbeat(&self) -> bool {
        self.0.dispatcher.send(Message::Heartbeat).await.is_ok()
    }

    /// Streams that have not ended.
    pub fn active(&self) -> usize {
        self.0.requests.len()
    }

    /// Takes no new requests from now on and waits, at most for `timeout`, until those it has are finished. Returns how
    /// many are left unfinished.
    pub async fn drain(&self, timeout: Duration) -> usize {
        self.close();
        // Late: the count below says so.
        let _ = tokio::time::timeout(timeout, self.emptied()).await;
        self.active()
    }

    /// Takes no new requests from now on.
    pub(crate) fn close(&self) {
        self.0.draining.store(true, Ordering::SeqCst);
    }

    /// Waits until no stream is open.
    pub(crate) async fn emptied(&self) {
        self.0.requests.emptied().await;
    }

    /// Ends all actors and threads. Streams that are still open end without `Update::Finished`; `drain` first if that
    /// matters. Stopping twice does nothing.
    pub async fn stop(self) {
        let running = self.0.running.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Running { stop_watchdog, nodes, watchdog_ended, arbiters }) = running else { return };
        self.0.draining.store(true, Ordering::SeqCst);
        // First the dispatcher, which lets go of the lanes' queues; then the watchdog, which waits for the lanes. Either
        // may have ended before.
        let _ = self.0.dispatcher.send(Message::Stop).await;
        let _ = stop_watchdog.send(());
        nodes.iter().for_each(Nodes::stop);
        let _ = watchdog_ended.await;
        for arbiter in &arbiters {
            arbiter.stop();
        }
        // Both have nothing left to do: they end at once.
        for arbiter in arbiters {
            if arbiter.join().is_err() {
                tracing::error!("an actor thread panicked");
            }
        }
    }
}

/// Starts the dispatcher on its thread. The engine is made there too: it never changes threads.
async fn start_dispatcher(
    arbiter: &Arbiter,
    engine: EngineConfig,
    links: Links,
    kv_feed: Option<KvFeed>,
) -> Result<Addr<FrontierDispatcher>, ServiceError> {
    let (tell_started, started) = oneshot::channel();
    arbiter.spawn_fn(move || {
        let dispatcher =
            Engine::new(engine).map(|engine| FrontierDispatcher::new(engine, links, kv_feed).start());
        // Nobody waits for it only if the start was abandoned; with the address the actor ends too.
        let _ = tell_started.send(dispatcher);
    });
    Ok(started.await.map_err(|_| ServiceError::NoSystem)??)
}

impl Inner {
    fn open_for_requests(&self) -> Result<(), SubmitError> {
        if self.draining.load(Ordering::SeqCst) {
            return Err(SubmitError::Draining);
        }
        self.serving()
    }

    fn serving(&self) -> Result<(), SubmitError> {
        if !self.health.serving() {
            return Err(SubmitError::NotReady(self.health.get().to_string()));
        }
        Ok(())
    }
}
