//! The engine: one `handle`, which takes an event and says what to do next.
//!
//! Plans for the two lanes leave independently. Where a sequence stands is its own affair (`sequence.rs` draws it); what is decided here is when a pass
//! leaves, whenever the verify lane is free:
//!
//! ```text
//!   the draft lane is idle   sequences whose verdict came since they were asked are asked now: those that want proposals, at the
//!                            price of everybody's waiting, are drafted for, and the pass waits; if none does it leaves
//!   it drafts what they want the pass waits
//!   it still prepares for    the pass waits if somebody wants what comes, and it comes sooner than it could be drafted anew;
//!   verdicts that have come  else it leaves, and who has nothing yet rides with its anchor
//! ```
//! A pass takes everybody who can be verified: with proposals, or with the anchor alone, which costs a row and brings a token. While it
//! runs, the draft lane may prepare for its verdicts, on its part of a partition: see `outcomes.rs`. Then the next round finds some or all of its
//! proposals ready. Whether it does is decided anew for every pass.

use std::collections::VecDeque;
use std::time::Duration;

use rustc_hash::FxHashMap;

use crate::api::{Command, Event, FinishReason, Refusal};
use crate::blocks::{BlockPool, KvEvent};
use crate::branch::{Branch, Spent};
use crate::config::{EngineConfig, EngineError, Tuning};
use crate::cost::{PartitionCosts, PassCost};
use crate::lane_book::LaneBook;
use crate::lookup::Lookup;
use crate::output_length::OutputLength;
use crate::plan::{CancelledChunk, DraftPlan, LaneKind, VerifyPlan};
use crate::planner::{Candidate, Execution, Odds, PassShape, Planner, Prefill};
use crate::portfolio::{Path, Worth};
use crate::pruning::{Prospect, Pruning};
use crate::request::{Handling, Request, SeqId, SpeculationMode, TokenId};
use crate::sequence::Sequence;
use crate::source::DraftSource;
use crate::suffix::PastOutputs;
use crate::survival::{Calibration, Learned, PerSource, Ranks, Source};
use crate::view::{CalibrationView, EpochMove, LoadView, RequestState, RequestView, Totals};

/// Buffers of planning, kept from round to round.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    pub(crate) candidates: Vec<Candidate>,
    /// Verdicts of a pass that could be prepared for, and what that would be.
    pub(crate) odds: Vec<Odds>,
    pub(crate) branches: Vec<Branch>,
    pub(crate) lengths: Vec<usize>,
    /// What sequences take of what they are offered, by two prices, and whether they try the draft.
    pub(crate) paths: Vec<(SeqId, [Path; 2], bool)>,
    pub(crate) prospects: Vec<Prospect>,
    /// Rows of a pass that proposals may take, and that prefill takes.
    pub(crate) rows: (usize, Prefill),
    /// Sequences to go through while others may be preempted.
    pub(crate) ids: Vec<SeqId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Device {
    Up,
    /// Lost, to be rebuilt.
    Away,
    GivenUp,
}

/// All decisions of one replica. Deterministic: the same events in the same order bring the same commands.
#[derive(Debug)]
pub struct Engine {
    pub(crate) config: EngineConfig,
    pub(crate) tuning: Tuning,
    pub(crate) planner: Planner,
    pub(crate) sequences: FxHashMap<SeqId, Sequence>,
    /// Sequences that hold target KV, the longest admitted first.
    pub(crate) running: Vec<SeqId>,
    /// Sequences that hold nothing, the next to be admitted first.
    pub(crate) waiting: VecDeque<SeqId>,
    pub(crate) target_pool: BlockPool,
    /// One for each rank that has the draft whole.
    pub(crate) draft_pools: Vec<BlockPool>,
    pub(crate) draft_lane: LaneBook,
    pub(crate) verify_lane: LaneBook,
    pub(crate) calibrations: PerSource<Calibration>,
    /// How paths of one source turned out.
    pub(crate) worth: PerSource<Worth>,
    pub(crate) totals: Totals,
    /// Where the target's token stands among the draft's candidates.
    pub(crate) ranks: Ranks,
    /// Outcomes that are over.
    pub(crate) outcomes: Spent,
    /// Outcomes of the pass that is out have been planned.
    pub(crate) prepared: bool,
    /// When the plans that are out are expected to end.
    pub(crate) verify_due: Duration,
    pub(crate) draft_due: Duration,
    /// Tokens that outputs have.
    pub(crate) output_length: OutputLength,
    /// Rows of draft plans of this round that only caught up.
    pub(crate) caught_up: usize,
    /// Draft plans while somebody had far to catch up, if costs decide.
    pub(crate) long_plans: u64,
    /// Sequences in the order in which they draft: what puts them there, their place among those that run, and who. Kept for its buffer.
    pub(crate) draft_order: Vec<(f32, usize, SeqId)>,
    /// The plans that are out, as the cost tables see them.
    pub(crate) draft_shape: PassShape,
    pub(crate) verify_shape: PassShape,
    /// The pass that is out has the whole device but for what the draft lane still does: no table says what either takes. On two devices one does.
    pub(crate) beside_drafts: bool,
    /// Rows of prompts that gave way to the proposals of the pass that is out.
    pub(crate) gave_way: usize,
    pub(crate) pruning: Pruning,
    /// Past outputs to be proposed from, if any are kept.
    pub(crate) past: Option<PastOutputs>,
    pub(crate) scratch: Scratch,
    /// Plans that came back, to be used again.
    pub(crate) spent: (DraftPlan, VerifyPlan),
    /// Chunks that were cancelled since the event came.
    pub(crate) cancelled_chunks: Vec<CancelledChunk>,
    /// Epochs that ended since the event came.
    pub(crate) moves: Vec<EpochMove>,
    pub(crate) now: Duration,
    device: Device,
}

