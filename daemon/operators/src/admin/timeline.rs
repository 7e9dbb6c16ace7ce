//! What the lanes did lately, for a picture of both: drafting under verification, and what was cancelled.

use std::borrow::Cow;
use std::time::Duration;

use faser_actors::Recent;
use faser_engine::LaneKind;
use faser_engine::record::{Mark, PassRecord};

use super::snapshot::sent_and_read;

/// Passes of one timeline, the latest; and marks.
const MOST: usize = 2000;

sent_and_read! {
    /// What the lanes of one replica did. Times are in µs since the replica started.
    pub struct Timeline {
        /// The moment of the snapshot.
        pub now_us: u64,
        /// The timeline is whole from here on; `dropped` says what is missing of it all the same.
        pub from_us: u64,
        /// Passes and marks that were too many for one snapshot.
        pub dropped: usize,
        /// Passes that ended, in the order of their ends.
        pub passes: Vec<PassRow>,
        /// Moments, in order.
        pub marks: Vec<MarkRow>,
    }

    /// One pass of a lane.
    pub struct PassRow {
        /// `draft` or `verify`.
        pub lane: Cow<'static, str>,
        /// The plan's number on that lane.
        pub step: u64,
        /// When the lane began.
        pub began_us: u64,
        /// When it ended.
        pub ended_us: u64,
        /// How long the cost tables said that it would take; none without tables.
        pub predicted_us: Option<u64>,
        /// The partition, 0 for the whole device. A draft plan on another one drafts past the frontier, under verification.
        pub partition: usize,
        /// Sequences.
        pub sequences: usize,
        /// Rows; of a draft plan, of its first step.
        pub rows: usize,
        /// Draft steps; 1 for a verify pass.
        pub steps: usize,
        /// Proposals drafted or verified.
        pub proposals: usize,
        /// Proposals accepted; 0 for drafts.
        pub accepted: usize,
        /// Proposals whose rows left before the end.
        pub pruned: usize,
        /// Tokens committed; 0 for drafts.
        pub committed: usize,
        /// Pruning checkpoints, in layers done.
        pub prune_checkpoints: Vec<usize>,
        /// Chunks that the lane was told to leave.
        pub cancelled: usize,
        /// Speculative length of each chunk.
        pub k: Vec<usize>,
    }

    /// A moment worth a mark.
    pub struct MarkRow {
        /// When.
        pub at_us: u64,
        /// `cancelled` (proposals, by a rejection in front of them), `chunk-cancelled` (a lane was told to leave a chunk), `preempted`,
        /// `device-lost` or `device-ready`.
        pub kind: Cow<'static, str>,
        /// The sequence.
        pub seq: Option<u64>,
        /// The lane whose plan it is about.
        pub lane: Option<Cow<'static, str>>,
        /// That plan's number.
        pub step: Option<u64>,
        /// Of `cancelled`: the verify pass whose verdict did it.
        pub by: Option<u64>,
        /// Of `cancelled`: proposals that had been drafted.
        pub proposals: Option<usize>,
    }
}

impl Timeline {
    pub(super) fn new(now: Duration, recent: &Recent) -> Timeline {
        let (passes, fewer) = latest(&recent.passes);
        let marks: Vec<MarkRow> = recent.marks.iter().filter_map(|(at, mark)| row_of(*at, mark)).collect();
        let (marks, fewer_marks) = latest(&marks);
        Timeline {
            now_us: micros(now),
            from_us: micros(recent.from),
            dropped: fewer + fewer_marks,
            passes: passes.iter().map(pass).collect(),
            marks: marks.to_vec(),
        }
    }
}

/// The last ones, and how many were before them.
fn latest<T>(all: &[T]) -> (&[T], usize) {
    let before = all.len().saturating_sub(MOST);
    (&all[before..], before)
}

fn pass(pass: &PassRecord) -> PassRow {
    PassRow {
        lane: name(pass.lane),
        step: pass.step,
        began_us: micros(pass.began),
        ended_us: micros(pass.ended),
        predicted_us: pass.predicted.map(micros),
        partition: pass.partition,
        sequences: pass.sequences,
        rows: pass.rows,
        steps: pass.steps,
        proposals: pass.proposals,
        accepted: pass.accepted,
        pruned: pass.pruned,
        committed: pass.committed,
        prune_checkpoints: pass.prune_checkpoints.clone(),
        cancelled: pass.chunks.iter().filter(|chunk| chunk.cancelled).count(),
        k: pass.chunks.iter().map(|chunk| chunk.k).collect(),
    }
}

/// Marks that are to be drawn.
fn row_of(at: Duration, mark: &Mark) -> Option<MarkRow> {
    let bare = |kind: &'static str| MarkRow { at_us: micros(at), kind: kind.into(), ..MarkRow::default() };
    match mark {
        Mark::EpochMoved { moved, by } if moved.cancelled() => Some(MarkRow {
            seq: Some(moved.seq.0),
            lane: moved.drafting.map(|_| name(LaneKind::Draft)),
            step: moved.drafting,
            by: *by,
            proposals: Some(moved.unsent),
            ..bare("cancelled")
        }),
        Mark::ChunkCancelled(chunk) => Some(MarkRow {
            seq: Some(chunk.seq.0),
            lane: Some(name(chunk.lane)),
            step: Some(chunk.step),
            ..bare("chunk-cancelled")
        }),
        Mark::Preemptions(_) => Some(bare("preempted")),
        Mark::DeviceLost => Some(bare("device-lost")),
        Mark::DeviceReady => Some(bare("device-ready")),
        Mark::EpochMoved { .. }
        | Mark::Arrived(_)
        | Mark::Refused(_)
        | Mark::Ended { .. }
        | Mark::LateDrafts(_) => None,
    }
}

fn name(lane: LaneKind) -> Cow<'static, str> {
    match lane {
        LaneKind::Draft => "draft".into(),
        LaneKind::Verify => "verify".into(),
    }
}

fn micros(time: Duration) -> u64 {
    time.as_micros() as u64
}
