//! Streams whose reader takes nothing any more are cut off: the sequences behind them are cancelled.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use actix_web::web;
use futures_util::stream::Stream;

use super::errors::ApiError;

/// A stream that is dropped when what it has handed out is not taken within a time.
///
/// The HTTP library asks for the next piece at once, unless its buffer is full because the client does not read. So a piece after which
/// nobody asks means a client that has stopped reading; a stream that waits for tokens was asked and has nothing.
pub(super) struct Watched<S>(Rc<RefCell<Inner<S>>>);

struct Inner<S> {
    /// `None` once it has ended or was cut off.
    stream: Option<S>,
    /// When a piece was handed out after which nobody has asked.
    handed_out: Option<Instant>,
    /// What the client finds if it reads on after all.
    cut: Option<web::Bytes>,
}

impl<S: Stream<Item = web::Bytes> + Unpin + 'static> Watched<S> {
    /// Watches `stream` from now on; `last` is what a client that was cut off finds as the end. Needs an actix System.
    pub(super) fn new(stream: S, patience: Duration, last: web::Bytes) -> Watched<S> {
        let inner = Rc::new(RefCell::new(Inner { stream: Some(stream), handed_out: None, cut: None }));
        actix_web::rt::spawn(watch(Rc::downgrade(&inner), patience, last));
        Watched(inner)
    }
}

async fn watch<S>(inner: Weak<RefCell<Inner<S>>>, patience: Duration, last: web::Bytes) {
    loop {
        actix_web::rt::time::sleep(patience / 4).await;
        let Some(inner) = inner.upgrade() else { return };
        let mut inner = inner.borrow_mut();
        if inner.stream.is_none() {
            return;
        }
        if inner.handed_out.is_some_and(|since| since.elapsed() >= patience) {
            tracing::info!(?patience, "a client takes nothing of its stream: it is cut off");
            inner.cut = Some(last);
            let stream = inner.stream.take();
            drop(inner);
            drop(stream);
            return;
        }
    }
}

impl<S: Stream<Item = web::Bytes> + Unpin> Stream for Watched<S> {
    type Item = Result<web::Bytes, ApiError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut inner = self.0.borrow_mut();
        inner.handed_out = None;
        let Some(stream) = &mut inner.stream else { return Poll::Ready(inner.cut.take().map(Ok)) };
        let piece = Pin::new(stream).poll_next(cx);
        match &piece {
            Poll::Pending => {}
            Poll::Ready(Some(_)) => inner.handed_out = Some(Instant::now()),
            Poll::Ready(None) => inner.stream = None,
        }
        piece.map(|piece| piece.map(Ok))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;
    use futures_util::stream;
    use tokio::sync::mpsc;

    use super::*;

    const PATIENCE: Duration = Duration::from_millis(40);

    fn last() -> web::Bytes {
        web::Bytes::from_static(b"cut")
    }

    #[actix_web::test]
    async fn a_reader_that_stops_is_cut_off_and_finds_the_reason() {
        let (alive, mut gone) = mpsc::channel::<()>(1);
        let endless = stream::repeat_with(move || {
            let _held = &alive;
            web::Bytes::from_static(b"x")
        });
        let mut watched = Watched::new(endless, PATIENCE, last());
        assert_eq!(watched.next().await.unwrap().unwrap(), "x");
        // The channel closes when the stream is dropped.
        let dropped = tokio::time::timeout(Duration::from_secs(60), gone.recv()).await;
        assert_eq!(dropped, Ok(None));
        assert_eq!(watched.next().await.unwrap().unwrap(), "cut");
        assert!(watched.next().await.is_none());
    }

    #[actix_web::test]
    async fn a_reader_that_waits_for_more_is_left_alone() {
        let (send, mut receive) = mpsc::channel(1);
        let slow = stream::poll_fn(move |cx| receive.poll_recv(cx));
        let mut watched = Watched::new(slow, PATIENCE, last());
        send.send(web::Bytes::from_static(b"a")).await.unwrap();
        assert_eq!(watched.next().await.unwrap().unwrap(), "a");
        let later = actix_web::rt::spawn(async move { (watched.next().await, watched.next().await) });
        actix_web::rt::time::sleep(PATIENCE * 5).await;
        send.send(web::Bytes::from_static(b"b")).await.unwrap();
        drop(send);
        let (next, end) = later.await.unwrap();
        assert_eq!(next.unwrap().unwrap(), "b");
        assert!(end.is_none());
    }
}
