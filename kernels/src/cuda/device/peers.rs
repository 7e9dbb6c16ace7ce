//! Sums over the memory of the group's other GPUs, in one kernel (`kernels/cuda/sum_ranks.cu`), where all ranks are of this process and every GPU may
//! write the others': what few rows add up is done before NCCL has begun. They can be captured.
//!
//! ```text
//! join: each rank offers a room of its GPU's memory ── all may write all rooms? ── yes: Peers, with everybody's rooms ── no: NCCL for every sum
//! ```
//! Rooms live as long as anyone may write into them. A kernel that waits leaves when its rank's `stop` is set.

use super::error::CudaError;
use super::gpu::Gpu;
use super::memory::{DeviceBuffer, Flags};
use crate::cuda::{Launch, Ptr, SumRanksArgs};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes that a rank writes to others in a call, at most: more are NCCL's, which has each number on fewer links.
const MOST_WRITTEN: usize = 4 << 20;

/// The ways of a rank to the others' memory.
pub(super) struct Peers {
    gpu: Arc<Gpu>,
    rank: usize,
    /// Of all ranks, this one's too.
    rooms: Vec<DeviceBuffer>,
    stop: Flags,
    /// Blocks of a launch, at most: the same on all ranks.
    blocks: usize,
    slot: usize,
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
    /// Of each rank, once it has tried: whether it may write to all others.
    reaches: Mutex<Vec<Option<bool>>>,
    /// Of each rank, where not all may: whether it has let go of the others' rooms.
    gone: Mutex<Vec<bool>>,
}

/// Waits until a question is answered with yes, or the group is over.
pub(super) type Wait<'a> = &'a mut dyn FnMut(&dyn Fn() -> bool) -> Result<(), CudaError>;

impl Meeting {
    /// Of so many ranks; none if those are more than rooms have place for.
    pub(super) fn of(ranks: usize) -> Option<Meeting> {
        let offers = Mutex::new(vec![None; ranks]);
        let meeting =
            Meeting { offers, reaches: Mutex::new(vec![None; ranks]), gone: Mutex::new(vec![false; ranks]) };
        (ranks > 1 && ranks <= SumRanksArgs::MOST_RANKS).then_some(meeting)
    }

    /// The ways of a rank whose smallest partition has so many SMs; none where some rank has none.
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
        self.offers()[rank] = Some(Arc::new(Offer { gpu: gpu.clone(), room, sms }));
        wait(&|| self.offers().iter().all(Option::is_some))?;
        let offers: Vec<Arc<Offer>> = self.offers().iter().flatten().cloned().collect();
        let mut reaches = true;
        for offer in &offers {
            reaches &= gpu.may_write_to(&offer.gpu)?;
        }
        self.reaches()[rank] = Some(reaches);
        wait(&|| self.reaches().iter().all(Option::is_some))?;
        // All have them: no GPU is kept open by this.
        self.offers()[rank] = None;
        if !self.reaches().iter().all(|reaches| *reaches == Some(true)) {
            // Freeing a room waits for its GPU: before anyone asks for a sum there. Whoever is the last to drop it is bound to that GPU.
            drop(offers);
            gpu.bind()?;
            self.gone()[rank] = true;
            wait(&|| self.gone().iter().all(|gone| *gone))?;
            return Ok(None);
        }
        let sms = offers.iter().map(|offer| offer.sms as usize).min().unwrap_or(1);
        Ok(Some(Peers {
            gpu: gpu.clone(),
            rank,
            rooms: offers.iter().map(|offer| offer.room.part(0, offer.room.bytes())).collect(),
            stop: Flags::new(gpu, 1)?,
            blocks: sms.clamp(1, SumRanksArgs::MOST_BLOCKS),
            slot,
        }))
    }

    fn offers(&self) -> MutexGuard<'_, Vec<Option<Arc<Offer>>>> {
        self.offers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn gone(&self) -> MutexGuard<'_, Vec<bool>> {
        self.gone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reaches(&self) -> MutexGuard<'_, Vec<Option<bool>>> {
        self.reaches.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// What waits for other ranks waits no more, now and from now on.
    pub(super) fn stop(&self) {
        self.stop.set(0);
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
    MOST_WRITTEN / size_of::<f32>() / (ranks - 1).max(1)
}
