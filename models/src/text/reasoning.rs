//! Reasoning in what a model writes, told from the answer as it comes.

use std::path::Path;

use super::channel::{Channel, ReasoningStart};
use super::harmony::{self, HarmonyParser, Marks};
use super::template_files::template_sources;
use crate::{ModelError, Tokenizer};

const OPENING: &str = "<think>";
const CLOSING: &str = "</think>";
/// White space before the opening mark, in bytes at most.
const MOST_SPACE: usize = 64;

/// How a model writes its reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReasoningFormat {
    /// Between `<think>` and `</think>`, at the beginning of the output; the prompt may have the opening mark. Qwen 3, DeepSeek R1, QwQ, GLM
    /// 4.5, SmolLM3.
    Think,
    /// In messages of their own, each with its channel, as are the answer and calls. gpt-oss.
    Harmony,
}

impl ReasoningFormat {
    /// The format of the chat template of a model directory or a GGUF file; none if it knows no reasoning, or another kind of it.
    ///
    /// # Errors
    /// A file cannot be read, or is no JSON.
    pub fn of_model(dir: &Path) -> Result<Option<ReasoningFormat>, ModelError> {
        Ok(template_sources(dir)?.iter().find_map(|source| ReasoningFormat::of_template(source)))
    }

    /// The format of a chat template, given by its source. Each that knows reasoning names its end, to leave it out of earlier turns.
    pub fn of_template(source: &str) -> Option<ReasoningFormat> {
        let harmony = ["<|channel|>", "<|message|>", "analysis"].iter().all(|mark| source.contains(mark));
        let think = source.contains(CLOSING).then_some(ReasoningFormat::Think);
        if harmony { Some(ReasoningFormat::Harmony) } else { think }
    }

    /// What a tokenizer lacks for it; none if it has all.
    pub fn lacks(self, tokenizer: &Tokenizer) -> Option<&'static str> {
        let lacks = self == ReasoningFormat::Harmony && Marks::of(tokenizer).is_none();
        lacks.then_some(
            "the tokens <|start|>, <|channel|>, <|message|>, <|constrain|>, <|end|>, <|call|> and <|return|>",
        )
    }

    /// The tokens by which it ends an output, beside the model's own.
    pub fn ends(self, tokenizer: &Tokenizer) -> Vec<u32> {
        match self {
            ReasoningFormat::Think => Vec::new(),
            ReasoningFormat::Harmony => {
                Marks::of(tokenizer).map_or_else(Vec::new, |marks| marks.ends().to_vec())
            }
        }
    }

    /// Where the output begins behind a prompt: templates may write the opening mark, or an empty thought where there is to be none.
    pub fn start(self, prompt: &str) -> ReasoningStart {
        if self == ReasoningFormat::Harmony {
            return harmony::start(prompt);
        }
        let end = prompt.trim_end();
        if end.ends_with(OPENING) {
            ReasoningStart::Open
        } else if end.ends_with(CLOSING) {
            ReasoningStart::Closed
        } else {
            ReasoningStart::Possible
        }
    }

    /// What stands before and behind reasoning.
    pub(crate) fn tags(self) -> &'static [&'static str] {
        match self {
            ReasoningFormat::Think => &[OPENING, CLOSING],
            ReasoningFormat::Harmony => &harmony::NAMES,
        }
    }

    /// The grammar, in llguidance's kind of Lark, of reasoning that the grammar named `form` follows; none behind it. `token` has the id of a
    /// mark that is one token: then that token is the mark, and no other way to write it. Calls say themselves that they are no answer.
    pub(crate) fn lark(
        self,
        start: ReasoningStart,
        form: &str,
        calls: bool,
        token: impl Fn(&str) -> Option<u32>,
    ) -> Option<String> {
        if self == ReasoningFormat::Harmony {
            let answer = if calls { format!("@{form}") } else { harmony::answer(form, &token)? };
            return harmony::lark(start, &answer, token);
        }
        let begun = match start {
            ReasoningStart::Closed => return None,
            ReasoningStart::Open => "thought".to_owned(),
            ReasoningStart::Possible => {
                let opening =
                    token(OPENING).map_or_else(|| format!("\"{OPENING}\""), |id| format!("<[{id}]>"));
                format!("({opening} thought)?")
            }
        };
        let closing = CLOSING.replace('/', "\\/");
        let thought = match token(CLOSING) {
            Some(id) => format!("thought: TEXT? <[{id}]>\nTEXT: /(?s:.+)/ & ~/(?s:.*){closing}(?s:.*)/"),
            // The lexer does not go back: the thought and its end are one word of it, which ends as soon as it can.
            None => format!("thought[lazy]: /(?s:.*){closing}/"),
        };
        Some(format!("start: {begun} @{form}\n{thought}"))
    }

    /// Marks of the tokenizer that a [`crate::Detokenizer`] has to show to the parser.
    pub fn marks(self, tokenizer: &Tokenizer) -> Vec<u32> {
        let marks = self.tags().iter().filter_map(|mark| tokenizer.token_id(mark));
        marks.filter(|id| tokenizer.is_special(*id)).collect()
    }
}

