//! What the text of one choice is to its client: reasoning, content, and tool calls.

use faser_models::{CallEvent, CallFormat, CallParser, Channel};
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::params::ReadCalls;
use crate::random;
use crate::text_sequence::{Ending, Finish};

/// A part of a choice, as it comes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part {
    Content(String),
    Reasoning(String),
    /// A call begins.
    Call {
        /// Its place among the choice's calls.
        index: usize,
        id: String,
        name: String,
    },
    /// More of the arguments of call `index`.
    Arguments {
        index: usize,
        text: String,
    },
}

/// Reads the text of one choice.
#[derive(Debug)]
pub(super) struct Reader {
    parser: Option<CallParser>,
    named: bool,
    begun: usize,
    /// Of the last text.
    channel: Channel,
}

impl Reader {
    /// Reads text, and calls in it if they are asked for.
    pub(super) fn new(calls: Option<ReadCalls>) -> Reader {
        // Harmony's are told by its channels.
        let of_text = calls.filter(|calls| calls.format != CallFormat::Harmony);
        let parser = of_text.map(|calls| CallParser::new(calls.format));
        Reader { parser, named: calls.is_some_and(|calls| calls.named), begun: 0, channel: Channel::Content }
    }

    /// What more text says; nothing, if it may still become one thing or another.
    pub(super) fn take(&mut self, channel: Channel, text: String) -> Vec<Part> {
        self.channel = channel;
        match &mut self.parser {
            _ if text.is_empty() => Vec::new(),
            _ if channel == Channel::Reasoning => vec![Part::Reasoning(text)],
            _ if channel == Channel::Call => self.parts(vec![CallEvent::Call { name: text }]),
            _ if channel == Channel::Arguments => self.parts(vec![CallEvent::Arguments(text)]),
            None => vec![Part::Content(text)],
            Some(parser) => {
                let events = parser.push(&text);
                self.parts(events)
            }
        }
    }

    /// No text, where only tokens are to be told.
    pub(super) fn silence(&self) -> Part {
        match self.channel {
            Channel::Reasoning => Part::Reasoning(String::new()),
            _ => Part::Content(String::new()),
        }
    }

    /// What was held back.
    pub(super) fn finish(&mut self) -> Vec<Part> {
        let events = self.parser.as_mut().map_or_else(Vec::new, CallParser::finish);
        self.parts(events)
    }

    /// The end of the choice. With calls it is one by calls, as in OpenAI's API, unless the request named the function: then it is
    /// `stop` there. A text that was cut off stays that, and one that ends within the arguments of a call, as by a stop string, ends by `stop`: they are no JSON.
    pub(super) fn ending(&self, ending: Ending) -> Ending {
        let open = self.parser.as_ref().is_some_and(CallParser::open);
        let by_calls = ending.finish == Finish::Stop && self.begun > 0 && !self.named && !open;
        Ending { finish: if by_calls { Finish::ToolCalls } else { ending.finish }, ..ending }
    }

    fn parts(&mut self, events: Vec<CallEvent>) -> Vec<Part> {
        let part = |event| match event {
            CallEvent::Content(text) => Part::Content(text),
            CallEvent::Call { name } => {
                self.begun += 1;
                Part::Call { index: self.begun - 1, id: format!("call_{}", random::id()), name }
            }
            CallEvent::Arguments(text) => Part::Arguments { index: self.begun.saturating_sub(1), text },
        };
        events.into_iter().map(part).collect()
    }
}

/// A choice put together.
#[derive(Debug, Default)]
pub(super) struct Message {
    pub(super) content: String,
    reasoning: Option<String>,
    calls: Vec<Call>,
}

#[derive(Debug)]
struct Call {
    id: String,
    name: String,
    arguments: String,
}

impl Message {
    /// Takes the next part.
    pub(super) fn take(&mut self, part: Part) {
        match part {
            Part::Content(text) => self.content.push_str(&text),
            Part::Reasoning(text) => self.reasoning.get_or_insert_default().push_str(&text),
            Part::Call { id, name, .. } => self.calls.push(Call { id, name, arguments: String::new() }),
            Part::Arguments { text, .. } => {
                if let Some(call) = self.calls.last_mut() {
                    call.arguments.push_str(&text);
                }
            }
        }
    }

    /// As a chat has it.
    pub(super) fn of_chat(self) -> AnswerMessage {
        let call = |Call { id, name, arguments }: Call| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
        let calls = !self.calls.is_empty();
        let other = calls || self.reasoning.is_some();
        AnswerMessage {
            role: "assistant",
            content: Some(self.content).filter(|content| !other || !content.is_empty()),
            refusal: None,
            reasoning: self.reasoning.clone(),
            reasoning_content: self.reasoning,
            tool_calls: calls.then(|| self.calls.into_iter().map(call).collect()),
        }
    }
}

/// The message of a chat's answer.
#[derive(Serialize, ToSchema)]
pub(super) struct AnswerMessage {
    role: &'static str,
    content: Option<String>,
    refusal: Option<String>,
    /// What led to the content, if the model's reasoning is told from it.
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    /// The same, by the name that vLLM has for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Object>>)]
    tool_calls: Option<Vec<Value>>,
}

impl Part {
    /// The text that it has.
    pub(super) fn text(&self) -> &str {
        match self {
            Part::Content(text) | Part::Reasoning(text) | Part::Arguments { text, .. } => text,
            Part::Call { .. } => "",
        }
    }

    /// What a chunk of a chat's stream says of it.
    pub(super) fn delta(&self) -> Value {
        match self {
            Part::Content(text) => json!({"content": text}),
            // DeepSeek, SGLang and llama.cpp have the first name, vLLM and OpenRouter the second: clients look for one of them.
            Part::Reasoning(text) => json!({"reasoning_content": text, "reasoning": text}),
            Part::Call { index, id, name } => {
                let function = json!({"name": name, "arguments": ""});
                json!({"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]})
            }
            Part::Arguments { index, text } => {
                json!({"tool_calls": [{"index": index, "function": {"arguments": text}}]})
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_a_stop_string_cut_is_no_end_by_calls() {
        let mut reader = Reader::new(Some(ReadCalls { format: CallFormat::Hermes, named: false }));
        let ended = |reader: &Reader| {
            let ending =
                Ending { finish: Finish::Stop, output: Vec::new(), reasoning_tokens: None, usage: None };
            reader.ending(ending).finish
        };
        let mut take = |text: &str| {
            reader.take(Channel::Content, text.to_owned());
            ended(&reader)
        };
        assert_eq!(take("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": "), Finish::Stop);
        assert_eq!(take("1}"), Finish::ToolCalls);
        assert_eq!(take("}</tool_call><tool_call>{\"name\": \"g\", \"arguments\": {"), Finish::Stop);
    }
}
