//! The JSON of answers: whole ones and the chunks of streams, for completions and for chats.

use serde_json::{Value, json};

use super::calls::{Message, Part};
use super::logprobs::LogprobShape;
use crate::random;
use crate::sequence::{Ending, Finish, Told};

/// Which of the two shapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Completion,
    Chat,
}

/// One finished choice.
pub(super) struct Choice {
    pub(super) message: Message,
    /// What is told of its tokens, if that is wanted.
    pub(super) told: Vec<Told>,
    pub(super) ending: Ending,
}

/// What all parts of one answer have in common.
pub(super) struct Answer {
    tokens: LogprobShape,
    shape: Shape,
    id: String,
    created: u64,
    model: String,
}

impl Answer {
    pub(super) fn new(tokens: LogprobShape, model: &str, created: u64) -> Answer {
        let shape = tokens.shape;
        let prefix = match shape {
            Shape::Completion => "cmpl",
            Shape::Chat => "chatcmpl",
        };
        Answer { tokens, shape, id: format!("{prefix}-{}", random::id()), created, model: model.to_owned() }
    }

    /// The answer to a request that does not stream.
    pub(super) fn whole(&self, choices: &[Choice], usage: &Value) -> Value {
        let choice = |(index, choice): (usize, &Choice)| {
            let finish = choice.ending.finish.name();
            let logprobs = self.tokens.of(&choice.told);
            match self.shape {
                Shape::Completion => {
                    json!({"index": index, "text": choice.message.content, "logprobs": logprobs, "finish_reason": finish})
                }
                Shape::Chat => json!({
                    "index": index, "logprobs": logprobs, "finish_reason": finish,
                    "message": choice.message.json(),
                }),
            }
        };
        let object = match self.shape {
            Shape::Completion => "text_completion",
            Shape::Chat => "chat.completion",
        };
        let choices: Vec<Value> = choices.iter().enumerate().map(choice).collect();
        json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model,
            "choices": choices, "usage": usage,
        })
    }

    /// What a stream begins with, before there is any text.
    pub(super) fn opening(&self, index: usize) -> Option<Value> {
        let delta = json!({"role": "assistant", "content": "", "refusal": null});
        (self.shape == Shape::Chat).then(|| {
            self.chunk(&json!([{"index": index, "delta": delta, "logprobs": null, "finish_reason": null}]))
        })
    }

    /// More of one choice, and what is told of the tokens that came with it.
    pub(super) fn part(&self, index: usize, part: &Part, told: &[Told]) -> Value {
        let logprobs = self.tokens.of(told);
        self.chunk(&match (self.shape, part) {
            (Shape::Completion, Part::Content(text)) => {
                json!([{"index": index, "text": text, "logprobs": logprobs, "finish_reason": null}])
            }
            (_, part) => {
                json!([{"index": index, "delta": part.delta(), "logprobs": logprobs, "finish_reason": null}])
            }
        })
    }

    /// The end of one choice.
    pub(super) fn end(&self, index: usize, finish: Finish) -> Value {
        let finish = finish.name();
        self.chunk(&match self.shape {
            Shape::Completion => {
                json!([{"index": index, "text": "", "logprobs": null, "finish_reason": finish}])
            }
            Shape::Chat => json!([{"index": index, "delta": {}, "logprobs": null, "finish_reason": finish}]),
        })
    }

    /// The last chunk of a stream that asked for its usage.
    pub(super) fn usage(&self, usage: Value) -> Value {
        let mut chunk = self.chunk(&json!([]));
        if let Value::Object(map) = &mut chunk {
            map.insert("usage".to_owned(), usage);
        }
        chunk
    }

    fn chunk(&self, choices: &Value) -> Value {
        let object = match self.shape {
            Shape::Completion => "text_completion",
            Shape::Chat => "chat.completion.chunk",
        };
        json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model,
            "choices": choices, "usage": null,
        })
    }
}

/// `usage` of a request: the sum over its sequences. Cached tokens are told when they are known of all.
pub(super) fn usage<'e>(prompt_tokens: usize, endings: impl Iterator<Item = &'e Ending> + Clone) -> Value {
    let completion_tokens: usize = endings.clone().map(|ending| ending.output.len()).sum();
    let known = endings.clone().filter_map(|ending| ending.usage);
    let (accepted, all) = known
        .fold((0, 0), |(accepted, all), usage| (accepted + usage.predicted_accepted, all + usage.predicted));
    let cached: Option<usize> = endings.map(|ending| ending.usage.map(|usage| usage.cached_tokens)).sum();
    let mut usage = json!({
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    });
    if let (Some(cached), Value::Object(map)) = (cached, &mut usage) {
        map.insert("prompt_tokens_details".to_owned(), json!({"cached_tokens": cached}));
    }
    if let (1.., Value::Object(map)) = (all, &mut usage) {
        let details =
            json!({"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": all - accepted});
        map.insert("completion_tokens_details".to_owned(), details);
    }
    usage
}
