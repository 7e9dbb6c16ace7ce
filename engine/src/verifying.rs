//! The verify stage: one pass with everyone's rows, and what its verdicts commit.

use std::cell::LazyCell;
use std::time::Duration;

use crate::api::{Command, FinishReason};
use crate::branch::Proposal;
use crate::cost::Reach;
use crate::engine::{Engine, Scratch};
use crate::plan::{CancelledChunk, LaneKind, PartitionId, Test, VerifyChunk, VerifyPlan};
use crate::planner::{Batch, Execution, Leaving, PassShape, Prefill, Pruned, Speculated};
use crate::pruning::Prospect;
use crate::request::{CANDIDATES, SeqId};
use crate::sequence::{CancelledDrafts, Sequence, VerifyOut};
use crate::survival::Source;
use crate::view::EpochMove;

/// Of the rows of prompts a first token that is late by far has one in so many.
const OVERDUE: usize = 8;

impl Engine {
    /// The next verify pass: a row for each sequence that decodes, the proposals that pay, prefill with the rest.
    pub(crate) fn plan_verify(&mut self) -> Option<VerifyPlan> {
        self.make_room_for_anchors();
        let mut scratch = std::mem::take(&mut self.scratch);
        let (prompt_rows, prompts) = self.choose_proposals(&mut scratch);
        let mut plan = std::mem::take(&mut self.spent.1);
        plan.clear();
        let decoding_rows: usize = scratch.lengths.iter().map(|k| k + 1).sum::<usize>();
        if self.tuning.max_prefill_rows.is_none() {
            self.planner.look_again(prompt_rows, prompts, decoding_rows);
        }
        let left = self.config.max_pass_rows.saturating_sub(decoding_rows);
        let prefill_rows = left.min(self.prefill_limit(decoding_rows));
        let mut lengths = scratch.lengths.iter_mut();
        for i in 0..self.running.len() {
            let seq = self.running[i];
            if self.sequences.get(&seq).is_some_and(Sequence::decoding)
                && let Some(k) = lengths.next()
            {
                *k = self.add_chunk(seq, 1, *k, &mut plan);
            }
        }
        let (_, without) = self.room(scratch.candidates.len(), prompt_rows);
        self.gave_way = without.rows.saturating_sub(prefill_rows);
        self.add_prefill(prefill_rows, &mut scratch, &mut plan);
        if plan.chunks.is_empty() {
            (self.spent.1, self.scratch) = (plan, scratch);
            return None;
        }
        self.verify_shape = shape_of(&plan.chunks);
        self.add_tests(&mut scratch, &mut plan);
        self.execute(&mut scratch);
        self.scratch = scratch;
        self.totals.target_rows += self.verify_shape.rows as u64;
        plan.step = self.verify_lane.begin(&mut plan.admit, &mut plan.retire);
        self.target_pool.take_copies(&mut plan.copies);
        plan.partition = self.verify_shape.partition;
        self.prepared = false;
        self.verify_due = self.now + self.planner.predicted_verify(&self.verify_shape).unwrap_or_default();
        Some(plan)
    }

    /// Every sequence that decodes gets a block for its anchor before any proposal does; the oldest first.
    fn make_room_for_anchors(&mut self) {
        let mut fits = |seq| {
            let Some(sequence) = self.sequences.get_mut(seq) else { return true };
            !sequence.decoding() || sequence.target.table.grow(sequence.tokens.len())
        };
        let Some(first) = self.running.iter().position(|seq| !fits(seq)) else { return };
        let mut ids = std::mem::take(&mut self.scratch.ids);
        ids.clear();
        ids.extend(self.running[first..].iter().filter(|seq| self.sequences[seq].decoding()));
        for &seq in &ids {
            // A sequence that an older one preempted has nothing to decode by its turn, nor may it take a block, with which it would wait.
            let runs = |sequence: &&Sequence| sequence.decoding() && !sequence.target.table.is_empty();
            if let Some(sequence) = self.sequences.get(&seq).filter(runs) {
                let tokens = sequence.tokens.len();
                self.make_room(seq, tokens);
            }
        }
        self.scratch.ids = ids;
    }

