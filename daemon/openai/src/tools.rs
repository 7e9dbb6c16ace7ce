//! `tools`, `tool_choice` and `parallel_tool_calls`: which functions a chat may call, and what that makes of its output.

use faser_config::fields::{
    Fault, FieldError, Fields, did_you_mean, named, one_of, required, shortened, wrong_type, wrong_value,
};
use faser_models::{CallForm, CallFormat, Function, GrammarSource};
use serde_json::{Value, json};

use super::bounds::{Bounds, Shape};
use super::format::Form;
use super::params::{Parameters, ReadCalls, check_form};

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
    let several = fields.flag(("parallel_tool_calls", "Whether an output may have several calls."))?;
    let several = several.unwrap_or(format != Some(CallFormat::Json));
    let functions = functions(fields, shape)?;
    if functions.is_empty() {
        return match choice {
            Choice { mode: Mode::None | Mode::Auto, allowed: None } => Ok(()),
            _ => Err(fields.wrong("tool_choice", "needs `tools`")),
        };
    }
    if choice.mode != Mode::None && format.is_none() {
        let problem = "are not supported: `model.tool_calls` is `none` in the server's config; give \"tool_choice\": \"none\"";
        return Err(FieldError::new(fields.path("tools"), Fault::Unsupported, problem));
    }
    let (functions, strict) = allowed(fields, functions, choice.allowed.as_deref())?;
    let (Some(format), true) = (format, choice.mode != Mode::None) else { return Ok(()) };
    let free = choice.mode == Mode::Auto;
    if parameters.form.is_some() && free && choice.allowed.is_none() {
        // A structured output, and no tool calls.
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
    let kinds = if shape == Shape::Response {
        ["FlatNamedTool", "FlatAllowedTools"]
    } else {
        ["NamedTool", "AllowedTools"]
    };
    let about = "Which functions may be, or have to be, called.";
    let value = fields.value_of(("tool_choice", about), || {
        let words = json!({"type": "string", "enum": ["auto", "none", "required"]});
        one_of(std::iter::once(words).chain(kinds.map(named)))
    });
    let chosen = |choice: &mut Fields<'_>| chosen(choice, kinds, shape);
    fields.tell_kinds(&kinds, chosen);
    let path = fields.path("tool_choice");
    let all = |mode| Ok(Choice { mode, allowed: None });
    match value {
        None => all(Mode::Auto),
        Some(Value::String(word)) => match word.as_str() {
            "none" => all(Mode::None),
            "auto" => all(Mode::Auto),
            "required" => all(Mode::Required),
            other => Err(wrong_value(&path, wanted, &other.into())),
        },
        Some(value @ Value::Object(_)) => Fields::new(path, value)?.to_end(chosen),
        Some(other) => Err(wrong_type(&path, wanted, other)),
    }
}

/// A choice that names functions.
fn chosen(fields: &mut Fields<'_>, kinds: [&'static str; 2], shape: Shape) -> Result<Choice, FieldError> {
    let [function, allowed] = kinds;
    let kind = fields.kind("type", &[(function, &["function"]), (allowed, &["allowed_tools"])])?;
    if kind != Some("allowed_tools") {
        return Ok(Choice { mode: Mode::Named, allowed: Some(vec![named_function(fields, shape)?]) });
    }
    required(kind, fields, "type")?;
    nested(fields, ("allowed_tools", "Allowed"), shape, |allowed| {
        let mode = match allowed.word("mode", &["auto", "required"])? {
            Some("required") => Mode::Required,
            _ => Mode::Auto,
        };
        let names = allowed.objects(
            "tools",
            &[kinds[0]],
            |_| None,
            |tool| {
                tool.word("type", &["function"])?;
                named_function(tool, shape)
            },
        )?;
        allowed.tell("tools", || json!({"minItems": 1}));
        match names.filter(|names| !names.is_empty()) {
            Some(names) => Ok(Choice { mode, allowed: Some(names) }),
            None => Err(allowed.missing("tools", "is missing: name one function at least")),
        }
    })
}

/// The name in `{"type": "function", "function": {"name": …}}`, whose type is read.
fn named_function(fields: &mut Fields<'_>, shape: Shape) -> Result<String, FieldError> {
    nested(fields, ("function", "FunctionName"), shape, |function| {
        let name = function.text("name")?;
        function.tell("name", || json!({"example": "f"}));
        Ok(required(name, function, "name")?.to_owned())
    })
}

/// Reads what a chat has in an object of its own, and a response beside the type.
fn nested<'a, T>(
    outer: &mut Fields<'a>,
    (name, kind): (&'static str, &'static str),
    shape: Shape,
    mut read: impl FnMut(&mut Fields<'a>) -> Result<T, FieldError>,
) -> Result<T, FieldError> {
    if shape == Shape::Response {
        return read(outer);
    }
    outer.within(name, kind, read)?.ok_or_else(|| outer.missing(name, "is missing"))
}

/// The functions, each with whether its calls have to be valid.
fn functions(fields: &mut Fields<'_>, shape: Shape) -> Result<Vec<(Function, bool)>, FieldError> {
    let kind = if shape == Shape::Response { "FlatTool" } else { "Tool" };
    let mut names: Vec<String> = Vec::new();
    let unfit =
        |count| (count > MAX_TOOLS).then(|| format!("has {count} functions; {MAX_TOOLS} are taken at most"));
    let functions = fields.objects("tools", &[kind], unfit, |tool| {
        required(tool.word("type", &["function"])?, tool, "type")?;
        let path = tool.path(if shape == Shape::Response { "name" } else { "function.name" });
        let function = nested(tool, ("function", "Function"), shape, |inner| function(inner, shape))?;
        if names.contains(&function.0.name) {
            return Err(FieldError::new(path, Fault::Value, "is that of another function"));
        }
        names.push(function.0.name.clone());
        Ok(function)
    })?;
    fields.tell("tools", || json!({"maxItems": MAX_TOOLS}));
    Ok(functions.unwrap_or_default())
}

fn function(fields: &mut Fields<'_>, shape: Shape) -> Result<(Function, bool), FieldError> {
    let name = fields.text("name")?;
    fields.tell("name", || json!({"pattern": "^[A-Za-z0-9_.-]{1,64}$", "example": "f"}));
    let name = required(name, fields, "name")?;
    fields.text("description")?;
    let schema = || json!({"type": "object", "example": {"type": "object"}});
    let parameters = fields.value_of(("parameters", "A JSON schema of an object."), schema);
    let strict = fields.flag(("strict", "Whether calls have to be valid by it."))?;
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.bytes().all(fits) {
        return Err(fields.wrong_value("name", "1 to 64 letters, digits, `_`, `-` and `.`", &name.into()));
    }
    if let Some(schema) = parameters {
        let path = fields.path("parameters");
        let Value::Object(map) = schema else { return Err(wrong_type(&path, "a JSON schema", schema)) };
        if let Some(kind) = map.get("type").filter(|kind| *kind != "object") {
            return Err(wrong_value(&format!("{path}.type"), "`object`", kind));
        }
    }
    // OpenAI's default for responses.
    let strict = strict.unwrap_or(shape == Shape::Response);
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
