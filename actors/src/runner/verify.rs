//! The verify lane's executor: one pass of the target over all rows, its own sample at every row from the anchor on,
//! and the verdict. A proposal is accepted exactly if it equals the target's sample in its place (FASER.md, D1).
//!
//! Between two layers rows may leave the pass: those of sequences that were cancelled, and at the plan's pruning checkpoints those behind a
//! proposal that fails its test. What leaves counts as not sent, and so does what a grammar forbids, which is in no pass.

use std::sync::Arc;
use std::time::{Duration, Instant};

use faser_engine::{ALTERNATIVES, TokenId, VerifyPlan};
use faser_kernels::sampling::Logprobs;

use super::backend::{Begins, Draw, LaneBackend, PassOutputs, PassRows, Piece, RowTest, SCORED};
use super::judging::{Progress, committed, judge, pruned_at};
use super::masks::Masks;
use super::sequences::Sequences;
use crate::cancellation::{CancelSource, Cancelled};
use crate::submission::LaneRequest;

/// A verify plan, with what the engine does not know of its sequences.
#[derive(Clone, Debug)]
pub struct VerifyWork {
    /// The plan.
    pub plan: VerifyPlan,
    /// One entry per admission of the plan, in order.
    pub requests: Vec<Arc<LaneRequest>>,
}

/// Runs verify plans.
pub struct VerifyRunner<B: LaneBackend> {
    backend: B,
    sequences: Sequences<B::Sequence>,
    cancelled: Cancelled,
    outputs: PassOutputs,
    chunks: Vec<Progress>,
    /// The target's samples of the whole plan, in the order of its rows.
    sampled: Vec<TokenId>,
    /// Of each of those, where anybody wants them: which of them are committed is known at the end of the plan.
    logprobs: Vec<Option<Logprobs>>,
    masks: Masks,
}

impl<B: LaneBackend> VerifyRunner<B> {
    /// A runner on a device whose KV memory is empty. Tokens wait so long to be drawn for what their grammars allow; who is late then comes in
    /// a later pass, with the same tokens.
    pub fn new(backend: B, mask_patience: Duration) -> VerifyRunner<B> {
        VerifyRunner {
            backend,
            sequences: Sequences::default(),
            cancelled: Cancelled::default(),
            outputs: PassOutputs::default(),
            chunks: Vec::new(),
            sampled: Vec::new(),
            logprobs: Vec::new(),
            masks: Masks::new(mask_patience),
        }
    }

    /// From now on asks while a pass runs which sequences were cancelled; in a group the first rank alone does.
    pub fn set_cancel_source(&mut self, source: Box<dyn CancelSource>) {
        self.cancelled.listen(source);
    }

    /// Carries out a plan: first `copies`, then `retire`, `admit`, and the chunks together. The plan comes back with its outcome.
    ///
    /// # Panics
    /// If the device fails; on a plan the engine would not make: a chunk of a sequence that was not admitted, or without an anchor. In a
    /// group: if the ranks have different plans, or one is lost.
    pub fn run(&mut self, work: VerifyWork) -> VerifyPlan {
        let started = Instant::now();
        let VerifyWork { mut plan, requests } = work;
        self.backend.work_on(plan.partition);
        self.backend.agree_on(plan.step);
        self.backend.copy_blocks(&plan.copies);
        self.cancelled.begin();
        self.backend.update(&mut self.sequences, &plan.retire, &plan.admit, &requests);
        self.masks.begin(plan.chunks.len(), &mut self.sequences);
        self.sampled.clear();
        self.logprobs.clear();
        self.chunks.clear();
        self.chunks.extend(plan.chunks.iter().map(Progress::new));
        let mut margins = std::mem::take(&mut plan.outcome.margins);
        margins.resize(plan.prune_checkpoints.len() * plan.tests.len(), f32::NAN);
        self.carry_out(&plan, &mut margins);
        self.judge(&mut plan);
        plan.outcome.margins = margins;
        (plan.outcome.took, plan.outcome.cold) = (started.elapsed(), self.backend.was_cold());
        plan
    }

