//! The config file as it was written: its values, and the line of every key. The only file that knows YAML.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::ConfigError;
use crate::fields::{Fault, FieldError};

/// Where a config comes from: a file, if one is named, and flags of the command line over it.
#[derive(Clone, Debug, Default)]
pub struct ConfigSource {
    /// The file.
    pub file: Option<PathBuf>,
    /// Key (as `section.key`), flag, and value.
    pub flags: Vec<(&'static str, &'static str, Value)>,
}

impl ConfigSource {
    /// The file as it is now, with the flags laid over it.
    ///
    /// # Errors
    /// The file cannot be read or is no YAML.
    pub fn document(&self) -> Result<Document, ConfigError> {
        let mut document =
            self.file.as_ref().map_or_else(|| Ok(Document::empty()), |file| Document::read(file))?;
        for (key, flag, value) in &self.flags {
            document.lay_over(key, flag, value.clone());
        }
        Ok(document)
    }
}

/// A parsed config file. Flags of the command line are laid over it, and errors name them in their place.
#[derive(Clone, Debug)]
pub struct Document {
    file: Option<PathBuf>,
    text: String,
    root: Value,
    flags: Vec<(&'static str, &'static str)>,
}

impl Document {
    /// A document without keys: every default.
    pub fn empty() -> Document {
        Document {
            file: None,
            text: String::new(),
            root: Value::Object(Default::default()),
            flags: Vec::new(),
        }
    }

    /// Reads and parses a file.
    ///
    /// # Errors
    /// It cannot be read, is no YAML, or is no mapping with plain keys and values.
    pub fn read(file: &Path) -> Result<Document, ConfigError> {
        let text = std::fs::read_to_string(file).map_err(|err| ConfigError {
            place: Some(file.display().to_string()),
            message: format!("cannot read the config file: {err}"),
        })?;
        Document::parse(file, text)
    }

    /// Parses `text`, the content of `file`.
    ///
    /// # Errors
    /// It is no YAML, or no mapping with plain keys and values.
    pub fn parse(file: &Path, text: String) -> Result<Document, ConfigError> {
        let mut document = Document { file: Some(file.to_owned()), text, ..Document::empty() };
        let yaml: serde_yaml::Value =
            serde_yaml::from_str(&document.text).map_err(|err| document.syntax_error(&err))?;
        document.root = match yaml {
            serde_yaml::Value::Null => Value::Object(Default::default()),
            yaml => plain("", yaml).map_err(|err| document.error(&err))?,
        };
        if !document.root.is_object() {
            let err = FieldError::new("", Fault::Type, "expected keys such as `server:` or `model:`");
            return Err(document.error(&err));
        }
        Ok(document)
    }

    /// The values.
    pub fn root(&self) -> &Value {
        &self.root
    }

    /// The same file and flags with other values.
    pub(super) fn with_root(&self, root: Value) -> Document {
        Document { root, ..self.clone() }
    }

    /// The folder that relative paths in the file start from.
    pub fn folder(&self) -> &Path {
        self.file.as_deref().and_then(Path::parent).unwrap_or(Path::new(""))
    }

    /// Lays a flag of the command line over `section.key`.
    pub fn lay_over(&mut self, path: &'static str, flag: &'static str, value: Value) {
        if let (Some((section, key)), Value::Object(root)) = (path.split_once('.'), &mut self.root) {
            // A flag counts for every pair.
            for pair in root.get_mut("pairs").and_then(Value::as_array_mut).into_iter().flatten() {
                if let Some(Value::Object(own)) = pair.get_mut(section) {
                    own.remove(key);
                }
            }
            let section = root.entry(section).or_insert(Value::Null);
            if section.is_null() {
                *section = Value::Object(Default::default());
            }
            if let Value::Object(section) = section {
                section.insert(key.to_owned(), value);
                self.flags.push((path, flag));
            }
        }
    }

