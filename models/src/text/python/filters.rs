//! Filters, tests and methods that minijinja has in another way than Jinja and Python.

use minijinja::value::{ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;

use super::text;

/// Puts Python's in the place of minijinja's.
pub(in crate::text) fn add(environment: &mut Environment<'_>) {
    environment.add_filter("string", string);
    for name in ["length", "count"] {
        environment.add_filter(name, length);
    }
    environment.add_test("lower", |text: &str| is_all(text, false));
    environment.add_test("upper", |text: &str| is_all(text, true));
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    environment.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String | ValueKind::Undefined)
    });
}

/// Whether a text has letters of this case, and none of the other.
fn is_all(text: &str, upper: bool) -> bool {
    let wanted = |c: char| if upper { c.is_uppercase() } else { c.is_lowercase() };
    let other = |c: char| if upper { c.is_lowercase() } else { c.is_uppercase() };
    text.chars().any(wanted) && !text.chars().any(other)
}

fn string(value: Value) -> Result<Value, Error> {
    if value.as_str().is_some() {
        return Ok(value);
    }
    let mut out = String::new();
    text(&value, &mut out)?;
    Ok(Value::from(out))
}

/// What is undefined has a length in Jinja; none has not.
fn length(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() {
        return Ok(0);
    }
    value.len().ok_or_else(|| {
        let problem = format!("cannot calculate length of value of type {}", value.kind());
        Error::new(ErrorKind::InvalidOperation, problem)
    })
}

/// A method of a string, list or object.
///
/// # Errors
/// There is no such method, or its arguments are wrong.
pub(in crate::text) fn method(
    state: &State<'_, '_>,
    value: &Value,
    method: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    let Some(text) = value.as_str() else {
        return pycompat::unknown_method_callback(state, value, method, arguments);
    };
    let stripped = |start: bool, end: bool| -> Result<Value, Error> {
        let (characters,): (Option<&str>,) = from_args(arguments)?;
        let strips = |c: char| characters.map_or_else(|| is_space(c), |characters| characters.contains(c));
        let text = if start { text.trim_start_matches(strips) } else { text };
        Ok(Value::from(if end { text.trim_end_matches(strips) } else { text }))
    };
    match method {
        "strip" => stripped(true, true),
        "lstrip" => stripped(true, false),
        "rstrip" => stripped(false, true),
        "islower" | "isupper" => {
            let () = from_args(arguments)?;
            Ok(Value::from(is_all(text, method == "isupper")))
        }
        "isdigit" | "isnumeric" | "isalpha" | "isalnum" | "isspace" if text.is_empty() => {
            let () = from_args(arguments)?;
            Ok(Value::from(false))
        }
        // In characters, of which Python's strings are made.
        "find" | "rfind" => {
            let (what,): (&str,) = from_args(arguments)?;
            let at = if method == "find" { text.find(what) } else { text.rfind(what) };
            let characters = at.and_then(|at| text.get(..at)).map(|before| before.chars().count());
            Ok(characters.map_or_else(|| Value::from(-1), Value::from))
        }
        "count" => {
            let (what,): (&str,) = from_args(arguments)?;
            Ok(Value::from(text.matches(what).count()))
        }
        "splitlines" => {
            let (keep,): (Option<bool>,) = from_args(arguments)?;
            Ok(lines(text, keep.unwrap_or(false)).into_iter().map(Value::from).collect())
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(arguments)?;
            Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(arguments)?;
            Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)))
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(arguments)?;
            Ok(partition(text, separator, method == "rpartition"))
        }
        "rsplit" => {
            let (separator, most): (&str, Option<usize>) = from_args(arguments)?;
            let mut parts: Vec<&str> = match most {
                Some(most) => text.rsplitn(most.saturating_add(1), separator).collect(),
                None => text.rsplit(separator).collect(),
            };
            parts.reverse();
            Ok(parts.into_iter().map(Value::from).collect())
        }
        _ => pycompat::unknown_method_callback(state, value, method, arguments),
    }
}

/// The `indent` filter: every line but the first and empty ones, unless they are asked for. A line feed at the end stays.
pub(in crate::text) fn indent(text: &str, indentation: &str, first: bool, blank: bool) -> String {
    let mut out = if first { indentation.to_owned() } else { String::new() };
    let ended = format!("{text}\n");
    for (i, line) in lines(&ended, false).into_iter().enumerate() {
        if i > 0 {
            out.push('\n');
            out.push_str(if blank || !line.is_empty() { indentation } else { "" });
        }
        out.push_str(line);
    }
    out
}

