//! Several services over the same pair: each with a dispatcher, an engine, a device and a watchdog of its own, and a router in front.
//!
//! ```text
//!   submit --> router: which replicas are ready, what have they cached, how much have they to do
//!                |  best first
//!                v
//!     Service 0, Service 1, ...     full or not ready any more: the next one
//!                |
//!                v
//!   ReplicaStream: when its replica is given up, the request goes on elsewhere, by prefill of prompt and output
//! ```
//! By invariant 1 its text is the same there.

use std::fmt::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use faser_engine::cost::PartitionCosts;
use faser_engine::record::Record;
use faser_engine::router::{self, ReplicaLoad};
use faser_engine::{FinishReason, Learned, LoadView, TokenId, Tuning, Usage};
use metrics::{Counter, Gauge, Unit};
use tokio::sync::watch;

use crate::drill::{self, Drill};
use crate::error::{ServiceError, SubmitError, TuneError};
use crate::health::DeviceStatus;
use crate::message::Control;
use crate::meter::{Meter, MetricNames};
use crate::recording::RecordingError;
use crate::service::{Service, ServiceSpec};
use crate::stream::{TokenStream, Update};
use crate::submission::Submission;

/// How long a request whose replica was given up may look for another that takes it: others may be full, or being rebuilt.
const MOVE_WITHIN: Duration = Duration::from_secs(30);
/// How often it asks.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// Running replicas, one or more. Clones are handles on the same ones; without `stop` they live as long as the actix System.
#[derive(Clone)]
pub struct Replicas(Arc<Inner>);

struct Inner {
    replicas: Vec<Replica>,
    lead: usize,
    draining: AtomicBool,
    /// Streams that somebody reads.
    open: watch::Sender<usize>,
    ready: Gauge,
    moved: Counter,
}

struct Replica {
    service: Service,
    routed: AtomicU64,
}

impl Replicas {
    /// Starts one service after the other and waits until all devices are built; with the faults of `drills`.
    ///
    /// # Errors
    /// There are no specifications, or as [`Service::start`].
    pub async fn start(specs: Vec<ServiceSpec>, drills: &[Drill]) -> Result<Replicas, ServiceError> {
        Replicas::start_of(&MetricNames::default(), specs, drills).await
    }

    /// The same with metrics of these names.
    ///
    /// # Errors
    /// As [`Replicas::start`].
    pub async fn start_of(
        names: &MetricNames,
        specs: Vec<ServiceSpec>,
        drills: &[Drill],
    ) -> Result<Replicas, ServiceError> {
        let all = Meter::of_pair(names);
        let Some(running) = specs.iter().map(|spec| spec.engine.tuning.max_running).min() else {
            return Err(ServiceError::Contradiction("there is to be at least one replica".to_owned()));
        };
        let several = specs.len() > 1;
        if let Some(Drill { replica, .. }) = drills.iter().find(|drill| drill.replica >= specs.len()) {
            return Err(ServiceError::Contradiction(format!(
                "there is no replica {replica} to have a fault"
            )));
        }
        let mut replicas: Vec<Replica> = Vec::with_capacity(specs.len());
        for (number, spec) in specs.into_iter().enumerate() {
            let meter = if several { all.replica(number) } else { all.clone() };
            let faults = drills.iter().filter(|drill| drill.replica == number);
            let faults = faults.map(|drill| drill.fault.clone()).collect();
            let started = async {
                spec.check()?;
                let factory = drill::factory(&spec.device, &spec.engine, faults);
                Service::start_with(spec, factory, meter).await
            };
            match started.await {
                Ok(service) => replicas.push(Replica { service, routed: AtomicU64::new(0) }),
                Err(error) => {
                    for Replica { service, .. } in replicas {
                        service.stop().await;
                    }
                    return Err(error);
                }
            }
        }
        let ready = all.shows("faser_replicas_ready", Unit::Count, "replicas that serve");
        let moved = all.counts(
            "faser_requests_moved_total",
            Unit::Count,
            "times a request went on on another replica because its own was given up",
        );
        let replicas = Replicas(Arc::new(Inner {
            replicas,
            lead: router::lead(running),
            draining: AtomicBool::new(false),
            open: watch::Sender::default(),
            ready,
            moved,
        }));
        replicas.publish_metrics();
        Ok(replicas)
    }

