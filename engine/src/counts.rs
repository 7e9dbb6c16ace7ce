//! Counts of proposals, and what of them another engine believes that begins with them.

/// Proposals all before which were accepted, older ones counted for less.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    /// Verified.
    pub seen: f64,
    /// Accepted of those.
    pub accepted: f64,
}

/// What was learned elsewhere counts for at most so many proposals of a bin, so that another load is learned soon.
const MOST_SEEN: f64 = 64.0;

impl Counts {
    /// Can this have been counted?
    pub fn plausible(&self) -> bool {
        self.seen.is_finite() && (0.0..=self.seen).contains(&self.accepted)
    }

    /// What a fresh start believes of it; nothing of what cannot be, or of what was never seen.
    pub(crate) fn believed(&self) -> Option<Counts> {
        let share = (MOST_SEEN / self.seen).min(1.0);
        let counts = Counts { seen: share * self.seen, accepted: share * self.accepted };
        (self.plausible() && self.seen > 0.0).then_some(counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_learned_counts_for_little_and_nonsense_for_nothing() {
        let believed = |seen, accepted| Counts { seen, accepted }.believed();
        assert_eq!(believed(10.0, 4.0), Some(Counts { seen: 10.0, accepted: 4.0 }));
        assert_eq!(believed(2000.0, 500.0), Some(Counts { seen: 64.0, accepted: 16.0 }));
        for (seen, accepted) in [
            (0.0, 0.0),
            (-1.0, -1.0),
            (3.0, 4.0),
            (3.0, -1.0),
            (f64::NAN, 1.0),
            (9.0, f64::NAN),
            (f64::INFINITY, 1.0),
        ] {
            assert_eq!(believed(seen, accepted), None, "{seen} {accepted}");
        }
    }
}
