//! Completions and chats: whole, and as the chunks of a stream that ends with `[DONE]`.

use std::sync::Arc;

use actix_web::web::{Bytes, BytesMut};
use faser_engine::TokenId;
use serde_json::{Value, json};

use super::answer::{Answer, Choice, Head, event};
use super::bounds::Shape;
use super::calls::{Message, Part};
use super::errors::ApiError;
use super::usage::{Place, counts, usage};
use crate::random;
use crate::sequence::{Ending, Told};

/// The answer, and how its choices ended so far.
pub(super) struct Chunks {
    head: Head,
    id: String,
    endings: Vec<Ending>,
    /// Tokens of output that chunks have told of.
    told: usize,
    /// Choices of which a stream has said something.
    begun: Vec<bool>,
}

impl Chunks {
    /// Of a completion or a chat, as the head's shape says.
    pub(super) fn answer(head: Head) -> Box<dyn Answer> {
        let prefix = match head.tokens.shape {
            Shape::Completion => "cmpl",
            _ => "chatcmpl",
        };
        let id = format!("{prefix}-{}", random::id());
        let begun = vec![false; head.choices];
        Box::new(Chunks { head, id, endings: Vec::new(), told: 0, begun })
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
        if let Some(prompts) = &self.head.token_ids {
            value["token_ids"] = ending.output.clone().into();
            if self.completes() {
                value["prompt_token_ids"] = ids(prompts.get(index));
            }
        }
        self.head.metrics.add(Place::Choices, &mut value, &ending);
        (value, ending)
    }

    fn chunk(&self, choices: &Value) -> Value {
        let object = if self.completes() { "text_completion" } else { "chat.completion.chunk" };
        let usage = self.head.usage_so_far.then(|| counts(self.head.prompt_tokens, self.told));
        json!({
            "id": self.id, "object": object, "created": self.head.created, "model": self.head.model,
            "choices": choices, "usage": usage,
        })
    }

    /// Adds the ids of the tokens that a chunk tells of, if they are wanted, and to a completion's first chunk those of its prompt.
    fn add_ids(&mut self, index: usize, told: &[Told], choice: &mut Value) {
        let first = self.begun.get_mut(index).is_some_and(|begun| !std::mem::replace(begun, true));
        let Some(prompts) = &self.head.token_ids else { return };
        choice["token_ids"] = told.iter().filter(|told| !told.echoed).map(|told| told.token).collect();
        if first && self.completes() {
            choice["prompt_token_ids"] = ids(prompts.get(index));
        }
    }

    /// Adds the ids of a chat's prompt, which all its choices have in common.
    fn add_prompt(&self, answer: &mut Value) {
        if let (false, Some(prompts)) = (self.completes(), &self.head.token_ids) {
            answer["prompt_token_ids"] = ids(prompts.first());
        }
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

fn ids(tokens: Option<&Arc<[TokenId]>>) -> Value {
    tokens.map_or(Value::Null, |tokens| tokens.to_vec().into())
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
        self.add_prompt(&mut answer);
        answer
    }

    fn opening(&mut self) -> Bytes {
        let mut bytes = BytesMut::new();
        if !self.completes() {
            let delta = json!({"role": "assistant", "content": "", "refusal": null});
            for index in 0..self.head.choices {
                let choice =
                    json!([{"index": index, "delta": delta, "logprobs": null, "finish_reason": null}]);
                let mut chunk = self.chunk(&choice);
                if index == 0 {
                    self.add_prompt(&mut chunk);
                }
                bytes.extend_from_slice(&event(&chunk));
            }
        }
        bytes.freeze()
    }

    fn part(&mut self, index: usize, part: Part, told: Vec<Told>) -> Bytes {
        let logprobs = self.head.tokens.of(&told);
        self.told += told.iter().filter(|told| !told.echoed).count();
        let mut choice = match part {
            Part::Content(text) if self.completes() => {
                json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": null})
            }
            part => {
                json!({"index": index, "delta": part.delta(), "logprobs": logprobs, "finish_reason": null})
            }
        };
        self.add_ids(index, &told, &mut choice);
        event(&self.chunk(&json!([choice])))
    }

    fn end(&mut self, index: usize, ending: Ending) -> Bytes {
        let finish = ending.finish.name();
        let mut choice = if self.completes() {
            json!({"index": index, "text": "", "logprobs": null, "finish_reason": finish})
        } else {
            json!({"index": index, "delta": {}, "logprobs": null, "finish_reason": finish})
        };
        self.add_ids(index, &[], &mut choice);
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
