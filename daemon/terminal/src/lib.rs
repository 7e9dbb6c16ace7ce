//! What commands share at a terminal: standard output, a bar while models are loaded, files, and signals.

use std::fs::{File, OpenOptions};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use faser_models::Progress;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// What the operating system has refused.
#[derive(Debug, thiserror::Error)]
pub enum SystemError {
    /// A file cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// Something else.
    #[error("cannot {what}: {source}")]
    Call {
        /// What was tried.
        what: &'static str,
        /// What the operating system said.
        source: std::io::Error,
    },
}

/// Writes `text` as it is and flushes: for text that grows.
///
/// # Errors
/// Nobody reads.
pub fn print(text: &str) -> Result<(), SystemError> {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|source| SystemError::Call { what: "write to standard output", source })
}

/// Writes `text` as a line.
///
/// # Errors
/// Nobody reads.
pub fn println(text: &str) -> Result<(), SystemError> {
    print(&format!("{text}\n"))
}

/// Whether files can be written there, asked before the work that is for them. Nothing is left behind.
///
/// # Errors
/// One cannot.
pub fn writable<'a>(files: impl IntoIterator<Item = &'a PathBuf>) -> Result<(), SystemError> {
    for path in files {
        // To open a pipe is to wait for who reads it.
        if path.metadata().is_ok_and(|found| !found.is_file() && !found.is_dir()) {
            continue;
        }
        let there = path.symlink_metadata().is_ok();
        let opened = OpenOptions::new().append(true).create(true).open(path);
        opened.map_err(|source| SystemError::Write { path: path.clone(), source })?;
        if !there {
            // What was made is empty: left behind it does no harm.
            let _ = std::fs::remove_file(path);
        }
    }
    Ok(())
}

/// Writes `value` to a file, as JSON that people can read.
///
/// # Errors
/// The file cannot be written.
pub fn write_json(path: &Path, value: &impl Serialize) -> Result<(), SystemError> {
    let written = File::create(path).and_then(|out| Ok(serde_json::to_writer_pretty(out, value)?));
    written.map_err(|source| SystemError::Write { path: path.to_owned(), source })
}

/// Between two lines in a log about one model.
const SELDOM: Duration = Duration::from_secs(15);

/// Shows how far loading is: a bar on a terminal, lines in a log.
pub struct Display {
    bar: Option<ProgressBar>,
    what: String,
    told: Instant,
}

impl Display {
    /// A bar if standard error is a terminal.
    pub fn new() -> Display {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style =
                ProgressStyle::with_template("{msg:16} {bar:40} {percent:>3} % of {total_bytes}, {eta} left");
            ProgressBar::new(1).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        Display { bar, what: String::new(), told: Instant::now() }
    }

    /// Shows that `what` has come so far.
    pub fn show(&mut self, what: &str, progress: Progress) {
        if let Some(bar) = &self.bar {
            bar.set_length(progress.total_bytes);
            bar.set_position(progress.done_bytes);
            if self.what != what {
                bar.set_message(what.to_owned());
            }
        } else if self.what != what {
            tracing::info!("preparing {what}");
        } else if self.told.elapsed() >= SELDOM {
            let percent = progress.done_bytes.saturating_mul(100) / progress.total_bytes.max(1);
            tracing::info!("preparing {what}: {percent} %");
            self.told = Instant::now();
        }
        if self.what != what {
            what.clone_into(&mut self.what);
            self.told = Instant::now();
        }
    }

    /// Everything is loaded.
    pub fn finish(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Default for Display {
    fn default() -> Self {
        Self::new()
    }
}

/// SIGTERM and SIGINT, as a stream: the first asks for an orderly end, the second for an immediate one.
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
    pub fn take_over() -> Result<Signals, SystemError> {
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

/// SIGHUP, as a stream: the config file has changed.
pub struct Hangups(Signal);

impl Hangups {
    /// Takes SIGHUP over from its default, which is to end the process.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn take_over() -> Result<Hangups, SystemError> {
        Ok(Hangups(take(SignalKind::hangup())?))
    }

    /// Waits for the next one; several that come while nobody waits are one.
    pub async fn next(&mut self) {
        self.0.recv().await;
    }
}

fn take(kind: SignalKind) -> Result<Signal, SystemError> {
    signal(kind).map_err(|source| SystemError::Call { what: "listen for signals", source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_written_is_told_before_and_one_that_can_stays_as_it_is() {
        let file = std::env::temp_dir().join(format!("faser-writable-{}", std::process::id()));
        assert!(writable([&file]).is_ok() && !file.exists());
        std::fs::write(&file, "kept").unwrap();
        assert!(writable([&file, &"/dev/null".into()]).is_ok());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "kept");
        let refusal = writable([&file, &file.join("below")]).unwrap_err().to_string();
        assert!(refusal.starts_with("cannot write") && refusal.contains("below"), "{refusal}");
        std::fs::remove_file(&file).unwrap();
        assert!(writable([&std::env::temp_dir()]).is_err());
    }
}
