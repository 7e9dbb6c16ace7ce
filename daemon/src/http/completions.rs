//! POST /v1/completions: prompts as text or token ids, one or several.

use actix_web::{HttpRequest, HttpResponse, web};
use faser_engine::TokenId;
use serde_json::{Value, json};

use super::errors::ApiError;
use super::generation::{self, Generation};
use super::params::{parameters, token_ids};
use super::shapes::Shape;
use super::{body, models};
use crate::app::{App, Served};
use crate::fields::{Fault, FieldError, Fields, wrong_type};

/// Tokens of a completion when the request does not say, as in OpenAI's API.
const DEFAULT_MAX_TOKENS: usize = 16;

/// The handler.
pub(super) async fn completions(
    app: web::Data<App>,
    request: HttpRequest,
    payload: web::Payload,
) -> Result<HttpResponse, ApiError> {
    let served = app.served()?;
    let body = body::json(&request, payload, app.limits.max_body_bytes).await?;
    let mut fields = Fields::new("", &body)?;
    models::check_name(&mut fields, served)?;
    let echo = fields.flag("echo")?.unwrap_or(false);
    fields.neutral("suffix", &[json!("")], "text is only continued, not filled in")?;
    let parameters = parameters(&mut fields, served.vocab, Shape::Completion, echo)?;
    let prompts = read_prompts(&mut fields, served, app.limits.max_prompts_per_request)?;
    fields.finish()?;
    let mut encoded = Vec::with_capacity(prompts.len());
    for prompt in prompts {
        let (ids, text) = match prompt {
            Prompt::Ids(ids) => {
                let text = echo.then(|| served.tokenizer.decode(&ids));
                (ids, text)
            }
            Prompt::Text(text) => {
                let again = echo.then(|| text.clone());
                (generation::encode(served, text, true).await?, again)
            }
        };
        encoded.push(generation::Prompt { ids: ids.into(), echo: text });
    }
    let generation = Generation {
        shape: Shape::Completion,
        prompts: encoded,
        parameters,
        max_new_tokens: Some(DEFAULT_MAX_TOKENS),
    };
    generation.respond(served).await
}

enum Prompt {
    Text(String),
    Ids(Vec<TokenId>),
}

/// A string, a list of strings, a list of ids, or a list of lists of ids.
fn read_prompts(fields: &mut Fields<'_>, served: &Served, most: usize) -> Result<Vec<Prompt>, FieldError> {
    const WANTED: &str = "a string, a list of token ids, or a list of either";
    let path = fields.path("prompt");
    let items = match fields.value("prompt") {
        None => return Err(FieldError::new(path, Fault::Missing, format!("is missing: give {WANTED}"))),
        Some(Value::String(text)) => return Ok(vec![Prompt::Text(text.clone())]),
        Some(Value::Array(items)) => items,
        Some(other) => return Err(wrong_type(&path, WANTED, other)),
    };
    match items.first() {
        None => Err(FieldError::new(path, Fault::Value, format!("is an empty list: give {WANTED}"))),
        Some(Value::Number(_)) => {
            Ok(vec![Prompt::Ids(token_ids(&path, items, served.vocab, served.max_context)?)])
        }
        Some(_) if items.len() > most => {
            let problem = format!(
                "has {} prompts; {most} are taken at most (server.max_prompts_per_request)",
                items.len()
            );
            Err(FieldError::new(path, Fault::Value, problem))
        }
        Some(_) => {
            let prompt = |(i, item): (usize, &Value)| match item {
                Value::String(text) => Ok(Prompt::Text(text.clone())),
                Value::Array(ids) => {
                    token_ids(&format!("{path}[{i}]"), ids, served.vocab, served.max_context).map(Prompt::Ids)
                }
                other => Err(wrong_type(&format!("{path}[{i}]"), "a string or a list of token ids", other)),
            };
            items.iter().enumerate().map(prompt).collect()
        }
    }
}
