//! POST /tokenize and /detokenize, in vLLM's shapes.

use actix_web::{HttpRequest, HttpResponse, web};
use serde_json::json;

use super::errors::ApiError;
use super::params::token_ids;
use super::{body, chat, generation, models};
use crate::app::App;
use crate::fields::{Fault, FieldError, Fields};

/// Token ids of a prompt or of messages.
pub(super) async fn tokenize(
    app: web::Data<App>,
    request: HttpRequest,
    payload: web::Payload,
) -> Result<HttpResponse, ApiError> {
    let served = app.served()?;
    let body = body::json(&request, payload, app.limits.max_body_bytes).await?;
    let mut fields = Fields::new("", &body)?;
    models::check_name(&mut fields, served)?;
    let prompt = fields.text("prompt")?;
    let messages = chat::messages(&mut fields)?;
    let add_special = fields.flag("add_special_tokens")?;
    fields.neutral("return_token_strs", &[json!(false)], "token strings are not offered")?;
    let tokens = match (prompt, messages) {
        (Some(prompt), None) => {
            fields.finish()?;
            generation::encode(served, prompt.to_owned(), add_special.unwrap_or(true)).await?
        }
        (None, Some(messages)) => {
            let add_generation_prompt = fields.flag("add_generation_prompt")?.unwrap_or(true);
            fields.finish()?;
            let prompt = chat::render(served, &messages, add_generation_prompt)?;
            generation::encode(served, prompt, add_special.unwrap_or(false)).await?
        }
        _ => {
            let err = FieldError::new("prompt", Fault::Missing, "or `messages` has to be there, one of them");
            return Err(err.into());
        }
    };
    Ok(HttpResponse::Ok().json(json!({
        "count": tokens.len(), "max_model_len": served.max_context, "tokens": tokens,
    })))
}

/// Text of token ids.
pub(super) async fn detokenize(
    app: web::Data<App>,
    request: HttpRequest,
    payload: web::Payload,
) -> Result<HttpResponse, ApiError> {
    let served = app.served()?;
    let body = body::json(&request, payload, app.limits.max_body_bytes).await?;
    let mut fields = Fields::new("", &body)?;
    models::check_name(&mut fields, served)?;
    let Some(ids) = fields.list("tokens")? else {
        return Err(FieldError::new("tokens", Fault::Missing, "is missing: give a list of token ids").into());
    };
    let ids = token_ids("tokens", ids, served.vocab, app.limits.max_body_bytes)?;
    fields.finish()?;
    Ok(HttpResponse::Ok().json(json!({"prompt": served.tokenizer.decode(&ids)})))
}
