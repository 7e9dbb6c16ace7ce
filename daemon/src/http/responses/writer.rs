//! The answer: an object `response`, or the events that build it up in a client.

use actix_web::web::{Bytes, BytesMut};
use serde_json::{Map, Value, json};

use super::items::Item;
use crate::http::answer::{Answer, Choice, Head};
use crate::http::calls::Part;
use crate::http::chunks::usage;
use crate::http::errors::ApiError;
use crate::http::metrics::Place;
use crate::random;
use crate::sequence::{Ending, Finish, Told};

/// A response, as far as it has come.
pub(super) struct Response {
    head: Head,
    id: String,
    echoed: Map<String, Value>,
    /// Finished items.
    output: Vec<Value>,
    open: Option<Item>,
    /// Told of tokens whose text is held back.
    pending: Vec<Told>,
    ending: Option<Ending>,
    events: Events,
}

impl Response {
    /// Nothing of it yet; `echoed` is what it repeats of the request.
    pub(super) fn answer(head: Head, echoed: Map<String, Value>) -> Box<dyn Answer> {
        Box::new(Response {
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

    fn take(&mut self, part: Part, told: Vec<Told>) {
        self.pending.extend(told);
        match part {
            Part::Content(text) => {
                if text.is_empty() {
                    return;
                }
                let told = self.head.tokens.of(&std::mem::take(&mut self.pending));
                if !self.open.as_ref().is_some_and(Item::is_message) {
                    self.close("completed");
                }
                let (index, events) = (self.output.len(), &mut self.events);
                let message = self.open.get_or_insert_with(|| Item::message(index, events));
                message.extend(&text, told, &mut self.events);
            }
            Part::Call { id, name, .. } => {
                self.close("completed");
                self.pending.clear();
                self.open = Some(Item::call(self.output.len(), id, name, &mut self.events));
            }
            Part::Arguments { text, .. } => {
                self.pending.clear();
                if let Some(call) = &mut self.open {
                    call.extend(&text, Value::Null, &mut self.events);
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
        self.close(if ending.finish == Finish::Length { "incomplete" } else { "completed" });
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
    fn json(&self, error: &Value) -> Value {
        let status = if error.is_null() { self.status() } else { "failed" };
        let incomplete = (status == "incomplete").then(|| json!({"reason": "max_output_tokens"}));
        let mut response = json!({
            "id": self.id, "object": "response", "created_at": self.head.created, "status": status,
            "background": false, "error": error, "incomplete_details": incomplete, "max_tool_calls": null,
            "model": self.head.model, "output": self.output, "previous_response_id": null,
            "reasoning": {"effort": null, "summary": null}, "service_tier": "default", "store": false,
            "truncation": "disabled", "usage": self.ending.as_ref().map(|ending| self.usage(ending)),
        });
        if let Value::Object(map) = &mut response {
            map.extend(self.echoed.clone());
        }
        if let Some(ending) = &self.ending {
            self.head.metrics.add(Place::Answer, &mut response, ending);
        }
        response
    }

    /// `usage` in the words of this API. What nobody knows of the cache is 0, as the field has to be there.
    fn usage(&self, ending: &Ending) -> Value {
        let usage = usage(self.head.prompt_tokens, std::iter::once(ending));
        let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0);
        json!({
            "input_tokens": usage["prompt_tokens"], "input_tokens_details": {"cached_tokens": cached},
            "output_tokens": usage["completion_tokens"], "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        })
    }
}

impl Answer for Response {
    fn whole(mut self: Box<Self>, choices: Vec<Choice>) -> Value {
        for Choice { parts, ending } in choices {
            for (part, told) in parts {
                self.take(part, told);
                self.events.bytes.clear();
            }
            self.finish(ending);
        }
        self.json(&Value::Null)
    }

    fn opening(&mut self) -> Bytes {
        for name in ["response.created", "response.in_progress"] {
            let response = self.json(&Value::Null);
            self.events.push(name, json!({"response": response}));
        }
        self.events.written()
    }

    fn part(&mut self, _index: usize, part: Part, told: Vec<Told>) -> Bytes {
        self.take(part, told);
        self.events.written()
    }

    fn end(&mut self, _index: usize, ending: Ending) -> Bytes {
        self.finish(ending);
        self.events.written()
    }

    fn last(&mut self) -> Bytes {
        let name = if self.status() == "incomplete" { "response.incomplete" } else { "response.completed" };
        let response = self.json(&Value::Null);
        self.events.push(name, json!({"response": response}));
        self.events.written()
    }

    fn broken(&mut self, err: &ApiError) -> Bytes {
        let response = self.json(&json!({"code": err.code, "message": err.message}));
        self.events.push("response.failed", json!({"response": response}));
        self.events.written()
    }

    fn cut_off(&self, err: &ApiError) -> Bytes {
        // Without its number, which nobody knows beforehand.
        let error = json!({"type": "error", "code": err.code, "message": err.message, "param": err.param});
        format!("event: error\ndata: {error}\n\n").into()
    }
}

/// Server-sent events with names, numbered from 0.
#[derive(Default)]
pub(super) struct Events {
    bytes: BytesMut,
    number: usize,
}

impl Events {
    /// Writes one more.
    pub(super) fn push(&mut self, name: &str, mut data: Value) {
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
