//! The draft stage: who drafts how far, and which draft KV has to be caught up with first.

use crate::branch::DraftOut;
use crate::cost::Reach;
use crate::engine::Engine;
use crate::plan::{DraftChunk, DraftPlan, LaneKind, StepPrice, StopRule};
use crate::planner::{Batch, Candidate, Execution, PassShape, ROUND_ROWS, Waiting, run_length};
use crate::policy::Lengths;
use crate::portfolio::{Choices, Prospects};
use crate::request::{K_LIMIT, SeqId};
use crate::sequence::Sequence;
use crate::source::RoundPasses;
use crate::survival::{AcceptanceTable, Source};
use crate::view::Totals;
use std::cell::LazyCell;

/// Rows that a step past the frontiers may catch up with: few, for what is prepared comes behind it.
const ROWS_AHEAD: usize = 64;
/// Blocks of draft KV that are left for each sequence that runs where prompts are drafted along, or caught up with beside branches.
pub(crate) const KV_SPARE: usize = 4;
/// One draft plan with rows to catch up with in so many goes in the order of admission: nobody waits for ever behind those whose rows bring more.
const PLAN_IN_ORDER: u64 = 16;
/// Draft plans of a round that may be as long as a plan can be, at most.
const MOST_LONG_PLANS: usize = 8;
/// How far rows of prompts may wait where a round has more than one: where more do, those come first.
const MOST_WAITING: f64 = 0.2;
/// Of so many draft plans one tells the draft's candidates, where nothing is prepared by them.
const RANKS_EVERY: u64 = 16;
/// Rows of one sequence that nobody minds: what a round commits, and a step.
const SHORT: usize = 2 * K_LIMIT;

impl Engine {
    /// Does prompt-lookup propose?
    pub(crate) fn looks_up(&self) -> bool {
        self.tuning.mechanisms.lookup && self.tuning.policy.traits().lookup
    }

    /// Does what followed in past outputs propose?
    pub(crate) fn recalls(&self) -> bool {
        self.past.is_some() && self.tuning.policy.traits().lookup
    }

    /// Gives every sequence that decodes what free sources offer it, where the draft does not do better.
    fn take_offers(&mut self) {
        if !self.looks_up() && !self.recalls() {
            return;
        }
        let tables = self.calibrations.tables();
        let prices = self.planner.prices(self.running.len());
        let goes_on = self.config.draft.needs().goes_on();
        let free = (self.looks_up(), self.past.as_ref().filter(|_| self.recalls()));
        let mut choices = [Choices::default(); 2];
        let mut paths = std::mem::take(&mut self.scratch.paths);
        paths.clear();
        let mut offered = false;
        for &seq in &self.running {
            if let Some(sequence) = self.sequences.get_mut(&seq)
                && sequence.decoding()
                && sequence.ask_for_offers(free)
            {
                offered |= sequence.offers.any();
                paths.push((seq, Default::default(), false));
            }
        }
        // Where nothing is offered there is nothing to choose.
        if !offered {
            self.scratch.paths = paths;
            return;
        }
        let costs = LazyCell::new(|| self.planner.costs_by_length(self.running.len()));
        let mut tried = false;
        for (seq, paths, tries) in &mut paths {
            let Some(sequence) = self.sequences.get(seq) else { continue };
            let candidate = self.candidate(sequence, &costs);
            *tries = !tried && candidate.ready == 0 && self.planner.draft_due(&candidate);
            tried |= *tries;
            let prospects = Prospects {
                survival: candidate.survival,
                room: candidate.useful - candidate.ready,
                typical: candidate.typical,
                goes_on,
                weight: candidate.weight,
            };
            *paths = prices.map(|prices| sequence.path(&prospects, &tables, &self.worth, &prices));
            choices.iter_mut().zip(paths).for_each(|(choices, path)| choices.add(path));
        }
        let [shared, joining] =
            choices.map(|choices| choices.worth(self.planner.drafting_cost(&choices.drafting)));
        let chosen = usize::from(joining > shared);
        let suspended = !self.planner.speculates();
        for (seq, paths, tries) in &paths {
            let Some(sequence) = self.sequences.get_mut(seq) else { continue };
            sequence.tries = *tries;
            if !tries {
                sequence.take_offer(&paths[chosen], &tables, &prices[chosen], suspended);
            }
        }
        self.scratch.paths = paths;
    }

