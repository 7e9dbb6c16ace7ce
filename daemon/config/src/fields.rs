//! Reads an object key by key and refuses what it was not asked for: requests and config are taken in this way alone.

use std::fmt::Display;
use std::ops::RangeInclusive;

use serde_json::{Map, Value};

/// An object being read. Every key asked for is remembered; `finish` refuses the others.
#[derive(Debug)]
pub struct Fields<'a> {
    path: String,
    map: &'a Map<String, Value>,
    asked: Vec<&'static str>,
}

/// What is wrong with a field, in words that say what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct FieldError {
    /// The field, from the outermost object on: `scheduler.max_running`, `messages[2].role`.
    pub path: String,
    /// The sort of fault.
    pub fault: Fault,
    /// The whole message; it names the field.
    pub message: String,
}

/// Sorts of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nobody asks for this field.
    Unknown,
    /// The field has to be there.
    Missing,
    /// Right name, wrong type.
    Type,
    /// Right type, impossible value.
    Value,
    /// Known from other servers, not offered here.
    Unsupported,
}

impl FieldError {
    /// A fault of the field at `path`; `problem` completes the sentence that begins with its name.
    pub fn new(path: impl Into<String>, fault: Fault, problem: impl Display) -> FieldError {
        let path = path.into();
        let message = if path.is_empty() { problem.to_string() } else { format!("`{path}` {problem}") };
        FieldError { path, fault, message }
    }
}

