//! Shows how far loading is: a bar on a terminal, a line per model in a log.

use std::io::IsTerminal;

use faser_models::Progress;
use indicatif::{ProgressBar, ProgressStyle};

/// The display of one start.
pub struct Display {
    bar: Option<ProgressBar>,
    what: String,
}

impl Display {
    /// A bar if standard error is a terminal.
    pub fn new() -> Display {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{msg:16} {bar:40} {percent:>3} %");
            ProgressBar::new(1).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        Display { bar, what: String::new() }
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
        }
        if self.what != what {
            what.clone_into(&mut self.what);
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
