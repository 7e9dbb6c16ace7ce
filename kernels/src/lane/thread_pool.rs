//! The thread pool of a lane: helpers that wait for a job, join it while it is open, and leave; and the work queue of a job,
//! whose items are handed out to whoever asks.
//!
//! `state` says which job there is and who joined it: `epoch << 32 | OPEN | joined`. The owner publishes a job by storing a new
//! epoch with `OPEN`; a helper joins by adding one while it is open; the owner closes it when nothing is left to
//! claim and waits for those who joined. Waiting spins briefly, then sleeps: lanes share cores, so idling must be cheap.
//!
//! ```text
//! owner:   publish ── work ── close ── wait for joined ── (job is gone)
//! helper:  see epoch ── join (or too late: never mind) ── work ── finished += 1
//! ```

use super::Scratch;
use crate::KernelError;
use std::any::Any;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a worker spins before it sleeps: longer than the pause between two ops of a pass, shorter than a time slice.
const SPIN: Duration = Duration::from_micros(30);
const OPEN: u64 = 1 << 31;
const JOINED: u64 = OPEN - 1;

type Job<'a> = &'a (dyn Fn(&mut Scratch) + Sync);
type Panic = Box<dyn Any + Send>;

/// The helpers, and what they share with the owner.
pub(super) struct ThreadPool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    published: Published,
    finished: Finished,
    panic: Mutex<Option<Panic>>,
    stop: AtomicBool,
    unpinned: AtomicUsize,
    sleep: Mutex<()>,
    /// Threads asleep on `wake`, owner included: nobody is notified where nobody sleeps.
    sleepers: AtomicUsize,
    wake: Condvar,
}

/// A job and its number, in one line of cache that helpers look at while they wait and the owner alone writes, but for those who join: so it comes
/// with one transfer.
#[derive(Default)]
#[repr(align(128))]
struct Published {
    state: AtomicU64,
    /// The job of the open epoch, its lifetime erased: see [`ThreadPool::run`]. It dangles while none is open.
    job: UnsafeCell<Option<Job<'static>>>,
}

// SAFETY: `ThreadPool::run`, which has the pool for itself, writes `job` when no helper has joined and none can: before it publishes an epoch as
// open. Helpers read it after they have joined that, and before they say that they finished.
unsafe impl Sync for Published {}

/// What the owner looks at while it waits: how many helpers finished, and [`PANICKED`] for each whose job panicked.
#[derive(Default)]
#[repr(align(128))]
struct Finished(AtomicU64);

const PANICKED: u64 = 1 << 32;

impl ThreadPool {
    /// One helper for each core, pinned to it.
    pub(super) fn start(cores: &[usize]) -> Result<ThreadPool, KernelError> {
        let mut pool = ThreadPool { shared: Arc::default(), threads: Vec::new() };
        for &core in cores {
            let shared = Arc::clone(&pool.shared);
            let helper = move || {
                if !pin(core) {
                    shared.unpinned.fetch_add(1, SeqCst);
                }
                shared.help();
            };
            let builder = std::thread::Builder::new().name(format!("faser-lane-{core}"));
            pool.threads.push(builder.spawn(helper).map_err(|source| KernelError::Thread { source })?);
        }
        Ok(pool)
    }

    pub(super) fn helpers(&self) -> usize {
        self.threads.len()
    }

    pub(super) fn unpinned(&self) -> usize {
        self.shared.unpinned.load(SeqCst)
    }

    /// Wakes helpers that sleep.
    pub(super) fn rouse(&self) {
        self.shared.notify();
    }

