//! `resume` of a request: goes on with an output of which the client has a part already, from a daemon that died or broke the stream off.
//! What follows is what would have followed there, for a text depends on prompt, parameters and seed alone.

use std::sync::Arc;

use actix_web::web;
use faser_config::fields::{Fault, FieldError};
use faser_engine::TokenId;
use faser_models::Grammar;
use tokio::sync::Semaphore;

use super::errors::ApiError;
use crate::text_sequence::AT_ONCE;

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

/// Refuses tokens that the form of the output does not have. It waits for a place, for it may take a core for a while.
///
/// # Errors
/// 400: they do not follow it.
pub(super) async fn check_form(
    resume: &Resume,
    grammar: &Grammar,
    places: &Arc<Semaphore>,
) -> Result<(), ApiError> {
    // The last is drawn again.
    let Some((_, tokens)) = resume.tokens().split_last() else { return Ok(()) };
    let (tokens, mut matcher) = (tokens.to_vec(), grammar.matcher());
    // The thread keeps the place: it works on when the client is gone.
    let place = Arc::clone(places).acquire_owned().await.ok();
    let follows = web::block(move || {
        let _place = place;
        let turn = matcher.turn();
        // In between it is the turn of others who follow the same grammar.
        let ends = (AT_ONCE..tokens.len()).step_by(AT_ONCE).chain([tokens.len()]);
        ends.map(|end| &tokens[..end]).all(|tokens| {
            let _turn = turn.take();
            matcher.follows(tokens)
        })
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
