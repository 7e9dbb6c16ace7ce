//! What a request is read by: which API it is of, and what it is measured against. So it can be read without a model at hand.

use faser_config::fields::Fields;
use faser_models::{CallFormat, GenerationDefaults};
use serde_json::json;

use super::errors::ApiError;
use crate::names::Names;

/// Which API a request and its answer are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// /v1/completions.
    Completion,
    /// /v1/chat/completions.
    Chat,
    /// /v1/responses.
    Response,
}

impl Shape {
    /// An error in the words of this API: its fields for what a completion calls `prompt` and `max_tokens`.
    pub(super) fn in_its_words(self, mut err: ApiError) -> ApiError {
        let (prompt, max_tokens) = match self {
            Shape::Completion => return err,
            Shape::Chat => ("messages", "max_completion_tokens"),
            Shape::Response => ("input", "max_output_tokens"),
        };
        if err.param.as_deref() == Some("prompt") {
            err.param = Some(prompt.to_owned());
            err.message = err.message.replace("max_tokens", max_tokens);
        }
        err
    }
}

/// Bounds of the model and of the server.
#[derive(Clone, Copy, Debug)]
pub struct Bounds<'a> {
    /// What clients may call the model.
    pub names: Names<'a>,
    /// Token ids are below this.
    pub vocab: usize,
    /// Tokens of a sequence, prompt and output together.
    pub max_context: usize,
    /// Prompts of a request.
    pub max_prompts: usize,
    /// Bytes of a body, and so the most that a list can have.
    pub max_body_bytes: usize,
    /// How the model writes tool calls, if it does.
    pub calls: Option<CallFormat>,
    /// Whether priorities of requests count.
    pub priorities: bool,
    /// Which variables the chat template reads.
    pub template: TemplateReads,
    /// What a request samples by where it says nothing itself.
    pub defaults: GenerationDefaults,
    /// Whose key it has, 0 where there are no keys: past outputs are proposed from to their own key alone.
    pub owner: u128,
}

/// Variables that a chat template may read or not.
#[derive(Clone, Copy, Debug, Default)]
pub struct TemplateReads {
    /// `tools`: it tells the model of its tools, and in which form it calls them.
    pub tools: bool,
    /// `reasoning_effort`.
    pub reasoning_effort: bool,
    /// `verbosity`.
    pub verbosity: bool,
}

impl<'a> Bounds<'a> {
    /// Of a small model that can do everything: for tests, and for documents, which go by no model.
    pub const EVERYTHING: Bounds<'static> = Bounds {
        names: Names { main: "m", aliases: &[] },
        vocab: 1000,
        max_context: 512,
        max_prompts: 8,
        max_body_bytes: 64 << 10,
        calls: Some(CallFormat::Hermes),
        priorities: true,
        template: TemplateReads { tools: true, reasoning_effort: true, verbosity: true },
        defaults: GenerationDefaults::NOTHING,
        owner: 0,
    };

    /// Reads `model`, which may be left out: then it is the model's own name.
    ///
    /// # Errors
    /// It names another model.
    pub(super) fn check_name(&self, fields: &mut Fields<'_>) -> Result<&'a str, ApiError> {
        let name = fields.text(("model", "A name of the model; without one it is the server's own."))?;
        fields.tell("model", || json!({"example": "m"}));
        match name {
            Some(asked) => {
                self.names.find(asked).ok_or_else(|| ApiError::unknown_model(asked, self.names.all()))
            }
            None => Ok(self.names.main),
        }
    }
}