    /// Decides on the round that begins: how many proposals every running sequence should have.
    pub(crate) fn plan_round(&mut self) {
        self.planner.look_at_kv(self.target_pool.free(), self.running.len());
        self.take_offers();
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.candidates.clear();
        let (mut prompt_rows, mut prompts, mut due) = (0, 0, (0, f64::INFINITY));
        let costs = LazyCell::new(|| self.planner.costs_by_length(self.running.len()));
        // Tokens that a sequence gets of a pass, in the mean.
        let Totals { output_tokens, accepted_tokens, .. } = self.totals;
        let usual = output_tokens.max(1) as f64 / output_tokens.saturating_sub(accepted_tokens).max(1) as f64;
        let mut on_target = self.planner.on_target();
        let most = self.tuning.max_prefill_rows;
        for sequence in self.running.iter().filter_map(|seq| self.sequences.get(seq)) {
            if sequence.decoding() {
                scratch.candidates.push(self.candidate(sequence, &costs));
                let to_come = self.to_come(sequence).max(1);
                if let Some(within_s) = sequence.round_within(self.now, usual, to_come) {
                    on_target.decodes(within_s);
                }
                continue;
            }
            prompt_rows += sequence.uncomputed();
            prompts += 1;
            let left = sequence.first_token_due().and_then(|due| due.checked_sub(self.now));
            if let Some(left) = left {
                on_target.prompt(sequence.uncomputed(), left.as_secs_f64());
            }
            let (rows, left) = (sequence.uncomputed(), left.map(|left| left.as_secs_f64()));
            if let Some(left) = left.filter(|left| *left < due.1 && self.planner.reaches(rows, most, *left)) {
                due = (rows, left);
            }
        }
        let sequences = scratch.candidates.len();
        let waiting = Waiting { prompt_rows, prompts, sequences, most, due, on_target };
        let displaced = self.planner.look(&waiting);
        let (rows, prefill) = self.room(sequences, prompt_rows);
        let batch = Batch { candidates: &scratch.candidates, rows, prefill, displaced };
        self.planner.plan(&batch, &mut scratch.lengths);
        let mut lengths = scratch.lengths.iter();
        for seq in &self.running {
            if let Some(sequence) = self.sequences.get_mut(seq) {
                sequence.wanted = if sequence.decoding() { lengths.next().copied().unwrap_or(0) } else { 0 };
                sequence.tries = false;
            }
        }
        self.scratch = scratch;
    }

    /// What the planner is told of a sequence, where proposals cost so much: see [`Planner::costs_by_length`](crate::planner::Planner::costs_by_length).
    pub(crate) fn candidate<F: FnOnce() -> [f64; K_LIMIT]>(
        &self,
        sequence: &Sequence,
        costs: &LazyCell<[f64; K_LIMIT], F>,
    ) -> Candidate {
        let useful = sequence.useful_proposals().min(self.kv_room(sequence));
        let (mut survival, mut expected, mut ready) = (1.0, 0.0, 0);
        for proposal in sequence.proposals.iter().take(useful) {
            survival *= proposal.acceptance;
            expected += survival;
            ready += 1;
        }
        let room = self.draft_room(sequence);
        let mut candidate = Candidate {
            // Where nothing is drafted there is nothing but what is there.
            useful: useful.min(ready + room),
            drafts: useful > 0 && room > 0,
            to_come: self.to_come(sequence),
            ready,
            expected,
            survival,
            typical: sequence.levels[Source::Draft].typical(),
            context: sequence.tokens.len(),
            behind: self.long_way(sequence),
            missing: sequence.known().saturating_sub(sequence.draft.computed),
            weight: sequence.weight(self.now),
            tries: sequence.tries,
        };
        if candidate.catches_up() > 0 && !candidate.tries {
            let shown = !self.looks_up() || sequence.shows_what_lookup_brings();
            let begun =
                sequence.investment.is_open() || self.planner.may_begin_to_catch_up(&candidate, shown);
            let of_draft = Candidate { to_come: sequence.left_for_draft(candidate.to_come), ..candidate };
            if !begun || !self.planner.pays_to_catch_up(&of_draft, costs) {
                candidate.useful = ready;
            }
        }
        candidate
    }

