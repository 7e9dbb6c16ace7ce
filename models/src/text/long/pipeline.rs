//! What a tokenizer does to a text before its model sees words: as far as it is known here, stage by stage.

use tokenizers::normalizers::{NormalizerWrapper, Replace};
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{PreTokenizerWrapper, SplitDelimiterBehavior, Tokenizer};

/// Patterns that find words in the way of GPT-2, Llama 3, Qwen 2 and Mistral NeMo. They have in common what [`super::cuts`] stands on: none looks
/// back, none has letters and other characters than letters and marks after one another, but for the `'s` of contractions, and what looks
/// ahead looks behind white space alone. So a run of letters ends a match, and it does not matter to matches what came before.
const WORDS: [&str; 5] = [
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
];

/// Between which words a text is split for sure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Splits {
    /// Between none: the model sees the text as one word.
    Nowhere,
    /// Before a space.
    AtSpaces,
    /// Between a letter and what is neither letter, mark, number nor apostrophe.
    AtWords,
    /// Nobody knows.
    Unknown,
}

/// Stages of which none takes anything away from a text, or shortens it but by composing characters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pipeline {
    /// How the model sees a space.
    pub(super) space: char,
    /// Whether characters are composed (NFC).
    pub(super) composes: bool,
    /// Whether the model sees bytes, each as a printable character.
    pub(super) byte_level: bool,
    pub(super) splits: Splits,
}

impl Pipeline {
    /// The stages of a tokenizer; none if there is one among them that may take text away, or is not known.
    pub(super) fn of(inner: &Tokenizer) -> Option<Pipeline> {
        let mut pipeline =
            Pipeline { space: ' ', composes: false, byte_level: false, splits: Splits::Nowhere };
        if let Some(normalizer) = inner.get_normalizer() {
            pipeline.normalize(normalizer)?;
        }
        if let Some(pre_tokenizer) = inner.get_pre_tokenizer() {
            pipeline.pre_tokenize(pre_tokenizer)?;
        }
        Some(pipeline)
    }

    fn normalize(&mut self, stage: &NormalizerWrapper) -> Option<()> {
        match stage {
            NormalizerWrapper::Sequence(stages) => {
                stages.as_ref().iter().try_for_each(|stage| self.normalize(stage))
            }
            NormalizerWrapper::Prepend(_) => Some(()),
            // Spaces written otherwise before it might compose with what follows.
            NormalizerWrapper::NFC(_) if self.space == ' ' => {
                self.composes = true;
                Some(())
            }
            NormalizerWrapper::Replace(replace) => self.write_space(replacement_of_spaces(replace)?),
            _ => None,
        }
    }

    fn pre_tokenize(&mut self, stage: &PreTokenizerWrapper) -> Option<()> {
        if self.byte_level {
            // Characters are not what they were.
            return None;
        }
        match stage {
            PreTokenizerWrapper::Sequence(stages) => {
                stages.as_ref().iter().try_for_each(|stage| self.pre_tokenize(stage))
            }
            PreTokenizerWrapper::ByteLevel(stage) => {
                if stage.use_regex {
                    self.split(if self.space == ' ' { Splits::AtWords } else { Splits::Unknown });
                }
                self.byte_level = true;
                Some(())
            }
            // Between numbers and all else; no number is a letter.
            PreTokenizerWrapper::Digits(_) => Some(()),
            PreTokenizerWrapper::Metaspace(stage) => {
                if stage.get_replacement() != self.space {
                    self.write_space(stage.get_replacement())?;
                }
                if stage.get_split() {
                    self.split(Splits::AtSpaces);
                }
                Some(())
            }
            PreTokenizerWrapper::Split(stage) if stage.behavior != SplitDelimiterBehavior::Removed => {
                self.split(if self.space == ' ' { split_by(stage) } else { Splits::Unknown });
                Some(())
            }
            _ => None,
        }
    }

    /// What splits once splits for good.
    fn split(&mut self, splits: Splits) {
        self.splits = match (self.splits, splits) {
            (Splits::Unknown, _) | (_, Splits::Unknown) => Splits::Unknown,
            (Splits::AtWords, _) | (_, Splits::AtWords) => Splits::AtWords,
            _ => splits,
        };
    }

    fn write_space(&mut self, space: char) -> Option<()> {
        let first = self.space == ' ' && !space.is_whitespace() && !space.is_alphanumeric();
        first.then(|| self.space = space)
    }
}

fn split_by(stage: &Split) -> Splits {
    let known = matches!(&stage.pattern, SplitPattern::Regex(regex) if WORDS.contains(&regex.as_str()));
    if known && !stage.invert && stage.behavior == SplitDelimiterBehavior::Isolated {
        Splits::AtWords
    } else {
        Splits::Unknown
    }
}

/// The character that takes the place of each space, if that is all it does.
fn replacement_of_spaces(replace: &Replace) -> Option<char> {
    // The pattern can be had in this way alone.
    let json = serde_json::to_value(replace).ok()?;
    let mut content = replace.content.chars();
    let (only, None) = (content.next()?, content.next()) else { return None };
    (json["pattern"]["String"] == " ").then_some(only)
}
