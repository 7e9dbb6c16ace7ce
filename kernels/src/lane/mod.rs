//! A lane: an ordered stream of work on a partition's cores.
//!
//! The thread that owns the lane is worker 0. Helpers join a job while it is open and leave when nothing is left to
//! claim: a helper that wakes late costs nothing. Which worker does what never matters to the result.

mod thread_pool;
mod times;
mod worker_scratch;

use crate::collective::{Alone, CollectiveError, HostCollective};
use crate::isa::Supported;
use crate::{Isa, KernelError};
use faser_topology::Partition;
use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};
use thread_pool::ThreadPool;
pub(crate) use thread_pool::WorkQueue;
pub use times::{Op, OpTime, OpTimes};
pub(crate) use worker_scratch::Scratch;

/// Work a job must have before helpers are called: less is done sooner alone.
const WORTH_SHARING_NS: usize = 2000;
/// Least work of a claim, and the most if that is not very little of a job.
const PORTION_NS: Range<usize> = 1000..8000;

/// A lane and its workers. It may move to another thread, but only one thread at a time uses it.
pub struct Lane {
    isa: Supported,
    first_core: usize,
    /// The owner's own scratch; the `RefCell` also keeps the lane from being shared between threads.
    scratch: RefCell<Scratch>,
    /// If they are counted.
    times: RefCell<Option<OpTimes>>,
    pool: RefCell<ThreadPool>,
    group: Arc<dyn HostCollective>,
    stage: Arc<dyn HostCollective>,
}

impl Lane {
    /// Starts the helpers, pinned to the partition's cores after the first.
    ///
    /// The calling thread is not pinned: see [`Lane::pin_current_thread`].
    ///
    /// # Errors
    /// If the machine lacks the instruction set, the partition is empty, or a thread cannot be started.
    pub fn new(partition: &Partition, isa: Isa) -> Result<Lane, KernelError> {
        let isa = Supported::new(isa)?;
        let (first_core, helpers) = partition.cores.split_first().ok_or(KernelError::EmptyPartition)?;
        let pool = ThreadPool::start(helpers)?;
        Ok(Lane {
            isa,
            first_core: *first_core,
            scratch: RefCell::default(),
            times: RefCell::default(),
            pool: RefCell::new(pool),
            group: Arc::new(Alone),
            stage: Arc::new(Alone),
        })
    }

    /// From now on the lane is that of one rank of a group, and works on that rank's shards. Lanes of the same rank that are used in turns
    /// may share its way to the group.
    pub fn join(&mut self, group: Arc<dyn HostCollective>) {
        (self.group, self.stage) = (group.clone(), group);
    }

    /// The ranks of the group that have the same layers as this one, where layers are split too: it has joined before.
    pub fn join_stage(&mut self, stage: Arc<dyn HostCollective>) {
        self.stage = stage;
    }

    /// The group, of this lane alone unless it has joined another.
    #[must_use]
    pub fn group(&self) -> &dyn HostCollective {
        &*self.group
    }

    /// Those of the group that have the same layers.
    #[must_use]
    pub fn stage(&self) -> &dyn HostCollective {
        &*self.stage
    }

