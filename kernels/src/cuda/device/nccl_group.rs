//! Groups of GPUs: the ranks of a lane, joined by NCCL. Ranks are threads of this process, each with a GPU of its own.
//!
//! ```text
//! nccl_group(n) ── slots ── CudaLane::join, on each lane's own thread ── calls queue on the lane's stream ── CudaLane::wait watches them
//! ```
//! NCCL moves the numbers, or where that is faster kernels that write the other GPUs' memory (`peers.rs`); what goes wrong is found here. A lane that waits for its stream asks in between how the group is (its own
//! communicator's error, other ranks' words) and how long it has waited. Whatever ends the group ends it for all: each rank
//! aborts its own communicator, on its own thread, which takes the kernels that wait for others off its stream.

use super::communicator::{Communicator, Failed, State, unique_id};
use super::error::CudaError;
use super::gpu::Gpu;
use super::memory::Flags;
use super::peers::{Meeting, Peers};
use crate::collective::{Collective, CollectiveError};
use crate::cuda::{Element, Ptr};
use cudarc::driver::sys::CUstream;
use cudarc::nccl::sys::ncclUniqueId;
use std::collections::VecDeque;
use std::ffi::c_char;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Joining takes NCCL seconds, and ranks come to it when their memory is allocated: the least that others are waited for there.
const JOIN: Duration = Duration::from_secs(60);
/// Between two looks at a communicator that the others have not joined yet.
const LOOK: Duration = Duration::from_millis(1);
/// Thread blocks of a call at most: more bring nothing for what passes add up, and take SMs from the other lane.
const MOST_BLOCKS: u32 = 16;

/// A rank's place in a group, to be taken by [`CudaLane::join`](super::CudaLane::join), once. Clones are the same place.
#[derive(Clone)]
pub struct NcclRankSlot {
    shared: Arc<Shared>,
    rank: usize,
}

/// What the ranks of a group find each other by, on whichever node.
#[derive(Clone)]
pub struct NcclId(ncclUniqueId);

impl NcclId {
    /// That of a new group.
    ///
    /// # Errors
    /// NCCL is not there or too old.
    pub fn new() -> Result<NcclId, CudaError> {
        unique_id().map(NcclId)
    }

    /// As it travels.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        self.0.internal.iter().flat_map(|byte| byte.to_ne_bytes()).collect()
    }

    /// As it came; none if that is none.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Option<NcclId> {
        let internal: Vec<c_char> = bytes.iter().map(|byte| c_char::from_ne_bytes([*byte])).collect();
        internal.try_into().ok().map(|internal| NcclId(ncclUniqueId { internal }))
    }
}

/// What the ranks of a group agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupTerms {
    /// A rank that the others have waited for longer is taken for lost.
    pub deadline: Duration,
    /// Whether small sums go over the memory of the other GPUs, where those are of this process and may be written; else all are NCCL's.
    pub custom_all_reduce: bool,
}

impl GroupTerms {
    /// Those that serve.
    #[must_use]
    pub fn within(deadline: Duration) -> GroupTerms {
        GroupTerms { deadline, custom_all_reduce: true }
    }
}

/// A group of so many ranks, all of this process.
///
/// # Errors
/// NCCL is not there or too old.
///
/// # Panics
/// For a group of nobody.
pub fn nccl_group(ranks: usize, terms: GroupTerms) -> Result<Vec<NcclRankSlot>, CudaError> {
    Ok(nccl_group_of(&NcclId::new()?, ranks, 0..ranks, terms))
}

/// The ranks that are `here` of a group of so many. Of the others NCCL alone knows.
///
/// # Panics
/// For a group of nobody, or ranks that it has not.
#[must_use]
pub fn nccl_group_of(id: &NcclId, ranks: usize, here: Range<usize>, terms: GroupTerms) -> Vec<NcclRankSlot> {
    assert!(ranks > 0 && here.end <= ranks, "a group of no ranks, or {here:?} of {ranks}");
    let GroupTerms { deadline, custom_all_reduce } = terms;
    let meeting = (custom_all_reduce && here == (0..ranks)).then(|| Meeting::of(ranks)).flatten();
    let states = (0..ranks).map(|_| RankState::default()).collect();
    let (aborted, plans) = (OnceLock::new(), Mutex::default());
    let stops = Mutex::new(vec![None; ranks]);
    let shared =
        Arc::new(Shared { id: id.0, here: here.clone(), deadline, aborted, states, plans, meeting, stops });
    here.map(|rank| NcclRankSlot { shared: shared.clone(), rank }).collect()
}

