//! The items of a job, handed out to whoever asks.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Items `0..items`, claimed `portion` at a time.
pub(crate) struct Claims {
    next: AtomicUsize,
    items: usize,
    portion: usize,
}

impl Claims {
    pub(crate) fn new(items: usize, portion: usize) -> Claims {
        Claims { next: AtomicUsize::new(0), items, portion: portion.max(1) }
    }

    /// All items in one claim.
    pub(crate) fn whole(items: usize) -> Claims {
        Claims::new(items, items)
    }

    /// The next items to do; `None` when all are taken.
    pub(crate) fn next(&self) -> Option<Range<usize>> {
        // Relaxed: only the counter itself is shared; results are published when the job ends.
        let start = self.next.fetch_add(self.portion, Ordering::Relaxed);
        (start < self.items).then(|| start..(start + self.portion).min(self.items))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_cover_all_items_in_order() {
        let claims = Claims::new(7, 3);
        let ranges: Vec<_> = std::iter::from_fn(|| claims.next()).collect();
        assert_eq!(ranges, [0..3, 3..6, 6..7]);
        assert_eq!(Claims::whole(0).next(), None);
    }
}
