//! What a chat template is given: messages, tools, and variables of the request's own.

use minijinja::Value;
use serde_json::{Map, Value as Json};

use super::python;

/// Variables that a conversation does not bring: its own parts, the tokens, and what transformers calls its arguments.
const RESERVED: [&str; 26] = [
    "messages",
    "tools",
    "documents",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template",
    "conversation",
    "tokenize",
    "padding",
    "truncation",
    "max_length",
    "return_tensors",
    "return_dict",
    "return_assistant_tokens_mask",
    "tokenizer_kwargs",
    "sanitize_control_tokens",
    "raise_exception",
    "strftime_now",
    "namespace",
    "range",
    "dict",
    "loop",
    "self",
    "caller",
    "varargs",
    "kwargs",
];
/// Names under which a message's reasoning comes; the first is the one that most templates read.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];
/// What stands behind the text to be continued while it is rendered, as in transformers: it shows where the template puts that text's end.
const MARK: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// A conversation, for a chat template.
#[derive(Clone, Debug, PartialEq)]
pub struct Conversation {
    /// A list of objects, each with a `role` and what else templates read of it: `content`, `name`, `tool_calls` (whose `arguments` are
    /// objects), `tool_call_id`, `reasoning_content`. A field that is null counts as absent.
    pub messages: Json,
    /// A list of tools as OpenAI's API has them; without one the template's variable is none.
    pub tools: Option<Json>,
    /// Further variables by name, such as `enable_thinking`; those that [`Conversation::is_reserved`] names are not among them.
    pub variables: Map<String, Json>,
    /// Where the rendered text ends.
    pub last_turn: LastTurn,
}

/// The end of a rendered conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastTurn {
    /// Behind the opening of the assistant's turn: `add_generation_prompt`.
    Opened,
    /// Behind the last message.
    Closed,
    /// Within the last message, so that its text is continued: `continue_final_message`.
    Continued,
}

impl Conversation {
    /// Messages alone, with the assistant's turn opened.
    #[must_use]
    pub fn of(messages: Json) -> Conversation {
        Conversation { messages, tools: None, variables: Map::new(), last_turn: LastTurn::Opened }
    }

    /// Whether a name is that of a variable or function which every template has, or of an argument that transformers takes for itself.
    #[must_use]
    pub fn is_reserved(name: &str) -> bool {
        RESERVED.contains(&name) || name.ends_with("_token")
    }

    /// The messages as transformers hands them to templates: without null fields, a message's reasoning under the names that templates
    /// know, and the text to be continued marked.
    pub(super) fn prepared(&self) -> Result<Value, String> {
        let mut messages: Vec<Json> =
            self.messages.as_array().map_or_else(Vec::new, |list| list.iter().map(prepared).collect());
        if self.last_turn == LastTurn::Continued {
            let content = messages.last_mut().and_then(|message| message.get_mut("content"));
            match content {
                Some(Json::String(text)) => text.push_str(MARK),
                _ => return Err("the last message has no text that could be continued".to_owned()),
            }
        }
        Ok(python::value(&messages.into()))
    }

    /// Lists, objects and plain values in all of it, and bytes of their strings and names.
    pub(super) fn size(&self) -> Size {
        let mut size = Size { messages: self.messages.as_array().map_or(0, Vec::len), ..Size::default() };
        size.add(&self.messages);
        self.tools.iter().for_each(|tools| size.add(tools));
        size.add_fields(&self.variables);
        size
    }
}

/// How much there is to render.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Size {
    pub(super) messages: usize,
    pub(super) values: usize,
    pub(super) bytes: usize,
}

impl Size {
    fn add(&mut self, value: &Json) {
        self.values += 1;
        match value {
            Json::String(text) => self.bytes += text.len(),
            Json::Array(items) => items.iter().for_each(|item| self.add(item)),
            Json::Object(map) => self.add_fields(map),
            _ => self.bytes += 8,
        }
    }

    fn add_fields(&mut self, map: &Map<String, Json>) {
        for (name, value) in map {
            self.bytes += name.len();
            self.add(value);
        }
    }
}

/// The text up to the mark, without the space that the template has cut off in front of it.
pub(super) fn continued(mut text: String) -> Result<String, String> {
    let Some(end) = text.rfind(MARK.trim_end()) else {
        return Err(
            "it does not write the text of the last message, which therefore cannot be continued".to_owned()
        );
    };
    let whole = text[end..].starts_with(MARK);
    text.truncate(end);
    if !whole {
        text.truncate(text.trim_end().len());
    }
    Ok(text)
}

fn prepared(message: &Json) -> Json {
    let Json::Object(fields) = message else { return message.clone() };
    let there = |(name, value): (&String, &Json)| (!value.is_null()).then(|| (name.clone(), value.clone()));
    let reasoning = REASONING.iter().find_map(|name| fields.get(*name).filter(|value| !value.is_null()));
    let Some(reasoning) = reasoning else { return fields.iter().filter_map(there).collect() };
    let mut message = Map::new();
    message.insert("thinking".to_owned(), reasoning.clone());
    message.extend(fields.iter().filter_map(there));
    message.insert("reasoning_content".to_owned(), reasoning.clone());
    Json::Object(message)
}
