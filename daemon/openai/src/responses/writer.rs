//! The answer: an object `response`, or the events that build it up in a client.

use actix_web::web::{Bytes, BytesMut};
use faser_models::GenerationDefaults;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::answer::{Answer, Choice, Head, json_bytes};
use crate::answer_usage::{Place, Usage};
use crate::calls::Part;
use crate::errors::ApiError;
use crate::random;
use crate::text_sequence::{Ending, Finish, TokenLogprob};

/// A response.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub(crate) struct Response {
    id: String,
    object: &'static str,
    created_at: u64,
    status: &'static str,
    background: bool,
    #[schema(value_type = Option<Object>)]
    error: Option<Value>,
    #[schema(value_type = Option<Object>)]
    incomplete_details: Option<Value>,
    max_tool_calls: Option<u64>,
    model: String,
    #[schema(value_type = Vec<Object>)]
    output: Vec<Value>,
    previous_response_id: Option<String>,
    service_tier: &'static str,
    store: bool,
    truncation: &'static str,
    #[schema(value_type = Option<Object>)]
    usage: Option<Value>,
    instructions: Option<String>,
    max_output_tokens: Option<u64>,
    #[schema(value_type = Object)]
    metadata: Map<String, Value>,
    parallel_tool_calls: bool,
    prompt_cache_key: Option<String>,
    #[schema(value_type = Object)]
    reasoning: Map<String, Value>,
    safety_identifier: Option<String>,
    #[schema(value_type = f64)]
    temperature: Value,
    #[schema(value_type = Object)]
    text: Map<String, Value>,
    tool_choice: AnsweredChoice,
    #[schema(value_type = Vec<Object>)]
    tools: Vec<Value>,
    top_logprobs: u64,
    #[schema(value_type = f64)]
    top_p: Value,
    user: Option<String>,
    /// What it took, if `include_metrics` asks (docs/requests.md).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    metrics: Option<Value>,
}

/// A word, or an object.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(untagged)]
enum AnsweredChoice {
    Mode(String),
    #[schema(value_type = Object)]
    Functions(Map<String, Value>),
}

impl Default for AnsweredChoice {
    fn default() -> AnsweredChoice {
        AnsweredChoice::Mode("auto".to_owned())
    }
}

impl Response {
    /// Only what it repeats of the request, the defaults filled in.
    pub(super) fn repeating(body: &Map<String, Value>, defaults: GenerationDefaults) -> Response {
        fn given<T: DeserializeOwned>(body: &Map<String, Value>, name: &str) -> Option<T> {
            body.get(name).and_then(|value| T::deserialize(value).ok())
        }
        // As it is written: the nearest f64 has more digits.
        let number = |name, default: Option<f32>| {
            let default = || json!(default.map_or(Some(1.0), |value| value.to_string().parse::<f64>().ok()));
            body.get(name).filter(|value| !value.is_null()).cloned().unwrap_or_else(default)
        };
        let object = |name| given::<Map<String, Value>>(body, name).unwrap_or_default();
        let (mut text, mut reasoning) = (object("text"), object("reasoning"));
        text.entry("format").or_insert_with(|| json!({"type": "text"}));
        for name in ["effort", "summary"] {
            reasoning.entry(name).or_insert(Value::Null);
        }
        Response {
            instructions: given(body, "instructions"),
            max_output_tokens: given(body, "max_output_tokens"),
            metadata: object("metadata"),
            parallel_tool_calls: given(body, "parallel_tool_calls").unwrap_or(true),
            prompt_cache_key: given(body, "prompt_cache_key"),
            reasoning,
            safety_identifier: given(body, "safety_identifier"),
            temperature: number("temperature", defaults.temperature),
            text,
            tool_choice: given(body, "tool_choice").unwrap_or_default(),
            tools: given(body, "tools").unwrap_or_default(),
            top_logprobs: given(body, "top_logprobs").unwrap_or_default(),
            top_p: number("top_p", defaults.top_p),
            user: given(body, "user"),
            ..Response::default()
        }
    }
}

