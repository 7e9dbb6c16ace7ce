//! The sockets and the thread that has them.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use faser_actors::{KvBatch, KvSender, kv_queue};
use faser_config::KvEventsConfig;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;

use crate::encoding::encoded;
use crate::subscribers::Subscribers;
use crate::zmtp::{Said, greet, hear, message, pong};

/// Past batches are kept in no more memory than this, whatever their number.
const MOST_KEPT_BYTES: usize = 256 << 20;
/// Who asks for past batches has to take them in this time.
const REPLAY_TIMEOUT: Duration = Duration::from_secs(30);
/// Subscribers, and askers, of a replica.
const MOST_CONNECTIONS: usize = 256;
/// Where the system gives no connection, such as for want of descriptors.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
/// The sequence number behind the last past batch: -1.
const END: Bytes = Bytes::from_static(&[0xff; 8]);

/// Why nothing can be published.
#[derive(Debug, thiserror::Error)]
pub enum KvEventsError {
    /// An address cannot be had.
    #[error(
        "`{key}`: cannot listen on {address}: {source}. Each replica of each pair needs a port of its own"
    )]
    Bind {
        /// The key that names it.
        key: &'static str,
        /// Where.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// The thread cannot be had.
    #[error("the thread that publishes KV events cannot be started: {0}")]
    Thread(std::io::Error),
}

/// The sockets of one replica; from now on connections wait there.
#[derive(Debug)]
pub struct Endpoints {
    publish: TcpListener,
    replay: Option<TcpListener>,
}

impl Endpoints {
    /// Those of the replicas of a pair, in order.
    ///
    /// # Errors
    /// An address cannot be had.
    pub fn bind(config: &KvEventsConfig, replicas: usize) -> Result<Vec<Endpoints>, KvEventsError> {
        let bind = |key, mut address: SocketAddr, replica: usize| {
            if let (1.., Ok(replica)) = (address.port(), u16::try_from(replica)) {
                address.set_port(address.port().saturating_add(replica));
            }
            let bound = TcpListener::bind(address).and_then(|socket| {
                let address = socket.local_addr()?;
                tracing::info!(replica, "`{key}` is tcp://{address}");
                if !address.ip().is_loopback() {
                    tracing::warn!(
                        %address,
                        "KV events have the tokens of prompts, and whoever reaches this port reads them: let none but routers"
                    );
                }
                Ok(socket)
            });
            bound.map_err(|source| KvEventsError::Bind { key, address, source })
        };
        let of_replica = |replica| {
            let publish = bind("kv_events.endpoint", config.endpoint, replica)?;
            let replay = config.replay_endpoint;
            let replay =
                replay.map(|address| bind("kv_events.replay_endpoint", address, replica)).transpose()?;
            Ok(Endpoints { publish, replay })
        };
        (0..replicas).map(of_replica).collect()
    }
}

/// Publishes what the replicas of a pair tell, on a thread of its own, until all of them have ended; where each tells it.
///
/// # Errors
/// The thread cannot be had.
pub fn publish(config: &KvEventsConfig, endpoints: Vec<Endpoints>) -> Result<Vec<KvSender>, KvEventsError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(KvEventsError::Thread)?;
    let (mut senders, mut replicas) = (Vec::new(), Vec::new());
    for (number, endpoints) in endpoints.into_iter().enumerate() {
        let (sender, batches) = kv_queue();
        senders.push(sender);
        replicas.push(Replica { number, endpoints, batches, config: config.clone() });
    }
    let work = move || {
        runtime.block_on(async {
            let replicas: Vec<_> = replicas.into_iter().map(|replica| tokio::spawn(replica.run())).collect();
            for replica in replicas {
                // A panic there is in the log already.
                let _ = replica.await;
            }
        });
    };
    let thread = std::thread::Builder::new().name("kv-events".to_owned());
    thread.spawn(work).map_err(KvEventsError::Thread)?;
    Ok(senders)
}

struct Replica {
    number: usize,
    endpoints: Endpoints,
    batches: mpsc::Receiver<KvBatch>,
    config: KvEventsConfig,
}

impl Replica {
    async fn run(self) {
        let replica = self.number;
        if let Err(error) = self.publish().await {
            tracing::error!(replica, %error, "KV events are not published any more");
        }
    }

    async fn publish(mut self) -> io::Result<()> {
        let subscribers = Subscribers::default();
        let takes = subscribers.clone();
        accept(self.endpoints.publish, move |stream| {
            let takes = takes.clone();
            async move { takes.serve(stream).await }
        })?;
        let kept = Arc::new(Mutex::new(Kept::new(&self.config)));
        if let Some(listener) = self.endpoints.replay {
            let kept = Arc::clone(&kept);
            accept(listener, move |stream| replay(stream, Arc::clone(&kept)))?;
        }
        while let Some(batch) = self.batches.recv().await {
            let payload = match encoded(&batch, self.config.encoding, self.number) {
                Ok(payload) => Bytes::from(payload),
                Err(error) => {
                    tracing::error!(%error, "a batch of KV events cannot be encoded");
                    continue;
                }
            };
            let past = Past { sequence: batch.sequence, payload };
            // It waits for no subscriber: who is too slow misses what it has no room for.
            let frames = lock(&kept).message(&past);
            subscribers.send(&frames[0], &message(&frames));
            lock(&kept).keep(past);
        }
        Ok(())
    }
}

