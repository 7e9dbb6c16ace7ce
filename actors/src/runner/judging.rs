//! Verdicts: how far a chunk has come through its pass, and what its samples say of its proposals.

use faser_engine::{TokenId, Verdict, VerifyChunk, VerifyPlan};

/// How far a chunk has come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    /// Rows of it that are still wanted.
    pub(super) rows: usize,
    /// Rows that never were.
    forbidden: usize,
    /// Nothing is drawn: it is not known what may be.
    late: bool,
    /// The pruning checkpoint at which it lost rows.
    pub(super) pruned_at: usize,
    pub(super) samples: usize,
}

impl Progress {
    /// All rows are wanted.
    pub(super) fn new(chunk: &VerifyChunk) -> Progress {
        Progress { rows: chunk.rows.len(), forbidden: 0, late: false, pruned_at: 0, samples: 0 }
    }

    /// The last `rows` are not to be in any pass.
    pub(super) fn forbid(&mut self, rows: usize) {
        self.rows -= rows;
        self.forbidden = rows;
    }

    /// The chunk is late, with what of it was in the pass.
    pub(super) fn be_late(&mut self) {
        (self.rows, self.late) = (0, true);
    }
}

/// Rows of committed tokens; the anchor is the last of them if the chunk samples.
pub(super) fn committed(chunk: &VerifyChunk) -> usize {
    let committed = chunk.rows.len().checked_sub(chunk.proposals).filter(|&rows| rows > 0);
    committed.unwrap_or_else(|| panic!("{} has a chunk without an anchor", chunk.seq))
}

/// The pruning checkpoint at which a chunk lost rows, if it has `left` of them: that follows from the margins.
pub(super) fn pruned_at(plan: &VerifyPlan, chunk: &VerifyChunk, left: usize, margins: &[f32]) -> usize {
    let fails = |checkpoint: usize| {
        let ends =
            chunk.tests.clone().zip(committed(chunk)..).find(|&(test, _)| {
                margins[checkpoint * plan.tests.len() + test] > plan.tests[test].max_margin
            });
        ends.is_some_and(|(_, ends)| ends == left)
    };
    (0..plan.prune_checkpoints.len()).find(|&checkpoint| fails(checkpoint)).unwrap_or(0)
}

/// The verdict on a chunk whose proposals, and the place behind them, have these samples.
pub(super) fn judge(
    chunk: &VerifyChunk,
    proposals: &[TokenId],
    progress: &Progress,
    samples: &[TokenId],
) -> Verdict {
    if progress.rows == 0 {
        // It was cancelled, or is late.
        let forbidden = if progress.late { progress.forbidden } else { 0 };
        return Verdict { late: progress.late, forbidden, ..Verdict::default() };
    }
    let accepted = proposals.iter().zip(samples).take_while(|(proposal, sample)| proposal == sample).count();
    // Behind the last row there is no proposal to compare with, whatever has left the pass.
    let accepted = accepted.min(samples.len().saturating_sub(1));
    Verdict {
        accepted,
        next: samples.get(accepted).copied(),
        late: false,
        forbidden: progress.forbidden,
        pruned: chunk.rows.len() - progress.forbidden - progress.rows,
        pruned_at: progress.pruned_at,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(proposals: usize) -> VerifyChunk {
        VerifyChunk { start: 5, rows: 0..proposals + 1, proposals, sample: true, ..VerifyChunk::default() }
    }

    fn verdict(proposals: &[TokenId], rows: usize, samples: &[TokenId]) -> Verdict {
        verdict_without(0, proposals, rows, samples)
    }

    fn verdict_without(forbidden: usize, proposals: &[TokenId], rows: usize, samples: &[TokenId]) -> Verdict {
        let chunk = VerifyChunk { unchecked: forbidden > 0, ..chunk(proposals.len()) };
        let mut progress = Progress::new(&chunk);
        progress.forbid(forbidden);
        (progress.rows, progress.samples) = (rows, samples.len());
        judge(&chunk, proposals, &progress, samples)
    }

    fn whole(proposals: &[TokenId], samples: &[TokenId]) -> (usize, Option<TokenId>) {
        let verdict = verdict(proposals, proposals.len() + 1, samples);
        assert_eq!(verdict.pruned, 0);
        (verdict.accepted, verdict.next)
    }

    #[test]
    fn the_accepted_prefix_ends_at_the_first_difference_and_the_targets_token_follows() {
        assert_eq!(whole(&[1, 2, 3], &[1, 2, 3, 4]), (3, Some(4)));
        assert_eq!(whole(&[1, 2, 3], &[1, 2, 7, 4]), (2, Some(7)));
        assert_eq!(whole(&[1, 2, 3], &[1, 7, 3, 4]), (1, Some(7)));
        assert_eq!(whole(&[1, 2, 3], &[7, 2, 3, 4]), (0, Some(7)));
        assert_eq!(whole(&[], &[4]), (0, Some(4)));
        assert_eq!(whole(&[], &[]), (0, None));
    }

    #[test]
    fn what_left_the_pass_is_not_accepted_even_if_it_was_right() {
        let pruned =
            |accepted, next, pruned| Verdict { accepted, next: Some(next), pruned, ..Verdict::default() };
        assert_eq!(verdict(&[1, 2, 3], 2, &[1, 2]), pruned(1, 2, 2));
        assert_eq!(verdict(&[1, 2, 3], 2, &[1, 9]), pruned(1, 9, 2));
        assert_eq!(verdict(&[1, 2, 3], 2, &[9, 2]), pruned(0, 9, 2));
        assert_eq!(verdict(&[1, 2, 3], 0, &[]), Verdict::default());
    }

    #[test]
    fn what_was_forbidden_is_told_apart_from_what_left() {
        let of = |forbidden, pruned| Verdict {
            accepted: 1,
            next: Some(2),
            forbidden,
            pruned,
            ..Verdict::default()
        };
        assert_eq!(verdict_without(2, &[1, 2, 3], 2, &[1, 2]), of(2, 0));
        assert_eq!(verdict_without(1, &[1, 2, 3], 2, &[1, 2]), of(1, 1));
        let cancelled = verdict_without(1, &[1, 2, 3], 0, &[]);
        assert_eq!(cancelled, Verdict::default());
    }

    #[test]
    fn a_late_chunk_says_nothing_of_its_proposals() {
        let chunk = chunk(2);
        let mut progress = Progress::new(&chunk);
        progress.be_late();
        let late = Verdict { late: true, ..Verdict::default() };
        assert_eq!(judge(&chunk, &[1, 2], &progress, &[]), late);
        let mut progress = Progress::new(&chunk);
        progress.forbid(3);
        progress.be_late();
        assert_eq!(judge(&chunk, &[1, 2], &progress, &[]), Verdict { forbidden: 3, ..late });
    }
}