impl Engine {
    /// An engine with empty pools and a device that is ready.
    ///
    /// # Errors
    /// A bound or a size in `config` that cannot be honoured.
    pub fn new(config: EngineConfig) -> Result<Engine, EngineError> {
        config.validate()?;
        let (target_pool, draft_pools) = pools(&config);
        Ok(Engine {
            planner: Planner::new(
                &config.deciding(&config.tuning),
                config.partitions.clone(),
                config.max_pass_rows,
                (config.draft.needs(), config.speculation.draft_copies),
            ),
            tuning: config.tuning.clone(),
            sequences: FxHashMap::default(),
            running: Vec::new(),
            waiting: VecDeque::new(),
            target_pool,
            draft_pools,
            draft_lane: LaneBook::default(),
            verify_lane: LaneBook::default(),
            calibrations: PerSource::begun_with(&config.learned),
            worth: PerSource::default(),
            totals: Totals::default(),
            ranks: Ranks::default(),
            outcomes: Spent::default(),
            prepared: false,
            verify_due: Duration::ZERO,
            draft_due: Duration::ZERO,
            output_length: OutputLength::default(),
            caught_up: 0,
            long_plans: 0,
            draft_order: Vec::new(),
            draft_shape: PassShape::default(),
            verify_shape: PassShape::default(),
            beside_drafts: false,
            gave_way: 0,
            pruning: Pruning::new(
                config.target_layers,
                config.tuning.mechanisms.prune && config.tuning.policy.traits().prunes,
            ),
            past: PastOutputs::new(config.speculation.suffix_bytes),
            scratch: Scratch::default(),
            spent: plans(&config),
            cancelled_chunks: Vec::new(),
            moves: Vec::with_capacity(config.tuning.max_running),
            now: Duration::ZERO,
            device: Device::Up,
            config,
        })
    }

    /// Takes one event; appends what is to be done to `out`, in order. `now` is time since any fixed moment.
    pub fn handle(&mut self, now: Duration, event: Event, out: &mut Vec<Command>) {
        self.now = now;
        self.moves.clear();
        match event {
            Event::Submit(request) => self.submit(request, out),
            Event::Cancel(seq) => self.cancel(seq, out),
            Event::DraftDone(plan) => self.drafted(plan),
            Event::VerifyDone(plan) => self.verified(plan, out),
            Event::DeviceLost => self.device_lost(LaneKind::Verify, out),
            Event::DraftLost => self.device_lost(LaneKind::Draft, out),
            Event::DraftRetired => self.draft_retired(out),
            Event::DeviceReady => self.device = Device::Up,
            Event::Tune(tuning) => self.tune(tuning),
            Event::Profiled(partitions) => self.profiled(partitions),
            Event::ForgetOutputs => self.forget_outputs(),
            Event::DeviceGivenUp => self.device_given_up(out),
        }
        self.advance(out);
        out.extend(self.cancelled_chunks.drain(..).map(Command::CancelChunk));
        if !self.draft_lane.busy() && !self.verify_lane.busy() {
            self.planner.idle();
        }
        if self.idle() {
            self.assert_pools_whole();
        }
        if cfg!(debug_assertions) {
            self.check();
        }
    }

    /// Does what can wait until the commands of [`Engine::handle`] have been carried out. Whoever does not call it finds it done by the next rounds.
    pub fn tidy_up(&mut self) {
        for seq in &self.running {
            if let Some(sequence) = self.sequences.get_mut(seq) {
                sequence.keep_grams();
            }
        }
    }

    /// Looks that every sequence stands where the lanes' plans say, and that nobody is held up: where somebody runs, a lane works.
    fn check(&self) {
        let check = |seq, waits| self.sequences[seq].check(waits, &self.draft_lane, &self.verify_lane);
        self.running.iter().for_each(|seq| check(seq, false));
        self.waiting.iter().for_each(|seq| check(seq, true));
        let works = self.draft_lane.busy() || self.verify_lane.busy();
        assert!(self.running.is_empty() || works, "{} sequences run, and no lane works", self.running.len());
    }

    /// What it was built from; of its partitions the latest costs that it was told, not what it has learned since.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// What stands.
    pub fn tuning(&self) -> &Tuning {
        &self.tuning
    }

    /// Takes over a tuning. One that this engine cannot have changes nothing: whoever sends it asks [`EngineConfig::tunable`] first.
    pub(crate) fn tune(&mut self, tuning: Tuning) {
        if self.config.tunable(&tuning).is_err() {
            return;
        }
        self.planner.tune(&self.config.deciding(&tuning));
        self.pruning.want(tuning.mechanisms.prune && tuning.policy.traits().prunes);
        self.tuning = tuning;
        self.limit_k();
    }

    fn limit_k(&mut self) {
        let limit = self.k_limit();
        self.sequences.values_mut().for_each(|sequence| sequence.limit_k(limit));
    }

    /// Takes over what passes cost, measured anew: as many partitions as before, or the first.
    pub(crate) fn profiled(&mut self, partitions: Vec<PartitionCosts>) {
        let known = self.config.partitions.len();
        if partitions.is_empty() || known > 0 && known != partitions.len() {
            return;
        }
        self.planner.profiled(&partitions);
        self.config.partitions = partitions;
    }

