//! Chunks of plans that are out and that nobody waits for any more: the dispatcher writes them down, a lane looks in the
//! middle of its work. In a group the first rank alone asks: ranks that let different rows go could not go on together.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use faser_engine::SeqId;

/// What a runner asks between two layers of a pass, or two draft steps: which sequences fell meanwhile.
pub trait Fallen {
    /// Appends the sequences of plan `step` that fell since it was asked last. `layers` of the pass in the making are done.
    fn fallen(&mut self, step: u64, layers: usize, out: &mut Vec<SeqId>);
}

/// The list of one lane. Bounded by the plans that are out, whose chunks fall at most once each.
#[derive(Debug, Default)]
pub(crate) struct ShedList {
    /// Additions so far, so that a look at an unchanged list is one load.
    additions: AtomicU64,
    list: Mutex<Vec<(u64, SeqId)>>,
}

impl ShedList {
    /// A chunk fell.
    pub(crate) fn add(&self, step: u64, seq: SeqId) {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).push((step, seq));
        self.additions.fetch_add(1, Ordering::Release);
    }
}

/// A lane's look at its list.
pub(crate) struct ShedReader {
    list: Arc<ShedList>,
    seen: u64,
}

impl ShedReader {
    pub(crate) fn new(list: Arc<ShedList>) -> ShedReader {
        ShedReader { list, seen: 0 }
    }
}

impl Fallen for ShedReader {
    fn fallen(&mut self, step: u64, _layers: usize, out: &mut Vec<SeqId>) {
        if self.list.additions.load(Ordering::Acquire) == self.seen {
            return;
        }
        let mut list = self.list.list.lock().unwrap_or_else(PoisonError::into_inner);
        self.seen = self.list.additions.load(Ordering::Acquire);
        out.extend(list.iter().filter(|(of, _)| *of == step).map(|(_, seq)| *seq));
        // What is about earlier plans is of no use any more.
        list.retain(|(of, _)| *of > step);
    }
}

/// What has fallen under the plan at hand, as far as this rank has heard.
#[derive(Default)]
pub struct Falls {
    source: Option<Box<dyn Fallen>>,
    seqs: Vec<SeqId>,
}

impl Falls {
    /// From now on asks this one.
    pub(crate) fn listen(&mut self, source: Box<dyn Fallen>) {
        self.source = Some(source);
    }

    /// Whether anybody is asked.
    pub(crate) fn listens(&self) -> bool {
        self.source.is_some()
    }

    /// A new plan: nothing has fallen.
    pub(crate) fn begin(&mut self) {
        self.seqs.clear();
    }

    /// The sequences that have fallen under this plan.
    pub(crate) fn gone(&self) -> &[SeqId] {
        &self.seqs
    }

    /// Asks again, with `layers` of the plan done.
    pub(crate) fn ask(&mut self, step: u64, layers: usize) {
        if let Some(source) = &mut self.source {
            source.fallen(step, layers, &mut self.seqs);
        }
    }

    /// The first rank has heard of these instead.
    pub(crate) fn hear(&mut self, gone: impl Iterator<Item = SeqId>) {
        self.seqs.clear();
        self.seqs.extend(gone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_hears_once_of_what_fell_under_its_plan() {
        let list = Arc::new(ShedList::default());
        let mut reader = ShedReader::new(list.clone());
        let mut look = |step| {
            let mut out = Vec::new();
            reader.fallen(step, 0, &mut out);
            out
        };
        assert_eq!(look(1), []);
        list.add(1, SeqId(7));
        list.add(2, SeqId(8));
        assert_eq!(look(1), [SeqId(7)]);
        assert_eq!(look(1), []);
        list.add(1, SeqId(9));
        assert_eq!(look(2), [SeqId(8)]);
        assert!(list.list.lock().unwrap().is_empty());
    }
}
