//! Fields that mean something elsewhere: taken where they can change no text, refused where ignoring them would mislead. `docs/requests.md`
//! lists them.

use serde_json::{Value, json};

use super::answer::Shape;
use crate::fields::{Fault, FieldError, Fields, at_most, shortened, wrong_type};

/// Pairs of `metadata`, and characters of a key and of a value, as in OpenAI's API.
const MAX_METADATA: usize = 16;
const MAX_METADATA_KEY: usize = 64;
const MAX_METADATA_VALUE: usize = 512;

/// Reads those that completions, chats and responses have in common.
///
/// # Errors
/// The first that asks for what is not offered.
pub(super) fn elsewhere(fields: &mut Fields<'_>, shape: Shape) -> Result<(), FieldError> {
    taken(fields)?;
    fields.neutral("prompt_logprobs", &[], "use /v1/completions with `echo` and `logprobs`")?;
    fields.neutral("length_penalty", &[json!(1), json!(1.0)], "beam search is not offered")?;
    fields.neutral("use_beam_search", &[json!(false)], "beam search is not offered")?;
    fields.neutral("skip_special_tokens", &[json!(true)], "special tokens are always left out")?;
    fields.neutral("service_tier", &[json!("auto"), json!("default")], "there is one tier")?;
    fields.neutral("store", &[json!(false)], "nothing is stored")?;
    if shape == Shape::Response {
        let whole = "a response has no place for them: use /v1/chat/completions";
        fields.neutral("return_token_ids", &[json!(false)], whole)?;
    }
    of_routers(fields)
}

/// Words of who asks and what for. Prompts are found in the cache by what they say, whatever their key.
fn taken(fields: &mut Fields<'_>) -> Result<(), FieldError> {
    fields.text("user")?;
    fields.text("safety_identifier")?;
    fields.text("prompt_cache_key")?;
    metadata(fields)
}

/// What routers add to every request they pass on.
fn of_routers(fields: &mut Fields<'_>) -> Result<(), FieldError> {
    fields.neutral("no_stop_trim", &[json!(false)], "use `include_stop_str_in_output`")?;
    fields.neutral("return_hidden_states", &[json!(false)], "hidden states are not offered")?;
    let split = "reasoning is not told from the rest of the text";
    fields.neutral("separate_reasoning", &[json!(true), json!(false)], split)?;
    fields.neutral("stream_reasoning", &[json!(true), json!(false)], split)
}

fn metadata(fields: &mut Fields<'_>) -> Result<(), FieldError> {
    let path = fields.path("metadata");
    let pairs = match fields.value("metadata") {
        None => return Ok(()),
        Some(Value::Object(pairs)) => pairs,
        Some(other) => return Err(wrong_type(&path, "an object of strings", other)),
    };
    at_most(&path, pairs.len(), MAX_METADATA, "pairs")?;
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
