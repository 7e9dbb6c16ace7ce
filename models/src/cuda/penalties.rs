//! What penalties and biases of sequences need on the device: a table of counts and a list for each sequence that a lane may hold,
//! allocated with the lane. Allocating while it serves would stall the GPU for both lanes.

use std::sync::Arc;

use faser_kernels::cuda::{Arena, CountArgs, CudaError, CudaLane, DeviceBuffer, Gpu, Ptr};

use super::CudaPasses;
use crate::ModelConfig;

/// Entries of a list; one that is longer has memory of its own. The HTTP API takes no more.
const BIASES: usize = 1024;

/// The place of a sequence with penalties or a bias: its table of counts, one u32 for each token of the vocabulary, and its list.
#[derive(Debug)]
pub struct PenaltySlot(usize);

/// A bias on the device.
pub struct Bias {
    /// u32 each.
    pub tokens: Ptr,
    /// f32 each: what is added.
    pub bias: Ptr,
    /// Where it is, if not in its slot.
    _own: Option<DeviceBuffer>,
}

/// What happens to a sequence's table of counts before the next pass.
#[derive(Clone, Copy, Debug)]
pub struct HistoryChange<'a> {
    /// The table.
    pub table: Ptr,
    /// Whether it is emptied first.
    pub clear: bool,
    /// Tokens of the output that were counted and have been taken back.
    pub removed: &'a [u32],
    /// Tokens that follow what is counted.
    pub added: &'a [u32],
    /// Position of the first of them.
    pub position: usize,
    /// Tokens before this position are the prompt's.
    pub prompt_len: usize,
}

/// The places of a lane. There are as many as it may have sequences; more come only if it is given more.
pub(super) struct PenaltyTables {
    gpu: Arc<Gpu>,
    /// As many slots in each.
    groups: Vec<DeviceBuffer>,
    group_slots: usize,
    counts_bytes: usize,
    free: Vec<PenaltySlot>,
}

impl PenaltyTables {
    pub(super) fn new(
        gpu: &Arc<Gpu>,
        config: &ModelConfig,
        slots: usize,
    ) -> Result<PenaltyTables, CudaError> {
        let mut tables = PenaltyTables {
            gpu: gpu.clone(),
            groups: Vec::new(),
            group_slots: slots,
            counts_bytes: counts_bytes(config),
            free: Vec::new(),
        };
        tables.grow()?;
        Ok(tables)
    }

    /// Bytes of a slot.
    pub(super) fn bytes_each(config: &ModelConfig) -> usize {
        counts_bytes(config) + 2 * BIASES * size_of::<u32>()
    }

    fn grow(&mut self) -> Result<(), CudaError> {
        let first = self.groups.len() * self.group_slots;
        let bytes = self.group_slots * (self.counts_bytes + 2 * BIASES * size_of::<u32>());
        self.groups.push(DeviceBuffer::zeroed(&self.gpu, bytes, "tables for penalties")?);
        self.free.extend((first..first + self.group_slots).rev().map(PenaltySlot));
        Ok(())
    }

    fn at(&self, slot: &PenaltySlot) -> Ptr {
        let each = self.counts_bytes + 2 * BIASES * size_of::<u32>();
        self.groups[slot.0 / self.group_slots].at(slot.0 % self.group_slots * each)
    }
}

fn counts_bytes(config: &ModelConfig) -> usize {
    (config.vocab * size_of::<u32>()).next_multiple_of(16)
}

impl CudaPasses {
    /// A place for a sequence's penalties and bias. Its table holds anything: the first change clears it.
    ///
    /// # Errors
    /// The lane has more sequences than it was made for, and there is no memory for those.
    pub fn take_slot(&mut self) -> Result<PenaltySlot, CudaError> {
        if let Some(slot) = self.penalties.free.pop() {
            return Ok(slot);
        }
        self.penalties.grow()?;
        self.take_slot()
    }

    /// Gives a place back.
    pub fn give_slot(&mut self, slot: PenaltySlot) {
        self.penalties.free.push(slot);
    }

