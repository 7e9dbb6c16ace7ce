//! Rows of blocks that depend on the token drawn before each (DSpark), step by step: the order of a pass's samples, and room for a step of all
//! blocks. What is launched: `cuda_markov.rs`.
//!
//! ```text
//! samples    step 0: blocks a b c     step 1: a b c     step 2: a b     (the longest first: those of a step are the first of the step before)
//! ```

use std::ops::Range;
use std::sync::Arc;

use faser_kernels::cuda::{CudaError, DeviceBuffer, Element, Gpu, Ptr, Sample};

use crate::ModelConfig;

/// Some samples, one behind the other: the first, how many there may be, and where their number is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Samples {
    pub(super) first: usize,
    pub(super) most: usize,
    pub(super) count: Ptr,
}

/// The order of the samples of a pass whose blocks go step by step; no steps where they do not.
#[derive(Default)]
pub(super) struct StepsAlong {
    /// How many samples each step has.
    counts: Vec<u32>,
    /// Where each sample went.
    places: Vec<u32>,
    /// The tokens that the samples of the first step stand behind.
    anchors: Vec<u32>,
    /// To order them by: the step, how many fewer samples than the most its chunk has, the chunk, and which it was.
    keys: Vec<(u32, u32, u32, u32)>,
    ordered: Vec<Sample>,
}

impl StepsAlong {
    pub(super) fn clear(&mut self) {
        self.counts.clear();
        self.places.clear();
        self.anchors.clear();
    }

    /// Brings the samples into their order; `anchor` is the first token of a chunk.
    pub(super) fn order(&mut self, samples: &mut [Sample], anchor: impl Fn(u32) -> u32) {
        self.clear();
        self.keys.clear();
        // The samples of a chunk stand together.
        let mut of_chunk = 0..0;
        for (index, sample) in (0..).zip(&*samples) {
            if index == of_chunk.end {
                let same = samples[index as usize..].iter().take_while(|other| other.chunk == sample.chunk);
                of_chunk = index..index + same.count() as u32;
            }
            self.keys.push((sample.since, u32::MAX - of_chunk.len() as u32, sample.chunk, index));
        }
        self.keys.sort_unstable();
        self.places.resize(samples.len(), 0);
        self.ordered.clear();
        for (place, &(step, _, chunk, index)) in (0..).zip(&self.keys) {
            self.places[index as usize] = place;
            self.ordered.push(samples[index as usize]);
            let steps = self.counts.len().max(step as usize + 1);
            self.counts.resize(steps, 0);
            self.counts[step as usize] += 1;
            if step == 0 {
                self.anchors.push(anchor(chunk));
            }
        }
        samples.copy_from_slice(&self.ordered);
    }

    pub(super) fn len(&self) -> usize {
        self.counts.len()
    }

    pub(super) fn places(&self) -> &[u32] {
        &self.places
    }

    pub(super) fn anchors(&self) -> &[u32] {
        &self.anchors
    }

    pub(super) fn counts(&self) -> &[u32] {
        &self.counts
    }

    /// The samples of a step.
    pub(super) fn of_step(&self, step: usize) -> Range<usize> {
        let first = self.counts[..step].iter().sum::<u32>() as usize;
        first..first + self.counts[step] as usize
    }
}

/// Room for a step of all blocks.
pub(super) struct MarkovBuffers {
    /// f32 `[logit rows][rank]`.
    pub(super) embedded: DeviceBuffer,
    pub(super) state: DeviceBuffer,
    /// The element's, `[logit rows][inputs of the gates]`, `[logit rows][rank]`.
    pub(super) mixed: DeviceBuffer,
    pub(super) reads: DeviceBuffer,
    /// f32 `[logit rows][outputs of the gates]`, `[logit rows][proposed]`.
    pub(super) gates: DeviceBuffer,
    pub(super) bias: DeviceBuffer,
}

impl MarkovBuffers {
    /// Bytes of a row of each.
    fn widths(config: &ModelConfig, held: usize) -> Option<[usize; 6]> {
        let (head, rank) = (config.head.as_ref()?, config.block()?.markov?.rank);
        let (f32, proposed) = (size_of::<f32>(), head.proposed_vocab.unwrap_or(config.vocab));
        let inputs = 2 * rank + config.hidden;
        Some([rank * f32, rank * f32, inputs * held, rank * held, 3 * rank * f32, proposed * f32])
    }

    /// Bytes for this many rows with logits, of elements of `held` bytes; 0 where rows do not depend on one another.
    pub(super) fn bytes(config: &ModelConfig, logit_rows: usize, held: usize) -> usize {
        let row: usize = MarkovBuffers::widths(config, held).map_or(0, |widths| widths.iter().sum());
        logit_rows * row
    }

    /// None where rows do not depend on one another.
    pub(super) fn new(
        gpu: &Arc<Gpu>,
        config: &ModelConfig,
        logit_rows: usize,
        element: Element,
    ) -> Result<Option<MarkovBuffers>, CudaError> {
        let Some(widths) = MarkovBuffers::widths(config, element.bytes()) else { return Ok(None) };
        let [embedded, state, mixed, reads, gates, bias] =
            widths.map(|width| DeviceBuffer::zeroed(gpu, logit_rows * width, "a Markov head"));
        let (embedded, state, mixed) = (embedded?, state?, mixed?);
        Ok(Some(MarkovBuffers { embedded, state, mixed, reads: reads?, gates: gates?, bias: bias? }))
    }
}
