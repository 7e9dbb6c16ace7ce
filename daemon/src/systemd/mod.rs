//! systemd's side of the daemon: what the service manager is told (`notify`), when it hears a beat (`beat`), which sockets it
//! hands over (`sockets`), and the status line (`status`). Without a service manager none of this does anything.

mod beat;
pub mod notify;
mod sockets;
mod status;

pub use beat::{beat, watchdog_period};
pub use sockets::Sockets;
pub use status::Status;