    /// Whether there can be proposals of the only kind that a request lets come.
    ///
    /// # Errors
    /// Why not.
    pub fn proposes(&self, mode: SpeculationMode) -> Result<(), Refusal> {
        let Tuning { policy, mechanisms, .. } = &self.tuning;
        let why = match mode {
            SpeculationMode::Draft if self.config.draft.is_retired() => {
                "the draft is retired until the server is restarted, because its device is lost"
            }
            SpeculationMode::Draft if !self.config.draft.drafts() => {
                "there is no draft model here (`model.draft: none`)"
            }
            SpeculationMode::Draft if !policy.traits().drafts => {
                "nothing is drafted here (`speculation.policy: off`)"
            }
            SpeculationMode::Lookup if !mechanisms.lookup => {
                "prompt-lookup is off here (`speculation.lookup: false`)"
            }
            SpeculationMode::Lookup if !policy.traits().lookup => {
                "prompt-lookup is off here (`speculation.policy` is neither `budget` nor `faser`)"
            }
            SpeculationMode::Suffix if self.past.is_none() => {
                "no past outputs are kept here (`speculation.suffix_memory` is not set)"
            }
            SpeculationMode::Suffix if !policy.traits().lookup => {
                "nothing is proposed from past outputs here (`speculation.policy` is neither `budget` nor `faser`)"
            }
            _ => return Ok(()),
        };
        Err(Refusal::Mode { mode, why })
    }

    /// The most proposals that any sequence may have now.
    pub(crate) fn k_limit(&self) -> usize {
        let proposes = self.config.draft.drafts() || self.looks_up() || self.recalls();
        if proposes { self.tuning.k_cap().min(self.config.speculation.room) } else { 0 }
    }

    /// Gauges of this moment and totals since the start.
    pub fn view(&self) -> LoadView {
        LoadView {
            running: self.running.len(),
            waiting: self.waiting.len(),
            partition: self.planner.execution().partition().0,
            target_pool: self.target_pool.view(),
            draft_pool: self.draft_pools.iter().map(BlockPool::view).sum(),
            calibration: CalibrationView::new(self.calibrations[Source::Draft].quality()),
            steering: self.planner.steering(),
            suffix: self.past.as_ref().map(PastOutputs::view).unwrap_or_default(),
            totals: self.totals.clone(),
        }
    }

    /// What was learned up to now, for another engine of the same pair to begin with.
    pub fn learned(&self) -> Learned {
        self.calibrations.learned()
    }

    /// The oldest requests, `most` of them, the oldest first; of those that wait, the next ones to be admitted. `now` as in `handle`.
    pub fn requests(&self, now: Duration, most: usize) -> Vec<RequestView> {
        let state = |seq| match self.sequences.get(seq) {
            Some(sequence) if sequence.decoding() => RequestState::Decode,
            _ => RequestState::Prefill,
        };
        let running = self.running.iter().map(|seq| (seq, state(seq)));
        let waiting = self.waiting.iter().take(most).map(|seq| (seq, RequestState::Waiting));
        let view = |(seq, state)| Some(self.sequences.get(seq)?.view(state, now));
        let mut requests: Vec<RequestView> = running.chain(waiting).filter_map(view).collect();
        requests.sort_by(|a, b| b.age.cmp(&a.age).then(a.seq.cmp(&b.seq)));
        requests.truncate(most);
        requests
    }

    /// Leading tokens of `prompt` whose target KV is cached under this salt, as an admission now would find it.
    pub fn cached_tokens(&self, prompt: &[TokenId], salt: u128) -> usize {
        self.target_pool.cached_tokens(prompt, salt)
    }

    /// From now on [`Engine::take_kv_events`] has something: to begin with, all that is cached.
    pub fn tell_kv_events(&self) {
        self.target_pool.tell();
    }

    /// Has all that is cached told anew, behind [`KvEvent::Cleared`]: for whoever missed something.
    pub fn tell_kv_events_again(&self) {
        self.target_pool.tell_again();
    }

    /// Appends what has changed, since the last call, in the target KV that requests without a salt find cached.
    pub fn take_kv_events(&self, out: &mut Vec<KvEvent>) {
        self.target_pool.take_events(out);
    }

    /// Epochs that the last event ended, in order.
    pub fn epoch_moves(&self) -> &[EpochMove] {
        &self.moves
    }

    /// What the cost tables say of the plan that left last on a lane; none if there are no tables.
    pub fn predicted(&self, lane: LaneKind) -> Option<Duration> {
        match lane {
            LaneKind::Draft => self.planner.predicted_draft(&self.draft_shape),
            LaneKind::Verify => self.planner.predicted_verify(&self.verify_shape),
        }
    }

    /// No sequence is there and no plan is out. Both pools are whole then, whatever happened before.
    pub fn idle(&self) -> bool {
        self.sequences.is_empty() && !self.draft_lane.busy() && !self.verify_lane.busy()
    }

    /// Checked in every build whenever the engine falls idle: a leak would starve a server slowly and in silence.
    fn assert_pools_whole(&self) {
        let (target, draft) = (self.target_pool.view(), &self.draft_pools);
        let whole = target.whole() && draft.iter().all(|pool| pool.view().whole());
        assert!(
            whole,
            "KV blocks leaked: target {target:?}, draft {:?}",
            draft.iter().map(BlockPool::view).collect::<Vec<_>>()
        );
    }

    fn submit(&mut self, mut request: Request, out: &mut Vec<Command>) {
        let seq = request.seq;
        let Handling { slo, mode, .. } = &mut request.handling;
        slo.ttft = slo.ttft.or(self.tuning.slo.ttft);
        slo.tpot = slo.tpot.or(self.tuning.slo.tpot);
        let looks_up = self.looks_up() && mode.looks_up();
        if let Err(why) = self.admissible(&request) {
            self.totals.refused += 1;
            out.push(Command::Reject { seq, why });
            return;
        }
        self.totals.submitted += 1;
        let lookup = looks_up
            .then(|| Lookup::new(request.prediction.clone(), request.prompt.len(), request.max_new_tokens));
        let pools = (&self.target_pool, &self.draft_pools[0]);
        let sequence = Sequence::new(request, self.k_limit(), lookup, pools, self.now);
        self.sequences.insert(seq, sequence);
        self.enqueue(seq);
    }

