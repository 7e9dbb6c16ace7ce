//! What keeps a template within bounds: fuel, a limit for what it writes, and filters that refuse sizes nobody needs.
//!
//! Templates come with models, and messages from clients. Neither may take a worker's time or memory for long.

use std::io::{self, Write};

use minijinja::value::{Kwargs, Rest, StringInput, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters};
use minijinja_contrib::pycompat;

/// Instructions for a template itself, and for each message. Templates in use take some hundred for a message.
const FUEL: u64 = 200_000;
const FUEL_PER_MESSAGE: u64 = 4_000;
/// Bytes that may be written beside the messages' own: preambles, and what stands around each message.
const OUTPUT_BYTES: usize = 256 << 10;
const OUTPUT_BYTES_PER_MESSAGE: usize = 1 << 10;
/// A byte of a message as JSON escapes it.
const OUTPUT_PER_BYTE: usize = 6;
/// Columns, items and characters that a filter may be asked for.
const MOST: usize = 1000;

/// Fuel for so many messages.
pub(super) fn fuel(messages: usize) -> u64 {
    FUEL + FUEL_PER_MESSAGE * messages as u64
}

/// A text of a limited length.
pub(super) struct Bounded {
    text: Vec<u8>,
    most: usize,
}

impl Bounded {
    /// Room for so many messages with so many bytes in them, however a template writes them.
    pub(super) fn new(messages: usize, bytes: usize) -> Bounded {
        let around = OUTPUT_BYTES + OUTPUT_BYTES_PER_MESSAGE * messages;
        Bounded { text: Vec::new(), most: around + OUTPUT_PER_BYTE * bytes }
    }

    pub(super) fn finish(self) -> String {
        // Templates write strings, never half of one.
        String::from_utf8(self.text)
            .unwrap_or_else(|err| String::from_utf8_lossy(err.as_bytes()).into_owned())
    }
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.most - self.text.len() {
            return Err(io::Error::other(format!("it writes more than {} bytes", self.most)));
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Puts bounded filters in the place of those that allocate whatever they are asked for.
pub(super) fn guard(environment: &mut Environment<'_>) {
    environment.remove_global("debug");
    environment.add_filter("indent", indent);
    environment.add_filter("batch", |state: &State, value: Value, count: usize, fill: Option<Value>| {
        filters::batch(state, value, within(count, "batch")?, fill)
    });
    environment.add_filter("slice", |state: &State, value: Value, count: usize, fill: Option<Value>| {
        filters::slice(state, value, within(count, "slice")?, fill)
    });
    environment.add_filter("format", |state: &State, format: Value, values: Rest<Value>| {
        check_format(&format)?;
        filters::format(state, &format, values)
    });
    environment.set_unknown_method_callback(|state, value, method, arguments| {
        if method == "format" && value.kind() == ValueKind::String {
            check_format(value)?;
        }
        pycompat::unknown_method_callback(state, value, method, arguments)
    });
}

fn indent(
    value: StringInput<'_>,
    width: Option<usize>,
    first: Option<bool>,
    blank: Option<bool>,
    options: Kwargs,
) -> Result<Value, Error> {
    let named: Option<usize> = options.peek("width").ok();
    within(width.or(named).unwrap_or(0), "indent")?;
    filters::indent(value, width, first, blank, options)
}

fn within(count: usize, filter: &str) -> Result<usize, Error> {
    if count <= MOST {
        return Ok(count);
    }
    let problem = format!("{filter}: {count} is too much, {MOST} at most");
    Err(Error::new(ErrorKind::InvalidOperation, problem))
}

/// Widths and precisions are numbers in the format: none may be large, or be given by a value.
fn check_format(format: &Value) -> Result<(), Error> {
    let text = format.as_str().unwrap_or_default();
    let mut digits = text.split(|c: char| !c.is_ascii_digit()).filter(|run| !run.is_empty());
    let too_wide = |run: &str| run.parse::<usize>().map_or(true, |width| width > MOST);
    if digits.any(too_wide) || text.contains('*') {
        let problem = format!("format: no number above {MOST} and no `*` may stand in a format");
        return Err(Error::new(ErrorKind::InvalidOperation, problem));
    }
    Ok(())
}
