//! What keeps a template within bounds: fuel, a limit for what it writes, and filters that refuse sizes nobody needs.
//!
//! Templates come with models, and messages from clients. Neither may take a worker's time or memory for long.

use std::io::{self, Write};

use minijinja::value::{Kwargs, Rest, StringInput, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters};

use super::python;
use super::template_input::Size;

/// Instructions for a template itself, for each message, and for each value in messages, tools and variables. Templates in use take some
/// hundred for a message, and some ten for a value.
const FUEL: u64 = 200_000;
const FUEL_PER_MESSAGE: u64 = 4_000;
const FUEL_PER_VALUE: u64 = 200;
/// Instructions at most, whatever there is to render.
const MOST_FUEL: u64 = 20_000_000;
/// Bytes that may be written beside the messages' own: preambles, and what stands around each message.
const OUTPUT_BYTES: usize = 256 << 10;
const OUTPUT_BYTES_PER_MESSAGE: usize = 1 << 10;
/// A byte of a message as JSON escapes it.
const OUTPUT_PER_BYTE: usize = 6;
/// Columns, items and characters that a filter may be asked for.
const MOST: usize = 1000;

/// Fuel for a conversation.
pub(super) fn fuel(size: Size) -> u64 {
    let fuel = FUEL + FUEL_PER_MESSAGE * size.messages as u64 + FUEL_PER_VALUE * size.values as u64;
    fuel.min(MOST_FUEL)
}

/// A text of a limited length.
pub(super) struct Bounded {
    text: Vec<u8>,
    most: usize,
}

impl Bounded {
    /// Room for a conversation, however a template writes it.
    pub(super) fn new(size: Size) -> Bounded {
        let around = OUTPUT_BYTES + OUTPUT_BYTES_PER_MESSAGE * size.messages;
        Bounded { text: Vec::new(), most: around + OUTPUT_PER_BYTE * size.bytes }
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
    environment.add_filter(
        "indent",
        |text: StringInput<'_>,
         width: Option<Value>,
         first: Option<bool>,
         blank: Option<bool>,
         options: Kwargs| { indent(&text, width, [first, blank], &options) },
    );
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
        python::method(state, value, method, arguments)
    });
}

fn indent(
    text: &StringInput<'_>,
    width: Option<Value>,
    [first, blank]: [Option<bool>; 2],
    options: &Kwargs,
) -> Result<Value, Error> {
    let width = width.map_or_else(|| options.get::<Option<Value>>("width"), |width| Ok(Some(width)))?;
    let flag = |given: Option<bool>, name| {
        given
            .map_or_else(|| options.get::<Option<bool>>(name), |flag| Ok(Some(flag)))
            .map(Option::unwrap_or_default)
    };
    let (first, blank) = (flag(first, "first")?, flag(blank, "blank")?);
    options.assert_all_used()?;
    let indentation = match width {
        None => " ".repeat(4),
        Some(text) if text.kind() == ValueKind::String => text.as_str().unwrap_or_default().to_owned(),
        Some(number) => " ".repeat(within(usize::try_from(number)?, "indent")?),
    };
    within(indentation.len(), "indent")?;
    Ok(text.preserve_safety(python::indent(text.as_str(), &indentation, first, blank)))
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
