//! What a client wants of the service, what is refused before anybody is asked, and what of it lanes have to know and the engine does not: how
//! tokens are drawn, and where their log-probabilities go.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use faser_engine::{Handling, TokenId};
use faser_kernels::Sampling;
use faser_kernels::sampling::Logprobs;
use faser_models::Grammar;

use crate::error::SubmitError;

/// What a client wants.
#[derive(Clone, Debug, Default)]
pub struct Submission {
    /// Prompt tokens, at least one.
    pub prompt: Vec<TokenId>,
    /// What was emitted for it elsewhere, without a stop token: it is computed again, and not emitted again.
    pub output: Vec<TokenId>,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Tokens to generate at most, those of `output` among them; more than that has.
    pub max_new_tokens: usize,
    /// Tokens that end the sequence; the one that does is not emitted.
    pub stop_tokens: Vec<TokenId>,
    /// What the client expects the output to be, or to resemble: proposed where it fits. Changes speed, never text.
    pub prediction: Vec<TokenId>,
    /// What the client wishes of its scheduling.
    pub handling: Handling,
    /// Where log-probabilities go, if they are wanted.
    pub logprobs: Option<Arc<LogprobCollector>>,
    /// What the output has to follow; its end tokens are to be among `stop_tokens`.
    pub constraint: Option<Arc<Constraint>>,
    /// Nobody looks at the output before it is whole: behind its first tokens, whoever waits for more is woken for many of them at once.
    pub whole: bool,
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
        if let Some(token) = self.output.iter().find(unknown) {
            return invalid(format!("output token {token} is not in the vocabulary of {vocab} entries"));
        }
        if let Some(token) = self.prediction.iter().find(unknown) {
            return invalid(format!("predicted token {token} is not in the vocabulary of {vocab} entries"));
        }
        let mut biased = self.sampling.logit_bias.iter().map(|(token, _)| token);
        if let Some(token) = biased.find(unknown) {
            return invalid(format!("logit_bias token {token} is not in the vocabulary of {vocab} entries"));
        }
        Ok(())
    }
}

/// How a request's tokens are drawn, and what else is wanted of it.
#[derive(Clone, Debug, Default)]
pub struct LaneRequest {
    /// How they are drawn.
    pub sampling: Arc<Sampling>,
    /// Where log-probabilities go, if they are wanted.
    pub logprobs: Option<Arc<LogprobCollector>>,
    /// What the output has to follow.
    pub constraint: Option<Arc<Constraint>>,
}

impl From<Sampling> for LaneRequest {
    fn from(sampling: Sampling) -> LaneRequest {
        LaneRequest { sampling: Arc::new(sampling), ..LaneRequest::default() }
    }
}

/// The grammar of one request. Both lanes draw among what it allows, each with a matcher of its own.
#[derive(Debug)]
pub struct Constraint {
    /// None on a node that hears of the first rank what it allows.
    grammar: Option<Grammar>,
    failure: OnceLock<String>,
}

impl Constraint {
    /// For one request.
    pub fn new(grammar: Grammar) -> Constraint {
        Constraint { grammar: Some(grammar), failure: OnceLock::new() }
    }

    /// Of a request whose grammar the first rank of the group has, on another node.
    pub(crate) fn elsewhere() -> Constraint {
        Constraint { grammar: None, failure: OnceLock::new() }
    }

    /// Why the verify lane could not follow the grammar to its end: then it ended the output, which is not what the grammar wants.
    pub fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    pub(crate) fn grammar(&self) -> Option<&Grammar> {
        self.grammar.as_ref()
    }

    pub(crate) fn failed(&self, reason: String) {
        // Only the first reason is of interest.
        let _ = self.failure.set(reason);
    }
}

/// The log-probabilities of one request, by the position of their tokens. The verify lane puts them here before it returns the tokens, so
/// whoever has a token finds them. They are a function of the tokens before, so what is computed again is the same again.
///
/// Bounded by the request's tokens, times the likeliest tokens wanted of each; what was taken is gone.
#[derive(Debug)]
pub struct LogprobCollector {
    top: usize,
    prompt: Option<Arc<[TokenId]>>,
    collected: Mutex<BTreeMap<usize, Logprobs>>,
}

impl LogprobCollector {
    /// For the tokens of an output, with the `top` likeliest tokens in each place.
    pub fn of_output(top: usize) -> LogprobCollector {
        LogprobCollector { top, prompt: None, collected: Mutex::default() }
    }

    /// As [`LogprobCollector::of_output`], and for all tokens of this prompt but the first, which nothing predicts.
    pub fn with_prompt(top: usize, prompt: Arc<[TokenId]>) -> LogprobCollector {
        LogprobCollector { prompt: Some(prompt), ..LogprobCollector::of_output(top) }
    }

    /// Takes the log-probabilities of the token at a position; none before that token is emitted.
    pub fn take(&self, position: usize) -> Option<Logprobs> {
        self.collected().remove(&position)
    }

    /// What is wanted, for a rank on another node: how many of the likeliest tokens, and the prompt whose tokens are.
    pub(crate) fn wanted(&self) -> (usize, Option<Arc<[TokenId]>>) {
        (self.top, self.prompt.clone())
    }

    /// How many of the likeliest tokens are wanted.
    pub(crate) fn top(&self) -> usize {
        self.top
    }

    /// Whether the prompt's tokens are wanted too.
    pub(crate) fn wants_prompt(&self) -> bool {
        self.prompt.is_some()
    }

    /// The token of the prompt at a position, if its log-probabilities are wanted.
    pub(crate) fn of_prompt(&self, position: usize) -> Option<TokenId> {
        self.prompt.as_ref()?.get(position).copied()
    }

    pub(crate) fn put(&self, position: usize, logprobs: Logprobs) {
        self.collected().insert(position, logprobs);
    }

    fn collected(&self) -> MutexGuard<'_, BTreeMap<usize, Logprobs>> {
        // Each entry is whole whatever panicked while it was held.
        self.collected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
