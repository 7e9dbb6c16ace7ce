//! The `tojson` filter as transformers defines it: Python's `json.dumps(value, ensure_ascii=False, indent=..)`,
//! nothing escaped for HTML.

use std::io::{self, Write};

use minijinja::value::Kwargs;
use minijinja::{Error, ErrorKind, Value};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// `{{ value | tojson }}` and `{{ value | tojson(indent=2) }}`.
pub(super) fn to_json(value: &Value, options: &Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    options.assert_all_used()?;
    let mut out = Vec::new();
    let written = match indent {
        Some(width) => {
            let indent = vec![b' '; width.min(16)];
            value.serialize(&mut Serializer::with_formatter(&mut out, PrettyFormatter::with_indent(&indent)))
        }
        None => value.serialize(&mut Serializer::with_formatter(&mut out, OneLine)),
    };
    written.map_err(|e| Error::new(ErrorKind::BadSerialization, e.to_string()))?;
    let text = String::from_utf8(out).map_err(|e| Error::new(ErrorKind::BadSerialization, e.to_string()))?;
    Ok(Value::from_safe_string(text))
}

/// `", "` between items and `": "` after keys.
struct OneLine;

impl OneLine {
    fn separate<W: ?Sized + Write>(writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }
}

impl Formatter for OneLine {
    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        OneLine::separate(writer, first)
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        OneLine::separate(writer, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}
