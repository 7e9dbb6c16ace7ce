//! Chat templates: the Jinja source that comes with a model, rendered as transformers renders it.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use minijinja::value::Kwargs;
use minijinja::{Environment, ErrorKind, Value, context};
use serde_json::Value as Json;

use super::{clock, python_json};
use crate::ModelError;
use crate::config::Keys;

const NAME: &str = "chat";

/// A model's chat template with its start and end token.
pub struct ChatTemplate {
    environment: Environment<'static>,
    path: PathBuf,
    bos_token: String,
    eos_token: String,
}

impl ChatTemplate {
    /// Reads the template of a model directory: `chat_template.jinja`, or `chat_template` in
    /// `tokenizer_config.json` (a string, or a list of named ones, of which `default` is taken).
    ///
    /// # Errors
    /// [`ModelError::NoChatTemplate`] if there is none; [`ModelError::ChatTemplate`] if it is not valid Jinja.
    pub fn load(dir: &Path) -> Result<ChatTemplate, ModelError> {
        let keys = Keys::read_if_present(&dir.join("tokenizer_config.json"))?;
        let special = |key| keys.as_ref().map_or(Ok(String::new()), |keys| special_token(keys, key));
        let (bos_token, eos_token) = (special("bos_token")?, special("eos_token")?);
        let file = dir.join("chat_template.jinja");
        let (path, source) = if file.exists() {
            let source = std::fs::read_to_string(&file).map_err(|e| ModelError::read(&file, e))?;
            (file, Some(source))
        } else {
            (dir.join("tokenizer_config.json"), keys.as_ref().map_or(Ok(None), template_in)?)
        };
        let source = source.ok_or_else(|| ModelError::NoChatTemplate { path: dir.to_owned() })?;
        let mut environment = environment();
        match environment.add_template_owned(NAME, source) {
            Ok(()) => Ok(ChatTemplate { environment, path, bos_token, eos_token }),
            Err(error) => Err(ModelError::ChatTemplate { path, problem: describe(&error) }),
        }
    }

    /// The prompt for a list of messages (`[{"role": .., "content": ..}, ..]`); `add_generation_prompt` opens
    /// the assistant's turn. The text has its special tokens in it: encode it with `add_special = false`.
    ///
    /// # Errors
    /// [`ModelError::ChatTemplate`] with the template's own words when it refuses the messages.
    pub fn render(&self, messages: &Json, add_generation_prompt: bool) -> Result<String, ModelError> {
        let template = self.environment.get_template(NAME);
        let rendered = template.and_then(|template| {
            template.render(context! {
                messages => Value::from_serialize(messages),
                add_generation_prompt,
                bos_token => self.bos_token,
                eos_token => self.eos_token,
            })
        });
        rendered
            .map_err(|error| ModelError::ChatTemplate { path: self.path.clone(), problem: describe(&error) })
    }
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatTemplate").field("path", &self.path).finish_non_exhaustive()
    }
}

/// Jinja as transformers sets it up.
fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", |message: String| -> Result<Value, minijinja::Error> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_function("strftime_now", |format: String| {
        clock::format(SystemTime::now(), &format)
            .map_err(|e| minijinja::Error::new(ErrorKind::InvalidOperation, e))
    });
    environment.add_filter("tojson", |value: Value, options: Kwargs| python_json::to_json(&value, &options));
    environment
}

fn template_in(keys: &Keys) -> Result<Option<String>, ModelError> {
    let error = || {
        keys.error(
            "chat_template",
            "must be a string, or a list of {\"name\", \"template\"} with one named \"default\"",
        )
    };
    match keys.get("chat_template") {
        None => Ok(None),
        Some(Json::String(source)) => Ok(Some(source.clone())),
        Some(Json::Array(list)) => {
            let default =
                list.iter().find(|entry| entry.get("name").and_then(Json::as_str) == Some("default"));
            let source = default.and_then(|entry| entry.get("template")).and_then(Json::as_str);
            source.map(|source| Some(source.to_owned())).ok_or_else(error)
        }
        Some(_) => Err(error()),
    }
}

/// A special token is a string, or an object with its `content`; empty if there is none.
fn special_token(keys: &Keys, key: &str) -> Result<String, ModelError> {
    let token = match keys.get(key) {
        None => Some(""),
        Some(Json::Object(token)) => token.get("content").and_then(Json::as_str),
        Some(other) => other.as_str(),
    };
    token.map(str::to_owned).ok_or_else(|| keys.error(key, "must be a string or an object with `content`"))
}

fn describe(error: &minijinja::Error) -> String {
    match error.kind() {
        // What raise_exception says is meant for the reader.
        ErrorKind::InvalidOperation => error.detail().unwrap_or("it refused the messages").to_owned(),
        _ => error.to_string(),
    }
}
