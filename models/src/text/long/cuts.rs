//! Where a text may be cut so that the tokens of its pieces, one after the other, are those of the whole.
//!
//! A cut is between a letter and a space or punctuation. What is before it gets the tokens that it would get alone, and what is behind it gets
//! tokens that depend on nothing before that letter, because
//! - no added token begins, ends or is at such a place, and a letter stops the white space that some take along;
//! - of the normalizers one composes characters, and neither side of a cut composes with the other; the others work on single characters, or
//!   at the beginning of a text: a piece is tokenized behind its letter, so that it is not at the beginning;
//! - the text is split into words there, whatever is around it, or else no token of the model's has these two characters next to each other,
//!   and then no merge joins them.

use std::collections::HashSet;

use tokenizers::{ModelWrapper, NormalizedString, Normalizer, Tokenizer};

use super::pipeline::{Pipeline, Splits};

/// Characters before which there may be a cut: no letters, marks, numbers or apostrophes, none that composes with what stands before it.
const BREAKS: &[char] =
    &[' ', '\n', '\r', '\t', ',', '.', ';', ':', '!', '?', ')', '-', '、', '。', '，', '！', '？'];

/// Where a tokenizer's texts may be cut.
#[derive(Debug)]
pub(super) struct Cuts {
    pipeline: Pipeline,
    /// Two characters that some token has next to each other.
    together: HashSet<(char, char)>,
    /// Characters by which added tokens begin.
    first: HashSet<char>,
    /// Characters by which added tokens end.
    last: HashSet<char>,
    /// Characters that the model has tokens for, if the text is not split.
    known: Option<HashSet<char>>,
}

impl Cuts {
    /// None if a text cannot be cut anywhere for sure.
    pub(super) fn of(inner: &Tokenizer, pipeline: Pipeline) -> Option<Cuts> {
        let ModelWrapper::BPE(model) = inner.get_model() else { return None };
        let sure = model.dropout.is_none_or(|dropout| dropout == 0.0);
        if !sure || pipeline.splits == Splits::Unknown {
            return None;
        }
        let mut cuts = Cuts {
            pipeline,
            together: HashSet::new(),
            first: HashSet::new(),
            last: HashSet::new(),
            known: None,
        };
        for token in inner.get_added_tokens_decoder().into_values() {
            cuts.keep_whole(&token.content);
            if token.normalized
                && let Some(normalizer) = inner.get_normalizer()
            {
                let mut content = NormalizedString::from(token.content);
                normalizer.normalize(&mut content).ok()?;
                cuts.keep_whole(content.get());
            }
        }
        if pipeline.splits == Splits::Nowhere {
            let plain = [&model.continuing_subword_prefix, &model.end_of_word_suffix]
                .into_iter()
                .all(|affix| affix.as_ref().is_none_or(String::is_empty));
            // With `ignore_merges` a last piece might be a token that the whole is not.
            if !plain || model.ignore_merges || pipeline.byte_level {
                return None;
            }
            let mut known = HashSet::new();
            for token in model.get_vocab().into_keys() {
                let mut chars = token.chars();
                if let (Some(only), None) = (chars.next(), chars.next()) {
                    known.insert(only);
                }
                cuts.together.extend(pairs(&token));
            }
            cuts.known = Some(known);
        }
        Some(cuts)
    }

    fn keep_whole(&mut self, token: &str) {
        self.first.extend(token.chars().next());
        self.last.extend(token.chars().next_back());
        self.together.extend(pairs(token));
    }

    /// The first cut at this byte or behind it, but before the other.
    pub(super) fn find(&self, text: &str, from: usize, to: usize) -> Option<usize> {
        let (from, to) = (boundary(text, from), boundary(text, to));
        let mut before = text[..from].chars().next_back()?;
        for (at, next) in text[from..to].char_indices() {
            if self.permits(before, next) {
                return Some(from + at);
            }
            before = next;
        }
        None
    }

    fn permits(&self, before: char, next: char) -> bool {
        if !BREAKS.contains(&next) || !is_plain_letter(before) {
            return false;
        }
        let seen = if next == ' ' { self.pipeline.space } else { next };
        let apart = |next| !self.first.contains(&next) && !self.together.contains(&(before, next));
        let split = match self.pipeline.splits {
            Splits::AtWords => true,
            Splits::AtSpaces => next == ' ',
            Splits::Nowhere => {
                self.known.as_ref().is_some_and(|known| known.contains(&before) && known.contains(&seen))
            }
            Splits::Unknown => false,
        };
        split && !self.last.contains(&before) && apart(next) && apart(seen)
    }
}

fn pairs(token: &str) -> impl Iterator<Item = (char, char)> {
    token.chars().zip(token.chars().skip(1))
}

/// The end of a character at or behind this byte.
pub(super) fn boundary(text: &str, at: usize) -> usize {
    (at..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len())
}

/// Letters that are written the same in NFC, whatever is before them, if no mark follows.
fn is_plain_letter(c: char) -> bool {
    matches!(c,
        'a'..='z' | 'A'..='Z'
        | 'À'..='Ö' | 'Ø'..='ö' | 'ø'..='ÿ'
        | 'Ё' | 'А'..='я' | 'ё'
        | '\u{3041}'..='\u{3096}' | '\u{30a1}'..='\u{30fa}' // Kana
        | '\u{4e00}'..='\u{9fff}' // Ideographs
        | '\u{ac00}'..='\u{d7a3}' // Hangul
    )
}

#[cfg(test)]
mod tests {
    use tokenizers::normalizers::NFC;

    use super::*;

    #[test]
    fn neither_side_of_a_cut_is_changed_by_composing() {
        let letters = (0..0x11_0000).filter_map(char::from_u32).filter(|c| is_plain_letter(*c));
        for letter in letters {
            assert!(letter.is_alphabetic());
            for text in [format!("e{letter} "), format!("\u{1100}{letter}.")] {
                let mut composed = NormalizedString::from(text.as_str());
                NFC.normalize(&mut composed).unwrap();
                assert_eq!(composed.get(), text);
            }
        }
        for next in BREAKS {
            assert!(!next.is_alphanumeric());
            for mark in ['\u{300}', '\u{301}', '\u{327}', '\u{338}', '\u{3099}'] {
                let text = format!("a{next}{mark}");
                let mut composed = NormalizedString::from(text.as_str());
                NFC.normalize(&mut composed).unwrap();
                assert_eq!(composed.get(), text);
            }
        }
    }
}
