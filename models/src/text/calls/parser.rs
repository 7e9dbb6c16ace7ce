//! Reads calls out of a text as it comes. Each character is taken alone, so that pieces may be divided anywhere.

use super::CallFormat;
use super::object::{Brackets, Head, HeadProgress, is_space, read};

/// What a text says next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallEvent {
    /// Text outside of calls.
    Content(String),
    /// A call begins.
    Call {
        /// The function's name.
        name: String,
    },
    /// More of the arguments of the last call: JSON, as the model writes it.
    Arguments(String),
}

/// Reads one output. Whatever is written comes out, as content or as part of a call, but for what stands around calls: the tags, the
/// beginning and end of each object, and white space between calls and before the first. Text that may still become a call is held
/// back. What turns out to be none is content. Names are not compared with those of any tools.
#[derive(Debug)]
pub struct CallParser {
    format: CallFormat,
    place: Place,
    /// Text of which it is not known yet what it is.
    held: String,
    calls: usize,
    events: Vec<CallEvent>,
}

#[derive(Debug)]
enum Place {
    Outside(Outside),
    /// In the object of what may be a call, which begins at byte `start` of the held text. No head if it is not as usual: then the
    /// object is read once it is complete.
    Object {
        start: usize,
        head: Option<Head>,
        brackets: Brackets,
    },
    /// In the arguments of a call.
    Arguments(Brackets),
    /// Behind the arguments of a call: whether its object is still open, and how much of the closing tag there is.
    Tail {
        open: bool,
        tag: usize,
    },
}

/// Between calls.
#[derive(Clone, Copy, Debug, Default)]
struct Outside {
    /// Content has come since the last call: white space belongs to it.
    content: bool,
    /// A bracket begins a call.
    bare: bool,
    /// The opening tag has come, and a bracket must.
    tagged: bool,
    /// A semicolon may come, and another call behind it.
    again: bool,
    /// So many bytes of the opening tag have come.
    tag: usize,
}

impl CallParser {
    /// At the beginning of an output.
    pub fn new(format: CallFormat) -> CallParser {
        let outside = Outside { bare: format.bare(), ..Outside::default() };
        CallParser {
            format,
            place: Place::Outside(outside),
            held: String::new(),
            calls: 0,
            events: Vec::new(),
        }
    }

    /// Takes the next piece of the text.
    pub fn push(&mut self, text: &str) -> Vec<CallEvent> {
        text.chars().for_each(|c| self.take(c));
        std::mem::take(&mut self.events)
    }

    /// The text has ended: what was held back comes out.
    pub fn finish(&mut self) -> Vec<CallEvent> {
        match self.place {
            // It is the beginning of what would have ended the call.
            Place::Tail { .. } => self.held.clear(),
            Place::Outside(_) if self.calls > 0 && self.held.chars().all(is_space) => self.held.clear(),
            _ => self.release(),
        }
        std::mem::take(&mut self.events)
    }

    /// Whether a call has begun whose arguments are not whole.
    pub fn open(&self) -> bool {
        matches!(self.place, Place::Arguments(_))
    }

    /// How many calls have begun.
    pub fn calls(&self) -> usize {
        self.calls
    }

    fn take(&mut self, c: char) {
        match &mut self.place {
            Place::Outside(outside) => {
                let outside = *outside;
                self.outside(outside, c);
            }
            Place::Object { .. } => self.object(c),
            Place::Arguments(brackets) => {
                let closed = brackets.take(c);
                self.argument(c);
                if closed {
                    self.place = Place::Tail { open: true, tag: 0 };
                }
            }
            Place::Tail { open, tag } => {
                let (open, tag) = (*open, *tag);
                self.tail(open, tag, c);
            }
        }
    }

