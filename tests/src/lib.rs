//! What crosses crates: the repository's rules as code, and a harness that starts the real binary and talks to it.
//!
//! The tests themselves are in tests/tests: the rules in `layering`, the daemon from outside in all others.

mod binary;
pub mod browser;
pub mod client;
pub mod metrics;
pub mod rules;
mod server;
mod service_manager;
pub mod stream;

pub use binary::{cost_cache, faser};
pub use server::{Config, Server};
pub use service_manager::ServiceManager;
