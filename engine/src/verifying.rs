//! The verify stage: one pass with everyone's rows, and what its verdicts commit.

use crate::api::{Command, SeqId, VerifyChunk, VerifyPlan, VerifyResult};
use crate::engine::Engine;

impl Engine {
    /// The next verify pass: a row for each sequence that decodes, proposals as far as KV allows, prefill with the rest.
    pub(crate) fn plan_verify(&mut self) -> Option<VerifyPlan> {
        self.make_room_for_anchors();
        let decoding_rows: usize = self.decoding().map(|seq| 1 + self.sequences[&seq].proposals.len()).sum();
        let mut prefill_left = self.config.max_pass_rows.saturating_sub(decoding_rows);
        let running = std::mem::take(&mut self.running);
        let chunks: Vec<VerifyChunk> =
            running.iter().filter_map(|&seq| self.verify_chunk(seq, &mut prefill_left)).collect();
        self.running = running;
        if chunks.is_empty() {
            return None;
        }
        self.totals.target_rows += chunks.iter().map(|chunk| chunk.tokens.len() as u64).sum::<u64>();
        let (step, admit, retire) = self.verify_lane.begin();
        Some(VerifyPlan { step, admit, retire, chunks })
    }

    fn decoding(&self) -> impl Iterator<Item = SeqId> {
        self.running.iter().copied().filter(|seq| self.sequences[seq].decoding())
    }

    /// Every sequence that decodes gets a block for its anchor before any proposal does; the oldest first.
    fn make_room_for_anchors(&mut self) {
        for seq in self.decoding().collect::<Vec<_>>() {
            // A sequence that a longer admitted one pushed out is gone from `running` by its turn.
            if self.running.contains(&seq) {
                let tokens = self.sequences[&seq].tokens.len();
                self.make_room(seq, tokens);
            }
        }
    }

    fn verify_chunk(&mut self, seq: SeqId, prefill_left: &mut usize) -> Option<VerifyChunk> {
        let sequence = self.sequences.get_mut(&seq)?;
        let start = sequence.target.computed;
        let committed = if sequence.decoding() { 1 } else { sequence.uncomputed().min(*prefill_left) };
        if committed == 0 {
            return None;
        }
        if !sequence.decoding() {
            *prefill_left -= committed;
        }
        if !sequence.target.table.grow(sequence.tokens.len() + sequence.proposals.len()) {
            sequence.proposals.clear();
        }
        let end = start + committed;
        sequence.target.planned = end;
        let mut tokens = sequence.tokens[start..end].to_vec();
        tokens.extend_from_slice(&sequence.proposals);
        Some(VerifyChunk {
            seq,
            epoch: sequence.epoch,
            start,
            proposals: sequence.proposals.len(),
            sample: end == sequence.tokens.len(),
            blocks: sequence.target.table.ids(start + tokens.len()),
            tokens,
        })
    }

    /// Commits the accepted prefixes and next tokens of a finished pass.
    pub(crate) fn verified(&mut self, result: VerifyResult, out: &mut Vec<Command>) {
        if !self.verify_lane.finish(result.step) {
            return;
        }
        self.totals.target_passes += 1;
        self.totals.verify_time += result.took;
        for chunk in result.chunks {
            let Some(sequence) = self.sequences.get_mut(&chunk.seq).filter(|s| s.epoch == chunk.epoch) else {
                continue;
            };
            let Some(next) = chunk.next else {
                sequence.target.advance(&sequence.tokens, sequence.target.planned);
                continue;
            };
            let proposed = sequence.proposals.len();
            let accepted = chunk.accepted.min(proposed);
            sequence.usage.target_passes += 1;
            sequence.usage.proposed += proposed;
            sequence.usage.accepted += accepted;
            let mut emitted = Vec::with_capacity(accepted + 1);
            let ended = sequence.commit(accepted, next, &mut emitted);
            self.totals.count_draft(proposed, accepted);
            self.totals.output_tokens += emitted.len() as u64;
            if !emitted.is_empty() {
                out.push(Command::Emit { seq: chunk.seq, tokens: emitted });
            }
            if let Some(reason) = ended {
                self.totals.finished += 1;
                self.finish(chunk.seq, reason, out);
            }
        }
    }
}
