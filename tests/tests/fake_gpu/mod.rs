//! A GPU that is none, for the real binary: its driver is a fake one that runs the kernels on fibers.

#[path = "../../../kernels/tests/cuda_fake/driver_folder.rs"]
mod folder;

use std::ffi::OsString;

/// Variables with which a daemon sees the fake GPU, and more; none, which is said past the harness, where it cannot be built.
pub(crate) fn variables(test: &str, more: &[(&'static str, &str)]) -> Option<Vec<(&'static str, OsString)>> {
    match folder::folder() {
        Ok(folder) => {
            let path = [("LD_LIBRARY_PATH", folder::search_path(&folder))];
            let more = more.iter().map(|&(name, value)| (name, OsString::from(value)));
            Some(path.into_iter().chain(more).collect())
        }
        Err(reason) => {
            faser_skipped::skip(test, reason);
            None
        }
    }
}