    /// Proposals that its target KV has room for: where blocks are short, what its own hold beyond its tokens.
    fn kv_room(&self, sequence: &Sequence) -> usize {
        if !self.planner.kv_short() {
            return usize::MAX;
        }
        let tokens = sequence.tokens.len();
        tokens.next_multiple_of(self.config.block_size) - tokens
    }

    /// Tokens that a sequence is expected to get yet, and may.
    fn to_come(&self, sequence: &Sequence) -> usize {
        sequence.to_come().min(self.output_length.expected().unwrap_or(usize::MAX))
    }

    /// Proposals that could still be drafted behind those that are there: none where nothing drafts, or its context ends, or what drafts does not
    /// go on from proposals of others.
    pub(crate) fn draft_room(&self, sequence: &Sequence) -> usize {
        if !self.config.draft.drafts() || !sequence.drafts() {
            return 0;
        }
        if self.config.draft.needs().hidden_states && !sequence.proposals.is_empty() {
            return 0;
        }
        let needs = self.config.draft.needs();
        let context = self.config.speculation.draft_context;
        match needs.block {
            // It stands in its context whole, or not at all.
            Some(block) if sequence.known().saturating_add(block.rows) > context => 0,
            Some(block) => block.proposals,
            // The last proposal has no row of its own.
            None => context.saturating_add(1).saturating_sub(sequence.known()),
        }
    }

    /// Rows for sequences with far to catch up, at most so many, if others that decode wait for it.
    fn long_rows(&self, most: usize) -> Option<usize> {
        let (mut decoding, mut prefill, mut awaited) = (0, 0, false);
        for sequence in self.running.iter().filter_map(|seq| self.sequences.get(seq)) {
            match sequence.decoding() {
                true => decoding += 1,
                false => prefill += sequence.uncomputed(),
            }
            awaited |= sequence.awaits_first_token();
        }
        let prefill = prefill.min(self.prefill_limit(decoding));
        let rows = (decoding + prefill).min(self.config.max_pass_rows);
        let pass_rows = self.config.max_pass_rows;
        (decoding > 0 && self.running.len() > 1)
            .then(|| self.planner.long_rows(rows, awaited, most, pass_rows))
    }

    /// Tokens without draft KV, where they are so many that they may take more than a round.
    pub(crate) fn long_way(&self, sequence: &Sequence) -> usize {
        let missing = sequence.known().saturating_sub(sequence.draft.computed);
        if missing > SHORT { missing } else { 0 }
    }

    /// Rows of a plan that only catches up, in front of the round's drafts: where sequences that want proposals are so far behind that all their
    /// rows are more than a plan takes, but not more than the time of a round and the account allow. Else they would catch up over as many rounds as that is
    /// plans, and decode without proposals meanwhile.
    fn rows_ahead_of_drafts(&self) -> usize {
        if !matches!(self.planner.policy().lengths(self.running.len()), Lengths::Goodput) {
            return 0;
        }
        let (mut long, mut all, mut accepted) = (0, 0, 0.0);
        for sequence in self.running.iter().filter_map(|seq| self.sequences.get(seq)) {
            if sequence.wants_drafts() && self.draft_room(sequence) > 0 {
                let way = self.long_way(sequence);
                if way > 0 {
                    let typical = sequence.levels[Source::Draft].typical();
                    accepted += run_length(f64::from(typical), sequence.wanted);
                }
                long += way;
                all += sequence.known().saturating_sub(sequence.draft.computed) + sequence.wanted;
            }
        }
        let most = self.config.max_pass_rows;
        if long == 0 || all <= most || self.planner.waiting() > MOST_WAITING {
            return 0;
        }
        let within = self.long_rows(MOST_LONG_PLANS * most).unwrap_or(usize::MAX);
        let rows = long.min(most).min(within.saturating_sub(self.caught_up));
        if within > most && self.planner.affords_catching_up(rows, accepted) { rows } else { 0 }
    }

