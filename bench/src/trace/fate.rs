//! What became of proposals: a draft pass does not know it, the verify passes and epochs after it do.

use std::collections::HashMap;

use faser_engine::record::{ChunkRecord, Mark, Record};
use faser_engine::{EpochMove, LaneKind, SeqId};

/// What became of a proposal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It was accepted, or the target found the same token by itself.
    Accepted,
    /// It, or one before it in its chunk, was rejected.
    Rejected,
    /// Its row left the pass before the end.
    Pruned,
    /// It was never sent: this verify pass rejected what it was built on.
    Cancelled(u64),
    /// It was never verified, or not while the record lasted.
    Unused,
}

/// The fates of all proposals of a record.
pub(super) struct Fates<'a> {
    /// Verify chunks by sequence and epoch, in order.
    verified: HashMap<(SeqId, u32), Vec<&'a ChunkRecord>>,
    /// Rejections by the epoch they ended, and the verify pass.
    rejections: HashMap<(SeqId, u32), (EpochMove, u64)>,
}

impl<'a> Fates<'a> {
    pub(super) fn of(record: &'a Record) -> Fates<'a> {
        let mut verified: HashMap<_, Vec<_>> = HashMap::new();
        for pass in record.passes.iter().filter(|pass| pass.lane == LaneKind::Verify) {
            for chunk in pass.chunks.iter().filter(|chunk| chunk.next) {
                verified.entry((chunk.seq, chunk.epoch)).or_default().push(chunk);
            }
        }
        let rejections = record.marks.iter().filter_map(|(_, mark)| match mark {
            Mark::EpochMoved { moved, by: Some(by) } => Some(((moved.seq, moved.epoch), (*moved, *by))),
            _ => None,
        });
        Fates { verified, rejections: rejections.collect() }
    }

    /// What became of the `nth` proposal of a draft chunk.
    pub(super) fn of_drafted(&self, chunk: &ChunkRecord, nth: usize) -> Fate {
        let place = chunk.start + chunk.rows + nth;
        let key = (chunk.seq, chunk.epoch + u32::from(chunk.taken));
        if chunk.outcome && !chunk.taken {
            return self.cancelled(chunk).map_or(Fate::Unused, Fate::Cancelled);
        }
        let verified = self.verified.get(&key).map_or(&[][..], Vec::as_slice);
        // One that was pruned may have been sent again.
        if let Some(chunk) = verified.iter().rev().find(|c| c.proposed(LaneKind::Verify).contains(&place)) {
            return Fates::of_verified(chunk, place - chunk.proposed(LaneKind::Verify).start);
        }
        if let Some((moved, by)) = self.rejections.get(&key)
            && place >= moved.frontier
        {
            return Fate::Cancelled(*by);
        }
        let found = |c: &&ChunkRecord| c.accepted == c.proposals && c.proposed(LaneKind::Verify).end == place;
        if verified.iter().any(found) { Fate::Accepted } else { Fate::Unused }
    }

    /// What became of the `nth` proposal of a verify chunk.
    pub(super) fn of_verified(chunk: &ChunkRecord, nth: usize) -> Fate {
        if !chunk.next {
            Fate::Unused
        } else if nth < chunk.accepted {
            Fate::Accepted
        } else if nth < chunk.proposals - chunk.pruned.min(chunk.proposals) {
            Fate::Rejected
        } else {
            Fate::Pruned
        }
    }

    /// The verify pass that cancelled a draft chunk, or a part of it; also one that was left before it had brought anything.
    pub(super) fn cancelled(&self, chunk: &ChunkRecord) -> Option<u64> {
        let (moved, by) = self.rejections.get(&(chunk.seq, chunk.epoch + u32::from(chunk.taken)))?;
        if chunk.outcome && !chunk.taken {
            return Some(*by);
        }
        let last = chunk.start + chunk.rows + chunk.proposals.max(1) - 1;
        (chunk.k > 0 && last >= moved.frontier).then_some(*by)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::example::example;

    #[test]
    fn proposals_are_accepted_rejected_or_cancelled_by_a_pass() {
        let record = example();
        let fates = Fates::of(&record);
        let drafts: Vec<_> = record.passes.iter().filter(|pass| pass.lane == LaneKind::Draft).collect();
        let of = |pass: usize| {
            let chunk = &drafts[pass].chunks[0];
            (0..chunk.k.max(chunk.proposals)).map(|nth| fates.of_drafted(chunk, nth)).collect::<Vec<_>>()
        };
        use Fate::{Accepted, Cancelled, Rejected};
        assert_eq!(of(0), [Accepted, Accepted, Rejected]);
        assert_eq!((of(1), of(2)), (vec![Cancelled(7)], vec![Cancelled(7)]));
        let by = |pass: usize| fates.cancelled(&drafts[pass].chunks[0]);
        assert_eq!((by(0), by(1), by(2)), (None, Some(7), Some(7)));
    }
}
