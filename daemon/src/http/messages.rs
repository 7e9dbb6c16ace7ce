//! The messages of a chat, from OpenAI's form into the one that templates know: content as one string, arguments of calls as objects.

use serde_json::{Map, Value, json};

use super::body::Containers;
use crate::fields::{Fault, FieldError, Fields, each, joined, required, wrong_type};

/// Messages of a request at most.
pub(super) const MAX_MESSAGES: usize = 4096;
/// Calls of a message at most.
pub(super) const MAX_CALLS: usize = 128;
const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// Reads `messages`.
pub(super) fn messages(fields: &mut Fields<'_>) -> Result<Option<Value>, FieldError> {
    let path = fields.path("messages");
    let Some(list) = fields.list("messages")? else { return Ok(None) };
    if list.is_empty() || list.len() > MAX_MESSAGES {
        let problem = format!("has {} messages; give 1 to {MAX_MESSAGES}", list.len());
        return Err(FieldError::new(path, Fault::Value, problem));
    }
    // Arguments are JSON within strings, which nobody has counted.
    let mut containers = Containers::default();
    let all = each(&path, list, |path, value| message(Fields::new(path, value)?, &mut containers))?;
    Ok(Some(all.into()))
}

fn message(mut fields: Fields<'_>, containers: &mut Containers) -> Result<Value, FieldError> {
    let Some(role) = fields.word("role", &ROLES)? else {
        return Err(fields.missing("role", "is missing: `user`, for instance"));
    };
    let mut message = Map::new();
    message.insert("role".to_owned(), role.into());
    let mut add =
        |name: &str, value: Option<Value>| value.map(|value| message.insert(name.to_owned(), value));
    let calls = if role == "assistant" { calls(&mut fields, containers)? } else { None };
    let content = match optional_content(&mut fields)? {
        Some(content) => content,
        // A message that only calls has no text. Most templates want an empty one then, which vLLM gives them.
        None if calls.is_some() => String::new(),
        None => return Err(fields.missing("content", format_args!("is missing: give {CONTENT}"))),
    };
    add("content", Some(content.into()));
    match role {
        "assistant" => {
            add("reasoning_content", fields.text("reasoning_content")?.map(Value::from));
            add("tool_calls", calls);
            fields.neutral("refusal", &[], "give it as `content`")?;
            fields.neutral("audio", &[], "the only modality is text")?;
            fields.neutral("annotations", &[json!([])], "templates know no annotations")?;
            fields.neutral("function_call", &[], "give it in `tool_calls`")?;
        }
        "tool" => {
            let id = fields.text("tool_call_id")?;
            let id = id.ok_or_else(|| {
                fields.missing("tool_call_id", "is missing: the id of the call that this answers")
            })?;
            add("tool_call_id", Some(id.into()));
        }
        _ => fields.neutral("tool_calls", &[json!([])], "only an assistant calls tools")?,
    }
    add("name", fields.text("name")?.map(Value::from));
    fields.finish()?;
    Ok(message.into())
}

/// A string, or text parts, which are joined by line breaks.
pub(super) fn content(fields: &mut Fields<'_>) -> Result<String, FieldError> {
    optional_content(fields)?
        .ok_or_else(|| fields.missing("content", format_args!("is missing: give {CONTENT}")))
}

const CONTENT: &str = "a string or a list of {\"type\": \"text\", \"text\": \"…\"}";

fn optional_content(fields: &mut Fields<'_>) -> Result<Option<String>, FieldError> {
    joined(fields, "content", CONTENT, |mut part| {
        part.word("type", &["text"])?;
        let text = required(part.text("text")?, &part, "text")?;
        part.finish()?;
        Ok(text)
    })
}

/// Reads `tool_calls`; an empty list is none.
fn calls(fields: &mut Fields<'_>, containers: &mut Containers) -> Result<Option<Value>, FieldError> {
    let path = fields.path("tool_calls");
    let Some(list) = fields.list("tool_calls")?.filter(|list| !list.is_empty()) else { return Ok(None) };
    if list.len() > MAX_CALLS {
        let problem = format!("has {} calls; give {MAX_CALLS} at most", list.len());
        return Err(FieldError::new(path, Fault::Value, problem));
    }
    let all = each(&path, list, |path, value| call(Fields::new(path, value)?, containers))?;
    Ok(Some(all.into()))
}

fn call(mut fields: Fields<'_>, containers: &mut Containers) -> Result<Value, FieldError> {
    let Some(id) = fields.text("id")? else {
        return Err(fields.missing("id", "is missing: results are told apart by it"));
    };
    fields.word("type", &["function"])?;
    // A place within a stream, which clients that collect one leave there.
    fields.whole("index", 0..=u64::MAX)?;
    let Some(mut function) = fields.object("function")? else {
        return Err(fields.missing("function", "is missing: {\"name\": \"…\", \"arguments\": \"{…}\"}"));
    };
    let name = required(function.text("name")?, &function, "name")?;
    let arguments = arguments(&mut function, containers)?;
    function.finish()?;
    fields.finish()?;
    Ok(json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}))
}

/// The object that the JSON of `arguments` is; no text is an empty one, as in vLLM.
pub(super) fn arguments(function: &mut Fields<'_>, containers: &mut Containers) -> Result<Value, FieldError> {
    let path = function.path("arguments");
    let Some(text) = function.text("arguments")? else {
        return Err(function.missing("arguments", "is missing: JSON of an object, as a string"));
    };
    if text.trim().is_empty() {
        return Ok(json!({}));
    }
    let wrong = |problem: &dyn std::fmt::Display| {
        FieldError::new(
            &path,
            Fault::Value,
            format!("must be a string with the JSON of an object, but {problem}"),
        )
    };
    containers.check(text.as_bytes()).map_err(|problem| wrong(&format_args!("it {problem}")))?;
    match serde_json::from_str(text).map_err(|err| wrong(&format_args!("it is not valid JSON: {err}")))? {
        object @ Value::Object(_) => Ok(object),
        other => Err(wrong_type(&path, "a string with the JSON of an object", &other)),
    }
}