    /// Fills `lengths` with the proposals to verify of each sequence that decodes. Returns the rows of prompts, and how many those are.
    fn choose_proposals(&mut self, scratch: &mut Scratch) -> (usize, usize) {
        scratch.candidates.clear();
        let (mut prompt_rows, mut prompts) = (0, 0);
        let costs = LazyCell::new(|| self.planner.costs_by_length(self.running.len()));
        for sequence in self.running.iter().filter_map(|seq| self.sequences.get(seq)) {
            if sequence.decoding() {
                scratch.candidates.push(self.candidate(sequence, &costs));
            } else {
                prompt_rows += sequence.uncomputed();
                prompts += 1;
            }
        }
        let (rows, prefill) = self.room(scratch.candidates.len(), prompt_rows);
        scratch.rows = (rows, prefill);
        let displaced = self.planner.displaced();
        let batch = Batch { candidates: &scratch.candidates, rows, prefill, displaced };
        let decoding = self.running.iter().filter_map(|seq| self.sequences.get(seq)).filter(|s| s.decoding());
        let acceptances = decoding.map(|s| s.proposals.iter().map(|proposal| proposal.acceptance));
        self.planner.trim(&batch, acceptances, &mut scratch.lengths);
        (prompt_rows, prompts)
    }

    /// Rows of a pass of so many sequences that proposals may take, and those of prompts, which have so many: these keep at most half of what the
    /// sequences leave.
    pub(crate) fn room(&self, sequences: usize, prompt_rows: usize) -> (usize, Prefill) {
        let spare = self.config.max_pass_rows.saturating_sub(sequences);
        let prefill = self.planner.prefill(prompt_rows.min(spare).min(self.prefill_limit(sequences)));
        (spare - prefill.rows.min(spare / 2), prefill)
    }

    /// The most rows of prompts in a pass that has so many rows of sequences that decode.
    pub(crate) fn prefill_limit(&self, others: usize) -> usize {
        if others == 0 {
            return usize::MAX;
        }
        self.tuning.max_prefill_rows.unwrap_or(usize::MAX).min(self.planner.prefill_rows(others))
    }

    /// Prefill, up to `rows_left` rows: by priority; among equals who is awaited with a target first, and of those who can still meet it, by when
    /// it is due; then in order of admission. Rows are of no use to a target that is missed anyway, and would make others miss theirs.
    fn add_prefill(&mut self, mut rows_left: usize, scratch: &mut Scratch, plan: &mut VerifyPlan) {
        let order = |seq: &SeqId| {
            let sequence = self.sequences.get(seq)?;
            let due = sequence.first_token_due();
            let computed =
                || self.now + Duration::from_secs_f64(self.planner.prefill_s(sequence.uncomputed()));
            Some((sequence.priority(), due.is_none(), due.is_some_and(|due| due < computed()), due))
        };
        scratch.ids.clear();
        // A stable sort of many would allocate.
        for seq in self.running.iter().filter(|seq| !self.sequences[seq].decoding()) {
            let place = scratch.ids.partition_point(|other| order(other) <= order(seq));
            scratch.ids.insert(place, *seq);
        }
        // Nobody starves behind equals: of the most urgent that are late by far, the one that is so the longest has a part of the rows. A prompt without
        // a target counts as late after a while, where prompts with one go before it.
        let targets = scratch.ids.iter().any(|seq| self.sequences[seq].first_token_due().is_some());
        let too_late = |seq: &SeqId| self.sequences[seq].too_late(targets).filter(|late| *late < self.now);
        let lateness = |seq: &SeqId| Some((self.sequences[seq].priority(), too_late(seq)?, *seq));
        let overdue = scratch.ids.iter().filter_map(lateness).min().map(|(_, _, seq)| seq);
        let part = rows_left.div_ceil(OVERDUE);
        let mut aside = overdue.map_or(0, |seq| self.sequences[&seq].uncomputed().min(part));
        rows_left -= aside;
        for &seq in &scratch.ids {
            if overdue == Some(seq) {
                rows_left += std::mem::take(&mut aside);
            }
            let rows = self.sequences.get(&seq).map_or(0, Sequence::uncomputed).min(rows_left);
            if rows > 0 {
                rows_left -= rows;
                self.add_chunk(seq, rows, 0, plan);
            }
        }
    }

