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

mod library;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The names under which cudarc looks for each library first.
const NAMES: [&str; 3] = ["libcuda.so", "libnvrtc.so", "libcublasLt.so"];
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
    let folder = match folder() {
        Ok(folder) => folder,
        Err(reason) => {
            writeln!(std::io::stderr(), "\nskipped: cuda_fake {name}: {reason}").expect("stderr");
            return None;
        }
    };
    let report = folder.join(format!("report-{}-{}", std::process::id(), name.replace("::", "-")));
    let mut paths = folder.clone().into_os_string();
    if let Some(more) = std::env::var_os("LD_LIBRARY_PATH") {
        paths.push(":");
        paths.push(more);
    }
    let output = Command::new(std::env::current_exe().expect("a test has a file"))
        .args(["--exact", name, "--nocapture", "--test-threads", "1"])
        .env(MARK, name)
        .env("LD_LIBRARY_PATH", paths)
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

/// A folder with the fake under all its names.
fn folder() -> Result<PathBuf, String> {
    let library = library::library()?;
    let folder = library.with_extension("libs");
    std::fs::create_dir_all(&folder).expect("the target folder can be written");
    for name in NAMES {
        link(&library, &folder.join(name));
    }
    Ok(folder)
}

/// Another test may do the same.
fn link(library: &Path, to: &Path) {
    if let Err(error) = std::os::unix::fs::symlink(library, to) {
        assert!(to.exists(), "{}: {error}", to.display());
    }
}
