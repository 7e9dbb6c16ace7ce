//! /v1/responses: the part of OpenAI's Responses API that needs no memory between requests.

mod input;
mod items;
mod writer;

use actix_web::http::StatusCode;
use actix_web::{HttpRequest, HttpResponse, web};
use faser_models::{Conversation, GenerationDefaults, LastTurn};
use serde_json::{Map, Value, json};

use super::answer::Shape;
use super::chat::{render, variables};
use super::effort::{self, EFFORT, EFFORTS, VERBOSITIES, VERBOSITY};
use super::errors::ApiError;
use super::generation::{Generation, Prompt};
use super::params::{Parameters, parameters};
use super::prompt_tokens::Kept;
use super::tools::tools;
use super::{Bounds, body, encoding};
use crate::app::App;
use crate::fields::{FieldError, Fields, shortened};
use writer::Response;

/// What answers repeat of the request.
const ECHOED: [&str; 14] = [
    "instructions",
    "max_output_tokens",
    "metadata",
    "parallel_tool_calls",
    "prompt_cache_key",
    "reasoning",
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
    let (served, Asked { conversation, parameters, echoed }) =
        body::asked(&app, &request, payload, read).await?;
    let prompt =
        render(served, &conversation).map_err(|err| ApiError { param: Some("input".into()), ..err })?;
    drop(conversation);
    let ids = encoding::prompt(served, prompt, false, Kept::All).await?;
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
    tools(&mut fields, Shape::Response, bounds, &mut parameters)?;
    let messages = input::messages(&mut fields)?;
    let functions = input::functions(&mut fields)?;
    let mut variables = variables(&mut fields)?;
    words(&mut fields, bounds, &mut variables)?;
    fields.finish()?;
    let conversation = Conversation { messages, tools: functions, variables, last_turn: LastTurn::Opened };
    Ok(Asked { conversation, parameters, echoed: echoed(&body, bounds.defaults) })
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
    if let Some(mut reasoning) = fields.object("reasoning")? {
        effort::word(&mut reasoning, ("effort", EFFORT), &EFFORTS, reads.reasoning_effort, variables)?;
        let split = "reasoning is not told from the rest of the text";
        reasoning.neutral("summary", &[], split)?;
        reasoning.neutral("generate_summary", &[], split)?;
        reasoning.finish()?;
    }
    if let Some(mut text) = fields.object("text")? {
        effort::word(&mut text, (VERBOSITY, VERBOSITY), &VERBOSITIES, reads.verbosity, variables)?;
    }
    Ok(())
}

/// What an answer repeats, the defaults filled in.
fn echoed(body: &Value, defaults: GenerationDefaults) -> Map<String, Value> {
    // As it is written: the nearest f64 has more digits.
    let number = |value: Option<f32>| {
        value.map_or_else(|| json!(1.0), |value| json!(value.to_string().parse::<f64>().ok()))
    };
    let value = |name: &str| body.get(name).filter(|value| !value.is_null()).cloned();
    let default = |name: &str| match name {
        "metadata" => json!({}),
        "parallel_tool_calls" => json!(true),
        "temperature" => number(defaults.temperature),
        "top_p" => number(defaults.top_p),
        "text" => json!({"format": {"type": "text"}}),
        "tool_choice" => json!("auto"),
        "tools" => json!([]),
        "top_logprobs" => json!(0),
        "reasoning" => json!({"effort": null, "summary": null}),
        _ => Value::Null,
    };
    let pair = |name: &str| (name.to_owned(), value(name).unwrap_or_else(|| default(name)));
    let mut all: Map<String, Value> = ECHOED.into_iter().map(pair).collect();
    if let Some(Value::Object(text)) = all.get_mut("text") {
        text.entry("format").or_insert_with(|| json!({"type": "text"}));
    }
    if let Some(Value::Object(reasoning)) = all.get_mut("reasoning") {
        for name in ["effort", "summary"] {
            reasoning.entry(name).or_insert(Value::Null);
        }
    }
    all
}