    /// Adds `committed` rows of a sequence and as many of `k` proposals as get a block: they push nobody out. How many those
    /// are.
    fn add_chunk(&mut self, seq: SeqId, committed: usize, k: usize, plan: &mut VerifyPlan) -> usize {
        let masked = self.config.draft.needs().passes.is_one();
        let Some(sequence) = self.sequences.get_mut(&seq) else { return 0 };
        let start = sequence.target.computed;
        let fits = sequence.target.table.capacity().saturating_sub(sequence.tokens.len());
        let k = if sequence.target.table.grow(sequence.tokens.len() + k) { k } else { k.min(fits) };
        let end = start + committed;
        sequence.verify_out = Some(VerifyOut { end, proposals: k, chunk: plan.chunks.len() });
        plan.chunks.push(VerifyChunk {
            seq,
            epoch: sequence.epoch,
            start,
            rows: sequence.append_known(start, committed + k, &mut plan.tokens),
            proposals: k,
            unchecked: k > 0 && (masked || sequence.proposals.iter().take(k).any(Proposal::is_free)),
            sample: end == sequence.tokens.len(),
            table: sequence.target.table.append_ids(end + k, &mut plan.blocks),
            tests: 0..0,
        });
        k
    }

    /// Decides where in the pass proposals are tested, and adds the tests.
    fn add_tests(&mut self, scratch: &mut Scratch, plan: &mut VerifyPlan) {
        let rows = self.verify_shape.rows;
        if !self.pruning.may_pay(self.planner.row_cost(rows)) {
            return;
        }
        scratch.prospects.clear();
        let mut tokens = 0.0;
        for chunk in &plan.chunks {
            let Some(sequence) = self.sequences.get(&chunk.seq) else { continue };
            tokens += f64::from(u8::from(chunk.sample));
            let first = scratch.prospects.len();
            let mut survival = sequence.weight(self.now);
            for (i, proposal) in sequence.proposals.iter().take(chunk.proposals).enumerate() {
                let (acceptance, rows) = (proposal.acceptance, chunk.proposals - i);
                // What stands before it; what it and those behind it bring is known from the last one on.
                scratch.prospects.push(Prospect { acceptance, at_stake: survival, rows });
                survival *= acceptance;
                tokens += f64::from(survival);
            }
            let mut behind = 0.0;
            for prospect in scratch.prospects[first..].iter_mut().rev() {
                prospect.at_stake *= 1.0 + behind;
                behind = prospect.acceptance * (1.0 + behind);
            }
        }
        let saved = self.planner.saved_by_leaving(rows, self.pruning.leaving(scratch.prospects.len()));
        let mode = self.pruning.decide(&scratch.prospects, saved, tokens);
        plan.prune_checkpoints.extend(self.pruning.layers(mode));
        if plan.prune_checkpoints.is_empty() {
            return;
        }
        let mut prospects = scratch.prospects.iter();
        for chunk in &mut plan.chunks {
            let Some(sequence) = self.sequences.get(&chunk.seq) else { continue };
            let begin = plan.tests.len();
            for (proposal, prospect) in sequence.proposals.iter().take(chunk.proposals).zip(&mut prospects) {
                let max_margin = self.pruning.max_margin(mode, prospect, saved);
                plan.tests.push(Test { alternatives: proposal.alternatives.clone(), max_margin });
            }
            chunk.tests = begin..plan.tests.len();
        }
    }

    /// Decides on the execution of the pass in the making.
    fn execute(&mut self, scratch: &mut Scratch) {
        scratch.odds.clear();
        let looks = self.planner.looks_ahead(scratch.candidates.len());
        if looks {
            self.list_odds(&scratch.lengths, &mut scratch.odds);
        }
        // The next round is taken to have as much prefill as this one.
        let (rows, prefill) = scratch.rows;
        let displaced = self.planner.displaced();
        let batch = Batch { candidates: &scratch.candidates, rows, prefill, displaced };
        let PassShape { rows, reach, .. } = self.verify_shape;
        let most = self.config.draft_chunks();
        let past_rows = self.config.draft.needs().rows_past(scratch.lengths.iter().copied());
        let draft_busy = self.draft_lane.busy();
        let leaving = Leaving { odds: &scratch.odds, most, rows, reach, past_rows, draft_busy };
        let execution = self.planner.execute(&batch, looks.then_some(&leaving));
        self.verify_shape.partition = execution.partition();
        self.beside_drafts = draft_busy && execution == Execution::Serial;
    }