    /// The next draft plan, or none if nobody has anything to draft.
    pub(crate) fn plan_draft(&mut self, execution: Execution) -> Option<DraftPlan> {
        if !self.config.draft.drafts() || !self.planner.policy().traits().drafts {
            return None;
        }
        if execution == Execution::Serial {
            let rows = self.rows_ahead_of_drafts();
            if rows > 0
                && let Some(plan) = self.plan_drafts(execution, Some(rows))
            {
                self.caught_up += plan.tokens.len();
                return Some(plan);
            }
        }
        let plan = self.plan_drafts(execution, None);
        self.caught_up = 0;
        plan
    }

    /// A wish for such drafts.
    pub(crate) fn wish(&self, drafts: Drafts) -> Wish {
        Wish {
            drafts,
            keeps_proposals: self.config.draft.needs().keeps_proposals,
            break_even_survival: self.planner.break_even_survival(),
            further: match self.planner.kv_short() {
                true => 0,
                false => self.planner.further_steps(self.running.len(), self.config.max_pass_rows),
            },
            weighs: self.planner.policy().traits().predicts,
            table: self.calibrations[Source::Draft].table(),
        }
    }

    /// Do requests wait for KV of those that run?
    fn waits_for_kv(&self) -> bool {
        !self.waiting.is_empty() && self.running.len() < self.tuning.max_running
    }

    /// The order in which sequences get rows of a draft plan: the longest admitted first, behind those that decode those in prefill, if these draft
    /// along. Where costs decide, who is far behind comes mostly later the more rows it has to catch up with for what its tokens to come count;
    /// one plan in so many of those that count goes by admission.
    pub(crate) fn order_drafts(
        &mut self,
        (along, counts): (bool, bool),
        order: &mut Vec<(f32, usize, SeqId)>,
    ) {
        order.clear();
        let behind = |seq| self.sequences.get(seq).is_some_and(|sequence| self.long_way(sequence) > 0);
        // Where others wait to be admitted, who came first had better end first: it gives its KV back.
        let by_rows = self.planner.policy().traits().predicts && self.waiting.is_empty();
        let by_rows = by_rows && self.running.iter().any(behind);
        self.long_plans += u64::from(by_rows && counts);
        let by_rows = by_rows && !self.long_plans.is_multiple_of(PLAN_IN_ORDER);
        for (place, seq) in self.running.iter().enumerate() {
            let Some(sequence) = self.sequences.get(seq) else { continue };
            let key = match sequence.decoding() {
                true if by_rows => {
                    let worth = sequence.weight(self.now) * self.to_come(sequence).max(1) as f32;
                    self.long_way(sequence) as f32 / worth
                }
                true => 0.0,
                false if along => f32::INFINITY,
                false => continue,
            };
            order.push((key, place, *seq));
        }
        order.sort_unstable_by(|(a, place, _), (b, other, _)| a.total_cmp(b).then(place.cmp(other)));
    }

    /// The plan of those that draft, or one that only catches up, by so many rows.
    fn plan_drafts(&mut self, execution: Execution, only_catches_up: Option<usize>) -> Option<DraftPlan> {
        let wish = self.wish(match execution {
            _ if only_catches_up.is_some() => Drafts::Nothing,
            Execution::Serial => Drafts::Wanted,
            Execution::Overlapped(_) => Drafts::PastFrontiers,
        });
        let mut plan = std::mem::take(&mut self.spent.0);
        plan.clear();
        let sequences = self.running.iter().filter_map(|seq| self.sequences.get(seq));
        let mut rows_left = wish.rows(sequences, self.config.max_pass_rows);
        let long_rows = || self.long_rows(MOST_LONG_PLANS * self.config.max_pass_rows);
        let mut long_rows_left = match wish.drafts {
            // Who is far behind catches up besides what is prepared, and is not to keep others from that.
            Drafts::PastFrontiers => 0,
            _ => only_catches_up
                .or_else(|| Some(long_rows()?.saturating_sub(self.caught_up)))
                .map_or(rows_left, |rows| rows.min(rows_left)),
        };
        // Those that draft now go first. Where costs decide, whoever is still in prefill catches up when its turn to draft comes: a first token
        // waits for no draft. But where others wait for its KV it is to end soon, and beside drafts its rows are cheap. A fixed length is wanted by
        // everybody in any case, unless it is 0. Who begins with the target's hidden states waits for those.
        let weighs = wish.weighs;
        let along = match self.planner.policy().lengths(self.running.len()) {
            Lengths::Same(k) => k > 0,
            Lengths::Goodput => execution == Execution::Serial && self.waits_for_kv(),
        } && !self.config.draft.needs().hidden_states;
        let mut order = std::mem::take(&mut self.draft_order);
        self.order_drafts((along, execution == Execution::Serial), &mut order);
        for &(key, _, seq) in &order {
            if weighs && key == f32::INFINITY && plan.chunks.iter().all(|chunk| chunk.steps == 0) {
                break;
            }
            self.add_draft_chunk(seq, &wish, (&mut rows_left, &mut long_rows_left), &mut plan);
        }
        self.draft_order = order;
        self.send_drafts(plan, execution)
    }