/// A response, as far as it has come.
pub(super) struct Writer {
    head: Head,
    id: String,
    echoed: Response,
    /// Finished items.
    output: Vec<Value>,
    open: Option<Item>,
    /// Tokens whose text is held back.
    pending: Vec<TokenLogprob>,
    ending: Option<Ending>,
    events: Events,
}

impl Writer {
    /// Nothing of it yet; `echoed` is what it repeats of the request.
    pub(super) fn answer(head: Head, echoed: Response) -> Box<dyn Answer> {
        Box::new(Writer {
            head,
            id: format!("resp_{}", random::id()),
            echoed,
            output: Vec::new(),
            open: None,
            pending: Vec::new(),
            ending: None,
            events: Events::default(),
        })
    }

    fn take(&mut self, part: Part, logprobs: Vec<TokenLogprob>) {
        self.pending.extend(logprobs);
        match part {
            Part::Content(text) => {
                if text.is_empty() {
                    return;
                }
                let logprobs = self.head.tokens.of(&std::mem::take(&mut self.pending));
                if !self.open.as_ref().is_some_and(Item::is_message) {
                    self.close("completed");
                }
                let (index, events) = (self.output.len(), &mut self.events);
                let message = self.open.get_or_insert_with(|| Item::message(index, events));
                message.extend(&text, &logprobs, &mut self.events);
            }
            Part::Reasoning(text) => {
                self.pending.clear();
                if text.is_empty() {
                    return;
                }
                if !self.open.as_ref().is_some_and(Item::is_reasoning) {
                    self.close("completed");
                }
                let (index, events) = (self.output.len(), &mut self.events);
                let item = self.open.get_or_insert_with(|| Item::reasoning(index, events));
                item.extend(&text, &Value::Null, &mut self.events);
            }
            Part::Call { id, name, .. } => {
                self.close("completed");
                self.pending.clear();
                self.open = Some(Item::call(self.output.len(), id, name, &mut self.events));
            }
            Part::Arguments { text, .. } => {
                self.pending.clear();
                if let Some(call) = &mut self.open {
                    call.extend(&text, &Value::Null, &mut self.events);
                }
            }
        }
    }

    fn close(&mut self, status: &str) {
        if let Some(item) = self.open.take() {
            self.output.push(item.finish(status, &mut self.events));
        }
    }

    fn finish(&mut self, ending: Ending) {
        if self.open.is_none() && self.output.is_empty() {
            self.open = Some(Item::message(0, &mut self.events));
        }
        let cut = ending.finish == Finish::Length || self.open.as_ref().is_some_and(Item::is_cut_call);
        self.close(if cut { "incomplete" } else { "completed" });
        self.ending = Some(ending);
    }

    fn status(&self) -> &'static str {
        match self.ending.as_ref().map(|ending| ending.finish) {
            None => "in_progress",
            Some(Finish::Length) => "incomplete",
            Some(Finish::Stop | Finish::ToolCalls) => "completed",
        }
    }

    /// The response as it is.
    fn response(&self, error: Option<Value>) -> Response {
        let status = if error.is_none() { self.status() } else { "failed" };
        Response {
            id: self.id.clone(),
            object: "response",
            created_at: self.head.created,
            status,
            error,
            incomplete_details: (status == "incomplete").then(|| json!({"reason": "max_output_tokens"})),
            model: self.head.model.clone(),
            output: self.output.clone(),
            service_tier: "default",
            truncation: "disabled",
            usage: self.ending.as_ref().map(|ending| self.usage(ending)),
            metrics: self.ending.as_ref().and_then(|ending| self.head.metrics.metrics(Place::Answer, ending)),
            ..self.echoed.clone()
        }
    }

    /// `usage` in the words of this API. What nobody knows of the cache is 0, as the field has to be there.
    fn usage(&self, ending: &Ending) -> Value {
        let usage = Usage::of(self.head.prompt_tokens, std::iter::once(ending));
        let cached = usage.prompt_tokens_details.unwrap_or_else(|| json!({"cached_tokens": 0}));
        json!({
            "input_tokens": usage.prompt_tokens, "input_tokens_details": cached,
            "output_tokens": usage.completion_tokens, "output_tokens_details": {"reasoning_tokens": ending.reasoning_tokens.unwrap_or(0)},
            "total_tokens": usage.total_tokens,
        })
    }

    /// An event that has all of it.
    fn push(&mut self, name: &str, error: Option<Value>) {
        let response = json!(self.response(error));
        self.events.push(name, json!({"response": response}));
    }
}

