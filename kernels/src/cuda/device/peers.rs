//! Sums over the memory of the group's other GPUs, in one kernel (`kernels/cuda/sum_ranks.cu`), where all ranks are of this process and every GPU may
//! write the others': what few rows add up is done before NCCL has begun. They can be captured.
//!
//! ```text
//! join: each rank offers a room of its GPU's memory ── all may write all rooms? ── two sums are as they must be? ── yes: sums go there
//!                                                          └──────────────── no ─────────────┴── NCCL has every sum
//! ```
//! What the driver says is not believed: where an IOMMU or a hypervisor stands between GPUs, what one writes to another may not come, or wrong.
//! Rooms live as long as anyone may write into them. A kernel that waits leaves when its rank's `stop` is set, and none of that rank's brings anything from then on.

use super::error::CudaError;
use super::gpu::Gpu;
use super::memory::{Arena, DeviceBuffer, Flags};
use crate::cuda::{Launch, Ptr, SumRanksArgs};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Bytes that a rank writes to others in a call, at most: more are NCCL's, which has each number on fewer links.
const MOST_WRITTEN: usize = 4 << 20;

/// Numbers of a sum by which ranks find out whether they may write each other's memory.
pub(super) const TRIAL_LEN: usize = 4096;

/// The ways of a rank to the others' memory.
pub(super) struct Peers {
    gpu: Arc<Gpu>,
    rank: usize,
    /// Of all ranks, this one's too.
    rooms: Vec<DeviceBuffer>,
    stop: Arc<Flags>,
    /// Blocks of a launch, at most: the same on all ranks.
    blocks: usize,
    slot: usize,
    /// For a sum to try the ways with; gone before anyone asks for another.
    trial: Option<Arena>,
}

/// What a rank offers the others.
struct Offer {
    gpu: Arc<Gpu>,
    room: DeviceBuffer,
    sms: u32,
}

/// Where the ranks of a group agree on whether there are such ways.
pub(super) struct Meeting {
    offers: Mutex<Vec<Option<Arc<Offer>>>>,
    /// Whether a rank may write to all others, by what the driver says.
    may_write: Answers,
    /// Whether its sums were right.
    right: Answers,
    /// It has let go of the others' rooms, where they are not used.
    let_go: Answers,
}

/// What each rank has found out, once it has.
struct Answers(Vec<OnceLock<bool>>);

impl Answers {
    fn of(ranks: usize) -> Answers {
        Answers((0..ranks).map(|_| OnceLock::new()).collect())
    }

    /// Whether all say yes, when all have said it.
    fn ask(&self, rank: usize, own: bool, wait: Wait<'_>) -> Result<bool, CudaError> {
        // Each rank comes here once.
        let _ = self.0[rank].set(own);
        wait(&|rank| self.0[rank].get().is_some())?;
        Ok(self.0.iter().all(|answer| answer.get() == Some(&true)))
    }
}

/// Waits until all ranks have come, which the question says of each, or the group is over.
pub(super) type Wait<'a> = &'a mut dyn FnMut(&dyn Fn(usize) -> bool) -> Result<(), CudaError>;

impl Meeting {
    /// Of so many ranks; none if those are more than rooms have place for.
    pub(super) fn of(ranks: usize) -> Option<Meeting> {
        let answers = || Answers::of(ranks);
        let offers = Mutex::new(vec![None; ranks]);
        let meeting = Meeting { offers, may_write: answers(), right: answers(), let_go: answers() };
        (ranks > 1 && ranks <= SumRanksArgs::MOST_RANKS).then_some(meeting)
    }

