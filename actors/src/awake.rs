//! Waiting awake. On a GPU a round is done in a millisecond, and work changes threads four times in it: draft lane, dispatcher,
//! verify lane, dispatcher. A thread that sleeps takes tens of microseconds to be woken, in which the GPU stands still. So as
//! long as passes follow each other the threads that wait look again and again, where there are cores for that.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, RecvError, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

/// How long after what it had last a thread stays awake: a few passes.
const STAYS: Duration = Duration::from_millis(20);
/// Cores for each thread that may be awake; the others are for HTTP, tokenizers and grammars.
const CORES_FOR_EACH: usize = 4;

/// For how long threads that wait stay awake; never by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Awake(Duration);

impl Awake {
    /// For a service with so many lanes, and its dispatcher: only where there are cores enough.
    pub(crate) fn with_lanes(lanes: usize) -> Awake {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let enough = cores >= CORES_FOR_EACH.saturating_mul(lanes + 1);
        if enough { Awake(STAYS) } else { Awake::default() }
    }

    /// However many cores there are.
    #[cfg(test)]
    pub(crate) fn anywhere() -> Awake {
        Awake(STAYS)
    }

    /// Takes the next of a queue.
    ///
    /// # Errors
    /// The queue is empty, and nobody can put anything in any more.
    pub(crate) fn next<T>(self, queue: &Receiver<T>) -> Result<T, RecvError> {
        let began = Instant::now();
        while began.elapsed() < self.0 {
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
    pub(crate) fn stay(&self, awake: Awake) {
        if awake == Awake::default() {
            return;
        }
        let until = Instant::now() + awake.0;
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
    fn a_thread_stays_awake_only_where_cores_are_many() {
        assert_eq!(Awake::with_lanes(usize::MAX - 1), Awake::default());
        let cores = thread::available_parallelism().map_or(1, usize::from);
        assert_eq!(Awake::with_lanes(2) == Awake(STAYS), cores >= 3 * CORES_FOR_EACH);
    }

    #[test]
    fn what_is_queued_is_taken_awake_and_asleep() {
        for awake in [Awake::default(), Awake(Duration::from_millis(1)), Awake(STAYS)] {
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
            wakeful.stay(Awake::default());
            assert!(wakeful.until.get().is_none(), "it never stays awake where it may not");
            let began = Instant::now();
            wakeful.stay(Awake(Duration::from_millis(5)));
            wakeful.stay(Awake(Duration::from_millis(10)));
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