    fn admissible(&self, request: &Request) -> Result<(), Refusal> {
        if self.device == Device::GivenUp {
            return Err(Refusal::NoDevice);
        }
        if self.sequences.contains_key(&request.seq) {
            return Err(Refusal::DuplicateId(request.seq.0));
        }
        let (waiting, capacity) = (self.waiting.len(), self.tuning.max_waiting);
        if waiting >= capacity {
            return Err(Refusal::QueueFull { waiting, capacity });
        }
        let (prompt_tokens, max_new_tokens) = (request.prompt.len(), request.max_new_tokens);
        let max_context = self.config.max_context;
        if prompt_tokens == 0 {
            return Err(Refusal::EmptyPrompt);
        }
        if max_new_tokens == 0 {
            return Err(Refusal::NothingToGenerate);
        }
        if prompt_tokens.saturating_add(max_new_tokens) > max_context {
            return Err(Refusal::TooLong { prompt_tokens, max_new_tokens, max_context });
        }
        if request.output.is_empty() {
            // One that goes on here does so whatever it was promised elsewhere.
            self.proposes(request.handling.mode)?;
        }
        if request.output.len() >= max_new_tokens { Err(Refusal::NothingToGenerate) } else { Ok(()) }
    }

    fn cancel(&mut self, seq: SeqId, out: &mut Vec<Command>) {
        if let Some(sequence) = self.sequences.get(&seq) {
            self.totals.cancelled += 1;
            // Who waited in vain says nothing of outputs.
            if sequence.usage.output_tokens > 0 {
                self.output_length.ended(true);
            }
            self.finish(seq, FinishReason::Cancelled, out);
        }
    }

    /// Forgets past outputs, and keeps none of what is under way: who asks for that may mean what is being said.
    fn forget_outputs(&mut self) {
        self.past.iter_mut().for_each(PastOutputs::clear);
        self.sequences.values_mut().for_each(Sequence::keep_nothing);
    }

    /// Drops a sequence. Its blocks are free at once, even under a plan that is out: each pool belongs to one lane,
    /// and whoever gets the blocks next writes them later on that same lane.
    pub(crate) fn finish(&mut self, seq: SeqId, reason: FinishReason, out: &mut Vec<Command>) {
        let Some(mut sequence) = self.sequences.remove(&seq) else { return };
        self.cancelled_chunks.extend(sequence.chunks_out(&self.draft_lane, &self.verify_lane));
        sequence.end_outcomes(&mut self.outcomes);
        self.outcomes.cancelled.clear();
        if let Some(past) = &mut self.past {
            sequence.keep_in(past);
        }
        sequence.leave();
        self.planner.returns(sequence.investment.write_off());
        self.running.retain(|&id| id != seq);
        self.waiting.retain(|&id| id != seq);
        self.draft_lane.retire(seq);
        self.verify_lane.retire(seq);
        out.push(Command::Finish { seq, reason, usage: sequence.usage });
    }

    /// The device is gone, by the fault of a lane: that of a draft on a device of its own ends no sequence.
    fn device_lost(&mut self, fault: LaneKind, out: &mut Vec<Command>) {
        self.device = Device::Away;
        self.cancelled_chunks.clear();
        self.outcomes.forget();
        self.draft_lane.forget();
        self.verify_lane.forget();
        while let Some(&youngest) = self.running.last() {
            self.preempt(youngest);
            let Some(sequence) = self.sequences.get_mut(&youngest) else { continue };
            if !sequence.survives_loss(fault) {
                self.totals.failed += 1;
                self.finish(youngest, FinishReason::DeviceFailed, out);
            }
        }
        // Cached prefixes are gone with the memory, and so are copies that nobody has been told of.
        let (target, drafts) = pools(&self.config);
        (self.target_pool, self.draft_pools) = (target.tell_after(&self.target_pool), drafts);
        let pools = (&self.target_pool, &self.draft_pools[0]);
        for sequence in self.sequences.values_mut() {
            sequence.evict(pools);
        }
    }

    /// From now on it is an engine without a draft, and all that its draft had is gone.
    fn draft_retired(&mut self, out: &mut Vec<Command>) {
        if self.device == Device::GivenUp {
            return;
        }
        self.config.draft = DraftSource::Retired;
        self.config.partitions.iter_mut().for_each(|costs| costs.draft = PassCost::nothing());
        // Pools are made anew, by that source, and so is what sequences hold of them.
        self.device_lost(LaneKind::Draft, out);
        self.planner.without_drafts(self.config.draft.needs());
        self.planner.tune(&self.config.deciding(&self.tuning));
        self.limit_k();
    }

    fn device_given_up(&mut self, out: &mut Vec<Command>) {
        self.device_lost(LaneKind::Verify, out);
        self.device = Device::GivenUp;
        while let Some(&seq) = self.waiting.front() {
            self.totals.failed += 1;
            self.finish(seq, FinishReason::DeviceFailed, out);
        }
    }

