//! Tests that cannot run on this machine: each says so past the harness, which counts it as passed, and once more in the summary at the end
//! of the end-to-end tests.

use std::fmt::Display;
use std::io::Write;
use std::path::PathBuf;

/// Says that a test, or a part of one, is skipped, on standard error as `skipped: TEST: REASON`; the same words are said once.
///
/// # Panics
/// Standard error or the build's folder cannot be written.
pub fn skip(test: &str, reason: impl Display) {
    let line = format!("skipped: {test}: {reason}").replace('\n', " ");
    if said().contains(&line) {
        return;
    }
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.append(true).create(true).open(list()).expect("the build's folder can be written");
    // In one write each, for other tests write at the same time.
    file.write_all(format!("{line}\n").as_bytes()).expect("the list of skipped tests");
    std::io::stderr().write_all(format!("\n{line}\n").as_bytes()).expect("stderr");
}

/// What was skipped since this `cargo test` began, a line each.
pub fn said() -> Vec<String> {
    let text = std::fs::read_to_string(list()).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// The list of this `cargo test`, known by its process and when that began, beside what it builds.
fn list() -> PathBuf {
    let program = std::env::current_exe().unwrap_or_default();
    let folder = program.ancestors().nth(2).unwrap_or(&program);
    let parent = std::os::unix::process::parent_id();
    let stat = std::fs::read_to_string(format!("/proc/{parent}/stat")).unwrap_or_default();
    // Behind the name, which may have spaces, the 20th field: ticks since the machine was started.
    let began = stat.rsplit_once(')').and_then(|(_, fields)| fields.split_whitespace().nth(19));
    folder.join(format!("skipped-by-{parent}-{}", began.unwrap_or_default()))
}

/// The summary, and the end of the list.
pub fn summary() -> String {
    let said = said();
    // A list that stays is nobody's: no other process has its number and began when it did.
    let _ = std::fs::remove_file(list());
    match said.len() {
        0 => "summary: no test was skipped".to_owned(),
        1 => format!("summary: 1 test was skipped, which cargo counts as passed:\n  {}", said[0]),
        count => {
            format!(
                "summary: {count} tests were skipped, which cargo counts as passed:\n  {}",
                said.join("\n  ")
            )
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_is_skipped_is_said_once_and_listed() {
        // The list of another process: that of this test's own children.
        let program = std::env::current_exe().expect("a test has a file");
        if std::env::var_os("FASER_SKIPPED_TEST").is_some() {
            super::skip("a_test", "it is\na trial");
            super::skip("a_test", "it is\na trial");
            assert_eq!(super::said(), ["skipped: a_test: it is a trial"]);
            assert!(super::summary().contains("1 test was skipped") && super::said().is_empty());
            return;
        }
        let output = std::process::Command::new(program)
            .args(["--exact", "tests::what_is_skipped_is_said_once_and_listed", "--nocapture"])
            .env("FASER_SKIPPED_TEST", "1")
            .output()
            .expect("a test can be started again");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        assert_eq!(said.matches("skipped: a_test: it is a trial").count(), 1, "{said}");
    }
}
