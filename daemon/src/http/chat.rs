//! POST /v1/chat/completions: messages, through the model's chat template.

use actix_web::{HttpRequest, HttpResponse, web};
use serde_json::{Value, json};

use super::errors::ApiError;
use super::generation::{self, Generation, Prompt};
use super::params::{Parameters, parameters};
use super::shapes::Shape;
use super::{Bounds, body};
use crate::app::{App, Served};
use crate::fields::{Fault, FieldError, Fields, wrong_type};

/// Messages of a request at most.
const MAX_MESSAGES: usize = 4096;
const ROLES: [&str; 4] = ["system", "developer", "user", "assistant"];

/// The handler.
pub(super) async fn chat(
    app: web::Data<App>,
    request: HttpRequest,
    payload: web::Payload,
) -> Result<HttpResponse, ApiError> {
    let pairs = app.served()?;
    let body = body::read(&request, payload, &app).await?;
    let served = pairs.of_body(&body)?;
    let (messages, parameters) = read(&body, &Bounds::of(&app, served))?;
    drop(body);
    let prompt = render(served, &messages, true)?;
    drop(messages);
    let ids = generation::encode(served, prompt, false).await?;
    let prompts = vec![Prompt { ids: ids.into(), echo: None }];
    let generation = Generation { shape: Shape::Chat, prompts, parameters, max_new_tokens: None };
    generation.respond(served, app.limits.write_timeout).await
}

/// Reads the body of a request for a chat: the messages as templates know them, and the parameters.
///
/// # Errors
/// It is no JSON, or the first field that is wrong.
pub fn read(body: &[u8], bounds: &Bounds<'_>) -> Result<(Value, Parameters), ApiError> {
    let body = body::parse(body)?;
    let mut fields = Fields::new("", &body)?;
    bounds.check_name(&mut fields)?;
    refuse_unsupported(&mut fields)?;
    let parameters = parameters(&mut fields, bounds.vocab, Shape::Chat, false)?;
    let messages = messages(&mut fields)?.ok_or_else(|| {
        FieldError::new(
            "messages",
            Fault::Missing,
            "is missing: give a list such as [{\"role\": \"user\", \"content\": \"…\"}]",
        )
    })?;
    fields.finish()?;
    Ok((messages, parameters))
}

/// The messages as the model's chat template writes them.
pub(super) fn render(
    served: &Served,
    messages: &Value,
    add_generation_prompt: bool,
) -> Result<String, ApiError> {
    let refuse = |err: &dyn std::fmt::Display| {
        ApiError::bad_request(err.to_string(), Some("messages"), "chat_template_error")
    };
    let template = served.template.as_ref().map_err(|err| refuse(err))?;
    template.render(messages, add_generation_prompt).map_err(|err| refuse(&err))
}

fn refuse_unsupported(fields: &mut Fields<'_>) -> Result<(), FieldError> {
    let tools = "tools are not offered";
    fields.neutral("tools", &[json!([])], tools)?;
    fields.neutral("tool_choice", &[json!("none"), json!("auto")], tools)?;
    fields.neutral("parallel_tool_calls", &[json!(true), json!(false)], tools)?;
    fields.neutral("functions", &[json!([])], tools)?;
    fields.neutral("function_call", &[json!("none"), json!("auto")], tools)?;
    fields.neutral("modalities", &[json!(["text"])], "the only modality is text")?;
    fields.neutral("audio", &[], "the only modality is text")?;
    fields.neutral("reasoning_effort", &[], "the model has no reasoning switch")?;
    fields.neutral("chat_template_kwargs", &[json!({})], "the template gets the messages alone")?;
    fields.neutral("add_generation_prompt", &[json!(true)], "it is always added")
}

/// Reads `messages` into the plain form that templates know: content as one string.
pub(super) fn messages(fields: &mut Fields<'_>) -> Result<Option<Value>, FieldError> {
    let path = fields.path("messages");
    let Some(list) = fields.list("messages")? else { return Ok(None) };
    if list.is_empty() || list.len() > MAX_MESSAGES {
        let problem = format!("has {} messages; give 1 to {MAX_MESSAGES}", list.len());
        return Err(FieldError::new(path, Fault::Value, problem));
    }
    let message = |(i, value)| message(Fields::new(format!("{path}[{i}]"), value)?);
    list.iter().enumerate().map(message).collect::<Result<Vec<_>, _>>().map(|list| Some(Value::Array(list)))
}

fn message(mut fields: Fields<'_>) -> Result<Value, FieldError> {
    let Some(role) = fields.word("role", &ROLES)? else {
        return Err(FieldError::new(fields.path("role"), Fault::Missing, "is missing: `user`, for instance"));
    };
    let content = content(&mut fields)?;
    fields.neutral("tool_calls", &[json!([])], "tools are not offered")?;
    fields.neutral("refusal", &[], "give it as `content`")?;
    let mut message = json!({"role": role, "content": content});
    if let (Some(name), Value::Object(map)) = (fields.text("name")?, &mut message) {
        map.insert("name".to_owned(), name.into());
    }
    fields.finish()?;
    Ok(message)
}

/// A string, or text parts, which are joined by line breaks.
pub(super) fn content(fields: &mut Fields<'_>) -> Result<String, FieldError> {
    const WANTED: &str = "a string or a list of {\"type\": \"text\", \"text\": \"…\"}";
    let path = fields.path("content");
    match fields.value("content") {
        None => Err(FieldError::new(path, Fault::Missing, format!("is missing: give {WANTED}"))),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) => {
            let part = |(i, value)| {
                let mut part = Fields::new(format!("{path}[{i}]"), value)?;
                part.word("type", &["text"])?;
                let text = part.text("text")?;
                let text =
                    text.ok_or_else(|| FieldError::new(part.path("text"), Fault::Missing, "is missing"))?;
                part.finish()?;
                Ok(text)
            };
            parts.iter().enumerate().map(part).collect::<Result<Vec<_>, _>>().map(|texts| texts.join("\n"))
        }
        Some(other) => Err(wrong_type(&path, WANTED, other)),
    }
}
