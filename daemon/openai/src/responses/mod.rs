//! /v1/responses: the part of OpenAI's Responses API that needs no memory between requests.

mod writer;

use actix_web::http::StatusCode;
use actix_web::{HttpRequest, HttpResponse, web};
use faser_config::fields::{
    Fault, FieldError, Fields, each, joined, named, one_of, required, shortened, wrong_type,
};
use faser_models::{Conversation, LastTurn};
use serde_json::{Map, Value, json};

use super::body::Containers;
use super::bounds::Shape;
use super::conversation::{
    EFFORT, EFFORTS, MAX_CALLS, MAX_MESSAGES, VERBOSITIES, VERBOSITY, arguments, template_word, variables,
};
use super::errors::ApiError;
use super::generation::Generation;
use super::params::{Kept, Parameters, parameters};
use super::prompt::{Echo, Prompt};
use super::tools::tools;
use super::{Bounds, encoding};
use crate::app::App;
pub(super) use writer::Response;
use writer::Writer;

const ROLES: [&str; 4] = ["system", "developer", "user", "assistant"];
/// Items by their kinds, and the type of each.
const ITEMS: [(&str, &[&str]); 4] = [
    ("InputMessage", &["message"]),
    ("InputCall", &["function_call"]),
    ("InputCallOutput", &["function_call_output"]),
    ("InputReasoning", &["reasoning"]),
];
const INPUT: &str = "a string or a list of items such as {\"role\": \"user\", \"content\": \"…\"}";
const CONTENT: &str = "a string or a list of {\"type\": \"input_text\", \"text\": \"…\"}";

/// POST /v1/responses.
pub(super) async fn create(
    app: web::Data<App>,
    request: HttpRequest,
    payload: web::Payload,
) -> Result<HttpResponse, ApiError> {
    let (served, Asked { conversation, parameters, echoed }) = app.asked(&request, payload, asked).await?;
    let prompt =
        served.render(&conversation).map_err(|err| ApiError { param: Some("input".into()), ..err })?;
    drop(conversation);
    let reasoning = served.reasoning_behind(&prompt, &parameters);
    let ids = encoding::prompt(served, prompt, false, Kept::All).await;
    let ids = ids.map_err(|err| Shape::Response.in_its_words(err))?;
    let prompts = vec![Prompt { ids: ids.into(), echo: Echo::Nothing }];
    let generation =
        Generation { shape: Shape::Response, prompts, parameters, reasoning, max_new_tokens: None };
    let write = |head| Writer::answer(head, *echoed);
    generation.respond(served, app.limits.write_timeout, write).await
}

/// Whatever is asked of an earlier response.
pub(super) async fn not_stored(id: web::Path<String>) -> Result<HttpResponse, ApiError> {
    let id = id.split('/').next().unwrap_or_default();
    let message = format!(
        "there is no response `{}`: this server stores none, so they can only be had as they are made",
        shortened(id, 64)
    );
    Err(ApiError::refused(StatusCode::NOT_FOUND, "response_not_found", message))
}

/// What a request for a response asks for.
#[derive(Clone, Debug)]
pub struct Asked {
    /// What the chat template is given.
    pub conversation: Conversation,
    /// How.
    pub parameters: Parameters,
    /// What the answer repeats.
    echoed: Box<Response>,
}

/// Reads a request for a response.
///
/// # Errors
/// The first field that is wrong.
pub fn asked(fields: &mut Fields<'_>, bounds: &Bounds<'_>) -> Result<Asked, ApiError> {
    let model = bounds.check_name(fields)?.to_owned();
    refuse_unsupported(fields)?;
    let mut parameters = Parameters { model, ..parameters(fields, bounds, Shape::Response, false)? };
    tools(fields, Shape::Response, bounds, &mut parameters)?;
    let functions = functions(fields)?;
    let mut variables = variables(fields)?;
    words(fields, bounds, &mut variables)?;
    let messages = messages(fields)?;
    let conversation = Conversation { messages, tools: functions, variables, last_turn: LastTurn::Opened };
    Ok(Asked {
        conversation,
        parameters,
        echoed: Box::new(Response::repeating(fields.object_itself(), bounds.defaults)),
    })
}

fn refuse_unsupported(fields: &mut Fields<'_>) -> Result<(), FieldError> {
    let stateless = "nothing is stored: give all that was said as `input`";
    fields.neutral("previous_response_id", &[], stateless)?;
    fields.neutral("conversation", &[], stateless)?;
    fields.neutral("prompt", &[], "nothing is stored: give `instructions` and `input`")?;
    fields.neutral(
        "background",
        &[json!(false)],
        "nothing is stored: an answer can be had only as it is made",
    )?;
    fields.neutral("truncation", &[json!("disabled")], "leave out yourself what is too much")?;
    fields.neutral("max_tool_calls", &[], "the server calls nothing itself")?;
    fields.neutral("prompt_cache_retention", &[], "how long a prompt is kept is not a request's to say")
}