impl<'a> Fields<'a> {
    /// Reads `value`, which must be an object; `path` is its name, empty for the outermost.
    ///
    /// # Errors
    /// `value` is no object.
    pub fn new(path: impl Into<String>, value: &'a Value) -> Result<Fields<'a>, FieldError> {
        let path = path.into();
        match value {
            Value::Object(map) => Ok(Fields { path, map, asked: Vec::new() }),
            other if path.is_empty() => Err(FieldError::new(
                "",
                Fault::Type,
                format!("expected an object, but found {}", shown(other)),
            )),
            other => Err(wrong_type(&path, "an object", other)),
        }
    }

    /// The full name of a field of this object.
    pub fn path(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// The error for a field whose value cannot be; `problem` completes the sentence that begins with its name.
    pub fn wrong(&self, name: &str, problem: impl Display) -> FieldError {
        FieldError::new(self.path(name), Fault::Value, problem)
    }

    /// The error for a field that has to be there.
    pub fn missing(&self, name: &str, problem: impl Display) -> FieldError {
        FieldError::new(self.path(name), Fault::Missing, problem)
    }

    /// The error for a field of the wrong type; `wanted` names the right one.
    pub fn wrong_type(&self, name: &str, wanted: &str, found: &Value) -> FieldError {
        wrong_type(&self.path(name), wanted, found)
    }

    /// The error for an impossible value of a field; `wanted` says what is possible.
    pub fn wrong_value(&self, name: &str, wanted: &str, found: &Value) -> FieldError {
        wrong_value(&self.path(name), wanted, found)
    }

    /// The field as it stands; null counts as absent.
    pub fn value(&mut self, name: &'static str) -> Option<&'a Value> {
        self.asked.push(name);
        #[cfg(any(test, feature = "asked"))]
        asked::note(self.path(name));
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// A number within `range`.
    ///
    /// # Errors
    /// It is something else, or out of range.
    pub fn number(
        &mut self,
        name: &'static str,
        range: RangeInclusive<f64>,
    ) -> Result<Option<f64>, FieldError> {
        let Some(value) = self.value(name) else { return Ok(None) };
        let wanted = format!("a number from {} to {}", range.start(), range.end());
        match value.as_f64() {
            None => Err(self.wrong_type(name, &wanted, value)),
            Some(number) if range.contains(&number) => Ok(Some(number)),
            Some(_) => Err(self.wrong_value(name, &wanted, value)),
        }
    }

    /// A whole number within `range`.
    ///
    /// # Errors
    /// It is something else, or out of range.
    pub fn whole(
        &mut self,
        name: &'static str,
        range: RangeInclusive<u64>,
    ) -> Result<Option<u64>, FieldError> {
        let Some(value) = self.value(name) else { return Ok(None) };
        whole(&self.path(name), value, range).map(Some)
    }

    /// A `usize` within `range`.
    ///
    /// # Errors
    /// It is something else, or out of range.
    pub fn size(
        &mut self,
        name: &'static str,
        range: RangeInclusive<usize>,
    ) -> Result<Option<usize>, FieldError> {
        let range = *range.start() as u64..=*range.end() as u64;
        Ok(self.whole(name, range)?.map(|number| number as usize))
    }

    /// true or false.
    ///
    /// # Errors
    /// It is something else.
    pub fn flag(&mut self, name: &'static str) -> Result<Option<bool>, FieldError> {
        let Some(value) = self.value(name) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.wrong_type(name, "true or false", value))
    }

    /// A string.
    ///
    /// # Errors
    /// It is something else.
    pub fn text(&mut self, name: &'static str) -> Result<Option<&'a str>, FieldError> {
        let Some(value) = self.value(name) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.wrong_type(name, "a string", value))
    }

    /// One of a few words.
    ///
    /// # Errors
    /// It is something else.
    pub fn word(&mut self, name: &'static str, words: &[&str]) -> Result<Option<&'a str>, FieldError> {
        let Some(word) = self.text(name)? else { return Ok(None) };
        if words.contains(&word) {
            return Ok(Some(word));
        }
        let list = words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ");
        let hint = did_you_mean(word, words.iter().copied());
        Err(self.wrong(name, format!("must be one of {list}, but it is {}{hint}", shown(&word.into()))))
    }

    /// A list.
    ///
    /// # Errors
    /// It is something else.
    pub fn list(&mut self, name: &'static str) -> Result<Option<&'a [Value]>, FieldError> {
        let Some(value) = self.value(name) else { return Ok(None) };
        let list = value.as_array().ok_or_else(|| self.wrong_type(name, "a list", value))?;
        Ok(Some(list))
    }

    /// An object, to be read in its turn.
    ///
    /// # Errors
    /// It is something else.
    pub fn object(&mut self, name: &'static str) -> Result<Option<Fields<'a>>, FieldError> {
        let Some(value) = self.value(name) else { return Ok(None) };
        Fields::new(self.path(name), value).map(Some)
    }

    /// A field that may only hold what it would mean if it were absent.
    ///
    /// # Errors
    /// It asks for more than that.
    pub fn neutral(&mut self, name: &'static str, neutral: &[Value], why: &str) -> Result<(), FieldError> {
        match self.value(name) {
            Some(value) if !neutral.contains(value) => {
                Err(FieldError::new(self.path(name), Fault::Unsupported, format!("is not supported: {why}")))
            }
            _ => Ok(()),
        }
    }

    /// Ends the reading.
    ///
    /// # Errors
    /// The object has a key that was not asked for.
    pub fn finish(self) -> Result<(), FieldError> {
        let Some(unknown) = self.map.keys().find(|key| !self.asked.contains(&key.as_str())) else {
            return Ok(());
        };
        let hint = did_you_mean(unknown, self.asked.iter().copied());
        let hint = if hint.is_empty() && self.asked.len() <= 8 {
            format!("; known here: {}", self.asked.join(", "))
        } else {
            hint
        };
        Err(FieldError::new(self.path(&shortened(unknown, 64)), Fault::Unknown, format!("is unknown{hint}")))
    }
}

/// The value of a field that has to be there.
///
/// # Errors
/// There is none.
pub fn required<T>(value: Option<T>, fields: &Fields<'_>, name: &str) -> Result<T, FieldError> {
    value.ok_or_else(|| fields.missing(name, "is missing"))
}

/// Each entry of a list, read with its full name.
///
/// # Errors
/// The first that an entry has.
pub fn each<'v, T>(
    path: &str,
    list: &'v [Value],
    mut read: impl FnMut(String, &'v Value) -> Result<T, FieldError>,
) -> Result<Vec<T>, FieldError> {
    list.iter().enumerate().map(|(i, value)| read(format!("{path}[{i}]"), value)).collect()
}

/// Refuses more than `most` of something; `what` are they.
///
/// # Errors
/// There are more.
pub fn at_most(path: &str, count: usize, most: usize, what: &str) -> Result<(), FieldError> {
    if count <= most {
        return Ok(());
    }
    Err(FieldError::new(path, Fault::Value, format!("has {count} {what}; {most} are taken at most")))
}

/// A text of one string, or of parts that are joined by line breaks; `wanted` says how that is written.
///
/// # Errors
/// It is something else, or a part is wrong.
pub fn joined<'v>(
    fields: &mut Fields<'v>,
    name: &'static str,
    wanted: &str,
    part: impl Fn(Fields<'v>) -> Result<&'v str, FieldError>,
) -> Result<Option<String>, FieldError> {
    match fields.value(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(Value::Array(parts)) => {
            let texts = each(&fields.path(name), parts, |path, value| part(Fields::new(path, value)?))?;
            Ok(Some(texts.join("\n")))
        }
        Some(other) => Err(fields.wrong_type(name, wanted, other)),
    }
}

/// A whole number within `range`.
///
/// # Errors
/// `value` is something else, or out of range.
pub fn whole(path: &str, value: &Value, range: RangeInclusive<u64>) -> Result<u64, FieldError> {
    let wanted = match (*range.start(), *range.end()) {
        (start, u64::MAX) => format!("a whole number, at least {start}"),
        (start, end) => format!("a whole number from {start} to {end}"),
    };
    match value.as_u64() {
        Some(number) if range.contains(&number) => Ok(number),
        Some(_) => Err(wrong_value(path, &wanted, value)),
        None if value.is_number() => Err(wrong_value(path, &wanted, value)),
        None => Err(wrong_type(path, &wanted, value)),
    }
}

/// The error for a value of the wrong type; `wanted` names the right one.
pub fn wrong_type(path: &str, wanted: &str, found: &Value) -> FieldError {
    FieldError::new(path, Fault::Type, format!("must be {wanted}, but it is {}", shown(found)))
}

/// The error for an impossible value; `wanted` says what is possible.
pub fn wrong_value(path: &str, wanted: &str, found: &Value) -> FieldError {
    FieldError::new(path, Fault::Value, format!("must be {wanted}, but it is {}", shown(found)))
}

/// `; did you mean ...?` if one of `known` is close to `word`, else nothing.
pub fn did_you_mean<'k>(word: &str, known: impl Iterator<Item = &'k str>) -> String {
    if word.len() > 64 {
        return String::new();
    }
    known
        .map(|name| (strsim::jaro_winkler(word, name), name))
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .filter(|(likeness, _)| *likeness > 0.8)
        .map_or_else(String::new, |(_, name)| format!("; did you mean `{name}`?"))
}

/// A value as an error message shows it: its type if it is large, itself if it is small.
fn shown(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("a list of {}", items.len()),
        Value::Object(_) => "an object".to_owned(),
        Value::Null => "null".to_owned(),
        Value::String(text) => format!("the string \"{}\"", shortened(text, 40)),
        other => other.to_string(),
    }
}

/// The beginning of a text, with everything in it that does not print escaped.
pub fn shortened(text: &str, limit: usize) -> String {
    let mut short: String = text.chars().take(limit).flat_map(char::escape_debug).collect();
    if text.chars().nth(limit).is_some() {
        short.push('…');
    }
    short
}

/// Every field that readers of this thread have asked for: for tests of what is documented.
#[cfg(any(test, feature = "asked"))]
pub mod asked {
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    thread_local! {
        static ASKED: RefCell<BTreeSet<String>> = const { RefCell::new(BTreeSet::new()) };
    }

    pub(super) fn note(path: String) {
        ASKED.with_borrow_mut(|asked| asked.insert(path));
    }

    /// Those since the last call, by their full names.
    pub fn take() -> BTreeSet<String> {
        ASKED.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn message<T: std::fmt::Debug>(result: Result<T, FieldError>) -> String {
        result.expect_err("this has to be refused").message
    }

    #[test]
    fn values_are_read_and_null_is_absent() {
        let value = json!({"a": 1, "b": 0.5, "c": "x", "d": true, "e": null, "f": [1], "g": {"h": 2}});
        let mut fields = Fields::new("", &value).unwrap();
        assert_eq!(fields.whole("a", 0..=9), Ok(Some(1)));
        assert_eq!(fields.number("b", 0.0..=1.0), Ok(Some(0.5)));
        assert_eq!(fields.text("c"), Ok(Some("x")));
        assert_eq!(fields.flag("d"), Ok(Some(true)));
        assert_eq!(fields.text("e"), Ok(None));
        assert_eq!(fields.list("f").unwrap().map(<[Value]>::len), Some(1));
        let mut inner = fields.object("g").unwrap().unwrap();
        assert_eq!(inner.size("h", 1..=2), Ok(Some(2)));
        assert_eq!(inner.finish(), Ok(()));
        assert_eq!(fields.finish(), Ok(()));
    }

    #[test]
    fn faults_name_the_field_and_say_what_to_write() {
        let value = json!({"a": 10, "b": "half", "c": 7, "d": "yes", "w": "reed", "n": -1});
        let mut fields = Fields::new("outer", &value).unwrap();
        assert_eq!(
            message(fields.whole("a", 0..=9)),
            "`outer.a` must be a whole number from 0 to 9, but it is 10"
        );
        assert_eq!(
            message(fields.whole("n", 1..=u64::MAX)),
            "`outer.n` must be a whole number, at least 1, but it is -1"
        );
        assert_eq!(
            message(fields.number("b", 0.0..=1.5)),
            "`outer.b` must be a number from 0 to 1.5, but it is the string \"half\""
        );
        assert_eq!(message(fields.text("c")), "`outer.c` must be a string, but it is 7");
        assert_eq!(
            message(fields.flag("d")),
            "`outer.d` must be true or false, but it is the string \"yes\""
        );
        assert_eq!(
            message(fields.word("w", &["red", "blue"])),
            "`outer.w` must be one of `red`, `blue`, but it is the string \"reed\"; did you mean `red`?"
        );
    }

    #[test]
    fn what_nobody_asked_for_is_refused() {
        let value = json!({"temperature": 1, "temprature": 1});
        let mut fields = Fields::new("", &value).unwrap();
        fields.value("temperature");
        assert_eq!(message(fields.finish()), "`temprature` is unknown; did you mean `temperature`?");
        let value = json!({"zzz": 1});
        let mut fields = Fields::new("kv", &value).unwrap();
        fields.value("memory");
        assert_eq!(message(fields.finish()), "`kv.zzz` is unknown; known here: memory");
    }

    #[test]
    fn a_neutral_field_may_only_say_what_its_absence_says() {
        let value = json!({"n": 1, "best_of": 2});
        let mut fields = Fields::new("", &value).unwrap();
        assert_eq!(fields.neutral("n", &[json!(1)], "one choice"), Ok(()));
        assert_eq!(
            message(fields.neutral("best_of", &[json!(1)], "one choice")),
            "`best_of` is not supported: one choice"
        );
    }

    #[test]
    fn long_and_odd_input_is_shown_shortened_and_escaped() {
        let value = json!({"a": format!("x\n{}", "y".repeat(100))});
        let mut fields = Fields::new("", &value).unwrap();
        let text = message(fields.whole("a", 0..=1));
        assert!(text.contains("x\\nyyy") && text.contains('…') && text.len() < 140, "{text}");
    }
}
