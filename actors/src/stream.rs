//! The client's end of a request: a stream of tokens whose drop cancels.
//!
//! How a drop reaches the dispatcher without ever waiting, blocking or being lost: the stream closes its channel, puts
//! its id into the `CancelSet`, then tries to wake the dispatcher. The dispatcher empties the set at the end of every
//! message it handles. If the wake-up is refused because the mailbox is full, a message is in it whose handling begins
//! later than the put, so the set is seen then. The set is bounded by the open streams: each puts its id once.
//! A drop may even overtake its own `Submit`: that one then finds the channel closed and is not handed to the engine.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use actix::Recipient;

use faser_engine::{EmittedTokens, FinishReason, SeqId, Usage};

use crate::message::Message;
use crate::requests::Updates;

/// What a stream brings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update {
    /// Committed tokens, at least one, in order; they never change.
    Tokens(EmittedTokens),
    /// The end; nothing follows.
    Finished {
        /// Why the sequence ended.
        reason: FinishReason,
        /// What it took.
        usage: Usage,
    },
}

/// The tokens of one request. Dropping it before `Update::Finished` was seen cancels the request and frees its blocks.
pub struct TokenStream {
    seq: SeqId,
    updates: Updates,
    canceller: Arc<Canceller>,
    finished: bool,
    cancelled: bool,
}

impl TokenStream {
    pub(crate) fn new(seq: SeqId, updates: Updates, canceller: Arc<Canceller>) -> TokenStream {
        TokenStream { seq, updates, canceller, finished: false, cancelled: false }
    }

    /// The next update; `None` after `Update::Finished`, and without it if the service was stopped under the stream.
    pub async fn next(&mut self) -> Option<Update> {
        if self.finished {
            return None;
        }
        let update = self.updates.recv().await;
        self.finished = !matches!(update, Some(Update::Tokens(_)));
        update
    }

    /// Cancels the request and keeps the stream: `Update::Finished` follows, behind what had come before.
    pub fn cancel(&mut self) {
        if !self.finished && !std::mem::replace(&mut self.cancelled, true) {
            self.canceller.cancel(self.seq);
        }
    }

    /// The sequence behind the stream, for logs.
    pub fn seq(&self) -> SeqId {
        self.seq
    }

    /// There is nothing to cancel: the request was not taken.
    pub(crate) fn disarm(mut self) {
        self.finished = true;
    }
}

impl std::fmt::Debug for TokenStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TokenStream({})", self.seq)
    }
}

impl Drop for TokenStream {
    fn drop(&mut self) {
        if !self.finished {
            self.updates.close();
            self.cancel();
        }
    }
}

/// Sequences whose clients are gone, until the dispatcher takes them.
#[derive(Debug, Default)]
pub(crate) struct CancelSet(Mutex<Vec<SeqId>>);

impl CancelSet {
    /// Moves all waiting ids to `into`, which is empty.
    pub(crate) fn take(&self, into: &mut Vec<SeqId>) {
        std::mem::swap(&mut *self.lock(), into);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<SeqId>> {
        // A list of ids is whole whatever panicked while it was held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The streams' way to the set, and to the dispatcher's attention.
pub(crate) struct Canceller {
    pub(crate) set: Arc<CancelSet>,
    pub(crate) dispatcher: Recipient<Message>,
}

impl Canceller {
    fn cancel(&self, seq: SeqId) {
        self.set.lock().push(seq);
        // Full: see the module's first lines. Closed: the service has stopped, and nothing is held any more.
        let _ = self.dispatcher.try_send(Message::CancelsWaiting);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::time::Duration;

    use actix::{Actor, Context, Handler, System};
    use tokio::sync::mpsc;

    use crate::requests::Requests;

    /// Stands in for the dispatcher: slow, with a tiny mailbox, and it empties the set after every message.
    struct Slow {
        set: Arc<CancelSet>,
        seen: mpsc::UnboundedSender<SeqId>,
    }

    impl Actor for Slow {
        type Context = Context<Self>;

        fn started(&mut self, ctx: &mut Self::Context) {
            ctx.set_mailbox_capacity(1);
        }
    }

    impl Handler<Message> for Slow {
        type Result = ();

        fn handle(&mut self, _: Message, _: &mut Self::Context) {
            std::thread::sleep(Duration::from_micros(200));
            let mut taken = Vec::new();
            self.set.take(&mut taken);
            taken.into_iter().for_each(|seq| self.seen.send(seq).expect("the test listens"));
        }
    }

    #[test]
    fn no_drop_is_lost_however_full_the_mailbox_is() {
        const STREAMS: u64 = 400;
        let seen = System::new().block_on(async {
            let set = Arc::new(CancelSet::default());
            let (seen, mut listen) = mpsc::unbounded_channel();
            let slow = Slow { set: set.clone(), seen }.start();
            let canceller = Arc::new(Canceller { set, dispatcher: slow.recipient() });
            let droppers: Vec<_> = (0..4)
                .map(|dropper| {
                    let canceller = canceller.clone();
                    std::thread::spawn(move || {
                        for seq in (dropper..STREAMS).step_by(4).map(SeqId) {
                            let updates = Requests::default().open(seq, 1, Arc::default(), false);
                            drop(TokenStream::new(seq, updates, canceller.clone()));
                        }
                    })
                })
                .collect();
            let mut seen = HashSet::new();
            while seen.len() < STREAMS as usize {
                let seq = tokio::time::timeout(Duration::from_secs(10), listen.recv()).await;
                seen.insert(seq.expect("every drop is seen").expect("the stand-in lives"));
            }
            droppers.into_iter().for_each(|dropper| dropper.join().expect("a dropper"));
            seen
        });
        assert_eq!(seen, (0..STREAMS).map(SeqId).collect());
    }
}
