//! What the lanes did: every pass with its chunks, and the moments worth a mark. Pure data; [`Recorder`] fills it.

mod recorder;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::time::Duration;

use crate::api::FinishReason;
use crate::plan::{LaneKind, Shed};
use crate::request::SeqId;
use crate::usage::Usage;
use crate::view::EpochMove;

pub use recorder::{Bounds, Recorder};

/// A stretch of time. All times are since the same fixed moment as those the engine is told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// When it begins: passes that had left by then are not in it.
    pub from: Duration,
    /// When it ends: nor are those still out.
    pub until: Duration,
    /// It ends where it does because a bound was reached.
    pub cut_short: bool,
    /// Layers of the target, which gates are numbered by; 0 if the engine was not told.
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
    /// Its gates, in layers done; none without detail.
    pub gates: Vec<usize>,
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
    /// Its proposals were tested at the gates of the pass.
    pub tested: bool,
    /// The target found a next token; false for drafts, for prefill that goes on, and for what was shed.
    pub next: bool,
    /// The lane was told that it may leave it.
    pub shed: bool,
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
    Shed(Shed),
    /// Proposals came too late.
    LateDrafts(u64),
    /// Sequences lost their KV to others.
    Preemptions(u64),
    /// The device was lost, with the plans on it.
    DeviceLost,
    /// A fresh device was there.
    DeviceReady,
}
