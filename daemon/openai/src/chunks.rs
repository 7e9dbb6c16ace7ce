//! Completions and chats: whole, and as the chunks of a stream that ends with `[DONE]`.

use actix_web::web::{Bytes, BytesMut};
use faser_engine::TokenId;
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::answer::{Answer, Choice, Head, event, json_bytes};
use super::answer_usage::{Place, Usage};
use super::bounds::Shape;
use super::calls::{AnswerMessage, Message, Part};
use super::errors::ApiError;
use crate::random;
use crate::text_sequence::{Ending, TokenLogprob};

/// A completion, an answer of a chat, or a chunk of either.
#[derive(Serialize, ToSchema)]
pub(super) struct Generated {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    choices: Vec<GeneratedChoice>,
    /// In chunks null, unless it is asked for.
    #[schema(value_type = Usage)]
    usage: Option<Usage>,
    /// What it took, if `include_metrics` asks (docs/requests.md); of several choices it stands in each.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    metrics: Option<Value>,
    // A chat's alone.
    /// If `return_token_ids` asks.
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<u32>>,
}

// Of a completion it has a text, of a chat a message, or in a chunk what is new of that.
/// A choice.
#[derive(Default, Serialize, ToSchema)]
pub(super) struct GeneratedChoice {
    index: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(ignore)]
    delta: Option<Value>,
    #[schema(value_type = Option<Object>)]
    logprobs: Value,
    #[schema(value_type = String)]
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<AnswerMessage>,
    /// If `return_token_ids` asks.
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    metrics: Option<Value>,
}

impl GeneratedChoice {
    /// Nothing of this choice.
    fn of(index: usize) -> GeneratedChoice {
        GeneratedChoice { index: index as u32, ..GeneratedChoice::default() }
    }
}

/// The answer, and how its choices ended so far.
pub(super) struct Chunks {
    head: Head,
    id: String,
    endings: Vec<Ending>,
    /// Tokens of output that chunks have shown, here and where it began.
    shown: usize,
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
        let shown = head.received;
        Box::new(Chunks { head, id, endings: Vec::new(), shown, begun })
    }

    fn completes(&self) -> bool {
        self.head.tokens.shape == Shape::Completion
    }

    fn choice(&self, index: usize, choice: Choice) -> (GeneratedChoice, Ending) {
        let Choice { parts, ending } = choice;
        let (mut message, mut logprobs) = (Message::default(), Vec::new());
        for (part, of_part) in parts {
            message.take(part);
            logprobs.extend(of_part);
        }
        let mut choice = GeneratedChoice {
            logprobs: self.head.tokens.of_all(&logprobs),
            finish_reason: Some(ending.finish.name()),
            token_ids: self
                .head
                .token_ids
                .is_some()
                .then(|| ending.output.iter().skip(self.head.received).copied().collect()),
            metrics: self.head.metrics.metrics(Place::Choices, &ending),
            ..GeneratedChoice::of(index)
        };
        if self.completes() {
            choice.text = Some(message.content);
            choice.prompt_token_ids = self.prompt(index);
        } else {
            choice.message = Some(message.of_chat());
        }
        (choice, ending)
    }

    fn generated(
        &self,
        [of_completion, of_chat]: [&'static str; 2],
        choices: Vec<GeneratedChoice>,
        usage: Option<Usage>,
    ) -> Generated {
        Generated {
            id: self.id.clone(),
            object: if self.completes() { of_completion } else { of_chat },
            created: self.head.created,
            model: self.head.model.clone(),
            choices,
            usage,
            metrics: None,
            prompt_token_ids: None,
        }
    }

    fn chunk(&self, choices: Vec<GeneratedChoice>) -> Generated {
        let usage = self.head.usage_so_far.then(|| Usage::counts(self.head.prompt_tokens, self.shown));
        self.generated(["text_completion", "chat.completion.chunk"], choices, usage)
    }

    /// The ids of a choice's prompt, if they are wanted.
    fn prompt(&self, index: usize) -> Option<Vec<TokenId>> {
        self.head.token_ids.as_ref()?.get(index).map(|ids| ids.to_vec())
    }

    /// The ids of a chat's prompt, which all its choices have in common, if they are wanted.
    fn prompt_of_chat(&self) -> Option<Vec<TokenId>> {
        if self.completes() { None } else { self.prompt(0) }
    }

    /// Adds the ids of the tokens of a chunk, if they are wanted, and to a completion's first chunk those of its prompt.
    fn add_ids(&mut self, logprobs: &[TokenLogprob], choice: &mut GeneratedChoice) {
        let index = choice.index as usize;
        let first = self.begun.get_mut(index).is_some_and(|begun| !std::mem::replace(begun, true));
        if self.head.token_ids.is_some() {
            let ids = logprobs.iter().filter(|token| !token.echoed).map(|token| token.token);
            choice.token_ids = Some(ids.collect());
        }
        if first && self.completes() {
            choice.prompt_token_ids = self.prompt(index);
        }
    }

    /// What the answer took, if it stands beside its usage.
    fn metrics(&self, endings: &[Ending]) -> Option<Value> {
        let [only] = endings else { return None };
        self.head.metrics.metrics(Place::Answer, only)
    }
}

