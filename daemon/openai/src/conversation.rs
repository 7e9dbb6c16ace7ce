//! What a chat template is given: messages from OpenAI's form into the one that templates know (content as one string, arguments of calls as
//! objects), functions, and variables, `reasoning_effort` and `verbosity` among them.

use faser_config::fields::{Fault, FieldError, Fields, joined, required, required_as, shortened, wrong_type};
use faser_models::{Conversation, LastTurn};
use serde_json::{Map, Value, json};

use super::body::Containers;

/// Messages of a request at most.
pub(super) const MAX_MESSAGES: usize = 4096;
/// Calls of a message at most.
pub(super) const MAX_CALLS: usize = 128;
/// Messages by their kinds, and the roles of each.
const MESSAGES: [(&str, &[&str]); 3] = [
    ("PlainMessage", &["system", "developer", "user"]),
    ("AssistantMessage", &["assistant"]),
    ("ToolMessage", &["tool"]),
];
/// Variables for the template at most, and bytes of their names and values as JSON.
const MAX_VARIABLES: usize = 64;
const MAX_VARIABLES_BYTES: usize = 16 << 10;
/// OpenAI's words; the default of both is `medium`.
pub(crate) const EFFORT: &str = "reasoning_effort";
pub(super) const EFFORTS: [&str; 6] = ["none", "minimal", "low", "medium", "high", "xhigh"];
pub(crate) const VERBOSITY: &str = "verbosity";
pub(super) const VERBOSITIES: [&str; 3] = ["low", "medium", "high"];

/// Reads what a chat template is given.
pub(super) fn conversation(fields: &mut Fields<'_>) -> Result<Conversation, FieldError> {
    let (messages, tools, variables) = (messages(fields)?, functions(fields)?, variables(fields)?);
    let last_turn = last_turn(fields)?;
    let problem = "is missing: give a list such as [{\"role\": \"user\", \"content\": \"…\"}]";
    let messages = required_as(messages, fields, "messages", problem)?;
    Ok(Conversation { messages, tools, variables, last_turn })
}

/// Reads `messages`.
fn messages(fields: &mut Fields<'_>) -> Result<Option<Value>, FieldError> {
    // Arguments are JSON within strings, which nobody has counted.
    let mut containers = Containers::default();
    let kinds = MESSAGES.map(|(kind, _)| kind);
    let unfit = |count| {
        (count == 0 || count > MAX_MESSAGES)
            .then(|| format!("has {count} messages; give 1 to {MAX_MESSAGES}"))
    };
    let all = fields.objects("messages", &kinds, unfit, |fields| message(fields, &mut containers))?;
    fields.tell("messages", || json!({"minItems": 1, "maxItems": MAX_MESSAGES}));
    Ok(all.map(Value::from))
}

fn message(fields: &mut Fields<'_>, containers: &mut Containers) -> Result<Value, FieldError> {
    let role = fields.kind("role", &MESSAGES)?;
    let role = required_as(role, fields, "role", "is missing: `user`, for instance")?;
    let mut message = Map::new();
    message.insert("role".to_owned(), role.into());
    let mut add =
        |name: &str, value: Option<Value>| value.map(|value| message.insert(name.to_owned(), value));
    let calls = if role == "assistant" { calls(fields, containers)? } else { None };
    // A message that only calls has no text. Most templates want an empty one then, which vLLM gives them.
    let content = if role == "assistant" { optional_content(fields)? } else { Some(content(fields)?) };
    let silent = content.is_none() && calls.is_none();
    add("content", Some(content.unwrap_or_default().into()));
    match role {
        "assistant" => {
            // Answers have it by both names, so it comes back by both.
            let other = fields
                .text(("reasoning", "The same as `reasoning_content`, which counts if both are there."))?;
            add("reasoning_content", fields.text("reasoning_content")?.or(other).map(Value::from));
            add("tool_calls", calls);
            fields.neutral("refusal", &[], "give it as `content`")?;
            fields.neutral("audio", &[], "the only modality is text")?;
            fields.neutral("annotations", &[json!([])], "templates know no annotations")?;
            fields.neutral("function_call", &[], "give it in `tool_calls`")?;
        }
        "tool" => {
            let problem = "is missing: the id of the call that this answers";
            let id = required_as(fields.text("tool_call_id")?, fields, "tool_call_id", problem)?;
            add("tool_call_id", Some(id.into()));
        }
        _ => fields.neutral("tool_calls", &[json!([])], "only an assistant calls tools")?,
    }
    add("name", fields.text("name")?.map(Value::from));
    if silent {
        return Err(fields.absent("content", format_args!("is missing: give {CONTENT}")));
    }
    Ok(message.into())
}

