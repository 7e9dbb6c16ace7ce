//! POST /v1/completions: prompts as text or token ids, one or several.

use actix_web::{HttpRequest, HttpResponse, web};
use faser_config::fields::{Fault, FieldError, Fields, each, one_of, wrong_type};
use faser_engine::TokenId;
use serde_json::{Value, json};

use super::bounds::Shape;
use super::chunks::Chunks;
use super::errors::ApiError;
use super::generation::Generation;
use super::params::{Kept, Parameters, PromptTokens, parameters, token_id, token_ids};
use super::prompt::Echo;
use super::resume::RESUME;
use super::{Bounds, encoding};
use crate::app::App;

/// Tokens of a completion when the request does not say, as in OpenAI's API.
const DEFAULT_MAX_TOKENS: usize = 16;

/// The handler.
pub(super) async fn completions(
    app: web::Data<App>,
    request: HttpRequest,
    payload: web::Payload,
) -> Result<HttpResponse, ApiError> {
    let (served, Completion { prompts, echo, parameters }) = app.asked(&request, payload, asked).await?;
    let PromptTokens { add_special, kept } = parameters.prompt_tokens;
    let add_special = add_special.unwrap_or(true);
    let mut encoded = Vec::with_capacity(prompts.len());
    for prompt in prompts {
        let (ids, echo) = match prompt {
            Prompt::Ids(ids) => (ids, if echo { Echo::Tokens } else { Echo::Nothing }),
            Prompt::Text(text) => {
                let again = if echo { Echo::Text(text.clone()) } else { Echo::Nothing };
                (encoding::prompt(served, text, add_special, kept).await?, again)
            }
        };
        encoded.push(super::prompt::Prompt { ids: ids.into(), echo });
    }
    let generation = Generation {
        shape: Shape::Completion,
        prompts: encoded,
        parameters,
        reasoning: None,
        max_new_tokens: Some(DEFAULT_MAX_TOKENS),
    };
    generation.respond(served, app.limits.write_timeout, Chunks::answer).await
}

/// What a request for completions asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// What is to be continued.
    pub prompts: Vec<Prompt>,
    /// Whether answers begin with their prompt.
    pub echo: bool,
    /// How.
    pub parameters: Parameters,
}

/// What is to be continued.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// A text.
    Text(String),
    /// Token ids.
    Ids(Vec<TokenId>),
}

/// Reads a request for completions.
///
/// # Errors
/// The first field that is wrong.
pub fn asked(fields: &mut Fields<'_>, bounds: &Bounds<'_>) -> Result<Completion, ApiError> {
    let model = bounds.check_name(fields)?.to_owned();
    let echo = fields.flag(("echo", "Whether the text begins with the prompt."))?.unwrap_or(false);
    fields.neutral("suffix", &[json!("")], "text is only continued, not filled in")?;
    fields.neutral("continue_final_message", &[json!(false)], "a prompt has no messages")?;
    let parameters = Parameters { model, ..parameters(fields, bounds, Shape::Completion, echo)? };
    let about = "Tokens of a choice at most. With `echo` there may be none.";
    fields.tell("max_tokens", || json!({"minimum": 0, "example": 9, "description": about}));
    fields.tell("max_completion_tokens", || json!({"minimum": 0, "example": 9}));
    // Of longer ones the end is kept, if that is asked for.
    let most =
        if parameters.prompt_tokens.kept == Kept::All { bounds.max_context } else { bounds.max_body_bytes };
    let prompts = read_prompts(fields, &Bounds { max_context: most, ..*bounds })?;
    if prompts.len() > 1 && parameters.resume.is_some() {
        return Err(fields.wrong(RESUME, "is of one prompt: send a request for each").into());
    }
    Ok(Completion { prompts, echo, parameters })
}

/// A string, a list of strings, a list of ids, or a list of lists of ids.
fn read_prompts(fields: &mut Fields<'_>, bounds: &Bounds<'_>) -> Result<Vec<Prompt>, FieldError> {
    const WANTED: &str = "a string, a list of token ids, or a list of either";
    let most = bounds.max_prompts;
    let path = fields.path("prompt");
    let schema = || {
        let (text, ids) = (json!({"type": "string"}), json!({"type": "array", "items": token_id()}));
        let list = |of: &Value| json!({"type": "array", "items": of});
        one_of([text.clone(), ids.clone(), list(&text), list(&ids)])
    };
    let items = match fields.value_of(("prompt", "Text or token ids, one or several."), schema) {
        None => return Err(fields.missing("prompt", format_args!("is missing: give {WANTED}"))),
        Some(Value::String(text)) => return Ok(vec![Prompt::Text(text.clone())]),
        Some(Value::Array(items)) => items,
        Some(other) => return Err(wrong_type(&path, WANTED, other)),
    };
    match items.first() {
        None => Err(FieldError::new(path, Fault::Value, format!("is an empty list: give {WANTED}"))),
        Some(Value::Number(_)) => {
            Ok(vec![Prompt::Ids(token_ids(&path, items, bounds.vocab, bounds.max_context)?)])
        }
        Some(_) if items.len() > most => {
            let problem = format!(
                "has {} prompts; {most} are taken at most (server.max_prompts_per_request)",
                items.len()
            );
            Err(FieldError::new(path, Fault::Value, problem))
        }
        Some(_) => each(&path, items, |path, item| match item {
            Value::String(text) => Ok(Prompt::Text(text.clone())),
            Value::Array(ids) => token_ids(&path, ids, bounds.vocab, bounds.max_context).map(Prompt::Ids),
            other => Err(wrong_type(&path, "a string or a list of token ids", other)),
        }),
    }
}
