//! Collectives of ranks that are threads of this process.
//!
//! ```text
//! call n of a rank:  put what it brings into its place n % 2 ── say so ── wait until all have said n ── read all places
//! ```
//! Two places are enough: a rank begins call n when its call n - 1 has returned, so all had begun that one, so all had read the places of
//! call n - 2. Each rank adds up for itself, from rank 0 on, so all get the same bits.

use super::{Collective, CollectiveError, HostCollective};
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// How long a rank spins before it sleeps: ranks of a group come at about the same time, if each has its cores.
const SPIN: Duration = Duration::from_micros(30);

/// One rank of a group of threads. Dropping it is leaving: the group is aborted.
pub struct InProcess {
    shared: Arc<Shared>,
    rank: usize,
    /// Calls this rank has begun.
    calls: AtomicU64,
}

struct Shared {
    slots: Vec<RankSlot>,
    deadline: Duration,
    aborted: OnceLock<String>,
    sleep: Mutex<()>,
    /// Threads asleep on `wake`: nobody is notified where nobody sleeps.
    sleepers: AtomicUsize,
    wake: Condvar,
}

/// What the others see of a rank.
#[derive(Default)]
struct RankSlot {
    /// The last call whose values are there.
    said: AtomicU64,
    places: [RwLock<Brought>; 2],
}

#[derive(Default)]
struct Brought {
    call: Call,
    values: Vec<f32>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Call {
    #[default]
    AllReduceSum,
    AllGather,
    Broadcast,
}

/// A group of `ranks` threads, one way each. A rank that the others have waited for longer than `deadline` is taken for lost.
///
/// # Panics
/// For a group of nobody.
#[must_use]
pub fn in_process(ranks: usize, deadline: Duration) -> Vec<InProcess> {
    assert!(ranks > 0, "a group of no ranks");
    let shared = Arc::new(Shared {
        slots: (0..ranks).map(|_| RankSlot::default()).collect(),
        deadline,
        aborted: OnceLock::new(),
        sleep: Mutex::default(),
        sleepers: AtomicUsize::new(0),
        wake: Condvar::new(),
    });
    (0..ranks).map(|rank| InProcess { shared: shared.clone(), rank, calls: AtomicU64::new(0) }).collect()
}

impl InProcess {
    /// Brings `own` to the next call, and waits until all have come. Returns the place to read.
    fn bring(&self, call: Call, own: &[f32]) -> Result<usize, CollectiveError> {
        let shared = &*self.shared;
        if let Some(why) = shared.aborted.get() {
            return Err(CollectiveError::Aborted { why: why.clone() });
        }
        let number = self.calls.fetch_add(1, SeqCst) + 1;
        let place = (number % 2) as usize;
        let slot = &shared.slots[self.rank];
        {
            let mut brought = slot.places[place].write().unwrap_or_else(PoisonError::into_inner);
            brought.call = call;
            brought.values.clear();
            brought.values.extend_from_slice(own);
        }
        slot.said.store(number, SeqCst);
        shared.notify();
        shared.wait_for(number)?;
        Ok(place)
    }

    /// Shows what each rank brought, from rank 0 on: `len` values to the same call.
    fn show(
        &self,
        place: usize,
        call: Call,
        len: usize,
        mut to: impl FnMut(usize, &[f32]),
    ) -> Result<(), CollectiveError> {
        for rank in 0..self.shared.slots.len() {
            self.show_of(rank, place, call, len, &mut |theirs| to(rank, theirs))?;
        }
        Ok(())
    }

    fn show_of(
        &self,
        rank: usize,
        place: usize,
        call: Call,
        len: usize,
        to: &mut dyn FnMut(&[f32]),
    ) -> Result<(), CollectiveError> {
        let slot = &self.shared.slots[rank];
        let brought = slot.places[place].read().unwrap_or_else(PoisonError::into_inner);
        if (brought.call, brought.values.len()) != (call, len) {
            let words = |call: Call, len: usize| format!("{call:?} of {len}");
            let found = format!("calls {}", words(brought.call, brought.values.len()));
            let error = CollectiveError::Differs { rank, found, expected: words(call, len) };
            self.abort(&error.to_string());
            return Err(error);
        }
        to(&brought.values);
        Ok(())
    }
}

impl Collective for InProcess {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.shared.slots.len()
    }

