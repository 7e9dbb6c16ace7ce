//! What templates expect of Python: how values are written, and what `tojson` and `strftime_now` make.

pub(super) mod clock;
mod filters;
mod json;
mod literal;
mod values;

pub(super) use self::filters::{add as add_filters, indent, method};
pub(super) use self::json::to_json;
pub(super) use self::literal::text;
pub(super) use self::values::value;

/// Lists and objects within each other that are written out. A template can nest them without end.
const MOST_DEPTH: usize = 200;
