//! The verify lane's executor: one pass of the target over all rows, its own sample at every row from the anchor on,
//! and the verdict. A proposal is accepted exactly if it equals the target's sample in its place (FASER.md, D1).
//!
//! Between two layers rows may leave the pass: those of sequences that fell, and at the plan's gates those behind a
//! proposal that fails its test. What leaves counts as not sent, and so does what a grammar forbids, which is in no pass.

use std::sync::Arc;
use std::time::Instant;

use faser_engine::{BlockId, RIVALS, TokenId, VerifyPlan};
use faser_kernels::{Collective, SampleRow, sampling};
use faser_models::Model;

use super::RunnerSpec;
use super::falls::Falls;
use super::judging::{Progress, committed, judge};
use super::masks::Masks;
use super::passes::Passes;
use super::sequences::Sequences;
use super::telling::Telling;
use crate::error::ServiceError;
use crate::lane_request::LaneRequest;
use crate::shed::Fallen;

/// A verify plan, with what the engine does not know of its sequences.
#[derive(Clone, Debug)]
pub struct VerifyWork {
    /// The plan.
    pub plan: VerifyPlan,
    /// One entry per admission of the plan, in order.
    pub requests: Vec<Arc<LaneRequest>>,
}

/// Runs verify plans.
pub struct VerifyRunner {
    passes: Passes,
    sequences: Sequences,
    falls: Falls,
    /// Chunk, and place in it, of each row of the pass in the making.
    rows: Vec<(usize, usize)>,
    /// Rows of the pass in the making whose logits are wanted.
    awaited: Vec<Awaited>,
    /// The target's samples of the whole plan, in the order of its rows.
    sampled: Vec<TokenId>,
    chunks: Vec<Progress>,
    gating: Gating,
    telling: Telling,
    masks: Masks,
}

/// A row whose logits are wanted: to be sampled from, or to tell what they say of the prompt's next token.
#[derive(Clone, Copy, Debug)]
struct Awaited {
    chunk: usize,
    offset: usize,
    samples: bool,
}

/// Buffers of a gate.
#[derive(Default)]
struct Gating {
    /// Rows of the pass that are tested, and the number of their test.
    rows: Vec<u32>,
    tests: Vec<usize>,
    /// Rivals and proposal of each.
    tokens: Vec<TokenId>,
    scores: Vec<f32>,
    keep: Vec<u32>,
}

/// Tokens scored per test: the rivals, and the proposal itself.
const SCORED: usize = RIVALS + 1;

impl VerifyRunner {
    /// A runner with empty KV memory.
    ///
    /// # Errors
    /// The lane's threads or its memory cannot be had.
    pub fn new(model: Arc<Model>, spec: &RunnerSpec) -> Result<VerifyRunner, ServiceError> {
        Ok(VerifyRunner {
            passes: Passes::new(model, spec)?,
            sequences: Sequences::default(),
            falls: Falls::default(),
            rows: Vec::new(),
            awaited: Vec::new(),
            sampled: Vec::new(),
            chunks: Vec::new(),
            gating: Gating::default(),
            telling: Telling::default(),
            masks: Masks::new(spec.mask_patience),
        })
    }

    /// From now on asks between two layers which sequences fell.
    pub fn shedding(&mut self, fallen: Box<dyn Fallen>) {
        self.falls.listen(fallen);
    }

    /// From now on this is the lane of one rank of a group, whose model is that rank's shard: all ranks are to be given the same plans.
    pub fn join(&mut self, group: &Arc<dyn Collective>) {
        self.passes.join(group);
    }

    /// Pins the calling thread to the first core of the partition in use, now and whenever that changes; false if the system does not allow it.
    pub fn pin_current_thread(&mut self) -> bool {
        self.passes.pin_current_thread()
    }

