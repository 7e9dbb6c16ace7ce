//! The repository's rules as code: each check returns what breaks it, one line per fault, and is itself tested on a bad example.

pub mod code;
pub mod crate_picture;
pub mod cycles;
pub mod docs;
pub mod edges;
pub mod file_rules;

use std::path::{Path, PathBuf};

/// The repository's root.
pub fn root() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().unwrap_or(tests).to_path_buf()
}

/// The text of a file, by its path from the root.
///
/// # Panics
/// It cannot be read.
pub fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// All files below `folder` with that extension, as paths from `root`, sorted; build outputs and hidden folders left out.
///
/// # Errors
/// A folder cannot be read.
pub fn files(root: &Path, folder: &str, extension: &str) -> std::io::Result<Vec<String>> {
    let mut found = Vec::new();
    let mut folders = vec![root.join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() && name != "target" && !name.starts_with('.') {
                folders.push(path);
            } else if path.extension().is_some_and(|found| found == extension) {
                found.push(path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned());
            }
        }
    }
    found.sort();
    Ok(found)
}
