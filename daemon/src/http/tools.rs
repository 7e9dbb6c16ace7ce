//! `tools`, `tool_choice` and `parallel_tool_calls`: which functions a chat may call, and what that makes of its output.

use faser_models::{CallForm, CallFormat, Function, GrammarSource};
use serde_json::Value;

use super::bounds::{Bounds, Shape};
use super::format::Form;
use super::params::{Parameters, ReadCalls, check_form};
use crate::fields::{
    Fault, FieldError, Fields, at_most, did_you_mean, each, required, shortened, wrong_type, wrong_value,
};

/// Functions of a request at most.
const MAX_TOOLS: usize = 128;
/// Bytes of a function's name at most.
const MAX_NAME_BYTES: usize = 64;

/// What a request says about calls.
struct Choice {
    mode: Mode,
    /// Names of the functions that may be called, if not all of them may.
    allowed: Option<Vec<String>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    None,
    Auto,
    Required,
    Named,
}

/// Reads the fields, and has the parameters say how the output is read and what it is held to.
///
/// # Errors
/// One of them is wrong, asks for what is not there, or cannot be had with another field.
pub(super) fn tools(
    fields: &mut Fields<'_>,
    shape: Shape,
    bounds: &Bounds<'_>,
    parameters: &mut Parameters,
) -> Result<(), FieldError> {
    let format = bounds.calls;
    let choice = choice(fields, shape)?;
    // A model that does not know a form does not know either when it has called enough.
    let several = fields.flag("parallel_tool_calls")?.unwrap_or(format != Some(CallFormat::Json));
    let list = fields.list("tools")?.unwrap_or_default();
    if list.is_empty() {
        return match choice {
            Choice { mode: Mode::None | Mode::Auto, allowed: None } => Ok(()),
            _ => Err(fields.wrong("tool_choice", "needs `tools`")),
        };
    }
    if choice.mode != Mode::None && format.is_none() {
        let problem = "are not supported: `model.tool_calls` is `none` in the server's config; give \"tool_choice\": \"none\"";
        return Err(FieldError::new(fields.path("tools"), Fault::Unsupported, problem));
    }
    let functions = functions(&fields.path("tools"), list, shape)?;
    let (functions, strict) = allowed(fields, functions, choice.allowed.as_deref())?;
    let (Some(format), true) = (format, choice.mode != Mode::None) else { return Ok(()) };
    let free = choice.mode == Mode::Auto;
    if parameters.form.is_some() && free && choice.allowed.is_none() {
        // The output has its form, and no calls.
        return Ok(());
    }
    // A text has its form, but here there is none: the output is calls.
    if parameters.form.as_ref().is_some_and(|form| free || !form.of_text) {
        let problem = "asks for calls, and another field for a form of the output: give one of them";
        return Err(fields.wrong("tool_choice", problem));
    }
    // In a form that the model does not know there would be none by itself.
    let json = format == CallFormat::Json;
    if free && json && bounds.template.tools {
        let problem = "are supported with \"tool_choice\": \"required\" or a function's name alone: the model's chat template writes calls in a \
                       form that is not known, so that calls it chooses to make could not be told from text; if it is one of \
                       `hermes` and `llama3`, say so by `model.tool_calls` in the server's config";
        return Err(FieldError::new(fields.path("tools"), Fault::Unsupported, problem));
    }
    parameters.calls = Some(ReadCalls { format, named: choice.mode == Mode::Named });
    if !free || strict || !several || choice.allowed.is_some() || json {
        // A function that was named is called once, as in OpenAI's API.
        let several = several && choice.mode != Mode::Named;
        let source = GrammarSource::Calls(CallForm { format, functions, free, several });
        parameters.form = Some(Form { field: fields.path("tools"), source, of_text: false });
        check_form(fields, parameters)?;
    }
    Ok(())
}

