//! The items of a response's output, and the events by which a stream tells of them.

use serde_json::{Value, json};

use super::writer::Events;
use crate::random;

/// An item.
pub(super) struct Item {
    /// Its place in the output.
    index: usize,
    id: String,
    kind: Kind,
}

enum Kind {
    Message { text: String, logprobs: Vec<Value> },
    Call { call_id: String, name: String, arguments: String },
}

impl Item {
    /// A message without text.
    pub(super) fn message(index: usize, events: &mut Events) -> Item {
        let kind = Kind::Message { text: String::new(), logprobs: Vec::new() };
        let item = Item { index, id: format!("msg_{}", random::id()), kind };
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
    pub(super) fn call(index: usize, call_id: String, name: String, events: &mut Events) -> Item {
        let kind = Kind::Call { call_id, name, arguments: String::new() };
        let item = Item { index, id: format!("fc_{}", random::id()), kind };
        events.push(
            "response.output_item.added",
            json!({"output_index": index, "item": item.json("in_progress")}),
        );
        item
    }

    pub(super) fn is_message(&self) -> bool {
        matches!(self.kind, Kind::Message { .. })
    }

    /// More text of a message with what is told of its tokens, or more arguments of a call.
    pub(super) fn extend(&mut self, more: &str, told: &Value, events: &mut Events) {
        match &mut self.kind {
            Kind::Message { text, logprobs } => {
                text.push_str(more);
                if let Value::Array(told) = told {
                    logprobs.extend(told.iter().cloned());
                }
                let delta = json!({"content_index": 0, "delta": more, "logprobs": told});
                events.push("response.output_text.delta", self.located(delta));
            }
            Kind::Call { arguments, .. } => {
                arguments.push_str(more);
                events.push("response.function_call_arguments.delta", self.located(json!({"delta": more})));
            }
        }
    }

    /// The end of the item; what it is then.
    pub(super) fn finish(self, status: &str, events: &mut Events) -> Value {
        match &self.kind {
            Kind::Message { text, logprobs } => {
                let done = json!({"content_index": 0, "text": text, "logprobs": logprobs});
                events.push("response.output_text.done", self.located(done));
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
            Kind::Call { .. } => Value::Null,
        }
    }

    fn json(&self, status: &str) -> Value {
        match &self.kind {
            Kind::Message { .. } => {
                // A message that has just begun has no part yet.
                let content = if status == "in_progress" { json!([]) } else { json!([self.part()]) };
                json!({"type": "message", "id": self.id, "status": status, "role": "assistant", "content": content})
            }
            Kind::Call { call_id, name, arguments } => json!({
                "type": "function_call", "id": self.id, "call_id": call_id, "name": name,
                "arguments": arguments, "status": status,
            }),
        }
    }
}