    /// The error for a faulty field: with file and line, or with the flag that set it.
    pub fn error(&self, err: &FieldError) -> ConfigError {
        // Of a pair too: what it says itself has given way to the flag.
        let path =
            err.path.strip_prefix("pairs[").and_then(|rest| rest.split_once("].")).map(|(_, path)| path);
        let path = path.unwrap_or(&err.path);
        if let Some((_, flag)) = self.flags.iter().find(|(flagged, _)| *flagged == path) {
            return ConfigError { place: Some((*flag).to_owned()), message: err.message.clone() };
        }
        let place = self.file.as_ref().map(|file| match self.line(&err.path) {
            Some(line) => format!("{}:{line}", file.display()),
            None => file.display().to_string(),
        });
        ConfigError { place, message: err.message.clone() }
    }

    /// The line of a key, or of the nearest key around it; lines count from 1.
    fn line(&self, path: &str) -> Option<usize> {
        let keys = steps(path);
        (1..=keys.len()).rev().find_map(|depth| {
            let seek = Seek { keys: keys.get(..depth)? };
            let err = seek.deserialize(serde_yaml::Deserializer::from_str(&self.text)).err()?;
            err.to_string().contains(FOUND).then(|| err.location())?.map(|place| place.line())
        })
    }

    fn syntax_error(&self, err: &serde_yaml::Error) -> ConfigError {
        let file = self.file.as_deref().unwrap_or(Path::new("")).display();
        let line = err.location().map_or_else(String::new, |place| format!(":{}", place.line()));
        ConfigError { place: Some(format!("{file}{line}")), message: format!("not valid YAML: {err}") }
    }
}

/// YAML as JSON: what has no counterpart there is refused.
fn plain(path: &str, yaml: serde_yaml::Value) -> Result<Value, FieldError> {
    let refuse = |what: &str| Err(FieldError::new(path, Fault::Type, what));
    match yaml {
        serde_yaml::Value::Null => Ok(Value::Null),
        serde_yaml::Value::Bool(flag) => Ok(Value::Bool(flag)),
        serde_yaml::Value::String(text) => Ok(Value::String(text)),
        serde_yaml::Value::Number(number) => {
            let plain = number.as_u64().map(Value::from).or_else(|| number.as_i64().map(Value::from));
            match plain.or_else(|| number.as_f64().filter(|number| number.is_finite()).map(Value::from)) {
                Some(number) => Ok(number),
                None => refuse("must be a finite number"),
            }
        }
        serde_yaml::Value::Sequence(items) => {
            let items = items.into_iter().enumerate().map(|(i, item)| plain(&format!("{path}[{i}]"), item));
            items.collect::<Result<Vec<_>, _>>().map(Value::Array)
        }
        serde_yaml::Value::Mapping(map) => {
            let entries = map.into_iter().map(|(key, value)| match key {
                serde_yaml::Value::String(key) => {
                    let inner = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                    Ok((key, plain(&inner, value)?))
                }
                _ => Err(FieldError::new(
                    path,
                    Fault::Type,
                    "has a key that is no word; quote it or remove it",
                )),
            });
            entries.collect::<Result<serde_json::Map<_, _>, _>>().map(Value::Object)
        }
        serde_yaml::Value::Tagged(_) => refuse("has a YAML tag (`!...`); write the plain value"),
    }
}

/// A step of a path such as `pairs[1].kv.memory`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step<'p> {
    /// To what stands under a key.
    Key(&'p str),
    /// To an item of a list.
    Item(usize),
}

/// The steps of a path.
pub(super) fn steps(path: &str) -> Vec<Step<'_>> {
    let mut steps = Vec::new();
    for part in path.split('.') {
        let indexed = part.split_once('[').and_then(|(key, rest)| Some((key, rest.strip_suffix(']')?)));
        match indexed.and_then(|(key, index)| Some((key, index.parse().ok()?))) {
            Some((key, index)) => steps.extend([Step::Key(key), Step::Item(index)]),
            None => steps.push(Step::Key(part)),
        }
    }
    steps
}