struct Shared {
    id: ncclUniqueId,
    /// The ranks of this process.
    here: Range<usize>,
    deadline: Duration,
    aborted: OnceLock<String>,
    /// Of the others nothing is known.
    states: Vec<RankState>,
    /// Plans that not all ranks have begun yet.
    plans: Mutex<Plans>,
    /// Where ranks find out whether they may write each other's memory.
    meeting: Option<Meeting>,
    /// Of each rank that has such ways, what stops it.
    stops: Mutex<Vec<Option<Arc<Flags>>>>,
}

/// What the others see of a rank.
#[derive(Default)]
struct RankState {
    joined: AtomicBool,
    left: AtomicBool,
    /// Calls that it has queued.
    calls: AtomicU64,
}

#[derive(Default)]
struct Plans {
    /// How many plans all ranks have begun; those that follow are `begun`.
    done: u64,
    begun: VecDeque<Begun>,
}

/// A plan as the first rank that came to it has it.
struct Begun {
    rank: usize,
    plan: u64,
    ranks: usize,
}

/// Numbers in a GPU's memory, and the stream on which they are computed.
pub(super) struct OnStream {
    pub(super) at: Ptr,
    pub(super) len: usize,
    pub(super) element: Element,
    pub(super) stream: CUstream,
}

/// A rank that has joined. Dropping it is leaving.
pub(super) struct Nccl {
    shared: Arc<Shared>,
    rank: usize,
    communicator: Mutex<Option<Communicator>>,
    peers: Option<Peers>,
    /// Plans that this rank has begun.
    plans: u64,
}

impl NcclRankSlot {
    /// This rank.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Ends the group before it has begun, such as when a rank's lane cannot be built.
    pub fn abort(&self, why: &str) {
        self.shared.abort(why);
    }

    /// Joins with the GPU that the calling thread is bound to, and waits for the others; `sms` are those of the lane's smallest partition.
    pub(super) fn join(&self, gpu: &Arc<Gpu>, sms: u32) -> Result<Nccl, CudaError> {
        let shared = &self.shared;
        let state = &shared.states[self.rank];
        assert!(!state.joined.swap(true, SeqCst), "rank {} has joined before", self.rank);
        let communicator =
            Communicator::join(shared.id, self.rank, shared.states.len(), sms.min(MOST_BLOCKS));
        let communicator = communicator.map_err(|failed| shared.failed(failed))?;
        let mut way = Nccl {
            shared: shared.clone(),
            rank: self.rank,
            communicator: Mutex::new(Some(communicator)),
            peers: None,
            plans: 0,
        };
        let joined = |rank: usize| shared.states[rank].joined.load(SeqCst);
        shared.wait(&joined, &mut || Ok(way.state()? == State::Ready))?;
        if let Some(meeting) = &shared.meeting {
            way.peers = meeting.join(self.rank, gpu, sms, &mut shared.all_come())?;
            shared.stops()[self.rank] = way.peers.as_ref().map(|peers| peers.stop().clone());
            // It may have ended before it had that to stop.
            shared.stands()?;
        }
        Ok(way)
    }
}

