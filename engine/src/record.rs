//! What the lanes did: every pass with its chunks, and the moments worth a mark. [`Recorder`] looks at what the engine is told and at
//! what it asks for: whoever drives the engine calls it before and after every event.

use std::ops::Range;
use std::time::Duration;

use crate::api::{Command, Event, FinishReason};
use crate::engine::Engine;
use crate::plan::{CancelledChunk, DraftPlan, LaneKind, VerifyPlan};
use crate::request::SeqId;
use crate::usage::Usage;
use crate::view::{EpochMove, LoadView};

/// A stretch of time. All times are since the same fixed moment as those the engine is told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// When it begins: passes that had left by then are not in it.
    pub from: Duration,
    /// When it ends: nor are those still out.
    pub until: Duration,
    /// It ends where it does because a bound was reached.
    pub cut_short: bool,
    /// Layers of the target, which pruning checkpoints are numbered by; 0 if the engine was not told.
    pub target_layers: usize,
    /// Passes in the order of their ends. Those of a lost device have none.
    pub passes: Vec<PassRecord>,
    /// Moments in order; none unless it was kept in detail.
    pub marks: Vec<(Duration, Mark)>,
}

/// One pass of a lane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PassRecord {
    /// The lane.
    pub lane: LaneKind,
    /// The plan's number on that lane.
    pub step: u64,
    /// When the engine sent the plan.
    pub left: Duration,
    /// When the lane began to work on it.
    pub began: Duration,
    /// When it ended.
    pub ended: Duration,
    /// What the cost tables said of it when it left; none without tables, or without detail.
    pub predicted: Option<Duration>,
    /// The partition, 0 for the whole device. A draft plan on another one drafts past the frontier.
    pub partition: usize,
    /// Sequences in it.
    pub sequences: usize,
    /// Rows; of a draft plan, of its first step.
    pub rows: usize,
    /// Draft steps; 1 for a verify pass.
    pub steps: usize,
    /// Proposals drafted or verified.
    pub proposals: usize,
    /// Proposals accepted; 0 for drafts.
    pub accepted: usize,
    /// Proposals whose rows left it before its end; 0 for drafts.
    pub pruned: usize,
    /// Tokens it committed; 0 for drafts.
    pub committed: usize,
    /// Sequences running when it began.
    pub running: usize,
    /// Requests waiting then.
    pub waiting: usize,
    /// Its pruning checkpoints, in layers done; none without detail.
    pub prune_checkpoints: Vec<usize>,
    /// Its chunks; none without detail.
    pub chunks: Vec<ChunkRecord>,
}

/// One chunk of a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChunkRecord {
    /// The sequence.
    pub seq: SeqId,
    /// Generation of its proposals when the plan left.
    pub epoch: u32,
    /// Position of the first row.
    pub start: usize,
    /// Rows.
    pub rows: usize,
    /// Speculative length: proposals asked for of the draft lane, or sent to verification.
    pub k: usize,
    /// Proposals drafted or verified.
    pub proposals: usize,
    /// Proposals accepted; 0 for drafts.
    pub accepted: usize,
    /// Proposals, the last ones, whose rows left the pass before its end; 0 for drafts.
    pub pruned: usize,
    /// Layers done when the last of those left; 0 if none did.
    pub pruned_after: usize,
    /// Its proposals were tested at the checkpoints of the pass.
    pub tested: bool,
    /// The target found a next token; false for drafts, for prefill that goes on, and for what was cancelled.
    pub next: bool,
    /// The lane was told that it may leave it.
    pub cancelled: bool,
    /// It prepared for a verdict that had yet to come.
    pub outcome: bool,
    /// That verdict came.
    pub taken: bool,
}

impl ChunkRecord {
    /// Positions of its proposals.
    pub fn proposed(&self, lane: LaneKind) -> Range<usize> {
        let begin = match lane {
            LaneKind::Draft => self.start + self.rows,
            LaneKind::Verify => self.start + self.rows - self.proposals.min(self.rows),
        };
        begin..begin + self.proposals
    }
}

/// A moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// A client asked for tokens.
    Arrived(SeqId),
    /// A request was not taken.
    Refused(SeqId),
    /// A sequence ended.
    Ended {
        /// Which.
        seq: SeqId,
        /// Why.
        reason: FinishReason,
        /// What it took.
        usage: Usage,
    },
    /// A sequence's epoch moved on; see [`EpochMove::cancelled`].
    EpochMoved {
        /// How.
        moved: EpochMove,
        /// The verify pass whose verdict did it; none if the sequence lost its KV.
        by: Option<u64>,
    },
    /// A lane was told that it may leave a chunk.
    ChunkCancelled(CancelledChunk),
    /// Proposals came too late.
    LateDrafts(u64),
    /// Sequences lost their KV to others.
    Preemptions(u64),
    /// The device was lost, with the plans on it.
    DeviceLost,
    /// A fresh device was there.
    DeviceReady,
}

/// How much a recorder keeps at most; it keeps nothing further once one of these is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Passes of both lanes.
    pub passes: usize,
    /// Chunks of all passes.
    pub chunks: usize,
    /// Marks.
    pub marks: usize,
}