    /// A draft plan leaves, if anything is in it.
    pub(crate) fn send_drafts(&mut self, mut plan: DraftPlan, execution: Execution) -> Option<DraftPlan> {
        if plan.chunks.is_empty() {
            self.spent.0 = plan;
            return None;
        }
        let needs = self.config.draft.needs();
        (plan.passes, plan.block_rows) = (needs.passes, needs.block.map_or(0, |block| block.rows));
        plan.step_price = match execution {
            Execution::Serial => {
                let drafting = || plan.chunks.iter().filter(|chunk| chunk.steps > 0);
                let context = drafting().map(|chunk| chunk.start + chunk.rows.len()).sum();
                self.planner.step_price(drafting().count(), context)
            }
            // Time under a pass is free.
            Execution::Overlapped(_) => StepPrice::default(),
        };
        self.draft_shape = shape_of(&plan, execution, self.draft_pools.len());
        self.draft_due = self.now + self.planner.predicted_draft(&self.draft_shape).unwrap_or_default();
        plan.step = self.draft_lane.begin(&mut plan.admit, &mut plan.retire);
        self.draft_pools.iter().for_each(|pool| pool.take_copies(&mut plan.copies));
        plan.partition = execution.partition();
        plan.alternatives = self.pruning.wants_alternatives();
        // Where nothing is prepared, now and then: how often the target's token is one of them is to be known before.
        let overlapped = self.planner.execution() != Execution::Serial;
        plan.candidates = needs.goes_on() && (overlapped || plan.step % RANKS_EVERY == 1);
        Some(plan)
    }