    /// Hands a request to the replica that is best for it. Dropping the future, like dropping the stream, cancels the request.
    ///
    /// # Errors
    /// As [`Service::submit`]; `Full` if all replicas that serve are full, `NotReady` if none serves.
    pub async fn submit(&self, submission: Submission) -> Result<ReplicaStream, SubmitError> {
        let inner = &*self.0;
        if inner.draining.load(Ordering::SeqCst) {
            return Err(SubmitError::Draining);
        }
        let submitted = Instant::now();
        let taken = inner.place(&submission, submitted).await;
        let taken = taken.map_err(|refused| match refused {
            Refused::Elsewhere(error) => error,
            Refused::Full { capacity } => SubmitError::Full { capacity },
            Refused::NotReady | Refused::Stopped if inner.draining.load(Ordering::SeqCst) => {
                SubmitError::Draining
            }
            Refused::NotReady => SubmitError::NotReady(inner.words()),
            Refused::Stopped => SubmitError::Stopped,
        })?;
        Ok(ReplicaStream::new(self, taken, submission, submitted))
    }

    /// How many replicas there are, whatever they are doing.
    pub fn count(&self) -> usize {
        self.0.replicas.len()
    }

    /// One of them, by its number.
    pub fn replica(&self, number: usize) -> Option<&Service> {
        self.0.replicas.get(number).map(|replica| &replica.service)
    }

    /// At least one replica serves, and new requests are taken.
    pub fn ready(&self) -> bool {
        !self.0.draining.load(Ordering::SeqCst) && self.services().any(Service::ready)
    }

    /// Waits until no replica is left: every device is given up.
    pub async fn until_given_up(&self) {
        for service in self.services() {
            service.until_given_up().await;
        }
    }

    /// What the devices are doing.
    pub fn statuses(&self) -> Vec<DeviceStatus> {
        self.services().map(Service::status).collect()
    }

    /// What each is doing, in words: that its draft is retired too.
    pub fn words(&self) -> Vec<String> {
        self.services().map(Service::words).collect()
    }

    /// The draft of a replica is retired.
    pub fn draft_retired(&self) -> bool {
        self.services().any(|service| service.draft_retired().is_some())
    }

    /// What they are doing, on one line.
    pub fn status(&self) -> String {
        self.0.words()
    }

    /// The load of each engine, as of the last event that it handled.
    pub fn views(&self) -> Vec<LoadView> {
        self.services().map(Service::view).collect()
    }

    /// The engines' loads added up, as of the last event that each handled.
    pub fn view(&self) -> LoadView {
        let mut views = self.services().map(Service::view);
        let mut sum = views.next().unwrap_or_default();
        views.for_each(|view| sum.add(&view));
        sum
    }

    /// Brings all metrics that follow from the views up to date: for the moment before they are read.
    pub fn publish_metrics(&self) {
        self.services().for_each(Service::publish_metrics);
        let serving = |status: &DeviceStatus| *status == DeviceStatus::Serving;
        self.0.ready.set(self.statuses().iter().filter(|status| serving(status)).count() as f64);
    }

    /// What the lanes of one replica do; none if there is no replica of that number. See [`Service::record`].
    ///
    /// # Errors
    /// As [`Service::record`].
    pub async fn record(&self, replica: usize, length: Duration) -> Option<Result<Record, RecordingError>> {
        Some(self.replica(replica)?.record(length).await)
    }

    /// As [`Service::heartbeat`], of every replica: it comes back when all dispatchers have answered.
    pub async fn heartbeat(&self) -> bool {
        for service in self.services() {
            if !service.heartbeat().await {
                return false;
            }
        }
        true
    }

    /// Streams that have not ended.
    pub fn active(&self) -> usize {
        if self.0.any_given_up() {
            // Those that are on their way from one replica to another are with neither.
            return *self.0.open.borrow();
        }
        self.services().map(Service::active).sum()
    }

    /// Takes no new requests from now on and waits, at most for `timeout`, until those it has are finished. Returns how
    /// many are left unfinished.
    pub async fn drain(&self, timeout: Duration) -> usize {
        self.0.draining.store(true, Ordering::SeqCst);
        self.services().for_each(Service::close);
        let all = async {
            for service in self.services() {
                service.emptied().await;
            }
            if self.0.any_given_up() {
                // It ends with the last stream: a sender is in `Inner`.
                let _ = self.0.open.subscribe().wait_for(|streams| *streams == 0).await;
            }
        };
        // Late: the count below says so.
        let _ = tokio::time::timeout(timeout, all).await;
        self.active()
    }

    /// Whether all of them can decide so.
    ///
    /// # Errors
    /// One cannot, has stopped, or hangs.
    pub async fn tunable(&self, tuning: &Tuning) -> Result<(), TuneError> {
        for service in self.services() {
            service.tunable(tuning.clone()).await?;
        }
        Ok(())
    }

    /// Has all of them decide otherwise from now on; streams go on.
    ///
    /// # Errors
    /// One cannot, and none has changed; or one has stopped or hangs.
    pub async fn tune(&self, tuning: &Tuning) -> Result<(), TuneError> {
        self.tunable(tuning).await?;
        for service in self.services() {
            service.tune(tuning.clone()).await?;
        }
        Ok(())
    }