/// A string, or text parts, which are joined by line breaks.
pub(super) fn content(fields: &mut Fields<'_>) -> Result<String, FieldError> {
    let content = optional_content(fields)?;
    required_as(content, fields, "content", format_args!("is missing: give {CONTENT}"))
}

const CONTENT: &str = "a string or a list of {\"type\": \"text\", \"text\": \"…\"}";

fn optional_content(fields: &mut Fields<'_>) -> Result<Option<String>, FieldError> {
    joined(fields, "content", CONTENT, "TextPart", |part| {
        part.word("type", &["text"])?;
        required(part.text("text")?, part, "text")
    })
}

/// Reads `tool_calls`; an empty list is none.
fn calls(fields: &mut Fields<'_>, containers: &mut Containers) -> Result<Option<Value>, FieldError> {
    let unfit = |count| (count > MAX_CALLS).then(|| format!("has {count} calls; give {MAX_CALLS} at most"));
    let all = fields.objects("tool_calls", &["Call"], unfit, |fields| call(fields, containers))?;
    fields.tell("tool_calls", || json!({"maxItems": MAX_CALLS}));
    Ok(all.filter(|all| !all.is_empty()).map(Value::from))
}

fn call(fields: &mut Fields<'_>, containers: &mut Containers) -> Result<Value, FieldError> {
    let id = fields.text("id")?;
    let id = required_as(id, fields, "id", "is missing: results are told apart by it")?;
    fields.word("type", &["function"])?;
    // Clients that collect a stream leave it there.
    fields.whole(("index", "Its place within a stream; of no effect."), 0..=u64::MAX)?;
    let function = fields.within("function", "CalledFunction", |function| {
        let name = required(function.text("name")?, function, "name")?;
        Ok(json!({"name": name, "arguments": arguments(function, containers)?}))
    })?;
    let Some(function) = function else {
        return Err(fields.missing("function", "is missing: {\"name\": \"…\", \"arguments\": \"{…}\"}"));
    };
    Ok(json!({"id": id, "type": "function", "function": function}))
}

