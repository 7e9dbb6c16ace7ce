//! Grammars in which the calls of an output are valid.

use serde_json::{Map, Value, json};

use super::CallFormat;

/// What an output of calls is held to.
#[derive(Clone, Debug, PartialEq)]
pub struct CallForm {
    /// How calls are written.
    pub format: CallFormat,
    /// What may be called.
    pub functions: Vec<Function>,
    /// Whether text may stand there instead of calls, or around them.
    pub free: bool,
    /// Whether there may be several calls.
    pub several: bool,
}

/// A function that may be called.
#[derive(Clone, Debug, PartialEq)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// The JSON schema of its arguments; it takes none, if there is none.
    pub parameters: Option<Value>,
}

impl CallForm {
    /// The grammar in llguidance's kind of Lark. `token` has the id of a tag that is one token: then that token is the tag, and no other
    /// way to write it.
    pub(crate) fn lark(&self, token: impl Fn(&str) -> Option<u32>) -> String {
        let mut rules = match self.format {
            CallFormat::Hermes => self.hermes(&token),
            CallFormat::Llama3 => self.bare("; ", &self.format.opening().replace('|', "\\|")),
            CallFormat::Json => self.bare("\n", ""),
            CallFormat::Harmony => self.harmony(&token),
        };
        let numbers = (0..self.functions.len()).map(|number| format!("f{number}"));
        rules.push(format!("object: {}", numbers.collect::<Vec<_>>().join(" | ")));
        let key = self.format.arguments().first().copied().unwrap_or_default();
        for (number, function) in self.functions.iter().enumerate() {
            let schema = schema(function.parameters.as_ref());
            if self.format == CallFormat::Harmony {
                let [constrain, message] = ["<|constrain|>", "<|message|>"].map(|name| tag(&token, name));
                let head = literal(&format!("functions.{} ", function.name));
                rules.push(format!("f{number}: {head} {constrain} \"json\" {message} %json {schema}"));
                continue;
            }
            let name = Value::from(function.name.as_str());
            let head = literal(&format!("{{\"name\": {name}, \"{key}\": "));
            rules.push(format!("f{number}: {head} %json {schema} \"}}\""));
        }
        rules.join("\n")
    }

    fn hermes(&self, token: impl Fn(&str) -> Option<u32>) -> Vec<String> {
        let tag = |text| tag(&token, text);
        let (opening, closing) = (self.format.opening(), self.format.closing());
        let body = format!("body: \"\\n\" object \"\\n\" {}", tag(closing));
        if !self.free {
            let more = if self.several { " (\"\\n\" call)*" } else { "" };
            return vec![format!("start: call{more}"), format!("call: {} body", tag(opening)), body];
        }
        let start = if self.several { "start: (opening body)* TEXT?" } else { "start: TEXT? | opening body" };
        let text = format!("TEXT: /(?s:.+)/ & ~/(?s:.*){opening}(?s:.*)/");
        let opening = match token(opening) {
            Some(id) => format!("opening: TEXT? <[{id}]>"),
            // The lexer does not go back: the text before a tag and the tag are one word of it, which ends as soon as it can.
            None => format!("opening[lazy]: /(?s:.*){opening}/"),
        };
        vec![start.to_owned(), opening, text, body]
    }

    /// A message to a function, or an answer. One call ends an output.
    fn harmony(&self, token: impl Fn(&str) -> Option<u32>) -> Vec<String> {
        let [channel, message] = ["<|channel|>", "<|message|>"].map(|name| tag(&token, name));
        let answer =
            if self.free { format!(" | {channel} \"final\" {message} TEXT?") } else { String::new() };
        let start = format!("start: {channel} \"commentary to=\" object{answer}");
        std::iter::once(start).chain(self.free.then(|| "TEXT: /(?s:.+)/".to_owned())).collect()
    }

    /// Objects without tags, between which `between` stands; text has no `tag` in it, if there is one.
    fn bare(&self, between: &str, tag: &str) -> Vec<String> {
        let more = format!(" ({} object)*", literal(between));
        let calls = format!("object{}", if self.several { more.as_str() } else { "" });
        if !self.free {
            return vec![format!("start: {calls}")];
        }
        // What begins with a bracket is a call.
        let text = match tag {
            "" => "TEXT: /\\s*[^\\s{](?s:.*)/".to_owned(),
            tag => format!("TEXT: /[^\\s{{](?s:.*)/ & ~/(?s:.*){tag}(?s:.*)/"),
        };
        vec![format!("start: TEXT? | {calls}"), text]
    }
}

/// A tag: its token, or its text where it is none.
fn tag(token: impl Fn(&str) -> Option<u32>, text: &str) -> String {
    token(text).map_or_else(|| literal(text), |id| format!("<[{id}]>"))
}

fn literal(text: &str) -> String {
    Value::from(text).to_string()
}

/// The schema of arguments: an object, its JSON written as chat templates write it, by Python's `json.dumps`.
fn schema(parameters: Option<&Value>) -> Value {
    let mut map = match parameters.map(bare) {
        Some(Value::Object(map)) => map,
        Some(_) => Map::new(),
        None => Map::from_iter([("additionalProperties".to_owned(), false.into())]),
    };
    map.entry("type").or_insert_with(|| "object".into());
    let how = json!({"whitespace_flexible": false, "item_separator": ", ", "key_separator": ": "});
    map.insert("x-guidance".to_owned(), how);
    Value::Object(map)
}

/// A schema without what is for people alone, which is most of its text.
fn bare(schema: &Value) -> Value {
    let Value::Object(map) = schema else { return schema.clone() };
    let all = |value: &Value| match value {
        Value::Object(map) => map.iter().map(|(name, schema)| (name.clone(), bare(schema))).collect(),
        other => other.clone(),
    };
    let part = |(key, value): (&String, &Value)| {
        let value = match (key.as_str(), value) {
            ("title" | "description" | "$comment" | "examples" | "default" | "x-guidance", _) => return None,
            ("properties" | "patternProperties" | "$defs" | "definitions", value) => all(value),
            ("anyOf" | "oneOf" | "allOf" | "prefixItems" | "items", Value::Array(schemas)) => {
                schemas.iter().map(bare).collect()
            }
            ("items" | "additionalProperties" | "not", value) => bare(value),
            (_, value) => value.clone(),
        };
        Some((key.clone(), value))
    };
    Value::Object(map.iter().filter_map(part).collect())
}