    /// Adds the chunk of one sequence, if it has anything to draft or to catch up with, and rows and blocks for it. Without
    /// blocks the sequence goes on without proposals: speculation never pushes anyone out.
    pub(crate) fn add_draft_chunk(
        &mut self,
        seq: SeqId,
        wish: &Wish,
        (rows_left, long_rows_left): (&mut usize, &mut usize),
        plan: &mut DraftPlan,
    ) {
        let Some(sequence) = self.sequences.get(&seq) else { return };
        let room = self.draft_room(sequence);
        if room == 0 || sequence.draft_out.is_some() {
            return;
        }
        // It would be the first to be evicted again.
        if !sequence.decoding() && sequence.draft.table.free() < KV_SPARE * self.running.len() {
            return;
        }
        let weight = if wish.weighs { sequence.weight(self.now) } else { 1.0 };
        let k = wish.steps(sequence).min(room);
        let catches_up =
            wish.drafts == Drafts::Nothing && sequence.wants_drafts() && self.long_way(sequence) > 0;
        if k == 0 && sequence.decoding() && !catches_up {
            return;
        }
        let needs = self.config.draft.needs();
        let start = sequence.draft.computed;
        // Behind its last features stands the anchor, unless the target's pass that has them is yet to come.
        let known = if needs.hidden_states { sequence.features + 1 } else { sequence.known() };
        let missing = known.min(sequence.known()).saturating_sub(start);
        if missing == 0 || start + missing < sequence.known() {
            return;
        }
        let long = missing > SHORT;
        let most = if long { (*rows_left).min(*long_rows_left) } else { *rows_left };
        // The anchor has no business in a prefill: its row is part of the first draft step.
        // A block stands behind all of them, whole, or in a later plan.
        let k = if needs.block.is_none_or(|block| missing + block.rows <= most) { k } else { 0 };
        let rows = if k > 0 { missing } else { missing - 1 }.min(most);
        // In a single pass each proposal after the first has a row.
        let masked = needs.passes.is_one();
        let most = if masked && needs.block.is_none() { *rows_left - rows + 1 } else { k };
        let mut steps = if rows == missing { k.min(most) } else { 0 };
        if wish.further > 0 && steps > 0 && wish.drafts == Drafts::Wanted {
            // No block is taken from anybody for what may not be drafted in the end.
            let wanted = steps.min(sequence.wanted.saturating_sub(sequence.proposals.len()));
            let covered = start + rows + needs.rows_behind(steps);
            let Some(sequence) = self.sequences.get_mut(&seq) else { return };
            steps = if sequence.draft.table.grow(covered) { steps } else { wanted };
        }
        let behind = needs.rows_behind(steps);
        let covered = start + rows + behind;
        let evicts = matches!(wish.drafts, Drafts::Wanted | Drafts::Nothing) && (steps > 0 || catches_up);
        if rows == 0 || !self.make_draft_room(seq, covered, evicts) {
            return;
        }
        *rows_left -= rows + if masked { behind } else { 0 };
        *long_rows_left -= if long { rows } else { 0 };
        let Some(sequence) = self.sequences.get_mut(&seq) else { return };
        sequence.draft_out = Some(DraftOut { end: start + rows, chunk: plan.chunks.len() });
        self.draft_lane.admit(seq, || sequence.admission());
        plan.chunks.push(DraftChunk {
            seq,
            epoch: sequence.epoch,
            start,
            rows: sequence.append_known(start, rows, &mut plan.tokens),
            steps,
            stop: StopRule {
                acceptance: sequence.acceptance_table(&wish.table),
                survival: wish.survival(sequence),
                below: wish.floor(weight),
                next: weight * sequence.levels[Source::Draft].typical(),
            },
            rank: sequence.draft.table.rank(),
            table: sequence.draft.table.append_ids(covered, &mut plan.blocks),
            features: match needs.hidden_states {
                true => sequence.target.table.append_ids(start + rows, &mut plan.features),
                false => 0..0,
            },
            outcome: false,
        });
    }

    /// Makes room in the draft's pool; for who drafts now at the cost of those that are not to, if that is enough.
    fn make_draft_room(&mut self, seq: SeqId, tokens: usize, drafts: bool) -> bool {
        let Some(sequence) = self.sequences.get_mut(&seq) else { return false };
        if sequence.draft.table.grow(tokens) {
            return true;
        }
        let missing = sequence.draft.table.missing(tokens) - sequence.draft.table.free();
        if !drafts || self.idle_draft_blocks(seq) < missing {
            return false;
        }
        while self.evict_idle_draft(seq) {
            if self.sequences.get_mut(&seq).is_some_and(|sequence| sequence.draft.table.grow(tokens)) {
                return true;
            }
        }
        false
    }

    /// What catching up took of a plan that a round waited for, of this shape and so many seconds, is settled with the tokens that it is for.
    fn invest(&mut self, plan: &DraftPlan, shape: &PassShape, believed_s: f64) {
        // Rows that were accepted since the last plan are no catching up, though drafts that keep no proposals have some in each.
        let beyond = |chunk: &DraftChunk| match chunk.rows.len() {
            rows if rows > SHORT => rows - ROUND_ROWS,
            _ => 0,
        };
        let rows: usize = plan.chunks.iter().map(beyond).sum();
        if rows == 0 || plan.partition != Execution::Serial.partition() {
            return;
        }
        let needs = self.config.draft.needs();
        let masks =
            |chunk: &DraftChunk| if plan.passes.is_one() { needs.rows_behind(chunk.steps) } else { 0 };
        let all: usize = plan.chunks.iter().map(|chunk| chunk.rows.len() + masks(chunk)).sum();
        let part = rows as f64 / all as f64;
        let each_s = self.planner.invests(shape, part, believed_s) / rows as f64;
        for chunk in &plan.chunks {
            let Some(to_come) = self.sequences.get(&chunk.seq).map(|sequence| self.to_come(sequence)) else {
                self.planner.returns(each_s * beyond(chunk) as f64);
                continue;
            };
            if let Some(sequence) = self.sequences.get_mut(&chunk.seq) {
                sequence.investment.add(each_s * beyond(chunk) as f64, to_come);
            }
        }
    }