    /// The ways of a rank whose smallest partition has so many SMs; none where some rank has none. They are to be tried, and [`Meeting::settle`]d.
    pub(super) fn join(
        &self,
        rank: usize,
        gpu: &Arc<Gpu>,
        sms: u32,
        wait: Wait<'_>,
    ) -> Result<Option<Peers>, CudaError> {
        let ranks = self.offers().len();
        let slot = SumRanksArgs::slot_len(most_len(ranks), SumRanksArgs::MOST_BLOCKS);
        let room = DeviceBuffer::zeroed(gpu, SumRanksArgs::room_bytes(ranks, slot), "sums over GPUs")?;
        // Before anyone can wait for this rank in a kernel: on one GPU an allocation might wait for that.
        let stop = Arc::new(Flags::new(gpu, 1)?);
        let trial = Some(Arena::new(gpu, TRIAL_LEN * size_of::<f32>(), "a sum to try GPUs' ways with")?);
        self.offers()[rank] = Some(Arc::new(Offer { gpu: gpu.clone(), room, sms }));
        wait(&|rank| self.offers()[rank].is_some())?;
        let offers: Vec<Arc<Offer>> = self.offers().iter().flatten().cloned().collect();
        let mut may_write = true;
        for offer in &offers {
            may_write &= gpu.may_write_to(&offer.gpu)?;
        }
        let peers = Peers {
            gpu: gpu.clone(),
            rank,
            rooms: offers.iter().map(|offer| offer.room.part(0, offer.room.bytes())).collect(),
            stop,
            blocks: offers
                .iter()
                .map(|offer| offer.sms as usize)
                .min()
                .map_or(1, |sms| sms.clamp(1, SumRanksArgs::MOST_BLOCKS)),
            slot,
            trial,
        };
        let all_may = self.may_write.ask(rank, may_write, wait)?;
        // All have them: no GPU is kept open by this.
        drop(offers);
        self.offers()[rank] = None;
        gpu.bind()?;
        if all_may { Ok(Some(peers)) } else { self.let_go(peers, wait).map(|()| None) }
    }

    /// The ways, if on all ranks they did what they should. Else all is freed that they took, also what others may stop the rank by.
    pub(super) fn settle(
        &self,
        peers: Peers,
        right: bool,
        wait: Wait<'_>,
        forget_stop: &dyn Fn(),
    ) -> Result<Option<Peers>, CudaError> {
        if self.right.ask(peers.rank, right, wait)? {
            return Ok(Some(peers));
        }
        forget_stop();
        self.let_go(peers, wait).map(|()| None)
    }

    /// Freeing a room waits for its GPU: that is done before anyone asks for a sum there.
    fn let_go(&self, peers: Peers, wait: Wait<'_>) -> Result<(), CudaError> {
        let rank = peers.rank;
        drop(peers);
        self.let_go.ask(rank, true, wait).map(drop)
    }

    fn offers(&self) -> MutexGuard<'_, Vec<Option<Arc<Offer>>>> {
        self.offers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Peers {
    /// Numbers that a launch takes at most.
    pub(super) fn most(&self) -> usize {
        most_len(self.rooms.len()).min(self.slot * self.blocks)
    }

    /// The sum of what all have, up to [`Peers::most`], in place.
    pub(super) fn sum(&self, at: Ptr, len: usize) -> Launch<SumRanksArgs> {
        self.launch(at, at, len, false)
    }

    /// What all have, up to [`Peers::most`] each, rank after rank.
    pub(super) fn gather(&self, own: Ptr, all: Ptr, len: usize) -> Launch<SumRanksArgs> {
        self.launch(own, all, len, true)
    }

    /// Memory for [`TRIAL_LEN`] numbers, once.
    pub(super) fn trial(&mut self) -> Option<Arena> {
        self.trial.take()
    }

    /// Where to say that what waits for other ranks waits no more, now and from now on: by setting the first.
    pub(super) fn stop(&self) -> &Arc<Flags> {
        &self.stop
    }

    fn launch(&self, own: Ptr, out: Ptr, len: usize, gathers: bool) -> Launch<SumRanksArgs> {
        assert!(len <= self.most(), "{len} numbers of a rank, {} at most", self.most());
        let mut rooms = [Ptr::NULL; SumRanksArgs::MOST_RANKS];
        rooms.iter_mut().zip(&self.rooms).for_each(|(to, room)| *to = room.ptr());
        let args = SumRanksArgs {
            rooms,
            own,
            out,
            stop: self.stop.ptr(),
            len: len as u32,
            slot: self.slot as u32,
            ranks: self.rooms.len() as u32,
            rank: self.rank as u32,
            gathers: gathers.into(),
            halves: SumRanksArgs::BOTH_HALVES,
        };
        args.launch(self.blocks)
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        // The last to have a room frees it, on its GPU.
        self.rooms.clear();
        let _ = self.gpu.bind();
    }
}

/// Numbers that a call may have.
fn most_len(ranks: usize) -> usize {
    // In fours: pieces of a longer sum begin where kernels read four at once.
    MOST_WRITTEN / size_of::<f32>() / (ranks - 1).max(1) / 4 * 4
}
