//! Waiting awake. On a GPU a round is done in a millisecond, and work changes threads four times in it: draft lane, dispatcher,
//! verify lane, dispatcher. A thread that sleeps takes tens of microseconds to be woken, in which the GPU stands still. So as
//! long as passes follow each other the threads that wait look again and again, where there are cores for that.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvError, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

/// How long after what it had last a thread stays awake: a few passes.
const STAYS: Duration = Duration::from_millis(20);
/// Cores for each thread that may be awake; the others are for HTTP, tokenizers and grammars.
const CORES_FOR_EACH: usize = 4;

/// Threads of this process that may be awake, of all services together.
static CLAIMED: AtomicUsize = AtomicUsize::new(0);

/// For how long threads that wait stay awake; never by default. The last clone gives back what was claimed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Awake {
    stays: Duration,
    _claim: Option<Arc<Claim>>,
}

/// So many threads that may be awake.
#[derive(Debug)]
struct Claim {
    of: &'static AtomicUsize,
    threads: usize,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.of.fetch_sub(self.threads, Ordering::Relaxed);
    }
}

impl Awake {
    /// For a service with so many lanes, and its dispatcher: only where there are cores enough, beside other services.
    pub(crate) fn with_lanes(lanes: usize) -> Awake {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        Awake::claimed(&CLAIMED, lanes + 1, cores / CORES_FOR_EACH)
    }

    /// For so many threads, if there are no more than `most` with those that are claimed.
    fn claimed(of: &'static AtomicUsize, threads: usize, most: usize) -> Awake {
        let all = |claimed: usize| claimed.checked_add(threads).filter(|all| *all <= most);
        match of.fetch_update(Ordering::Relaxed, Ordering::Relaxed, all) {
            Ok(_) => Awake { stays: STAYS, _claim: Some(Arc::new(Claim { of, threads })) },
            Err(_) => Awake::default(),
        }
    }

    /// However many cores there are.
    #[cfg(test)]
    pub(crate) fn anywhere() -> Awake {
        Awake::of(STAYS)
    }

    #[cfg(test)]
    fn of(stays: Duration) -> Awake {
        Awake { stays, _claim: None }
    }

    /// Takes the next of a queue.
    ///
    /// # Errors
    /// The queue is empty, and nobody can put anything in any more.
    pub(crate) fn next<T>(&self, queue: &Receiver<T>) -> Result<T, RecvError> {
        let began = Instant::now();
        while began.elapsed() < self.stays {
            match queue.try_recv() {
                Ok(next) => return Ok(next),
                Err(TryRecvError::Disconnected) => return Err(RecvError),
                // Whoever needs the core has it.
                Err(TryRecvError::Empty) => thread::yield_now(),
            }
        }
        queue.recv()
    }
}

/// Keeps an arbiter from sleeping while messages that cannot wait are expected.
#[derive(Default)]
pub(crate) struct Wakeful {
    until: Rc<Cell<Option<Instant>>>,
}

impl Wakeful {
    /// From now on the arbiter of the thread that asks stays awake for a while.
    pub(crate) fn stay(&self, awake: &Awake) {
        if awake.stays.is_zero() {
            return;
        }
        let until = Instant::now() + awake.stays;
        if self.until.replace(Some(until)).is_some() {
            return;
        }
        let until = self.until.clone();
        actix::spawn(async move {
            while until.get().is_some_and(|until| Instant::now() < until) {
                tokio::task::yield_now().await;
            }
            until.set(None);
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn services_share_the_cores_and_give_them_back() {
        static OF: AtomicUsize = AtomicUsize::new(0);
        let claim = |threads| Awake::claimed(&OF, threads, 7);
        let is_awake = |awake: &Awake| !awake.stays.is_zero();
        let first = claim(3);
        let again = first.clone();
        let second = claim(4);
        assert!(is_awake(&first) && is_awake(&second) && !is_awake(&claim(1)));
        drop(first);
        assert!(!is_awake(&claim(3)), "a clone has it");
        drop(again);
        assert!(!is_awake(&claim(usize::MAX)) && is_awake(&claim(3)));
        drop(second);
        assert_eq!(OF.load(Ordering::Relaxed), 0);
        assert!(!is_awake(&Awake::with_lanes(usize::MAX - 1)));
    }

    #[test]
    fn what_is_queued_is_taken_awake_and_asleep() {
        for awake in [Awake::default(), Awake::of(Duration::from_millis(1)), Awake::of(STAYS)] {
            let (give, queue) = channel();
            let taker = thread::spawn(move || {
                let mut taken = Vec::new();
                while let Ok(next) = awake.next(&queue) {
                    taken.push(next);
                }
                taken
            });
            for number in 0..4 {
                thread::sleep(Duration::from_millis(2));
                give.send(number).expect("the taker waits");
            }
            drop(give);
            assert_eq!(taker.join().expect("it ends with the queue"), [0, 1, 2, 3]);
        }
    }

    #[test]
    fn an_arbiter_that_stays_awake_does_other_work_and_sleeps_again() {
        actix::System::new().block_on(async {
            let wakeful = Wakeful::default();
            wakeful.stay(&Awake::default());
            assert!(wakeful.until.get().is_none(), "it never stays awake where it may not");
            let began = Instant::now();
            wakeful.stay(&Awake::of(Duration::from_millis(5)));
            wakeful.stay(&Awake::of(Duration::from_millis(10)));
            actix::spawn(async {}).await.expect("others go on");
            tokio::time::timeout(Duration::from_secs(60), async {
                while wakeful.until.get().is_some() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            })
            .await
            .expect("it sleeps again");
            assert!(began.elapsed() >= Duration::from_millis(10), "who asked last decides");
        });
    }
}