    /// Carries out a plan: first `retire`, then `admit`, then the chunks together. The plan comes back with its outcome.
    ///
    /// # Panics
    /// On a plan the engine would not make: a chunk of a sequence that was not admitted, or without an anchor. In a group: if the
    /// ranks have different plans, or one is lost.
    pub fn run(&mut self, work: VerifyWork) -> VerifyPlan {
        let started = Instant::now();
        let VerifyWork { mut plan, requests } = work;
        self.passes.work_on(plan.partition);
        self.passes.agree_on(plan.step);
        self.falls.begin();
        self.sequences.update(&plan.retire, &plan.admit, &requests);
        self.telling.begin();
        self.masks.begin(plan.chunks.len(), &mut self.sequences);
        self.sampled.clear();
        self.chunks.clear();
        self.chunks.extend(plan.chunks.iter().map(Progress::new));
        let mut gaps = std::mem::take(&mut plan.outcome.gaps);
        gaps.resize(plan.gates.len() * plan.tests.len(), f32::NAN);
        let tables: Vec<&[BlockId]> = plan.chunks.iter().map(|chunk| plan.table(chunk)).collect();
        for (index, chunk) in plan.chunks.iter().enumerate() {
            let (tokens, anchored) = (plan.rows(chunk), committed(chunk));
            let sequence = self.sequences.of_mut(chunk.seq);
            sequence.rewind_and_extend(chunk.start, &tokens[..anchored]);
            if let Some(following) = sequence.following.as_mut().filter(|_| chunk.sample) {
                self.masks.expect(index, following.places(&tokens[anchored..], chunk.copied));
            }
        }
        self.masks.agree(&self.passes);
        for (index, chunk) in plan.chunks.iter().enumerate() {
            let (tokens, anchored) = (plan.rows(chunk), committed(chunk));
            if let Some(places) = self.masks.places(index) {
                let progress = &mut self.chunks[index];
                match places.checked_sub(1) {
                    Some(proposals) => progress.forbid(chunk.proposals - proposals),
                    // Its anchor would be computed in vain.
                    None if anchored == 1 => {
                        progress.forbid(tokens.len());
                        progress.be_late();
                    }
                    None => progress.forbid(chunk.proposals),
                }
            }
            let sequence = self.sequences.of_mut(chunk.seq);
            if let Some(following) = sequence.following.as_mut().filter(|_| chunk.sample) {
                self.masks.ask_along(index, chunk.seq, following, &tokens[anchored..]);
            }
            let board = sequence.request.logprobs.clone();
            for (offset, &token) in tokens.iter().enumerate().take(self.chunks[index].rows) {
                let samples = chunk.sample && offset + 1 >= anchored;
                let position = chunk.start + offset;
                let told = board.as_ref().is_some_and(|board| board.of_prompt(position + 1).is_some());
                if !self.passes.fits(samples || told) {
                    self.forward(&plan, &tables, &mut gaps);
                }
                if offset >= self.chunks[index].rows {
                    break;
                }
                self.passes.push(token, position, index, samples || told);
                self.rows.push((index, offset));
                if samples || told {
                    self.awaited.push(Awaited { chunk: index, offset, samples });
                }
            }
        }
        if self.rows.is_empty() && !plan.chunks.is_empty() {
            self.masks.idle(&mut self.sequences);
        }
        self.forward(&plan, &tables, &mut gaps);
        let tells = self.passes.group().rank() == 0;
        let mut samples = self.sampled.as_slice();
        let mut told = 0;
        for (index, (chunk, progress)) in plan.chunks.iter().zip(&self.chunks).enumerate() {
            let (own, rest) = samples.split_at(progress.samples);
            samples = rest;
            let verdict = judge(chunk, plan.proposals(chunk), progress, own);
            // The next chunk starts after the accepted prefix; its own tokens bring the rest.
            let sequence = self.sequences.of_mut(chunk.seq);
            let end = chunk.start + committed(chunk);
            sequence.rewind_and_extend(end, &plan.proposals(chunk)[..verdict.accepted]);
            if let Some(board) = &sequence.request.logprobs
                && verdict.next.is_some()
            {
                self.telling.tell(board, told, verdict.accepted + 1, end);
            }
            if let (Some(constraint), Some(reason)) =
                (&sequence.request.constraint, self.masks.failure(index, verdict.accepted))
                && tells
                && verdict.next.is_some()
            {
                constraint.failed(reason.to_owned());
            }
            told += progress.samples;
            plan.outcome.verdicts.push(verdict);
        }
        plan.outcome.gaps = gaps;
        plan.outcome.took = started.elapsed();
        plan
    }

    /// Runs the pass and appends what it samples.
    fn forward(&mut self, plan: &VerifyPlan, tables: &[&[BlockId]], gaps: &mut [f32]) {
        self.passes.begin();
        for layer in 0..self.passes.layer_count() {
            if layer > 0 {
                self.between(layer, plan, gaps);
            }
            self.passes.layers(layer..layer + 1, tables);
        }
        self.passes.finish();
        self.masks.settle(&self.passes, &mut self.sequences);
        self.leave_out_late(plan);
        let (sequences, masks) = (&self.sequences, &self.masks);
        let sampled = |(_, awaited): &(usize, &Awaited)| awaited.samples;
        let sample_row = |(row, awaited): (usize, &Awaited)| {
            let chunk = &plan.chunks[awaited.chunk];
            let sequence = sequences.of(chunk.seq);
            let since = awaited.offset + 1 - committed(chunk);
            SampleRow {
                row,
                position: (sequence.history.len() + since) as u32,
                sampling: &sequence.request.sampling,
                history: &sequence.history,
                since: &plan.proposals(chunk)[..since],
                allowed: masks.bits(awaited.chunk, since),
            }
        };
        let rows: Vec<SampleRow<'_>> =
            self.awaited.iter().enumerate().filter(sampled).map(sample_row).collect();
        let before = self.sampled.len();
        self.sampled.resize(before + rows.len(), 0);
        self.passes.sample(&rows, &mut self.sampled[before..]);
        let mut number = before;
        for (row, Awaited { chunk, offset, samples }) in self.awaited.drain(..).enumerate() {
            let position = plan.chunks[chunk].start + offset + 1;
            let board = sequences.of(plan.chunks[chunk].seq).request.logprobs.as_ref();
            match board {
                Some(board) if samples => self.telling.of_sample(row, board, self.sampled[number], number),
                Some(board) => self.telling.of_prompt(row, board, position),
                None => {}
            }
            self.chunks[chunk].samples += usize::from(samples);
            number += usize::from(samples);
        }
        self.rows.clear();
        self.telling.look_up(&mut self.passes);
    }