impl Answer for Writer {
    fn whole(mut self: Box<Self>, choices: Vec<Choice>) -> Bytes {
        for Choice { parts, ending } in choices {
            for (part, logprobs) in parts {
                self.take(part, logprobs);
                self.events.bytes.clear();
            }
            self.finish(ending);
        }
        json_bytes(&self.response(None))
    }

    fn opening(&mut self) -> Bytes {
        for name in ["response.created", "response.in_progress"] {
            self.push(name, None);
        }
        self.events.written()
    }

    fn part(&mut self, _index: usize, part: Part, logprobs: Vec<TokenLogprob>) -> Bytes {
        self.take(part, logprobs);
        self.events.written()
    }

    fn end(&mut self, _index: usize, ending: Ending) -> Bytes {
        self.finish(ending);
        self.events.written()
    }

    fn last(&mut self) -> Bytes {
        let name = if self.status() == "incomplete" { "response.incomplete" } else { "response.completed" };
        self.push(name, None);
        self.events.written()
    }

    fn broken(&mut self, err: &ApiError) -> Bytes {
        self.push("response.failed", Some(json!({"code": err.code, "message": err.message})));
        self.events.written()
    }

    fn cut_off(&self, err: &ApiError) -> Bytes {
        // Without its number, which nobody knows beforehand.
        let error = json!({"type": "error", "code": err.code, "message": err.message, "param": err.param});
        format!("event: error\ndata: {error}\n\n").into()
    }
}

/// An item of the output.
struct Item {
    /// Its place in the output.
    index: usize,
    id: String,
    kind: Kind,
}

enum Kind {
    Message { text: String, logprobs: Vec<Value> },
    Reasoning { text: String },
    Call { call_id: String, name: String, arguments: String },
}

impl Item {
    /// A message without text.
    fn message(index: usize, events: &mut Events) -> Item {
        let kind = Kind::Message { text: String::new(), logprobs: Vec::new() };
        Item::with_a_part("msg", index, kind, events)
    }

    /// Reasoning without text.
    fn reasoning(index: usize, events: &mut Events) -> Item {
        Item::with_a_part("rs", index, Kind::Reasoning { text: String::new() }, events)
    }

    fn with_a_part(prefix: &str, index: usize, kind: Kind, events: &mut Events) -> Item {
        let item = Item { index, id: format!("{prefix}_{}", random::id()), kind };
        events.push(
            "response.output_item.added",
            json!({"output_index": index, "item": item.json("in_progress")}),
        );
        events.push(
            "response.content_part.added",
            item.located(json!({"content_index": 0, "part": item.part()})),
        );
        item
    }

    /// A call without arguments.
    fn call(index: usize, call_id: String, name: String, events: &mut Events) -> Item {
        let kind = Kind::Call { call_id, name, arguments: String::new() };
        let item = Item { index, id: format!("fc_{}", random::id()), kind };
        events.push(
            "response.output_item.added",
            json!({"output_index": index, "item": item.json("in_progress")}),
        );
        item
    }

    fn is_message(&self) -> bool {
        matches!(self.kind, Kind::Message { .. })
    }

    fn is_reasoning(&self) -> bool {
        matches!(self.kind, Kind::Reasoning { .. })
    }

    /// A call that ended within its arguments, as by a stop string: they are no JSON.
    fn is_cut_call(&self) -> bool {
        let Kind::Call { arguments, .. } = &self.kind else { return false };
        !arguments.is_empty() && serde_json::from_str::<IgnoredAny>(arguments).is_err()
    }

