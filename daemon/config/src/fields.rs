//! Reads an object key by key and refuses what it was not asked for: requests and config are taken in this way alone. A reader that is given
//! nothing tells what it would ask for: that is what OpenAPI documents say of requests.

use std::cell::RefCell;
use std::fmt::Display;
use std::ops::RangeInclusive;

use serde_json::{Map, Value, json};

/// An object being read. Every key asked for is remembered; `finish` refuses the others.
#[derive(Debug)]
pub struct Fields<'a> {
    path: String,
    map: &'a Map<String, Value>,
    asked: Vec<&'static str>,
    /// Where it is told what is asked for, and the object's name there, if nothing is read.
    told: Option<(&'a Schemas, &'static str)>,
}

/// Schemas of objects by name, as their readers tell them.
#[derive(Debug, Default)]
pub struct Schemas {
    all: RefCell<Map<String, Value>>,
    nothing: Map<String, Value>,
}

/// The name of a field, and what documents say of it.
#[derive(Clone, Copy, Debug)]
pub struct Name {
    name: &'static str,
    about: &'static str,
}

impl From<&'static str> for Name {
    fn from(name: &'static str) -> Name {
        Name { name, about: "" }
    }
}

impl From<(&'static str, &'static str)> for Name {
    fn from((name, about): (&'static str, &'static str)) -> Name {
        Name { name, about }
    }
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

impl Schemas {
    /// Has the reader of an object tell what it asks for. That it refuses what is not there means nothing.
    pub fn tell<'s, T, E>(
        &'s self,
        object: &'static str,
        about: &str,
        read: impl FnOnce(&mut Fields<'s>) -> Result<T, E>,
    ) {
        let mut schema = json!({
            "type": "object", "properties": {}, "required": [], "additionalProperties": false,
        });
        if !about.is_empty() {
            schema["description"] = about.into();
        }
        self.all.borrow_mut().entry(object).or_insert(schema);
        let told = Some((self, object));
        read(&mut Fields { path: String::new(), map: &self.nothing, asked: Vec::new(), told }).ok();
    }

    /// What a field may be; of several that say it, the first counts.
    fn note(&self, object: &str, Name { name, about }: Name, mut schema: Value) {
        if !about.is_empty() {
            schema["description"] = about.into();
        }
        if let Value::Object(fields) = &mut self.all.borrow_mut()[object]["properties"] {
            fields.entry(name).or_insert(schema);
        }
    }

    fn note_required(&self, object: &str, name: &str) {
        if let Value::Array(names) = &mut self.all.borrow_mut()[object]["required"]
            && !names.iter().any(|known| known == name)
        {
            names.push(name.into());
        }
    }

    /// All of them. Fields that need not be there may be null.
    pub fn finish(self) -> Map<String, Value> {
        let mut all = self.all.into_inner();
        for schema in all.values_mut() {
            let required = schema["required"].as_array().cloned().unwrap_or_default();
            if let Some(schema) = schema.as_object_mut().filter(|_| required.is_empty()) {
                schema.remove("required");
            }
            for (name, field) in schema["properties"].as_object_mut().into_iter().flatten() {
                if !required.iter().any(|required| required == name) {
                    or_null(field);
                }
            }
        }
        all
    }
}

/// A schema of what has one by this name.
pub fn named(object: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{object}")})
}

/// A schema of what is one of several.
pub fn one_of(schemas: impl IntoIterator<Item = Value>) -> Value {
    json!({"oneOf": schemas.into_iter().collect::<Vec<_>>()})
}

fn or_null(schema: &mut Value) {
    if let Some(reference) = schema.as_object_mut().and_then(|schema| schema.remove("$ref")) {
        schema["oneOf"] = json!([{"$ref": reference}]);
    }
    let Value::Object(schema) = schema else { return };
    if let Some(kind) = schema.get_mut("type") {
        *kind = json!([kind.take(), "null"]);
    }
    for (several, null) in [("enum", Value::Null), ("oneOf", json!({"type": "null"}))] {
        if let Some(Value::Array(several)) = schema.get_mut(several) {
            several.push(null);
        }
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
            Value::Object(map) => Ok(Fields { path, map, asked: Vec::new(), told: None }),
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
        if let Some((schemas, object)) = self.told {
            schemas.note_required(object, name);
        }
        self.absent(name, problem)
    }

    /// The same for a field that need not be there in every case.
    pub fn absent(&self, name: &str, problem: impl Display) -> FieldError {
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

    /// The field as it stands; `schema` tells what it may be beside null.
    pub fn value_of(&mut self, name: impl Into<Name>, schema: impl FnOnce() -> Value) -> Option<&'a Value> {
        let name = name.into();
        if let Some((schemas, object)) = self.told {
            schemas.note(object, name, schema());
        }
        self.value(name.name)
    }

    /// Adds to what is told of a field; null takes away.
    pub fn tell(&self, name: &str, more: impl FnOnce() -> Value) {
        if let Some((schemas, object)) = self.told
            && let Value::Object(more) = more()
            && let Value::Object(schema) = &mut schemas.all.borrow_mut()[object]["properties"][name]
        {
            schema.extend(more);
            schema.retain(|_, value| !value.is_null());
        }
    }

    /// The object that is read.
    pub fn object_itself(&self) -> &'a Map<String, Value> {
        self.map
    }