/// Reads one output: hands on each part of it, once it is known what that is. None is empty.
#[derive(Clone, Debug)]
pub struct ReasoningParser(Parser);

#[derive(Clone, Debug)]
enum Parser {
    Think(ThinkParser),
    Harmony(HarmonyParser),
}

impl ReasoningParser {
    /// At the beginning of an output, as this model writes it; none if its tokenizer lacks what the format needs.
    pub fn new(
        format: ReasoningFormat,
        start: ReasoningStart,
        tokenizer: &Tokenizer,
    ) -> Option<ReasoningParser> {
        Some(ReasoningParser(match format {
            ReasoningFormat::Think => Parser::Think(ThinkParser::new(start)),
            ReasoningFormat::Harmony => Parser::Harmony(HarmonyParser::new(Marks::of(tokenizer)?, start)),
        }))
    }

    /// What text is that comes now.
    pub fn channel(&self) -> Channel {
        match &self.0 {
            Parser::Think(parser) => parser.channel(),
            Parser::Harmony(parser) => parser.channel(),
        }
    }

    /// Takes the next token, and the text that it made ready.
    pub fn push(&mut self, token: u32, text: &str, out: &mut impl FnMut(Channel, String)) {
        match &mut self.0 {
            Parser::Think(parser) => parser.push(text, out),
            Parser::Harmony(parser) => parser.push(token, text, out),
        }
    }

    /// Takes the last text, which no token of its own comes with: what was held back comes out.
    pub fn finish(&mut self, text: &str, out: &mut impl FnMut(Channel, String)) {
        match &mut self.0 {
            Parser::Think(parser) => {
                parser.push(text, out);
                parser.finish(out);
            }
            Parser::Harmony(parser) => {
                parser.text(text, out);
                parser.finish(out);
            }
        }
    }
}

/// All of an output comes out, but for the marks and the white space before the first of them. Text that may still become a mark is held
/// back. There is one thought at most: behind it, and behind any other text, marks are text.
#[derive(Clone, Debug)]
struct ThinkParser {
    place: Place,
    /// Text of which it is not known yet what it is.
    held: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Nothing but white space has come.
    Before,
    Inside,
    Behind,
}

impl ThinkParser {
    fn new(start: ReasoningStart) -> ThinkParser {
        let place = match start {
            ReasoningStart::Possible => Place::Before,
            ReasoningStart::Open => Place::Inside,
            ReasoningStart::Closed => Place::Behind,
        };
        ThinkParser { place, held: String::new() }
    }

    fn channel(&self) -> Channel {
        if self.place == Place::Inside { Channel::Reasoning } else { Channel::Content }
    }

    fn push(&mut self, text: &str, out: &mut impl FnMut(Channel, String)) {
        self.held.push_str(text);
        if self.place == Place::Before {
            self.begin();
        }
        if self.place == Place::Inside {
            let (end, behind) = match self.held.find(CLOSING) {
                Some(at) => (at, Some(at + CLOSING.len())),
                None => (self.held.len() - beginning_of(CLOSING, &self.held), None),
            };
            let rest = self.held.split_off(behind.unwrap_or(end));
            let mut thought = std::mem::replace(&mut self.held, rest);
            thought.truncate(end);
            if !thought.is_empty() {
                out(Channel::Reasoning, thought);
            }
            if behind.is_some() {
                self.place = Place::Behind;
            }
        }
        if self.place == Place::Behind && !self.held.is_empty() {
            out(Channel::Content, std::mem::take(&mut self.held));
        }
    }

    fn finish(&mut self, out: &mut impl FnMut(Channel, String)) {
        if !self.held.is_empty() {
            out(self.channel(), std::mem::take(&mut self.held));
        }
    }

    /// Finds out whether the text begins with a thought.
    fn begin(&mut self) {
        let begun = self.held.trim_start();
        let space = self.held.len() - begun.len();
        if space <= MOST_SPACE && begun.starts_with(OPENING) {
            self.held.drain(..space + OPENING.len());
            self.place = Place::Inside;
        } else if space > MOST_SPACE || !OPENING.starts_with(begun) {
            self.place = Place::Behind;
        }
    }
}

