//! Jinja as transformers sets it up for chat templates.

use std::time::SystemTime;

use minijinja::value::Kwargs;
use minijinja::{Environment, Error, ErrorKind, Output, State, Value, escape_formatter};

use super::python::{self, clock};
use super::{bounded, generation_block};

/// The environment that templates are rendered in: its functions, filters and bounds.
pub(super) fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_formatter(write);
    python::add_filters(&mut environment);
    bounded::guard(&mut environment);
    environment
        .add_function("raise_exception", |message: String| -> Result<Value, Error> { Err(refused(message)) });
    environment.add_function("strftime_now", |format: String| {
        clock::format(SystemTime::now(), &format).map_err(refused)
    });
    environment.add_filter("tojson", |value: Value, options: Kwargs| python::to_json(&value, &options));
    environment
}

/// The source as the lexer of Jinja reads it, with line feeds as line breaks, and without the tag that minijinja does not know.
pub(super) fn source(source: &str) -> String {
    generation_block::replaced(&source.replace("\r\n", "\n").replace('\r', "\n"))
}

fn refused(problem: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, problem)
}

/// `{{ value }}`.
fn write(out: &mut Output<'_>, state: &State<'_, '_>, value: &Value) -> Result<(), Error> {
    if value.as_str().is_some() || value.is_undefined() {
        return escape_formatter(out, state, value);
    }
    python::text(value, out).map_err(Error::from)
}
