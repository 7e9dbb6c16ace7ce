//! Log-probabilities as the API has them: lists beside one another for completions, a list of objects for chats.

use std::sync::Arc;

use faser_actors::Logprobs;
use faser_engine::TokenId;
use faser_models::Tokenizer;
use serde_json::{Map, Value, json};

use super::bounds::Shape;
use crate::text_sequence::TokenLogprob;

/// What stands for a probability of 0: JSON has no infinity.
const IMPOSSIBLE: f32 = -9999.0;

/// How one answer shows them.
pub(super) struct LogprobShape {
    pub(super) shape: Shape,
    /// They are wanted: tokens may be listed without.
    pub(super) wanted: bool,
    /// Tokens are shown as `token_id:N`.
    pub(super) as_ids: bool,
    pub(super) tokenizer: Arc<Tokenizer>,
}

impl LogprobShape {
    /// Of some tokens of a choice, in a stream; null, or for a response an empty list, if there is nothing to show.
    pub(super) fn of(&self, tokens: &[TokenLogprob]) -> Value {
        match self.shape {
            Shape::Chat | Shape::Completion if tokens.is_empty() => Value::Null,
            _ => self.of_all(tokens),
        }
    }

    /// Of all tokens of a choice, if there are any; null, or for a response an empty list, if they are not wanted.
    pub(super) fn of_all(&self, tokens: &[TokenLogprob]) -> Value {
        match self.shape {
            Shape::Response => self.objects(tokens),
            _ if !self.wanted => Value::Null,
            Shape::Completion => self.lists(tokens),
            Shape::Chat => json!({"content": self.objects(tokens), "refusal": null}),
        }
    }

    fn objects(&self, tokens: &[TokenLogprob]) -> Value {
        tokens.iter().filter_map(|token| self.object(token)).collect()
    }

    fn lists(&self, tokens: &[TokenLogprob]) -> Value {
        let tops = tokens.iter().map(|token| match &token.logprobs {
            None => Value::Null,
            // The token itself is always among them.
            Some(Logprobs { token, logprob, top }) => {
                let all = top.iter().copied().chain([(*token, *logprob)]);
                Value::Object(all.map(|(id, value)| (self.key(id), number(value))).collect::<Map<_, _>>())
            }
        });
        let mut lists = Map::new();
        // Collected as they are: `json!` would copy each.
        let mut list = |name: &str, values: Value| lists.insert(name.to_owned(), values);
        list("tokens", tokens.iter().map(|token| self.key(token.token)).collect());
        list("token_logprobs", tokens.iter().map(own).collect());
        list("top_logprobs", tops.collect());
        list("text_offset", tokens.iter().map(|token| token.offset).collect());
        Value::Object(lists)
    }

    fn object(&self, token: &TokenLogprob) -> Option<Value> {
        let Logprobs { token, logprob, top } = token.logprobs.as_ref()?;
        let one = |id: TokenId, value: f32| {
            let bytes = self.tokenizer.token_bytes(id);
            json!({"token": self.text(id, &bytes), "logprob": number(value), "bytes": bytes})
        };
        let mut object = one(*token, *logprob);
        object["top_logprobs"] = top.iter().map(|(id, value)| one(*id, *value)).collect();
        Some(object)
    }

    fn text(&self, id: TokenId, bytes: &[u8]) -> String {
        if self.as_ids { format!("token_id:{id}") } else { String::from_utf8_lossy(bytes).into_owned() }
    }

    /// As [`LogprobShape::text`], but different tokens that are no text stay different, as they are keys.
    fn key(&self, id: TokenId) -> String {
        let bytes = self.tokenizer.token_bytes(id);
        match String::from_utf8(bytes) {
            Ok(text) if !self.as_ids => text,
            Err(error) if !self.as_ids => {
                let hex: String = error.as_bytes().iter().map(|byte| format!("\\x{byte:02x}")).collect();
                format!("bytes:{hex}")
            }
            _ => format!("token_id:{id}"),
        }
    }
}

fn own(token: &TokenLogprob) -> Value {
    token.logprobs.as_ref().map_or(Value::Null, |logprobs| number(logprobs.logprob))
}

fn number(logprob: f32) -> Value {
    json!(logprob.max(IMPOSSIBLE))
}
