//! Virtual time: events in the order of their times, and of their making where times are equal.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use crate::api::Event;

#[derive(Debug, Default)]
pub(super) struct EventQueue {
    order: BinaryHeap<Reverse<(Duration, u64)>>,
    events: BTreeMap<u64, Event>,
    made: u64,
}

impl EventQueue {
    pub(super) fn push(&mut self, at: Duration, event: Event) {
        self.made += 1;
        self.order.push(Reverse((at, self.made)));
        self.events.insert(self.made, event);
    }

    pub(super) fn pop(&mut self) -> Option<(Duration, Event)> {
        let Reverse((at, made)) = self.order.pop()?;
        Some((at, self.events.remove(&made)?))
    }
}