    /// Workers, the owner included.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.pool.borrow().helpers() + 1
    }

    /// The instruction set in use.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.isa.isa()
    }

    /// Pins the calling thread, worker 0, to the partition's first core. False if the system refuses
    /// (some containers do): the lane works all the same.
    #[must_use]
    pub fn pin_current_thread(&self) -> bool {
        thread_pool::pin(self.first_core)
    }

    /// Work is coming: helpers that sleep get up meanwhile, and look for it for a while.
    pub fn rouse(&self) {
        self.pool.borrow().rouse();
    }

    /// Helpers the system did not let pin; known once they have started.
    #[must_use]
    pub fn unpinned_helpers(&self) -> usize {
        self.pool.borrow().unpinned()
    }

    /// The time spent in each op since [`Lane::count_times`]; none if it was not called. Ops that panicked are left out.
    #[must_use]
    pub fn times(&self) -> OpTimes {
        self.times.borrow().unwrap_or_default()
    }

    /// From now on counts times, from zero: it costs a look at the clock or two for each op.
    pub fn count_times(&self) {
        *self.times.borrow_mut() = Some(OpTimes::default());
    }

    pub(crate) fn supported(&self) -> Supported {
        self.isa
    }

    /// Runs `job` on the owner and on the helpers that come in time, until all `items` are claimed and done; its time is that of `op`.
    /// `item_ns` is about how long an item takes, on a fast core: it decides on helpers and the size of claims, nothing else.
    ///
    /// # Panics
    /// If a worker's job panics, with its payload; the lane stays usable.
    pub(crate) fn run(
        &self,
        op: Op,
        items: usize,
        item_ns: usize,
        job: &(dyn Fn(&WorkQueue, &mut Scratch) + Sync),
    ) {
        let mut scratch = self.scratch.borrow_mut();
        let mut pool = self.pool.borrow_mut();
        let helpers = pool.helpers();
        let alone = items < 2 || helpers == 0 || items.saturating_mul(item_ns) < WORTH_SHARING_NS;
        self.timed(op, |timed| {
            if alone {
                job(&WorkQueue::whole(items), &mut scratch);
                return None;
            }
            // Small portions even out workers that were late or disturbed; each is still worth a claim.
            let of = |ns: usize| ns / item_ns.max(1);
            let (least, most) = (of(PORTION_NS.start), of(PORTION_NS.end).max(items / ((helpers + 1) * 8)));
            let queue = WorkQueue::new(items, least, most, helpers + 1);
            pool.run(&|scratch| job(&queue, scratch), &mut scratch, timed)
        });
    }

    /// Does what needs the other ranks, on the owner's thread with its scratch; its time is that of `op`.
    pub(crate) fn with_group(
        &self,
        op: Op,
        call: impl FnOnce(&dyn HostCollective, &mut Scratch) -> Result<(), CollectiveError>,
    ) -> Result<(), CollectiveError> {
        let mut scratch = self.scratch.borrow_mut();
        let mut outcome = Ok(());
        self.timed(op, |_| {
            outcome = call(&*self.group, &mut scratch);
            None
        });
        outcome
    }

    /// Counts the time of a call as that of `op`, if times are counted: the call is told so, and says how long the
    /// owner's share of it took, if there were others.
    fn timed(&self, op: Op, call: impl FnOnce(bool) -> Option<Duration>) {
        if self.times.borrow().is_none() {
            call(false);
            return;
        }
        let begin = Instant::now();
        let own = call(true);
        let total = begin.elapsed();
        let barrier = total.saturating_sub(own.unwrap_or(total));
        if let Some(times) = &mut *self.times.borrow_mut() {
            times.count(op, total, barrier);
        }
    }

    /// [`Lane::run`] where items need no preparation: `each` gets one item after the other.
    pub(crate) fn for_each(
        &self,
        op: Op,
        items: usize,
        item_ns: usize,
        each: impl Fn(usize, &mut Scratch) + Sync,
    ) {
        self.run(op, items, item_ns, &|queue, scratch| {
            while let Some(range) = queue.next() {
                range.for_each(|item| each(item, scratch));
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn lane(workers: usize) -> Lane {
        // Core 0 for everyone: whether pinning is granted must not matter.
        Lane::new(&Partition { cores: vec![0; workers] }, Isa::Portable).unwrap()
    }

    #[test]
    fn every_item_is_done_once_job_after_job() {
        for workers in [1, 2, 3, 5] {
            let lane = lane(workers);
            assert_eq!(lane.workers(), workers);
            for round in 0..300 {
                let done: Vec<AtomicUsize> = (0..round).map(|_| AtomicUsize::new(0)).collect();
                lane.for_each(Op::Matmul, round, WORTH_SHARING_NS, |item, _| {
                    done[item].fetch_add(1, Ordering::Relaxed);
                });
                assert!(
                    done.iter().all(|count| count.load(Ordering::Relaxed) == 1),
                    "{workers} workers, {round}"
                );
            }
        }
    }

    #[test]
    fn helpers_do_help() {
        let lane = lane(2);
        let threads = std::sync::Mutex::new(std::collections::HashSet::new());
        for _ in 0..50 {
            lane.for_each(Op::Matmul, 8, WORTH_SHARING_NS, |_, _| {
                threads.lock().unwrap().insert(std::thread::current().id());
                std::thread::sleep(std::time::Duration::from_micros(200));
            });
        }
        assert_eq!(threads.lock().unwrap().len(), 2);
    }

    #[test]
    fn a_panic_reaches_the_owner_and_the_lane_lives_on() {
        let lane = lane(3);
        for round in 0..20 {
            let caught = catch_unwind(AssertUnwindSafe(|| {
                lane.for_each(Op::Matmul, 64, WORTH_SHARING_NS, |item, _| {
                    assert!(item != round * 3, "item {item} is bad");
                });
            }));
            let message = *caught.unwrap_err().downcast::<String>().unwrap();
            assert!(message.contains("is bad"), "{message}");
            let sum = AtomicUsize::new(0);
            lane.for_each(Op::Matmul, 100, WORTH_SHARING_NS, |item, _| {
                sum.fetch_add(item, Ordering::Relaxed);
            });
            assert_eq!(sum.load(Ordering::Relaxed), 4950);
        }
    }

    #[test]
    fn a_panic_of_a_helper_alone_reaches_the_owner_too() {
        let lane = lane(3);
        let owner = std::thread::current().id();
        for round in 0..20 {
            let panicked = AtomicUsize::new(0);
            let caught = catch_unwind(AssertUnwindSafe(|| {
                lane.for_each(Op::Matmul, 3, WORTH_SHARING_NS, |_, _| {
                    if std::thread::current().id() == owner {
                        while panicked.load(Ordering::SeqCst) == 0 {
                            std::thread::yield_now();
                        }
                    } else {
                        panicked.fetch_add(1, Ordering::SeqCst);
                        panic!("a helper in round {round}");
                    }
                });
            }));
            let message = *caught.unwrap_err().downcast::<String>().unwrap();
            assert_eq!(message, format!("a helper in round {round}"));
            lane.rouse();
            let sum = AtomicUsize::new(0);
            lane.for_each(Op::Matmul, 100, WORTH_SHARING_NS, |item, _| {
                sum.fetch_add(item, Ordering::Relaxed);
            });
            assert_eq!(sum.load(Ordering::Relaxed), 4950);
        }
    }

    #[test]
    fn a_lane_moves_to_another_thread_and_sleeps_between_jobs() {
        let lane = lane(2);
        std::thread::spawn(move || {
            for _ in 0..5 {
                std::thread::sleep(std::time::Duration::from_millis(3));
                let sum = AtomicUsize::new(0);
                lane.for_each(Op::Matmul, 100, WORTH_SHARING_NS, |item, _| {
                    sum.fetch_add(item, Ordering::Relaxed);
                });
                assert_eq!(sum.load(Ordering::Relaxed), 4950);
            }
        })
        .join()
        .unwrap();
    }

    #[test]
    fn times_of_ops_are_parts_of_the_whole() {
        for workers in [1, 2, 3] {
            let lane = lane(workers);
            lane.for_each(Op::Embed, 1, 1, |_, _| ());
            assert_eq!(lane.times(), OpTimes::default(), "they are not counted yet");
            lane.count_times();
            let begin = Instant::now();
            for round in 1..=20 {
                lane.for_each(Op::Matmul, 64, WORTH_SHARING_NS, |_, _| std::thread::yield_now());
                lane.for_each(Op::Rope, 1, WORTH_SHARING_NS, |_, _| std::thread::yield_now());
                let times = lane.times();
                let (shared, alone) = (times.of(Op::Matmul), times.of(Op::Rope));
                assert_eq!((shared.calls, alone.calls, times.sum().calls), (round, round, 2 * round));
                assert!(shared.barrier_ns < shared.total_ns && alone.total_ns > 0, "{times:?}");
                // One item is nobody's but the owner's, and one worker waits for nobody.
                assert_eq!((alone.barrier_ns, shared.barrier_ns > 0), (0, workers > 1), "{times:?}");
            }
            let sum = lane.times().sum();
            assert!(u128::from(sum.total_ns) <= begin.elapsed().as_nanos());
            lane.count_times();
            assert_eq!(lane.times(), OpTimes::default());
            lane.for_each(Op::Embed, 1, 1, |_, _| ());
            assert_eq!((lane.times().sum().calls, lane.times().of(Op::Embed).calls), (1, 1));
        }
    }

    #[test]
    fn a_helper_that_works_on_alone_is_a_barrier() {
        let lane = lane(2);
        let owner = std::thread::current().id();
        let rest = std::time::Duration::from_millis(1);
        // The owner may itself lose its core for as long as the helper has left: not every time.
        let seen = (0..100).any(|_| {
            let (joined, left) = (AtomicUsize::new(0), AtomicUsize::new(0));
            let wait_for = |flag: &AtomicUsize| {
                while flag.load(Ordering::SeqCst) == 0 {
                    std::thread::yield_now();
                }
            };
            lane.count_times();
            lane.for_each(Op::Matmul, 2, WORTH_SHARING_NS, |_, _| {
                if std::thread::current().id() == owner {
                    wait_for(&joined);
                    left.store(1, Ordering::SeqCst);
                } else {
                    joined.store(1, Ordering::SeqCst);
                    wait_for(&left);
                    std::thread::sleep(rest);
                }
            });
            u128::from(lane.times().of(Op::Matmul).barrier_ns) >= rest.as_nanos() / 2
        });
        assert!(seen, "no barrier as long as what the helper had left");
    }

    #[test]
    fn an_empty_partition_is_refused() {
        assert!(matches!(
            Lane::new(&Partition { cores: vec![] }, Isa::Portable),
            Err(KernelError::EmptyPartition)
        ));
    }
}
