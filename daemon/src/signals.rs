//! SIGTERM and SIGINT: the first asks for an orderly end, the second for an immediate one. SIGHUP: the config file has changed.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::DaemonError;

/// Both signals, as a stream.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

/// A signal that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caught {
    /// Its name.
    pub name: &'static str,
    number: i32,
}

impl Caught {
    /// Exit status of a process that such a signal ended.
    pub fn exit_status(self) -> i32 {
        128 + self.number
    }
}

impl Signals {
    /// Takes both signals over from their default, which is to end the process.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn take_over() -> Result<Signals, DaemonError> {
        Ok(Signals { terminate: take(SignalKind::terminate())?, interrupt: take(SignalKind::interrupt())? })
    }

    /// Waits for the next one.
    pub async fn next(&mut self) -> Caught {
        tokio::select! {
            _ = self.terminate.recv() => Caught { name: "SIGTERM", number: SignalKind::terminate().as_raw_value() },
            _ = self.interrupt.recv() => Caught { name: "SIGINT", number: SignalKind::interrupt().as_raw_value() },
        }
    }
}

/// SIGHUP, as a stream.
pub struct Hangups(Signal);

impl Hangups {
    /// Takes SIGHUP over from its default, which is to end the process.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn take_over() -> Result<Hangups, DaemonError> {
        Ok(Hangups(take(SignalKind::hangup())?))
    }

    /// Waits for the next one; several that come while nobody waits are one.
    pub async fn next(&mut self) {
        self.0.recv().await;
    }
}

fn take(kind: SignalKind) -> Result<Signal, DaemonError> {
    signal(kind).map_err(|source| DaemonError::System { what: "listen for signals", source })
}
