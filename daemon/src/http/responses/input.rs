//! `instructions` and `input`: items as OpenAI's Responses API has them, into the messages that templates know.

use serde_json::{Map, Value, json};

use crate::fields::{Fault, FieldError, Fields, joined, required, wrong_type};
use crate::http::body::Containers;
use crate::http::messages::{MAX_CALLS, MAX_MESSAGES, arguments};

const ROLES: [&str; 4] = ["system", "developer", "user", "assistant"];
const ITEMS: [&str; 3] = ["message", "function_call", "function_call_output"];
const INPUT: &str = "a string or a list of items such as {\"role\": \"user\", \"content\": \"…\"}";
const CONTENT: &str = "a string or a list of {\"type\": \"input_text\", \"text\": \"…\"}";

/// Reads both.
pub(super) fn messages(fields: &mut Fields<'_>) -> Result<Value, FieldError> {
    let instructions = fields.text("instructions")?;
    let mut messages: Vec<Value> =
        instructions.map(|text| json!({"role": "system", "content": text})).into_iter().collect();
    let path = fields.path("input");
    match fields.value("input") {
        None => return Err(FieldError::new(path, Fault::Missing, format_args!("is missing: give {INPUT}"))),
        Some(Value::String(text)) => messages.push(json!({"role": "user", "content": text})),
        Some(Value::Array(list)) => {
            if list.is_empty() || list.len() > MAX_MESSAGES {
                let problem = format!("has {} items; give 1 to {MAX_MESSAGES}", list.len());
                return Err(FieldError::new(path, Fault::Value, problem));
            }
            // Arguments are JSON within strings, which nobody has counted.
            let mut containers = Containers::default();
            for (i, value) in list.iter().enumerate() {
                item(Fields::new(format!("{path}[{i}]"), value)?, &mut containers, &mut messages)?;
            }
        }
        Some(other) => return Err(wrong_type(&path, INPUT, other)),
    }
    Ok(messages.into())
}

/// Reads `tools` as the template gets them: each function in an object of its own. An empty list is none.
pub(super) fn functions(fields: &mut Fields<'_>) -> Result<Option<Value>, FieldError> {
    let Some(list) = fields.list("tools")?.filter(|list| !list.is_empty()) else { return Ok(None) };
    let nested = |tool: &Value| {
        let kept = ["name", "description", "parameters"];
        let kept = kept.into_iter().filter_map(|key| Some((key.to_owned(), tool.get(key)?.clone())));
        json!({"type": "function", "function": kept.collect::<Map<_, _>>()})
    };
    Ok(Some(list.iter().map(nested).collect()))
}

/// Appends what an item says.
fn item(
    mut fields: Fields<'_>,
    containers: &mut Containers,
    messages: &mut Vec<Value>,
) -> Result<(), FieldError> {
    let kind = fields.word("type", &ITEMS)?;
    // Items of an answer come back as they were.
    fields.text("id")?;
    fields.word("status", &["in_progress", "completed", "incomplete"])?;
    match kind {
        Some("function_call") => {
            let call = call(&mut fields, containers)?;
            append(&fields, call, messages)?;
        }
        Some("function_call_output") => {
            let id = required(fields.text("call_id")?, &fields, "call_id")?;
            let output = required(joined(&mut fields, "output", CONTENT, part)?, &fields, "output")?;
            messages.push(json!({"role": "tool", "content": output, "tool_call_id": id}));
        }
        _ => {
            let role = required(fields.word("role", &ROLES)?, &fields, "role")?;
            let content = required(joined(&mut fields, "content", CONTENT, part)?, &fields, "content")?;
            messages.push(json!({"role": role, "content": content}));
        }
    }
    fields.finish()
}

fn call(fields: &mut Fields<'_>, containers: &mut Containers) -> Result<Value, FieldError> {
    let id = required(fields.text("call_id")?, fields, "call_id")?;
    let name = required(fields.text("name")?, fields, "name")?;
    let arguments = arguments(fields, containers)?;
    Ok(json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}))
}

/// Adds a call to the assistant's message right before it, as they are one message of a chat; without one it is a message of its own.
fn append(fields: &Fields<'_>, call: Value, messages: &mut Vec<Value>) -> Result<(), FieldError> {
    if let Some(Value::Object(last)) = messages.last_mut()
        && last.get("role").is_some_and(|role| role == "assistant")
    {
        if let Value::Array(calls) = last.entry("tool_calls").or_insert_with(|| json!([])) {
            if calls.len() == MAX_CALLS {
                let problem = format!("is one call too many of a message; give {MAX_CALLS} at most");
                return Err(fields.wrong("type", problem));
            }
            calls.push(call);
        }
        return Ok(());
    }
    messages.push(json!({"role": "assistant", "content": "", "tool_calls": [call]}));
    Ok(())
}

fn part<'a>(mut part: Fields<'a>) -> Result<&'a str, FieldError> {
    required(part.word("type", &["input_text", "output_text"])?, &part, "type")?;
    let text = required(part.text("text")?, &part, "text")?;
    part.neutral("annotations", &[json!([])], "templates know no annotations")?;
    // Told of tokens that are there as text.
    part.list("logprobs")?;
    part.finish()?;
    Ok(text)
}
