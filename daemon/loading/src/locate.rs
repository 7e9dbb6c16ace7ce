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
