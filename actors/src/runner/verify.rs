//! The verify lane's executor: one pass of the target over all rows, its own sample at every row from the anchor on,
//! and the verdict. A proposal is accepted exactly if it equals the target's sample in its place (FASER.md, D1).

use std::sync::Arc;
use std::time::Instant;

use faser_engine::{BlockId, TokenId, VerifiedChunk, VerifyChunk, VerifyPlan, VerifyResult};
use faser_kernels::{SampleRow, Sampling, ops};
use faser_models::Model;

use super::RunnerSpec;
use super::passes::Passes;
use super::sequences::Sequences;
use crate::error::ServiceError;

/// A verify plan, with what the engine does not know: how its sequences are sampled.
#[derive(Clone, Debug)]
pub struct VerifyWork {
    /// The plan.
    pub plan: VerifyPlan,
    /// One entry per admission of the plan, in order.
    pub sampling: Vec<Arc<Sampling>>,
}

/// Runs verify plans.
pub struct VerifyRunner {
    passes: Passes,
    sequences: Sequences,
    /// Rows the pass in the making samples: chunk, and how many of its proposals come before.
    awaited: Vec<(usize, usize)>,
    /// The target's samples of the whole plan, in the order of its rows.
    sampled: Vec<TokenId>,
}

impl VerifyRunner {
    /// A runner with empty KV memory.
    ///
    /// # Errors
    /// The lane's threads or its memory cannot be had.
    pub fn new(model: Arc<Model>, spec: &RunnerSpec) -> Result<VerifyRunner, ServiceError> {
        let passes = Passes::new(model, spec)?;
        Ok(VerifyRunner { passes, sequences: Sequences::default(), awaited: Vec::new(), sampled: Vec::new() })
    }

    /// Pins the calling thread to the first core of the partition in use, now and whenever that changes; false if the system does not allow it.
    pub fn pin_current_thread(&mut self) -> bool {
        self.passes.pin_current_thread()
    }

    /// Carries out a plan: first `retire`, then `admit`, then the chunks together. A plan of more rows than the runner
    /// was made for takes several passes, with the same outcome.
    ///
    /// # Panics
    /// On a plan the engine would not make: a chunk of a sequence that was not admitted, or without an anchor.
    pub fn run(&mut self, work: &VerifyWork) -> VerifyResult {
        let started = Instant::now();
        let plan = &work.plan;
        self.passes.work_on(plan.partition);
        self.sequences.update(&plan.retire, &plan.admit, &work.sampling);
        let chunks = &plan.chunks;
        let tables: Vec<&[BlockId]> = chunks.iter().map(|chunk| chunk.blocks.as_slice()).collect();
        self.sampled.clear();
        for (index, chunk) in chunks.iter().enumerate() {
            let anchored = committed(chunk);
            self.sequences
                .of_mut(chunk.seq)
                .history
                .rewind_and_extend(chunk.start, &chunk.tokens[..anchored]);
            for (offset, &token) in chunk.tokens.iter().enumerate() {
                let samples = chunk.sample && offset + 1 >= anchored;
                if !self.passes.fits(samples) {
                    self.forward(chunks, &tables);
                }
                self.passes.push(token, chunk.start + offset, index, samples);
                if samples {
                    self.awaited.push((index, offset + 1 - anchored));
                }
            }
        }
        self.forward(chunks, &tables);
        let mut samples = self.sampled.as_slice();
        let verdicts: Vec<_> = chunks.iter().map(|chunk| judge(chunk, &mut samples)).collect();
        for (chunk, verdict) in chunks.iter().zip(&verdicts) {
            // The next chunk starts after the accepted prefix; its own tokens bring the rest.
            let (after_anchor, proposals) = (committed(chunk), &chunk.tokens[committed(chunk)..]);
            let history = &mut self.sequences.of_mut(chunk.seq).history;
            history.rewind_and_extend(chunk.start + after_anchor, &proposals[..verdict.accepted]);
        }
        VerifyResult { step: plan.step, took: started.elapsed(), chunks: verdicts }
    }

