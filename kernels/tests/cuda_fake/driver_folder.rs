//! A folder with the fake driver under the names of all libraries that it stands for.

#[path = "library.rs"]
mod library;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The names of the driver's package, and of toolkits and wheels for CUDA 13 and 12.
const NAMES: [&str; 6] = [
    "libcuda.so.1",
    "libnvrtc.so.13",
    "libnvrtc.so.12",
    "libcublasLt.so.13",
    "libcublasLt.so.12",
    "libnccl.so.2",
];

/// A folder with the fake under all its names.
///
/// # Errors
/// Why there is none on this machine.
pub(crate) fn folder() -> Result<PathBuf, String> {
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

/// LD_LIBRARY_PATH with that folder first.
pub(crate) fn search_path(folder: &Path) -> OsString {
    let mut paths = folder.as_os_str().to_owned();
    if let Some(more) = std::env::var_os("LD_LIBRARY_PATH") {
        paths.push(":");
        paths.push(more);
    }
    paths
}