impl Shared {
    /// Waits until something is done, for which every rank has to come.
    fn wait(
        &self,
        come: &dyn Fn(usize) -> bool,
        done: &mut dyn FnMut() -> Result<bool, CudaError>,
    ) -> Result<(), CudaError> {
        let (begun, within) = (Instant::now(), JOIN.max(self.deadline));
        while !done()? {
            self.look(|rank| !come(rank))?;
            if begun.elapsed() > within {
                return Err(self.too_late(|rank| !come(rank), within).into());
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// For a meeting: waits until all have come.
    fn all_come(&self) -> impl FnMut(&dyn Fn(usize) -> bool) -> Result<(), CudaError> {
        |come| self.wait(come, &mut || Ok(self.here.clone().all(come)))
    }

    fn abort(&self, why: &str) {
        // The first reason stays: the others follow from it.
        let _ = self.aborted.set(why.to_owned());
        // A rank whose thread waits in the driver does not look.
        for stop in self.stops().iter().flatten() {
            stop.set(0);
        }
    }

    /// Whether the group stands, whoever has left.
    fn stands(&self) -> Result<(), CollectiveError> {
        let over = |why: &String| Err(CollectiveError::Aborted { why: why.clone() });
        self.aborted.get().map_or(Ok(()), over)
    }

    /// A rank has nothing to be stopped any more. Freeing that may wait, which no other rank does for it.
    fn forget_stop(&self, rank: usize) {
        let stop = self.stops()[rank].take();
        drop(stop);
    }

    fn stops(&self) -> MutexGuard<'_, Vec<Option<Arc<Flags>>>> {
        self.stops.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self, Failed { call, code }: Failed) -> CollectiveError {
        let error = CollectiveError::Library { call, code };
        self.abort(&error.to_string());
        error
    }

    /// Whether the group stands; somebody who has left is missed only where he has something to do yet.
    fn look(&self, misses: impl Fn(usize) -> bool) -> Result<(), CollectiveError> {
        self.stands()?;
        let gone = (0..self.states.len()).find(|rank| self.states[*rank].left.load(SeqCst) && misses(*rank));
        gone.map_or(Ok(()), |rank| {
            let why = format!("rank {rank} has left");
            self.abort(&why);
            Err(CollectiveError::Aborted { why })
        })
    }

    /// The end of a group whose ranks have not come in time.
    fn too_late(&self, misses: impl Fn(usize) -> bool, within: Duration) -> CollectiveError {
        let ranks = self.states.len();
        let error = match self.here.clone().find(|rank| misses(*rank)) {
            Some(missing) => CollectiveError::Deadline { missing, ranks, within },
            None if self.here.len() < ranks => CollectiveError::Elsewhere { ranks, within },
            None => CollectiveError::Stuck { ranks, within },
        };
        self.abort(&error.to_string());
        error
    }

    fn plans(&self) -> MutexGuard<'_, Plans> {
        self.plans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Nccl {
    /// Sees to it that all ranks have the same plans in the same order; nobody is waited for.
    pub(super) fn agree_on(&mut self, plan: u64) -> Result<(), CollectiveError> {
        let mut plans = self.shared.plans();
        let place = (self.plans - plans.done) as usize;
        self.plans += 1;
        if place == plans.begun.len() {
            plans.begun.push_back(Begun { rank: self.rank, plan, ranks: 1 });
            return Ok(());
        }
        let begun = &mut plans.begun[place];
        if begun.plan != plan {
            let (found, expected) = (format!("has plan {}", begun.plan), format!("plan {plan}"));
            let error = CollectiveError::Differs { rank: begun.rank, found, expected };
            self.shared.abort(&error.to_string());
            return Err(error);
        }
        begun.ranks += 1;
        while plans.begun.front().is_some_and(|begun| begun.ranks == self.shared.here.len()) {
            plans.begun.pop_front();
            plans.done += 1;
        }
        Ok(())
    }

    /// For who waits for the lane's stream, since `since`: whether there is anything to be waited for. If not, the communicator
    /// is ended, and what it had queued leaves the stream.
    pub(super) fn watch(&self, since: Instant) -> Result<(), CollectiveError> {
        let outcome = self.watched(since);
        if outcome.is_err() {
            self.end();
        }
        outcome
    }

    fn watched(&self, since: Instant) -> Result<(), CollectiveError> {
        let own = self.shared.states[self.rank].calls.load(SeqCst);
        let behind = |rank: usize| self.shared.states[rank].calls.load(SeqCst) < own;
        self.shared.look(behind)?;
        self.state()?;
        if since.elapsed() > self.shared.deadline {
            return Err(self.shared.too_late(behind, self.shared.deadline));
        }
        Ok(())
    }

    fn state(&self) -> Result<State, CollectiveError> {
        match &*self.communicator() {
            Some(communicator) => communicator.state().map_err(|failed| self.shared.failed(failed)),
            None => Err(self.over()),
        }
    }

    /// Queues a call, and has NCCL take it: what the lane asks for next comes behind it.
    fn queue(
        &self,
        call: impl FnOnce(&Communicator) -> Result<State, Failed>,
    ) -> Result<(), CollectiveError> {
        self.shared.look(|_| true)?;
        let asked = match &*self.communicator() {
            Some(communicator) => call(communicator).map_err(|failed| self.shared.failed(failed)),
            None => Err(self.over()),
        };
        let begun = Instant::now();
        let mut state = asked?;
        self.shared.states[self.rank].calls.fetch_add(1, SeqCst);
        while state == State::Under {
            self.watch(begun)?;
            state = self.state()?;
        }
        Ok(())
    }

    /// For who tries them.
    pub(super) fn peers_mut(&mut self) -> Option<&mut Peers> {
        self.peers.as_mut()
    }

    /// The ways to the others' memory, if there are some.
    pub(super) fn peers(&self) -> Option<&Peers> {
        self.peers.as_ref()
    }

    /// After they were tried, of which the others hear: the ways stay if all found them right.
    pub(super) fn settle_peers(&mut self, right: bool) -> Result<(), CudaError> {
        let shared = self.shared.clone();
        let (Some(meeting), Some(peers)) = (&shared.meeting, self.peers.take()) else { return Ok(()) };
        self.peers =
            meeting.settle(peers, right, &mut shared.all_come(), &|| shared.forget_stop(self.rank))?;
        Ok(())
    }

    /// Whether the group has not been ended: who has left may have done all that it had to.
    pub(super) fn stands(&self) -> Result<(), CollectiveError> {
        self.shared.stands()
    }

    /// How long others are waited for in a call.
    pub(super) fn deadline(&self) -> Duration {
        self.shared.deadline
    }

    /// Before so many calls are queued that are no calls of NCCL: the group stands, and whoever lacks them is behind.
    pub(super) fn begins(&self, calls: u64) -> Result<(), CollectiveError> {
        self.shared.look(|_| true)?;
        self.shared.states[self.rank].calls.fetch_add(calls, SeqCst);
        Ok(())
    }

    fn over(&self) -> CollectiveError {
        let why = self.shared.aborted.get().cloned();
        CollectiveError::Aborted { why: why.unwrap_or_else(|| format!("rank {} has left", self.rank)) }
    }

    fn communicator(&self) -> MutexGuard<'_, Option<Communicator>> {
        self.communicator.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends what this rank has queued.
    pub(super) fn end(&self) {
        self.peers.iter().for_each(|peers| peers.stop().set(0));
        if let Some(communicator) = self.communicator().take() {
            communicator.abort();
        }
    }
}

impl Collective<OnStream> for Nccl {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.shared.states.len()
    }

    fn all_reduce_sum(&self, values: &mut OnStream) -> Result<(), CollectiveError> {
        let OnStream { at, len, element, stream } = *values;
        self.queue(|communicator| communicator.all_reduce(at, len, element, stream))
    }

    fn all_gather(&self, own: &OnStream, all: &mut OnStream) -> Result<(), CollectiveError> {
        assert_eq!(all.len, own.len * self.ranks(), "all_gather: length of all");
        let OnStream { at, len, element, stream } = *own;
        self.queue(|communicator| communicator.all_gather(at, all.at, len, element, stream))
    }

    fn abort(&self, why: &str) {
        self.shared.abort(why);
        self.end();
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        // Calls that all have come to are not disturbed; whoever waits for another of this rank would wait in vain.
        self.shared.states[self.rank].left.store(true, SeqCst);
        self.end();
        self.shared.forget_stop(self.rank);
    }
}