    /// Commits the accepted prefixes and next tokens of a finished pass.
    pub(crate) fn verified(&mut self, plan: VerifyPlan, out: &mut Vec<Command>) {
        if !self.verify_lane.finish(plan.step) {
            return;
        }
        let took = plan.outcome.took;
        self.totals.target_passes += 1;
        self.totals.verify_time += took;
        self.totals.overlapped_passes += u64::from(self.verify_shape.partition != PartitionId(0));
        self.totals.pruning_passes += u64::from(!plan.prune_checkpoints.is_empty());
        let forbidden: usize = plan.outcome.verdicts.iter().map(|verdict| verdict.forbidden).sum();
        let pruned = self.pruned(&plan);
        let whole = PassShape { rows: self.verify_shape.rows - forbidden, ..self.verify_shape };
        // A pass of late chunks alone only waits.
        let cold = self.planner.is_cold(LaneKind::Verify, plan.outcome.cold);
        let timed = match whole.rows {
            0 => None,
            _ if cold || self.beside_drafts => {
                self.planner.timed_and_not_taught(&whole, cold, took, self.now)
            }
            _ => self.planner.timed_verify(&whole, pruned, took, self.now),
        };
        // Rows that left cost what they took part in.
        let saved = (pruned.rows as f64 * pruned.share_left) as usize;
        let shape = PassShape { rows: whole.rows - saved, ..whole };
        if let Some(predicted) = timed {
            self.totals.predicted_verify_time += predicted;
            self.totals.verify_time_error += predicted.abs_diff(took);
            self.totals.verify_errors.count(predicted, took);
        }
        let mut round = Speculated {
            rows: shape.rows,
            gave_way: self.gave_way,
            pass_s: timed.filter(|_| cold).unwrap_or(took).as_secs_f64(),
            ..Speculated::default()
        };
        for (index, (chunk, verdict)) in plan.chunks.iter().zip(&plan.outcome.verdicts).enumerate() {
            let taken = self.verdict(&plan, index, out);
            round.proposals += chunk.proposals;
            round.proposed_context += chunk.proposals * chunk.start;
            if verdict.next.is_some() {
                round.sequences += 1;
                // Nobody gets what is accepted behind a stop token. The row of who has left, or stops at once, brought no more than without proposals.
                round.committed += taken.max(1);
                if let Some(sequence) = self.sequences.get_mut(&chunk.seq) {
                    self.planner.returns(sequence.investment.settle(taken.max(1)));
                }
                round.reach.kv += chunk.start + 1;
                round.reach.rows += chunk.start + 1;
            }
        }
        round.proposals = round.proposals.saturating_sub(forbidden + saved);
        self.planner.settle(&shape, round);
        self.spent.1 = plan;
    }

    /// The rows that left a pass at its pruning checkpoints, and in the mean how much of it was behind them. What that tells of passes that prune is
    /// learned.
    fn pruned(&mut self, plan: &VerifyPlan) -> Pruned {
        let layers = self.config.target_layers.max(1) as f64;
        let (mut rows, mut shares) = (0, 0.0);
        for verdict in &plan.outcome.verdicts {
            // What left behind the last one left the end of the pass.
            let Some(&done) = plan.prune_checkpoints.get(verdict.pruned_at) else { continue };
            rows += verdict.pruned;
            shares += verdict.pruned as f64 * (1.0 - done as f64 / layers);
        }
        if plan.tests.iter().any(|test| !test.alternatives.is_empty()) {
            self.pruning.has_left(rows, plan.tests.len());
        }
        Pruned { rows, share_left: shares / rows.max(1) as f64 }
    }

