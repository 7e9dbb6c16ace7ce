//! POST /v1/chat/completions: messages, through the model's chat template.

use actix_web::{HttpRequest, HttpResponse, web};
use faser_models::{CallFormat, Conversation, LastTurn};
use serde_json::{Map, Value, json};

use super::answer::Shape;
use super::chunks::Chunks;
use super::effort::{self, EFFORT, EFFORTS, VERBOSITIES, VERBOSITY};
use super::errors::ApiError;
use super::generation::{Generation, Prompt};
use super::messages::messages;
use super::params::{Parameters, parameters};
use super::prompt_tokens::PromptTokens;
use super::tools::{self, tools};
use super::{Bounds, body, encoding};
use crate::app::{App, Served};
use crate::fields::{Fault, FieldError, Fields, shortened, wrong_type};

/// Variables for the template at most, and bytes of their names and values as JSON.
const MAX_VARIABLES: usize = 64;
const MAX_VARIABLES_BYTES: usize = 16 << 10;

/// The handler.
pub(super) async fn chat(
    app: web::Data<App>,
    request: HttpRequest,
    payload: web::Payload,
) -> Result<HttpResponse, ApiError> {
    let (served, (conversation, parameters)) = body::asked(&app, &request, payload, read).await?;
    let prompt = render(served, &conversation)?;
    drop(conversation);
    let PromptTokens { add_special, kept } = parameters.prompt_tokens;
    let ids = encoding::prompt(served, prompt, add_special.unwrap_or(false), kept).await?;
    let prompts = vec![Prompt { ids: ids.into(), echo: None }];
    let generation = Generation { shape: Shape::Chat, prompts, parameters, max_new_tokens: None };
    generation.respond(served, app.limits.write_timeout, Chunks::answer).await
}

/// Reads the body of a request for a chat: what its template is given, and the parameters.
///
/// # Errors
/// It is no JSON, or the first field that is wrong.
pub fn read(body: &[u8], bounds: &Bounds<'_>) -> Result<(Conversation, Parameters), ApiError> {
    let body = body::parse(body)?;
    let mut fields = Fields::new("", &body)?;
    let model = bounds.check_name(&mut fields)?.to_owned();
    refuse_unsupported(&mut fields)?;
    let mut parameters = Parameters { model, ..parameters(&mut fields, bounds, Shape::Chat, false)? };
    tools(&mut fields, Shape::Chat, bounds, &mut parameters)?;
    let mut conversation = conversation(&mut fields)?.ok_or_else(|| {
        FieldError::new(
            "messages",
            Fault::Missing,
            "is missing: give a list such as [{\"role\": \"user\", \"content\": \"…\"}]",
        )
    })?;
    let variables = &mut conversation.variables;
    let reads = bounds.template;
    effort::word(&mut fields, (EFFORT, EFFORT), &EFFORTS, reads.reasoning_effort, variables)?;
    effort::word(&mut fields, (VERBOSITY, VERBOSITY), &VERBOSITIES, reads.verbosity, variables)?;
    fields.finish()?;
    Ok((conversation, parameters))
}

/// Reads what a chat template is given; without `messages` it is none.
pub(super) fn conversation(fields: &mut Fields<'_>) -> Result<Option<Conversation>, FieldError> {
    let Some(messages) = messages(fields)? else { return Ok(None) };
    let (tools, variables) = (functions(fields)?, variables(fields)?);
    let last_turn = last_turn(fields)?;
    Ok(Some(Conversation { messages, tools, variables, last_turn }))
}

/// The conversation as the model's chat template writes it.
pub(super) fn render(served: &Served, conversation: &Conversation) -> Result<String, ApiError> {
    let refuse = |err: &dyn std::fmt::Display| {
        ApiError::bad_request(err.to_string(), Some("messages"), "chat_template_error")
    };
    let template = served.template.as_ref().map_err(|err| refuse(err))?;
    // What the template does not tell the model of functions, is told here.
    let untold = served.calls == Some(CallFormat::Json) && !template.reads("tools");
    let told = untold.then(|| tools::told(conversation));
    template.render(told.as_ref().unwrap_or(conversation)).map_err(|err| refuse(&err))
}

/// Reads `tools`, which the template gets as they are; an empty list is none.
fn functions(fields: &mut Fields<'_>) -> Result<Option<Value>, FieldError> {
    let path = fields.path("tools");
    let Some(list) = fields.list("tools")?.filter(|list| !list.is_empty()) else { return Ok(None) };
    for (i, tool) in list.iter().enumerate() {
        Fields::new(format!("{path}[{i}]"), tool)?;
    }
    Ok(Some(list.into()))
}

/// Reads `chat_template_kwargs`: variables of the template, none of which may stand for another field.
pub(super) fn variables(fields: &mut Fields<'_>) -> Result<Map<String, Value>, FieldError> {
    const NAME: &str = "chat_template_kwargs";
    let path = fields.path(NAME);
    let map = match fields.value(NAME) {
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
    let opened = fields.flag("add_generation_prompt")?.unwrap_or(true);
    let continued = fields.flag("continue_final_message")?.unwrap_or(false);
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

fn refuse_unsupported(fields: &mut Fields<'_>) -> Result<(), FieldError> {
    fields.neutral("functions", &[json!([])], "give them as `tools`")?;
    fields.neutral("function_call", &[json!("none"), json!("auto")], "give it as `tool_choice`")?;
    fields.neutral("modalities", &[json!(["text"])], "the only modality is text")?;
    fields.neutral("audio", &[], "the only modality is text")
}