    /// All chunks, in as many passes as it takes: one, unless more rows have logits than a pass keeps.
    fn carry_out(&mut self, plan: &VerifyPlan, margins: &mut [f32]) {
        let seqs = || plan.chunks.iter().map(|chunk| chunk.seq);
        for (index, chunk) in plan.chunks.iter().enumerate() {
            let (tokens, anchored) = (plan.rows(chunk), committed(chunk));
            let sequence = self.sequences.of_mut(chunk.seq);
            sequence.rewind_and_extend(chunk.start, &tokens[..anchored]);
            if let Some(following) = sequence.following.as_mut().filter(|_| chunk.sample) {
                self.masks.expect(index, following.places(&tokens[anchored..], chunk.unchecked));
            }
        }
        self.backend.tell_masks(&mut self.masks, &self.sequences, seqs());
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
        }
        let bounds = self.backend.bounds();
        let mut rows = PassRows::default();
        for (index, chunk) in plan.chunks.iter().enumerate() {
            let tokens = plan.rows(chunk);
            let drawn_from = if chunk.sample { committed(chunk) - 1 } else { tokens.len() };
            let collector = self.sequences.of(chunk.seq).request.logprobs.as_ref();
            let of_prompt = |&row: &usize| {
                collector.is_some_and(|collector| collector.of_prompt(chunk.start + row + 1).is_some())
            };
            let scored = (0..drawn_from).take_while(of_prompt).count();
            let mut from = 0;
            while from < self.chunks[index].rows {
                // Rows that score the prompt are a piece of their own where others without logits follow.
                let logits_from = if from < scored { 0 } else { drawn_from };
                let end = if from < scored && scored < drawn_from { scored } else { usize::MAX };
                let left = self.chunks[index].rows.min(end) - from;
                let count = rows.room(bounds, left, left.min((from + left).saturating_sub(logits_from)));
                if count == 0 {
                    self.forward(plan, &std::mem::take(&mut rows), false, margins);
                    continue;
                }
                let piece = Piece {
                    seq: chunk.seq,
                    chunk: index,
                    first: 0,
                    start: chunk.start + from,
                    rows: 0,
                    logits_from: logits_from.saturating_sub(from),
                    drawn_from: drawn_from.saturating_sub(from),
                    since: from.saturating_sub(drawn_from),
                    nearer: 0,
                    begins: Begins::Alone,
                    proposals: plan.proposals(chunk),
                };
                let number = rows.push(piece, &tokens[from..from + count], plan.table(chunk));
                add_tests(&mut rows, number, from, plan);
                from += count;
            }
        }
        if rows.is_empty() && !plan.chunks.is_empty() {
            self.masks.idle(&mut self.sequences);
        }
        self.forward(plan, &rows, true, margins);
    }

    /// Runs a pass, and keeps what it brings.
    fn forward(&mut self, plan: &VerifyPlan, rows: &PassRows<'_>, last: bool, margins: &mut [f32]) {
        let layers = self.backend.layer_count();
        let drawn = !rows.is_empty();
        if drawn {
            self.backend.stage(rows, &mut self.sequences);
            let (mut begin, mut checkpoints) = (0, 0);
            while begin < layers {
                let end = self.next_stop(plan, begin, checkpoints, layers);
                self.backend.layers(rows, begin..end);
                if end < layers {
                    self.ask(plan, rows, end);
                    if plan.prune_checkpoints.get(checkpoints) == Some(&end) {
                        self.backend.test(rows, &self.sequences);
                        checkpoints += 1;
                    }
                    self.backend.compact(rows);
                }
                begin = end;
            }
            self.backend.finish();
        }
        // Chunks of which this pass draws nothing have time until a later one.
        let draws =
            rows.pieces.iter().filter(|piece| piece.drawn_from < piece.rows).map(|piece| piece.chunk + 1);
        let settled = if last { plan.chunks.len() } else { draws.max().unwrap_or(0) };
        if self.backend.rank().0 == 0 {
            self.masks.settle(&mut self.sequences, settled);
        }
        let seqs = plan.chunks.iter().map(|chunk| chunk.seq);
        self.backend.tell_masks(&mut self.masks, &self.sequences, seqs);
        if !drawn {
            return;
        }
        self.backend.draw(
            rows,
            &self.sequences,
            &Draw { masks: &self.masks, confidence: false, alternatives: false, candidates: false },
        );
        let (cancelled, leads) = (&mut self.cancelled, self.backend.rank().0 == 0);
        self.backend.collect(rows, &mut self.outputs, &mut |cancel| {
            if leads {
                cancelled.ask(plan.step, layers);
                rows.cancel(cancelled.chunks(), cancel);
            }
        });
        for (number, found) in self.outputs.margins.chunks_exact(rows.tests.len().max(1)).enumerate() {
            for (test, &margin) in rows.tests.iter().zip(found) {
                margins[number * plan.tests.len() + test.of_plan] = margin;
            }
        }
        self.keep(plan, rows, margins);
    }

    /// What the pass has brought of each chunk.
    fn keep(&mut self, plan: &VerifyPlan, rows: &PassRows<'_>, margins: &[f32]) {
        let leads = self.backend.rank().0 == 0;
        let mut place = 0;
        for (piece, &left) in rows.pieces.iter().zip(&self.outputs.rows) {
            let (chunk, progress) = (&plan.chunks[piece.chunk], &mut self.chunks[piece.chunk]);
            if left < piece.rows {
                progress.rows = if left == 0 { 0 } else { piece.start + left - chunk.start };
                progress.pruned_at = pruned_at(plan, chunk, progress.rows, margins);
            }
            let places = self.masks.places(piece.chunk);
            let collector = self.sequences.of(piece.seq).request.logprobs.as_ref();
            for offset in piece.logits_from..left.max(piece.logits_from) {
                let (token, logprobs) =
                    (self.outputs.tokens[place], self.outputs.logprobs.get_mut(place).and_then(Option::take));
                place += 1;
                if offset < piece.drawn_from {
                    if let (Some(collector), Some(logprobs), true) = (collector, logprobs, leads) {
                        collector.put(piece.start + offset + 1, logprobs);
                    }
                } else if places.is_none_or(|places| piece.since(offset) < places) {
                    self.sampled.push(token);
                    self.logprobs.push(logprobs);
                    progress.samples += 1;
                }
            }
            // What is not known to be allowed is taken for not drawn.
            match places.filter(|_| piece.drawn_from < left) {
                Some(0) => progress.be_late(),
                Some(places) if progress.rows >= committed(chunk) + places => {
                    (progress.rows, progress.pruned_at) =
                        (committed(chunk) + places - 1, plan.prune_checkpoints.len());
                }
                _ => {}
            }
        }
    }

    /// The verdicts, and the log-probabilities of what they commit.
    fn judge(&mut self, plan: &mut VerifyPlan) {
        let leads = self.backend.rank().0 == 0;
        let mut first = 0;
        for index in 0..plan.chunks.len() {
            let (chunk, progress) = (&plan.chunks[index], &self.chunks[index]);
            let own = first..first + progress.samples;
            first = own.end;
            let verdict = judge(chunk, plan.proposals(chunk), progress, &self.sampled[own.clone()]);
            // The next chunk starts after the accepted prefix; its own tokens bring the rest.
            let sequence = self.sequences.of_mut(chunk.seq);
            let end = chunk.start + committed(chunk);
            sequence.rewind_and_extend(end, &plan.proposals(chunk)[..verdict.accepted]);
            if leads && verdict.next.is_some() {
                if let Some(collector) = &sequence.request.logprobs {
                    let found = self.logprobs[own].iter_mut().take(verdict.accepted + 1).enumerate();
                    found
                        .filter_map(|(at, logprobs)| Some((end + at, logprobs.take()?)))
                        .for_each(|(position, logprobs)| collector.put(position, logprobs));
                }
                if let (Some(constraint), Some(reason)) =
                    (&sequence.request.constraint, self.masks.failure(index, verdict.accepted))
                {
                    constraint.failed(reason.to_owned());
                }
            }
            plan.outcome.verdicts.push(verdict);
        }
    }

    /// Where rows may leave next: at a pruning checkpoint, or where the device looks at what was cancelled. The layers up to there are asked for in one go.
    fn next_stop(&self, plan: &VerifyPlan, begin: usize, checkpoints: usize, layers: usize) -> usize {
        // Of a group the first rank hears for all.
        let looks = self.cancelled.listens() || self.backend.rank().1 > 1;
        let look = if looks { (begin / B::LOOK_EVERY + 1) * B::LOOK_EVERY } else { layers };
        look.min(plan.prune_checkpoints.get(checkpoints).copied().unwrap_or(layers)).min(layers)
    }

    /// Asks who was cancelled, and has them leave.
    fn ask(&mut self, plan: &VerifyPlan, rows: &PassRows<'_>, layers: usize) {
        if self.backend.rank().0 == 0 {
            self.cancelled.ask(plan.step, layers);
            let backend = &mut self.backend;
            rows.cancel(self.cancelled.chunks(), &mut |piece| backend.cancel(piece));
        }
    }
}

/// The tests of a piece's proposals, which begins `from` rows into its chunk; those without alternatives are not made.
fn add_tests(rows: &mut PassRows<'_>, number: usize, from: usize, plan: &VerifyPlan) {
    let piece = rows.pieces[number];
    let chunk = &plan.chunks[piece.chunk];
    for (at, of_plan) in chunk.tests.clone().enumerate() {
        let test = &plan.tests[of_plan];
        // The row before the proposal predicts it.
        let Some(offset) = (committed(chunk) + at - 1).checked_sub(from) else { continue };
        if offset >= piece.rows || test.alternatives.is_empty() {
            continue;
        }
        let own = plan.proposals(chunk)[at];
        let mut tokens = [own; SCORED];
        tokens[..ALTERNATIVES]
            .iter_mut()
            .zip(test.alternatives.iter())
            .for_each(|(to, alternative)| *to = *alternative);
        let position = piece.start + offset + 1;
        rows.tests.push(RowTest {
            piece: number,
            offset,
            position,
            tokens,
            max_margin: test.max_margin,
            of_plan,
        });
    }
}
