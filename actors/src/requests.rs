//! The requests that are open, each with its stream and what its lanes want: one map, which those who submit and the dispatcher share. Lanes hold
//! what is theirs of a request, and no lock.

use std::sync::Arc;

use dashmap::DashMap;
use tokio::sync::{Notify, mpsc};
use tokio::task::coop::consume_budget;
use tracing::Span;

use faser_engine::SeqId;

use crate::latency::RequestClock;
use crate::stream::Update;
use crate::submission::LaneRequest;

/// Room in a stream beside one place per token: one for `Finished`, one to spare.
const PLACES_BESIDE_TOKENS: usize = 2;
/// Updates for which a reader is woken once, who looks at an output when it is whole: so many are read in less time than a pass takes.
const UPDATES_AT_ONCE: usize = 32;

/// The open requests. Bounded by the engine's queue and batch: an entry goes when its sequence ends or is refused.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    open: DashMap<SeqId, Open>,
    emptied: Notify,
}

#[derive(Debug)]
struct Open {
    updates: mpsc::Sender<Update>,
    /// Of a reader that is not woken for each of them; it is dropped behind them.
    seldom: Option<Seldom>,
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
        let (updates, receiver) = mpsc::channel(max_new_tokens + PLACES_BESIDE_TOKENS);
        let seldom = whole.then(Seldom::default);
        let wake = seldom.as_ref().map(|seldom| seldom.wake.clone());
        self.open.insert(seq, Open { updates, seldom, for_lanes, clock: None, span: Span::current() });
        Updates { receiver, wake }
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
        let last = matches!(update, Update::Finished { .. });
        if let Err(mpsc::error::TrySendError::Full(_)) = self.updates.try_send(update) {
            tracing::error!(parent: &self.span, %seq, "a stream got more updates than the request may have tokens");
        }
        if let Some(seldom) = &mut self.seldom {
            seldom.put(last);
        }
    }
}

/// Wakes a reader for the first update, and from then on once for many: waking takes a core from a lane, for as long as half a draft step of a small
/// model takes.
#[derive(Debug, Default)]
struct Seldom {
    wake: Arc<Notify>,
    updates: usize,
}

impl Seldom {
    fn put(&mut self, last: bool) {
        if last || self.updates.is_multiple_of(UPDATES_AT_ONCE) {
            self.wake.notify_one();
        }
        self.updates += 1;
    }
}

impl Drop for Seldom {
    /// A stream may end without a last update.
    fn drop(&mut self) {
        self.wake.notify_one();
    }
}

/// The reader's end of a request.
#[derive(Debug)]
pub(crate) struct Updates {
    receiver: mpsc::Receiver<Update>,
    /// Told when there is something to read, where that is not with each update.
    wake: Option<Arc<Notify>>,
}

impl Updates {
    /// The next update; `None` when none is left and nobody can send one.
    pub(crate) async fn recv(&mut self) -> Option<Update> {
        let Some(wake) = &self.wake else { return self.receiver.recv().await };
        loop {
            // As `recv` does: who has much to read leaves the thread to others now and then.
            consume_budget().await;
            match self.receiver.try_recv() {
                Ok(update) => return Some(update),
                Err(mpsc::error::TryRecvError::Disconnected) => return None,
                Err(mpsc::error::TryRecvError::Empty) => wake.notified().await,
            }
        }
    }

    /// From now on whoever sends finds that nobody reads.
    pub(crate) fn close(&mut self) {
        self.receiver.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use faser_engine::{Emitted, FinishReason, Origin, Usage};
    use std::cell::RefCell;
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Wake};

    fn token(token: u32) -> Update {
        Update::Tokens([Emitted { token, origin: Origin::Target }].into_iter().collect())
    }

    fn open(requests: &Requests, seq: u64, max_new_tokens: usize) -> mpsc::Receiver<Update> {
        requests.open(SeqId(seq), max_new_tokens, Arc::default(), false).receiver
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

    /// Reads a stream to its end.
    async fn read(mut stream: Updates, found: &RefCell<Vec<Update>>) {
        while let Some(update) = stream.recv().await {
            found.borrow_mut().push(update);
        }
    }

    /// How often a reader is woken.
    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn who_looks_at_the_whole_is_woken_for_the_first_tokens_for_many_more_and_for_the_end() {
        let (requests, woken) = (Requests::default(), Arc::new(Woken::default()));
        let waker = woken.clone().into();
        let mut looks = Context::from_waker(&waker);
        let tokens = 3 * UPDATES_AT_ONCE as u32;
        let stream = requests.open(SeqId(1), tokens as usize, Arc::default(), true);
        let found = RefCell::new(Vec::new());
        let mut reader = pin!(read(stream, &found));
        assert!(reader.as_mut().poll(&mut looks).is_pending());
        let mut wakes = Vec::new();
        for id in 0..tokens {
            requests.send(SeqId(1), token(id), |_| ());
            // It looks when it is told to.
            if woken.0.swap(0, Ordering::Relaxed) > 0 {
                wakes.push(id as usize);
                assert!(reader.as_mut().poll(&mut looks).is_pending());
            }
        }
        assert_eq!(wakes, [0, UPDATES_AT_ONCE, 2 * UPDATES_AT_ONCE]);
        assert_eq!(found.borrow().len(), 2 * UPDATES_AT_ONCE + 1);
        let end = Update::Finished { reason: FinishReason::Length, usage: Usage::default() };
        requests.end(SeqId(1), end.clone(), |_| ());
        assert!(woken.0.load(Ordering::Relaxed) > 0 && reader.as_mut().poll(&mut looks).is_ready());
        assert_eq!(found.take(), (0..tokens).map(token).chain([end]).collect::<Vec<_>>());
    }

    #[test]
    fn who_looks_at_the_whole_hears_that_there_is_no_more() {
        let (requests, woken) = (Requests::default(), Arc::new(Woken::default()));
        let waker = woken.clone().into();
        let mut looks = Context::from_waker(&waker);
        let stream = requests.open(SeqId(1), 9, Arc::default(), true);
        let found = RefCell::new(Vec::new());
        let mut reader = pin!(read(stream, &found));
        requests.send(SeqId(1), token(0), |_| ());
        assert!(reader.as_mut().poll(&mut looks).is_pending());
        requests.send(SeqId(1), token(1), |_| ());
        woken.0.store(0, Ordering::Relaxed);
        requests.close_all();
        assert_eq!(woken.0.load(Ordering::Relaxed), 1, "the service was stopped");
        assert!(reader.as_mut().poll(&mut looks).is_ready());
        assert_eq!(found.take(), [token(0), token(1)]);
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
