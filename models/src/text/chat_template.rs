//! Chat templates: the Jinja source that comes with a model, rendered as transformers renders it.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use minijinja::value::Kwargs;
use minijinja::{Environment, ErrorKind, Value, context};
use serde_json::Value as Json;

use super::bounded::{self, Bounded};
use super::careful::careful;
use super::{clock, python_json};
use crate::ModelError;
use crate::config::Keys;

const NAME: &str = "chat";
/// A template is a page or two of text.
const MOST_BYTES: usize = 1 << 20;

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
        ChatTemplate::of(path, source, [bos_token, eos_token])
    }

    /// A template from its source; `path` is named in errors, `tokens` start and end a text.
    ///
    /// # Errors
    /// [`ModelError::ChatTemplate`] if it is not valid Jinja, or absurdly long.
    pub fn of(path: PathBuf, source: String, tokens: [String; 2]) -> Result<ChatTemplate, ModelError> {
        if source.len() > MOST_BYTES {
            let problem = format!("it is longer than {MOST_BYTES} bytes");
            return Err(ModelError::ChatTemplate { path, problem });
        }
        let [bos_token, eos_token] = tokens;
        let mut environment = environment();
        let added =
            careful(|| environment.add_template_owned(NAME, source).map_err(|error| describe(&error)));
        match added.and_then(|added| added) {
            Ok(()) => Ok(ChatTemplate { environment, path, bos_token, eos_token }),
            Err(problem) => Err(ModelError::ChatTemplate { path, problem }),
        }
    }

    /// The prompt for a list of messages (`[{"role": .., "content": ..}, ..]`); `add_generation_prompt` opens
    /// the assistant's turn. The text has its special tokens in it: encode it with `add_special = false`.
    ///
    /// # Errors
    /// [`ModelError::ChatTemplate`] with the template's own words when it refuses the messages, and when it takes far more steps or
    /// writes far more than messages of this kind need.
    pub fn render(&self, messages: &Json, add_generation_prompt: bool) -> Result<String, ModelError> {
        let (count, bytes) = (messages.as_array().map_or(0, Vec::len), bytes_of(messages));
        let mut text = Bounded::new(count, bytes);
        // Cheap: templates and functions in it are shared. Fuel belongs to the environment, not to a rendering.
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(bounded::fuel(count)));
        let rendered = careful(|| {
            let template = environment.get_template(NAME)?;
            let variables = context! {
                messages => Value::from_serialize(messages),
                add_generation_prompt,
                bos_token => self.bos_token,
                eos_token => self.eos_token,
            };
            template.render_captured_to(variables, &mut text).map(|_| ())
        });
        match rendered.and_then(|rendered| rendered.map_err(|error| describe(&error))) {
            Ok(()) => Ok(text.finish()),
            Err(problem) => Err(ModelError::ChatTemplate { path: self.path.clone(), problem }),
        }
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
    bounded::guard(&mut environment);
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

/// Bytes of all strings in it.
fn bytes_of(value: &Json) -> usize {
    match value {
        Json::String(text) => text.len(),
        Json::Array(items) => items.iter().map(bytes_of).sum(),
        Json::Object(map) => map.iter().map(|(key, value)| key.len() + bytes_of(value)).sum(),
        _ => 8,
    }
}

fn describe(error: &minijinja::Error) -> String {
    match error.kind() {
        ErrorKind::OutOfFuel => "it takes too many steps for so few messages".to_owned(),
        ErrorKind::WriteFailure => {
            std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
        }
        // What raise_exception says is meant for the reader.
        ErrorKind::InvalidOperation => error.detail().unwrap_or("it refused the messages").to_owned(),
        _ => error.to_string(),
    }
}