/// Makes a [`Record`] of what happens to an engine and its lanes.
#[derive(Debug)]
pub struct Recorder {
    /// None: passes alone, without their chunks and without marks.
    detail: Option<Bounds>,
    record: Record,
    /// Passes that are out, by lane.
    out: [Option<PassRecord>; 2],
    running: usize,
    waiting: usize,
    /// Late drafts and preemptions so far.
    seen: [u64; 2],
    chunks: usize,
    /// The verify pass whose result the engine is being told.
    judged: Option<u64>,
}

impl Recorder {
    /// Keeps passes without chunks, predictions and marks, and any number of them: what figures are made of.
    pub fn of_passes(engine: &Engine) -> Recorder {
        Recorder::new(None, Duration::ZERO, engine)
    }

    /// Keeps everything from `now` on, until a bound is reached.
    pub fn in_detail(bounds: Bounds, now: Duration, engine: &Engine) -> Recorder {
        Recorder::new(Some(bounds), now, engine)
    }

    fn new(detail: Option<Bounds>, now: Duration, engine: &Engine) -> Recorder {
        let view = engine.view();
        Recorder {
            detail,
            record: Record { from: now, target_layers: engine.config.target_layers, ..Record::default() },
            out: [None, None],
            running: view.running,
            waiting: view.waiting,
            seen: counts(&view),
            chunks: 0,
            judged: None,
        }
    }

    /// The engine is about to be told `event`. `at` is when it happened: of a plan that comes back, when the lane ended it.
    pub fn before(&mut self, at: Duration, event: &Event) {
        self.judged = None;
        match event {
            Event::Submit(request) => self.mark(at, Mark::Arrived(request.seq)),
            Event::DraftDone(plan) => self.drafted(at, plan),
            Event::VerifyDone(plan) => self.verified(at, plan),
            Event::DeviceLost | Event::DraftLost => {
                self.out = [None, None];
                self.mark(at, Mark::DeviceLost);
            }
            Event::DeviceReady => self.mark(at, Mark::DeviceReady),
            Event::Cancel(_)
            | Event::Tune(_)
            | Event::Profiled(_)
            | Event::ForgetOutputs
            | Event::DraftRetired
            | Event::DeviceGivenUp => {}
        }
    }

    /// The engine has decided, and asks for `commands`. Plans among them are taken to leave now.
    pub fn after(&mut self, now: Duration, engine: &Engine, commands: &[Command]) {
        let view = engine.view();
        (self.running, self.waiting) = (view.running, view.waiting);
        let before = std::mem::replace(&mut self.seen, counts(&view));
        let marks = [Mark::LateDrafts, Mark::Preemptions];
        for ((mark, before), seen) in marks.into_iter().zip(before).zip(self.seen) {
            if seen > before {
                self.mark(now, mark(seen - before));
            }
        }
        let by = self.judged;
        for &moved in engine.epoch_moves() {
            moved.taken.into_iter().for_each(|(step, chunk)| self.take_outcome(step, chunk));
            self.mark(now, Mark::EpochMoved { moved, by: by.filter(|_| moved.rejected) });
        }
        for command in commands {
            match command {
                Command::Draft(plan) => self.draft_left(now, plan, engine),
                Command::Verify(plan) => self.verify_left(now, plan, engine),
                Command::CancelChunk(chunk) => self.cancel_chunk(now, *chunk),
                Command::Finish { seq, reason, usage } => {
                    self.mark(now, Mark::Ended { seq: *seq, reason: *reason, usage: *usage });
                }
                Command::Reject { seq, .. } => self.mark(now, Mark::Refused(*seq)),
                Command::Emit { .. } => {}
            }
        }
    }

    /// A bound is reached: what happens from now on is not kept.
    pub fn full(&self) -> bool {
        self.detail.is_some_and(|most| {
            self.record.passes.len() >= most.passes
                || self.chunks >= most.chunks
                || self.record.marks.len() >= most.marks
        })
    }

    /// Takes out what there is so far, and goes on.
    pub fn take(&mut self) -> (Vec<PassRecord>, Vec<(Duration, Mark)>) {
        self.chunks = 0;
        (std::mem::take(&mut self.record.passes), std::mem::take(&mut self.record.marks))
    }

    /// Ends the record.
    pub fn finish(mut self, now: Duration) -> Record {
        self.record.cut_short = self.full();
        self.record.until = now;
        self.record
    }

    fn mark(&mut self, at: Duration, mark: Mark) {
        if self.detail.is_some() && !self.full() {
            self.record.marks.push((at, mark));
        }
    }

    fn draft_left(&mut self, now: Duration, plan: &DraftPlan, engine: &Engine) {
        let chunks = plan.chunks.iter().map(|chunk| ChunkRecord {
            k: chunk.steps,
            outcome: chunk.outcome,
            ..of_rows(chunk.seq, chunk.epoch, chunk.start, chunk.rows.len())
        });
        let (lane, partition) = (LaneKind::Draft, plan.partition.0);
        let pass = PassRecord { step: plan.step, left: now, partition, ..pass(lane, chunks.collect()) };
        self.left(pass, engine);
    }