/// The object that the JSON of `arguments` is; no text is an empty one, as in vLLM.
pub(super) fn arguments(function: &mut Fields<'_>, containers: &mut Containers) -> Result<Value, FieldError> {
    let path = function.path("arguments");
    let text = function.text(("arguments", "JSON of an object."))?;
    function.tell("arguments", || json!({"example": "{\"a\": 1}"}));
    let text = required_as(text, function, "arguments", "is missing: JSON of an object, as a string")?;
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

/// Reads `tools`, which the template gets as they are; an empty list is none.
fn functions(fields: &mut Fields<'_>) -> Result<Option<Value>, FieldError> {
    let path = fields.path("tools");
    let about = "What the template is given, whatever it is.";
    let list = fields.list_of(("tools", about), || json!({"type": "object"}))?;
    let Some(list) = list.filter(|list| !list.is_empty()) else { return Ok(None) };
    for (i, tool) in list.iter().enumerate() {
        Fields::new(format!("{path}[{i}]"), tool)?;
    }
    Ok(Some(list.into()))
}

/// Reads `chat_template_kwargs`: variables of the template, none of which may stand for another field.
pub(super) fn variables(fields: &mut Fields<'_>) -> Result<Map<String, Value>, FieldError> {
    const NAME: &str = "chat_template_kwargs";
    let path = fields.path(NAME);
    let about = "Variables of the chat template; 64 in 16 KiB at most.";
    let schema = || json!({"type": "object", "example": {"enable_thinking": false}});
    let map = match fields.value_of((NAME, about), schema) {
        None => return Ok(Map::new()),
        Some(Value::Object(map)) => map,
        Some(other) => return Err(wrong_type(&path, "an object", other)),
    };
    if let Some(name) = map.keys().find(|name| Conversation::is_reserved(name)) {
        let problem =
            "is not a variable that a request may set: it has a field of its own, or is the model's";
        return Err(FieldError::new(format!("{path}.{}", shortened(name, 64)), Fault::Unsupported, problem));
    }
    // Counting what the JSON would take allocates it once more, and no more than a body may have.
    let bytes = map.iter().map(|(name, value)| name.len() + value.to_string().len()).sum::<usize>();
    if map.len() > MAX_VARIABLES || bytes > MAX_VARIABLES_BYTES {
        let problem = format!(
            "has {} variables in {bytes} bytes; {MAX_VARIABLES} and {MAX_VARIABLES_BYTES} may be there at most",
            map.len()
        );
        return Err(FieldError::new(path, Fault::Value, problem));
    }
    Ok(map.clone())
}

/// Reads `add_generation_prompt`, which is the default, and `continue_final_message`, as in vLLM: not both.
fn last_turn(fields: &mut Fields<'_>) -> Result<LastTurn, FieldError> {
    let about = "Whether the assistant's turn is opened behind the messages.";
    let opened = fields.flag(("add_generation_prompt", about))?.unwrap_or(true);
    let about = "Whether the last message is continued; only with `\"add_generation_prompt\": false`.";
    let continued = fields.flag(("continue_final_message", about))?.unwrap_or(false);
    match (opened, continued) {
        (true, false) => Ok(LastTurn::Opened),
        (false, false) => Ok(LastTurn::Closed),
        (false, true) => Ok(LastTurn::Continued),
        (true, true) => {
            let problem = "is only possible with `add_generation_prompt`: false";
            Err(fields.wrong("continue_final_message", problem))
        }
    }
}

/// Reads `field`, one of `words`, for the template's variable `name`, which the template reads or not.
///
/// # Errors
/// It is none of the words; the request gives the variable another value by `chat_template_kwargs`; or it is not the default, and the
/// template does not read it, so that it would change nothing.
pub(super) fn template_word(
    fields: &mut Fields<'_>,
    (field, name): (&'static str, &'static str),
    words: &[&str],
    read: bool,
    variables: &mut Map<String, Value>,
) -> Result<(), FieldError> {
    let about = "For the chat template; one that does not read it allows `medium` alone.";
    let Some(word) = fields.word((field, about), words)? else { return Ok(()) };
    if read {
        let given = variables.insert(name.to_owned(), word.into());
        if given.is_some_and(|given| given != word) {
            let problem = format!("and `chat_template_kwargs.{name}` differ: give one of them");
            return Err(fields.wrong(field, problem));
        }
    } else if word != "medium" {
        let problem = format!(
            "is not supported: the model's chat template does not read `{name}`, so that it would change nothing; \
             leave it out, or give `chat_template_kwargs` what the template knows"
        );
        return Err(FieldError::new(fields.path(field), Fault::Unsupported, problem));
    }
    Ok(())
}

/// The conversation for a template that knows nothing of tools: the first message tells of them and of the form of a call,
/// and calls among the messages stand in their texts.
pub(crate) fn with_tools_in_text(conversation: &Conversation) -> Conversation {
    let mut rewritten = conversation.clone();
    let Value::Array(messages) = &mut rewritten.messages else { return rewritten };
    for message in messages.iter_mut() {
        let calls =
            message.get("tool_calls").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let call = |call: &Value| {
            let function = &call["function"];
            json!({"name": function["name"], "arguments": function["arguments"]}).to_string()
        };
        let calls: Vec<String> = calls.iter().map(call).collect();
        if !calls.is_empty() {
            rewrite(message, |content| {
                let parts = Some(content).filter(|content| !content.is_empty()).into_iter().chain(calls);
                parts.collect::<Vec<String>>().join("\n")
            });
        }
    }
    let tools = conversation.tools.as_ref().and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    if let (Some(first), false) = (messages.first_mut(), tools.is_empty()) {
        let functions: Vec<String> = tools.iter().map(|tool| tool["function"].to_string()).collect();
        rewrite(first, |content| {
            format!(
                "Functions that can be called:\n\n{}\n\nA call is written as {{\"name\": \"...\", \"arguments\": {{...}}}}, and nothing \
                 else.\n\n{content}",
                functions.join("\n")
            )
        });
    }
    rewritten
}

/// Replaces the text of a message.
fn rewrite(message: &mut Value, change: impl FnOnce(String) -> String) {
    if let Some(Value::String(content)) = message.get_mut("content") {
        *content = change(std::mem::take(content));
    }
}
