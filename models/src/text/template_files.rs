//! Where a model directory, or a GGUF file, keeps its chat templates and the names of its special tokens.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::gguf_text::templates;
use super::tokenizer_files::NAMED;
use crate::ModelError;
use crate::config::Keys;
use crate::gguf::{Gguf, Parts, is_gguf};

/// The template that is taken when nothing else is said.
const DEFAULT: &str = "default";
/// The template that transformers takes where tools are given.
const WITH_TOOLS: &str = "tool_use";

/// What was found in a model directory.
pub(super) struct TemplateFiles {
    /// The file that errors are about.
    pub(super) path: PathBuf,
    pub(super) source: String,
    /// The source for conversations with tools, if it is another.
    pub(super) with_tools: Option<String>,
    /// Special tokens by their names.
    pub(super) tokens: Map<String, Value>,
}

impl TemplateFiles {
    /// Reads `chat_template.jinja` with `additional_chat_templates/tool_use.jinja`, or `chat_template` in `tokenizer_config.json`.
    pub(super) fn read(dir: &Path) -> Result<TemplateFiles, ModelError> {
        if is_gguf(dir) {
            let found = templates(&Gguf::read(&Parts::map(dir)?)?.metadata)?;
            let source = found.plain.ok_or_else(|| ModelError::NoChatTemplate { path: dir.to_owned() })?;
            let (path, with_tools, tokens) = (dir.to_owned(), found.with_tools, found.marks);
            return Ok(TemplateFiles { path, source, with_tools, tokens });
        }
        let config = dir.join("tokenizer_config.json");
        let keys = Keys::read_if_present(&config)?;
        let mut tokens = Map::new();
        for keys in [Keys::read_if_present(&dir.join("special_tokens_map.json"))?.as_ref(), keys.as_ref()] {
            keys.map_or(Ok(()), |keys| special_tokens(keys, &mut tokens))?;
        }
        let file = dir.join("chat_template.jinja");
        if file.exists() {
            let read = |path: &Path| std::fs::read_to_string(path).map_err(|e| ModelError::read(path, e));
            let more = dir.join("additional_chat_templates").join(format!("{WITH_TOOLS}.jinja"));
            let with_tools = if more.exists() { Some(read(&more)?) } else { None };
            return Ok(TemplateFiles { source: read(&file)?, path: file, with_tools, tokens });
        }
        match keys.as_ref().map_or(Ok(None), in_config)? {
            Some((source, with_tools)) => Ok(TemplateFiles { path: config, source, with_tools, tokens }),
            None => Err(ModelError::NoChatTemplate { path: dir.to_owned() }),
        }
    }
}

/// The sources of all chat templates of a model directory or a GGUF file, that for tools among them: to see how the model writes, whichever of
/// them is taken.
///
/// # Errors
/// A file cannot be read, or is no JSON.
pub(super) fn template_sources(dir: &Path) -> Result<Vec<String>, ModelError> {
    if is_gguf(dir) {
        let found = match TemplateFiles::read(dir) {
            Err(ModelError::NoChatTemplate { .. }) => return Ok(Vec::new()),
            found => found?,
        };
        return Ok(std::iter::once(found.source).chain(found.with_tools).collect());
    }
    let mut sources = Vec::new();
    for name in ["chat_template.jinja", "additional_chat_templates/tool_use.jinja"] {
        let file = dir.join(name);
        if file.is_file() {
            sources.push(std::fs::read_to_string(&file).map_err(|err| ModelError::read(&file, err))?);
        }
    }
    if let Some(keys) = Keys::read_if_present(&dir.join("tokenizer_config.json"))? {
        match keys.get("chat_template") {
            Some(Value::String(source)) => sources.push(source.clone()),
            Some(Value::Array(named)) => {
                let source = |entry: &Value| entry.get("template")?.as_str().map(str::to_owned);
                sources.extend(named.iter().filter_map(source));
            }
            _ => {}
        }
    }
    Ok(sources)
}

/// The template in a tokenizer's config, and the one for tools.
fn in_config(keys: &Keys) -> Result<Option<(String, Option<String>)>, ModelError> {
    match keys.get("chat_template") {
        None => Ok(None),
        Some(Value::String(source)) => Ok(Some((source.clone(), None))),
        Some(Value::Array(list)) => {
            let named = |name: &str| {
                let entry = list.iter().find(|entry| entry.get("name").and_then(Value::as_str) == Some(name));
                entry.and_then(|entry| entry.get("template")).and_then(Value::as_str).map(str::to_owned)
            };
            let default = named(DEFAULT).ok_or_else(|| list_error(keys))?;
            Ok(Some((default, named(WITH_TOOLS))))
        }
        Some(_) => Err(list_error(keys)),
    }
}

fn list_error(keys: &Keys) -> ModelError {
    let wanted = "must be a string, or a list of {\"name\", \"template\"} with one named \"default\"";
    keys.error("chat_template", wanted)
}

/// Adds the special tokens of a file: each is a string, or an object with its `content`. Beside those that every tokenizer has a name
/// for, a model may name some of its own, such as `image_token`.
fn special_tokens(keys: &Keys, tokens: &mut Map<String, Value>) -> Result<(), ModelError> {
    for name in keys.names().filter(|name| name.ends_with("_token")) {
        let token = match keys.get(name) {
            None => continue,
            Some(Value::Object(token)) => token.get("content").and_then(Value::as_str),
            Some(other) => other.as_str(),
        };
        match token {
            Some(token) => drop(tokens.insert(name.to_owned(), token.into())),
            None if NAMED.contains(&name) => {
                return Err(keys.error(name, "must be a string or an object with `content`"));
            }
            // `add_bos_token` and its like are switches.
            None => {}
        }
    }
    Ok(())
}