/// serde_yaml tells places in errors alone: so a reader that fails on purpose at the key looked for. Of an item of a list that is its first key.
struct Seek<'k> {
    keys: &'k [Step<'k>],
}

const FOUND: &str = "here it is";

impl<'de> DeserializeSeed<'de> for Seek<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seek<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a mapping")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let (wanted, rest) = match self.keys {
            [] => (None, self.keys),
            [Step::Key(key), rest @ ..] => (Some(*key), rest),
            [Step::Item(_), ..] => {
                IgnoredAny.visit_map(map)?;
                return Ok(());
            }
        };
        while let Some(found) = map.next_key_seed(Key { wanted, last: rest.is_empty() })? {
            if found {
                return map.next_value_seed(Seek { keys: rest });
            }
            map.next_value::<IgnoredAny>()?;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        if let [Step::Item(wanted), rest @ ..] = self.keys {
            for _ in 0..*wanted {
                list.next_element::<IgnoredAny>()?;
            }
            list.next_element_seed(Seek { keys: rest })?;
        }
        IgnoredAny.visit_seq(list)?;
        Ok(())
    }
}

/// One key: fails if it is the last one looked for, else says whether it is on the way.
struct Key<'k> {
    /// Any, if none is named.
    wanted: Option<&'k str>,
    last: bool,
}

impl<'de> DeserializeSeed<'de> for Key<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Key<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: serde::de::Error>(self, key: &str) -> Result<bool, E> {
        let found = self.wanted.is_none_or(|wanted| wanted == key);
        if found && self.last { Err(E::custom(FOUND)) } else { Ok(found) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Document, ConfigError> {
        Document::parse(Path::new("x.yaml"), text.to_owned())
    }

    fn refusal(text: &str) -> String {
        parse(text).unwrap_err().to_string()
    }

    #[test]
    fn every_key_has_its_line_in_block_and_flow_style() {
        let document =
            parse("# first\nserver:\n  # why\n  listen: here\n\nkv: {block_size: 8,\n  memory: 1}\n")
                .unwrap();
        for (path, line) in [
            ("server", 2),
            ("server.listen", 4),
            ("server.absent", 2),
            ("kv.block_size", 6),
            ("kv.memory", 7),
        ] {
            assert_eq!(document.line(path), Some(line), "{path}");
        }
        assert_eq!(document.line("absent"), None);
        let document = parse("pairs:\n  - name: a\n    kv: {memory: 1}\n  - kv:\n      memory: 1\n").unwrap();
        for (path, line) in
            [("pairs[0].kv.memory", 3), ("pairs[1]", 4), ("pairs[1].kv.memory", 5), ("pairs[1].name", 4)]
        {
            assert_eq!(document.line(path), Some(line), "{path}");
        }
    }

    #[test]
    fn what_is_no_plain_config_is_refused_with_its_line() {
        assert!(refusal("a: [1,\n").starts_with("x.yaml:"), "{}", refusal("a: [1,\n"));
        assert!(refusal("a: 1\nb: 2\na: 3\n").contains("duplicate entry with key \"a\""));
        assert_eq!(refusal("- a\n- b\n"), "x.yaml: expected keys such as `server:` or `model:`");
        assert_eq!(refusal("kv:\n  memory: .nan\n"), "x.yaml:2: `kv.memory` must be a finite number");
        assert_eq!(
            refusal("kv:\n  1: 2\n"),
            "x.yaml:1: `kv` has a key that is no word; quote it or remove it"
        );
        assert_eq!(
            refusal("kv:\n  memory: !big 3\n"),
            "x.yaml:2: `kv.memory` has a YAML tag (`!...`); write the plain value"
        );
    }

    #[test]
    fn an_empty_file_is_a_document_without_keys() {
        for text in ["", "# nothing\n", "---\n"] {
            assert_eq!(parse(text).unwrap().root(), Document::empty().root(), "{text:?}");
        }
    }
}
