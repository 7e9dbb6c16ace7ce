//! What every kind of answer can do: be written whole, or as the events of a stream.

use std::sync::Arc;

use actix_web::web::Bytes;
use faser_engine::TokenId;
use serde::Serialize;

use super::answer_usage::Place;
use super::calls::Part;
use super::errors::ApiError;
use super::logprob_shapes::LogprobShape;
use crate::text_sequence::{Ending, TokenLogprob};

/// One finished choice.
pub(super) struct Choice {
    /// Its parts in their order, each with the log-probabilities of the tokens that came with it.
    pub(super) parts: Vec<(Part, Vec<TokenLogprob>)>,
    pub(super) ending: Ending,
}

impl Choice {
    /// About what it takes in an answer: most of it are its log-probabilities.
    pub(super) fn rough_bytes(&self) -> usize {
        // One in an object, as chats have them, takes some 90 bytes, and in a list a third.
        let tokens = |token: &TokenLogprob| 96 * (2 + token.logprobs.as_ref().map_or(0, |all| all.top.len()));
        self.parts
            .iter()
            .map(|(part, listed)| part.text().len() + listed.iter().map(tokens).sum::<usize>())
            .sum()
    }
}

/// What is known of an answer before there is any of it.
pub(super) struct Head {
    pub(super) tokens: LogprobShape,
    /// The model's name, as the request has it.
    pub(super) model: String,
    /// Unix time in seconds.
    pub(super) created: u64,
    pub(super) metrics: Place,
    /// Whether a stream ends with a chunk of its usage.
    pub(super) usage_chunk: bool,
    /// Whether each chunk says what was used so far.
    pub(super) usage_so_far: bool,
    /// The prompt of each choice, if tokens are named by their ids.
    pub(super) token_ids: Option<Vec<Arc<[TokenId]>>>,
    pub(super) choices: usize,
    pub(super) prompt_tokens: usize,
    /// Tokens of output that the client had before.
    pub(super) received: usize,
}

/// An answer being written.
pub(super) trait Answer: Send {
    /// The answer to a request that does not stream.
    fn whole(self: Box<Self>, choices: Vec<Choice>) -> Bytes;

    /// What a stream begins with, before there is any text.
    fn opening(&mut self) -> Bytes;

    /// More of choice `index`, and the log-probabilities of the tokens that came with it.
    fn part(&mut self, index: usize, part: Part, logprobs: Vec<TokenLogprob>) -> Bytes;

    /// The end of choice `index`.
    fn end(&mut self, index: usize, ending: Ending) -> Bytes;

    /// What a stream ends with.
    fn last(&mut self) -> Bytes;

    /// What a stream that breaks ends with.
    fn broken(&mut self, err: &ApiError) -> Bytes;

    /// The same for a client that has stopped reading, whose stream is cut off wherever it is by then.
    fn cut_off(&self, err: &ApiError) -> Bytes;
}

/// One server-sent event without a name. JSON has no line breaks of its own, so it is one line.
pub(super) fn event(data: &impl Serialize) -> Bytes {
    let mut event = b"data: ".to_vec();
    write_json(data, &mut event);
    event.extend_from_slice(b"\n\n");
    event.into()
}

/// The JSON of an answer.
pub(super) fn json_bytes(data: &impl Serialize) -> Bytes {
    let mut bytes = Vec::new();
    write_json(data, &mut bytes);
    bytes.into()
}

fn write_json(data: &impl Serialize, to: &mut Vec<u8>) {
    // All keys are strings, and memory takes everything: nothing can go wrong.
    serde_json::to_writer(to, data).ok();
}
