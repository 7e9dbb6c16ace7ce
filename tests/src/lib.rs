//! What crosses crates: the repository's rules as code, and a harness that starts the real binary and talks to it.
//!
//! The tests themselves are in tests/tests: the rules in `layering`, the daemon from outside in all others.

mod binary;
pub mod browser;
pub mod client;
pub mod event_stream;
pub mod hub;
pub mod metrics;
pub mod planned;
pub mod rules;
mod server;
mod service_manager;

pub use binary::{cost_cache, faser};
pub use server::{Config, Server, said};
pub use service_manager::ServiceManager;

/// Longest wait of a test for what it expects: nothing takes as long unless it hangs.
pub const PATIENCE: std::time::Duration = std::time::Duration::from_secs(120);
