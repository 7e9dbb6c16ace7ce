//! The client's end of a request: a stream of tokens whose drop cancels.
//!
//! How a drop reaches the dispatcher without ever waiting, blocking or being lost: the stream closes its channel, puts
//! its id into the `CancelSet`, then tries to wake the dispatcher. The dispatcher empties the set at the end of every
//! message it handles. If the wake-up is refused because the mailbox is full, a message is in it whose handling begins
//! later than the put, so the set is seen then. The set is bounded by the open streams: each puts its id once.
//! A drop may even overtake its own `Submit`: that one then finds the channel closed and is not handed to the engine.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use actix::Recipient;
use tokio::sync::{Notify, mpsc};
use tokio::task::coop::consume_budget;

use faser_engine::{EmittedTokens, FinishReason, SeqId, Usage};

use crate::message::Message;

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

/// Updates for which a reader is woken once, who looks at an output when it is whole: so many are read in less time than a pass takes.
const UPDATES_AT_ONCE: usize = 32;

/// The two ends of a request, with room for so many updates. The reader of an output that is looked at when it is `whole` is woken seldom.
pub(crate) fn updates(capacity: usize, whole: bool) -> (UpdateSender, Updates) {
    let (sender, receiver) = mpsc::channel(capacity);
    let seldom = whole.then(Seldom::default);
    let wake = seldom.as_ref().map(|seldom| seldom.wake.clone());
    (UpdateSender { sender, seldom }, Updates { receiver, wake })
}

/// The dispatcher's end of a request.
#[derive(Debug)]
pub(crate) struct UpdateSender {
    sender: mpsc::Sender<Update>,
    /// Dropped behind it.
    seldom: Option<Seldom>,
}

impl UpdateSender {
    /// Hands an update over; false if there is no room for it. A reader that is gone has asked for cancellation already.
    pub(crate) fn send(&mut self, update: Update) -> bool {
        let last = matches!(update, Update::Finished { .. });
        let sent = self.sender.try_send(update);
        if let Some(seldom) = &mut self.seldom {
            seldom.sent(last);
        }
        !matches!(sent, Err(mpsc::error::TrySendError::Full(_)))
    }

    /// Nobody reads any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }
}

/// Wakes a reader for the first update, and from then on once for many: waking takes a core from a lane, for as long as half a draft step of a
/// small model takes.
#[derive(Debug, Default)]
struct Seldom {
    wake: Arc<Notify>,
    updates: usize,
}

impl Seldom {
    fn sent(&mut self, last: bool) {
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
    fn close(&mut self) {
        self.receiver.close();
    }

    #[cfg(test)]
    pub(crate) fn into_receiver(self) -> mpsc::Receiver<Update> {
        self.receiver
    }
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
    use std::cell::RefCell;
    use std::collections::HashSet;
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task;
    use std::time::Duration;

    use actix::{Actor, Context, Handler, System};
    use faser_engine::{Emitted, Origin};

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

    fn token(token: u32) -> Update {
        Update::Tokens([Emitted { token, origin: Origin::Target }].into_iter().collect())
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

    impl task::Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn who_looks_at_the_whole_is_woken_for_the_first_tokens_for_many_more_and_for_the_end() {
        let woken = Arc::new(Woken::default());
        let waker = woken.clone().into();
        let mut looks = task::Context::from_waker(&waker);
        let tokens = 3 * UPDATES_AT_ONCE as u32;
        let (mut sender, stream) = updates(tokens as usize + 1, true);
        let found = RefCell::new(Vec::new());
        let mut reader = pin!(read(stream, &found));
        assert!(reader.as_mut().poll(&mut looks).is_pending());
        let mut wakes = Vec::new();
        for id in 0..tokens {
            assert!(sender.send(token(id)));
            // It looks when it is told to.
            if woken.0.swap(0, Ordering::Relaxed) > 0 {
                wakes.push(id as usize);
                assert!(reader.as_mut().poll(&mut looks).is_pending());
            }
        }
        assert_eq!(wakes, [0, UPDATES_AT_ONCE, 2 * UPDATES_AT_ONCE]);
        assert_eq!(found.borrow().len(), 2 * UPDATES_AT_ONCE + 1);
        let end = Update::Finished { reason: FinishReason::Length, usage: Usage::default() };
        assert!(sender.send(end.clone()));
        drop(sender);
        assert!(woken.0.load(Ordering::Relaxed) > 0 && reader.as_mut().poll(&mut looks).is_ready());
        assert_eq!(found.take(), (0..tokens).map(token).chain([end]).collect::<Vec<_>>());
    }

    #[test]
    fn who_looks_at_the_whole_hears_that_there_is_no_more() {
        let woken = Arc::new(Woken::default());
        let waker = woken.clone().into();
        let mut looks = task::Context::from_waker(&waker);
        let (mut sender, stream) = updates(9, true);
        let found = RefCell::new(Vec::new());
        let mut reader = pin!(read(stream, &found));
        assert!(sender.send(token(0)));
        assert!(reader.as_mut().poll(&mut looks).is_pending());
        assert!(sender.send(token(1)));
        woken.0.store(0, Ordering::Relaxed);
        drop(sender);
        assert_eq!(woken.0.load(Ordering::Relaxed), 1, "the service was stopped");
        assert!(reader.as_mut().poll(&mut looks).is_ready());
        assert_eq!(found.take(), [token(0), token(1)]);
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
                            let (_sender, updates) = updates(1, false);
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