    /// Waits, at most for `timeout`, until no stream is open. Returns how many are.
    pub async fn idle(&self, timeout: Duration) -> usize {
        let all = async {
            for service in self.services() {
                service.emptied().await;
            }
        };
        // Late: the count below says so.
        let _ = tokio::time::timeout(timeout, all).await;
        self.active()
    }

    /// Tells all of them what passes cost, measured anew on every partition.
    pub async fn profiled(&self, partitions: &[PartitionCosts]) {
        for service in self.services() {
            // One that has stopped needs no costs.
            let _ = service.ask(|answer| Control::Profiled { partitions: partitions.to_vec(), answer }).await;
        }
    }

    /// Has all of them forget past outputs; how many those were.
    pub async fn forget_outputs(&self) -> usize {
        let mut forgotten = 0;
        for service in self.services() {
            // One that has stopped has none.
            forgotten += service.ask(|answer| Control::ForgetOutputs { answer }).await.unwrap_or(0);
        }
        forgotten
    }

    /// What the first of them that answers has learned of its drafts; they have the same pair, and about the same requests.
    pub async fn learned(&self) -> Option<Learned> {
        for service in self.services() {
            if let Some(learned) = service.learned().await {
                return Some(learned);
            }
        }
        None
    }

    /// Ends all actors and threads, as [`Service::stop`].
    pub async fn stop(self) {
        self.0.draining.store(true, Ordering::SeqCst);
        let stops: Vec<_> = self.services().map(|service| actix::spawn(service.clone().stop())).collect();
        for stop in stops {
            if stop.await.is_err() {
                tracing::error!("a replica could not be stopped");
            }
        }
    }

    pub(crate) fn services(&self) -> impl Iterator<Item = &Service> {
        self.0.replicas.iter().map(|replica| &replica.service)
    }
}

/// A replica that has taken a request, and the stream from it.
struct Taken {
    replica: usize,
    tokens: TokenStream,
}

/// Why no replica has.
enum Refused {
    /// Each would refuse it.
    Elsewhere(SubmitError),
    /// All that serve are full, which hold so many together.
    Full { capacity: usize },
    /// None serves.
    NotReady,
    /// All that could have are stopped.
    Stopped,
}

impl Inner {
    /// Hands a request to the best replica that takes it.
    async fn place(&self, submission: &Submission, submitted: Instant) -> Result<Taken, Refused> {
        let (mut full, mut stopped) = (None, false);
        for number in self.order(submission).await {
            let replica = &self.replicas[number];
            match replica.service.hand_in(submission.clone(), submitted).await {
                Ok(tokens) => {
                    replica.routed.fetch_add(1, Ordering::Relaxed);
                    return Ok(Taken { replica: number, tokens });
                }
                Err(SubmitError::Full { capacity }) => *full.get_or_insert(0) += capacity,
                Err(SubmitError::NotReady(_)) => {}
                Err(SubmitError::Stopped) => stopped = true,
                Err(refused) => return Err(Refused::Elsewhere(refused)),
            }
        }
        Err(match full {
            Some(capacity) => Refused::Full { capacity },
            None if stopped => Refused::Stopped,
            None => Refused::NotReady,
        })
    }

    /// The replicas that serve, the best for this request first.
    async fn order(&self, submission: &Submission) -> Vec<usize> {
        if self.replicas.len() == 1 {
            return vec![0];
        }
        let Submission { prompt, output, handling, .. } = submission;
        let tokens: Arc<[TokenId]> = prompt.iter().chain(output).copied().collect();
        let mut cached = Vec::with_capacity(self.replicas.len());
        for Replica { service, .. } in &self.replicas {
            let asked = service.serving() && !tokens.is_empty();
            cached.push(if asked { service.cached_tokens(&tokens, handling.salt).await } else { 0 });
        }
        // Read at once, after the last wait.
        let load = |(replica, cached_tokens): (&Replica, usize)| ReplicaLoad {
            ready: replica.service.serving(),
            requests: replica.service.active(),
            cached_tokens,
            free_tokens: replica.service.free_tokens(),
            routed: replica.routed.load(Ordering::Relaxed),
        };
        let loads: Vec<ReplicaLoad> = self.replicas.iter().zip(cached).map(load).collect();
        let mut order = Vec::with_capacity(loads.len());
        router::rank(tokens.len(), self.lead, &loads, &mut order);
        order
    }

    fn any_given_up(&self) -> bool {
        self.replicas.len() > 1 && self.replicas.iter().any(|replica| replica.service.given_up())
    }

