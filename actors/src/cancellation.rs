//! Cancelled chunks of plans that are out: the dispatcher writes them down, a lane looks in the middle of its work. In a
//! group the first rank alone asks: ranks that let different rows go could not go on together.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// What a runner asks between two layers of a pass, or two draft steps: which chunks were cancelled meanwhile.
pub trait CancelSource {
    /// Appends the chunks of plan `step`, by their places in it, that were cancelled since it was asked last. `layers` of the pass in the making are done.
    fn cancelled(&mut self, step: u64, layers: usize, out: &mut Vec<usize>);
}

/// Plans of a lane that may be out at a time.
const PLANS_OUT: u64 = 2;

/// The list of one lane. Bounded by the plans that are out, whose chunks are cancelled at most once each: what is about earlier ones goes, also where
/// no lane looks, as after the first rank of a group.
#[derive(Debug, Default)]
pub(crate) struct CancelList {
    /// Additions so far, so that a look at an unchanged list is one load.
    additions: AtomicU64,
    list: Mutex<Vec<(u64, usize)>>,
}

impl CancelList {
    /// A chunk was cancelled.
    pub(crate) fn add(&self, step: u64, chunk: usize) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.retain(|(of, _)| of + PLANS_OUT > step);
        list.push((step, chunk));
        self.additions.fetch_add(1, Ordering::Release);
    }
}

/// A lane's look at its list.
pub(crate) struct CancelReader {
    list: Arc<CancelList>,
    seen: u64,
}

impl CancelReader {
    pub(crate) fn new(list: Arc<CancelList>) -> CancelReader {
        CancelReader { list, seen: 0 }
    }
}

impl CancelSource for CancelReader {
    fn cancelled(&mut self, step: u64, _layers: usize, out: &mut Vec<usize>) {
        if self.list.additions.load(Ordering::Acquire) == self.seen {
            return;
        }
        let mut list = self.list.list.lock().unwrap_or_else(PoisonError::into_inner);
        self.seen = self.list.additions.load(Ordering::Acquire);
        out.extend(list.iter().filter(|(of, _)| *of == step).map(|(_, chunk)| *chunk));
        // What is about earlier plans is of no use any more.
        list.retain(|(of, _)| *of > step);
    }
}

/// What was cancelled of the plan at hand, as far as this rank has heard.
#[derive(Default)]
pub struct Cancelled {
    source: Option<Box<dyn CancelSource>>,
    chunks: Vec<usize>,
}

impl Cancelled {
    /// From now on asks this one.
    pub(crate) fn listen(&mut self, source: Box<dyn CancelSource>) {
        self.source = Some(source);
    }

    /// Whether anybody is asked.
    pub(crate) fn listens(&self) -> bool {
        self.source.is_some()
    }

    /// A new plan: nothing is cancelled.
    pub(crate) fn begin(&mut self) {
        self.chunks.clear();
    }

    /// The chunks of this plan that were cancelled.
    pub(crate) fn chunks(&self) -> &[usize] {
        &self.chunks
    }

    /// Asks again, with `layers` of the plan done.
    pub(crate) fn ask(&mut self, step: u64, layers: usize) {
        if let Some(source) = &mut self.source {
            source.cancelled(step, layers, &mut self.chunks);
        }
    }

    /// The first rank has heard of these instead.
    pub(crate) fn hear(&mut self, chunks: impl Iterator<Item = usize>) {
        self.chunks.clear();
        self.chunks.extend(chunks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_hears_once_of_what_was_cancelled_of_its_plan() {
        let list = Arc::new(CancelList::default());
        let mut reader = CancelReader::new(list.clone());
        let mut look = |step| {
            let mut out = Vec::new();
            reader.cancelled(step, 0, &mut out);
            out
        };
        assert!(look(1).is_empty());
        list.add(1, 7);
        list.add(2, 8);
        assert_eq!(look(1), [7]);
        assert!(look(1).is_empty());
        list.add(1, 9);
        assert_eq!(look(2), [8]);
        assert!(list.list.lock().unwrap().is_empty());
        // Where nobody looks it is no longer than what is out.
        (1..100).for_each(|step| list.add(step, 0));
        assert_eq!(*list.list.lock().unwrap(), [(98, 0), (99, 0)]);
    }
}
