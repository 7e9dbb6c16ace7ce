//! Harmony, in which gpt-oss writes: messages with headers that say by a channel what each is, and whom it is for. Told by the ids of its
//! marks: a text that only looks like one is text. The format is that of <https://cookbook.openai.com/articles/openai-harmony>.

use super::channel::{Channel, ReasoningStart};
use crate::Tokenizer;

/// The names of its marks.
pub(crate) const NAMES: [&str; 7] =
    ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>"];
/// What functions are called by.
const FUNCTIONS: &str = "functions.";
/// A longer header, in bytes, is none.
const MOST_HEADER: usize = 256;

/// The marks of a tokenizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Marks {
    start: u32,
    channel: u32,
    message: u32,
    end: u32,
    call: u32,
    last: u32,
    constrain: u32,
}

impl Marks {
    /// None, if one of them is missing.
    pub(crate) fn of(tokenizer: &Tokenizer) -> Option<Marks> {
        let [start, channel, message, end, call, last, constrain] =
            NAMES.map(|name| tokenizer.token_id(name));
        let (start, channel, message, end) = (start?, channel?, message?, end?);
        Some(Marks { start, channel, message, end, call: call?, last: last?, constrain: constrain? })
    }

    fn name(self, token: u32) -> Option<&'static str> {
        let Marks { start, channel, message, end, call, last, constrain } = self;
        let number =
            [start, channel, message, end, call, last, constrain].iter().position(|mark| *mark == token);
        number.and_then(|number| NAMES.get(number)).copied()
    }

    /// Those that end an output.
    pub(crate) fn ends(self) -> [u32; 2] {
        [self.last, self.call]
    }
}

/// Where an output begins behind a prompt: in the header of a message, or within a message of this channel.
pub(crate) fn start(prompt: &str) -> ReasoningStart {
    let message = prompt.rsplit("<|start|>").next().unwrap_or_default();
    match message.split_once("<|message|>") {
        None => ReasoningStart::Possible,
        Some((header, _)) if header.contains("analysis") => ReasoningStart::Open,
        Some(_) => ReasoningStart::Closed,
    }
}

/// The grammar of an output that may reason before `answer`, an expression of llguidance's kind of Lark. None where the answer has begun.
/// `token` has the ids of the marks.
pub(crate) fn lark(
    begins: ReasoningStart,
    answer: &str,
    token: impl Fn(&str) -> Option<u32>,
) -> Option<String> {
    let mark = |name: &str| token(name).map(|id| format!("<[{id}]>"));
    let (start, channel) = (mark("<|start|>")?, mark("<|channel|>")?);
    let (message, end) = (mark("<|message|>")?, mark("<|end|>")?);
    let thought = format!("TEXT? {end} {start} \"assistant\"");
    let begun = match begins {
        ReasoningStart::Closed => return None,
        ReasoningStart::Open => thought,
        ReasoningStart::Possible => format!("({channel} \"analysis\" {message} {thought})?"),
    };
    Some(format!("start: {begun} {answer}\nTEXT: /(?s:.+)/"))
}

/// What an answer that follows the grammar named `form` is in Harmony.
pub(crate) fn answer(form: &str, token: impl Fn(&str) -> Option<u32>) -> Option<String> {
    Some(format!("<[{}]> \"final\" <[{}]> @{form}", token("<|channel|>")?, token("<|message|>")?))
}

/// Reads one output. All text of its messages comes out; headers and marks do not. What stands in no message is content.
#[derive(Clone, Debug)]
pub(crate) struct HarmonyParser {
    marks: Marks,
    place: Place,
}

#[derive(Clone, Debug)]
enum Place {
    /// In a header: what stands before the channel, and behind its mark, if that has come. Of the first one the prompt has the beginning.
    Header { first: bool, role: String, channel: Option<String> },
    /// In a message, or behind one.
    Message(Channel),
}

impl Place {
    fn header(first: bool) -> Place {
        Place::Header { first, role: String::new(), channel: None }
    }
}

impl HarmonyParser {
    /// At the beginning of an output.
    pub(crate) fn new(marks: Marks, start: ReasoningStart) -> HarmonyParser {
        let place = match start {
            ReasoningStart::Possible => Place::header(true),
            ReasoningStart::Open => Place::Message(Channel::Reasoning),
            ReasoningStart::Closed => Place::Message(Channel::Content),
        };
        HarmonyParser { marks, place }
    }

