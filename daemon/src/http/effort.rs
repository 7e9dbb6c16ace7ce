//! `reasoning_effort` and `verbosity`: how long a model is to think and to speak. Only its chat template can tell it.

use serde_json::{Map, Value};

use crate::fields::{Fault, FieldError, Fields};

/// OpenAI's words; the default of both is `medium`.
pub(super) const EFFORT: &str = "reasoning_effort";
pub(super) const EFFORTS: [&str; 6] = ["none", "minimal", "low", "medium", "high", "xhigh"];
pub(super) const VERBOSITY: &str = "verbosity";
pub(super) const VERBOSITIES: [&str; 3] = ["low", "medium", "high"];

/// Reads `field`, one of `words`, for the template's variable `name`, which the template reads or not.
///
/// # Errors
/// It is none of the words; the request gives the variable another value by `chat_template_kwargs`; or it is not the default, and the
/// template does not read it, so that it would change nothing.
pub(super) fn word(
    fields: &mut Fields<'_>,
    (field, name): (&'static str, &'static str),
    words: &[&str],
    read: bool,
    variables: &mut Map<String, Value>,
) -> Result<(), FieldError> {
    let Some(word) = fields.word(field, words)? else { return Ok(()) };
    if read {
        let given = variables.insert(name.to_owned(), word.into());
        if given.is_some_and(|given| given != word) {
            let problem = format!("and `chat_template_kwargs.{name}` differ: give one of them");
            return Err(fields.wrong(field, problem));
        }
    } else if word != "medium" {
        let problem = format!(
            "is not supported: the model's chat template does not read `{name}`, so that it would change nothing; \
             leave it out, or give `chat_template_kwargs` what the template knows"
        );
        return Err(FieldError::new(fields.path(field), Fault::Unsupported, problem));
    }
    Ok(())
}
