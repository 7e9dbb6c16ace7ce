//! Reads typed values out of a JSON object; every refusal names the file and the key.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::ModelError;

// Generous bounds that keep every product of two sizes far from overflow.
pub(super) const MAX_WIDTH: usize = 1 << 20;
pub(super) const MAX_LAYERS: usize = 1 << 12;
pub(super) const MAX_VOCAB: usize = 1 << 24;
pub(super) const MAX_CONTEXT: usize = 1 << 24;

/// Bytes of a file that is read whole; the largest indices of checkpoints have a tenth of it.
const MOST_BYTES: u64 = 64 << 20;

/// An object of a JSON file, with the names needed to complain about it.
pub(crate) struct Keys {
    path: PathBuf,
    prefix: String,
    map: Map<String, Value>,
}

impl Keys {
    /// Reads a file whose top level is an object.
    pub(crate) fn read(path: &Path) -> Result<Keys, ModelError> {
        if path.exists() && !path.is_file() {
            let problem = "it is not a regular file";
            return Err(ModelError::read(
                path,
                std::io::Error::new(std::io::ErrorKind::InvalidInput, problem),
            ));
        }
        if std::fs::metadata(path).is_ok_and(|file| file.len() > MOST_BYTES) {
            return Err(ModelError::format(
                path,
                &"it has more than 64 MiB, and is read whole: it is damaged",
            ));
        }
        let text = std::fs::read_to_string(path).map_err(|e| ModelError::read(path, e))?;
        Keys::of(path, serde_json::from_str(&text).map_err(|e| ModelError::format(path, &e))?)
    }

    /// The content of a file, already parsed.
    pub(crate) fn of(path: &Path, content: Value) -> Result<Keys, ModelError> {
        match content {
            Value::Object(map) => Ok(Keys { path: path.to_owned(), prefix: String::new(), map }),
            _ => Err(ModelError::format(path, &"the top level must be an object")),
        }
    }

    /// The same for a file that may be missing.
    pub(crate) fn read_if_present(path: &Path) -> Result<Option<Keys>, ModelError> {
        if path.exists() { Keys::read(path).map(Some) } else { Ok(None) }
    }

    /// An error about one key of this object.
    pub(crate) fn error(&self, key: &str, problem: impl Into<String>) -> ModelError {
        ModelError::key(&self.path, &format!("{}{key}", self.prefix), problem)
    }

    /// The value of a key; a JSON null counts as absent, as Python's `None` does.
    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// Whether null stands there, where that is another thing than nothing.
    pub(crate) fn is_null(&self, key: &str) -> bool {
        self.map.get(key).is_some_and(Value::is_null)
    }

    /// The same with other values for some keys.
    pub(super) fn with<const N: usize>(&self, values: [(&str, Value); N]) -> Keys {
        let mut map = self.map.clone();
        map.extend(values.map(|(key, value)| (key.to_owned(), value)));
        Keys { path: self.path.clone(), prefix: self.prefix.clone(), map }
    }

    /// All names in it.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.map.keys().map(String::as_str)
    }

    /// An object below this one.
    pub(crate) fn object(&self, key: &str) -> Result<Option<Keys>, ModelError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Keys {
                path: self.path.clone(),
                prefix: format!("{}{key}.", self.prefix),
                map: map.clone(),
            })),
            Some(other) => Err(self.error(key, format!("is {other}, an object is expected"))),
        }
    }

    /// A whole number from 1 to `most`, if the key is there.
    pub(crate) fn size(&self, key: &str, most: usize) -> Result<Option<usize>, ModelError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let size = value.as_u64().and_then(|v| usize::try_from(v).ok());
        match size.filter(|v| (1..=most).contains(v)) {
            Some(size) => Ok(Some(size)),
            None => Err(self.error(key, format!("is {value}, a whole number from 1 to {most} is expected"))),
        }
    }

    /// The same for a key without which no scaling can be computed.
    pub(crate) fn required_size(&self, key: &str, most: usize) -> Result<usize, ModelError> {
        self.size(key, most)?.ok_or_else(|| {
            self.error(key, format!("is missing, a whole number from 1 to {most} is expected"))
        })
    }

    /// A whole number from 1 to `most`; `default` if the key is absent. Null is none.
    pub(crate) fn size_or(&self, key: &str, most: usize, default: usize) -> Result<usize, ModelError> {
        match self.is_null(key) {
            true => self.required_size(key, most),
            false => Ok(self.size(key, most)?.unwrap_or(default)),
        }
    }

    /// A finite number above zero, if the key is there.
    pub(crate) fn positive(&self, key: &str) -> Result<Option<f64>, ModelError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_f64().filter(|v| v.is_finite() && *v > 0.0) {
            Some(number) if !(number as f32).is_normal() => {
                Err(self.error(key, format!("is {value}, which is no number of 32 bits")))
            }
            Some(number) => Ok(Some(number)),
            None => Err(self.error(key, format!("is {value}, a number above 0 is expected"))),
        }
    }

    /// The same for a key that must be there.
    pub(crate) fn required_positive(&self, key: &str) -> Result<f64, ModelError> {
        self.positive(key)?.ok_or_else(|| self.error(key, "is missing, a number above 0 is expected"))
    }

    /// A finite number above zero; `default` if the key is absent. Null is none.
    pub(crate) fn positive_or(&self, key: &str, default: f64) -> Result<f64, ModelError> {
        match self.is_null(key) {
            true => self.required_positive(key),
            false => Ok(self.positive(key)?.unwrap_or(default)),
        }
    }

    /// true or false; `default` if the key is absent.
    pub(crate) fn flag(&self, key: &str, default: bool) -> Result<bool, ModelError> {
        match self.get(key) {
            None => Ok(default),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(other) => Err(self.error(key, format!("is {other}, true or false is expected"))),
        }
    }

    /// A string, if the key is there.
    pub(crate) fn text(&self, key: &str) -> Result<Option<&str>, ModelError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.error(key, format!("is {other}, a string is expected"))),
        }
    }

    /// Token ids given as one number or as a list; empty if the key is absent.
    pub(crate) fn token_ids(&self, key: &str) -> Result<Vec<u32>, ModelError> {
        let Some(value) = self.get(key) else { return Ok(Vec::new()) };
        let one = std::slice::from_ref(value);
        let list = value.as_array().map_or(one, Vec::as_slice);
        list.iter()
            .map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()))
            .collect::<Option<Vec<u32>>>()
            .ok_or_else(|| self.error(key, format!("is {value}, a token id or a list of them is expected")))
    }
}
