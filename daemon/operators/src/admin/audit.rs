//! One line of the log for each change that an operator makes, whatever the log's level is.

use serde_json::Value;

use super::peer::Peer;

/// The target of these lines; `crate::log` always writes them.
pub const TARGET: &str = "faser::audit";

/// A change was made.
pub(super) fn changed(peer: &Peer, what: &str, before: &Value, after: &Value) {
    tracing::info!(target: TARGET, uid = peer.uid, pid = peer.pid, what, %before, %after, "changed by an operator");
}

/// A change was asked for and not made.
pub(super) fn refused(peer: &Peer, what: &str, why: &dyn std::fmt::Display) {
    tracing::info!(target: TARGET, uid = peer.uid, pid = peer.pid, what, %why, "refused to an operator");
}
