//! `faser ctl ready`: whether requests are taken, as an exit status. What `/ready` is to a router, this is to a container or a script.

use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::json;

use super::show;
use super::socket_client::{Client, CtlError, of_pair, print};
use crate::admin::snapshot::Snapshot;

/// Between two looks while waiting.
const PAUSE: Duration = Duration::from_millis(200);

/// Asks until requests are taken or `wait` is over, and prints what the daemon does. Returns the exit status: 0, or 1 if they are not taken.
///
/// # Errors
/// The daemon is not there (after `wait`), knows no such pair, or nobody reads.
pub(super) fn ready(
    client: &Client,
    pair: Option<&str>,
    wait: Duration,
    as_json: bool,
) -> Result<i32, CtlError> {
    let until = Instant::now() + wait;
    loop {
        let over = Instant::now() >= until;
        match client.get(&of_pair("/v1/status", pair)).and_then(|answer| answer.json()) {
            Ok(answer) => {
                let now = Snapshot::deserialize(&answer)
                    .map_err(|err| CtlError::Broken(format!("a status that cannot be read: {err}")))?;
                let ready = takes_requests(&now, pair.is_some());
                if ready || over {
                    let Snapshot { state, detail, .. } = &now;
                    let told = json!({"ready": ready, "state": state, "detail": detail});
                    print(&if as_json { show::pretty(&told) } else { format!("{state} ({detail})") })?;
                    return Ok(i32::from(!ready));
                }
            }
            // It may be about to listen. A refusal stays one.
            Err(CtlError::Unreachable { .. } | CtlError::Broken(_)) if !over => {}
            Err(err) => return Err(err),
        }
        std::thread::sleep(PAUSE.min(until.saturating_duration_since(Instant::now())));
    }
}

/// Whether every pair takes requests, or the one that the status is of.
fn takes_requests(now: &Snapshot, one_pair: bool) -> bool {
    let asked = now.model.as_ref().map(|model| model.name.as_str());
    let row = now.pairs.iter().find(|row| Some(row.name.as_str()) == asked);
    match (now.state.as_ref(), row) {
        ("serving", _) => true,
        // Another pair has no replica that serves.
        ("not-ready", Some(row)) if one_pair => row.ready,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::snapshot::{ModelView, PairRow};

    fn status(state: &'static str) -> Snapshot {
        let row = |name: &str, ready| PairRow { name: name.to_owned(), ready, ..PairRow::default() };
        let model = ModelView { name: "a".to_owned(), ..ModelView::default() };
        let pairs = vec![row("a", true), row("b", false)];
        Snapshot { state: state.into(), model: Some(model), pairs, ..Snapshot::default() }
    }

    #[test]
    fn only_a_daemon_that_takes_requests_is_ready() {
        assert!(takes_requests(&status("serving"), false));
        for state in ["loading", "paused", "draining", "not-ready", ""] {
            assert!(!takes_requests(&status(state), false), "{state}");
        }
    }

    #[test]
    fn a_pair_is_ready_beside_one_that_is_not() {
        assert!(takes_requests(&status("not-ready"), true));
        let mut other = status("not-ready");
        other.model = Some(ModelView { name: "b".to_owned(), ..ModelView::default() });
        assert!(!takes_requests(&other, true));
        assert!(!takes_requests(&status("paused"), true), "all pairs are paused");
    }
}
