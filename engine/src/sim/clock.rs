//! Virtual time: what comes from outside, in the order of its time, and of its making where times are equal.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

#[derive(Debug)]
pub(super) struct EventQueue<T> {
    order: BinaryHeap<Reverse<(Duration, u64)>>,
    events: BTreeMap<u64, T>,
    made: u64,
}

impl<T> Default for EventQueue<T> {
    fn default() -> EventQueue<T> {
        EventQueue { order: BinaryHeap::new(), events: BTreeMap::new(), made: 0 }
    }
}

impl<T> EventQueue<T> {
    pub(super) fn push(&mut self, at: Duration, event: T) {
        self.made += 1;
        self.order.push(Reverse((at, self.made)));
        self.events.insert(self.made, event);
    }

    /// The time of the next event.
    pub(super) fn next(&self) -> Option<Duration> {
        self.order.peek().map(|Reverse((at, _))| *at)
    }

    pub(super) fn pop(&mut self) -> Option<(Duration, T)> {
        let Reverse((at, made)) = self.order.pop()?;
        Some((at, self.events.remove(&made)?))
    }
}
