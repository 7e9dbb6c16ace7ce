//! The `tojson` filter as transformers defines it: Python's `json.dumps(value, ensure_ascii=False, indent=None, separators=None,
//! sort_keys=False)`, nothing escaped for HTML.

use std::fmt::Write;

use minijinja::value::{DynObject, Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};

use super::MOST_DEPTH;
use super::literal::float;

/// Spaces of an indentation at most.
const MOST_INDENT: usize = 16;

/// `{{ value | tojson }}` and `{{ value | tojson(indent=2) }}`.
///
/// # Errors
/// An option is wrong, or the value is nothing that JSON has.
pub(in crate::text) fn to_json(value: &Value, options: &Kwargs) -> Result<Value, Error> {
    let mut json = Json::of(options)?;
    options.assert_all_used()?;
    json.value(value, 0)?;
    Ok(Value::from_safe_string(json.out))
}

/// A value being written.
struct Json {
    out: String,
    ascii: bool,
    sorted: bool,
    /// What a level is indented by; `None` is all on one line.
    indent: Option<String>,
    between_items: String,
    after_key: String,
}

impl Json {
    fn of(options: &Kwargs) -> Result<Json, Error> {
        let indent = match options.get::<Option<Value>>("indent")?.filter(|indent| !indent.is_none()) {
            None => None,
            Some(text) if text.kind() == ValueKind::String => {
                let text = text.as_str().unwrap_or_default();
                if text.len() > MOST_INDENT {
                    return Err(wrong(format!("tojson: indent is longer than {MOST_INDENT} bytes")));
                }
                Some(text.to_owned())
            }
            // Python takes a negative number for none.
            Some(number) => Some(
                " ".repeat(
                    number
                        .as_i64()
                        .map_or(MOST_INDENT, |width| usize::try_from(width).unwrap_or(0).min(MOST_INDENT)),
                ),
            ),
        };
        let separators = options.get::<Option<Vec<String>>>("separators")?;
        let (between_items, after_key) = match separators.as_deref() {
            None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
            Some([items, keys]) => (items.clone(), keys.clone()),
            Some(_) => return Err(wrong("tojson: separators are two strings")),
        };
        let flag = |name| options.get::<Option<bool>>(name).map(|flag| flag.unwrap_or(false));
        let (ascii, sorted) = (flag("ensure_ascii")?, flag("sort_keys")?);
        Ok(Json { out: String::new(), ascii, sorted, indent, between_items, after_key })
    }

    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MOST_DEPTH {
            return Err(wrong("tojson: the value is nested too deeply"));
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.out.push_str(&number(value)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.list(value, depth)?,
            ValueKind::Map => self.map(value, depth)?,
            kind => return Err(wrong(format!("tojson: the value is {kind}, which is no JSON"))),
        }
        Ok(())
    }

    fn list(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let mut empty = true;
        self.out.push('[');
        for item in value.try_iter()? {
            self.next(empty, depth + 1);
            empty = false;
            self.value(&item, depth + 1)?;
        }
        self.close(']', empty, depth);
        Ok(())
    }

    fn map(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let pairs = value.as_object().and_then(DynObject::try_iter_pairs);
        let mut pairs: Vec<(Value, Value)> = pairs.into_iter().flatten().collect();
        if self.sorted {
            pairs.sort_by(|a, b| a.0.cmp(&b.0));
        }
        let mut empty = true;
        self.out.push('{');
        for (key, value) in pairs {
            self.next(empty, depth + 1);
            empty = false;
            self.key(&key)?;
            self.out.push_str(&self.after_key);
            self.value(&value, depth + 1)?;
        }
        self.close('}', empty, depth);
        Ok(())
    }

    fn key(&mut self, key: &Value) -> Result<(), Error> {
        match key.kind() {
            ValueKind::String => self.string(key.as_str().unwrap_or_default()),
            ValueKind::None => self.out.push_str("\"null\""),
            ValueKind::Bool => self.out.push_str(if key.is_true() { "\"true\"" } else { "\"false\"" }),
            ValueKind::Number => self.string(&number(key)),
            kind => return Err(wrong(format!("tojson: a key is {kind}, a string is expected"))),
        }
        Ok(())
    }

