//! Tests on a GPU that is none: the test starts itself again with the fake driver in the place of the real one.
//!
//! ```ignore
//! #[path = "../../kernels/tests/cuda_fake/mod.rs"]
//! mod cuda_fake;
//! #[test]
//! fn something() {
//!     cuda_fake::inside("something", &[], || { /* real code, fake GPU */ });
//! }
//! ```

mod driver_folder;

use std::process::Command;

const MARK: &str = "FASER_FAKE_TEST";

/// Runs `body`, which is the rest of the test `name` (its whole path), in a process of its own where there is one fake GPU, with these
/// variables. Returns what the fake reported when it was closed; nothing inside that process, and where there is no compiler, which is
/// said past the harness so that it can be counted.
///
/// # Panics
/// If `body` does.
pub(crate) fn inside(name: &str, variables: &[(&str, &str)], body: impl FnOnce()) -> Option<String> {
    if std::env::var(MARK).is_ok_and(|running| running == name) {
        body();
        return None;
    }
    let folder = match driver_folder::folder() {
        Ok(folder) => folder,
        Err(reason) => {
            faser_skipped::skip(&format!("cuda_fake {name}"), reason);
            return None;
        }
    };
    let report = folder.join(format!("report-{}-{}", std::process::id(), name.replace("::", "-")));
    let output = Command::new(std::env::current_exe().expect("a test has a file"))
        .args(["--exact", name, "--nocapture", "--test-threads", "1"])
        .env(MARK, name)
        .env("LD_LIBRARY_PATH", driver_folder::search_path(&folder))
        .env("FASER_FAKE_REPORT", &report)
        .envs(variables.iter().copied())
        .output()
        .expect("a test can be started again");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name} on the fake GPU: {}\n{out}\n{err}", output.status);
    assert!(out.contains("1 passed"), "{name} did not run:\n{out}");
    println!("{out}");
    let said = std::fs::read_to_string(&report).unwrap_or_default();
    // It goes with the folder if it stays.
    let _ = std::fs::remove_file(&report);
    Some(said)
}