/// How long the model is to think and to speak.
fn words(
    fields: &mut Fields<'_>,
    bounds: &Bounds<'_>,
    variables: &mut Map<String, Value>,
) -> Result<(), FieldError> {
    let reads = bounds.template;
    fields.within("reasoning", "ReasoningOptions", |reasoning| {
        template_word(reasoning, ("effort", EFFORT), &EFFORTS, reads.reasoning_effort, variables)?;
        let whole = "nothing is summed up: the answer has the reasoning itself";
        reasoning.neutral("summary", &[], whole)?;
        reasoning.neutral("generate_summary", &[], whole)
    })?;
    fields.within("text", "TextOptions", |text| {
        text.value("format");
        template_word(text, (VERBOSITY, VERBOSITY), &VERBOSITIES, reads.verbosity, variables)
    })?;
    Ok(())
}

/// Reads `instructions` and `input`: items as OpenAI's Responses API has them, into the messages that templates know.
fn messages(fields: &mut Fields<'_>) -> Result<Value, FieldError> {
    let instructions = fields.text(("instructions", "A system message in front."))?;
    let mut messages: Vec<Value> =
        instructions.map(|text| json!({"role": "system", "content": text})).into_iter().collect();
    let kinds = ITEMS.map(|(kind, _)| kind);
    let items = || json!({"type": "array", "items": one_of(kinds.iter().map(|kind| named(kind)))});
    let value = fields.value_of("input", || one_of([json!({"type": "string"}), items()]));
    // Arguments are JSON within strings, which nobody has counted.
    let mut containers = Containers::default();
    let mut item = |fields: &mut Fields<'_>| item(fields, &mut containers, &mut messages);
    fields.tell_kinds(&kinds, &mut item);
    let path = fields.path("input");
    match value {
        None => return Err(fields.missing("input", format_args!("is missing: give {INPUT}"))),
        Some(Value::String(text)) => messages.push(json!({"role": "user", "content": text})),
        Some(Value::Array(list)) => {
            if list.is_empty() || list.len() > MAX_MESSAGES {
                let problem = format!("has {} items; give 1 to {MAX_MESSAGES}", list.len());
                return Err(FieldError::new(path, Fault::Value, problem));
            }
            each(&path, list, |path, value| Fields::new(path, value)?.to_end(&mut item))?;
        }
        Some(other) => return Err(wrong_type(&path, INPUT, other)),
    }
    Ok(messages.into())
}

/// Reads `tools` as the template gets them: each function in an object of its own. An empty list is none.
fn functions(fields: &mut Fields<'_>) -> Result<Option<Value>, FieldError> {
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
    fields: &mut Fields<'_>,
    containers: &mut Containers,
    messages: &mut Vec<Value>,
) -> Result<(), FieldError> {
    let kind = fields.kind("type", &ITEMS)?;
    // Items of an answer come back as they were.
    fields.text("id")?;
    fields.word("status", &["in_progress", "completed", "incomplete"])?;
    match kind {
        Some("function_call") => {
            required(kind, fields, "type")?;
            let call = call(fields, containers)?;
            append(fields, call, messages)?;
        }
        Some("function_call_output") => {
            required(kind, fields, "type")?;
            let id = required(fields.text("call_id")?, fields, "call_id")?;
            let output = required(joined(fields, "output", CONTENT, "InputPart", part)?, fields, "output")?;
            messages.push(json!({"role": "tool", "content": output, "tool_call_id": id}));
        }
        Some("reasoning") => {
            required(kind, fields, "type")?;
            reasoning(fields, messages)?;
        }
        _ => {
            let role = required(fields.word("role", &ROLES)?, fields, "role")?;
            let content =
                required(joined(fields, "content", CONTENT, "InputPart", part)?, fields, "content")?;
            match messages.last_mut().filter(|last| role == "assistant" && only_reasons(last)) {
                Some(last) => last["content"] = content.into(),
                None => messages.push(json!({"role": role, "content": content})),
            }
        }
    }
    Ok(())
}

/// Adds reasoning: it begins the assistant's message that follows. One without text says nothing.
fn reasoning(fields: &mut Fields<'_>, messages: &mut Vec<Value>) -> Result<(), FieldError> {
    let wanted = "a list of {\"type\": \"reasoning_text\", \"text\": \"…\"}";
    let text = joined(fields, "content", wanted, "ReasoningPart", |part| {
        required(part.word("type", &["reasoning_text"])?, part, "type")?;
        required(part.text("text")?, part, "text")
    })?;
    fields.neutral("summary", &[json!([])], "give the reasoning itself as `content`")?;
    fields.neutral("encrypted_content", &[], "give the reasoning itself as `content`")?;
    if let Some(text) = text {
        messages.push(json!({"role": "assistant", "content": "", "reasoning_content": text}));
    }
    Ok(())
}

/// Whether a message has nothing but reasoning.
fn only_reasons(message: &Value) -> bool {
    message.get("reasoning_content").is_some()
        && message["content"] == ""
        && message.get("tool_calls").is_none()
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

fn part<'a>(part: &mut Fields<'a>) -> Result<&'a str, FieldError> {
    required(part.word("type", &["input_text", "output_text"])?, part, "type")?;
    let text = required(part.text("text")?, part, "text")?;
    part.neutral("annotations", &[json!([])], "templates know no annotations")?;
    // Log-probabilities of tokens that are there as text.
    part.list_of(("logprobs", "Of no effect."), || json!({"type": "object"}))?;
    Ok(text)
}
