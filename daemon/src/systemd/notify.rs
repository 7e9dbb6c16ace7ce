//! What the service manager is told, by datagrams to NOTIFY_SOCKET. Without that variable nobody is told anything.

use std::time::{Duration, Instant};

use sd_notify::NotifyState;

/// What one sign of progress gives loading until the next: a piece of weights from a slow disk takes no longer.
const PATIENCE: Duration = Duration::from_secs(60);
/// Loading moves many times a second; nobody needs to hear all of it.
const SELDOM: Duration = Duration::from_secs(1);

/// Tells of loading, and asks for more time as long as it moves.
#[derive(Debug, Default)]
pub struct Loading {
    last: Option<LastProgress>,
}

#[derive(Debug)]
struct LastProgress {
    at: Instant,
    what: String,
    done: u64,
}

impl Loading {
    /// `what` has come to `done`, in units of its own; `text` says so.
    pub fn moved(&mut self, what: &str, done: u64, text: &str) {
        if self.worth_telling(what, done, Instant::now()) {
            still_starting(text);
        }
    }

    fn worth_telling(&mut self, what: &str, done: u64, now: Instant) -> bool {
        let news = self.last.as_ref().is_none_or(|last| {
            last.what != what || last.done != done && now.saturating_duration_since(last.at) >= SELDOM
        });
        if news {
            self.last = Some(LastProgress { at: now, what: what.to_owned(), done });
        }
        news
    }
}

/// The start goes on: the manager waits longer for its end.
pub fn still_starting(status: &str) {
    send(&[NotifyState::Status(&one_line(status)), NotifyState::Custom(&extension(PATIENCE))]);
}

/// Requests are taken, for the first time or after a reload.
pub fn ready(status: &str) {
    send(&[NotifyState::Ready, NotifyState::Status(&one_line(status))]);
}

/// A line for `systemctl status`.
pub fn status(status: &str) {
    send(&[NotifyState::Status(&one_line(status))]);
}

/// The config file is being read again; `ready` ends that.
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => send(&[NotifyState::Reloading, now, NotifyState::Status("reading the config file")]),
        // Without the time systemd 253 would take the reload as failed: better not to speak of one.
        Err(err) => tracing::warn!(%err, "there is no monotonic clock"),
    }
}

/// The daemon is on its way down and needs at most that long.
pub fn stopping(within: Duration, status: &str) {
    let extension = extension(within);
    send(&[NotifyState::Stopping, NotifyState::Status(&one_line(status)), NotifyState::Custom(&extension)]);
}

/// The dispatcher has made progress.
pub fn alive() {
    send(&[NotifyState::Watchdog]);
}

/// As text, for a drain may last longer than 32 bits hold in microseconds.
fn extension(time: Duration) -> String {
    format!("EXTEND_TIMEOUT_USEC={}", time.as_micros())
}

/// Line breaks would begin another message.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn send(states: &[NotifyState<'_>]) {
    if let Err(err) = sd_notify::notify(states) {
        tracing::warn!(%err, "the service manager cannot be told (NOTIFY_SOCKET)");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_time_is_asked_for_when_loading_moves_and_not_otherwise() {
        let mut loading = Loading::default();
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        assert!(loading.worth_telling("target", 0, at(0)), "the first");
        assert!(!loading.worth_telling("target", 5, at(999)), "too soon");
        assert!(loading.worth_telling("target", 5, at(1000)));
        assert!(!loading.worth_telling("target", 5, at(9000)), "it has not moved");
        assert!(loading.worth_telling("draft", 0, at(9001)), "something else is loaded");
    }

    #[test]
    fn a_status_is_one_line() {
        assert_eq!(one_line("bad:\n  READY=1\n"), "bad: READY=1");
    }
}