/// Serves who connects, each by itself, as long as this thread lives. No more than so many at a time.
fn accept<F>(listener: TcpListener, serve: impl Fn(TcpStream) -> F + 'static + Send) -> io::Result<()>
where
    F: Future<Output = io::Result<()>> + Send + 'static,
{
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    tokio::spawn(async move {
        loop {
            let Ok((stream, peer)) = listener.accept().await else {
                tokio::time::sleep(ACCEPT_AGAIN).await;
                continue;
            };
            let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
                tracing::warn!(%peer, "too many connections for KV events: one is closed");
                continue;
            };
            let served = serve(stream);
            tokio::spawn(async move {
                if let Err(error) = served.await {
                    tracing::debug!(%peer, %error, "a connection for KV events has ended");
                }
                drop(place);
            });
        }
    });
    Ok(())
}

/// A batch as it was published.
#[derive(Clone)]
struct Past {
    sequence: u64,
    payload: Bytes,
}

/// The last batches.
struct Kept {
    topic: Bytes,
    most: usize,
    bytes: usize,
    past: VecDeque<Past>,
}

impl Kept {
    fn new(config: &KvEventsConfig) -> Kept {
        // Without an endpoint nobody asks for them.
        let most = if config.replay_endpoint.is_some() { config.buffer_steps } else { 0 };
        Kept { topic: Bytes::from(config.topic.clone()), most, bytes: 0, past: VecDeque::new() }
    }

    fn keep(&mut self, past: Past) {
        self.bytes += past.payload.len();
        self.past.push_back(past);
        while self.past.len() > self.most || self.bytes > MOST_KEPT_BYTES {
            let Some(oldest) = self.past.pop_front() else { return };
            self.bytes -= oldest.payload.len();
        }
    }

    /// Its topic, number and events.
    fn message(&self, past: &Past) -> [Bytes; 3] {
        let number = Bytes::copy_from_slice(&past.sequence.to_be_bytes());
        [self.topic.clone(), number, past.payload.clone()]
    }

    /// What follows from this sequence number on, and the end.
    fn from(&self, first: u64) -> Vec<[Bytes; 3]> {
        let past = self.past.iter().filter(|past| past.sequence >= first);
        past.map(|past| self.message(past)).chain([[Bytes::new(), END, Bytes::new()]]).collect()
    }
}

/// Answers who asks for past batches, as a ROUTER socket does.
async fn replay(mut stream: TcpStream, kept: Arc<Mutex<Kept>>) -> io::Result<()> {
    greet(&mut stream, "ROUTER", &["REQ", "DEALER", "ROUTER"]).await?;
    loop {
        let frames = match hear(&mut stream).await? {
            Said::Message(frames) => frames,
            Said::Ping(context) => {
                stream.write_all(&pong(&context)).await?;
                continue;
            }
            Said::Subscribe(_) | Said::Cancel(_) => continue,
        };
        let first = match frames.as_slice() {
            [_, first] => <[u8; 8]>::try_from(first.as_slice()).ok(),
            _ => None,
        };
        let Some(first) = first else {
            tracing::debug!("a request for KV events is not an empty part, and a sequence number of 8 bytes");
            continue;
        };
        let messages = lock(&kept).from(u64::from_be_bytes(first));
        let answer = async {
            for frames in messages {
                let [topic, number, payload] = frames;
                stream.write_all(&message(&[Bytes::new(), topic, number, payload])).await?;
            }
            Ok::<(), io::Error>(())
        };
        timeout(REPLAY_TIMEOUT, answer).await.map_err(|_| io::Error::from(ErrorKind::TimedOut))??;
    }
}

fn lock(kept: &Mutex<Kept>) -> std::sync::MutexGuard<'_, Kept> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use faser_config::KvEncoding;

    use super::*;

    fn kept(buffer_steps: usize) -> Kept {
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        Kept::new(&KvEventsConfig {
            endpoint: address,
            replay_endpoint: Some(address),
            topic: "t".to_owned(),
            buffer_steps,
            encoding: KvEncoding::Map,
        })
    }

    #[test]
    fn the_last_batches_are_kept_and_no_more() {
        let mut kept = kept(3);
        for sequence in [0, 1, 4, 5, 6] {
            kept.keep(Past { sequence, payload: Bytes::from(vec![0; 10]) });
        }
        let asked = |first| {
            let messages = kept.from(first);
            let sequences = messages.iter().map(|[_, number, _]| number[number.len() - 1]);
            sequences.collect::<Vec<u8>>()
        };
        assert_eq!((asked(0), asked(5), asked(7)), (vec![4, 5, 6, 255], vec![5, 6, 255], vec![255]));
        assert_eq!(kept.bytes, 30);
        kept.keep(Past { sequence: 7, payload: Bytes::from(vec![0; MOST_KEPT_BYTES]) });
        assert_eq!((kept.from(0).len(), kept.bytes), (2, MOST_KEPT_BYTES));
    }

    #[test]
    fn a_port_that_is_taken_is_named_with_its_key() {
        let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
        let endpoint = taken.local_addr().expect("it has one");
        let config = KvEventsConfig {
            endpoint,
            replay_endpoint: None,
            topic: String::new(),
            buffer_steps: 1,
            encoding: KvEncoding::Map,
        };
        let refusal = Endpoints::bind(&config, 1).expect_err("it is taken").to_string();
        assert!(
            refusal.starts_with(&format!("`kv_events.endpoint`: cannot listen on {endpoint}")),
            "{refusal}"
        );
    }
}
