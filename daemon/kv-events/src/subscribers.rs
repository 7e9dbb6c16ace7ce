//! Who has subscribed, as a PUB socket knows them: nobody waits for any of them.

use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::timeout;

use crate::zmtp::{Said, greet, hear, pong};

/// Messages that wait for a subscriber, as vLLM's `hwm`; and their bytes. It misses what is more.
const MOST_WAITING: usize = 100_000;
const MOST_WAITING_BYTES: usize = 64 << 20;
/// Topics of one subscriber.
const MOST_TOPICS: usize = 64;
/// A subscriber that takes nothing for so long is gone.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// All of them. Clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Subscribers(Arc<Mutex<Vec<Arc<Subscriber>>>>);

struct Subscriber {
    queue: Sender<Bytes>,
    waiting_bytes: AtomicUsize,
    /// What its messages begin with.
    topics: Mutex<Vec<Vec<u8>>>,
}

impl Subscribers {
    /// Has those who want this topic sent a message.
    pub(crate) fn send(&self, topic: &[u8], message: &Bytes) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|subscriber| !subscriber.queue.is_closed());
        all.iter()
            .filter(|subscriber| subscriber.wants(topic))
            .for_each(|subscriber| subscriber.put(message));
    }

    /// Serves one, until it goes.
    pub(crate) async fn serve(&self, mut stream: TcpStream) -> io::Result<()> {
        greet(&mut stream, "PUB", &["SUB", "XSUB"]).await?;
        stream.set_nodelay(true)?;
        let (queue, waiting) = channel(MOST_WAITING);
        let subscriber =
            Arc::new(Subscriber { queue, waiting_bytes: AtomicUsize::new(0), topics: Mutex::default() });
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&subscriber));
        let (mut reads, writes) = stream.into_split();
        let hears = async {
            loop {
                match hear(&mut reads).await? {
                    Said::Subscribe(topic) => subscriber.subscribe(topic)?,
                    Said::Cancel(topic) => subscriber.cancel(&topic),
                    // As subscribers of ZMTP 3.0 say it.
                    Said::Message(frames) => match frames.as_slice() {
                        [said] if said.first() == Some(&1) => subscriber.subscribe(said[1..].to_vec())?,
                        [said] if said.first() == Some(&0) => subscriber.cancel(&said[1..]),
                        _ => {}
                    },
                    Said::Ping(context) => subscriber.put(&pong(&context)),
                }
            }
        };
        tokio::select! {
            ended = hears => ended,
            ended = sends(writes, waiting, &subscriber.waiting_bytes) => ended,
        }
    }
}

async fn sends(
    mut writes: impl AsyncWriteExt + Unpin,
    mut waiting: Receiver<Bytes>,
    waiting_bytes: &AtomicUsize,
) -> io::Result<()> {
    while let Some(message) = waiting.recv().await {
        let sent = timeout(WRITE_TIMEOUT, writes.write_all(&message)).await;
        sent.map_err(|_| io::Error::from(ErrorKind::TimedOut))??;
        waiting_bytes.fetch_sub(message.len(), Ordering::Relaxed);
    }
    Ok(())
}

impl Subscriber {
    fn put(&self, message: &Bytes) {
        let waiting = self.waiting_bytes.fetch_add(message.len(), Ordering::Relaxed);
        if waiting + message.len() > MOST_WAITING_BYTES || self.queue.try_send(message.clone()).is_err() {
            self.waiting_bytes.fetch_sub(message.len(), Ordering::Relaxed);
            tracing::debug!("a subscriber of KV events is too slow and misses some");
        }
    }

    fn wants(&self, topic: &[u8]) -> bool {
        let topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
        topics.iter().any(|wanted| topic.starts_with(wanted))
    }

    fn subscribe(&self, topic: Vec<u8>) -> io::Result<()> {
        let mut topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
        if topics.len() == MOST_TOPICS {
            return Err(io::Error::new(ErrorKind::InvalidData, "a peer subscribes to too much"));
        }
        topics.push(topic);
        Ok(())
    }

    fn cancel(&self, topic: &[u8]) {
        let mut topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = topics.iter().position(|known| known == topic) {
            topics.swap_remove(at);
        }
    }
}