    fn all_reduce_sum(&self, values: &mut [f32]) -> Result<(), CollectiveError> {
        let place = self.bring(Call::AllReduceSum, values)?;
        self.show(place, Call::AllReduceSum, values.len(), |rank, theirs| {
            if rank == 0 {
                values.copy_from_slice(theirs);
            } else {
                values.iter_mut().zip(theirs).for_each(|(sum, theirs)| *sum += theirs);
            }
        })
    }

    fn all_gather(&self, own: &[f32], all: &mut [f32]) -> Result<(), CollectiveError> {
        assert_eq!(all.len(), own.len() * self.ranks(), "all_gather: length of all");
        let place = self.bring(Call::AllGather, own)?;
        self.show(place, Call::AllGather, own.len(), |rank, theirs| {
            all[rank * theirs.len()..][..theirs.len()].copy_from_slice(theirs);
        })
    }

    fn abort(&self, why: &str) {
        self.shared.abort(why);
    }
}

impl HostCollective for InProcess {
    fn broadcast(&self, root: usize, to: Range<usize>, values: &mut [f32]) -> Result<(), CollectiveError> {
        let place = self.bring(Call::Broadcast, if self.rank == root { values } else { &[] })?;
        if self.rank == root || !to.contains(&self.rank) {
            return Ok(());
        }
        let len = values.len();
        self.show_of(root, place, Call::Broadcast, len, &mut |theirs| values.copy_from_slice(theirs))
    }
}

impl Drop for InProcess {
    fn drop(&mut self) {
        // Whoever still waits for a call of this rank would wait in vain; calls that all have come to are not disturbed.
        self.abort(&format!("rank {} has left", self.rank));
    }
}

impl fmt::Debug for InProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {}", self.rank, self.shared.slots.len())
    }
}

impl Shared {
    /// Waits until all ranks have said `call`, the group is aborted, or its deadline is over.
    fn wait_for(&self, call: u64) -> Result<(), CollectiveError> {
        let missing = || self.slots.iter().position(|slot| slot.said.load(SeqCst) < call);
        let begin = Instant::now();
        while begin.elapsed() < SPIN {
            for _ in 0..32 {
                if missing().is_none() {
                    return Ok(());
                }
                std::hint::spin_loop();
            }
        }
        // Registered before the last look: whoever changes what we wait for afterwards sees a sleeper.
        let mut guard = lock(&self.sleep);
        self.sleepers.fetch_add(1, SeqCst);
        let outcome = loop {
            let Some(missing) = missing() else { break Ok(()) };
            if let Some(why) = self.aborted.get() {
                break Err(CollectiveError::Aborted { why: why.clone() });
            }
            let left = self.deadline.saturating_sub(begin.elapsed());
            if left.is_zero() {
                let (ranks, within) = (self.slots.len(), self.deadline);
                break Err(CollectiveError::Deadline { missing, ranks, within });
            }
            guard = self.wake.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0;
        };
        self.sleepers.fetch_sub(1, SeqCst);
        drop(guard);
        if let Err(error @ CollectiveError::Deadline { .. }) = &outcome {
            self.abort(&error.to_string());
        }
        outcome
    }

    fn abort(&self, why: &str) {
        // The first reason stays: the others follow from it.
        let _ = self.aborted.set(why.to_owned());
        self.notify();
    }

    fn notify(&self) {
        if self.sleepers.load(SeqCst) > 0 {
            let _guard = lock(&self.sleep);
            self.wake.notify_all();
        }
    }
}