    /// A number within `range`.
    ///
    /// # Errors
    /// It is something else, or out of range.
    pub fn number(
        &mut self,
        name: impl Into<Name>,
        range: RangeInclusive<f64>,
    ) -> Result<Option<f64>, FieldError> {
        let name = name.into();
        let schema = || {
            // Bounds are whole numbers.
            let (least, most) = (*range.start() as i64, *range.end() as i64);
            json!({"type": "number", "format": "double", "minimum": least, "maximum": most})
        };
        let Some(value) = self.value_of(name, schema) else { return Ok(None) };
        let wanted = format!("a number from {} to {}", range.start(), range.end());
        match value.as_f64() {
            None => Err(self.wrong_type(name.name, &wanted, value)),
            Some(number) if range.contains(&number) => Ok(Some(number)),
            Some(_) => Err(self.wrong_value(name.name, &wanted, value)),
        }
    }

    /// A whole number within `range`.
    ///
    /// # Errors
    /// It is something else, or out of range.
    pub fn whole(
        &mut self,
        name: impl Into<Name>,
        range: RangeInclusive<u64>,
    ) -> Result<Option<u64>, FieldError> {
        let name = name.into();
        let Some(value) = self.value_of(name, || whole_schema(&range)) else { return Ok(None) };
        whole(&self.path(name.name), value, range).map(Some)
    }

    /// A `usize` within `range`.
    ///
    /// # Errors
    /// It is something else, or out of range.
    pub fn size(
        &mut self,
        name: impl Into<Name>,
        range: RangeInclusive<usize>,
    ) -> Result<Option<usize>, FieldError> {
        let range = *range.start() as u64..=*range.end() as u64;
        Ok(self.whole(name, range)?.map(|number| number as usize))
    }