    /// What text is that comes now.
    pub(crate) fn channel(&self) -> Channel {
        match &self.place {
            Place::Header { .. } => Channel::Content,
            Place::Message(channel) => *channel,
        }
    }

    /// Takes the next token and the text that it made ready, which may end with a mark's own name.
    pub(crate) fn push(&mut self, token: u32, text: &str, out: &mut impl FnMut(Channel, String)) {
        let marks = self.marks;
        self.text(marks.name(token).and_then(|name| text.strip_suffix(name)).unwrap_or(text), out);
        if token == marks.start {
            self.leave(out);
            self.place = Place::header(false);
        } else if token == marks.channel {
            if let Place::Message(_) = self.place {
                self.place = Place::header(false);
            }
            if let Place::Header { channel, .. } = &mut self.place {
                *channel = Some(String::new());
            }
        } else if token == marks.message {
            if let Place::Header { role, channel, .. } = &self.place {
                let (kind, name) = addressed(role, channel.as_deref().unwrap_or_default());
                if let Some(name) = name {
                    out(Channel::Call, name);
                }
                self.place = Place::Message(kind);
            }
        } else if token == marks.constrain {
            self.text_of_header(" ");
        } else if [marks.end, marks.call, marks.last].contains(&token) {
            self.leave(out);
            self.place = Place::Message(Channel::Content);
        }
    }

    /// More text that no token of its own comes with.
    pub(crate) fn text(&mut self, text: &str, out: &mut impl FnMut(Channel, String)) {
        if text.is_empty() {
            return;
        }
        if self.text_of_header(text) > MOST_HEADER {
            self.leave(out);
            self.place = Place::Message(Channel::Content);
        } else if let Place::Message(channel) = self.place {
            out(channel, text.to_owned());
        }
    }

    /// The text has ended.
    pub(crate) fn finish(&mut self, out: &mut impl FnMut(Channel, String)) {
        self.leave(out);
    }

    /// Adds text to a header, if it is in one; the bytes that this has then.
    fn text_of_header(&mut self, text: &str) -> usize {
        let Place::Header { role, channel, .. } = &mut self.place else { return 0 };
        channel.as_mut().unwrap_or(role).push_str(text);
        role.len() + channel.as_ref().map_or(0, String::len)
    }

    /// Leaves a header that has led to no message. Where there was not even the mark of a channel, it was text.
    fn leave(&mut self, out: &mut impl FnMut(Channel, String)) {
        if let Place::Header { first: true, role, channel: None } = &mut self.place
            && !role.is_empty()
        {
            out(Channel::Content, std::mem::take(role));
        }
    }
}

