//! POST /tokenize and /detokenize, in vLLM's shapes.

use actix_web::{HttpRequest, HttpResponse, web};
use faser_config::fields::{FieldError, Fields, required};
use faser_engine::TokenId;
use faser_models::Conversation;
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use super::conversation::conversation;
use super::errors::ApiError;
use super::params::{token_id, token_ids};
use super::{Bounds, encoding};
use crate::app::App;

// As a JSON value a long text's would take many times the memory.
/// POST /tokenize.
#[derive(Serialize, ToSchema)]
pub(super) struct Tokens {
    count: u64,
    max_model_len: u64,
    tokens: Vec<u32>,
}

/// POST /detokenize.
#[derive(Serialize, ToSchema)]
pub(super) struct Detokenized {
    prompt: String,
}

/// Token ids of a prompt or of messages.
pub(super) async fn tokenize(
    app: web::Data<App>,
    request: HttpRequest,
    payload: web::Payload,
) -> Result<HttpResponse, ApiError> {
    let (served, (source, add_special)) = app.asked(&request, payload, source).await?;
    let prompt = match source {
        Source::Text(prompt) => prompt,
        Source::Chat(conversation) => served.render(&conversation)?,
    };
    let tokens = encoding::all(served, prompt, add_special).await?;
    Ok(HttpResponse::Ok().json(Tokens {
        count: tokens.len() as u64,
        max_model_len: served.max_context as u64,
        tokens,
    }))
}

/// What is to be tokenized.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// A text.
    Text(String),
    /// What the chat template makes of it.
    Chat(Conversation),
}

/// Reads a request for tokens; also says whether the tokenizer adds its own.
///
/// # Errors
/// The first field that is wrong.
pub fn source(fields: &mut Fields<'_>, bounds: &Bounds<'_>) -> Result<(Source, bool), ApiError> {
    let has = |name| fields.object_itself().get(name).is_some_and(|value| !value.is_null());
    match (has("prompt"), has("messages")) {
        (true, false) => {
            // It is known, but not there.
            fields.value("messages");
            text(fields, bounds)
        }
        (false, true) => chat(fields, bounds),
        _ => Err(fields.absent("prompt", "or `messages` has to be there, one of them").into()),
    }
}

pub(super) fn text(fields: &mut Fields<'_>, bounds: &Bounds<'_>) -> Result<(Source, bool), ApiError> {
    bounds.check_name(fields)?;
    let prompt = fields.text("prompt")?;
    let prompt = required(prompt, fields, "prompt")?.to_owned();
    Ok((Source::Text(prompt), add_special(fields)?.unwrap_or(true)))
}

pub(super) fn chat(fields: &mut Fields<'_>, bounds: &Bounds<'_>) -> Result<(Source, bool), ApiError> {
    bounds.check_name(fields)?;
    let conversation = conversation(fields)?;
    Ok((Source::Chat(conversation), add_special(fields)?.unwrap_or(false)))
}

/// Whether the tokenizer adds its own tokens.
fn add_special(fields: &mut Fields<'_>) -> Result<Option<bool>, FieldError> {
    let add_special = fields.flag("add_special_tokens")?;
    fields.neutral("return_token_strs", &[json!(false)], "token strings are not offered")?;
    Ok(add_special)
}

/// Text of token ids.
pub(super) async fn detokenize(
    app: web::Data<App>,
    request: HttpRequest,
    payload: web::Payload,
) -> Result<HttpResponse, ApiError> {
    let (served, ids) = app.asked(&request, payload, ids).await?;
    Ok(HttpResponse::Ok().json(Detokenized { prompt: encoding::text(served, ids).await? }))
}

/// Reads a request for the text of token ids.
///
/// # Errors
/// The first field that is wrong.
pub fn ids(fields: &mut Fields<'_>, bounds: &Bounds<'_>) -> Result<Vec<TokenId>, ApiError> {
    bounds.check_name(fields)?;
    match fields.list_of("tokens", token_id)? {
        Some(ids) => Ok(token_ids("tokens", ids, bounds.vocab, bounds.max_body_bytes)?),
        None => Err(fields.missing("tokens", "is missing: give a list of token ids").into()),
    }
}
