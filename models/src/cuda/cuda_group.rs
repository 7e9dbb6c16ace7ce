//! Passes of a split model: what ranks sum and tell each other, queued between the launches.
//!
//! All ranks queue the same calls with the same sizes: sizes follow from the plan and from what the device tells every rank alike. What only
//! the first rank's host knows, who was cancelled, goes by way of the device: its flags are read when their turn comes, and gathered.

use faser_kernels::collective::part;
use faser_kernels::cuda::{CudaError, DeviceBuffer, Element, NcclRankSlot, PickArgs, Ptr, SmallSums};

use super::CudaPasses;
use super::buffers::{ROWS_AT_ONCE, width};
use crate::Shard;

/// Logits of some tokens: those from `first` on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Logits {
    pub(super) at: Ptr,
    pub(super) first: u32,
    pub(super) tokens: u32,
}

impl CudaPasses {
    /// From now on this is the lane of one rank of a group, whose model is that rank's shard: all ranks are to be given the same plans.
    ///
    /// # Errors
    /// The others do not join too: see [`faser_kernels::cuda::CudaLane::join`].
    ///
    /// # Panics
    /// If the slot is another rank's than the model's.
    pub fn join(&mut self, slot: &NcclRankSlot) -> Result<SmallSums, CudaError> {
        let small_sums = self.lane.join(slot, self.sizes.deterministic)?;
        self.assert_joined();
        Ok(small_sums)
    }

    /// Rank and ranks of the lane are those of the model's shard.
    pub(super) fn assert_joined(&self) {
        let Shard { rank, ranks, .. } = self.model.shard();
        let found = (self.lane.rank(), self.lane.ranks());
        assert_eq!(found, (rank, ranks), "rank and ranks of the lane, and of the model's shard");
    }

    /// Whether others do the same on other GPUs.
    pub fn is_split(&self) -> bool {
        self.lane.ranks() > 1
    }

    /// Sees to it that all ranks have the same plan.
    ///
    /// # Errors
    /// They have not, and the group is ended.
    pub fn agree_on(&mut self, plan: u64) -> Result<(), CudaError> {
        self.lane.agree_on(plan)
    }

    /// The words of all ranks, rank after rank, as many of each: waits for them, and for all that was asked for before.
    ///
    /// # Errors
    /// The group is lost, or the driver refuses.
    ///
    /// # Panics
    /// If those are more than some tens of thousands.
    pub fn gather(&mut self, words: &[u32]) -> Result<Vec<u32>, CudaError> {
        self.lane.wait(&mut || {})?;
        self.history.clear();
        let own = self.history.put(words);
        let (all, place) = self.history.reserve::<u32>(words.len() * self.lane.ranks());
        self.lane.send(&mut self.history)?;
        self.lane.all_gather(own, all, words.len())?;
        self.lane.fetch(&mut self.history)?;
        self.lane.wait(&mut || {})?;
        Ok(self.history.get(place).to_vec())
    }

    /// Rank and ranks of the lane's group: 0 and 1 alone.
    pub fn rank(&self) -> (usize, usize) {
        (self.lane.rank(), self.lane.ranks())
    }

    /// Rows as wide as the residual stream become the sum of the ranks' shares.
    pub(super) fn add_up(&mut self, x: Ptr) -> Result<(), CudaError> {
        let len = self.pass.rows.bucket * self.model.config.hidden;
        self.lane.all_reduce_sum(x, len, Element::F32)
    }

    /// The logits that tokens are drawn from: all ranks' where a token's fate depends on others (`of_all`), else this rank's own.
    pub(super) fn logits_to_draw_from(&mut self, rows: usize, of_all: bool) -> Result<Logits, CudaError> {
        let (model, shard) = (self.model.clone(), self.model.shard());
        let (vocab, own) = (model.config.vocab, shard.tokens(&model.config));
        let Some(group) = self.group.as_ref().filter(|_| of_all) else {
            return Ok(Logits { at: self.logits.ptr(), first: own.start as u32, tokens: own.len() as u32 });
        };
        let (width, word) = (width(&model.config, shard), size_of::<f32>());
        for first in (0..rows).step_by(ROWS_AT_ONCE) {
            let rows = ROWS_AT_ONCE.min(rows - first);
            // The largest part is the first; from the others comes a rest that nobody reads.
            let from = self.logits.at(first * own.len() * word);
            self.lane.all_gather(from, group.pieces.ptr(), rows * width)?;
            for rank in 0..shard.ranks {
                let of = part(vocab, rank, shard.ranks);
                let from = group.pieces.at(rank * rows * width * word);
                let to = group.whole.at((first * vocab + of.start) * word);
                self.lane.copy_rows((from, of.len() * word), (to, vocab * word), of.len() * word, rows)?;
            }
        }
        Ok(Logits { at: group.whole.ptr(), first: 0, tokens: vocab as u32 })
    }

    /// Asks for the tokens of what was found in the parts of `logits`, for a bucket of `most` samples.
    pub(super) fn pick(
        &mut self,
        logits: Logits,
        best: (Ptr, u32),
        to: Ptr,
        (count, most): (Ptr, u32),
    ) -> Result<(), CudaError> {
        let sms = self.lane.sms();
        let (best, parts) = best;
        let group = self.group.as_ref().filter(|_| logits.tokens < self.model.config.vocab as u32);
        let Some(group) = group else {
            return self.lane.launch(&PickArgs::tokens(best, to, count, parts).launch(most, sms));
        };
        let [own, all] = group.keys.each_ref().map(DeviceBuffer::ptr);
        self.lane.launch(&PickArgs::keys(best, own, count, parts).launch(most, sms))?;
        // Two words each.
        self.lane.all_gather(own, all, 2 * most as usize)?;
        let ranks = self.lane.ranks() as u32;
        self.lane.launch(&PickArgs::of_ranks(all, to, count, ranks, most).launch(most, sms))
    }
}