    /// Takes in the proposals of a finished plan.
    pub(crate) fn drafted(&mut self, plan: DraftPlan) {
        if !self.draft_lane.finish(plan.step) {
            return;
        }
        let outcome = &plan.outcome;
        if !outcome.proposals.is_empty() {
            self.planner.drafted();
        }
        if outcome.proposals.iter().any(|drafted| !drafted.candidates.is_empty()) {
            self.ranks.told();
        }
        self.totals.draft_passes += 1;
        self.totals.draft_time += outcome.took;
        // The lane may have stopped early: what was timed is what came back.
        let (steps, drafted) = outcome.steps();
        let masked = plan.passes.is_one();
        let run = if masked { self.draft_shape.steps } else { steps };
        let shape = PassShape { steps: run, ..self.draft_shape };
        let beside = self.beside_drafts && self.verify_lane.busy();
        let teaches = !self.planner.is_cold(LaneKind::Draft, outcome.cold) && !beside;
        let believed_s = self.planner.waited_for_drafts(&shape, outcome.took, teaches);
        self.invest(&plan, &shape, believed_s);
        let PassShape { sequences, .. } = self.draft_shape;
        let keeps_proposals = self.config.draft.needs().keeps_proposals;
        // Where rows are masks, those of a few proposals do not look like many that catch up.
        let caught_up: usize = plan.chunks.iter().map(|chunk| chunk.rows.len()).sum();
        if teaches && caught_up > 3 * sequences {
            let steps = if masked { 1 } else { steps };
            self.planner.timed_catch_up(&PassShape { steps, ..self.draft_shape }, outcome.took);
        }
        if masked {
            // Rows that catch up have no logits.
            if teaches && caught_up <= 3 * sequences {
                self.planner.timed_draft(&self.draft_shape, outcome.took);
            }
        } else if teaches && steps > 0 {
            // Of those that were planned so many drafted in the mean of the steps, on the fullest rank as elsewhere.
            let planned = plan.chunks.len().max(1);
            let sequences = (drafted * sequences).div_ceil(steps * planned);
            let context = self.draft_shape.reach.kv * sequences / self.draft_shape.sequences.max(1);
            let rows = self.draft_shape.reach.rows * sequences / self.draft_shape.sequences.max(1);
            let reach = Reach { kv: context, rows };
            let shape = PassShape { steps, sequences, reach, ..self.draft_shape };
            self.planner.timed_draft(&shape, outcome.took);
        }
        let table = self.calibrations[Source::Draft].table();
        let mut proposals = outcome.proposals.as_slice();
        for (place, (chunk, &count)) in plan.chunks.iter().zip(&outcome.counts).enumerate() {
            let (own, rest) = proposals.split_at(count.min(proposals.len()));
            proposals = rest;
            let sequence = self.sequences.get_mut(&chunk.seq);
            let taken_in = sequence.and_then(|sequence| {
                Some((sequence.drafted(place, own, keeps_proposals, &table)?, sequence.draws))
            });
            match taken_in {
                Some((hit, draws)) => {
                    self.totals.outcome_hits += u64::from(hit);
                    self.totals.outcome_hits_drawn += u64::from(hit && draws);
                }
                None => {
                    self.totals.late_drafts += own.len() as u64;
                    self.totals.draft_steps_cancelled += (chunk.steps - own.len().min(chunk.steps)) as u64;
                }
            }
        }
        self.spent.0 = plan;
    }
}

/// What the chunks of a draft plan draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drafts {
    /// What the round wants.
    Wanted,
    /// Nothing: those that are far behind catch up.
    Nothing,
    /// Under a verify pass: a step past the frontier, once.
    PastFrontiers,
    /// Under a verify pass: so many steps behind what there is, for the outcome that all of it is accepted.
    Behind(usize),
}