    /// Sends the next plans to the lanes that are free for them.
    fn advance(&mut self, out: &mut Vec<Command>) {
        if self.device != Device::Up {
            return;
        }
        if self.verify_lane.busy() {
            return self.draft_ahead(out);
        }
        let drafting = self.draft_lane.busy();
        if drafting && self.draft_shape.partition == Execution::Serial.partition() {
            // It was planned for the pass that is to leave.
            return;
        }
        let asks = self.running.is_empty() || self.running.iter().any(|seq| !self.sequences[seq].asked);
        self.admit_waiting();
        if asks {
            self.plan_round();
            if drafting && self.worth_waiting_for() {
                return;
            }
            let plan = if drafting { None } else { self.plan_draft(Execution::Serial) };
            if let Some(plan) = plan {
                if self.caught_up == 0 {
                    self.ask_all();
                }
                return out.push(Command::Draft(plan));
            }
        }
        // Who came while others' drafts were made is in their pass already.
        self.ask_all();
        out.extend(self.plan_verify().map(Command::Verify));
        self.draft_ahead(out);
    }

    /// Everybody has been asked what to draft.
    fn ask_all(&mut self) {
        for seq in &self.running {
            if let Some(sequence) = self.sequences.get_mut(seq) {
                sequence.asked = true;
            }
        }
    }

    /// Is what the draft lane still prepares, for verdicts that have come, wanted by anybody, and there sooner than it could be drafted anew?
    fn worth_waiting_for(&self) -> bool {
        let running = self.running.iter().filter_map(|seq| self.sequences.get(seq));
        let missing = |sequence: &Sequence| sequence.wanted.saturating_sub(sequence.proposals.len());
        let wanting = running.filter(|sequence| sequence.wants_drafts());
        let (sequences, steps) =
            wanting.fold((0, 0), |(n, steps), sequence| (n + 1, missing(sequence).max(steps)));
        let anew = PassShape { rows: sequences, sequences, steps, ..PassShape::default() };
        // What is late is expected to be so late again.
        let comes = self.draft_due.abs_diff(self.now);
        sequences > 0 && self.planner.predicted_draft(&anew).is_none_or(|anew| comes <= anew)
    }

    /// Has the draft lane prepare for the verdicts of the pass that is out, if that was decided on.
    fn draft_ahead(&mut self, out: &mut Vec<Command>) {
        let execution = self.planner.execution();
        if execution != Execution::Serial && self.verify_lane.busy() && !self.draft_lane.busy() {
            out.extend(self.prepare(execution).map(Command::Draft));
        }
    }
}

/// Empty plans, with room for the largest.
fn plans(config: &EngineConfig) -> (DraftPlan, VerifyPlan) {
    let (rows, chunks) = (config.max_pass_rows, config.draft_chunks());
    let proposals = chunks * config.speculation.room;
    let draft = DraftPlan {
        copies: Vec::with_capacity(chunks),
        chunks: Vec::with_capacity(chunks),
        tokens: Vec::with_capacity(rows),
        blocks: Vec::with_capacity(config.draft.needs().blocks * config.speculation.draft_copies),
        features: Vec::with_capacity(if config.draft.needs().hidden_states {
            config.target_blocks
        } else {
            0
        }),
        ..DraftPlan::default()
    };
    let verify = VerifyPlan {
        copies: Vec::with_capacity(chunks),
        chunks: Vec::with_capacity(chunks),
        tokens: Vec::with_capacity(rows),
        blocks: Vec::with_capacity(config.target_blocks),
        tests: Vec::with_capacity(proposals.min(rows)),
        ..VerifyPlan::default()
    };
    (draft, verify)
}

