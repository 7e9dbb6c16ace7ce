//! What penalties and biases of sequences need on the device: a table of counts and a list for each sequence that a lane may hold,
//! allocated with the lane. Allocating while it serves would stall the GPU for both lanes.

use faser_kernels::cuda::{CountArgs, CudaError, CudaLane, DeviceBuffer, Ptr};

use super::CudaPasses;
use super::buffers::{BIASES, PenaltySlot};

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