    /// More text of a message with the log-probabilities of its tokens, more reasoning, or more arguments of a call.
    fn extend(&mut self, more: &str, new: &Value, events: &mut Events) {
        match &mut self.kind {
            Kind::Message { text, logprobs } => {
                text.push_str(more);
                if let Value::Array(new) = new {
                    logprobs.extend(new.iter().cloned());
                }
                let delta = json!({"content_index": 0, "delta": more, "logprobs": new});
                events.push("response.output_text.delta", self.located(delta));
            }
            Kind::Reasoning { text } => {
                text.push_str(more);
                let delta = json!({"content_index": 0, "delta": more});
                events.push("response.reasoning_text.delta", self.located(delta));
            }
            Kind::Call { arguments, .. } => {
                arguments.push_str(more);
                events.push("response.function_call_arguments.delta", self.located(json!({"delta": more})));
            }
        }
    }

    /// The end of the item; what it is then.
    fn finish(self, status: &str, events: &mut Events) -> Value {
        match &self.kind {
            Kind::Message { text, logprobs } => {
                let done = json!({"content_index": 0, "text": text, "logprobs": logprobs});
                events.push("response.output_text.done", self.located(done));
                let done = json!({"content_index": 0, "part": self.part()});
                events.push("response.content_part.done", self.located(done));
            }
            Kind::Reasoning { text } => {
                let done = json!({"content_index": 0, "text": text});
                events.push("response.reasoning_text.done", self.located(done));
                let done = json!({"content_index": 0, "part": self.part()});
                events.push("response.content_part.done", self.located(done));
            }
            Kind::Call { name, arguments, .. } => {
                let done = json!({"name": name, "arguments": arguments});
                events.push("response.function_call_arguments.done", self.located(done));
            }
        }
        let item = self.json(status);
        events.push("response.output_item.done", json!({"output_index": self.index, "item": item}));
        item
    }

    /// An event of this item.
    fn located(&self, mut data: Value) -> Value {
        data["item_id"] = self.id.as_str().into();
        data["output_index"] = self.index.into();
        data
    }