fn pools(config: &EngineConfig) -> (BlockPool, Vec<BlockPool>) {
    let pool = |blocks| BlockPool::new(blocks, config.block_size, config.prefix_cache);
    let of_draft = |rank| pool(config.draft.needs().blocks).of_rank(rank);
    (pool(config.target_blocks), (0..config.speculation.draft_copies).map(of_draft).collect())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::SpeculationBounds;
    use crate::plan::{Drafted, Verdict};
    use crate::policy::{Mechanisms, Policy};
    use crate::request::K_LIMIT;

    fn config() -> EngineConfig {
        EngineConfig {
            block_size: 4,
            target_blocks: 64,
            draft: DraftSource::model(64),
            max_pass_rows: 32,
            max_context: 64,
            partitions: Vec::new(),
            target_layers: 4,
            deterministic: false,
            speculation: SpeculationBounds { room: 4, ..SpeculationBounds::default() },
            prefix_cache: true,
            learned: Learned::default(),
            tuning: Tuning {
                max_running: 4,
                max_waiting: 3,
                policy: Policy::Fixed { k: 2 },
                ..Tuning::default()
            },
        }
    }

    fn request(seq: u64, k_max: Option<usize>) -> Event {
        let handling = Handling { k_max, ..Handling::default() };
        Event::Submit(Request { handling, ..Request::new(SeqId(seq), [1, 2, 3], 8) })
    }

    fn tell(engine: &mut Engine, event: Event) -> Vec<Command> {
        let mut commands = Vec::new();
        engine.handle(Duration::ZERO, event, &mut commands);
        commands
    }

    #[test]
    fn what_needs_other_lanes_or_costs_is_refused_and_changes_nothing() {
        let config = config();
        let tuning = config.tuning.clone();
        let mut engine = Engine::new(config.clone()).expect("a valid config");
        for wrong in [
            Tuning { max_running: 5, ..tuning.clone() },
            Tuning { max_running: 0, ..tuning.clone() },
            Tuning { policy: Policy::Fixed { k: 5 }, ..tuning.clone() },
            Tuning { policy: Policy::Budget, k_max: Some(3), ..tuning.clone() },
            Tuning { policy: Policy::Faser, partition: Some(1), ..tuning.clone() },
            Tuning { partition: Some(0), ..tuning.clone() },
            Tuning { max_prefill_rows: Some(0), ..tuning.clone() },
            Tuning { k_max: Some(K_LIMIT + 1), ..tuning.clone() },
        ] {
            assert!(config.tunable(&wrong).is_err(), "{wrong:?}");
            tell(&mut engine, Event::Tune(wrong));
            assert_eq!(*engine.tuning(), tuning);
        }
        // With a cap that there is room for, the same policy can be had.
        assert_eq!(
            config.tunable(&Tuning { policy: Policy::Fixed { k: 5 }, k_max: Some(4), ..tuning }),
            Ok(())
        );
        let without_draft = EngineConfig { draft: DraftSource::Lookup, ..config };
        let off = Tuning { policy: Policy::Off, ..without_draft.tuning.clone() };
        assert!(without_draft.tunable(&without_draft.tuning.clone()).is_err());
        assert_eq!(without_draft.tunable(&off), Ok(()));
    }

    #[test]
    fn a_shorter_queue_refuses_the_next_and_nobody_who_waits() {
        let mut engine = Engine::new(config()).expect("a valid config");
        // Without a device everybody waits.
        tell(&mut engine, Event::DeviceLost);
        (1..=3).for_each(|seq| assert!(tell(&mut engine, request(seq, None)).is_empty()));
        let tuning = engine.tuning().clone();
        tell(&mut engine, Event::Tune(Tuning { max_waiting: 1, ..tuning.clone() }));
        let refused = tell(&mut engine, request(4, None));
        let full = Refusal::QueueFull { waiting: 3, capacity: 1 };
        assert!(matches!(&refused[..], [Command::Reject { why, .. }] if *why == full), "{refused:?}");
        assert_eq!(engine.view().waiting, 3);
        // What is believed of their proposals is a number, which JSON can hold, before anybody was admitted.
        let waiting = engine.requests(Duration::ZERO, 8);
        let states = waiting.iter().map(|request| (request.state, request.level));
        assert!(states.into_iter().all(|(state, level)| state == RequestState::Waiting && level > 0.0));
        assert_eq!(waiting.len(), 3);
        tell(&mut engine, Event::Tune(Tuning { max_waiting: 9, ..tuning }));
        assert!(tell(&mut engine, request(4, None)).is_empty());
    }

    #[test]
    fn a_mode_by_which_nothing_could_ever_be_proposed_is_refused_and_off_never() {
        let refused = |config: EngineConfig, mode| {
            let mut engine = Engine::new(config).expect("a valid config");
            let mut submit = request(1, None);
            if let Event::Submit(request) = &mut submit {
                request.handling.mode = mode;
            }
            match &tell(&mut engine, submit)[..] {
                [Command::Reject { why: Refusal::Mode { why, .. }, .. }] => Some(*why),
                other => {
                    assert!(!other.iter().any(|command| matches!(command, Command::Reject { .. })));
                    None
                }
            }
        };
        let costs = PartitionCosts { draft: PassCost::nothing(), verify: PassCost::nothing() };
        let with = |policy, blocks, lookup| EngineConfig {
            draft: DraftSource::model(blocks),
            partitions: vec![costs.clone()],
            speculation: SpeculationBounds { room: 4, ..SpeculationBounds::default() },
            tuning: Tuning {
                policy,
                mechanisms: Mechanisms { lookup, ..Mechanisms::default() },
                k_max: Some(4),
                ..config().tuning
            },
            ..config()
        };
        let words = |config: EngineConfig, mode| refused(config, mode).unwrap_or_default();
        use SpeculationMode::{Auto, Draft, Lookup, Off};
        assert!(words(with(Policy::Budget, 0, true), Draft).contains("model.draft"));
        assert!(words(with(Policy::Off, 64, true), Draft).contains("speculation.policy: off"));
        assert!(words(with(Policy::Faser, 64, false), Lookup).contains("speculation.lookup"));
        assert!(words(with(Policy::Fixed { k: 2 }, 64, true), Lookup).contains("neither"));
        for (config, modes) in [
            (with(Policy::Budget, 0, true), [Auto, Off, Lookup]),
            (with(Policy::Fixed { k: 2 }, 64, false), [Auto, Off, Draft]),
            (with(Policy::Off, 0, false), [Auto, Off, Off]),
            (with(Policy::Faser, 64, true), [Auto, Lookup, Draft]),
        ] {
            assert!(modes.into_iter().all(|mode| refused(config.clone(), mode).is_none()), "{config:?}");
        }
    }

    /// The commands of a verify pass in which everybody but the youngest of three gets a token; what its grammar allows is late.
    fn verified(engine: &mut Engine, commands: Vec<Command>) -> Vec<Command> {
        let plan = commands.into_iter().find_map(|command| match command {
            Command::Verify(plan) => Some(plan),
            _ => None,
        });
        let mut plan = plan.expect("a verify plan");
        for chunk in &plan.chunks {
            let late = chunk.seq == SeqId(3);
            plan.outcome.verdicts.push(Verdict { late, next: (!late).then_some(9), ..Verdict::default() });
        }
        tell(engine, Event::VerifyDone(plan))
    }

    #[test]
    fn who_is_preempted_before_its_first_pass_takes_no_block_back() {
        let config = EngineConfig {
            block_size: 1,
            target_blocks: 6,
            max_context: 6,
            draft: DraftSource::Lookup,
            prefix_cache: false,
            tuning: Tuning { policy: Policy::Off, ..config().tuning },
            ..config()
        };
        let mut engine = Engine::new(config).expect("a valid config");
        let submit = |seq| Event::Submit(Request::new(SeqId(seq), [1], 4));
        // One token each, so that a pass is all that is missing of their prompts.
        let commands = tell(&mut engine, submit(1));
        (2..=3).for_each(|seq| assert!(tell(&mut engine, submit(seq)).is_empty()));
        let commands = verified(&mut engine, commands);
        let commands = verified(&mut engine, commands);
        verified(&mut engine, commands);
        // The first has four tokens, and the others had to go.
        let view = engine.view();
        assert_eq!((view.running, view.waiting, view.target_pool.free), (1, 2, 2), "{view:?}");
    }

    /// An engine whose draft lane has just got its first branches, and the pass that is out, whose first proposal is rejected for the draft's next
    /// candidate.
    fn preparing() -> (Engine, VerifyPlan) {
        const US: Duration = Duration::from_micros(1);
        let cost = |us| PassCost::linear(us, 1, crate::cost::AttentionCost::default());
        let costs = PartitionCosts { draft: cost(100), verify: cost(3000) };
        let config = EngineConfig {
            partitions: vec![costs.clone(), costs],
            tuning: Tuning { policy: Policy::Faser, k_max: Some(4), ..config().tuning },
            ..config()
        };
        let mut engine = Engine::new(config).expect("a valid config");
        let (mut now, mut pass) = (Duration::ZERO, None);
        let mut commands = Vec::new();
        let submit = Event::Submit(Request::new(SeqId(1), [1, 2, 3], 60));
        engine.handle(now, submit, &mut commands);
        for _ in 0..100 {
            let mut next = Vec::new();
            for command in std::mem::take(&mut commands) {
                match command {
                    Command::Verify(plan) => pass = Some((plan, now)),
                    Command::Draft(mut plan) => {
                        if plan.chunks.iter().any(|chunk| chunk.outcome) {
                            let (mut plan, _) = pass.expect("a pass is out");
                            plan.outcome.verdicts = vec![Verdict { next: Some(8), ..Verdict::default() }];
                            return (engine, plan);
                        }
                        for chunk in &plan.chunks {
                            let candidates = [8, 7, 6].into_iter().collect();
                            let drafted =
                                Drafted { token: 9, confidence: 0.6, candidates, ..Drafted::default() };
                            plan.outcome.proposals.extend(vec![drafted; chunk.steps]);
                            plan.outcome.counts.push(chunk.steps);
                        }
                        plan.outcome.took = 100 * US;
                        now += plan.outcome.took;
                        engine.handle(now, Event::DraftDone(plan), &mut next);
                    }
                    _ => {}
                }
            }
            if next.is_empty()
                && let Some((mut plan, left)) = pass.take()
            {
                plan.outcome.took = 3000 * US;
                now = now.max(left + plan.outcome.took);
                let of = |chunk: &crate::plan::VerifyChunk| Verdict {
                    accepted: chunk.proposals.min(1),
                    next: chunk.sample.then_some(8),
                    ..Verdict::default()
                };
                plan.outcome.verdicts = plan.chunks.iter().map(of).collect();
                engine.handle(now, Event::VerifyDone(plan), &mut next);
            }
            commands = next;
        }
        panic!("nothing was prepared");
    }

    #[test]
    fn a_pass_waits_for_what_was_prepared_no_longer_than_drafting_anew_would_take() {
        let leaves = |late_us| {
            let (mut engine, pass) = preparing();
            let (mut commands, due) = (Vec::new(), engine.draft_due);
            engine.handle(due + Duration::from_micros(late_us), Event::VerifyDone(pass), &mut commands);
            assert_eq!(engine.view().totals.outcomes_taken, 1, "the branch that came is still drafted");
            commands.iter().any(|command| matches!(command, Command::Verify(_)))
        };
        assert!(!leaves(50), "what comes now is worth a moment");
        assert!(leaves(5000), "the draft lane is late, and nobody knows for how long");
    }

    #[test]
    fn a_rejection_cancels_what_was_drafted_behind_it_and_not_what_catches_up_with_committed_text() {
        let goes_on = |beyond_text: usize| {
            let (mut engine, mut pass) = preparing();
            // Nothing was prepared for this.
            pass.outcome.verdicts[0].next = Some(5);
            let sequence = engine.sequences.get_mut(&SeqId(1)).expect("it runs");
            sequence.outcomes.clear();
            let end = sequence.tokens.len() - 1 + beyond_text;
            sequence.draft_out = Some(crate::branch::DraftOut { end, chunk: 7 });
            tell(&mut engine, Event::VerifyDone(pass));
            let out = engine.sequences[&SeqId(1)].draft_out;
            out.is_some_and(|out| out.chunk == 7)
        };
        assert!(goes_on(0));
        assert!(!goes_on(2));
    }

    #[test]
    fn a_pass_beside_what_the_draft_lane_still_does_teaches_nothing() {
        let taught = |beside| {
            let (mut engine, pass) = preparing();
            let mut commands = Vec::new();
            let mechanisms = Mechanisms { overlap: false, ..Mechanisms::default() };
            let tuning = Tuning { mechanisms, ..engine.tuning().clone() };
            engine.handle(engine.now, Event::Tune(tuning), &mut commands);
            let mut now = engine.draft_due + Duration::from_millis(5);
            engine.handle(now, Event::VerifyDone(pass), &mut commands);
            let next = commands.drain(..).find_map(|command| match command {
                Command::Verify(plan) => Some(plan),
                _ => None,
            });
            let mut plan = next.expect("a pass left beside late drafts");
            assert!(std::mem::replace(&mut engine.beside_drafts, beside));
            let shape = engine.verify_shape;
            let before = engine.planner.predicted_verify(&shape);
            plan.outcome.took = 10 * before.expect("there are costs");
            plan.outcome.verdicts = vec![Verdict { next: Some(8), ..Verdict::default() }; plan.chunks.len()];
            now += plan.outcome.took;
            engine.handle(now, Event::VerifyDone(plan), &mut commands);
            engine.planner.predicted_verify(&shape) != before
        };
        assert!(!taught(true) && taught(false));
    }

    #[test]
    fn whether_a_verdict_was_a_hit_is_counted_once_what_is_drafted_is_known() {
        let hits = |token| {
            let (mut engine, mut pass) = preparing();
            // All of it is accepted; what is behind it is still drafted.
            let sent = pass.chunks[0].proposals;
            pass.outcome.verdicts[0] = Verdict { accepted: sent, next: Some(5), ..Verdict::default() };
            let sequence = engine.sequences.get_mut(&SeqId(1)).expect("it runs");
            sequence.proposals.truncate(sent);
            let end = sequence.tokens.len() + sent;
            sequence.draft_out = Some(crate::branch::DraftOut { end, chunk: 7 });
            tell(&mut engine, Event::VerifyDone(pass));
            let open = engine.view().totals;
            let table = engine.calibrations[Source::Draft].table();
            let sequence = engine.sequences.get_mut(&SeqId(1)).expect("it runs");
            let drafted = [token, 6].map(|token| Drafted { token, ..Drafted::default() });
            (open.outcome_verdicts, open.outcome_hits, sequence.drafted(7, &drafted, true, &table))
        };
        assert_eq!(hits(5), (1, 0, Some(true)));
        assert_eq!(hits(4), (1, 0, Some(false)));
    }

    /// What the tables say of a verify pass and of a draft plan behind passes that take as long as they said, but that every fourth on each lane takes
    /// ten times as long, where it is `slow`, and may be `cold`.
    fn taught(slow: bool, cold: bool) -> [Option<Duration>; 2] {
        let cost = |us| PassCost::linear(us, 1, crate::cost::AttentionCost::default());
        let costs = PartitionCosts { draft: cost(100), verify: cost(3000) };
        let tuning = Tuning { policy: Policy::Fixed { k: 2 }, ..config().tuning };
        let mut engine = Engine::new(EngineConfig { partitions: vec![costs], tuning, ..config() }).unwrap();
        let (mut now, mut commands, mut passes) = (Duration::ZERO, Vec::new(), [0u32; 2]);
        engine.handle(now, Event::Submit(Request::new(SeqId(1), [1, 2, 3], 60)), &mut commands);
        let mut next = |lane: usize, predicted: Option<Duration>| {
            passes[lane] += 1;
            let odd = slow && passes[lane].is_multiple_of(4);
            (predicted.unwrap_or_default() * if odd { 10 } else { 1 }, odd && cold)
        };
        while let Some(command) = commands.pop() {
            match command {
                Command::Draft(mut plan) => {
                    for chunk in &plan.chunks {
                        plan.outcome
                            .proposals
                            .extend(vec![Drafted { token: 9, ..Drafted::default() }; chunk.steps]);
                        plan.outcome.counts.push(chunk.steps);
                    }
                    let predicted = engine.planner.predicted_draft(&engine.draft_shape);
                    (plan.outcome.took, plan.outcome.cold) = next(0, predicted);
                    now += plan.outcome.took;
                    engine.handle(now, Event::DraftDone(plan), &mut commands);
                }
                Command::Verify(mut plan) => {
                    let of = |chunk: &crate::plan::VerifyChunk| Verdict {
                        next: chunk.sample.then_some(8),
                        ..Verdict::default()
                    };
                    plan.outcome.verdicts = plan.chunks.iter().map(of).collect();
                    let predicted = engine.planner.predicted_verify(&engine.verify_shape);
                    (plan.outcome.took, plan.outcome.cold) = next(1, predicted);
                    now += plan.outcome.took;
                    engine.handle(now, Event::VerifyDone(plan), &mut commands);
                }
                _ => {}
            }
        }
        assert!(passes.iter().all(|passes| *passes > 20), "{passes:?}");
        let shape = PassShape { rows: 3, steps: 2, sequences: 1, ..PassShape::default() };
        [engine.planner.predicted_verify(&shape), engine.planner.predicted_draft(&shape)]
    }

    #[test]
    fn what_a_device_does_for_the_first_time_teaches_nothing() {
        let [verify, draft] = taught(false, false);
        assert_eq!(taught(true, true), [verify, draft]);
        let [slower_verify, slower_draft] = taught(true, false);
        assert!(slower_verify > verify && slower_draft > draft, "{slower_verify:?} {slower_draft:?}");
    }

    #[test]
    fn a_cap_counts_for_requests_that_are_there_and_never_lifts_their_own() {
        let mut engine = Engine::new(config()).expect("a valid config");
        tell(&mut engine, Event::DeviceLost);
        tell(&mut engine, request(1, None));
        tell(&mut engine, request(2, Some(1)));
        let speculates = |engine: &Engine| [1, 2].map(|seq| engine.sequences[&SeqId(seq)].speculates());
        let tuning = engine.tuning().clone();
        assert_eq!(speculates(&engine), [true, true]);
        tell(&mut engine, Event::Tune(Tuning { k_max: Some(0), ..tuning.clone() }));
        assert_eq!(speculates(&engine), [false, false]);
        tell(&mut engine, Event::Tune(Tuning { k_max: Some(3), ..tuning }));
        assert_eq!(speculates(&engine), [true, true]);
        let requests = engine.requests(Duration::from_secs(1), 1);
        assert_eq!((requests.len(), requests[0].seq, requests[0].age), (1, SeqId(1), Duration::from_secs(1)));
    }
}
