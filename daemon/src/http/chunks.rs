//! Completions and chats: whole, and as the chunks of a stream that ends with `[DONE]`.

use actix_web::web::{Bytes, BytesMut};
use faser_engine::survival::Source;
use serde_json::{Value, json};

use super::answer::{Answer, Choice, Head, Shape, event};
use super::calls::{Message, Part};
use super::errors::ApiError;
use super::metrics::Place;
use crate::random;
use crate::sequence::{Ending, Told};

/// The answer, and how its choices ended so far.
pub(super) struct Chunks {
    head: Head,
    id: String,
    endings: Vec<Ending>,
}

impl Chunks {
    /// Of a completion or a chat, as the head's shape says.
    pub(super) fn answer(head: Head) -> Box<dyn Answer> {
        let prefix = match head.tokens.shape {
            Shape::Completion => "cmpl",
            _ => "chatcmpl",
        };
        let id = format!("{prefix}-{}", random::id());
        Box::new(Chunks { head, id, endings: Vec::new() })
    }

    fn completes(&self) -> bool {
        self.head.tokens.shape == Shape::Completion
    }

    fn choice(&self, index: usize, choice: Choice) -> (Value, Ending) {
        let Choice { parts, ending } = choice;
        let (mut message, mut told) = (Message::default(), Vec::new());
        for (part, of_part) in parts {
            message.take(part);
            told.extend(of_part);
        }
        let (finish, logprobs) = (ending.finish.name(), self.head.tokens.of(&told));
        let mut value = json!({"index": index, "logprobs": logprobs, "finish_reason": finish});
        if self.completes() {
            value["text"] = message.content.into();
        } else {
            value["message"] = message.json();
        }
        self.head.metrics.add(Place::Choices, &mut value, &ending);
        (value, ending)
    }

    fn chunk(&self, choices: &Value) -> Value {
        let object = if self.completes() { "text_completion" } else { "chat.completion.chunk" };
        json!({
            "id": self.id, "object": object, "created": self.head.created, "model": self.head.model,
            "choices": choices, "usage": null,
        })
    }

    /// The last chunk of a stream that asked for its usage; none if it did not.
    fn usage(&self) -> Option<Value> {
        let mut chunk = self.head.usage_chunk.then(|| self.chunk(&json!([])))?;
        chunk["usage"] = usage(self.head.prompt_tokens, self.endings.iter());
        if let [only] = self.endings.as_slice() {
            self.head.metrics.add(Place::Answer, &mut chunk, only);
        }
        Some(chunk)
    }
}

impl Answer for Chunks {
    fn whole(self: Box<Self>, choices: Vec<Choice>) -> Value {
        let object = if self.completes() { "text_completion" } else { "chat.completion" };
        let all = choices.into_iter().enumerate().map(|(index, choice)| self.choice(index, choice));
        let (choices, endings): (Vec<Value>, Vec<Ending>) = all.unzip();
        let mut answer = json!({
            "id": self.id, "object": object, "created": self.head.created, "model": self.head.model,
            "choices": choices, "usage": usage(self.head.prompt_tokens, endings.iter()),
        });
        if let [only] = endings.as_slice() {
            self.head.metrics.add(Place::Answer, &mut answer, only);
        }
        answer
    }

    fn opening(&mut self) -> Bytes {
        let mut bytes = BytesMut::new();
        if !self.completes() {
            let delta = json!({"role": "assistant", "content": "", "refusal": null});
            for index in 0..self.head.choices {
                let choice =
                    json!([{"index": index, "delta": delta, "logprobs": null, "finish_reason": null}]);
                bytes.extend_from_slice(&event(&self.chunk(&choice)));
            }
        }
        bytes.freeze()
    }

    fn part(&mut self, index: usize, part: Part, told: Vec<Told>) -> Bytes {
        let logprobs = self.head.tokens.of(&told);
        event(&self.chunk(&match part {
            Part::Content(text) if self.completes() => {
                json!([{"index": index, "text": text, "logprobs": logprobs, "finish_reason": null}])
            }
            part => {
                json!([{"index": index, "delta": part.delta(), "logprobs": logprobs, "finish_reason": null}])
            }
        }))
    }

    fn end(&mut self, index: usize, ending: Ending) -> Bytes {
        let finish = ending.finish.name();
        let mut choice = if self.completes() {
            json!({"index": index, "text": "", "logprobs": null, "finish_reason": finish})
        } else {
            json!({"index": index, "delta": {}, "logprobs": null, "finish_reason": finish})
        };
        self.head.metrics.add(Place::Choices, &mut choice, &ending);
        let mut chunk = self.chunk(&json!([choice]));
        if !self.head.usage_chunk {
            self.head.metrics.add(Place::Answer, &mut chunk, &ending);
        }
        self.endings.push(ending);
        event(&chunk)
    }

    fn last(&mut self) -> Bytes {
        let mut bytes = self.usage().map_or_else(Vec::new, |usage| event(&usage).to_vec());
        bytes.extend_from_slice(b"data: [DONE]\n\n");
        bytes.into()
    }

    fn broken(&mut self, err: &ApiError) -> Bytes {
        event(&err.body())
    }

    fn cut_off(&self, err: &ApiError) -> Bytes {
        event(&err.body())
    }
}

/// `usage` of a request: the sum over its sequences. Cached tokens are told when they are known of all; those of predictions of sequences
/// whose device did not run ahead of the end of the text.
pub(super) fn usage<'e>(prompt_tokens: usize, endings: impl Iterator<Item = &'e Ending> + Clone) -> Value {
    let completion_tokens: usize = endings.clone().map(|ending| ending.output.len()).sum();
    let exact = |ending: &Ending| ending.usage.filter(|usage| usage.output_tokens <= ending.output.len());
    let (accepted, all) = endings.clone().filter_map(exact).fold((0, 0), |(accepted, all), usage| {
        let predicted = usage.by_source[Source::Prediction];
        (accepted + predicted.accepted, all + predicted.proposed)
    });
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