    /// Runs the pass and appends what it samples.
    fn forward(&mut self, chunks: &[VerifyChunk], tables: &[&[BlockId]]) {
        let (lane, logits) = self.passes.forward(tables);
        let sequences = &self.sequences;
        let sample_row = |(row, &(index, since)): (usize, &(usize, usize))| {
            let chunk = &chunks[index];
            let sequence = sequences.of(chunk.seq);
            SampleRow {
                row,
                position: (sequence.history.len() + since) as u32,
                sampling: &sequence.sampling,
                history: &sequence.history,
                since: &chunk.tokens[committed(chunk)..][..since],
            }
        };
        let rows: Vec<SampleRow<'_>> = self.awaited.iter().enumerate().map(sample_row).collect();
        let before = self.sampled.len();
        self.sampled.resize(before + rows.len(), 0);
        ops::sample(lane, logits, &rows, &mut self.sampled[before..]);
        self.awaited.clear();
    }
}

/// Rows of committed tokens; the anchor is the last of them if the chunk samples.
fn committed(chunk: &VerifyChunk) -> usize {
    let committed = chunk.tokens.len().checked_sub(chunk.proposals).filter(|&rows| rows > 0);
    committed.unwrap_or_else(|| panic!("{} has a chunk without an anchor", chunk.seq))
}

/// The verdict on a chunk; takes the chunk's own samples from the front of `samples`.
fn judge(chunk: &VerifyChunk, samples: &mut &[TokenId]) -> VerifiedChunk {
    let (own, rest) = samples.split_at(if chunk.sample { chunk.proposals + 1 } else { 0 });
    *samples = rest;
    let proposals = &chunk.tokens[committed(chunk)..];
    let accepted = proposals.iter().zip(own).take_while(|(proposal, sample)| proposal == sample).count();
    VerifiedChunk { seq: chunk.seq, epoch: chunk.epoch, accepted, next: own.get(accepted).copied() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use faser_engine::SeqId;

    fn chunk(tokens: &[TokenId], proposals: usize, sample: bool) -> VerifyChunk {
        VerifyChunk {
            seq: SeqId(1),
            epoch: 0,
            start: 5,
            tokens: tokens.to_vec(),
            proposals,
            sample,
            blocks: vec![0],
        }
    }

    fn verdict(chunk: &VerifyChunk, samples: &[TokenId]) -> (usize, Option<TokenId>) {
        let verdict = judge(chunk, &mut &*samples);
        (verdict.accepted, verdict.next)
    }

    #[test]
    fn the_accepted_prefix_ends_at_the_first_difference_and_the_targets_token_follows() {
        let proposed = chunk(&[9, 1, 2, 3], 3, true);
        assert_eq!(verdict(&proposed, &[1, 2, 3, 4]), (3, Some(4)));
        assert_eq!(verdict(&proposed, &[1, 2, 7, 4]), (2, Some(7)));
        assert_eq!(verdict(&proposed, &[1, 7, 3, 4]), (1, Some(7)));
        assert_eq!(verdict(&proposed, &[7, 2, 3, 4]), (0, Some(7)));
    }

    #[test]
    fn without_proposals_the_next_token_is_all_there_is() {
        assert_eq!(verdict(&chunk(&[9], 0, true), &[4]), (0, Some(4)));
        assert_eq!(verdict(&chunk(&[9, 8, 7], 0, false), &[]), (0, None));
    }

    #[test]
    fn each_chunk_takes_its_own_samples() {
        let chunks = [chunk(&[9, 1], 1, true), chunk(&[5, 6], 0, false), chunk(&[9, 2], 1, true)];
        let mut samples: &[TokenId] = &[7, 8, 2, 3];
        let verdicts: Vec<_> =
            chunks.iter().map(|chunk| judge(chunk, &mut samples)).map(|v| (v.accepted, v.next)).collect();
        assert_eq!(verdicts, [(0, Some(7)), (0, None), (1, Some(3))]);
    }
}
