//! Finds the demo pair: beside the caller, beside an installed binary, or in the repository it was built from.

use std::path::{Path, PathBuf};

use crate::error::LoadError;

/// The folder with the demo pair's `target` and `draft`.
///
/// # Errors
/// It is nowhere; the error lists the places.
pub(crate) fn demo_pair() -> Result<PathBuf, LoadError> {
    let executable = std::env::current_exe().ok();
    let prefix = executable.as_deref().and_then(Path::parent).and_then(Path::parent);
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    let places = [
        Some(PathBuf::from("models/rustdoc")),
        prefix.map(|prefix| prefix.join("share/faser/models/rustdoc")),
        repository.map(|repository| repository.join("models/rustdoc")),
    ];
    let places = places.into_iter().flatten().collect();
    first_pair(places)
}

/// The draft models beside the demo pair's own: name, the target's folder, the draft's.
///
/// # Errors
/// As of the pair; or its folder cannot be read.
pub fn demo_drafts() -> Result<Vec<(String, PathBuf, PathBuf)>, LoadError> {
    let pair = demo_pair()?;
    let entries = std::fs::read_dir(&pair).map_err(|_| LoadError::NoDemoPair(vec![pair.clone()]))?;
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| !["target", "draft"].contains(&name.as_str()))
        .filter(|name| pair.join(name).join("config.json").is_file())
        .collect();
    names.sort();
    Ok(names.into_iter().map(|name| (name.clone(), pair.join("target"), pair.join(name))).collect())
}

fn first_pair(places: Vec<PathBuf>) -> Result<PathBuf, LoadError> {
    let whole = |place: &&PathBuf| {
        ["target", "draft"].iter().all(|model| place.join(model).join("config.json").is_file())
    };
    match places.iter().find(whole) {
        Some(place) => Ok(place.clone()),
        None => Err(LoadError::NoDemoPair(places)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_that_is_nowhere_is_an_error_that_says_where_it_was_looked_for() {
        let error =
            first_pair(vec![PathBuf::from("nowhere/a"), PathBuf::from("nowhere/b")]).unwrap_err().to_string();
        assert!(error.contains("nowhere/a, nowhere/b"), "{error}");
        assert!(error.contains("model.target"), "{error}");
    }
}