    fn outside(&mut self, mut outside: Outside, c: char) {
        let opening = self.format.opening();
        if outside.tag > 0 && opening[outside.tag..].starts_with(c) {
            self.held.push(c);
            outside.tag += c.len_utf8();
            if outside.tag == opening.len() {
                outside = Outside { tagged: true, content: outside.content, ..Outside::default() };
            }
        } else if opening.starts_with(c) {
            // Neither a tag within a tag nor a tag without its call is one.
            if outside.tag > 0 || outside.tagged {
                self.release();
                outside = Outside { content: true, ..Outside::default() };
            }
            self.held.push(c);
            outside.tag = c.len_utf8();
        } else if c == '{' && outside.tag == 0 && (outside.bare || outside.tagged) {
            let mut brackets = Brackets::default();
            brackets.take(c);
            let head = Some(Head::new(self.format.arguments()));
            self.place = Place::Object { start: self.held.len(), head, brackets };
            self.held.push(c);
            return;
        } else if is_space(c) && outside.tag == 0 && (outside.tagged || !outside.content) {
            self.held.push(c);
        } else if c == ';' && outside.tag == 0 && outside.again {
            self.held.push(c);
            outside = Outside { bare: true, ..Outside::default() };
        } else {
            self.held.push(c);
            self.release();
            outside = Outside { content: true, ..Outside::default() };
        }
        self.place = Place::Outside(outside);
    }

    fn object(&mut self, c: char) {
        let Place::Object { start, head, brackets } = &mut self.place else { return };
        self.held.push(c);
        let closed = brackets.take(c);
        match head.as_mut().map(|head| head.take(c)) {
            Some(HeadProgress::Arguments(name)) => {
                let mut brackets = Brackets::default();
                brackets.take(c);
                self.place = Place::Arguments(brackets);
                self.call(name);
                self.argument(c);
                return;
            }
            Some(HeadProgress::Other) => *head = None,
            Some(HeadProgress::More) | None => {}
        }
        if !closed {
            return;
        }
        let object = self.held.get(*start..).unwrap_or_default();
        match read(object, self.format.arguments()) {
            Some((name, arguments)) => {
                self.call(name);
                self.events.push(CallEvent::Arguments(arguments));
                self.ended();
            }
            None => {
                self.release();
                self.place = Place::Outside(Outside { content: true, ..Outside::default() });
            }
        }
    }

    fn tail(&mut self, open: bool, tag: usize, c: char) {
        let closing = self.format.closing();
        if tag == 0 && is_space(c) {
            self.held.push(c);
        } else if open && tag == 0 && c == '}' {
            self.ended();
        } else if closing[tag..].starts_with(c) {
            self.held.push(c);
            let tag = tag + c.len_utf8();
            self.place = Place::Tail { open, tag };
            if tag == closing.len() {
                self.held.clear();
                self.place = self.after();
            }
        } else {
            // The call ends without its end: what has come instead is read anew.
            let held = std::mem::take(&mut self.held);
            self.place = self.after();
            held.chars().chain([c]).for_each(|c| self.take(c));
        }
    }

    /// The object of a call has ended.
    fn ended(&mut self) {
        self.held.clear();
        let tail = !self.format.closing().is_empty();
        self.place = if tail { Place::Tail { open: false, tag: 0 } } else { self.after() };
    }

    fn after(&self) -> Place {
        let (again, bare) = (self.format == CallFormat::Llama3, self.format == CallFormat::Json);
        Place::Outside(Outside { again, bare, ..Outside::default() })
    }

    fn call(&mut self, name: String) {
        self.held.clear();
        self.calls += 1;
        self.events.push(CallEvent::Call { name });
    }

    fn argument(&mut self, c: char) {
        match self.events.last_mut() {
            Some(CallEvent::Arguments(text)) => text.push(c),
            _ => self.events.push(CallEvent::Arguments(c.into())),
        }
    }

    /// What is held is content.
    fn release(&mut self) {
        let held = std::mem::take(&mut self.held);
        match self.events.last_mut() {
            _ if held.is_empty() => {}
            Some(CallEvent::Content(text)) => text.push_str(&held),
            _ => self.events.push(CallEvent::Content(held)),
        }
    }
}
