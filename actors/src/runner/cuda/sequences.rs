//! What a lane on a GPU remembers of each sequence between plans: how it is sampled, and the table of counts that penalties read.

use std::collections::HashMap;
use std::sync::Arc;

use faser_engine::{Admission, SeqId, TokenId};
use faser_kernels::Sampling;
use faser_kernels::cuda::{CudaError, Ptr, Sampler};
use faser_models::cuda::{Bias, CudaPasses, HistoryChange, PenaltySlot};

use crate::lane_request::LaneRequest;

/// A sequence. Its tokens are kept only if it has penalties.
pub(super) struct CudaSequence {
    pub(super) sampling: Arc<Sampling>,
    len: usize,
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

/// The sequences of one lane. Bounded by the engine, which retires what it admits.
#[derive(Default)]
pub(super) struct CudaSequences {
    all: HashMap<SeqId, CudaSequence>,
}

impl CudaSequences {
    /// Carries out a plan's `retire`, then its `admit`; `requests` holds one entry per admission.
    pub(super) fn update(
        &mut self,
        passes: &mut CudaPasses,
        retire: &[SeqId],
        admit: &[Admission],
        requests: &[Arc<LaneRequest>],
    ) -> Result<(), CudaError> {
        for seq in retire {
            let gone = self.all.remove(seq);
            gone.and_then(|sequence| sequence.slot).into_iter().for_each(|slot| passes.give_slot(slot));
        }
        assert_eq!(admit.len(), requests.len(), "one request per admission");
        for (admission, request) in admit.iter().zip(requests) {
            let sampling = &request.sampling;
            let (biased, counts) = (!sampling.logit_bias.is_empty(), sampling.has_penalties());
            let slot = (biased || counts).then(|| passes.take_slot()).transpose()?;
            let bias = match &slot {
                Some(slot) if biased => Some(passes.bias(slot, &sampling.logit_bias)?),
                _ => None,
            };
            let counted = slot.as_ref().filter(|_| counts).map(|slot| Counted {
                table: passes.counts(slot),
                prompt_len: admission.prompt_len,
                tokens: admission.tokens.to_vec(),
                in_table: 0,
                removed: Vec::new(),
                stale: true,
            });
            let len = admission.tokens.len();
            let sequence = CudaSequence { sampling: sampling.clone(), len, slot, bias, counted };
            if let Some(before) = self.all.insert(admission.seq, sequence) {
                before.slot.into_iter().for_each(|slot| passes.give_slot(slot));
            }
        }
        Ok(())
    }

    /// Brings the tables of counts of these sequences up to date with their tokens.
    pub(super) fn count(
        &mut self,
        passes: &mut CudaPasses,
        sequences: impl Iterator<Item = SeqId>,
    ) -> Result<(), CudaError> {
        let behind: Vec<SeqId> = sequences.filter(|seq| self.of(*seq).is_behind()).collect();
        let changes: Vec<HistoryChange<'_>> = behind
            .iter()
            .filter_map(|seq| self.all.get(seq)?.counted.as_ref())
            .map(Counted::change)
            .collect();
        passes.count(&changes)?;
        for seq in behind {
            if let Some(counted) = &mut self.of(seq).counted {
                counted.stale = false;
                counted.removed.clear();
                counted.in_table = counted.tokens.len();
            }
        }
        Ok(())
    }

    /// The sequence of a chunk.
    ///
    /// # Panics
    /// If the engine has not admitted it: a broken plan is a device failure, not something to guess around.
    pub(super) fn of(&mut self, seq: SeqId) -> &mut CudaSequence {
        self.all
            .get_mut(&seq)
            .unwrap_or_else(|| panic!("{seq} has a chunk but was not admitted to this lane"))
    }
}

impl CudaSequence {
    /// Number of tokens.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Forgets the tokens from position `start` and puts `tokens` there.
    ///
    /// # Panics
    /// If `start` is beyond the end: tokens between are missing.
    pub(super) fn rewind_and_extend(&mut self, start: usize, tokens: &[TokenId]) {
        assert!(start <= self.len, "a history of {} tokens has none before {start}", self.len);
        self.len = start + tokens.len();
        if let Some(counted) = &mut self.counted {
            counted.rewind_and_extend(start, tokens);
        }
    }

    /// Whether its table of counts does not have its tokens.
    fn is_behind(&self) -> bool {
        self.counted.as_ref().is_some_and(|counted| {
            counted.stale || !counted.removed.is_empty() || counted.in_table < counted.tokens.len()
        })
    }

    /// As kernels take it.
    pub(super) fn sampler(&self) -> Sampler {
        let (tokens, bias) = self.bias.as_ref().map_or((Ptr::NULL, Ptr::NULL), |b| (b.tokens, b.bias));
        let counts = self.counted.as_ref().map_or(Ptr::NULL, |counted| counted.table);
        Sampler::new(&self.sampling, tokens, bias, counts)
    }

    /// Whether logits are changed before tokens are drawn.
    pub(super) fn adjusts(&self) -> bool {
        self.bias.is_some() || self.counted.is_some()
    }
}

impl Counted {
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
