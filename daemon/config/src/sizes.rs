//! Memory sizes as people write them, `512MiB`, `2GiB`, or plain bytes; and lengths of time.

use std::ops::RangeInclusive;
use std::time::Duration;

use serde_json::Value;

use crate::fields::{FieldError, Fields};

pub(super) const MIB: u64 = 1 << 20;

const UNITS: [(&str, u64); 4] = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)];

/// Reads a size in bytes, from `least` to `most`.
///
/// # Errors
/// It is no size, or out of range.
pub(super) fn bytes(
    fields: &mut Fields<'_>,
    name: &'static str,
    least: u64,
    most: u64,
) -> Result<Option<u64>, FieldError> {
    let Some(value) = fields.value(name) else { return Ok(None) };
    let wanted =
        format!("a size from {} to {}, such as \"512MiB\" or \"2GiB\"", written(least), written(most));
    let size = match value {
        Value::String(text) => parse(text),
        Value::Number(number) => number.as_u64(),
        other => return Err(fields.wrong_type(name, &wanted, other)),
    };
    match size {
        Some(size) if (least..=most).contains(&size) => Ok(Some(size)),
        _ => Err(fields.wrong_value(name, &wanted, value)),
    }
}

/// Reads a length of time in whole seconds.
pub(super) fn seconds(
    fields: &mut Fields<'_>,
    name: &'static str,
    range: RangeInclusive<u64>,
    default: u64,
) -> Result<Duration, FieldError> {
    Ok(Duration::from_secs(fields.whole(name, range)?.unwrap_or(default)))
}

fn parse(text: &str) -> Option<u64> {
    let text = text.trim();
    let (number, unit) = UNITS
        .iter()
        .find_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit)))
        .unwrap_or((text.strip_suffix('B').unwrap_or(text), 1));
    number.trim().parse::<u64>().ok()?.checked_mul(unit)
}

/// A size in the largest unit that keeps it readable.
pub fn written(bytes: u64) -> String {
    let (name, unit) = UNITS.iter().rev().find(|(_, unit)| bytes >= *unit).copied().unwrap_or(("B", 1));
    if bytes.is_multiple_of(unit) {
        format!("{}{name}", bytes / unit)
    } else {
        format!("{:.1}{name}", bytes as f64 / unit as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_their_unit() {
        assert_eq!(parse("2GiB"), Some(2 << 30));
        assert_eq!(parse(" 512 MiB"), Some(512 << 20));
        assert_eq!(parse("4096"), Some(4096));
        assert_eq!(parse("7B"), Some(7));
        for text in ["2GB", "GiB", "-1MiB", "1.5GiB", "99999999999TiB", ""] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn sizes_are_written_in_the_largest_fitting_unit() {
        assert_eq!(written(2 << 30), "2GiB");
        assert_eq!(written((1 << 30) + (1 << 29)), "1.5GiB");
        assert_eq!(written(12), "12B");
    }
}