/// It guards nothing.
fn lock(mutex: &Mutex<()>) -> MutexGuard<'_, ()> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    const PATIENT: Duration = Duration::from_secs(60);

    /// Runs every rank of a group on a thread of its own; what each returned.
    fn on_ranks<T: Send>(ranks: usize, deadline: Duration, run: impl Fn(InProcess) -> T + Sync) -> Vec<T> {
        let run = &run;
        thread::scope(|scope| {
            let group = in_process(ranks, deadline).into_iter();
            let threads: Vec<_> = group.map(|rank| scope.spawn(move || run(rank))).collect();
            threads.into_iter().map(|thread| thread.join().expect("a rank")).collect()
        })
    }

    #[test]
    fn sums_are_added_up_from_rank_0_on_call_after_call() {
        // Such that the order shows.
        let value = |rank: usize, call: usize, i: usize| {
            ((rank * 7919 + call * 104_729 + i * 31) % 1013) as f32 * 1e-3 * 10f32.powi(rank as i32)
        };
        for ranks in [1, 2, 3, 4] {
            let bits = on_ranks(ranks, PATIENT, |group| {
                let mut bits = Vec::new();
                for call in 0..500 {
                    let mut values: Vec<f32> =
                        (0..1 + call % 40).map(|i| value(group.rank(), call, i)).collect();
                    group.all_reduce_sum(&mut values).unwrap();
                    bits.push(values.iter().map(|v| v.to_bits()).collect::<Vec<_>>());
                }
                bits
            });
            for (call, found) in bits[0].iter().enumerate() {
                let sum = |i| (1..ranks).fold(value(0, call, i), |sum, rank| sum + value(rank, call, i));
                let expected: Vec<u32> = (0..1 + call % 40).map(|i| sum(i).to_bits()).collect();
                assert_eq!(*found, expected, "{ranks} ranks, call {call}");
            }
            assert!(bits.iter().all(|other| *other == bits[0]), "{ranks} ranks");
        }
    }

    #[test]
    fn gathered_values_stand_rank_after_rank_bit_by_bit() {
        let gathered = on_ranks(3, PATIENT, |group| {
            let own = [f32::from_bits(group.rank() as u32 + 1), f32::NAN];
            let mut all = [0.0; 6];
            group.all_gather(&own, &mut all).unwrap();
            all.map(f32::to_bits)
        });
        let nan = f32::NAN.to_bits();
        assert!(gathered.iter().all(|all| *all == [1, nan, 2, nan, 3, nan]), "{gathered:?}");
    }

    #[test]
    fn a_rank_that_does_not_come_is_named_and_ends_the_group() {
        // Long enough for the other two to meet on a machine that has much to do.
        let errors = on_ranks(3, Duration::from_millis(1000), |group| {
            if group.rank() == 1 {
                // It comes when all is over.
                while group.shared.aborted.get().is_none() {
                    thread::sleep(Duration::from_millis(1));
                }
            }
            let first = group.all_reduce_sum(&mut [1.0]).unwrap_err();
            // It stays so.
            assert!(matches!(group.all_reduce_sum(&mut [1.0]), Err(CollectiveError::Aborted { .. })));
            first.to_string()
        });
        assert!(
            errors.iter().all(|error| error.contains("rank 1 of 3 has not come within 1000 ms")),
            "{errors:?}"
        );
    }

    #[test]
    fn abort_wakes_everybody() {
        let errors = on_ranks(3, PATIENT, |group| {
            if group.rank() == 2 {
                // The others are asleep by then, or will be refused.
                thread::sleep(Duration::from_millis(5));
                group.abort("the device is lost");
            }
            group.all_gather(&[1.0], &mut [0.0; 3]).unwrap_err()
        });
        let aborted = CollectiveError::Aborted { why: "the device is lost".to_owned() };
        assert_eq!(errors, [aborted.clone(), aborted.clone(), aborted]);
    }

    #[test]
    fn who_leaves_ends_the_group_but_not_calls_that_all_have_come_to() {
        let outcomes = on_ranks(2, PATIENT, |group| {
            let done = group.all_reduce_sum(&mut [1.0]);
            // Rank 1 leaves here.
            (done, (group.rank() == 0).then(|| group.all_reduce_sum(&mut [1.0])))
        });
        let left = CollectiveError::Aborted { why: "rank 1 has left".to_owned() };
        assert_eq!(outcomes, [(Ok(()), Some(Err(left))), (Ok(()), None)]);
    }

    #[test]
    fn ranks_with_different_calls_are_told() {
        let errors = on_ranks(2, PATIENT, |group| match group.rank() {
            0 => group.all_reduce_sum(&mut [1.0, 2.0]).unwrap_err().to_string(),
            _ => group.all_reduce_sum(&mut [1.0]).unwrap_err().to_string(),
        });
        assert!(errors[0].contains("AllReduceSum of 1, this rank AllReduceSum of 2"), "{errors:?}");
    }
}
