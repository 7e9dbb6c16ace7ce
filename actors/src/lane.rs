//! One lane of a device as a thread: it takes work from its queue, runs it, and sends the result to the dispatcher.
//!
//! ```text
//!   dispatcher --LaneQueue--> [ wait ] -> [ run ] -> result to the dispatcher -> [ wait ] ...
//!                                           | panic
//!                                           v
//!                                   fault to the watchdog, thread ends
//! ```

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use actix::Recipient;
use actix::dev::SendError;
use faser_engine::Event;
use metrics::Histogram;
use tokio::sync::oneshot;

use crate::awake::Awake;
use crate::cancellation::CancelList;
use crate::error::ServiceError;
use crate::failures::{Fault, Faults, Part};
use crate::meter::Meter;
use crate::runner::{DraftWork, VerifyWork};

/// Upper bounds of histogram buckets for passes and gaps of a lane, in seconds.
pub const LANE_BUCKETS: &[f64] = &[
    0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
    0.5, 1.0, 2.5, 10.0,
];

/// Plans a lane's queue holds: the engine has at most one out per lane today; a second place lets it hand over the
/// next plan while one runs. More would only be plans made too early.
const QUEUE_CAPACITY: usize = 2;

/// How long a lane waits before it offers a result again to a full mailbox. Each lane has a place of its own there,
/// so this happens only if the dispatcher is more than a whole pass behind.
const OFFER_AGAIN_AFTER: Duration = Duration::from_micros(50);

/// What a lane does: plans of one kind, which bring results of one kind.
pub(crate) trait Work: Send + 'static {
    /// `draft` or `verify`.
    const LANE: &'static str;
    /// The lane's thread.
    const THREAD: &'static str;
    /// Whether the lane is counted: the first rank's is.
    const COUNTS: bool = true;
}

impl Work for DraftWork {
    const LANE: &'static str = "draft";
    const THREAD: &'static str = "faser-draft";
}

impl Work for VerifyWork {
    const LANE: &'static str = "verify";
    const THREAD: &'static str = "faser-verify";
}

/// What the dispatcher is told by a lane of this generation: it finished a plan.
pub(crate) struct LaneDone {
    pub(crate) generation: u64,
    pub(crate) done: Event,
    pub(crate) ended: Instant,
}

impl actix::Message for LaneDone {
    type Result = ();
}

/// Work of a rank after the first: the same plan.
pub(crate) struct Follow<W>(pub(crate) Arc<W>);

impl<W: Work + Sync> Work for Follow<W> {
    const LANE: &'static str = W::LANE;
    const THREAD: &'static str = W::THREAD;
    const COUNTS: bool = false;
}

/// What carries out a lane's work, and says what the engine is to be told: one lane of a group does. Made and used on the lane's thread alone.
pub(crate) type Run<W> = Box<dyn FnMut(W) -> Option<Event>>;
/// Makes a `Run` with fresh KV memory, which looks at the list for what it need not finish; called on the lane's thread.
pub(crate) type Build<W> = Arc<dyn Fn(Arc<CancelList>) -> Result<Run<W>, ServiceError> + Send + Sync>;

/// What a lane owes and when it last moved: written by the lane and its queue, read by the watchdog.
#[derive(Default)]
pub(crate) struct Pulse(Mutex<Beat>);

#[derive(Clone, Copy, Default)]
struct Beat {
    outstanding: usize,
    moved: Option<Instant>,
}

impl Pulse {
    /// The lane was given work.
    pub(crate) fn ordered(&self, now: Instant) {
        let mut beat = self.lock();
        if beat.outstanding == 0 {
            beat.moved = Some(now);
        }
        beat.outstanding += 1;
    }

    /// The lane finished a piece of work.
    pub(crate) fn done(&self, now: Instant) {
        let mut beat = self.lock();
        beat.outstanding = beat.outstanding.saturating_sub(1);
        beat.moved = Some(now);
    }

    /// How long the lane has owed a result without bringing any.
    pub(crate) fn silent_for(&self, now: Instant) -> Option<Duration> {
        let beat = *self.lock();
        beat.moved.filter(|_| beat.outstanding > 0).map(|moved| now.saturating_duration_since(moved))
    }

    fn lock(&self) -> MutexGuard<'_, Beat> {
        // Two plain values: whole whatever panicked while they were held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Order<W> {
    work: W,
    /// End of the pass whose result brought this order about; none if a client did.
    after: Option<Instant>,
    queued: Instant,
}

/// The way to a lane. Work is not sent through the GpuActor's mailbox: that would cost a change of threads per pass.
///
/// In a group it is the way to all ranks: they are given the same plans in the same order, and hear of the same cancellations.
pub(crate) struct LaneQueue<W> {
    orders: SyncSender<Order<W>>,
    pulse: Arc<Pulse>,
    cancels: Arc<CancelList>,
    part: Part,
    followers: Vec<Follower<W>>,
}

struct Follower<W> {
    orders: SyncSender<Order<Follow<W>>>,
    pulse: Arc<Pulse>,
    cancels: Arc<CancelList>,
}

