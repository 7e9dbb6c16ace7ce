//! The draft stage: who gets how many proposals, and which draft KV has to be caught up with first.

use crate::api::{DraftChunk, DraftPlan, DraftResult, SeqId};
use crate::engine::Engine;
use crate::policy::{Candidate, Policy};

impl Engine {
    /// The next draft plan, or none if nobody speculates.
    pub(crate) fn plan_draft(&mut self) -> Option<DraftPlan> {
        if self.config.draft_blocks == 0 || self.config.policy == Policy::Off {
            return None;
        }
        let lengths = self.plan_lengths();
        let running = std::mem::take(&mut self.running);
        let mut rows_left = self.config.max_pass_rows;
        let mut chunks = Vec::with_capacity(running.len());
        // Those that draft now go first; what is left of the pass goes to draft prefill.
        for drafting in [true, false] {
            for (&seq, &k) in running.iter().zip(&lengths) {
                if (k > 0) == drafting {
                    chunks.extend(self.draft_chunk(seq, k, &mut rows_left));
                }
            }
        }
        self.running = running;
        if chunks.is_empty() {
            return None;
        }
        let (step, admit, retire) = self.draft_lane.begin();
        Some(DraftPlan { step, admit, retire, chunks })
    }

    /// One speculative length per running sequence. Proposals may take what the verify pass has beside one row per
    /// sequence, and leave up to half of that to prefill.
    fn plan_lengths(&mut self) -> Vec<usize> {
        let mut candidates = Vec::with_capacity(self.running.len());
        let mut prefill_rows = 0;
        for sequence in self.running.iter().filter_map(|seq| self.sequences.get(seq)) {
            prefill_rows += sequence.uncomputed() - 1;
            candidates.push(Candidate { useful: sequence.useful_proposals() });
        }
        let spare = self.config.max_pass_rows.saturating_sub(candidates.len());
        let mut lengths = Vec::with_capacity(candidates.len());
        self.planner.plan(&candidates, spare - prefill_rows.min(spare / 2), &mut lengths);
        lengths
    }

    /// The chunk of one sequence, if it has anything to draft or to catch up with, and rows and blocks for it. Without
    /// blocks the sequence goes on without proposals: speculation never pushes anyone out.
    fn draft_chunk(&mut self, seq: SeqId, k: usize, rows_left: &mut usize) -> Option<DraftChunk> {
        let sequence = self.sequences.get_mut(&seq).filter(|sequence| sequence.speculates())?;
        if k == 0 && sequence.decoding() {
            // It can catch up in one pass when its turn to speculate comes.
            return None;
        }
        let start = sequence.draft.computed;
        let missing = sequence.tokens.len() - start;
        // The anchor has no business in a prefill: its row is part of the first draft step.
        let rows = if k > 0 { missing } else { missing - 1 }.min(*rows_left);
        let steps = if rows == missing { k } else { 0 };
        let covered = (start + rows + steps).saturating_sub(usize::from(steps > 0));
        if rows == 0 || !sequence.draft.table.grow(covered) {
            return None;
        }
        *rows_left -= rows;
        sequence.draft.planned = start + rows;
        self.draft_lane.admit(seq, || sequence.admission());
        Some(DraftChunk {
            seq,
            epoch: sequence.epoch,
            start,
            tokens: sequence.tokens[start..start + rows].to_vec(),
            steps,
            blocks: sequence.draft.table.ids(covered),
        })
    }

    /// Takes in the proposals of a finished plan.
    pub(crate) fn drafted(&mut self, result: DraftResult) {
        if !self.draft_lane.finish(result.step) {
            return;
        }
        self.totals.draft_passes += 1;
        self.totals.draft_time += result.took;
        for chunk in result.chunks {
            let Some(sequence) = self.sequences.get_mut(&chunk.seq).filter(|s| s.epoch == chunk.epoch) else {
                continue;
            };
            sequence.draft.advance(&sequence.tokens, sequence.draft.planned);
            sequence.proposals = chunk.proposals;
        }
    }
}
