//! The draft stage: who drafts how far, and which draft KV has to be caught up with first.

use crate::api::{DraftChunk, DraftPlan, DraftResult, SeqId, StopRule};
use crate::engine::Engine;
use crate::planner::{Batch, Candidate, Execution, PassShape};
use crate::policy::Policy;
use crate::sequence::{DraftOut, Sequence};
use crate::survival::AcceptanceTable;

/// Draft steps per plan while a verify pass runs: few, so that what is ready is at hand whenever the pass ends.
const STEPS_AHEAD: usize = 2;

impl Engine {
    /// Decides on the round that begins: execution, and how many proposals every running sequence should have.
    pub(crate) fn plan_round(&mut self) {
        self.candidates.clear();
        let mut prefill_rows = 0;
        for sequence in self.running.iter().filter_map(|seq| self.sequences.get(seq)) {
            prefill_rows += sequence.uncomputed() - 1;
            self.candidates.push(candidate(sequence));
        }
        // Proposals may take what the verify pass has beside one row per sequence, and leave half of that to prefill.
        let spare = self.config.max_pass_rows.saturating_sub(self.candidates.len());
        let prefill_rows = prefill_rows.min(spare / 2);
        let batch = Batch { candidates: &self.candidates, rows: spare - prefill_rows, prefill_rows };
        self.planner.plan(&batch, &mut self.lengths);
        for (seq, &k) in self.running.iter().zip(&self.lengths) {
            if let Some(sequence) = self.sequences.get_mut(seq) {
                sequence.wanted = k;
            }
        }
    }

    /// The next draft plan, or none if nobody has anything to draft.
    pub(crate) fn plan_draft(&mut self) -> Option<DraftPlan> {
        if self.config.draft_blocks == 0 || *self.planner.policy() == Policy::Off {
            return None;
        }
        let execution = self.planner.execution();
        let worthwhile = self.planner.worthwhile(self.running.len());
        let table = self.calibration.table();
        let wish = Wish { execution, worthwhile, table: &table };
        let running = std::mem::take(&mut self.running);
        let mut rows_left = self.config.max_pass_rows;
        let mut chunks = Vec::with_capacity(running.len());
        // Those that draft now go first; what is left of the pass goes to draft prefill.
        for drafting in [true, false] {
            for &seq in &running {
                // While nobody speculates, a draft prefill would be for nothing; whoever drafts later catches up then.
                let due = drafting || self.planner.speculating();
                if due && self.sequences.get(&seq).is_some_and(|sequence| sequence.decoding() == drafting) {
                    chunks.extend(self.draft_chunk(seq, &wish, &mut rows_left));
                }
            }
        }
        self.running = running;
        if chunks.is_empty() {
            return None;
        }
        self.draft_shape = shape_of(&chunks, execution);
        let (step, admit, retire) = self.draft_lane.begin();
        Some(DraftPlan { step, partition: execution.partition(), admit, retire, chunks })
    }

    /// The chunk of one sequence, if it has anything to draft or to catch up with, and rows and blocks for it. Without
    /// blocks the sequence goes on without proposals: speculation never pushes anyone out.
    fn draft_chunk(&mut self, seq: SeqId, wish: &Wish<'_>, rows_left: &mut usize) -> Option<DraftChunk> {
        let sequence = self.sequences.get_mut(&seq).filter(|s| s.speculates() && s.draft_out.is_none())?;
        let k = wish.steps(sequence);
        if k == 0 && sequence.decoding() {
            // It can catch up in one pass when its turn to speculate comes.
            return None;
        }
        let start = sequence.draft.computed;
        let missing = sequence.known() - start;
        // The anchor has no business in a prefill: its row is part of the first draft step.
        let rows = if k > 0 { missing } else { missing - 1 }.min(*rows_left);
        let steps = if rows == missing { k } else { 0 };
        let covered = (start + rows + steps).saturating_sub(usize::from(steps > 0));
        if rows == 0 || !sequence.draft.table.grow(covered) {
            return None;
        }
        *rows_left -= rows;
        sequence.draft_out = Some(DraftOut { end: start + rows });
        self.draft_lane.admit(seq, || sequence.admission());
        Some(DraftChunk {
            seq,
            epoch: sequence.epoch,
            start,
            tokens: sequence.known_tokens(start, rows),
            steps,
            stop: StopRule {
                acceptance: sequence.acceptance_table(wish.table),
                survival: sequence.survival(),
                below: wish.worthwhile,
            },
            blocks: sequence.draft.table.ids(covered),
        })
    }

    /// Takes in the proposals of a finished plan.
    pub(crate) fn drafted(&mut self, result: &DraftResult) {
        if !self.draft_lane.finish(result.step) {
            return;
        }
        self.totals.draft_passes += 1;
        self.totals.draft_time += result.took;
        // The lane may have stopped early: what was timed is what came back.
        let steps = result.chunks.iter().map(|chunk| chunk.proposals.len()).max().unwrap_or(0);
        let proposals: usize = result.chunks.iter().map(|chunk| chunk.proposals.len()).sum();
        if steps > 0 {
            let sequences = proposals.div_ceil(steps);
            let context = self.draft_shape.context * sequences / self.draft_shape.sequences.max(1);
            let shape = PassShape { steps, sequences, context, ..self.draft_shape };
            self.planner.timed_draft(&shape, result.took);
        }
        let table = self.calibration.table();
        for chunk in &result.chunks {
            match self.sequences.get_mut(&chunk.seq).filter(|s| s.epoch == chunk.epoch) {
                Some(sequence) => sequence.drafted(&chunk.proposals, &table),
                None => self.totals.late_drafts += chunk.proposals.len() as u64,
            }
        }
    }
}

/// What a draft plan goes by.
struct Wish<'a> {
    execution: Execution,
    worthwhile: f32,
    table: &'a AcceptanceTable,
}

impl Wish<'_> {
    /// Draft steps to ask for now.
    fn steps(&self, sequence: &Sequence) -> usize {
        let missing =
            sequence.wanted.min(sequence.useful_proposals()).saturating_sub(sequence.proposals.len());
        match self.execution {
            Execution::Serial => missing,
            // Past the frontier, only as long as it is worth it.
            Execution::Overlapped(_) if sequence.survival() < self.worthwhile => 0,
            Execution::Overlapped(_) => missing.min(STEPS_AHEAD),
        }
    }
}

fn shape_of(chunks: &[DraftChunk], execution: Execution) -> PassShape {
    PassShape {
        partition: execution.partition(),
        rows: chunks.iter().map(|chunk| chunk.tokens.len()).sum(),
        context: chunks.iter().map(|chunk| chunk.start + chunk.tokens.len()).sum(),
        steps: chunks.iter().map(|chunk| chunk.steps).max().unwrap_or(0),
        sequences: chunks.len(),
    }
}

/// What the planner is told of a sequence.
pub(crate) fn candidate(sequence: &Sequence) -> Candidate {
    let useful = sequence.useful_proposals();
    let (mut survival, mut expected, mut ready) = (1.0, 0.0, 0);
    for proposal in sequence.proposals.iter().take(useful) {
        survival *= proposal.acceptance;
        expected += survival;
        ready += 1;
    }
    Candidate {
        useful,
        ready,
        expected,
        survival,
        typical: sequence.level.typical(),
        context: sequence.tokens.len(),
    }
}
