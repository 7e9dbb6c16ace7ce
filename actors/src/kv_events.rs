//! On their way out: the engine's KV events of a step, in a bounded queue to whoever publishes them. The dispatcher never waits for that.
//!
//! A batch that finds the queue full is dropped and counted. Its sequence number is not used again, so whoever listens sees the gap. Once
//! half of the queue is free all that is cached is told anew, and the index of whoever listens is right again.

use std::time::SystemTime;

use faser_engine::{Engine, KvEvent};
use metrics::{Counter, Unit};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use crate::meter::Meter;

/// Batches that may wait. One has a few blocks most often, of a pass or of what was evicted for one.
const QUEUE_CAPACITY: usize = 4096;

/// What changed in one step.
#[derive(Clone, Debug, PartialEq)]
pub struct KvBatch {
    /// Numbers go up by one from 0; those of dropped batches are missing.
    pub sequence: u64,
    /// When it changed.
    pub at: SystemTime,
    /// The changes, in their order; at least one.
    pub events: Vec<KvEvent>,
}

/// The end of the queue that a service has.
#[derive(Debug)]
pub struct KvSender {
    queue: mpsc::Sender<KvBatch>,
}

/// A queue for the KV events of one service.
pub fn kv_queue() -> (KvSender, mpsc::Receiver<KvBatch>) {
    kv_queue_of(QUEUE_CAPACITY)
}

pub(crate) fn kv_queue_of(batches: usize) -> (KvSender, mpsc::Receiver<KvBatch>) {
    let (queue, batches) = mpsc::channel(batches);
    (KvSender { queue }, batches)
}

/// What the dispatcher passes on.
pub(crate) struct KvFeed {
    queue: mpsc::Sender<KvBatch>,
    next: u64,
    /// Something was dropped since all was told.
    missed: bool,
    published: Counter,
    dropped: Counter,
}

impl KvFeed {
    /// One with metrics of its own.
    pub(crate) fn new(sender: KvSender, meter: &Meter) -> KvFeed {
        let counts = |name, text| meter.counts(name, Unit::Count, text);
        KvFeed {
            queue: sender.queue,
            next: 0,
            missed: false,
            published: counts("faser_kv_event_batches_total", "batches of KV events handed to the publisher"),
            dropped: counts(
                "faser_kv_event_batches_dropped_total",
                "batches of KV events that were dropped, because the publisher's queue was full",
            ),
        }
    }

    /// Hands on what is new.
    pub(crate) fn pass_on(&mut self, engine: &Engine) {
        if self.missed && self.queue.capacity() >= self.queue.max_capacity().div_ceil(2) {
            engine.tell_kv_events_again();
            self.missed = false;
        }
        let mut events = Vec::new();
        engine.take_kv_events(&mut events);
        if events.is_empty() {
            return;
        }
        let batch = KvBatch { sequence: self.next, at: SystemTime::now(), events };
        self.next += 1;
        match self.queue.try_send(batch) {
            Ok(()) => self.published.increment(1),
            Err(TrySendError::Full(_)) => {
                self.dropped.increment(1);
                self.missed = true;
            }
            // The publisher has ended, and so does the daemon.
            Err(TrySendError::Closed(_)) => {}
        }
    }
}
