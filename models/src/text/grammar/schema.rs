//! A JSON schema made ready for the library, which computes with numbers of 53 bits: those that it would round are refused. Formats that it does not
//! know only describe, and are left out.

use serde_json::{Number, Value};

/// Formats of strings that the library follows.
const FORMATS: [&str; 11] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown"];

/// Makes a schema ready.
///
/// # Errors
/// It has a number that would be rounded.
pub(super) fn make_ready(schema: &mut Value) -> Result<(), String> {
    of_schema(schema, "")
}

fn of_schema(schema: &mut Value, path: &str) -> Result<(), String> {
    let Value::Object(map) = schema else { return Ok(()) };
    let unknown = |format: &Value| format.as_str().is_some_and(|name| !FORMATS.contains(&name));
    if map.get("format").is_some_and(unknown) {
        map.remove("format");
    }
    for (key, value) in map {
        let path = format!("{path}/{key}");
        match (key.as_str(), value) {
            ("const" | "enum" | "multipleOf", value) => of_constant(value, &path)?,
            ("minimum" | "exclusiveMinimum", Value::Number(bound)) => of_bound(bound, 1.0, &path)?,
            ("maximum" | "exclusiveMaximum", Value::Number(bound)) => of_bound(bound, -1.0, &path)?,
            ("default" | "examples", _) => {}
            ("properties" | "patternProperties" | "$defs" | "definitions", Value::Object(named)) => {
                for (name, schema) in named {
                    of_schema(schema, &format!("{path}/{name}"))?;
                }
            }
            (_, Value::Array(schemas)) => {
                for (number, schema) in schemas.iter_mut().enumerate() {
                    of_schema(schema, &format!("{path}/{number}"))?;
                }
            }
            (_, schema) => of_schema(schema, &path)?,
        }
    }
    Ok(())
}

/// Of a value that is to be written as it is.
fn of_constant(value: &Value, path: &str) -> Result<(), String> {
    match value {
        Value::Number(number) if !is_exact(number) => Err(format!(
            "`{path}`: {number} has more digits than numbers are followed to, which is to 2^53; write it as a string"
        )),
        Value::Array(values) => values.iter().try_for_each(|value| of_constant(value, path)),
        Value::Object(values) => values.values().try_for_each(|value| of_constant(value, path)),
        _ => Ok(()),
    }
}

/// Of a bound that numbers are above, if `side` is 1, or below, if it is -1.
fn of_bound(bound: &Number, side: f64, path: &str) -> Result<(), String> {
    // The largest of a type of integers leave out none that could be written.
    let is_largest = side < 0.0 && bound.as_u64().is_some_and(|n| n == i64::MAX as u64 || n == u64::MAX);
    let beyond = side * bound.as_f64().unwrap_or_default() > MOST;
    if is_largest || is_exact(bound) && !beyond || !is_whole(bound) {
        return Ok(());
    }
    Err(format!(
        "`{path}`: {bound} has more digits than numbers are followed to, which is to 2^53; leave it out, or take one nearer to 0"
    ))
}

/// Up to here all integers are numbers of 53 bits.
const EXACT: f64 = 9_007_199_254_740_992.0;
/// What integers of 64 bits end with.
const MOST: f64 = i64::MAX as f64;

fn is_whole(number: &Number) -> bool {
    number.as_f64().is_none_or(|value| value.fract() == 0.0)
}

/// Whether a number of 53 bits, and an exponent, is this one. What is longer than 64 bits was rounded when it was read.
fn is_exact(number: &Number) -> bool {
    match number.as_i64() {
        Some(value) => value as f64 as i128 == i128::from(value),
        None => number.as_f64().is_none_or(|value| value.fract() != 0.0 || value.abs() <= EXACT),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_that_would_be_rounded_are_refused_by_their_place() {
        for (mut schema, place) in [
            (json!({"const": 9_007_199_254_740_993_u64}), "/const"),
            (json!({"enum": [1, {"a": [175_928_847_299_117_063_u64]}]}), "/enum"),
            (json!({"const": u64::MAX}), "/const"),
            (json!({"const": 1.234_567_890_123_456_8e22}), "/const"),
            (
                json!({"properties": {"const": {"minimum": 9_007_199_254_740_993_u64}}}),
                "/properties/const/minimum",
            ),
            (
                json!({"anyOf": [{}, {"items": {"maximum": -9_007_199_254_740_993_i64}}]}),
                "/anyOf/1/items/maximum",
            ),
            (json!({"minimum": 10_000_000_000_000_000_000_u64}), "/minimum"),
            (json!({"exclusiveMaximum": -1e19}), "/exclusiveMaximum"),
        ] {
            let error = make_ready(&mut schema).unwrap_err();
            assert!(error.starts_with(&format!("`{place}`: ")), "{error}");
        }
        for mut schema in [
            json!({"const": 9_007_199_254_740_992_u64}),
            json!({"enum": [0.1, -5, 1_152_921_504_606_846_976_u64, "9007199254740993", null]}),
            json!({"minimum": 0, "maximum": u64::MAX}),
            json!({"minimum": i64::MIN, "maximum": i64::MAX}),
            json!({"minimum": 0.0, "maximum": 1.0, "enum": [0.0, 1.0, -90.0], "multipleOf": 0.25}),
            json!({"default": u64::MAX, "properties": {"enum": {"minimum": 0.5}}}),
        ] {
            let before = schema.clone();
            assert_eq!(make_ready(&mut schema).map(|()| schema), Ok(before));
        }
    }

    #[test]
    fn formats_that_only_describe_are_left_out() {
        let mut schema = json!({
            "format": "password",
            "properties": {"format": {"format": "path", "type": "string"}, "at": {"format": "date"}},
            "enum": [{"format": "path"}],
        });
        make_ready(&mut schema).expect("no number");
        let ready = json!({
            "properties": {"format": {"type": "string"}, "at": {"format": "date"}},
            "enum": [{"format": "path"}],
        });
        assert_eq!(schema, ready);
    }
}