    /// Hands a verdict to its sequence. The tokens that it took, a stop token among them.
    fn verdict(&mut self, plan: &VerifyPlan, index: usize, out: &mut Vec<Command>) -> usize {
        let (chunk, verdict) = (&plan.chunks[index], &plan.outcome.verdicts[index]);
        let Some(sequence) = self.sequences.get_mut(&chunk.seq).filter(|s| s.epoch == chunk.epoch) else {
            return 0;
        };
        let Some(next) = verdict.next else {
            sequence.asked = false;
            if let Some(VerifyOut { end, .. }) = sequence.verify_out.take() {
                // The row of an anchor comes again with that of the token after it.
                sequence.target.advance(&sequence.tokens, end - usize::from(verdict.late));
                sequence.features = sequence.target.computed;
            }
            self.totals.late_chunks += u64::from(verdict.late);
            return 0;
        };
        let learning = (&mut self.calibrations, &mut self.worth);
        let done =
            sequence.verified(verdict, next, self.now, learning, (&mut self.ranks, &mut self.outcomes));
        let draws = sequence.draws;
        let seq = chunk.seq;
        let step = self.draft_lane.outstanding();
        let ends = |chunk| Some(CancelledChunk { lane: LaneKind::Draft, step: step?, seq, chunk });
        self.cancelled_chunks.extend(self.outcomes.cancelled.drain(..).filter_map(ends));
        if let Some(hit) = done.hit {
            self.totals.outcome_verdicts += 1;
            self.totals.outcome_hits += u64::from(hit);
            self.totals.outcome_verdicts_drawn += u64::from(draws);
            self.totals.outcome_hits_drawn += u64::from(hit && draws);
            self.totals.outcomes_taken += u64::from(done.taken.is_some());
        }
        if let Some(rank) = done.rank {
            self.totals.recovered_ranks[rank.min(CANDIDATES)] += 1;
        }
        if let Some(CancelledDrafts { epoch, frontier, unsent, drafting }) = done.cancelled {
            let drafting = step.filter(|_| drafting);
            let moved =
                EpochMove { seq, epoch, frontier, unsent, drafting, taken: done.taken, rejected: true };
            self.moves.push(moved);
            self.totals.chunks_cancelled += u64::from(moved.cancelled());
        }
        let right = done.accepted + usize::from(done.pruned_in_vain);
        let known = chunk.proposals.min(done.accepted + 1);
        for (checkpoint, &layers) in
            plan.prune_checkpoints.iter().enumerate().filter(|_| !chunk.tests.is_empty())
        {
            let margins = plan
                .outcome
                .margins
                .get(checkpoint * plan.tests.len() + chunk.tests.start..)
                .unwrap_or_default();
            for (i, &margin) in margins.iter().take(known).enumerate() {
                self.pruning.observe(layers, margin, i < right);
            }
        }
        self.totals.count_draft(done.proposed, done.accepted);
        let (text, prediction) = (done.by_source[Source::Text], done.by_source[Source::Prediction]);
        self.totals.prompt_lookup_tokens += (text.proposed + prediction.proposed) as u64;
        self.totals.prompt_lookup_accepted_tokens += (text.accepted + prediction.accepted) as u64;
        self.totals.suffix_tokens += done.by_source[Source::Suffix].proposed as u64;
        self.totals.suffix_accepted_tokens += done.by_source[Source::Suffix].accepted as u64;
        if plan.prune_checkpoints.get(verdict.pruned_at).is_some() {
            self.totals.rows_pruned += verdict.pruned as u64;
        }
        self.totals.pruned_in_vain += u64::from(done.pruned_in_vain);
        self.totals.output_tokens += done.emitted.len() as u64;
        self.output_length.came(done.emitted.len());
        let stopped = matches!(done.ended, Some(FinishReason::StopToken(_)));
        let taken = done.emitted.len() + usize::from(stopped);
        if !done.emitted.is_empty() {
            out.push(Command::Emit { seq: chunk.seq, tokens: done.emitted });
        }
        if let Some(reason) = done.ended {
            self.totals.finished += 1;
            self.output_length.ended(reason != FinishReason::Length);
            self.finish(chunk.seq, reason, out);
        }
        taken
    }
}

fn shape_of(chunks: &[VerifyChunk]) -> PassShape {
    let mut reach = Reach::NONE;
    for VerifyChunk { start, rows, .. } in chunks {
        reach.kv += start + rows.len();
        reach.rows += rows.len() * (start + rows.len() / 2);
    }
    PassShape {
        partition: PartitionId(0),
        rows: chunks.iter().map(|chunk| chunk.rows.len()).sum(),
        reach,
        steps: 1,
        sequences: chunks.len(),
    }
}