    fn part(&self) -> Value {
        match &self.kind {
            Kind::Message { text, logprobs } => {
                json!({"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs})
            }
            Kind::Reasoning { text } => json!({"type": "reasoning_text", "text": text}),
            Kind::Call { .. } => Value::Null,
        }
    }

    fn json(&self, status: &str) -> Value {
        // What has just begun has no part yet.
        let content = || if status == "in_progress" { json!([]) } else { json!([self.part()]) };
        match &self.kind {
            Kind::Message { .. } => {
                json!({"type": "message", "id": self.id, "status": status, "role": "assistant", "content": content()})
            }
            Kind::Reasoning { .. } => {
                json!({"type": "reasoning", "id": self.id, "status": status, "summary": [], "content": content()})
            }
            Kind::Call { call_id, name, arguments } => json!({
                "type": "function_call", "id": self.id, "call_id": call_id, "name": name,
                "arguments": arguments, "status": status,
            }),
        }
    }
}

/// Server-sent events with names, numbered from 0.
#[derive(Default)]
struct Events {
    bytes: BytesMut,
    number: usize,
}

impl Events {
    /// Writes one more.
    fn push(&mut self, name: &str, mut data: Value) {
        data["type"] = name.into();
        data["sequence_number"] = self.number.into();
        self.number += 1;
        self.bytes.extend_from_slice(format!("event: {name}\ndata: {data}\n\n").as_bytes());
    }

    /// Those that are not handed out yet.
    fn written(&mut self) -> Bytes {
        self.bytes.split().freeze()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use faser_models::Tokenizer;

    use super::*;
    use crate::bounds::Shape;
    use crate::logprob_shapes::LogprobShape;

    fn answer() -> Box<dyn Answer> {
        let tokenizer = Arc::new(Tokenizer::synthetic(300).unwrap());
        let tokens = LogprobShape { shape: Shape::Response, wanted: true, as_ids: false, tokenizer };
        let model = "m".to_owned();
        let (created, metrics) = (1, Place::Nowhere);
        let head = Head {
            tokens,
            model,
            created,
            metrics,
            usage_chunk: false,
            usage_so_far: false,
            token_ids: None,
            choices: 1,
            prompt_tokens: 2,
            received: 0,
        };
        Writer::answer(head, Response::default())
    }

    fn parts() -> Vec<Part> {
        let call = |index, name: &str| Part::Call { index, id: format!("call_{index}"), name: name.into() };
        vec![
            Part::Content("one ".into()),
            Part::Content(String::new()),
            Part::Content("two".into()),
            call(0, "f"),
            Part::Arguments { index: 0, text: "{}".into() },
            call(1, "g"),
            Part::Content("three".into()),
        ]
    }

    fn last(bytes: &Bytes) -> Value {
        let text = std::str::from_utf8(bytes).unwrap();
        serde_json::from_str(text.trim_end().rsplit_once("data: ").unwrap().1).unwrap()
    }

    /// What stands in each item of a response's output, with its status.
    fn output(response: &Value) -> Vec<(&str, &str)> {
        let items = response["output"].as_array().unwrap().iter();
        let said = |item: &Value| item["content"].get(0).is_some();
        items
            .map(|item| {
                let text = if said(item) { &item["content"][0]["text"] } else { &item["name"] };
                (text.as_str().unwrap(), item["status"].as_str().unwrap())
            })
            .collect()
    }

    #[test]
    fn text_and_calls_are_items_in_their_order() {
        let ending =
            Ending { finish: Finish::Length, output: vec![1, 2, 3], reasoning_tokens: Some(1), usage: None };
        let mut streamed = answer();
        for part in parts() {
            streamed.part(0, part, Vec::new());
        }
        streamed.end(0, ending.clone());
        let event = last(&streamed.last());
        assert_eq!(event["type"], "response.incomplete");
        let choice = Choice { parts: parts().into_iter().map(|part| (part, Vec::new())).collect(), ending };
        let whole: Value = serde_json::from_slice(&answer().whole(vec![choice])).unwrap();
        for response in [&event["response"], &whole] {
            let wanted =
                [("one two", "completed"), ("f", "completed"), ("g", "completed"), ("three", "incomplete")];
            assert_eq!(output(response), wanted);
            assert_eq!(response["output"][1]["arguments"], "{}");
            assert_eq!(
                (&response["usage"]["output_tokens"], &response["usage"]["total_tokens"]),
                (&json!(3), &json!(5))
            );
        }
    }

    #[test]
    fn a_call_that_ends_within_its_arguments_is_incomplete() {
        for (arguments, status) in [("{\"a\": [1", "incomplete"), ("{\"a\": [1]}", "completed")] {
            let mut streamed = answer();
            let call = Part::Call { index: 0, id: "c1".to_owned(), name: "f".to_owned() };
            streamed.part(0, call, Vec::new());
            streamed.part(0, Part::Arguments { index: 0, text: arguments.to_owned() }, Vec::new());
            let ending =
                Ending { finish: Finish::Stop, output: vec![1], reasoning_tokens: None, usage: None };
            streamed.end(0, ending);
            let event = last(&streamed.last());
            assert_eq!(output(&event["response"]), [("f", status)], "{event}");
        }
    }

    #[test]
    fn a_stream_that_breaks_ends_with_what_was_finished_and_why() {
        let mut broken = answer();
        broken.opening();
        for part in parts() {
            broken.part(0, part, Vec::new());
        }
        let event = last(&broken.broken(&ApiError::internal("it went away", "device_failed")));
        let response = &event["response"];
        assert_eq!((&event["type"], &response["status"]), (&json!("response.failed"), &json!("failed")));
        assert_eq!(response["error"], json!({"code": "device_failed", "message": "it went away"}));
        assert_eq!(output(response).len(), 3);
    }
}