impl Answer for Chunks {
    fn whole(self: Box<Self>, choices: Vec<Choice>) -> Bytes {
        let all = choices.into_iter().enumerate().map(|(index, choice)| self.choice(index, choice));
        let (choices, endings): (Vec<GeneratedChoice>, Vec<Ending>) = all.unzip();
        let usage = Usage::of(self.head.prompt_tokens, endings.iter());
        let answer = self.generated(["text_completion", "chat.completion"], choices, Some(usage));
        let (metrics, prompt_token_ids) = (self.metrics(&endings), self.prompt_of_chat());
        json_bytes(&Generated { metrics, prompt_token_ids, ..answer })
    }

    fn opening(&mut self) -> Bytes {
        let mut bytes = BytesMut::new();
        if !self.completes() {
            let delta = Some(json!({"role": "assistant", "content": "", "refusal": null}));
            for index in 0..self.head.choices {
                let choice = GeneratedChoice { delta: delta.clone(), ..GeneratedChoice::of(index) };
                let prompt_token_ids = self.prompt_of_chat().filter(|_| index == 0);
                let chunk = Generated { prompt_token_ids, ..self.chunk(vec![choice]) };
                bytes.extend_from_slice(&event(&chunk));
            }
        }
        bytes.freeze()
    }

    fn part(&mut self, index: usize, part: Part, tokens: Vec<TokenLogprob>) -> Bytes {
        let logprobs = self.head.tokens.of(&tokens);
        self.shown += tokens.iter().filter(|token| !token.echoed).count();
        let (text, delta) = match part {
            Part::Content(text) if self.completes() => (Some(text), None),
            part => (None, Some(part.delta())),
        };
        let mut choice = GeneratedChoice { text, delta, logprobs, ..GeneratedChoice::of(index) };
        self.add_ids(&tokens, &mut choice);
        event(&self.chunk(vec![choice]))
    }

    fn end(&mut self, index: usize, ending: Ending) -> Bytes {
        let (text, delta) =
            if self.completes() { (Some(String::new()), None) } else { (None, Some(json!({}))) };
        let finish_reason = Some(ending.finish.name());
        let metrics = self.head.metrics.metrics(Place::Choices, &ending);
        let mut choice =
            GeneratedChoice { text, delta, finish_reason, metrics, ..GeneratedChoice::of(index) };
        self.add_ids(&[], &mut choice);
        let mut chunk = self.chunk(vec![choice]);
        if !self.head.usage_chunk {
            chunk.metrics = self.head.metrics.metrics(Place::Answer, &ending);
        }
        self.endings.push(ending);
        event(&chunk)
    }

    fn last(&mut self) -> Bytes {
        let mut bytes = BytesMut::new();
        if self.head.usage_chunk {
            let usage = Some(Usage::of(self.head.prompt_tokens, self.endings.iter()));
            let chunk = Generated { usage, metrics: self.metrics(&self.endings), ..self.chunk(Vec::new()) };
            bytes.extend_from_slice(&event(&chunk));
        }
        bytes.extend_from_slice(b"data: [DONE]\n\n");
        bytes.freeze()
    }

    fn broken(&mut self, err: &ApiError) -> Bytes {
        event(&err.body())
    }

    fn cut_off(&self, err: &ApiError) -> Bytes {
        event(&err.body())
    }
}
