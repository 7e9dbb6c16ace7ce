//! What a client wants of the service, and what is refused before anybody is asked.

use std::sync::Arc;

use faser_engine::{Handling, TokenId};
use faser_kernels::Sampling;

use crate::error::SubmitError;
use crate::lane_request::{Constraint, LogprobBoard};

/// What a client wants.
#[derive(Clone, Debug, Default)]
pub struct Submission {
    /// Prompt tokens, at least one.
    pub prompt: Vec<TokenId>,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Tokens to generate at most, at least one.
    pub max_new_tokens: usize,
    /// Tokens that end the sequence; the one that does is not emitted.
    pub stop_tokens: Vec<TokenId>,
    /// What the client expects the output to be, or to resemble: proposed where it fits. Changes speed, never text.
    pub prediction: Vec<TokenId>,
    /// What the client wishes of its scheduling.
    pub handling: Handling,
    /// Where log-probabilities go, if they are wanted.
    pub logprobs: Option<Arc<LogprobBoard>>,
    /// What the output has to follow; its end tokens are to be among `stop_tokens`.
    pub constraint: Option<Arc<Constraint>>,
}

impl Submission {
    /// What can be checked before a request may touch a lane, of a model with `vocab` tokens.
    pub(crate) fn check(&self, vocab: usize) -> Result<(), SubmitError> {
        let invalid = |text: String| Err(SubmitError::Invalid(text));
        if let Err(error) = self.sampling.validate() {
            return invalid(error.to_string());
        }
        let unknown = |&&token: &&TokenId| token as usize >= vocab;
        if let Some(token) = self.prompt.iter().find(unknown) {
            return invalid(format!("prompt token {token} is not in the vocabulary of {vocab} entries"));
        }
        let mut biased = self.sampling.logit_bias.iter().map(|(token, _)| token);
        if let Some(token) = biased.find(unknown) {
            return invalid(format!("logit_bias token {token} is not in the vocabulary of {vocab} entries"));
        }
        Ok(())
    }
}