/// What a draft plan goes by.
pub(crate) struct Wish {
    pub(crate) drafts: Drafts,
    keeps_proposals: bool,
    break_even_survival: f32,
    /// Steps beyond those that are wanted, to be taken as long as they pay.
    further: usize,
    /// Tokens count by what their sequence's latency targets make of them.
    weighs: bool,
    table: AcceptanceTable,
}

impl Wish {
    /// Draft steps to ask for now.
    fn steps(&self, sequence: &Sequence) -> usize {
        match self.drafts {
            Drafts::Nothing => 0,
            Drafts::Wanted if sequence.asked => 0,
            Drafts::Wanted => {
                let there = sequence.proposals.len();
                let further = if sequence.wanted > there { self.further } else { 0 };
                (sequence.wanted + further).min(sequence.useful_proposals()).saturating_sub(there)
            }
            Drafts::PastFrontiers => {
                let sent = sequence.verify_out.map_or(0, |out| out.proposals);
                let there = sequence.proposals.len() > sent;
                // A branch begins with the KV of the proposals before it.
                let kv = self.keeps_proposals || sequence.draft.computed >= sequence.tokens.len() + sent;
                sequence.room_ahead().min(usize::from(!there || !kv))
            }
            Drafts::Behind(steps) => steps.min(sequence.room_ahead()),
        }
    }

    /// Rows to catch up with at most.
    fn rows<'a>(&self, sequences: impl Iterator<Item = &'a Sequence>, most: usize) -> usize {
        match self.drafts {
            Drafts::Wanted | Drafts::Nothing => most,
            Drafts::PastFrontiers | Drafts::Behind(_) => {
                let sent = |sequence: &Sequence| sequence.verify_out.map_or(0, |out| out.proposals);
                let sent = if self.keeps_proposals { 0 } else { sequences.map(sent).sum() };
                most.min(ROWS_AHEAD + sent)
            }
        }
    }

    /// Survival of what stands before the first that is drafted.
    fn survival(&self, sequence: &Sequence) -> f32 {
        match self.drafts {
            Drafts::Wanted | Drafts::Nothing | Drafts::PastFrontiers => sequence.survival(),
            // That it is accepted is what is prepared for.
            Drafts::Behind(_) => 1.0,
        }
    }

    /// Survival below which nothing further is drafted, for a sequence whose tokens count so many times.
    fn floor(&self, weight: f32) -> f32 {
        self.break_even_survival / weight
    }

    /// The rule by which drafting for an outcome ends.
    pub(crate) fn stop_of_outcome(&self, sequence: &Sequence) -> StopRule {
        let below = self.floor(1.0);
        StopRule { acceptance: sequence.acceptance_table(&self.table), survival: 1.0, below, next: 1.0 }
    }
}

/// The shape of a plan whose chunks are divided among so many ranks: as if each had what the fullest has.
fn shape_of(plan: &DraftPlan, execution: Execution, ranks: usize) -> PassShape {
    let rows_of_steps = |shape: &PassShape| shape.rows + shape.steps.saturating_sub(1) * shape.sequences;
    let fullest = (0..ranks).map(|rank| part_of(plan, rank)).max_by_key(rows_of_steps).unwrap_or_default();
    PassShape {
        partition: execution.partition(),
        rows: fullest.rows * ranks,
        reach: Reach { kv: fullest.reach.kv * ranks, rows: fullest.reach.rows * ranks },
        sequences: fullest.sequences * ranks,
        ..fullest
    }
}

/// What a rank has of it.
fn part_of(plan: &DraftPlan, rank: usize) -> PassShape {
    let mut shape = PassShape::default();
    for DraftChunk { start, rows, steps, .. } in plan.chunks.iter().filter(|chunk| chunk.rank == rank) {
        let known = rows.len();
        shape.sequences += 1;
        match plan.passes {
            // All in a pass, as rows of a verify chunk.
            RoundPasses::One => {
                let rows = known + plan.rows_behind(*steps);
                shape.rows += rows;
                shape.reach.kv += start + rows;
                shape.reach.rows += rows * (start + rows / 2);
                shape.steps = 1;
            }
            _ => {
                shape.rows += known;
                shape.reach.kv += start + known;
                shape.reach.rows += Reach::last(known, start + known).rows;
                shape.steps = shape.steps.max(*steps);
            }
        }
    }
    shape
}