    /// What stands in front of an item.
    fn next(&mut self, first: bool, depth: usize) {
        if !first {
            self.out.push_str(&self.between_items);
        }
        self.line(depth);
    }

    fn close(&mut self, bracket: char, empty: bool, depth: usize) {
        if !empty {
            self.line(depth);
        }
        self.out.push(bracket);
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            for _ in 0..depth {
                self.out.push_str(indent);
            }
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' || (self.ascii && !(' '..='~').contains(&c)) => self.escape(c),
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }

    fn escape(&mut self, c: char) {
        for unit in c.encode_utf16(&mut [0; 2]) {
            // Writing to a string cannot fail.
            let _ = write!(self.out, "\\u{unit:04x}");
        }
    }
}

fn number(value: &Value) -> String {
    match f64::try_from(value.clone()) {
        Ok(number) if !value.is_integer() => match number {
            number if number.is_nan() => "NaN".to_owned(),
            number if number.is_infinite() => if number > 0.0 { "Infinity" } else { "-Infinity" }.to_owned(),
            number => float(number),
        },
        _ => value.to_string(),
    }
}

fn wrong(problem: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, problem.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(value: serde_json::Value, options: &[(&str, Value)]) -> Result<String, Error> {
        let options: Kwargs = options.iter().cloned().collect();
        to_json(&Value::from_serialize(value), &options).map(|json| json.to_string())
    }

    #[test]
    fn options_are_those_of_json_dumps() {
        let value = serde_json::json!({"b": ["é🦀", 1e16, -0.5, null], "a": {}, "c": [{}, []], "d": "\u{1}\u{7f}<&'\"\\"});
        let plain = "{\"b\": [\"é🦀\", 1e+16, -0.5, null], \"a\": {}, \"c\": [{}, []], \"d\": \"\\u0001\u{7f}<&'\\\"\\\\\"}";
        assert_eq!(json(value.clone(), &[]).unwrap(), plain);
        let ascii =
            json(value.clone(), &[("ensure_ascii", true.into()), ("sort_keys", true.into())]).unwrap();
        assert!(ascii.starts_with("{\"a\": {}, \"b\": [\"\\u00e9\\ud83e\\udd80\", 1e+16"), "{ascii}");
        assert!(ascii.contains("\\u007f"), "{ascii}");
        let separators = Value::from(vec![",", ":"]);
        let narrow = json(serde_json::json!({"a": [1, 2]}), &[("separators", separators)]).unwrap();
        assert_eq!(narrow, "{\"a\":[1,2]}");
        let two = json(serde_json::json!({"a": [1, {}], "b": []}), &[("indent", 2.into())]).unwrap();
        assert_eq!(two, "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": []\n}");
        let tab = json(serde_json::json!([1]), &[("indent", "\t".into())]).unwrap();
        assert_eq!(tab, "[\n\t1\n]");
        assert_eq!(json(serde_json::json!([1]), &[("indent", Value::from(()))]).unwrap(), "[1]");
    }

    #[test]
    fn what_json_has_not_is_refused() {
        for (value, part) in [
            (Value::UNDEFINED, "undefined"),
            (Value::from(vec![Value::UNDEFINED]), "undefined"),
            ((0..300).fold(Value::from(1), |value, _| Value::from(vec![value])), "deeply"),
        ] {
            let message = to_json(&value, &std::iter::empty::<(&str, Value)>().collect::<Kwargs>())
                .unwrap_err()
                .to_string();
            assert!(message.contains(part), "{message}");
        }
        assert!(json(1.into(), &[("indents", 2.into())]).unwrap_err().to_string().contains("indents"));
        assert!(json(1.into(), &[("separators", Value::from(vec![","]))]).is_err());
        assert!(json(1.into(), &[("indent", " ".repeat(99).into())]).is_err());
    }
}