impl<W> Clone for LaneQueue<W> {
    fn clone(&self) -> LaneQueue<W> {
        LaneQueue {
            orders: self.orders.clone(),
            pulse: self.pulse.clone(),
            cancels: self.cancels.clone(),
            part: self.part,
            followers: self.followers.clone(),
        }
    }
}

impl<W> Clone for Follower<W> {
    fn clone(&self) -> Follower<W> {
        let Follower { orders, pulse, cancels } = self;
        Follower { orders: orders.clone(), pulse: pulse.clone(), cancels: cancels.clone() }
    }
}

impl<W: Work> LaneQueue<W> {
    /// Queues work; never waits. An error says that the lane is gone or was given more than the engine may have out.
    pub(crate) fn send(&self, work: W, after: Option<Instant>) -> Result<(), String>
    where
        W: Clone,
    {
        let queued = Instant::now();
        if !self.followers.is_empty() {
            // Once for all of them.
            let same = Arc::new(work.clone());
            for follower in &self.followers {
                let work = Follow(same.clone());
                give(&follower.orders, &follower.pulse, Order { work, after, queued }, W::LANE)?;
            }
        }
        give(&self.orders, &self.pulse, Order { work, after, queued }, W::LANE)
    }

    /// What fails with it.
    pub(crate) fn part(&self) -> Part {
        self.part
    }

    /// Nobody waits any more for what plan `step` brings for its chunk at this place.
    pub(crate) fn cancel(&self, step: u64, chunk: usize) {
        let others = self.followers.iter().map(|follower| &follower.cancels);
        others.chain([&self.cancels]).for_each(|list| list.add(step, chunk));
    }
}

fn give<W>(orders: &SyncSender<Order<W>>, pulse: &Pulse, order: Order<W>, lane: &str) -> Result<(), String> {
    pulse.ordered(order.queued);
    orders.try_send(order).map_err(|refused| format!("the {lane} lane takes no work: {refused}"))
}

/// A running lane; it ends when the last `LaneQueue` is dropped and what is queued is done.
pub(crate) struct LaneThread<W> {
    pub(crate) queue: LaneQueue<W>,
    pub(crate) end: LaneEnd,
    /// None once that is known.
    built: Option<Receiver<Result<(), ServiceError>>>,
}

/// A lane's thread, and word of its end.
pub(crate) struct LaneEnd {
    thread: JoinHandle<()>,
    ended: oneshot::Receiver<()>,
}

impl LaneEnd {
    /// Waits until all that the lane had is released.
    pub(crate) async fn wait(self) {
        // Dropped, not sent.
        let _ = self.ended.await;
        // A lane that panicked has reported it already.
        let _ = self.thread.join();
    }
}

impl<W: Work> LaneThread<W> {
    /// Starts the thread, which begins to build its `Run`. What fails with it is `part` of a device.
    pub(crate) fn spawn(
        (generation, part): (u64, Part),
        awake: Awake,
        build: Build<W>,
        results: Recipient<LaneDone>,
        faults: Faults,
        meter: &Meter,
    ) -> Result<LaneThread<W>, ServiceError> {
        let (orders, queue) = sync_channel(QUEUE_CAPACITY);
        let (tell_built, built) = sync_channel(1);
        let (tell_ended, ended) = oneshot::channel::<()>();
        let pulse = Arc::new(Pulse::default());
        let cancels = Arc::new(CancelList::default());
        let list = cancels.clone();
        let times = W::COUNTS.then(|| Times::new(&meter.with("lane", W::LANE)));
        let lane = LaneLoop { generation, part, awake, results, faults, pulse: pulse.clone(), times };
        let thread = thread::Builder::new()
            .name(W::THREAD.to_owned())
            .spawn(move || {
                // Goes last, with everything else released: what is the closure's own would go later.
                let _ended = tell_ended;
                let (build, queue) = (build, queue);
                let run = catch_unwind(AssertUnwindSafe(|| build(list))).unwrap_or_else(|panic| {
                    Err(ServiceError::Lane { lane: W::LANE, reason: words_of(&*panic) })
                });
                // A builder that went away needs no answer, and drops the queue too.
                match run {
                    Ok(run) if tell_built.send(Ok(())).is_ok() => lane.serve(&queue, run),
                    Ok(_) => {}
                    Err(error) => drop(tell_built.send(Err(error))),
                }
            })
            .map_err(|source| ServiceError::Thread { name: W::THREAD, source })?;
        let queue = LaneQueue { orders, pulse, cancels, part, followers: Vec::new() };
        Ok(LaneThread { queue, end: LaneEnd { thread, ended }, built: Some(built) })
    }

    /// Waits until the lane can take work.
    pub(crate) fn wait_until_built(&mut self) -> Result<(), ServiceError> {
        let Some(built) = self.built.take() else { return Ok(()) };
        let built = built.recv().unwrap_or_else(|_| {
            Err(ServiceError::Lane {
                lane: W::LANE,
                reason: "its thread ended while it was being built".to_owned(),
            })
        });
        built.map_err(|error| match self.queue.part {
            Part::Target => error,
            Part::Draft => ServiceError::DraftDevice(Box::new(error)),
        })
    }

