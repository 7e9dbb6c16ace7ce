//! The `faser` binary of this very build.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use crate::rules::root;

/// Path of the binary, in the same profile as the running test.
///
/// `cargo test` builds no binary of another package, so cargo is asked for it once per test program; when it is up to
/// date that takes a fraction of a second, and a stale one is never tested.
///
/// # Panics
/// It cannot be built.
pub fn faser() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(build)
}

/// Where daemons under test keep what passes cost: what this test program has measured saves it time, and what an earlier
/// one has kept must not decide what it sees.
pub fn cost_cache() -> PathBuf {
    faser().with_file_name(format!("test-costs-{}", std::process::id()))
}

fn build() -> PathBuf {
    let test = std::env::current_exe().expect("a test program knows its path");
    // target/PROFILE/deps/test-0123
    let profile_folder = test.ancestors().nth(2).expect("tests lie in target/PROFILE/deps");
    let target = profile_folder.parent().expect("profiles lie in target");
    let profile = match profile_folder.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(name) => name,
    };
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(cargo)
        .args(["build", "--package", "faser", "--bin", "faser", "--profile", profile, "--target-dir"])
        .arg(target)
        .current_dir(root())
        .output()
        .expect("cargo can be started");
    assert!(output.status.success(), "faser does not build:\n{}", String::from_utf8_lossy(&output.stderr));
    profile_folder.join("faser")
}
