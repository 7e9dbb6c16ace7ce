//! The `faser` binary of this very build.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Path of the binary: the daemon's own `main`, which cargo builds as a part of this package before its tests, with what all of the workspace
/// is built with. To ask cargo for the daemon's package from within a test would build most crates a second time.
///
/// # Panics
/// It is not there.
pub fn faser() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        let test = std::env::current_exe().expect("a test program knows its path");
        // target/PROFILE/deps/test-0123
        let folder = test.ancestors().nth(2).expect("tests lie in target/PROFILE/deps");
        let binary = folder.join("faser-under-test");
        assert!(binary.is_file(), "{} is not there: it is built by cargo test", binary.display());
        binary
    })
}

/// Where daemons under test keep what passes cost: what this test program has measured saves it time, and what an earlier
/// one has kept must not decide what it sees.
pub fn cost_cache() -> PathBuf {
    faser().with_file_name(format!("test-costs-{}", std::process::id()))
}
