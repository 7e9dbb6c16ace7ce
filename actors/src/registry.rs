//! Which stream belongs to which sequence: written by `Service::submit`, read and cleared by the dispatcher.

use dashmap::DashMap;
use tokio::sync::{Notify, mpsc};
use tracing::Span;

use faser_engine::SeqId;

use crate::stream::Update;

/// Room in a stream beside one place per token: one for `Finished`, one to spare.
const PLACES_BESIDE_TOKENS: usize = 2;

/// The open streams. Bounded by the engine's queue and batch: an entry goes when its sequence ends or is refused.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    streams: DashMap<SeqId, Open>,
    emptied: Notify,
}

#[derive(Debug)]
struct Open {
    updates: mpsc::Sender<Update>,
    /// What the request is called in the log of the one who asked.
    span: Span,
}

impl Registry {
    /// Opens a stream that can hold all updates of `max_new_tokens` tokens, so that the dispatcher never has to wait
    /// for a slow reader: an update carries at least one token.
    pub(crate) fn open(&self, seq: SeqId, max_new_tokens: usize) -> mpsc::Receiver<Update> {
        let (updates, receiver) = mpsc::channel(max_new_tokens + PLACES_BESIDE_TOKENS);
        self.streams.insert(seq, Open { updates, span: Span::current() });
        receiver
    }

    /// Hands an update to the stream's reader. A reader that is gone has asked for cancellation already.
    pub(crate) fn send(&self, seq: SeqId, update: Update) {
        if let Some(stream) = self.streams.get(&seq) {
            put(seq, &stream, update);
        }
    }

    /// Hands over the last update. The stream is forgotten before: a reader that sees the end finds it gone from here.
    pub(crate) fn end(&self, seq: SeqId, update: Update) {
        if let Some((_, stream)) = self.streams.remove(&seq) {
            put(seq, &stream, update);
        }
        self.tell_if_empty();
    }

    /// Nobody reads this stream any more.
    pub(crate) fn abandoned(&self, seq: SeqId) -> bool {
        self.streams.get(&seq).is_none_or(|stream| stream.updates.is_closed())
    }

    /// Forgets a stream whose request was not taken.
    pub(crate) fn close(&self, seq: SeqId) {
        self.streams.remove(&seq);
        self.tell_if_empty();
    }

    /// Forgets all streams.
    pub(crate) fn close_all(&self) {
        self.streams.clear();
        self.tell_if_empty();
    }

    /// Open streams.
    pub(crate) fn len(&self) -> usize {
        self.streams.len()
    }

    /// Waits until no stream is open.
    pub(crate) async fn emptied(&self) {
        loop {
            let emptied = self.emptied.notified();
            tokio::pin!(emptied);
            // Registered before the look, so that a close between the two is not missed.
            emptied.as_mut().enable();
            if self.streams.is_empty() {
                return;
            }
            emptied.await;
        }
    }

    fn tell_if_empty(&self) {
        if self.streams.is_empty() {
            self.emptied.notify_waiters();
        }
    }
}

fn put(seq: SeqId, stream: &Open, update: Update) {
    if let Err(mpsc::error::TrySendError::Full(_)) = stream.updates.try_send(update) {
        tracing::error!(parent: &stream.span, %seq, "a stream got more updates than the request may have tokens");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use faser_engine::{Emitted, Origin};

    fn token(token: u32) -> Update {
        Update::Tokens([Emitted { token, origin: Origin::Target }].into_iter().collect())
    }

    #[test]
    fn a_stream_holds_every_token_it_may_get_before_anyone_reads() {
        let registry = Registry::default();
        let mut stream = registry.open(SeqId(7), 3);
        (0..3).for_each(|id| registry.send(SeqId(7), token(id)));
        registry.end(SeqId(7), token(3));
        assert_eq!(registry.len(), 0);
        let read: Vec<_> = std::iter::from_fn(|| stream.try_recv().ok()).collect();
        assert_eq!(read, (0..4).map(token).collect::<Vec<_>>());
        assert_eq!(stream.try_recv(), Err(mpsc::error::TryRecvError::Disconnected));
    }

    #[test]
    fn a_stream_without_a_reader_is_abandoned() {
        let registry = Registry::default();
        let stream = registry.open(SeqId(1), 1);
        assert!(!registry.abandoned(SeqId(1)));
        drop(stream);
        assert!(registry.abandoned(SeqId(1)));
        assert!(registry.abandoned(SeqId(2)), "a stream that never was has no reader");
    }

    #[test]
    fn emptied_waits_for_the_last_stream() {
        let registry = std::sync::Arc::new(Registry::default());
        let _streams = [registry.open(SeqId(1), 1), registry.open(SeqId(2), 1)];
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let waiter = tokio::spawn({
                let registry = registry.clone();
                async move { registry.emptied().await }
            });
            registry.close(SeqId(1));
            tokio::task::yield_now().await;
            assert!(!waiter.is_finished());
            registry.close(SeqId(2));
            waiter.await.expect("the waiter ends");
        });
        assert_eq!(registry.len(), 0);
    }
}
