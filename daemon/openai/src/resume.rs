//! `resume` of a request: goes on with an output of which the client has a part already, from a daemon that died or broke the stream off.
//! What follows is what would have followed there, for a text depends on prompt, parameters and seed alone.

use actix_web::web;
use faser_config::fields::{Fault, FieldError, Fields};
use faser_engine::TokenId;
use faser_models::Grammar;

use super::bounds::{Bounds, Shape};
use super::errors::ApiError;
use super::params::{Choices, MAX_CHOICES, Parameters, token_id, token_ids};

pub(crate) const RESUME: &str = "resume";

/// An output that goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resume {
    /// What the client has of it.
    pub received: Received,
    /// Which choice of its prompt it is.
    pub choice: usize,
}

/// What a client has of an output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// Its first tokens: they are computed again, in one go, and not drawn again.
    Tokens(Vec<TokenId>),
    /// The beginning of its text, from which its tokens cannot be told: it is written again, as a prediction of itself, and not shown again.
    Text(String),
}

impl Resume {
    /// The tokens that the client has.
    pub fn tokens(&self) -> &[TokenId] {
        match &self.received {
            Received::Tokens(tokens) => tokens,
            Received::Text(_) => &[],
        }
    }

    /// The text that the client has, if that is what it says.
    pub fn text(&self) -> Option<&str> {
        match &self.received {
            Received::Tokens(_) => None,
            Received::Text(text) => Some(text),
        }
    }
}

/// Reads it; responses have none.
///
/// # Errors
/// It is wrong, or cannot be had with another field.
pub(super) fn resume(
    fields: &mut Fields<'_>,
    shape: Shape,
    bounds: &Bounds<'_>,
    parameters: &Parameters,
) -> Result<Option<Resume>, FieldError> {
    if shape == Shape::Response {
        let elsewhere = "a response is begun anew: send it again with the same `seed`";
        fields.neutral(RESUME, &[], elsewhere)?;
        return Ok(None);
    }
    let about = "Goes on with an output of which the client has a part already.";
    let resume = fields.within((RESUME, about), "Resume", |resume| {
        let ids = ("token_ids", "The tokens that the client has of it, as `return_token_ids` told them.");
        let ids = match resume.list_of(ids, token_id)? {
            Some(ids) => {
                let path = resume.path("token_ids");
                Some(token_ids(&path, ids, bounds.vocab, bounds.max_context)?)
            }
            None => None,
        };
        let text = resume.text(("text", "In place of them: the text that the client has of it."))?;
        let about = "Which choice of its prompt it is, as `index` told, from 0.";
        let choice = resume.size(("choice", about), 0..=MAX_CHOICES - 1)?.unwrap_or(0);
        let received = match (ids, text) {
            (Some(_), Some(_)) => return Err(resume.wrong("text", "and `token_ids` exclude one another")),
            (_, Some(text)) => Received::Text(text.to_owned()),
            (ids, None) => Received::Tokens(ids.unwrap_or_default()),
        };
        Ok(Resume { received, choice })
    })?;
    let Some(resume) = resume else { return Ok(None) };
    let seeded = fields.value("seed").is_some();
    let tells_tokens = parameters.lists_tokens() || parameters.logprobs.is_some();
    for (wrong, problem) in [
        (
            !seeded && !parameters.sampling.is_greedy(),
            "needs the `seed` that the output was begun with: the header `x-seed` of its answer says it",
        ),
        (
            parameters.n != Choices(1),
            "is of one choice: send a request for each with \"n\": 1 and its `resume.choice`",
        ),
        (parameters.max_new_tokens == Some(0), "needs a `max_tokens` above 0: that of the whole output"),
        (
            resume.text().is_some() && tells_tokens,
            "of a text cannot be had where tokens are told one by one: give `resume.token_ids`",
        ),
    ] {
        if wrong {
            return Err(fields.wrong(RESUME, problem));
        }
    }
    Ok(Some(resume))
}

/// Refuses tokens that the form of the output does not have.
///
/// # Errors
/// 400: they do not follow it.
pub(super) async fn check_form(resume: &Resume, grammar: &Grammar) -> Result<(), ApiError> {
    // The last is drawn again.
    let Some((_, tokens)) = resume.tokens().split_last() else { return Ok(()) };
    let (tokens, mut matcher) = (tokens.to_vec(), grammar.matcher());
    let follows = web::block(move || {
        let turn = matcher.turn();
        let _turn = turn.take();
        matcher.follows(&tokens)
    });
    match follows.await {
        Ok(true) => Ok(()),
        Ok(false) => {
            let problem = "do not follow the form of the output: they are of another request";
            Err(FieldError::new(format!("{RESUME}.token_ids"), Fault::Value, problem).into())
        }
        Err(err) => Err(ApiError::internal(err.to_string(), "internal_error")),
    }
}
