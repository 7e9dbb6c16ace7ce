//! What a lane on a GPU remembers of each sequence between plans: how it is sampled, and the table of counts that penalties read.

use std::collections::HashMap;
use std::sync::Arc;

use faser_engine::{Admission, SeqId, TokenId};
use faser_kernels::Sampling;
use faser_kernels::cuda::{CudaError, DeviceBuffer, Ptr, Sampler};
use faser_models::cuda::{CudaPasses, HistoryChange};

/// A sequence. Its tokens are kept only if it has penalties.
pub(super) struct CudaSequence {
    pub(super) sampling: Arc<Sampling>,
    len: usize,
    bias: Option<DeviceBuffer>,
    counted: Option<Counted>,
}

struct Counted {
    table: DeviceBuffer,
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
    /// Tables of sequences that are gone: allocating stalls the GPU.
    spare: Vec<DeviceBuffer>,
}

impl CudaSequences {
    /// Carries out a plan's `retire`, then its `admit`; `sampling` holds one entry per admission.
    pub(super) fn update(
        &mut self,
        passes: &mut CudaPasses,
        retire: &[SeqId],
        admit: &[Admission],
        sampling: &[Arc<Sampling>],
    ) -> Result<(), CudaError> {
        for seq in retire {
            let gone = self.all.remove(seq);
            self.spare.extend(gone.and_then(|sequence| sequence.counted).map(|counted| counted.table));
        }
        assert_eq!(admit.len(), sampling.len(), "one sampling per admission");
        for (admission, sampling) in admit.iter().zip(sampling) {
            let bias =
                (!sampling.logit_bias.is_empty()).then(|| passes.bias(&sampling.logit_bias)).transpose()?;
            let table = match self.spare.pop() {
                _ if !sampling.has_penalties() => None,
                Some(table) => Some(table),
                None => Some(passes.count_table()?),
            };
            let counted = table.map(|table| Counted {
                table,
                prompt_len: admission.prompt_len,
                tokens: admission.tokens.to_vec(),
                in_table: 0,
                removed: Vec::new(),
                stale: true,
            });
            let sequence =
                CudaSequence { sampling: sampling.clone(), len: admission.tokens.len(), bias, counted };
            self.all.insert(admission.seq, sequence);
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

    /// Brings the table of counts up to date with the tokens.
    pub(super) fn count(&mut self, passes: &mut CudaPasses) -> Result<(), CudaError> {
        let Some(counted) = &mut self.counted else { return Ok(()) };
        if !counted.stale && counted.removed.is_empty() && counted.in_table == counted.tokens.len() {
            return Ok(());
        }
        passes.count(&[HistoryChange {
            table: counted.table.ptr(),
            clear: counted.stale,
            removed: &counted.removed,
            added: &counted.tokens[counted.in_table..],
            position: counted.in_table,
            prompt_len: counted.prompt_len,
        }])?;
        counted.stale = false;
        counted.removed.clear();
        counted.in_table = counted.tokens.len();
        Ok(())
    }

    /// As kernels take it.
    pub(super) fn sampler(&self) -> Sampler {
        let (tokens, bias) =
            self.bias.as_ref().map_or((Ptr::NULL, Ptr::NULL), |b| (b.ptr(), b.at(b.bytes() / 2)));
        let counts = self.counted.as_ref().map_or(Ptr::NULL, |counted| counted.table.ptr());
        Sampler::new(&self.sampling, tokens, bias, counts)
    }

    /// Whether logits are changed before tokens are drawn.
    pub(super) fn adjusts(&self) -> bool {
        self.bias.is_some() || self.counted.is_some()
    }
}

impl Counted {
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
