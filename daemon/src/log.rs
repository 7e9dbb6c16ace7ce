//! The log: lines to standard error, lowercase, with structured fields.

use std::io::IsTerminal;

use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::{LogConfig, LogFormat};

/// Starts logging; a second call changes nothing.
pub fn start(config: LogConfig) {
    // The HTTP library tells of its workers at `info`; nobody asked for that.
    let library = if config.level == Level::INFO { Level::WARN } else { config.level };
    let levels = Targets::new().with_default(config.level).with_target("actix_server", library);
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    let lines = match config.format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().boxed(),
    };
    // Fails only if there is a subscriber already, as in tests.
    let _ = registry().with(lines).with(levels).try_init();
}