fn choice(fields: &mut Fields<'_>, shape: Shape) -> Result<Choice, FieldError> {
    let wanted = match shape {
        Shape::Response => "`none`, `auto`, `required`, or {\"type\": \"function\", \"name\": \"…\"}",
        _ => "`none`, `auto`, `required`, or {\"type\": \"function\", \"function\": {\"name\": \"…\"}}",
    };
    let path = fields.path("tool_choice");
    let all = |mode| Ok(Choice { mode, allowed: None });
    let mut inner = match fields.value("tool_choice") {
        None => return all(Mode::Auto),
        Some(Value::String(word)) => match word.as_str() {
            "none" => return all(Mode::None),
            "auto" => return all(Mode::Auto),
            "required" => return all(Mode::Required),
            other => return Err(wrong_value(&path, wanted, &other.into())),
        },
        Some(value @ Value::Object(_)) => Fields::new(path, value)?,
        Some(other) => return Err(wrong_type(&path, wanted, other)),
    };
    let choice = match inner.word("type", &["function", "allowed_tools"])? {
        Some("allowed_tools") => {
            let mut allowed = within(inner, "allowed_tools", shape)?;
            let mode = match allowed.word("mode", &["auto", "required"])? {
                Some("required") => Mode::Required,
                _ => Mode::Auto,
            };
            let path = allowed.path("tools");
            let list = allowed.list("tools")?.unwrap_or_default();
            let names = each(&path, list, |path, value| named(Fields::new(path, value)?, shape))?;
            if names.is_empty() {
                return Err(FieldError::new(path, Fault::Missing, "is missing: name one function at least"));
            }
            allowed.finish()?;
            Choice { mode, allowed: Some(names) }
        }
        _ => Choice { mode: Mode::Named, allowed: Some(vec![named(inner, shape)?]) },
    };
    Ok(choice)
}

/// The name in `{"type": "function", "function": {"name": …}}`.
fn named(mut fields: Fields<'_>, shape: Shape) -> Result<String, FieldError> {
    fields.word("type", &["function"])?;
    let mut function = within(fields, "function", shape)?;
    let name = required(function.text("name")?, &function, "name")?.to_owned();
    function.finish()?;
    Ok(name)
}

/// What a chat has in an object of its own, and a response beside the type.
fn within<'a>(mut outer: Fields<'a>, name: &'static str, shape: Shape) -> Result<Fields<'a>, FieldError> {
    if shape == Shape::Response {
        return Ok(outer);
    }
    let inner = required(outer.object(name)?, &outer, name)?;
    outer.finish()?;
    Ok(inner)
}

/// The functions, each with whether its calls have to be valid.
fn functions(path: &str, list: &[Value], shape: Shape) -> Result<Vec<(Function, bool)>, FieldError> {
    at_most(path, list.len(), MAX_TOOLS, "functions")?;
    let mut functions: Vec<(Function, bool)> = Vec::with_capacity(list.len());
    for (at, value) in list.iter().enumerate() {
        let mut tool = Fields::new(format!("{path}[{at}]"), value)?;
        required(tool.word("type", &["function"])?, &tool, "type")?;
        let inner = within(tool, "function", shape)?;
        let name = inner.path("name");
        let function = function(inner, shape)?;
        if functions.iter().any(|(other, _)| other.name == function.0.name) {
            return Err(FieldError::new(name, Fault::Value, "is that of another function"));
        }
        functions.push(function);
    }
    Ok(functions)
}

fn function(mut fields: Fields<'_>, shape: Shape) -> Result<(Function, bool), FieldError> {
    let name = required(fields.text("name")?, &fields, "name")?;
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.bytes().all(fits) {
        return Err(fields.wrong_value("name", "1 to 64 letters, digits, `_`, `-` and `.`", &name.into()));
    }
    fields.text("description")?;
    let path = fields.path("parameters");
    let parameters = fields.value("parameters");
    if let Some(schema) = parameters {
        let Value::Object(map) = schema else { return Err(wrong_type(&path, "a JSON schema", schema)) };
        if let Some(kind) = map.get("type").filter(|kind| *kind != "object") {
            return Err(wrong_value(&format!("{path}.type"), "`object`", kind));
        }
    }
    // OpenAI's default for responses.
    let strict = fields.flag("strict")?.unwrap_or(shape == Shape::Response);
    fields.finish()?;
    Ok((Function { name: name.to_owned(), parameters: parameters.cloned() }, strict))
}

/// Those that may be called, and whether calls of one have to be valid.
fn allowed(
    fields: &Fields<'_>,
    mut functions: Vec<(Function, bool)>,
    names: Option<&[String]>,
) -> Result<(Vec<Function>, bool), FieldError> {
    if let Some(names) = names {
        let known = |name: &&String| functions.iter().any(|(function, _)| function.name == **name);
        if let Some(unknown) = names.iter().find(|name| !known(name)) {
            let hint = did_you_mean(unknown, functions.iter().map(|(function, _)| function.name.as_str()));
            let problem =
                format!("names `{}`, which is none of `tools`{hint}", shortened(unknown, MAX_NAME_BYTES));
            return Err(fields.wrong("tool_choice", problem));
        }
        functions.retain(|(function, _)| names.contains(&function.name));
    }
    let strict = functions.iter().any(|(_, strict)| *strict);
    Ok((functions.into_iter().map(|(function, _)| function).collect(), strict))
}