/// What a message of this header is, and which function it calls.
fn addressed(role: &str, channel: &str) -> (Channel, Option<String>) {
    let recipient =
        role.split_whitespace().chain(channel.split_whitespace()).find_map(|word| word.strip_prefix("to="));
    match recipient.map(|recipient| recipient.strip_prefix(FUNCTIONS)) {
        Some(Some(name)) => (Channel::Arguments, Some(name.to_owned())),
        // To tools of the model's own, which are not here.
        Some(None) => (Channel::Reasoning, None),
        None if channel.trim_start().starts_with("analysis") => (Channel::Reasoning, None),
        None => (Channel::Content, None),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MARKS: Marks = Marks { start: 1, channel: 2, message: 3, end: 4, call: 5, last: 6, constrain: 7 };
    const TEXT: u32 = 9;

    /// Tokens of a text, those of plain text cut into characters or not.
    fn tokens(text: &str, cut: bool) -> Vec<(u32, String)> {
        let mut tokens = Vec::new();
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let mark = NAMES.iter().position(|name| rest.starts_with(name));
            let taken = match mark {
                Some(number) => NAMES[number].len(),
                None if cut => c.len_utf8(),
                None => rest[c.len_utf8()..].find("<|").map_or(rest.len(), |at| at + c.len_utf8()),
            };
            let (now, behind) = rest.split_at(taken);
            match mark {
                Some(number) => {
                    tokens.push((number as u32 + 1, if cut { now.to_owned() } else { String::new() }));
                }
                None => tokens.push((TEXT, now.to_owned())),
            }
            rest = behind;
        }
        tokens
    }

    /// What came, what is of one kind joined; each call begins anew.
    fn read(start: ReasoningStart, tokens: &[(u32, String)]) -> Vec<(Channel, String)> {
        let mut read: Vec<(Channel, String)> = Vec::new();
        let mut out = |channel, text: String| match read.last_mut() {
            Some((last, joined)) if *last == channel && channel != Channel::Call => joined.push_str(&text),
            _ => read.push((channel, text)),
        };
        let mut parser = HarmonyParser::new(MARKS, start);
        tokens.iter().for_each(|(token, text)| parser.push(*token, text, &mut out));
        parser.finish(&mut out);
        read
    }

    #[test]
    fn messages_are_what_their_channels_say() {
        use Channel::{Arguments, Call, Content, Reasoning};
        let possible = ReasoningStart::Possible;
        let call = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\":1}<|call|>";
        let early = "<|start|>assistant to=functions.g<|channel|>commentary json<|message|>{}<|call|>";
        for (start, text, wanted) in [
            (
                possible,
                "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>yes<|return|>".to_owned(),
                vec![(Reasoning, "hm"), (Content, "yes")],
            ),
            (possible, format!("{call}{early}"), vec![(Call, "f"), (Arguments, "{\"a\":1}"), (Call, "g"), (Arguments, "{}")]),
            (possible, "<|channel|>commentary<|message|>I call.<|end|>".to_owned(), vec![(Content, "I call.")]),
            (possible, "<|channel|>analysis to=python<|message|>1 + 1<|call|>".to_owned(), vec![(Reasoning, "1 + 1")]),
            (possible, "yes".to_owned(), vec![(Content, "yes")]),
            (possible, "<|channel|>ana".to_owned(), vec![]),
            (possible, "<|channel|>final<|message|>a<|end|><|start|>assis".to_owned(), vec![(Content, "a")]),
            (ReasoningStart::Open, "hm<|end|>".to_owned(), vec![(Reasoning, "hm")]),
            (ReasoningStart::Closed, "more<|return|>".to_owned(), vec![(Content, "more")]),
        ] {
            for cut in [false, true] {
                let wanted: Vec<(Channel, String)> =
                    wanted.iter().map(|(channel, text)| (*channel, (*text).to_owned())).collect();
                assert_eq!(read(start, &tokens(&text, cut)), wanted, "{text}");
            }
        }
        // What only looks like marks is text.
        let looks = [(TEXT, "<|channel|>final<|message|>".to_owned())];
        assert_eq!(read(ReasoningStart::Open, &looks), [(Reasoning, looks[0].1.clone())]);
        let long = [(TEXT, "a".repeat(MOST_HEADER + 1)), (TEXT, "b".to_owned())];
        assert_eq!(read(possible, &long), [(Content, "a".repeat(MOST_HEADER + 1) + "b")]);
    }

    #[test]
    fn a_prompt_says_in_which_message_the_output_begins() {
        for (prompt, begins) in [
            ("<|start|>user<|message|>hi<|end|><|start|>assistant", ReasoningStart::Possible),
            ("<|start|>assistant<|channel|>analysis<|message|>so", ReasoningStart::Open),
            ("<|start|>assistant<|channel|>final<|message|>so", ReasoningStart::Closed),
        ] {
            assert_eq!(start(prompt), begins, "{prompt}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 1000, ..ProptestConfig::default() })]
        #[test]
        fn dividing_texts_into_tokens_changes_nothing_and_messages_are_whole(
            parts in prop::collection::vec(prop_oneof![
                Just("<|start|>assistant"), Just("<|channel|>analysis<|message|>"), Just("<|channel|>final<|message|>"),
                Just("<|channel|>commentary to=functions.f <|constrain|>json<|message|>"), Just("<|end|>"), Just("<|call|>"),
                Just("<|message|>"), Just("<|constrain|>"), Just("é<|"), Just("x"),
            ], 0..12),
            start in prop_oneof![Just(ReasoningStart::Possible), Just(ReasoningStart::Open), Just(ReasoningStart::Closed)],
        ) {
            let text = parts.concat();
            let found = read(start, &tokens(&text, false));
            prop_assert_eq!(&found, &read(start, &tokens(&text, true)));
            // Within messages nothing is lost.
            let shown = found.iter().filter(|(channel, _)| *channel != Channel::Call);
            let shown: String = shown.map(|(_, text)| text.as_str()).collect();
            if start != ReasoningStart::Possible && !text.contains("<|start|>") && !text.contains("<|channel|>") {
                let wanted: String = tokens(&text, false).into_iter().map(|(_, text)| text).collect();
                prop_assert_eq!(shown, wanted);
            }
        }
    }
}
