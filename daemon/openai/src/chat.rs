//! POST /v1/chat/completions: messages, through the model's chat template.

use actix_web::{HttpRequest, HttpResponse, web};
use faser_config::fields::{FieldError, Fields};
use faser_models::Conversation;
use serde_json::json;

use super::bounds::Shape;
use super::chunks::Chunks;
use super::conversation::{EFFORT, EFFORTS, VERBOSITIES, VERBOSITY, conversation, template_word};
use super::errors::ApiError;
use super::generation::Generation;
use super::params::{Parameters, PromptTokens, parameters};
use super::prompt::{Echo, Prompt};
use super::resume::RESUME;
use super::tools::tools;
use super::{Bounds, encoding};
use crate::app::App;

/// The handler.
pub(super) async fn chat(
    app: web::Data<App>,
    request: HttpRequest,
    payload: web::Payload,
) -> Result<HttpResponse, ApiError> {
    let (served, (conversation, parameters)) = app.asked(&request, payload, asked).await?;
    let prompt = served.render(&conversation)?;
    drop(conversation);
    let reasoning = served.reasoning_behind(&prompt, &parameters);
    let PromptTokens { add_special, kept } = parameters.prompt_tokens;
    let ids = encoding::prompt(served, prompt, add_special.unwrap_or(false), kept).await;
    let ids = ids.map_err(|err| Shape::Chat.in_its_words(err))?;
    let prompts = vec![Prompt { ids: ids.into(), echo: Echo::Nothing }];
    let generation = Generation { shape: Shape::Chat, prompts, parameters, reasoning, max_new_tokens: None };
    generation.respond(served, app.limits.write_timeout, Chunks::answer).await
}

/// Reads a request for a chat: what its template is given, and the parameters.
///
/// # Errors
/// The first field that is wrong.
pub fn asked(fields: &mut Fields<'_>, bounds: &Bounds<'_>) -> Result<(Conversation, Parameters), ApiError> {
    let model = bounds.check_name(fields)?.to_owned();
    refuse_unsupported(fields)?;
    let mut parameters = Parameters { model, ..parameters(fields, bounds, Shape::Chat, false)? };
    tools(fields, Shape::Chat, bounds, &mut parameters)?;
    let of_text = parameters.resume.as_ref().is_some_and(|resume| resume.text().is_some());
    if of_text && parameters.calls.is_some() {
        let problem = "of a text cannot be had where there are tools: give `resume.token_ids`";
        return Err(fields.wrong(RESUME, problem).into());
    }
    let goes_on = parameters.resume.as_ref().is_some_and(|resume| !resume.tokens().is_empty());
    if goes_on && parameters.calls.is_some() && !parameters.stream {
        let problem =
            "where there are tools needs \"stream\": true: the rest of a call has no place in a whole answer";
        return Err(fields.wrong(RESUME, problem).into());
    }
    let mut conversation = conversation(fields)?;
    let variables = &mut conversation.variables;
    let reads = bounds.template;
    template_word(fields, (EFFORT, EFFORT), &EFFORTS, reads.reasoning_effort, variables)?;
    template_word(fields, (VERBOSITY, VERBOSITY), &VERBOSITIES, reads.verbosity, variables)?;
    Ok((conversation, parameters))
}

fn refuse_unsupported(fields: &mut Fields<'_>) -> Result<(), FieldError> {
    fields.neutral("functions", &[json!([])], "give them as `tools`")?;
    fields.neutral("function_call", &[json!("none"), json!("auto")], "give it as `tool_choice`")?;
    fields.neutral("modalities", &[json!(["text"])], "the only modality is text")?;
    fields.neutral("audio", &[], "the only modality is text")
}