/// `str.splitlines`.
fn lines(text: &str, keep: bool) -> Vec<&str> {
    let ends = |c| matches!(c, '\n'..='\r' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}');
    let (mut lines, mut rest) = (Vec::new(), text);
    while let Some(end) = rest.find(ends) {
        let (line, more) = rest.split_at(end);
        let length = if more.starts_with("\r\n") { 2 } else { more.chars().next().map_or(0, char::len_utf8) };
        lines.push(if keep { &rest[..end + length] } else { line });
        rest = &more[length..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}

fn partition(text: &str, separator: &str, last: bool) -> Value {
    let split = if last { text.rsplit_once(separator) } else { text.split_once(separator) };
    let parts = match split {
        Some((before, after)) => [before, separator, after],
        None if last => ["", "", text],
        None => [text, "", ""],
    };
    parts.into_iter().map(Value::from).collect()
}

/// Whether Python's `strip` takes a character away.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn eval(expression: &str) -> String {
        let mut environment = Environment::new();
        add(&mut environment);
        environment.set_unknown_method_callback(method);
        let value = environment.compile_expression(expression).unwrap().eval(());
        value.map_or_else(|err| err.to_string(), |value| value.to_string())
    }

    #[test]
    fn lines_are_indented_as_jinja_does_it() {
        for (text, first, blank, wanted) in [
            ("a\n\nb\n", false, false, "a\n\n--b\n"),
            ("a\n\nb", true, true, "--a\n--\n--b"),
            ("", true, false, "--"),
            ("{\n", true, false, "--{\n"),
        ] {
            assert_eq!(indent(text, "--", first, blank), wanted, "{text:?}");
        }
    }

    #[test]
    fn methods_and_filters_do_what_pythons_do() {
        for (expression, wanted) in [
            ("' \n\x1c a b \x1f\t'.strip()", "a b"),
            ("'\n\na\n'.lstrip('\n')", "a\n"),
            ("'xyax'.rstrip('xy') ~ 'yxa'.strip('yx')", "xyaa"),
            ("'abab'.removeprefix('ab') ~ 'abc'.removesuffix('x')", "ababc"),
            ("'a=b=c'.partition('=') | join('|')", "a|=|b=c"),
            ("'a=b=c'.rpartition('=') | join('|')", "a=b|=|c"),
            ("'abc'.partition('=') | join('|')", "abc||"),
            ("'a-b-c'.rsplit('-', 1) | join('|')", "a-b|c"),
            ("'a-b-c'.rsplit('-') | join('|')", "a|b|c"),
            ("'a</t>b</t>c'.split('</t>')[-1] ~ 'a b  c'.split() | length", "c3"),
            ("'é日a日'.find('日') ~ 'é日a日'.rfind('日') ~ 'a'.find('b')", "13-1"),
            ("'abab'.count('ab') ~ 'éé'.count('')", "23"),
            ("'a,b,c'.split(',', 1) | join('|')", "a|b,c"),
            ("'a\r\nb\u{2028}c\n'.splitlines() | join('|')", "a|b|c"),
            ("'a\r\nb\n'.splitlines(true) | join('|')", "a\r\n|b\n"),
            ("'a b'.islower() and 'A1'.isupper() and 'a' is lower and 'A' is upper", "True"),
            ("''.islower() or 'aB'.islower() or '1' is upper or ''.isdigit()", "False"),
            ("nothing | length", "0"),
            ("1.5e16 | string ~ ([1.0, 'a'] | string)", "1.5e+16[1.0, 'a']"),
            ("none is iterable or none is sequence", "False"),
            ("'x' is iterable and 'x' is sequence and {} is sequence and [] is sequence", "True"),
            ("nothing is iterable", "True"),
        ] {
            assert_eq!(eval(expression), wanted, "{expression}");
        }
        assert!(eval("none | length").contains("cannot calculate length"));
        assert!(eval("'a'.nonsense()").contains("no method named nonsense"));
        assert!(eval("'a'.removeprefix()").contains("missing argument"));
    }
}
