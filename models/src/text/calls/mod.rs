//! Tool calls in what a model writes: the formats, a parser that reads them as they come, and grammars that hold an output to them.

mod form;
mod object;
mod parser;

#[cfg(test)]
mod tests;

pub use form::{CallForm, Function};
pub use parser::{CallEvent, CallParser};

use std::path::Path;

use super::template_files::template_sources;
use crate::{ModelError, Tokenizer};

/// How a model writes calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFormat {
    /// `<tool_call>` and `</tool_call>` around `{"name": …, "arguments": {…}}`, each on a line of its own; text may stand before. Hermes,
    /// Qwen 2.5, Qwen 3.
    Hermes,
    /// The whole output is `{"name": …, "parameters": {…}}`, several divided by `; `; `<|python_tag|>` may stand before. Llama 3.
    Llama3,
    /// The whole output is `{"name": …, "arguments": {…}}`, several divided by line breaks: for models of which nobody knows how they write
    /// calls. Grammars have them write it so.
    Json,
    /// A message of Harmony to `functions.…` is a call. gpt-oss. [`crate::ReasoningParser`] reads it, by the marks' tokens.
    Harmony,
}

impl CallFormat {
    /// The format that the chat template of a model directory or a GGUF file writes calls in; none if it knows no calls, or others.
    ///
    /// # Errors
    /// A file cannot be read, or is no JSON.
    pub fn of_model(dir: &Path) -> Result<Option<CallFormat>, ModelError> {
        Ok(template_sources(dir)?.iter().find_map(|source| CallFormat::of_template(source)))
    }

    /// The format that a chat template, given by its source, writes calls in.
    pub fn of_template(source: &str) -> Option<CallFormat> {
        let has = |mark| source.contains(mark);
        // The same tag stands around calls that are no JSON (Qwen3-Coder, GLM-4.5).
        let other = has("<function=") || has("<arg_key>");
        if has("<tool_call>") {
            return (has("arguments") && !other).then_some(CallFormat::Hermes);
        }
        if has("<|channel|>") && has("functions.") {
            return Some(CallFormat::Harmony);
        }
        let llama = has("<|python_tag|>") || (has("\"parameters\"") && has("ipython"));
        llama.then_some(CallFormat::Llama3)
    }

    /// Whether the bracket that a whole output begins with is that of a call.
    fn bare(self) -> bool {
        matches!(self, CallFormat::Llama3 | CallFormat::Json)
    }

    /// What stands before a call, where something does.
    fn opening(self) -> &'static str {
        match self {
            CallFormat::Hermes => "<tool_call>",
            CallFormat::Llama3 => "<|python_tag|>",
            CallFormat::Json | CallFormat::Harmony => "",
        }
    }

    /// What stands behind the object of a call.
    fn closing(self) -> &'static str {
        match self {
            CallFormat::Hermes => "</tool_call>",
            CallFormat::Llama3 | CallFormat::Json | CallFormat::Harmony => "",
        }
    }

    /// What stands before and behind calls.
    pub(crate) fn tags(self) -> [&'static str; 2] {
        [self.opening(), self.closing()]
    }

    /// Names of the arguments in the object of a call; the first is what grammars write.
    fn arguments(self) -> &'static [&'static str] {
        match self {
            CallFormat::Hermes | CallFormat::Json | CallFormat::Harmony => &["arguments"],
            CallFormat::Llama3 => &["parameters", "arguments"],
        }
    }

    /// Tokens that are marks of the tokenizer and part of a call all the same: a [`crate::Detokenizer`] has to show them to the parser.
    pub fn marks(self, tokenizer: &Tokenizer) -> Vec<u32> {
        let marks = self.tags().into_iter().filter_map(|mark| tokenizer.token_id(mark));
        marks.filter(|id| tokenizer.is_special(*id)).collect()
    }

    /// The token by which a model ends a message with calls, if it is not the one that ends every message.
    pub fn end(self, tokenizer: &Tokenizer) -> Option<u32> {
        match self {
            CallFormat::Hermes | CallFormat::Json | CallFormat::Harmony => None,
            CallFormat::Llama3 => tokenizer.token_id("<|eom_id|>"),
        }
    }
}
