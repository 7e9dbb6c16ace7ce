//! Chat templates: the Jinja source that comes with a model, rendered as transformers renders it.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use minijinja::{Environment, ErrorKind, Value};
use serde_json::{Map, Value as Json};

use super::bounded::{self, Bounded};
use super::catch_panic::catch_panic;
use super::template_files::TemplateFiles;
use super::template_input::{Conversation, LastTurn, continued};
use super::{jinja, python};
use crate::ModelError;

const PLAIN: &str = "chat";
const WITH_TOOLS: &str = "chat with tools";
/// A template is a page or two of text.
const MOST_BYTES: usize = 1 << 20;

/// A model's chat template, with its special tokens.
pub struct ChatTemplate {
    environment: Environment<'static>,
    path: PathBuf,
    tokens: Map<String, Json>,
    /// Variables that it may look up.
    variables: HashSet<String>,
}

impl ChatTemplate {
    /// Reads the template of a model directory: `chat_template.jinja` (and `additional_chat_templates/tool_use.jinja`), or `chat_template`
    /// in `tokenizer_config.json`: a string, or a list of named ones, of which `default` is taken, and `tool_use` where tools are given.
    ///
    /// # Errors
    /// [`ModelError::NoChatTemplate`] if there is none; [`ModelError::ChatTemplate`] if it is not valid Jinja.
    pub fn load(dir: &Path) -> Result<ChatTemplate, ModelError> {
        let TemplateFiles { path, source, with_tools, tokens } = TemplateFiles::read(dir)?;
        let mut template = ChatTemplate::of(path, &source, tokens)?;
        if let Some(source) = with_tools {
            template.add(WITH_TOOLS, &source)?;
        }
        Ok(template)
    }

    /// A template from its source; `path` is named in errors, `tokens` are its special tokens by name (`bos_token`).
    ///
    /// # Errors
    /// [`ModelError::ChatTemplate`] if it is not valid Jinja, or absurdly long.
    pub fn of(path: PathBuf, source: &str, tokens: Map<String, Json>) -> Result<ChatTemplate, ModelError> {
        let environment = jinja::environment();
        let mut template = ChatTemplate { environment, path, tokens, variables: HashSet::new() };
        template.add(PLAIN, source)?;
        Ok(template)
    }

    fn add(&mut self, name: &'static str, source: &str) -> Result<(), ModelError> {
        if source.len() > MOST_BYTES {
            return Err(self.error(format!("it is longer than {MOST_BYTES} bytes")));
        }
        let source = jinja::source(source);
        let environment = &mut self.environment;
        let added =
            catch_panic(|| environment.add_template_owned(name, source).map_err(|error| describe(&error)));
        added.and_then(|added| added).map_err(|problem| self.error(problem))?;
        let read = catch_panic(|| {
            self.environment.get_template(name).ok().map(|added| added.undeclared_variables(false))
        });
        self.variables.extend(read.ok().flatten().unwrap_or_default());
        Ok(())
    }

    /// Whether it may look up a variable of this name: one that it never does makes no difference.
    #[must_use]
    pub fn reads(&self, variable: &str) -> bool {
        self.variables.contains(variable)
    }

    /// The prompt for a conversation. The text has its special tokens in it: encode it with `add_special = false`.
    ///
    /// # Errors
    /// [`ModelError::ChatTemplate`] with the template's own words when it refuses the messages, and when it takes far more steps or
    /// writes far more than a conversation of this kind needs.
    pub fn render(&self, conversation: &Conversation) -> Result<String, ModelError> {
        let size = conversation.size();
        let mut text = Bounded::new(size);
        // Cheap: templates and functions in it are shared. Fuel belongs to the environment, not to a rendering.
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(bounded::fuel(size)));
        let variables = self.variables(conversation).map_err(|problem| self.error(problem))?;
        let rendered = catch_panic(|| {
            let with_tools = conversation.tools.is_some().then(|| environment.get_template(WITH_TOOLS).ok());
            let template = with_tools.flatten().map_or_else(|| environment.get_template(PLAIN), Ok)?;
            template.render_captured_to(variables, &mut text).map(|_| ())
        });
        let rendered = rendered.and_then(|rendered| rendered.map_err(|error| describe(&error)));
        let whole = rendered.map(|()| text.finish());
        let text = match conversation.last_turn {
            LastTurn::Continued => whole.and_then(continued),
            LastTurn::Opened | LastTurn::Closed => whole,
        };
        text.map_err(|problem| self.error(problem))
    }

    /// What transformers hands to a template.
    fn variables(&self, conversation: &Conversation) -> Result<Value, String> {
        let opened = conversation.last_turn == LastTurn::Opened;
        let own = [
            ("messages", conversation.prepared()?),
            ("tools", conversation.tools.as_ref().map_or(Value::from(()), python::value)),
            ("documents", Value::from(())),
            ("add_generation_prompt", Value::from(opened)),
        ];
        let given = self.tokens.iter().chain(&conversation.variables);
        let given = given.map(|(name, value)| (name.as_str(), python::value(value)));
        Ok(given.chain(own).collect())
    }

    fn error(&self, problem: String) -> ModelError {
        ModelError::ChatTemplate { path: self.path.clone(), problem }
    }
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatTemplate").field("path", &self.path).finish_non_exhaustive()
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
