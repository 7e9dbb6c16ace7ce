//! The verify stage: one pass with everyone's rows, and what its verdicts commit.

use crate::api::{Command, PartitionId, SeqId, VerifiedChunk, VerifyChunk, VerifyPlan, VerifyResult};
use crate::drafting::candidate;
use crate::engine::Engine;
use crate::planner::{Batch, Execution, PassShape};
use crate::sequence::{Sequence, VerifyOut};

impl Engine {
    /// The next verify pass: a row for each sequence that decodes, the proposals that pay, prefill with the rest.
    pub(crate) fn plan_verify(&mut self) -> Option<VerifyPlan> {
        self.make_room_for_anchors();
        self.choose_proposals();
        let running = std::mem::take(&mut self.running);
        let decoding_rows: usize = self.lengths.iter().map(|k| k + 1).sum::<usize>();
        let mut prefill_left = self.config.max_pass_rows.saturating_sub(decoding_rows);
        let chosen = std::mem::take(&mut self.lengths);
        let mut lengths = chosen.iter();
        let mut chunks = Vec::with_capacity(running.len());
        for &seq in &running {
            let decoding = self.sequences.get(&seq).is_some_and(Sequence::decoding);
            let k = if decoding { lengths.next().copied().unwrap_or(0) } else { 0 };
            chunks.extend(self.verify_chunk(seq, k, &mut prefill_left));
        }
        self.lengths = chosen;
        self.running = running;
        if chunks.is_empty() {
            return None;
        }
        self.verify_shape = shape_of(&chunks, self.planner.execution());
        self.totals.target_rows += self.verify_shape.rows as u64;
        let (step, admit, retire) = self.verify_lane.begin();
        Some(VerifyPlan { step, partition: self.planner.execution().partition(), admit, retire, chunks })
    }

    fn decoding(&self) -> impl Iterator<Item = SeqId> {
        self.running.iter().copied().filter(|seq| self.sequences[seq].decoding())
    }

    /// Every sequence that decodes gets a block for its anchor before any proposal does; the oldest first.
    fn make_room_for_anchors(&mut self) {
        for seq in self.decoding().collect::<Vec<_>>() {
            // A sequence that an older one pushed out is gone from `running` by its turn.
            if self.running.contains(&seq) {
                let tokens = self.sequences[&seq].tokens.len();
                self.make_room(seq, tokens);
            }
        }
    }

    /// Fills `self.lengths` with the proposals to verify of each sequence that decodes.
    fn choose_proposals(&mut self) {
        self.candidates.clear();
        self.acceptances.clear();
        let mut prefill_rows = 0;
        for sequence in self.running.iter().filter_map(|seq| self.sequences.get(seq)) {
            if sequence.decoding() {
                let candidate = candidate(sequence);
                let ready = sequence.proposals.iter().take(candidate.ready);
                self.acceptances.extend(ready.map(|proposal| proposal.acceptance));
                self.candidates.push(candidate);
            } else {
                prefill_rows += sequence.uncomputed();
            }
        }
        let spare = self.config.max_pass_rows.saturating_sub(self.candidates.len());
        let prefill_rows = prefill_rows.min(spare / 2);
        let batch = Batch { candidates: &self.candidates, rows: spare - prefill_rows, prefill_rows };
        self.planner.trim(&batch, &self.acceptances, &mut self.lengths);
    }

    fn verify_chunk(&mut self, seq: SeqId, k: usize, prefill_left: &mut usize) -> Option<VerifyChunk> {
        let sequence = self.sequences.get_mut(&seq)?;
        let start = sequence.target.computed;
        let committed = if sequence.decoding() { 1 } else { sequence.uncomputed().min(*prefill_left) };
        if committed == 0 {
            return None;
        }
        if !sequence.decoding() {
            *prefill_left -= committed;
        }
        // Proposals get what blocks are left, and push nobody out.
        let k = if sequence.target.table.grow(sequence.tokens.len() + k) { k } else { 0 };
        let end = start + committed;
        sequence.verify_out = Some(VerifyOut { end, proposals: k });
        Some(VerifyChunk {
            seq,
            epoch: sequence.epoch,
            start,
            tokens: sequence.known_tokens(start, committed + k),
            proposals: k,
            sample: end == sequence.tokens.len(),
            blocks: sequence.target.table.ids(end + k),
        })
    }

    /// Commits the accepted prefixes and next tokens of a finished pass.
    pub(crate) fn verified(&mut self, result: &VerifyResult, out: &mut Vec<Command>) {
        if !self.verify_lane.finish(result.step) {
            return;
        }
        self.totals.target_passes += 1;
        self.totals.verify_time += result.took;
        self.totals.overlapped_passes += u64::from(self.verify_shape.partition != PartitionId(0));
        if let Some(predicted) = self.planner.timed_verify(&self.verify_shape, result.took) {
            self.totals.predicted_verify_time += predicted;
            self.totals.verify_time_error += predicted.abs_diff(result.took);
        }
        for chunk in &result.chunks {
            self.verdict(chunk, out);
        }
    }

    fn verdict(&mut self, chunk: &VerifiedChunk, out: &mut Vec<Command>) {
        let Some(sequence) = self.sequences.get_mut(&chunk.seq).filter(|s| s.epoch == chunk.epoch) else {
            return;
        };
        let Some(next) = chunk.next else {
            if let Some(VerifyOut { end, .. }) = sequence.verify_out.take() {
                sequence.target.advance(&sequence.tokens, end);
            }
            return;
        };
        let done = sequence.verified(chunk.accepted, next, &mut self.calibration);
        self.totals.count_draft(done.proposed, done.accepted);
        self.totals.chunks_cancelled += u64::from(done.cancelled);
        self.totals.output_tokens += done.emitted.len() as u64;
        if !done.emitted.is_empty() {
            out.push(Command::Emit { seq: chunk.seq, tokens: done.emitted });
        }
        if let Some(reason) = done.ended {
            self.totals.finished += 1;
            self.finish(chunk.seq, reason, out);
        }
    }
}

fn shape_of(chunks: &[VerifyChunk], execution: Execution) -> PassShape {
    PassShape {
        partition: execution.partition(),
        rows: chunks.iter().map(|chunk| chunk.tokens.len()).sum(),
        context: chunks.iter().map(|chunk| chunk.tokens.len() * (chunk.start + chunk.tokens.len() / 2)).sum(),
        steps: 1,
        sequences: chunks.len(),
    }
}
