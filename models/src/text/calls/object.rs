//! The object of a call, character by character: its beginning up to the arguments, and where brackets close.

use serde_json::Value;

/// Brackets around the place, and whether it is in a string.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Brackets {
    depth: usize,
    string: bool,
    escaped: bool,
}

impl Brackets {
    /// Takes a character; true if the outermost bracket closes by it.
    pub(super) fn take(&mut self, c: char) -> bool {
        if self.string {
            match c {
                _ if self.escaped => self.escaped = false,
                '\\' => self.escaped = true,
                '"' => self.string = false,
                _ => {}
            }
            return false;
        }
        match c {
            '"' => self.string = true,
            '{' | '[' => self.depth += 1,
            '}' | ']' => {
                self.depth = self.depth.saturating_sub(1);
                return self.depth == 0;
            }
            _ => {}
        }
        false
    }
}

/// The beginning of an object as models write it: `{"name": "…", "arguments": {`.
#[derive(Debug)]
pub(super) struct Head {
    keys: &'static [&'static str],
    step: Step,
    /// The string that the place is in, as it is written, with its first quotation mark.
    string: Option<String>,
    escaped: bool,
    name: String,
}

/// What has to come next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    NameKey,
    NameColon,
    Name,
    Comma,
    ArgumentsKey,
    ArgumentsColon,
    Arguments,
}

/// What a character of a head tells.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum HeadProgress {
    /// Nothing yet.
    More,
    /// The object begins in another way.
    Other,
    /// It was the first character of the arguments of a call of this name.
    Arguments(String),
}

impl Head {
    /// Behind the first bracket of an object; `keys` are names of the arguments.
    pub(super) fn new(keys: &'static [&'static str]) -> Head {
        Head { keys, step: Step::NameKey, string: None, escaped: false, name: String::new() }
    }

    pub(super) fn take(&mut self, c: char) -> HeadProgress {
        if let Some(string) = &mut self.string {
            string.push(c);
            match c {
                _ if self.escaped => self.escaped = false,
                '\\' => self.escaped = true,
                '"' => return self.ended(),
                _ => {}
            }
            return HeadProgress::More;
        }
        if is_space(c) {
            return HeadProgress::More;
        }
        self.step = match (self.step, c) {
            (Step::NameKey | Step::Name | Step::ArgumentsKey, '"') => {
                self.string = Some(c.into());
                return HeadProgress::More;
            }
            (Step::NameColon, ':') => Step::Name,
            (Step::Comma, ',') => Step::ArgumentsKey,
            (Step::ArgumentsColon, ':') => Step::Arguments,
            (Step::Arguments, '{') => return HeadProgress::Arguments(std::mem::take(&mut self.name)),
            _ => return HeadProgress::Other,
        };
        HeadProgress::More
    }

    /// A string is complete.
    fn ended(&mut self) -> HeadProgress {
        let written = self.string.take().unwrap_or_default();
        let Ok(text) = serde_json::from_str::<String>(&written) else { return HeadProgress::Other };
        self.step = match self.step {
            Step::NameKey if text == "name" => Step::NameColon,
            Step::Name if !text.is_empty() => {
                self.name = text;
                Step::Comma
            }
            Step::ArgumentsKey if self.keys.contains(&text.as_str()) => Step::ArgumentsColon,
            _ => return HeadProgress::Other,
        };
        HeadProgress::More
    }
}

/// Name and arguments of an object that is complete, in whatever order they stand; none if it is no call.
pub(super) fn read(object: &str, keys: &[&str]) -> Option<(String, String)> {
    let Ok(Value::Object(map)) = serde_json::from_str(object) else { return None };
    let name = map.get("name")?.as_str().filter(|name| !name.is_empty())?;
    let arguments = keys.iter().find_map(|key| map.get(*key)).filter(|value| value.is_object())?;
    Some((name.to_owned(), arguments.to_string()))
}

/// Whether JSON takes it between its parts.
pub(super) fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r')
}
