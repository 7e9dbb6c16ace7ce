//! Results on standard output. A reader that has gone away is an error, not a panic.

use std::io::Write;

use crate::error::DaemonError;

/// Writes `text` as it is and flushes: for text that grows.
///
/// # Errors
/// Nobody reads.
pub fn piece(text: &str) -> Result<(), DaemonError> {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|source| DaemonError::System { what: "write to standard output", source })
}

/// Writes `text` as a line.
///
/// # Errors
/// Nobody reads.
pub fn line(text: &str) -> Result<(), DaemonError> {
    piece(&format!("{text}\n"))
}
