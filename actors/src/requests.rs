//! The requests that are open, each with its stream and what its lanes want: one map, which those who submit and the dispatcher share. Lanes hold
//! what is theirs of a request, and no lock.

use std::sync::Arc;

use dashmap::DashMap;
use tokio::sync::Notify;
use tracing::Span;

use faser_engine::SeqId;

use crate::latency::RequestClock;
use crate::stream::{self, Update, UpdateSender, Updates};
use crate::submission::LaneRequest;

/// Room in a stream beside one place per token: one for `Finished`, one to spare.
const PLACES_BESIDE_TOKENS: usize = 2;
/// The open requests. Bounded by the engine's queue and batch: an entry goes when its sequence ends or is refused.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    open: DashMap<SeqId, Open>,
    emptied: Notify,
}

#[derive(Debug)]
struct Open {
    updates: UpdateSender,
    for_lanes: Arc<LaneRequest>,
    /// Once the dispatcher has taken it.
    clock: Option<RequestClock>,
    /// What the request is called in the log of the one who asked.
    span: Span,
}

impl Requests {
    /// Opens a stream that can hold all updates of `max_new_tokens` tokens, so that the dispatcher never has to wait
    /// for a slow reader: an update carries at least one token. Where the output is looked at when it is `whole`, the reader is woken seldom.
    pub(crate) fn open(
        &self,
        seq: SeqId,
        max_new_tokens: usize,
        for_lanes: Arc<LaneRequest>,
        whole: bool,
    ) -> Updates {
        let (updates, reader) = stream::updates(max_new_tokens + PLACES_BESIDE_TOKENS, whole);
        self.open.insert(seq, Open { updates, for_lanes, clock: None, span: Span::current() });
        reader
    }

    /// The dispatcher takes a request; false if nobody reads its stream any more, and then it is forgotten.
    pub(crate) fn take(&self, seq: SeqId, clock: RequestClock) -> bool {
        match self.open.get_mut(&seq) {
            Some(mut request) if !request.updates.is_closed() => request.clock = Some(clock),
            abandoned => {
                drop(abandoned);
                self.close(seq);
                return false;
            }
        }
        true
    }

    /// Whether the dispatcher has such a request.
    pub(crate) fn taken(&self, seq: SeqId) -> bool {
        self.open.get(&seq).is_some_and(|request| request.clock.is_some())
    }

    /// What lanes have to know of a request.
    pub(crate) fn for_lanes(&self, seq: SeqId) -> Option<Arc<LaneRequest>> {
        self.open.get(&seq).map(|request| request.for_lanes.clone())
    }

    /// Hands an update to the stream's reader, once `timed` has looked at the request's clock. A reader that is gone has asked for cancellation
    /// already.
    pub(crate) fn send(&self, seq: SeqId, update: Update, timed: impl FnOnce(&mut RequestClock)) {
        if let Some(mut request) = self.open.get_mut(&seq) {
            if let Some(clock) = &mut request.clock {
                timed(clock);
            }
            request.put(seq, update);
        }
    }

    /// Hands over the last update. The request is forgotten before: a reader that sees the end finds it gone from here.
    pub(crate) fn end(&self, seq: SeqId, update: Update, timed: impl FnOnce(&RequestClock)) {
        if let Some((_, mut request)) = self.open.remove(&seq) {
            if let Some(clock) = &request.clock {
                timed(clock);
            }
            request.put(seq, update);
        }
        self.tell_if_empty();
    }

    /// Forgets a request that was not taken.
    pub(crate) fn close(&self, seq: SeqId) {
        self.open.remove(&seq);
        self.tell_if_empty();
    }

    /// Forgets all requests.
    pub(crate) fn close_all(&self) {
        self.open.clear();
        self.tell_if_empty();
    }

    /// Open requests.
    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    /// Waits until no request is open.
    pub(crate) async fn emptied(&self) {
        loop {
            let emptied = self.emptied.notified();
            tokio::pin!(emptied);
            // Registered before the look, so that a close between the two is not missed.
            emptied.as_mut().enable();
            if self.open.is_empty() {
                return;
            }
            emptied.await;
        }
    }

    fn tell_if_empty(&self) {
        if self.open.is_empty() {
            self.emptied.notify_waiters();
        }
    }
}

impl Open {
    fn put(&mut self, seq: SeqId, update: Update) {
        if !self.updates.send(update) {
            tracing::error!(parent: &self.span, %seq, "a stream got more updates than the request may have tokens");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use faser_engine::{Emitted, Origin};
    use tokio::sync::mpsc;

    fn token(token: u32) -> Update {
        Update::Tokens([Emitted { token, origin: Origin::Target }].into_iter().collect())
    }

    fn open(requests: &Requests, seq: u64, max_new_tokens: usize) -> mpsc::Receiver<Update> {
        requests.open(SeqId(seq), max_new_tokens, Arc::default(), false).into_receiver()
    }

    fn clock() -> RequestClock {
        RequestClock::new(std::time::Instant::now(), 1)
    }

    #[test]
    fn a_stream_holds_every_token_it_may_get_before_anyone_reads() {
        let requests = Requests::default();
        let mut stream = open(&requests, 7, 3);
        let mut timed = 0;
        requests.send(SeqId(7), token(0), |_| timed += 1);
        assert!(requests.take(SeqId(7), clock()) && requests.taken(SeqId(7)));
        (1..3).for_each(|id| requests.send(SeqId(7), token(id), |_| timed += 1));
        requests.end(SeqId(7), token(3), |_| timed += 1);
        assert_eq!((requests.len(), timed), (0, 3), "once it was taken");
        let read: Vec<_> = std::iter::from_fn(|| stream.try_recv().ok()).collect();
        assert_eq!(read, (0..4).map(token).collect::<Vec<_>>());
        assert_eq!(stream.try_recv(), Err(mpsc::error::TryRecvError::Disconnected));
    }

    #[test]
    fn a_request_without_a_reader_is_not_taken() {
        let requests = Requests::default();
        let stream = open(&requests, 1, 1);
        assert!(!requests.taken(SeqId(1)) && requests.for_lanes(SeqId(1)).is_some());
        drop(stream);
        assert!(!requests.take(SeqId(1), clock()));
        assert!(!requests.take(SeqId(2), clock()), "one that never was has no reader");
        assert_eq!(requests.len(), 0);
    }

    #[test]
    fn emptied_waits_for_the_last_stream() {
        let requests = Arc::new(Requests::default());
        let _streams = [open(&requests, 1, 1), open(&requests, 2, 1)];
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let waiter = tokio::spawn({
                let requests = requests.clone();
                async move { requests.emptied().await }
            });
            requests.close(SeqId(1));
            tokio::task::yield_now().await;
            assert!(!waiter.is_finished());
            requests.close(SeqId(2));
            waiter.await.expect("the waiter ends");
        });
        assert_eq!(requests.len(), 0);
    }
}