    /// What is not known to be allowed is not drawn.
    fn leave_out_late(&mut self, plan: &VerifyPlan) {
        for awaited in self.awaited.iter_mut().filter(|awaited| awaited.samples) {
            let (chunk, progress) = (&plan.chunks[awaited.chunk], &mut self.chunks[awaited.chunk]);
            let Some(places) = self.masks.places(awaited.chunk) else { continue };
            awaited.samples = awaited.offset + 1 - committed(chunk) < places;
            match places {
                0 => progress.be_late(),
                _ if progress.rows >= committed(chunk) + places => {
                    (progress.rows, progress.pruned_at) = (committed(chunk) + places - 1, plan.gates.len());
                }
                _ => {}
            }
        }
    }

    /// Between two layers: who fell leaves, and at a gate what fails its test.
    fn between(&mut self, layers: usize, plan: &VerifyPlan, gaps: &mut [f32]) {
        let mut fewer = false;
        let seqs = plan.chunks.iter().map(|chunk| chunk.seq);
        let gone = self.falls.look(&self.passes, plan.step, layers, seqs);
        if !gone.is_empty() {
            for (chunk, progress) in plan.chunks.iter().zip(&mut self.chunks) {
                if gone.contains(&chunk.seq) {
                    progress.rows = 0;
                    fewer = true;
                }
            }
        }
        if let Some(gate) = plan.gates.iter().position(|&gate| gate == layers) {
            fewer |= self.test(gate, plan, gaps);
        }
        if !fewer {
            return;
        }
        let Gating { keep, .. } = &mut self.gating;
        keep.clear();
        let chunks = &self.chunks;
        let stays = |&(index, offset): &(usize, usize)| offset < chunks[index].rows;
        keep.extend((0..).zip(&self.rows).filter(|(_, row)| stays(row)).map(|(place, _)| place));
        if keep.len() < self.rows.len() {
            self.passes.keep(keep);
            self.rows.retain(stays);
            self.awaited.retain(|awaited| stays(&(awaited.chunk, awaited.offset)));
        }
    }

    /// Tests what is to be tested at a gate; true if something failed.
    fn test(&mut self, gate: usize, plan: &VerifyPlan, gaps: &mut [f32]) -> bool {
        let Gating { rows, tests, tokens, scores, .. } = &mut self.gating;
        rows.clear();
        tests.clear();
        tokens.clear();
        for (place, &(index, offset)) in (0..).zip(&self.rows) {
            let chunk = &plan.chunks[index];
            // The row predicts the proposal behind it, if that is still wanted.
            let Some(proposal) = (offset + 1).checked_sub(committed(chunk)) else { continue };
            if chunk.tests.is_empty() || offset + 1 >= self.chunks[index].rows {
                continue;
            }
            let test = chunk.tests.start + proposal;
            if plan.tests[test].rivals.is_empty() {
                continue;
            }
            let own = plan.proposals(chunk)[proposal];
            rows.push(place);
            tests.push(test);
            let rivals = plan.tests[test].rivals.iter().copied();
            tokens.extend(rivals.chain(std::iter::repeat(own)).take(RIVALS).chain([own]));
        }
        if rows.is_empty() {
            return false;
        }
        scores.clear();
        scores.resize(tokens.len(), 0.0);
        self.passes.score(rows, tokens, scores);
        let mut failed = false;
        let scored = tokens.chunks_exact(SCORED).zip(scores.chunks_exact(SCORED));
        for ((&row, &test), (tokens, scores)) in rows.iter().zip(tests.iter()).zip(scored) {
            let (index, offset) = self.rows[row as usize];
            let chunk = &plan.chunks[index];
            let sequence = self.sequences.of(chunk.seq);
            let position = (sequence.history.len() + offset + 1 - committed(chunk)) as u32;
            let (own, own_score) = (tokens[RIVALS], scores[RIVALS]);
            let gap = sampling::gap(
                &sequence.request.sampling,
                position,
                own,
                &tokens[..RIVALS],
                &scores[..RIVALS],
                own_score,
            );
            gaps[gate * plan.tests.len() + test] = gap;
            let progress = &mut self.chunks[index];
            if gap > plan.tests[test].max_gap && offset + 1 < progress.rows {
                progress.rows = offset + 1;
                progress.pruned_at = gate;
                failed = true;
            }
        }
        failed
    }
}