    /// The slot's table of counts.
    pub fn counts(&self, slot: &PenaltySlot) -> Ptr {
        self.penalties.at(slot)
    }

    /// Brings a bias to the device: into the slot, if it fits there.
    ///
    /// # Errors
    /// The driver refuses, or there is no memory for one of more than 1,024 entries.
    pub fn bias(&mut self, slot: &PenaltySlot, bias: &[(u32, f32)]) -> Result<Bias, CudaError> {
        let bytes = 2 * bias.len() * size_of::<u32>();
        let own = (bias.len() > BIASES)
            .then(|| DeviceBuffer::zeroed(&self.model.gpu, bytes, "a long logit bias"))
            .transpose()?;
        let at = match &own {
            Some(buffer) => buffer.ptr(),
            None => Ptr(self.penalties.at(slot).0 + self.penalties.counts_bytes as u64),
        };
        let (tokens, values): (Vec<u32>, Vec<f32>) = bias.iter().copied().unzip();
        let mut words = tokens;
        words.extend(values.iter().map(|value| value.to_bits()));
        // In pieces that the arena takes.
        let piece = self.sizes.history_bytes() / 8;
        for (words, first) in words.chunks(piece).zip((0u64..).step_by(piece)) {
            self.empty_history(words.len())?;
            let from = self.history.put(words);
            self.lane.send(&mut self.history)?;
            self.lane.copy(from, Ptr(at.0 + 4 * first), size_of_val(words))?;
        }
        Ok(Bias { tokens: at, bias: Ptr(at.0 + 4 * bias.len() as u64), _own: own })
    }

    /// Brings tables of counts up to date, before the pass that reads them: in one go, if all fit the arena together.
    ///
    /// # Errors
    /// The driver refuses.
    ///
    /// # Panics
    /// If a change is longer than a sequence.
    pub fn count(&mut self, changes: &[HistoryChange<'_>]) -> Result<(), CudaError> {
        let mut rest = changes;
        while let Some(first) = rest.first() {
            self.empty_history(first.removed.len() + first.added.len())?;
            let mut placed = Vec::new();
            while let Some((change, others)) = rest.split_first() {
                // Each array ends where a multiple of 16 bytes does.
                if !self.history.has_room::<u32>(change.removed.len() + change.added.len() + 8) {
                    break;
                }
                placed.push((change, [change.removed, change.added].map(|tokens| self.history.put(tokens))));
                rest = others;
            }
            self.lane.send(&mut self.history)?;
            for (change, arrays) in placed {
                change.launch(&mut self.lane, self.model.config.vocab, arrays)?;
            }
        }
        Ok(())
    }

    /// What was put into the arena before has been read.
    fn empty_history(&mut self, words: usize) -> Result<(), CudaError> {
        self.lane.wait(&mut || {})?;
        self.history.clear();
        assert!(self.history.has_room::<u32>(words + 8), "{words} words of history");
        Ok(())
    }
}

impl HistoryChange<'_> {
    fn launch(&self, lane: &mut CudaLane, vocab: usize, [removed, added]: [Ptr; 2]) -> Result<(), CudaError> {
        if self.clear {
            lane.clear(self.table, vocab * size_of::<u32>())?;
        }
        let sms = lane.sms();
        let args = CountArgs {
            tokens: removed,
            counts: self.table,
            len: self.removed.len() as u32,
            first_position: self.prompt_len as u32,
            prompt_len: self.prompt_len as u32,
            vocabulary: vocab as u32,
            remove: 1,
        };
        if !self.removed.is_empty() {
            lane.launch(&args.launch(sms))?;
        }
        let (len, first_position) = (self.added.len() as u32, self.position as u32);
        let args = CountArgs { tokens: added, len, first_position, remove: 0, ..args };
        if !self.added.is_empty() {
            lane.launch(&args.launch(sms))?;
        }
        Ok(())
    }
}

/// The arena on the way.
pub(super) fn history(gpu: &Arc<Gpu>, bytes: usize) -> Result<Arena, CudaError> {
    Arena::new(gpu, bytes, "histories")
}