    fn verify_left(&mut self, now: Duration, plan: &VerifyPlan, engine: &Engine) {
        let chunks = plan.chunks.iter().map(|chunk| ChunkRecord {
            k: chunk.proposals,
            proposals: chunk.proposals,
            tested: !plan.prune_checkpoints.is_empty() && !chunk.tests.is_empty(),
            ..of_rows(chunk.seq, chunk.epoch, chunk.start, chunk.rows.len())
        });
        let (lane, partition) = (LaneKind::Verify, plan.partition.0);
        let mut pass = PassRecord { step: plan.step, left: now, partition, ..pass(lane, chunks.collect()) };
        if self.detail.is_some() {
            pass.prune_checkpoints.extend(&plan.prune_checkpoints);
        }
        self.left(pass, engine);
    }

    fn left(&mut self, mut pass: PassRecord, engine: &Engine) {
        (pass.running, pass.waiting) = (self.running, self.waiting);
        pass.predicted = self.detail.and_then(|_| engine.predicted(pass.lane));
        let lane = pass.lane as usize;
        self.out[lane] = Some(pass);
    }

    fn cancel_chunk(&mut self, now: Duration, cancelled: CancelledChunk) {
        if let Some(pass) =
            self.out[cancelled.lane as usize].as_mut().filter(|pass| pass.step == cancelled.step)
        {
            pass.chunks.get_mut(cancelled.chunk).into_iter().for_each(|chunk| chunk.cancelled = true);
        }
        self.mark(now, Mark::ChunkCancelled(cancelled));
    }

    /// A verdict has picked an outcome, of a draft plan that is out or was not long ago.
    fn take_outcome(&mut self, step: u64, chunk: usize) {
        let kept = self.record.passes.iter_mut().rev();
        let mut drafts = self.out[LaneKind::Draft as usize].iter_mut().chain(kept);
        let pass = drafts.find(|pass| (pass.lane, pass.step) == (LaneKind::Draft, step));
        let chunk = pass.and_then(|pass| pass.chunks.get_mut(chunk));
        chunk.into_iter().for_each(|chunk| chunk.taken = true);
    }

    fn drafted(&mut self, ended: Duration, plan: &DraftPlan) {
        let Some(mut pass) = self.back(LaneKind::Draft, plan.step, ended, plan.outcome.took) else { return };
        let one_pass = plan.passes.is_one();
        for (record, &count) in pass.chunks.iter_mut().zip(&plan.outcome.counts) {
            record.proposals = count;
            pass.proposals += count;
        }
        let (steps, _) = plan.outcome.steps();
        pass.steps = if one_pass { pass.proposals.min(1) } else { steps };
        self.keep(pass);
    }

    fn verified(&mut self, ended: Duration, plan: &VerifyPlan) {
        let Some(mut pass) = self.back(LaneKind::Verify, plan.step, ended, plan.outcome.took) else { return };
        for (record, verdict) in pass.chunks.iter_mut().zip(&plan.outcome.verdicts) {
            (record.accepted, record.pruned) = (verdict.accepted, verdict.pruned);
            record.next = verdict.next.is_some();
            if verdict.pruned > 0 {
                record.pruned_after =
                    plan.prune_checkpoints.get(verdict.pruned_at).copied().unwrap_or_default();
            }
            pass.accepted += verdict.accepted;
            pass.pruned += verdict.pruned;
            pass.committed += verdict.accepted + usize::from(verdict.next.is_some());
        }
        self.judged = Some(plan.step);
        self.keep(pass);
    }

    /// The pass that is out, if it is this one: others left before the record began, or come from a lost device.
    fn back(&mut self, lane: LaneKind, step: u64, ended: Duration, took: Duration) -> Option<PassRecord> {
        let pass = self.out[lane as usize].take_if(|pass| pass.step == step)?;
        Some(PassRecord { began: ended.saturating_sub(took), ended, ..pass })
    }

    fn keep(&mut self, mut pass: PassRecord) {
        if self.full() {
            return;
        }
        if self.detail.is_none() {
            pass.chunks = Vec::new();
        }
        self.chunks += pass.chunks.len();
        self.record.passes.push(pass);
    }
}

/// Late drafts and preemptions since the start.
fn counts(view: &LoadView) -> [u64; 2] {
    [view.totals.late_drafts, view.totals.preemptions]
}

fn of_rows(seq: SeqId, epoch: u32, start: usize, rows: usize) -> ChunkRecord {
    ChunkRecord { seq, epoch, start, rows, ..ChunkRecord::default() }
}

fn pass(lane: LaneKind, chunks: Vec<ChunkRecord>) -> PassRecord {
    PassRecord {
        lane,
        sequences: chunks.len(),
        rows: chunks.iter().map(|chunk| chunk.rows).sum(),
        steps: 1,
        proposals: chunks.iter().map(|chunk| chunk.proposals).sum(),
        chunks,
        ..PassRecord::default()
    }
}