    /// Runs `job` here and on every helper that joins before this thread's own share is done. If `timed`, how long that
    /// took.
    pub(super) fn run(&mut self, job: Job<'_>, scratch: &mut Scratch, timed: bool) -> Option<Duration> {
        let shared = &*self.shared;
        // SAFETY: helpers call the job only between joining and finishing an open epoch. This function closes the epoch
        // and waits for all who joined before it returns or unwinds (nothing between can panic: the
        // job runs under `catch_unwind`), so the job is never used after its lifetime.
        let erased = unsafe { std::mem::transmute::<Job<'_>, Job<'static>>(job) };
        // SAFETY: no other `run` is under way, the epoch before is closed, and who joined it has finished.
        unsafe { *shared.published.job.get() = Some(erased) };
        shared.finished.0.store(0, Relaxed);
        let state = &shared.published.state;
        let epoch = (state.load(Relaxed) >> 32) + 1;
        state.store(epoch << 32 | OPEN, SeqCst);
        shared.notify();

        let begin = timed.then(Instant::now);
        let own = catch_unwind(AssertUnwindSafe(|| job(scratch)));
        let took = begin.map(|begin| begin.elapsed());

        let joined = state.fetch_and(!OPEN, SeqCst) & JOINED;
        let finished = || shared.finished.0.load(SeqCst);
        shared.wait_until(|| finished() % PANICKED == joined);
        let helpers_panic = if finished() < PANICKED { None } else { lock(&shared.panic).take() };
        if let Some(payload) = own.err().or(helpers_panic) {
            resume_unwind(payload);
        }
        took
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        self.shared.notify();
        for thread in self.threads.drain(..) {
            // A helper catches its jobs' panics, so it ends cleanly.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// A helper's life.
    fn help(&self) {
        let mut scratch = Scratch::default();
        let mut seen = 0;
        let Published { state, job } = &self.published;
        let stop = &self.stop;
        loop {
            self.wait_until(|| stop.load(SeqCst) || self.open_after(seen).is_some());
            if stop.load(SeqCst) {
                return;
            }
            let Some(open) = self.open_after(seen) else { continue };
            if state.compare_exchange(open, open + 1, SeqCst, SeqCst).is_err() {
                continue; // another helper joined, or the owner closed it: look again
            }
            seen = open >> 32;
            // SAFETY: joined; `run` waits for `finished` before it writes it again.
            let job = unsafe { *job.get() };
            let mut finished = 1;
            if let Some(job) = job
                && let Err(payload) = catch_unwind(AssertUnwindSafe(|| job(&mut scratch)))
            {
                *lock(&self.panic) = Some(payload);
                finished += PANICKED;
            }
            self.finished.0.fetch_add(finished, SeqCst);
            self.notify();
        }
    }

    /// The state, if a job newer than `seen` is open.
    fn open_after(&self, seen: u64) -> Option<u64> {
        let state = self.published.state.load(SeqCst);
        (state & OPEN != 0 && state >> 32 != seen).then_some(state)
    }

    fn wait_until(&self, ready: impl Fn() -> bool) {
        loop {
            let mut start = None;
            loop {
                for _ in 0..32 {
                    if ready() {
                        return;
                    }
                    std::hint::spin_loop();
                }
                // Most waits are over by now.
                if start.get_or_insert_with(Instant::now).elapsed() > SPIN {
                    break;
                }
            }
            // Registered before the last look: whoever changes what we wait for afterwards sees a sleeper.
            let mut guard = lock(&self.sleep);
            self.sleepers.fetch_add(1, SeqCst);
            if !ready() {
                guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
            }
            self.sleepers.fetch_sub(1, SeqCst);
            drop(guard);
            // What it was woken for may be over; the next job mostly comes soon.
        }
    }

    fn notify(&self) {
        if self.sleepers.load(SeqCst) > 0 {
            let _guard = lock(&self.sleep);
            self.wake.notify_all();
        }
    }
}

/// Nothing here panics while it holds a lock, and what they guard is valid at any time.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Pins the calling thread to a core; false if the system refuses.
pub(super) fn pin(core: usize) -> bool {
    // SAFETY: an all-zero set is a valid, empty one.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    if core >= 8 * size_of::<libc::cpu_set_t>() {
        return false;
    }
    // SAFETY: the core is within the set by the check above.
    unsafe { libc::CPU_SET(core, &mut set) };
    // SAFETY: thread 0 is the calling one; the set lives through the call.
    unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) == 0 }
}

/// The work queue of a job: items `0..items`, claimed in portions that become smaller, so that claims are few and workers end
/// together.
#[repr(align(128))]
pub(crate) struct WorkQueue {
    next: AtomicUsize,
    items: usize,
    /// The smallest portion, and the largest.
    least: usize,
    most: usize,
    /// What part of the items that are left a claim is.
    part: usize,
}

impl WorkQueue {
    /// For so many workers, who claim from `least` to `most` items.
    pub(crate) fn new(items: usize, least: usize, most: usize, workers: usize) -> WorkQueue {
        let least = least.max(1);
        WorkQueue { next: AtomicUsize::new(0), items, least, most: most.max(least), part: 2 * workers }
    }

    /// All items in one claim.
    pub(crate) fn whole(items: usize) -> WorkQueue {
        WorkQueue::new(items, items, items, 1)
    }

    /// The next items to do; `None` when all are taken.
    pub(crate) fn next(&self) -> Option<Range<usize>> {
        // Relaxed: only the counter itself is shared; results are published when the job ends.
        let mut start = self.next.load(Relaxed);
        while start < self.items {
            let left = self.items - start;
            let end = start + (left / self.part).clamp(self.least, self.most).min(left);
            match self.next.compare_exchange_weak(start, end, Relaxed, Relaxed) {
                Ok(_) => return Some(start..end),
                Err(now) => start = now,
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_cover_all_items_in_order_and_become_smaller() {
        let claims = |queue: WorkQueue| std::iter::from_fn(|| queue.next()).collect::<Vec<_>>();
        assert_eq!(claims(WorkQueue::new(7, 3, 3, 2)), [0..3, 3..6, 6..7]);
        assert_eq!(
            claims(WorkQueue::new(20, 2, 4, 2)),
            [0..4, 4..8, 8..11, 11..13, 13..15, 15..17, 17..19, 19..20]
        );
        let whole = WorkQueue::whole(9);
        assert_eq!((whole.next(), whole.next()), (Some(0..9), None));
        assert_eq!(WorkQueue::whole(0).next(), None);
    }
}
