//! What the lanes did: every pass, and the moments worth a mark.

use std::time::Duration;

use crate::api::{Event, SeqId};
use crate::engine::Engine;
use crate::plan::{DraftPlan, LaneKind, VerifyPlan};

/// One pass of a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassRecord {
    /// The lane.
    pub lane: LaneKind,
    /// When it began.
    pub began: Duration,
    /// When it ended.
    pub ended: Duration,
    /// The partition, 0 for the whole device.
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
    /// Its chunks, where a simulation keeps them.
    pub chunks: Vec<ChunkRecord>,
}

/// One chunk of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkRecord {
    /// The sequence.
    pub seq: SeqId,
    /// Position of the first row.
    pub start: usize,
    /// Rows.
    pub rows: usize,
    /// Proposals drafted or verified.
    pub proposals: usize,
    /// Proposals accepted; 0 for drafts.
    pub accepted: usize,
    /// Proposals whose rows left the pass before its end; 0 for drafts.
    pub pruned: usize,
}

/// A moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Chunks fell with a rejection in front of them.
    ChunksCancelled(u64),
    /// Proposals came too late.
    LateDrafts(u64),
    /// Sequences lost their KV to others.
    Preemptions(u64),
}

#[derive(Debug, Default)]
pub(super) struct Recorder {
    pub(super) in_detail: bool,
    passes: Vec<PassRecord>,
    marks: Vec<(Duration, Mark)>,
    /// Passes that are out, by lane.
    out: [Option<PassRecord>; 2],
    running: usize,
    waiting: usize,
    /// Chunks cancelled, late drafts, preemptions.
    seen: [u64; 3],
}

impl Recorder {
    /// The engine has decided.
    pub(super) fn after(&mut self, now: Duration, engine: &Engine) {
        let view = engine.view();
        (self.running, self.waiting) = (view.running, view.waiting);
        let totals = [view.totals.chunks_cancelled, view.totals.late_drafts, view.totals.preemptions];
        let marks = [Mark::ChunksCancelled, Mark::LateDrafts, Mark::Preemptions];
        for ((seen, total), mark) in self.seen.iter_mut().zip(totals).zip(marks) {
            if total > *seen && self.in_detail {
                self.marks.push((now, mark(total - *seen)));
            }
            *seen = total;
        }
    }

    pub(super) fn draft_began(&mut self, plan: &DraftPlan) {
        let chunks = plan.chunks.iter().map(|chunk| ChunkRecord {
            seq: chunk.seq,
            start: chunk.start,
            rows: chunk.rows.len(),
            proposals: 0,
            accepted: 0,
            pruned: 0,
        });
        self.began(LaneKind::Draft, plan.partition.0, chunks.collect());
    }

    pub(super) fn verify_began(&mut self, plan: &VerifyPlan) {
        let chunks = plan.chunks.iter().map(|chunk| ChunkRecord {
            seq: chunk.seq,
            start: chunk.start,
            rows: chunk.rows.len(),
            proposals: chunk.proposals,
            accepted: 0,
            pruned: 0,
        });
        self.began(LaneKind::Verify, plan.partition.0, chunks.collect());
    }

    fn began(&mut self, lane: LaneKind, partition: usize, chunks: Vec<ChunkRecord>) {
        self.out[lane as usize] = Some(PassRecord {
            lane,
            began: Duration::ZERO,
            ended: Duration::ZERO,
            partition,
            sequences: chunks.len(),
            rows: chunks.iter().map(|chunk| chunk.rows).sum(),
            steps: 1,
            proposals: chunks.iter().map(|chunk| chunk.proposals).sum(),
            accepted: 0,
            pruned: 0,
            committed: 0,
            running: self.running,
            waiting: self.waiting,
            chunks,
        });
    }

    /// A pass came to its end. Those of a lost device never do.
    pub(super) fn ended(&mut self, began: Duration, ended: Duration, event: &Event) {
        let lane = if matches!(event, Event::DraftDone(_)) { LaneKind::Draft } else { LaneKind::Verify };
        let Some(mut pass) = self.out[lane as usize].take() else { return };
        (pass.began, pass.ended) = (began, ended);
        match event {
            Event::DraftDone(plan) => {
                for (record, &count) in pass.chunks.iter_mut().zip(&plan.outcome.counts) {
                    record.proposals = count;
                    pass.proposals += record.proposals;
                    pass.steps = pass.steps.max(record.proposals);
                }
            }
            Event::VerifyDone(plan) => {
                for (record, verdict) in pass.chunks.iter_mut().zip(&plan.outcome.verdicts) {
                    (record.accepted, record.pruned) = (verdict.accepted, verdict.pruned);
                    pass.accepted += verdict.accepted;
                    pass.pruned += verdict.pruned;
                    pass.committed += verdict.accepted + usize::from(verdict.next.is_some());
                }
            }
            _ => {}
        }
        if !self.in_detail {
            pass.chunks = Vec::new();
        }
        self.passes.push(pass);
    }

    pub(super) fn finish(self) -> (Vec<PassRecord>, Vec<(Duration, Mark)>) {
        (self.passes, self.marks)
    }
}
