//! The recorder: it looks at what the engine is told and at what it asks for. Whoever drives the engine calls it before and
//! after every event.

use std::time::Duration;

use super::{ChunkRecord, Mark, PassRecord, Record};
use crate::api::{Command, Event};
use crate::engine::Engine;
use crate::plan::{DraftPlan, LaneKind, Shed, VerifyPlan};
use crate::view::LoadView;

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
            Event::DeviceLost => {
                self.out = [None, None];
                self.mark(at, Mark::DeviceLost);
            }
            Event::DeviceReady => self.mark(at, Mark::DeviceReady),
            Event::Cancel(_) | Event::Tune(_) | Event::Profiled(_) | Event::DeviceGivenUp => {}
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
            self.mark(now, Mark::EpochMoved { moved, by: by.filter(|_| moved.rejected) });
        }
        for command in commands {
            match command {
                Command::Draft(plan) => self.draft_left(now, plan, engine),
                Command::Verify(plan) => self.verify_left(now, plan, engine),
                Command::Shed(shed) => self.shed(now, *shed),
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
            tested: !plan.gates.is_empty() && !chunk.tests.is_empty(),
            ..of_rows(chunk.seq, chunk.epoch, chunk.start, chunk.rows.len())
        });
        let (lane, partition) = (LaneKind::Verify, plan.partition.0);
        let mut pass = PassRecord { step: plan.step, left: now, partition, ..pass(lane, chunks.collect()) };
        if self.detail.is_some() {
            pass.gates.extend(&plan.gates);
        }
        self.left(pass, engine);
    }

    fn left(&mut self, mut pass: PassRecord, engine: &Engine) {
        (pass.running, pass.waiting) = (self.running, self.waiting);
        pass.predicted = self.detail.and_then(|_| engine.predicted(pass.lane));
        let lane = pass.lane as usize;
        self.out[lane] = Some(pass);
    }

    fn shed(&mut self, now: Duration, shed: Shed) {
        if let Some(pass) = self.out[shed.lane as usize].as_mut().filter(|pass| pass.step == shed.step) {
            pass.chunks.iter_mut().filter(|chunk| chunk.seq == shed.seq).for_each(|chunk| chunk.shed = true);
        }
        self.mark(now, Mark::Shed(shed));
    }

    fn drafted(&mut self, ended: Duration, plan: &DraftPlan) {
        let Some(mut pass) = self.back(LaneKind::Draft, plan.step, ended, plan.outcome.took) else { return };
        for (record, &count) in pass.chunks.iter_mut().zip(&plan.outcome.counts) {
            record.proposals = count;
            pass.proposals += count;
            pass.steps = pass.steps.max(count);
        }
        self.keep(pass);
    }

    fn verified(&mut self, ended: Duration, plan: &VerifyPlan) {
        let Some(mut pass) = self.back(LaneKind::Verify, plan.step, ended, plan.outcome.took) else { return };
        for (record, verdict) in pass.chunks.iter_mut().zip(&plan.outcome.verdicts) {
            (record.accepted, record.pruned) = (verdict.accepted, verdict.pruned);
            record.next = verdict.next.is_some();
            if verdict.pruned > 0 {
                record.pruned_after = plan.gates.get(verdict.pruned_at).copied().unwrap_or_default();
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

fn of_rows(seq: crate::request::SeqId, epoch: u32, start: usize, rows: usize) -> ChunkRecord {
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
