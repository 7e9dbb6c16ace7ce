//! Prompts as they are computed, and what answers repeat of them: that takes next to no time to make, unlike an output, so that it has bounds.

use std::sync::Arc;

use faser_config::fields::{Fault, FieldError};
use faser_engine::TokenId;

use super::bounds::Shape;
use super::errors::ApiError;
use super::params::{Choices, Parameters};
use super::resume::Resume;

/// Over all prompts and choices of a request: bytes of text, token ids, and log-probabilities, of which a place has those of the likeliest
/// tokens and its own.
const MAX_TEXT_BYTES: usize = 64 << 20;
const MAX_IDS: usize = 4 << 20;
const MAX_LOGPROBS: usize = 1 << 20;
/// A place counts as so many of them at least: it has a text, a name and an offset too.
const LEAST_LOGPROBS: usize = 4;

/// A prompt.
pub(super) struct Prompt {
    pub(super) ids: Arc<[TokenId]>,
    pub(super) echo: Echo,
}

/// What an answer begins with.
pub(super) enum Echo {
    Nothing,
    /// The prompt as it was sent, or as its tokens decode.
    Text(String),
    /// What its tokens decode to, which is not known yet.
    Tokens,
}

/// How much an answer repeats.
pub(super) struct Repeated {
    /// Which API the answer is of.
    shape: Shape,
    text_bytes: usize,
    ids: usize,
    logprobs: usize,
}

impl Repeated {
    /// Nothing, by an answer of this API.
    pub(super) fn by(shape: Shape) -> Repeated {
        Repeated { shape, text_bytes: 0, ids: 0, logprobs: 0 }
    }

    /// Ids of prompts that the answer lists.
    pub(super) fn ids(&self) -> usize {
        self.ids
    }

    /// Counts a prompt.
    ///
    /// # Errors
    /// 400: it is one too many.
    pub(super) fn add(&mut self, prompt: &Prompt, parameters: &Parameters) -> Result<(), ApiError> {
        let Choices(n) = parameters.n;
        let tokens = n * prompt.ids.len();
        let resumed = parameters.resume.as_ref().is_some_and(|resume| !Resume::tokens(resume).is_empty());
        if parameters.return_token_ids {
            // Choices of a chat have theirs in common.
            self.ids += if self.shape == Shape::Completion { tokens } else { prompt.ids.len() };
        }
        match (&prompt.echo, parameters.logprobs) {
            (Echo::Nothing, _) => {}
            (Echo::Text(text), None) => self.text_bytes += n * text.len(),
            // A client that goes on has them.
            (_, Some(top)) if !resumed => self.logprobs += tokens * (top + 1).max(LEAST_LOGPROBS),
            _ => {}
        }
        let bounds = [
            ("echo", "bytes of prompts", self.text_bytes, MAX_TEXT_BYTES),
            ("return_token_ids", "ids of prompts", self.ids, MAX_IDS),
            (
                "logprobs",
                "log-probabilities of prompts (a token has 4 at least)",
                self.logprobs,
                MAX_LOGPROBS,
            ),
        ];
        match bounds.into_iter().find(|(_, _, found, most)| found > most) {
            None => Ok(()),
            Some((field, what, found, most)) => {
                let problem = format!(
                    "asks for {found} {what} and more, over all prompts and choices; an answer has {most} at most: send fewer prompts at a \
                     time, or ask for less of each"
                );
                Err(FieldError::new(field, Fault::Value, problem).into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resume::Received;

    /// How many prompts of 1000 tokens and 100,000 bytes a completion takes, up to 5,000.
    fn taken(echo: fn() -> Echo, parameters: &Parameters) -> usize {
        taken_by(Shape::Completion, echo, parameters)
    }

    fn taken_by(shape: Shape, echo: fn() -> Echo, parameters: &Parameters) -> usize {
        let mut repeated = Repeated::by(shape);
        let prompt = Prompt { ids: vec![1; 1000].into(), echo: echo() };
        (0..5000).take_while(|_| repeated.add(&prompt, parameters).is_ok()).count()
    }

    #[test]
    fn what_is_repeated_has_bounds_and_what_is_not_has_none() {
        let text = || Echo::Text("x".repeat(100_000));
        let plain = Parameters { n: Choices(2), ..Parameters::default() };
        assert_eq!(taken(|| Echo::Nothing, &plain), 5000);
        assert_eq!(taken(text, &plain), MAX_TEXT_BYTES / 200_000);
        let ids = Parameters { return_token_ids: true, ..plain.clone() };
        assert_eq!(taken(|| Echo::Nothing, &ids), MAX_IDS / 2000);
        assert_eq!(taken_by(Shape::Chat, || Echo::Nothing, &ids), MAX_IDS / 1000);
        let scores = Parameters { logprobs: Some(9), ..plain.clone() };
        assert_eq!(taken(|| Echo::Nothing, &scores), 5000);
        assert_eq!(taken(|| Echo::Tokens, &scores), MAX_LOGPROBS / (2000 * 10));
        let alone = Parameters { logprobs: Some(0), ..plain };
        assert_eq!(taken(|| Echo::Tokens, &alone), MAX_LOGPROBS / (2000 * LEAST_LOGPROBS));
        let received = Received::Tokens(vec![1]);
        let resumed = Parameters { resume: Some(Resume { received, choice: 0 }), ..scores };
        assert_eq!(taken(|| Echo::Tokens, &resumed), 5000);
    }
}