    pub(crate) fn pulse(&self) -> Arc<Pulse> {
        self.queue.pulse.clone()
    }

    /// From now on its queue is the way to this rank's lane too.
    pub(crate) fn lead(&mut self, follower: &LaneThread<Follow<W>>) {
        let LaneQueue { orders, pulse, cancels, .. } = follower.queue.clone();
        self.queue.followers.push(Follower { orders, pulse, cancels });
    }
}

struct LaneLoop {
    generation: u64,
    part: Part,
    awake: Awake,
    results: Recipient<LaneDone>,
    faults: Faults,
    pulse: Arc<Pulse>,
    times: Option<Times>,
}

impl LaneLoop {
    fn serve<W: Work>(self, queue: &Receiver<Order<W>>, mut run: Run<W>) {
        let mut ended = None;
        while let Ok(Order { work, after, queued }) = self.awake.next(queue) {
            let started = Instant::now();
            if let Some(times) = &self.times {
                times.gap(started, waiting_since(after, queued, ended));
            }
            // After a panic `run` is dropped unused, so no one sees what it left half done.
            let outcome = match catch_unwind(AssertUnwindSafe(|| run(work))) {
                Ok(outcome) => outcome,
                Err(panic) => {
                    let reason = format!("the {} lane panicked: {}", W::LANE, words_of(&*panic));
                    self.faults.report(Fault { generation: self.generation, part: self.part, reason });
                    return;
                }
            };
            let now = Instant::now();
            ended = Some(now);
            if let Some(times) = &self.times {
                times.pass.record(now.duration_since(started));
            }
            self.pulse.done(now);
            if let Some(done) = outcome
                && !self.offer(LaneDone { generation: self.generation, done, ended: now })
            {
                return;
            }
        }
    }

    /// Hands a result over, however long that takes; false if the dispatcher is gone.
    fn offer(&self, mut message: LaneDone) -> bool {
        loop {
            match self.results.try_send(message) {
                Ok(()) => return true,
                Err(SendError::Closed(_)) => return false,
                Err(SendError::Full(again)) => message = again,
            }
            thread::sleep(OFFER_AGAIN_AFTER);
        }
    }
}

struct Times {
    gap: Histogram,
    pass: Histogram,
}

impl Times {
    fn new(meter: &Meter) -> Times {
        Times {
            gap: meter.times(
                "faser_lane_gap_seconds",
                "time between the end of a pass and the start of the next in which the lane waited for the host",
            ),
            pass: meter.times("faser_pass_seconds", "time a lane worked on one plan"),
        }
    }

    fn gap(&self, started: Instant, waiting_since: Option<Instant>) {
        if let Some(since) = waiting_since {
            self.gap.record(started.saturating_duration_since(since));
        }
    }
}

/// When a lane began to wait for the host before a pass: at the end of the pass that brought the order about, or of
/// this lane's previous one if the order was waiting by then. A lane that had nothing to do did not wait.
fn waiting_since(after: Option<Instant>, queued: Instant, ended: Option<Instant>) -> Option<Instant> {
    after.max(ended.filter(|&ended| queued <= ended))
}

/// The message of a panic.
pub(crate) fn words_of(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_what_the_host_cost_and_not_idle_time() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        // A client's request, nothing before: no gap, however long the lane was idle.
        assert_eq!(waiting_since(None, at(900), Some(at(5))), None);
        assert_eq!(waiting_since(None, at(900), None), None);
        // The other lane's result at 40 brought the order: the lane waited since then, not since its own last pass.
        assert_eq!(waiting_since(Some(at(40)), at(41), Some(at(20))), Some(at(40)));
        // The order lay in the queue when the pass before it ended at 60.
        assert_eq!(waiting_since(Some(at(40)), at(41), Some(at(60))), Some(at(60)));
    }

    #[test]
    fn the_words_of_a_panic_are_kept() {
        let panic = catch_unwind(|| panic!("row {} of {}", 3, 2)).expect_err("it panics");
        assert_eq!(words_of(&*panic), "row 3 of 2");
        let panic = catch_unwind(|| std::panic::panic_any(5_u8)).expect_err("it panics");
        assert_eq!(words_of(&*panic), "no message");
    }

    #[test]
    fn a_lane_is_silent_only_while_it_owes_a_result() {
        let pulse = Pulse::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(pulse.silent_for(at(9)), None);
        pulse.ordered(at(10));
        pulse.ordered(at(12));
        assert_eq!(pulse.silent_for(at(13)), Some(Duration::from_secs(3)));
        pulse.done(at(14));
        assert_eq!(pulse.silent_for(at(15)), Some(Duration::from_secs(1)));
        pulse.done(at(16));
        assert_eq!(pulse.silent_for(at(99)), None);
    }
}
