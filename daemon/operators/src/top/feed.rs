//! The daemon's events, read in a thread of its own, which comes back when the daemon does.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use crate::admin::snapshot::Snapshot;
use crate::ctl::socket_client::{Client, CtlError, of_pair};

/// How long a daemon that has gone is left alone.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// What came.
#[derive(Debug)]
pub(super) enum Message {
    Status(Box<Snapshot>),
    /// Nobody answers, and why.
    Gone(String),
}

/// Events of one daemon.
pub(super) struct Feed {
    socket: PathBuf,
    pair: Option<String>,
    messages: Receiver<Message>,
    /// Of the reader that counts: one of an earlier number ends itself.
    turn: Arc<AtomicU64>,
}

impl Feed {
    /// Begins to read.
    pub(super) fn start(socket: &Path, pair: Option<&str>, every: Duration) -> Feed {
        let turn = Arc::new(AtomicU64::new(0));
        let messages = read(socket, pair, every, &turn);
        Feed { socket: socket.to_owned(), pair: pair.map(str::to_owned), messages, turn }
    }

    /// Reads at another interval from now on.
    pub(super) fn again(&mut self, every: Duration) {
        self.turn.fetch_add(1, Ordering::Relaxed);
        self.messages = read(&self.socket, self.pair.as_deref(), every, &self.turn);
    }

    /// What has come and was not taken yet.
    pub(super) fn next(&self) -> Option<Message> {
        self.messages.try_recv().ok()
    }
}

/// The events of `socket`, of this pair or the first.
///
/// # Errors
/// The daemon is not there, or refuses.
pub(super) fn statuses(
    socket: &Path,
    pair: Option<&str>,
    every: Duration,
) -> Result<impl Iterator<Item = Result<Snapshot, CtlError>> + use<>, CtlError> {
    let path = format!("/v1/events?every_ms={}", every.as_millis());
    let events = Client::new(socket).events(&of_pair(&path, pair))?;
    let odd = |err| CtlError::Broken(format!("a snapshot that is none: {err}"));
    Ok(events.map(move |event| serde_json::from_value(event?).map_err(odd)))
}

fn read(socket: &Path, pair: Option<&str>, every: Duration, turn: &Arc<AtomicU64>) -> Receiver<Message> {
    let (to, messages) = channel();
    let (socket, pair, turn) = (socket.to_owned(), pair.map(str::to_owned), Arc::clone(turn));
    let mine = turn.load(Ordering::Relaxed);
    std::thread::spawn(move || {
        while turn.load(Ordering::Relaxed) == mine {
            let why = follow(&socket, pair.as_deref(), every, &to)
                .map_or_else(|err| err.to_string(), |()| "it has ended".to_owned());
            if to.send(Message::Gone(why)).is_err() {
                return;
            }
            std::thread::sleep(AGAIN_AFTER);
        }
    });
    messages
}

/// Hands events on until they end, or nobody takes them.
fn follow(socket: &Path, pair: Option<&str>, every: Duration, to: &Sender<Message>) -> Result<(), CtlError> {
    for status in statuses(socket, pair, every)? {
        if to.send(Message::Status(Box::new(status?))).is_err() {
            return Ok(());
        }
    }
    Ok(())
}
