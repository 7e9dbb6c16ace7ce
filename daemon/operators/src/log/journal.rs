//! systemd's journal at the other end of standard error: it takes a line's priority from `<N>` at its beginning.

use std::fmt::{self, Write};
use std::fs::{File, Metadata};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Whether standard error is the very stream that systemd has connected to its journal, and not merely inherited its name.
pub(super) fn stderr_is_journal() -> bool {
    let metadata = || File::from(std::io::stderr().as_fd().try_clone_to_owned().ok()?).metadata().ok();
    let named = std::env::var("JOURNAL_STREAM");
    named.is_ok_and(|named| metadata().is_some_and(|stderr| is_stream(&named, &stderr)))
}

/// `named` is `DEVICE:INODE`, in decimal.
fn is_stream(named: &str, stderr: &Metadata) -> bool {
    let numbers = named.split_once(':').and_then(|(dev, ino)| Some((dev.parse().ok()?, ino.parse().ok()?)));
    numbers == Some((stderr.dev(), stderr.ino()))
}

/// Every line of `text` with the priority that syslog has for `level` in front: an error of several lines stays one.
pub(super) fn with_priority(level: Level, text: &str) -> String {
    let priority = match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    };
    text.lines().fold(String::with_capacity(text.len() + 4), |mut all, line| {
        // A string takes whatever is written.
        let _ = writeln!(all, "<{priority}>{line}");
        all
    })
}

/// Lines as `format` has them; for the journal with their priority.
pub(super) struct Prioritized<F> {
    pub(super) format: F,
    pub(super) journal: bool,
}

impl<S, N, F> FormatEvent<S, N> for Prioritized<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        if !self.journal {
            return self.format.format_event(context, writer, event);
        }
        let mut text = String::new();
        self.format.format_event(context, Writer::new(&mut text), event)?;
        writer.write_str(&with_priority(*event.metadata().level(), &text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_has_its_priority() {
        assert_eq!(with_priority(Level::ERROR, "a"), "<3>a\n");
        assert_eq!(with_priority(Level::WARN, "a\n<0>b\n"), "<4>a\n<4><0>b\n");
        assert_eq!(with_priority(Level::INFO, "a"), "<6>a\n");
        assert_eq!([Level::DEBUG, Level::TRACE].map(|level| with_priority(level, "a")), ["<7>a\n"; 2]);
    }

    #[test]
    fn only_the_very_stream_is_the_journal() {
        let file = std::env::current_exe().and_then(File::open).and_then(|file| file.metadata()).unwrap();
        let (dev, ino) = (file.dev(), file.ino());
        assert!(is_stream(&format!("{dev}:{ino}"), &file));
        for other in
            ["", ":", "x:y", &format!("{dev}"), &format!("{dev}:{}", ino + 1), &format!("{}:{ino}", dev + 1)]
        {
            assert!(!is_stream(other, &file), "{other}");
        }
    }
}
