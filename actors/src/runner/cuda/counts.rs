//! What a GPU keeps of a sequence: the table of counts that penalties read, and its bias.

use faser_engine::{Admission, SeqId, TokenId};
use faser_kernels::Sampling;
use faser_kernels::cuda::{CudaError, Ptr, Sampler};
use faser_models::cuda::{Bias, CudaPasses, HistoryChange, PenaltySlot};

use crate::runner::sequences::OnDevice;
use crate::runner::sequences::{LaneSequence, Sequences};

/// A sequence. Its tokens are kept only if it has penalties.
#[derive(Default)]
pub struct CudaSequence {
    /// Where its table and its bias are, if it has any of both.
    slot: Option<PenaltySlot>,
    bias: Option<Bias>,
    counted: Option<Counted>,
}

struct Counted {
    table: Ptr,
    prompt_len: usize,
    tokens: Vec<TokenId>,
    /// How many of `tokens` the table has.
    in_table: usize,
    /// What it has beyond those.
    removed: Vec<TokenId>,
    /// Whether it holds something else altogether.
    stale: bool,
}

impl CudaSequence {
    pub(super) fn new(
        passes: &mut CudaPasses,
        admission: &Admission,
        sampling: &Sampling,
    ) -> Result<CudaSequence, CudaError> {
        let (biased, counts) = (!sampling.logit_bias.is_empty(), sampling.has_penalties());
        if !biased && !counts {
            return Ok(CudaSequence::default());
        }
        let slot = passes.take_slot()?;
        let bias = biased.then(|| passes.bias(&slot, &sampling.logit_bias)).transpose()?;
        let counted = counts.then(|| Counted {
            table: passes.counts(&slot),
            prompt_len: admission.prompt_len,
            tokens: admission.tokens.to_vec(),
            in_table: 0,
            removed: Vec::new(),
            stale: true,
        });
        Ok(CudaSequence { slot: Some(slot), bias, counted })
    }

    /// Its place is another's from now on.
    pub(super) fn give_back(self, passes: &mut CudaPasses) {
        self.slot.into_iter().for_each(|slot| passes.give_slot(slot));
    }

    /// Whether logits are changed before tokens are drawn.
    pub(super) fn adjusts(&self) -> bool {
        self.slot.is_some()
    }
}

impl OnDevice for CudaSequence {
    fn rewind_and_extend(&mut self, start: usize, tokens: &[TokenId]) {
        if let Some(counted) = &mut self.counted {
            counted.rewind_and_extend(start, tokens);
        }
    }
}

impl LaneSequence<CudaSequence> {
    /// As kernels take it.
    pub(super) fn sampler(&self) -> Sampler {
        let CudaSequence { bias, counted, .. } = &self.on_device;
        let (tokens, bias) = bias.as_ref().map_or((Ptr::NULL, Ptr::NULL), |b| (b.tokens, b.bias));
        let counts = counted.as_ref().map_or(Ptr::NULL, |counted| counted.table);
        Sampler::new(&self.request.sampling, tokens, bias, counts)
    }
}

impl Sequences<CudaSequence> {
    /// Brings the tables of counts of these sequences up to date with their tokens.
    pub(super) fn count(
        &mut self,
        passes: &mut CudaPasses,
        sequences: impl Iterator<Item = SeqId>,
    ) -> Result<(), CudaError> {
        let counted = |seq: &SeqId| self.of(*seq).on_device.counted.as_ref();
        let behind: Vec<SeqId> =
            sequences.filter(|seq| counted(seq).is_some_and(Counted::is_behind)).collect();
        let changes: Vec<HistoryChange<'_>> =
            behind.iter().filter_map(counted).map(Counted::change).collect();
        passes.count(&changes)?;
        for seq in behind {
            if let Some(counted) = &mut self.of_mut(seq).on_device.counted {
                counted.stale = false;
                counted.removed.clear();
                counted.in_table = counted.tokens.len();
            }
        }
        Ok(())
    }
}

impl Counted {
    /// Whether the table does not have its tokens.
    fn is_behind(&self) -> bool {
        self.stale || !self.removed.is_empty() || self.in_table < self.tokens.len()
    }

    fn change(&self) -> HistoryChange<'_> {
        HistoryChange {
            table: self.table,
            clear: self.stale,
            removed: &self.removed,
            added: &self.tokens[self.in_table..],
            position: self.in_table,
            prompt_len: self.prompt_len,
        }
    }

    fn rewind_and_extend(&mut self, start: usize, tokens: &[TokenId]) {
        let same = self.tokens[start..].iter().zip(tokens).take_while(|(a, b)| a == b).count();
        let kept = start + same;
        if kept < self.in_table {
            if kept < self.prompt_len {
                // The table does not say how often the prompt has a token.
                self.stale = true;
                self.removed.clear();
                self.in_table = 0;
            } else {
                self.removed.extend(&self.tokens[kept..self.in_table]);
                self.in_table = kept;
            }
        }
        self.tokens.truncate(kept);
        self.tokens.extend(&tokens[same..]);
    }
}
