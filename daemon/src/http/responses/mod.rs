//! /v1/responses: the part of OpenAI's Responses API that needs no memory between requests.

mod input;
mod items;
mod writer;

use actix_web::http::StatusCode;
use actix_web::{HttpRequest, HttpResponse, web};
use faser_models::{Conversation, LastTurn};
use serde_json::{Map, Value, json};

use super::answer::Shape;
use super::chat::{render, variables};
use super::errors::ApiError;
use super::generation::{Generation, Prompt};
use super::params::{Parameters, parameters};
use super::tools::tools;
use super::{Bounds, body, encoding};
use crate::app::App;
use crate::fields::{Fault, FieldError, Fields, shortened, wrong_type};
use writer::Response;

/// Pairs of `metadata`, and characters of a key and of a value, as in OpenAI's API.
const MAX_METADATA: usize = 16;
const MAX_METADATA_KEY: usize = 64;
const MAX_METADATA_VALUE: usize = 512;

/// What answers repeat of the request.
const ECHOED: [&str; 13] = [
    "instructions",
    "max_output_tokens",
    "metadata",
    "parallel_tool_calls",
    "prompt_cache_key",
    "safety_identifier",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_logprobs",
    "top_p",
    "user",
];

/// POST /v1/responses.
pub(super) async fn create(
    app: web::Data<App>,
    request: HttpRequest,
    payload: web::Payload,
) -> Result<HttpResponse, ApiError> {
    let pairs = app.served()?;
    let body = body::read(&request, payload, &app).await?;
    let served = pairs.of_body(&body)?;
    let Asked { conversation, parameters, echoed } = read(&body, &Bounds::of(&app, served))?;
    drop(body);
    let prompt =
        render(served, &conversation).map_err(|err| ApiError { param: Some("input".into()), ..err })?;
    drop(conversation);
    let ids = encoding::prompt(served, prompt, false).await?;
    let prompts = vec![Prompt { ids: ids.into(), echo: None }];
    let generation = Generation { shape: Shape::Response, prompts, parameters, max_new_tokens: None };
    let write = |head| Response::answer(head, echoed);
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
    echoed: Map<String, Value>,
}

/// Reads the body of a request for a response.
///
/// # Errors
/// It is no JSON, or the first field that is wrong.
pub fn read(body: &[u8], bounds: &Bounds<'_>) -> Result<Asked, ApiError> {
    let body = body::parse(body)?;
    let mut fields = Fields::new("", &body)?;
    let model = bounds.check_name(&mut fields)?.to_owned();
    refuse_unsupported(&mut fields)?;
    let mut parameters = Parameters { model, ..parameters(&mut fields, bounds, Shape::Response, false)? };
    tools(&mut fields, Shape::Response, bounds.calls, &mut parameters)?;
    let messages = input::messages(&mut fields)?;
    let functions = input::functions(&mut fields)?;
    let variables = variables(&mut fields)?;
    metadata(&mut fields)?;
    // Words of who asks. Prompts are found in the cache by what they say.
    fields.text("safety_identifier")?;
    fields.text("prompt_cache_key")?;
    fields.finish()?;
    let conversation = Conversation { messages, tools: functions, variables, last_turn: LastTurn::Opened };
    Ok(Asked { conversation, parameters, echoed: echoed(&body) })
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
    fields.neutral(
        "reasoning",
        &[json!({})],
        "give `chat_template_kwargs` what the model's template knows",
    )?;
    fields.neutral("max_tool_calls", &[], "the server calls nothing itself")?;
    fields.neutral("prompt_cache_retention", &[], "how long a prompt is kept is not a request's to say")
}

fn metadata(fields: &mut Fields<'_>) -> Result<(), FieldError> {
    let path = fields.path("metadata");
    let pairs = match fields.value("metadata") {
        None => return Ok(()),
        Some(Value::Object(pairs)) => pairs,
        Some(other) => return Err(wrong_type(&path, "an object of strings", other)),
    };
    if pairs.len() > MAX_METADATA {
        let problem = format!("has {} pairs; {MAX_METADATA} are taken at most", pairs.len());
        return Err(FieldError::new(path, Fault::Value, problem));
    }
    for (key, value) in pairs {
        let path = format!("{path}.{}", shortened(key, MAX_METADATA_KEY));
        let text = value.as_str().ok_or_else(|| wrong_type(&path, "a string", value))?;
        if key.chars().count() > MAX_METADATA_KEY || text.chars().count() > MAX_METADATA_VALUE {
            let problem = format!(
                "is too long: keys have {MAX_METADATA_KEY} characters at most, values {MAX_METADATA_VALUE}"
            );
            return Err(FieldError::new(path, Fault::Value, problem));
        }
    }
    Ok(())
}

/// What an answer repeats, the defaults filled in.
fn echoed(body: &Value) -> Map<String, Value> {
    let value = |name: &str| body.get(name).filter(|value| !value.is_null()).cloned();
    let default = |name: &str| match name {
        "metadata" => json!({}),
        "parallel_tool_calls" => json!(true),
        "temperature" | "top_p" => json!(1.0),
        "text" => json!({"format": {"type": "text"}}),
        "tool_choice" => json!("auto"),
        "tools" => json!([]),
        "top_logprobs" => json!(0),
        _ => Value::Null,
    };
    let pair = |name: &str| (name.to_owned(), value(name).unwrap_or_else(|| default(name)));
    let mut all: Map<String, Value> = ECHOED.into_iter().map(pair).collect();
    if let Some(Value::Object(text)) = all.get_mut("text") {
        text.entry("format").or_insert_with(|| json!({"type": "text"}));
    }
    all
}