    /// true or false.
    ///
    /// # Errors
    /// It is something else.
    pub fn flag(&mut self, name: impl Into<Name>) -> Result<Option<bool>, FieldError> {
        let name = name.into();
        let Some(value) = self.value_of(name, || json!({"type": "boolean"})) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.wrong_type(name.name, "true or false", value))
    }

    /// A string.
    ///
    /// # Errors
    /// It is something else.
    pub fn text(&mut self, name: impl Into<Name>) -> Result<Option<&'a str>, FieldError> {
        let name = name.into();
        let Some(value) = self.value_of(name, || json!({"type": "string"})) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.wrong_type(name.name, "a string", value))
    }

    /// One of a few words.
    ///
    /// # Errors
    /// It is something else.
    pub fn word(&mut self, name: impl Into<Name>, words: &[&str]) -> Result<Option<&'a str>, FieldError> {
        let name = name.into();
        let schema = || json!({"type": "string", "enum": words});
        let Some(value) = self.value_of(name, schema) else { return Ok(None) };
        let word = value.as_str().ok_or_else(|| self.wrong_type(name.name, "a string", value))?;
        if words.contains(&word) {
            return Ok(Some(word));
        }
        let list = words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ");
        let hint = did_you_mean(word, words.iter().copied());
        Err(self.wrong(name.name, format!("must be one of {list}, but it is {}{hint}", shown(value))))
    }

    /// The word that says of which kind the object is; each kind, by its name, has some.
    ///
    /// # Errors
    /// It is something else.
    pub fn kind(
        &mut self,
        name: &'static str,
        kinds: &[(&str, &[&'static str])],
    ) -> Result<Option<&'a str>, FieldError> {
        if let Some((_, object)) = self.told {
            let words = kinds.iter().find(|(kind, _)| *kind == object).map_or(&[][..], |(_, words)| *words);
            self.word(name, words)?;
            return Ok(words.first().copied());
        }
        match self.value(name) {
            Some(Value::String(word)) if kinds.iter().any(|(_, words)| words.contains(&word.as_str())) => {
                Ok(Some(word))
            }
            None => Ok(None),
            Some(_) => {
                self.word(name, &kinds.iter().flat_map(|(_, words)| *words).copied().collect::<Vec<_>>())
            }
        }
    }

    /// A list.
    ///
    /// # Errors
    /// It is something else.
    pub fn list(&mut self, name: &'static str) -> Result<Option<&'a [Value]>, FieldError> {
        self.list_of(name, || json!({}))
    }

    /// A list; `schema` tells what its entries may be.
    ///
    /// # Errors
    /// It is something else.
    pub fn list_of(
        &mut self,
        name: impl Into<Name>,
        schema: impl FnOnce() -> Value,
    ) -> Result<Option<&'a [Value]>, FieldError> {
        let name = name.into();
        let schema = || json!({"type": "array", "items": schema()});
        let Some(value) = self.value_of(name, schema) else { return Ok(None) };
        let list = value.as_array().ok_or_else(|| self.wrong_type(name.name, "a list", value))?;
        Ok(Some(list))
    }

    /// A list of objects, each read by `read` to its end; `kinds` are the names of what they may be. `unfit` says what is wrong with a number of them.
    ///
    /// # Errors
    /// It is something else, there are too few or too many, or one of them is wrong.
    pub fn objects<T>(
        &mut self,
        name: impl Into<Name>,
        kinds: &[&'static str],
        unfit: impl FnOnce(usize) -> Option<String>,
        mut read: impl FnMut(&mut Fields<'a>) -> Result<T, FieldError>,
    ) -> Result<Option<Vec<T>>, FieldError> {
        let name = name.into();
        let schema =
            || if let [one] = kinds { named(one) } else { one_of(kinds.iter().map(|kind| named(kind))) };
        let list = self.list_of(name, schema)?;
        self.tell_kinds(kinds, &mut read);
        let (Some(list), path) = (list, self.path(name.name)) else { return Ok(None) };
        if let Some(problem) = unfit(list.len()) {
            return Err(FieldError::new(path, Fault::Value, problem));
        }
        each(&path, list, |path, value| Fields::new(path, value)?.to_end(&mut read)).map(Some)
    }

    /// Has the reader of objects of several kinds tell of each.
    pub fn tell_kinds<T>(
        &self,
        kinds: &[&'static str],
        mut read: impl FnMut(&mut Fields<'a>) -> Result<T, FieldError>,
    ) {
        for (kind, (schemas, _)) in kinds.iter().zip(self.told.iter().cycle()) {
            schemas.tell(kind, "", &mut read);
        }
    }

    /// What `read` makes of the object, which has nothing else.
    ///
    /// # Errors
    /// That of `read`, or there is something else.
    pub fn to_end<T, E: From<FieldError>>(
        mut self,
        read: impl FnOnce(&mut Fields<'a>) -> Result<T, E>,
    ) -> Result<T, E> {
        let made = read(&mut self)?;
        self.finish()?;
        Ok(made)
    }

    /// What `read` makes of an object, which has nothing else; `kind` is its name in documents.
    ///
    /// # Errors
    /// It is none, or wrong.
    pub fn within<T>(
        &mut self,
        name: impl Into<Name>,
        kind: &'static str,
        mut read: impl FnMut(&mut Fields<'a>) -> Result<T, FieldError>,
    ) -> Result<Option<T>, FieldError> {
        let Name { name, about } = name.into();
        let value = self.value_of(name, || named(kind));
        if let Some((schemas, _)) = self.told {
            schemas.tell(kind, about, &mut read);
        }
        let Some(value) = value else { return Ok(None) };
        Fields::new(self.path(name), value)?.to_end(read).map(Some)
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
        // 1.0 is said by 1.
        let schema = || json!({"enum": neutral.iter().filter(|value| !value.is_f64()).collect::<Vec<_>>()});
        match self.value_of((name, "says what its absence says"), schema) {
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
pub fn required<T: Default>(value: Option<T>, fields: &Fields<'_>, name: &str) -> Result<T, FieldError> {
    required_as(value, fields, name, "is missing")
}

/// The same; `problem` says what to write.
///
/// # Errors
/// There is none.
pub fn required_as<T: Default>(
    value: Option<T>,
    fields: &Fields<'_>,
    name: &str,
    problem: impl Display,
) -> Result<T, FieldError> {
    match (value, fields.told) {
        // A reader that only tells goes on.
        (value, Some((schemas, object))) => {
            schemas.note_required(object, name);
            Ok(value.unwrap_or_default())
        }
        (value, None) => value.ok_or_else(|| fields.missing(name, problem)),
    }
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

/// A text of one string, or of parts that are joined by line breaks; `wanted` says how that is written, `kind` names a part in documents.
///
/// # Errors
/// It is something else, or a part is wrong.
pub fn joined<'v>(
    fields: &mut Fields<'v>,
    name: &'static str,
    wanted: &str,
    kind: &'static str,
    part: impl Fn(&mut Fields<'v>) -> Result<&'v str, FieldError>,
) -> Result<Option<String>, FieldError> {
    let schema = || one_of([json!({"type": "string"}), json!({"type": "array", "items": named(kind)})]);
    let value = fields.value_of((name, "A text, or parts of it that are joined by line breaks."), schema);
    fields.tell_kinds(&[kind], &part);
    match value {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(Value::Array(parts)) => {
            let texts =
                each(&fields.path(name), parts, |path, value| Fields::new(path, value)?.to_end(&part))?;
            Ok(Some(texts.join("\n")))
        }
        Some(other) => Err(fields.wrong_type(name, wanted, other)),
    }
}

fn whole_schema(range: &RangeInclusive<u64>) -> Value {
    let (least, most) = (*range.start(), *range.end());
    let format = if most > u64::from(u32::MAX) { "int64" } else { "int32" };
    let mut schema = json!({"type": "integer", "format": format, "minimum": least});
    // The most that a type holds says nothing.
    if most < u64::from(u32::MAX) {
        schema["maximum"] = most.into();
    }
    schema
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
