//! What a client hands in.

use std::sync::Arc;

use faser_engine::TokenId;
use faser_kernels::Sampling;

use crate::lane_request::LogprobBoard;

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
    /// Cap on the speculative length; 0 switches speculation off for this request.
    pub k_max: Option<usize>,
    /// Where log-probabilities go, if they are wanted.
    pub logprobs: Option<Arc<LogprobBoard>>,
}
