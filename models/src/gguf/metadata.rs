//! The metadata of a GGUF file: values by their keys, each asked for as what it should be; every refusal names the file and the key.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::header::{List, Value};
use crate::ModelError;

/// What a file says of its model.
pub(crate) struct Metadata<'a> {
    path: PathBuf,
    values: HashMap<&'a str, Value<'a>>,
}

impl<'a> Metadata<'a> {
    pub(super) fn new(path: &Path, values: HashMap<&'a str, Value<'a>>) -> Metadata<'a> {
        Metadata { path: path.to_owned(), values }
    }

    /// The file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// All keys, in no order.
    pub(super) fn keys(&self) -> impl Iterator<Item = &'a str> {
        self.values.keys().copied()
    }

    /// An error about one key.
    pub(crate) fn error(&self, key: &str, problem: impl Into<String>) -> ModelError {
        ModelError::key(&self.path, key, problem)
    }

    /// What to say of a key that is not there.
    pub(crate) fn missing(&self, key: &str) -> ModelError {
        self.error(key, "is missing: the file is of another kind, or damaged")
    }

    fn wrong(&self, key: &str, value: &Value<'_>, wanted: &str) -> ModelError {
        self.error(key, format!("is {}, {wanted} is expected", value.shown()))
    }

    /// A whole number from 0 to `most`, if the key is there.
    pub(crate) fn size(&self, key: &str, most: u64) -> Result<Option<u64>, ModelError> {
        let Some(value) = self.values.get(key) else { return Ok(None) };
        match whole(value).and_then(|x| u64::try_from(x).ok()).filter(|x| *x <= most) {
            Some(size) => Ok(Some(size)),
            None => Err(self.wrong(key, value, "a whole number")),
        }
    }

    /// A finite number, if the key is there.
    pub(crate) fn number(&self, key: &str) -> Result<Option<f64>, ModelError> {
        let Some(value) = self.values.get(key) else { return Ok(None) };
        match *value {
            Value::Float(x) if x.is_finite() => Ok(Some(x)),
            _ => Err(self.wrong(key, value, "a floating-point number")),
        }
    }

    /// true or false, if the key is there.
    pub(crate) fn flag(&self, key: &str) -> Result<Option<bool>, ModelError> {
        match self.values.get(key) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(other) => Err(self.wrong(key, other, "true or false")),
        }
    }

    /// A text, if the key is there.
    pub(crate) fn text(&self, key: &str) -> Result<Option<&'a str>, ModelError> {
        let Some(value) = self.values.get(key) else { return Ok(None) };
        let text = match value {
            Value::Text(text) => std::str::from_utf8(text).ok(),
            _ => None,
        };
        text.map(Some).ok_or_else(|| self.wrong(key, value, "a text in UTF-8"))
    }

    fn list<T>(
        &self,
        key: &str,
        wanted: &str,
        item: impl Fn(Value<'a>) -> Option<T>,
    ) -> Result<Option<Vec<T>>, ModelError> {
        let Some(value) = self.values.get(key) else { return Ok(None) };
        let Value::List(list) = *value else {
            return Err(self.wrong(key, value, &format!("a list of {wanted}")));
        };
        items(list, item).map(Some).map_err(|(place, found)| {
            let found = found.map_or_else(|| "damaged".to_owned(), |value| value.shown());
            self.error(key, format!("has {found} at place {place}, a list of {wanted} is expected"))
        })
    }

    /// A list of texts, if the key is there.
    pub(crate) fn texts(&self, key: &str) -> Result<Option<Vec<&'a str>>, ModelError> {
        self.list(key, "texts in UTF-8", |value| match value {
            Value::Text(text) => std::str::from_utf8(text).ok(),
            _ => None,
        })
    }

    /// A list of whole numbers, if the key is there.
    pub(crate) fn integers(&self, key: &str) -> Result<Option<Vec<i64>>, ModelError> {
        self.list(key, "whole numbers", |value| whole(&value).and_then(|x| i64::try_from(x).ok()))
    }

    /// A list of numbers that are no NaN, if the key is there.
    pub(crate) fn numbers(&self, key: &str) -> Result<Option<Vec<f64>>, ModelError> {
        self.list(key, "numbers", |value| match value {
            Value::Float(x) if !x.is_nan() => Some(x),
            _ => None,
        })
    }

    /// A whole number from 0 to `most` that is the same for all layers: one, or a list of equal ones.
    pub(super) fn size_of_layers(&self, key: &str, most: u64) -> Result<Option<u64>, ModelError> {
        if !matches!(self.values.get(key), Some(Value::List(_))) {
            return self.size(key, most);
        }
        let all = self.integers(key)?.unwrap_or_default();
        let same = all.first().filter(|first| all.iter().all(|other| other == *first));
        match same.and_then(|x| u64::try_from(*x).ok()).filter(|x| *x <= most) {
            Some(size) => Ok(Some(size)),
            None => Err(self.error(key, "differs from layer to layer, which is not supported")),
        }
    }
}

fn whole(value: &Value<'_>) -> Option<i128> {
    match *value {
        Value::Unsigned(x) => Some(x.into()),
        Value::Signed(x) => Some(x.into()),
        _ => None,
    }
}

/// The items, or the place of what is none.
fn items<'a, T>(
    list: List<'a>,
    item: impl Fn(Value<'a>) -> Option<T>,
) -> Result<Vec<T>, (usize, Option<Value<'a>>)> {
    let mut items = Vec::new();
    for (place, value) in list.values().enumerate() {
        items.push(item(value).ok_or((place, Some(value)))?);
    }
    if items.len() == list.len { Ok(items) } else { Err((items.len(), None)) }
}