    fn words(&self) -> String {
        if let [only] = &self.replicas[..] {
            return only.service.words();
        }
        let mut words = String::new();
        for (number, replica) in self.replicas.iter().enumerate() {
            let parted = if number == 0 { "" } else { "; " };
            // Writing to a string cannot fail.
            let _ = write!(words, "{parted}replica {number}: {}", replica.service.words());
        }
        words
    }
}

/// One of the streams that somebody reads, which are counted.
struct OpenStream(watch::Sender<usize>);

impl OpenStream {
    fn new(open: &watch::Sender<usize>) -> OpenStream {
        open.send_modify(|streams| *streams += 1);
        OpenStream(open.clone())
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.send_modify(|streams| *streams -= 1);
    }
}

/// The tokens of one request, from whichever replica has it. Dropping it before `Update::Finished` was seen cancels the request.
pub struct ReplicaStream {
    tokens: TokenStream,
    replica: usize,
    /// What the request needs to go on elsewhere; none where there is no other.
    going_on: Option<Box<GoingOn>>,
    ended: bool,
    cancelled: bool,
    _open: OpenStream,
}

struct GoingOn {
    replicas: Replicas,
    /// With the output so far.
    submission: Submission,
    submitted: Instant,
    /// What it took on replicas that were given up.
    before: Option<Usage>,
}

impl ReplicaStream {
    fn new(replicas: &Replicas, taken: Taken, submission: Submission, submitted: Instant) -> ReplicaStream {
        let Taken { replica, tokens } = taken;
        let several = replicas.count() > 1;
        let going_on = several.then(|| {
            let replicas = replicas.clone();
            Box::new(GoingOn { replicas, submission, submitted, before: None })
        });
        let _open = OpenStream::new(&replicas.0.open);
        ReplicaStream { tokens, replica, going_on, ended: false, cancelled: false, _open }
    }

    /// The next update; `None` after `Update::Finished`, and without it if the service was stopped under the stream. Waits, if the request
    /// has to go on elsewhere.
    pub async fn next(&mut self) -> Option<Update> {
        while !self.ended {
            let update = self.tokens.next().await;
            let Some(rest) = &mut self.going_on else {
                self.ended = !matches!(update, Some(Update::Tokens(_)));
                return update;
            };
            let lost = match &update {
                Some(Update::Tokens(tokens)) => {
                    rest.submission.output.extend(tokens.iter().map(|emitted| emitted.token));
                    return update;
                }
                Some(Update::Finished { reason: FinishReason::DeviceFailed, usage }) => Some(*usage),
                Some(Update::Finished { .. }) => None,
                None => Some(Usage::default()),
            };
            if let Some(usage) = lost
                && !self.cancelled
                && rest.replicas.replica(self.replica).is_some_and(Service::given_up)
                && let Some(Taken { replica, tokens }) = rest.elsewhere(self.replica).await
            {
                (self.replica, self.tokens) = (replica, tokens);
                rest.before = Some(rest.all_of(usage));
                continue;
            }
            self.ended = true;
            return match update {
                Some(Update::Finished { reason, usage }) => {
                    Some(Update::Finished { reason, usage: rest.all_of(usage) })
                }
                other => other,
            };
        }
        None
    }

    /// Cancels the request and keeps the stream: `Update::Finished` follows, behind what had come before, and says what it took.
    pub fn cancel(&mut self) {
        self.cancelled = true;
        self.tokens.cancel();
    }

    /// The replica that has the request now.
    pub fn replica(&self) -> usize {
        self.replica
    }
}

impl fmt::Debug for ReplicaStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReplicaStream({}, {:?})", self.replica, self.tokens)
    }
}

impl GoingOn {
    /// Hands the request to another replica, as soon as one takes it; none if none will.
    async fn elsewhere(&self, from: usize) -> Option<Taken> {
        let give_up = Instant::now() + MOVE_WITHIN;
        let inner = &*self.replicas.0;
        loop {
            match inner.place(&self.submission, self.submitted).await {
                Ok(taken) => {
                    inner.moved.increment(1);
                    tracing::info!(
                        from,
                        to = taken.replica,
                        tokens = self.submission.output.len(),
                        "a request goes on elsewhere"
                    );
                    return Some(taken);
                }
                Err(Refused::Elsewhere(_) | Refused::Stopped) => return None,
                Err(Refused::Full { .. } | Refused::NotReady) => {}
            }
            let hopeless = inner.replicas.iter().all(|replica| replica.service.given_up());
            if hopeless || Instant::now() >= give_up {
                return None;
            }
            tokio::time::sleep(ASK_EVERY).await;
        }
    }

    /// What the request took in all, `last` of it on the latest replica, whose count of output goes on from the ones before.
    fn all_of(&self, last: Usage) -> Usage {
        let Some(before) = self.before else { return last };
        Usage { prompt_tokens: self.submission.prompt.len(), ..before.gone_on(last) }
    }
}
