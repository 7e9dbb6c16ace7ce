//! Connections that come: each has a thread of its own until it has said what it is, so that none waits for another.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use super::frames::{First, SMALL, receive_within};

/// What a connection has time for before it has said what it is.
pub(super) const FIRST_WORDS: Duration = Duration::from_secs(10);
/// Connections that have not said it yet: more are not heard.
const MOST_UNKNOWN: usize = 64;
/// Where the system gives no connection, such as for want of descriptors.
const AGAIN_AFTER: Duration = Duration::from_millis(100);

/// Hands what comes, with its first words, to `take`, until nobody wants it.
///
/// # Errors
/// The system has no thread.
pub(super) fn listen(
    listener: TcpListener,
    wanted: impl Fn() -> bool + Send + 'static,
    take: impl Fn(TcpStream, First) -> io::Result<()> + Clone + Send + 'static,
) -> io::Result<()> {
    let unknown = Arc::new(AtomicUsize::new(0));
    let accepts = move || {
        for stream in listener.incoming() {
            if !wanted() {
                return;
            }
            let stream = match stream {
                Ok(stream) => stream,
                Err(error) => {
                    tracing::warn!(%error, "a connection of another node was lost");
                    thread::sleep(AGAIN_AFTER);
                    continue;
                }
            };
            let counted = Unknown(unknown.clone());
            if counted.0.fetch_add(1, Ordering::SeqCst) >= MOST_UNKNOWN {
                continue;
            }
            let take = take.clone();
            // Where there is no thread the connection is closed, and its node comes again.
            let _ = thread::Builder::new().name("faser-node".to_owned()).spawn(move || {
                let first = receive_within(&stream, SMALL, FIRST_WORDS);
                let taken = first.and_then(|first| take(stream, first));
                if let Err(error) = taken {
                    tracing::warn!(%error, "a connection is no node's");
                }
                drop(counted);
            });
        }
    };
    thread::Builder::new().name("faser-nodes".to_owned()).spawn(accepts).map(drop)
}

/// One of them, counted for as long as this lives.
struct Unknown(Arc<AtomicUsize>);

impl Drop for Unknown {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
