//! A record for tests: one sequence, drafts, a pass with two of three proposals accepted, and two drafts past the frontier, one of
//! them still at work when the verdict came.

use std::time::Duration;

use faser_engine::record::{ChunkRecord, Mark, PassRecord, Record};
use faser_engine::{CancelledChunk, EpochMove, FinishReason, LaneKind, SeqId, Usage};

const SEQ: SeqId = SeqId(1);

pub(super) fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn chunk(start: usize, rows: usize, k: usize) -> ChunkRecord {
    ChunkRecord { seq: SEQ, epoch: 3, start, rows, k, proposals: k, ..ChunkRecord::default() }
}

fn pass(lane: LaneKind, step: u64, (began, ended): (u64, u64), chunk: ChunkRecord) -> PassRecord {
    PassRecord {
        lane,
        step,
        left: ms(began),
        began: ms(began),
        ended: ms(ended),
        predicted: Some(ms(1)),
        partition: 1,
        sequences: 1,
        rows: chunk.rows,
        steps: if lane == LaneKind::Draft { chunk.k } else { 1 },
        proposals: chunk.proposals,
        accepted: chunk.accepted,
        committed: chunk.accepted + usize::from(chunk.next),
        running: 1,
        chunks: vec![chunk],
        ..PassRecord::default()
    }
}

/// The verify pass is number 7; its drafts are numbers 5 to 7.
pub(super) fn example() -> Record {
    let verify = ChunkRecord { accepted: 2, next: true, ..chunk(9, 4, 3) };
    let unfinished = ChunkRecord { proposals: 0, cancelled: true, ..chunk(13, 1, 1) };
    let moved = EpochMove {
        seq: SEQ,
        epoch: 3,
        frontier: 13,
        unsent: 1,
        drafting: Some(7),
        taken: None,
        rejected: true,
    };
    let cancelled = CancelledChunk { lane: LaneKind::Draft, step: 7, seq: SEQ, chunk: 0 };
    let usage = Usage { output_tokens: 9, ..Usage::default() };
    Record {
        from: ms(0),
        until: ms(60),
        cut_short: false,
        target_layers: 4,
        passes: vec![
            PassRecord { partition: 0, ..pass(LaneKind::Draft, 5, (10, 13), chunk(9, 1, 3)) },
            pass(LaneKind::Draft, 6, (13, 20), chunk(12, 1, 1)),
            PassRecord { prune_checkpoints: vec![2], ..pass(LaneKind::Verify, 7, (13, 25), verify) },
            pass(LaneKind::Draft, 7, (21, 27), unfinished),
        ],
        marks: vec![
            (ms(9), Mark::Arrived(SEQ)),
            (ms(25), Mark::EpochMoved { moved, by: Some(7) }),
            (ms(25), Mark::ChunkCancelled(cancelled)),
            (ms(40), Mark::LateDrafts(1)),
            (ms(50), Mark::Ended { seq: SEQ, reason: FinishReason::Length, usage }),
        ],
    }
}
