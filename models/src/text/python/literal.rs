//! Values as Python writes them: `str()` and `repr()`.

use std::fmt::{self, Write};

use minijinja::Value;
use minijinja::value::{DynObject, ValueKind};

use super::MOST_DEPTH;

/// A value as `str(value)` writes it; what is undefined is nothing, as in Jinja.
///
/// # Errors
/// It is nested too deeply, or cannot be written to `out`.
pub(in crate::text) fn text(value: &Value, out: &mut impl Write) -> fmt::Result {
    match value.kind() {
        ValueKind::Undefined => Ok(()),
        ValueKind::String => out.write_str(value.as_str().unwrap_or_default()),
        _ => repr(value, 0, out),
    }
}

fn repr(value: &Value, depth: usize, out: &mut impl Write) -> fmt::Result {
    if depth > MOST_DEPTH {
        return Err(fmt::Error);
    }
    match value.kind() {
        ValueKind::Undefined => out.write_str("Undefined"),
        ValueKind::String => quoted(value.as_str().unwrap_or_default(), out),
        ValueKind::Number if !value.is_integer() => match f64::try_from(value.clone()) {
            Ok(number) => out.write_str(&float(number)),
            Err(_) => write!(out, "{value}"),
        },
        ValueKind::Seq | ValueKind::Iterable => list(value, depth, out),
        ValueKind::Map => map(value, depth, out),
        _ => write!(out, "{value}"),
    }
}

fn list(value: &Value, depth: usize, out: &mut impl Write) -> fmt::Result {
    let Ok(items) = value.try_iter() else { return write!(out, "{value}") };
    out.write_char('[')?;
    for (i, item) in items.enumerate() {
        out.write_str(if i == 0 { "" } else { ", " })?;
        repr(&item, depth + 1, out)?;
    }
    out.write_char(']')
}

fn map(value: &Value, depth: usize, out: &mut impl Write) -> fmt::Result {
    let pairs = value.as_object().and_then(DynObject::try_iter_pairs);
    let Some(pairs) = pairs else { return write!(out, "{value}") };
    out.write_char('{')?;
    for (i, (key, value)) in pairs.enumerate() {
        out.write_str(if i == 0 { "" } else { ", " })?;
        repr(&key, depth + 1, out)?;
        out.write_str(": ")?;
        repr(&value, depth + 1, out)?;
    }
    out.write_char('}')
}

/// A string in single quotes; in double ones if only that spares an escape.
fn quoted(text: &str, out: &mut impl Write) -> fmt::Result {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.write_char(quote)?;
    for c in text.chars() {
        match c {
            '\\' => out.write_str("\\\\")?,
            '\n' => out.write_str("\\n")?,
            '\r' => out.write_str("\\r")?,
            '\t' => out.write_str("\\t")?,
            c if c == quote => write!(out, "\\{c}")?,
            c if prints(c) => out.write_char(c)?,
            c => match u32::from(c) {
                code @ 0..=0xff => write!(out, "\\x{code:02x}")?,
                code @ 0x100..=0xffff => write!(out, "\\u{code:04x}")?,
                code => write!(out, "\\U{code:08x}")?,
            },
        }
    }
    out.write_char(quote)
}

/// Whether Python shows a character as it is: no control, format, private or space character but U+0020.
fn prints(c: char) -> bool {
    let hidden = matches!(c,
        '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
        | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{e000}'..='\u{f8ff}' | '\u{feff}'
        | '\u{fff9}'..='\u{fffb}' | '\u{e0001}'..='\u{e007f}' | '\u{f0000}'..);
    c == ' ' || !(hidden || c.is_control() || c.is_whitespace())
}

/// A float as `repr` writes it: the shortest digits that read back, with an exponent below 1e-4 and from 1e16 on.
pub(in crate::text) fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if number != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = number.to_string();
    if plain.contains('.') { plain } else { plain + ".0" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(value: &Value) -> String {
        let mut out = String::new();
        text(value, &mut out).unwrap();
        out
    }

    #[test]
    fn values_are_written_as_python_writes_them() {
        let value =
            serde_json::json!({"a": [1, -2.0, null, true, "it's", "\"", "'\"\n\u{a0}é\u{200d}🦀"], "b": {}});
        let wanted = r#"{'a': [1, -2.0, None, True, "it's", '"', '\'"\n\xa0é\u200d🦀'], 'b': {}}"#;
        assert_eq!(of(&Value::from_serialize(value)), wanted);
        assert_eq!(of(&Value::from("it's\n")), "it's\n");
        assert_eq!(of(&Value::UNDEFINED), "");
        assert_eq!(of(&Value::from(())), "None");
    }

    #[test]
    fn floats_are_written_as_python_writes_them() {
        for (number, wanted) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (0.1 + 0.2, "0.30000000000000004"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(float(number), wanted);
        }
    }

    #[test]
    fn what_is_nested_without_end_is_not_written() {
        let deep = (0..300).fold(Value::from(1), |value, _| Value::from(vec![value]));
        assert!(text(&deep, &mut String::new()).is_err());
    }
}
