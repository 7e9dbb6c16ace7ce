//! The log: lines to standard error, lowercase, with structured fields. Towards systemd's journal each line has its priority in front.

mod journal;

use std::fmt::Display;
use std::io::IsTerminal;

use tracing::Level;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::{Format, JsonFields};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;

use crate::admin::audit;
use faser_config::{LogConfig, LogFormat};
use journal::{Prioritized, stderr_is_journal};

/// The level that is written, which can be changed.
pub struct LogLevel(Box<dyn Fn(Level) -> bool + Send + Sync>);

impl LogLevel {
    /// Writes this level from now on; `false` if this process' log is somebody else's.
    pub fn set(&self, level: Level) -> bool {
        (self.0)(level)
    }

    /// For tests: only notes what it is told.
    #[cfg(test)]
    pub(crate) fn told(levels: std::sync::Arc<std::sync::Mutex<Vec<Level>>>) -> LogLevel {
        LogLevel(Box::new(move |level| {
            levels.lock().is_ok_and(|mut levels| {
                levels.push(level);
                true
            })
        }))
    }
}

/// Starts logging; a second call changes nothing.
pub fn start(config: LogConfig) -> LogLevel {
    let (levels, handle) = reload::Layer::new(levels(config.level));
    let journal = stderr_is_journal();
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    let lines = match config.format {
        LogFormat::Auto if journal => {
            let format = Format::default().without_time().with_level(false);
            lines.event_format(Prioritized { format, journal }).boxed()
        }
        LogFormat::Auto | LogFormat::Text => {
            lines.event_format(Prioritized { format: Format::default(), journal }).boxed()
        }
        LogFormat::Json => {
            let format = Format::default().json().with_span_list(false);
            lines.fmt_fields(JsonFields::new()).event_format(Prioritized { format, journal }).boxed()
        }
    };
    // Fails only if there is a subscriber already, as in tests.
    let _ = registry().with(lines).with(levels).try_init();
    LogLevel(Box::new(move |level| handle.reload(self::levels(level)).is_ok()))
}

/// The last words of a command that has failed, to standard error.
pub fn last_words(err: &dyn Display) {
    let text = format!("error: {err}");
    if stderr_is_journal() {
        eprint!("{}", journal::with_priority(Level::ERROR, &text));
    } else {
        eprintln!("{text}");
    }
}

fn levels(level: Level) -> Targets {
    // The HTTP library tells of its workers at `info`; nobody asked for that.
    let library = if level == Level::INFO { Level::WARN } else { level };
    // What clients send wrongly is an error to that library: nobody may fill the log from outside.
    let clients = if level >= Level::DEBUG { LevelFilter::from_level(level) } else { LevelFilter::OFF };
    // What operators change is always written.
    let audit = level.max(Level::INFO);
    Targets::new()
        .with_default(level)
        .with_target("actix_server", library)
        .with_target("actix_http", clients)
        .with_target(audit::TARGET, audit)
}
