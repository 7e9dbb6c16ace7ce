//! What a request is measured against, so that it can be read without a model at hand.

use faser_models::{CallFormat, GenerationDefaults};

use super::effort::{EFFORT, VERBOSITY};
use super::errors::ApiError;
use crate::app::{App, Served};
use crate::fields::Fields;
use crate::names::Names;

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
    /// How the model writes calls of functions, if it does.
    pub calls: Option<CallFormat>,
    /// Whether priorities of requests count.
    pub priorities: bool,
    /// Which variables the chat template reads.
    pub template: TemplateReads,
    /// What a request samples by where it says nothing itself.
    pub defaults: GenerationDefaults,
}

/// Variables that a chat template may read or not.
#[derive(Clone, Copy, Debug, Default)]
pub struct TemplateReads {
    /// `tools`: it tells the model of functions, and in which form they are called.
    pub tools: bool,
    /// `reasoning_effort`.
    pub reasoning_effort: bool,
    /// `verbosity`.
    pub verbosity: bool,
}

impl TemplateReads {
    fn of(served: &Served) -> TemplateReads {
        let reads = |name| served.template.as_ref().is_ok_and(|template| template.reads(name));
        TemplateReads { tools: reads("tools"), reasoning_effort: reads(EFFORT), verbosity: reads(VERBOSITY) }
    }
}

impl<'a> Bounds<'a> {
    pub(super) fn of(app: &App, served: &'a Served) -> Bounds<'a> {
        Bounds {
            names: served.names(),
            vocab: served.vocab,
            max_context: served.max_context,
            max_prompts: app.limits.max_prompts_per_request,
            max_body_bytes: app.limits.max_body_bytes,
            calls: served.calls,
            priorities: served.config.scheduler.priorities,
            template: TemplateReads::of(served),
            defaults: served.defaults,
        }
    }

    /// Reads `model`, which may be left out: then it is the model's own name.
    ///
    /// # Errors
    /// It names another model.
    pub(super) fn check_name(&self, fields: &mut Fields<'_>) -> Result<&'a str, ApiError> {
        match fields.text("model")? {
            Some(asked) => {
                self.names.find(asked).ok_or_else(|| ApiError::unknown_model(asked, self.names.all()))
            }
            None => Ok(self.names.main),
        }
    }
}