/// Bytes at the end of a text with which `mark` may begin.
fn beginning_of(mark: &str, text: &str) -> usize {
    let most = text.len().min(mark.len() - 1);
    let begins = |&bytes: &usize| text.as_bytes()[text.len() - bytes..] == mark.as_bytes()[..bytes];
    (1..=most).rev().find(begins).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reasoning and content of an output that comes in these pieces.
    fn read<'p>(start: ReasoningStart, pieces: impl IntoIterator<Item = &'p str>) -> (String, String) {
        let (mut reasoning, mut content) = (String::new(), String::new());
        let mut out = |channel, text: String| {
            assert!(!text.is_empty());
            assert!(channel == Channel::Content || content.is_empty(), "reasoning behind content");
            if channel == Channel::Content { &mut content } else { &mut reasoning }.push_str(&text);
        };
        let mut parser = ThinkParser::new(start);
        pieces.into_iter().for_each(|piece| parser.push(piece, &mut out));
        parser.finish(&mut out);
        (reasoning, content)
    }

    /// The same by its definition, of the whole text.
    fn definition(start: ReasoningStart, text: &str) -> (String, String) {
        let inside = |text: &str| match text.split_once(CLOSING) {
            Some((reasoning, content)) => (reasoning.to_owned(), content.to_owned()),
            None => (text.to_owned(), String::new()),
        };
        let space = text.len() - text.trim_start().len();
        match (start, text.trim_start().strip_prefix(OPENING)) {
            (ReasoningStart::Open, _) => inside(text),
            (ReasoningStart::Possible, Some(text)) if space <= MOST_SPACE => inside(text),
            _ => (String::new(), text.to_owned()),
        }
    }

    #[test]
    fn a_thought_is_told_from_what_it_leads_to() {
        use ReasoningStart::{Closed, Open, Possible};
        for (start, text, reasoning, content) in [
            (Possible, "<think>\nhm\n</think>\n\nyes", "\nhm\n", "\n\nyes"),
            (Possible, "\n <think></think>yes", "", "yes"),
            (Possible, "yes <think>no</think>", "", "yes <think>no</think>"),
            (Possible, "<think>hm", "hm", ""),
            (Possible, "<thinking>", "", "<thinking>"),
            (Possible, " <thi", "", " <thi"),
            (Open, "hm</think>a</think>b", "hm", "a</think>b"),
            (Open, "<think>hm</thi</think>", "<think>hm</thi", ""),
            (Open, "hm</think", "hm</think", ""),
            (Closed, "<think>hm</think>", "", "<think>hm</think>"),
        ] {
            let wanted = (reasoning.to_owned(), content.to_owned());
            assert_eq!(read(start, [text]), wanted, "{start:?} {text}");
        }
    }

    #[test]
    fn white_space_is_not_held_for_ever() {
        let mut parser = ThinkParser::new(ReasoningStart::Possible);
        let mut held = 0;
        while parser.place == Place::Before {
            parser.push(" ", &mut |_, text| assert_eq!(text.len(), MOST_SPACE + 1));
            held += 1;
        }
        assert_eq!(held, MOST_SPACE + 1);
    }

    #[test]
    fn a_template_says_whether_and_where_a_model_thinks() {
        let format = ReasoningFormat::of_template("{{ content.split('</think>')[-1] }}");
        assert_eq!(format, Some(ReasoningFormat::Think));
        assert_eq!(ReasoningFormat::of_template("{{ messages[0].content }}"), None);
        let format = ReasoningFormat::of_template("<|start|>assistant<|channel|>analysis<|message|>");
        assert_eq!(format, Some(ReasoningFormat::Harmony));
        for (prompt, start) in [
            ("<|im_start|>assistant\n", ReasoningStart::Possible),
            ("<|Assistant|><think>\n", ReasoningStart::Open),
            ("<|im_start|>assistant\n<think>\n\n</think>\n\n", ReasoningStart::Closed),
            ("what is <think>?<|im_end|>\n<|im_start|>assistant\n", ReasoningStart::Possible),
        ] {
            assert_eq!(ReasoningFormat::Think.start(prompt), start, "{prompt}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2000, ..ProptestConfig::default() })]
        #[test]
        fn cutting_a_text_into_pieces_changes_nothing(
            parts in prop::collection::vec(prop_oneof![
                Just("<think>"), Just("</think>"), Just("<th"), Just("ink>"), Just("</"), Just("<"), Just(" \n"), Just("é"), Just("a"),
                Just("                                "),
            ], 0..10),
            start in prop_oneof![Just(ReasoningStart::Possible), Just(ReasoningStart::Open), Just(ReasoningStart::Closed)],
        ) {
            let whole = parts.concat();
            let wanted = definition(start, &whole);
            prop_assert_eq!(read(start, parts.iter().copied()), wanted.clone());
            prop_assert_eq!(read(start, [whole.as_str()]), wanted.clone());
            let ends = whole.char_indices().map(|(at, c)| &whole[at..at + c.len_utf8()]);
            prop_assert_eq!(read(start, ends), wanted.clone());
            let marks = whole.len() - wanted.0.len() - wanted.1.len();
            prop_assert!([0, OPENING.len(), CLOSING.len(), OPENING.len() + CLOSING.len()]
                .iter().any(|bytes| (*bytes..=*bytes + MOST_SPACE).contains(&marks)));
        }
    }
}
