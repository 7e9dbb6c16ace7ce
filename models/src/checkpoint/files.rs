//! The weight files of a model: of a directory the safetensors files, mapped into memory, one or the shards that an index names.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use faser_kernels::MappedFile;
use serde_json::Value;

use crate::ModelError;
use crate::config::Keys;
use crate::gguf;

use super::folder::{check_pointer, why_not};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The files of a checkpoint.
pub(crate) struct Files {
    /// Each with its path.
    pub(super) mapped: Vec<(PathBuf, MappedFile)>,
    /// The file to name when a tensor is in none of them.
    pub(super) catalogue: PathBuf,
}

impl Files {
    /// Finds and maps the files.
    pub(crate) fn map(dir: &Path) -> Result<Files, ModelError> {
        let (paths, catalogue) = find(dir)?;
        let mut mapped = Vec::with_capacity(paths.len());
        for path in paths {
            check_pointer(&path)?;
            let file = MappedFile::open(&path).map_err(|error| match path == catalogue {
                true => ModelError::read(&path, error),
                false => missing_shard(&path, &error),
            })?;
            mapped.push((path, file));
        }
        Ok(Files { mapped, catalogue })
    }

    /// The path of a file by its index.
    pub(super) fn path(&self, index: usize) -> &Path {
        self.mapped.get(index).map_or(&self.catalogue, |(path, _)| path)
    }
}

/// The safetensors files of a model directory, or the parts of a GGUF file, in a fixed order.
///
/// # Errors
/// There are none, or the index that should name them is damaged.
pub fn weight_files(dir: &Path) -> Result<Vec<PathBuf>, ModelError> {
    if gguf::is_gguf(dir) { gguf::paths(dir) } else { Ok(find(dir)?.0) }
}

/// Whether `dir` has weights at all.
pub(crate) fn has_weights(dir: &Path) -> bool {
    gguf::is_gguf(dir) || [SINGLE, INDEX].iter().any(|file| dir.join(file).exists())
}

/// The paths, and the catalogue. transformers, too, prefers the single file if there is an index as well.
fn find(dir: &Path) -> Result<(Vec<PathBuf>, PathBuf), ModelError> {
    let single = dir.join(SINGLE);
    if single.exists() {
        return Ok((vec![single.clone()], single));
    }
    let index = dir.join(INDEX);
    if !index.exists() {
        let problem = format!("neither this file nor {INDEX} exists (weights must be in safetensors format)");
        return Err(why_not(dir).unwrap_or_else(|| {
            ModelError::read(&single, std::io::Error::new(std::io::ErrorKind::NotFound, problem))
        }));
    }
    check_pointer(&index)?;
    let keys = Keys::read(&index)?;
    let map = match keys.get("weight_map") {
        Some(Value::Object(map)) if !map.is_empty() => map,
        _ => {
            return Err(
                keys.error("weight_map", "is missing: an object from tensor name to file name is expected")
            );
        }
    };
    let mut names = BTreeSet::new();
    for (tensor, file) in map {
        match file.as_str().filter(|name| is_plain_file_name(name)) {
            Some(name) => names.insert(name),
            None => {
                let key = format!("weight_map.{tensor}");
                return Err(
                    keys.error(&key, format!("is {file}, the name of a file in the same folder is expected"))
                );
            }
        };
    }
    Ok((names.into_iter().map(|name| dir.join(name)).collect(), index))
}

/// A file that the index names.
fn missing_shard(path: &Path, error: &std::io::Error) -> ModelError {
    let problem = format!("{error}; {INDEX} names this file: download it again");
    ModelError::read(path, std::io::Error::new(error.kind(), problem))
}

/// An index must not reach outside of the model's folder.
fn is_plain_file_name(name: &str) -> bool {
    Path::new(name).file_name().is_some_and(|file| file == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_stays_in_its_folder() {
        assert!(is_plain_file_name("model-00001-of-00002.safetensors"));
        for outside in ["../model.safetensors", "/etc/passwd", "a/b.safetensors", "..", ""] {
            assert!(!is_plain_file_name(outside), "{outside}");
        }
    }
}
