//! How few tokens a text can have, by its bytes alone.
//!
//! A token covers no more bytes of a text than it has itself, and those that it has. So let a byte weigh one over the length of the longest
//! token that has it: the bytes that a token covers weigh 1 together at most, and a text has no fewer tokens than its bytes weigh.

use std::collections::HashSet;

use tokenizers::{ModelWrapper, Tokenizer};

use super::pipeline::Pipeline;
use crate::text::bytes;

/// What a whole token weighs.
const TOKEN: u64 = 1 << 32;

/// Bytes that no text has.
const NOT_IN_UTF8: [u8; 13] = [0xc0, 0xc1, 0xf5, 0xf6, 0xf7, 0xf8, 0xf9, 0xfa, 0xfb, 0xfc, 0xfd, 0xfe, 0xff];

/// What the bytes of a text weigh.
pub(super) struct Fewest {
    weights: [u64; 256],
    /// Whether characters are composed, and those that might be weigh nothing.
    composes: bool,
    /// Whether added tokens take white space along, which weighs nothing then.
    strips: bool,
}

impl Fewest {
    /// None if a token may stand for text of any length.
    pub(super) fn of(inner: &Tokenizer, pipeline: Pipeline) -> Option<Fewest> {
        let ModelWrapper::BPE(model) = inner.get_model() else { return None };
        let plain = [&model.continuing_subword_prefix, &model.end_of_word_suffix]
            .into_iter()
            .all(|affix| affix.as_ref().is_none_or(String::is_empty));
        let vocab = model.get_vocab();
        let ids: HashSet<u32> = vocab.values().copied().collect();
        // Bytes without a token of their own are left out, or any number of them is one unknown token.
        let of_one_byte: HashSet<u8> =
            vocab.keys().filter_map(|token| byte_of(token, pipeline.byte_level)).collect();
        let all_bytes = (pipeline.byte_level || model.byte_fallback)
            && (0..=255).all(|byte| NOT_IN_UTF8.contains(&byte) || of_one_byte.contains(&byte));
        if !plain || !all_bytes || ids.len() != vocab.len() {
            return None;
        }
        let mut longest = [1_u64; 256];
        let mut strips = false;
        for token in vocab.keys() {
            if pipeline.byte_level {
                note(&mut longest, &bytes::of_byte_level_token(token), pipeline);
            } else if bytes::of_fallback_token(token).is_none() {
                if token.contains("<0x") {
                    // It may be made of bytes that are not its own.
                    longest.iter_mut().for_each(|most| *most = (*most).max(token.len() as u64));
                }
                note(&mut longest, token.as_bytes(), pipeline);
            }
        }
        for token in inner.get_added_tokens_decoder().into_values() {
            note(&mut longest, token.content.as_bytes(), pipeline);
            strips |= token.lstrip || token.rstrip;
        }
        Some(Fewest { weights: longest.map(|most| TOKEN / most), composes: pipeline.composes, strips })
    }

    /// What a text weighs, or a part of it; it is not looked at further than to this weight.
    pub(super) fn weight(&self, text: &str, enough: u64) -> u64 {
        let mut weight = 0;
        if !self.composes && !self.strips {
            for bytes in text.as_bytes().chunks(4096) {
                weight += bytes.iter().map(|byte| self.weights[usize::from(*byte)]).sum::<u64>();
                if weight >= enough {
                    break;
                }
            }
            return weight;
        }
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            let stays =
                !self.composes || is_composed(c) && chars.peek().is_none_or(|next| is_composed(*next));
            let stripped = self.strips && c.is_whitespace();
            if stays && !stripped {
                let mut buffer = [0; 4];
                let bytes = c.encode_utf8(&mut buffer).bytes();
                weight += bytes.map(|byte| self.weights[usize::from(byte)]).sum::<u64>();
                if weight >= enough {
                    break;
                }
            }
        }
        weight
    }
}

/// The byte that a token is, if it is one.
fn byte_of(token: &str, byte_level: bool) -> Option<u8> {
    if !byte_level {
        return bytes::of_fallback_token(token);
    }
    let mut chars = token.chars();
    let (Some(_), None) = (chars.next(), chars.next()) else { return None };
    match bytes::of_byte_level_token(token)[..] {
        [byte] => Some(byte),
        _ => None,
    }
}

/// What so many whole tokens weigh: a text that weighs more has more.
pub(super) fn weight_of(tokens: usize) -> u64 {
    (tokens as u64).saturating_mul(TOKEN)
}

fn note(longest: &mut [u64; 256], token: &[u8], pipeline: Pipeline) {
    let len = token.len() as u64;
    let mut has = |byte: u8| {
        let most = &mut longest[usize::from(byte)];
        *most = (*most).max(len);
    };
    token.iter().for_each(|byte| has(*byte));
    let mut space = [0; 4];
    let space = pipeline.space.encode_utf8(&mut space).as_bytes();
    if token.windows(space.len()).any(|part| part == space) {
        has(b' ');
    }
}

/// Characters that NFC leaves as they are, unless one of other kinds follows: none is a mark, none takes part in a composition but as its
/// first.
fn is_composed(c: char) -> bool {
    matches!(c,
        '\0'..='\u{2ff}' // Latin
        | '\u{400}'..='\u{482}' | '\u{48a}'..='\u{52f}' // Cyrillic
        | '\u{2010}'..='\u{2027}' | '\u{2500}'..='\u{257f}' // Punctuation, boxes
        | '\u{3000}'..='\u{3029}' | '\u{3041}'..='\u{3096}' | '\u{30a0}'..='\u{30ff}' // Kana
        | '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}' // Ideographs
        | '\u{ac00}'..='\u{d7a3}' // Hangul
        | '\u{ff01}'..='\u{ff60}' // Full width
        | '\u{1f300}'..='\u{1faff}' // Pictures
    )
}

#[cfg(test)]
mod tests {
    use tokenizers::normalizers::NFC;
    use tokenizers::{NormalizedString, Normalizer};

    use super::*;

    /// With every neighbour of the same kind that might be its partner: those that are ever second in a composition are none of them.
    #[test]
    fn composed_characters_stay_as_they_are() {
        let all: Vec<char> = (0..0x11_0000).filter_map(char::from_u32).filter(|c| is_composed(*c)).collect();
        let whole: String = all.iter().collect();
        let text = whole.clone() + &all.iter().rev().collect::<String>();
        for text in [text, all.iter().flat_map(|c| ['e', *c, 'は', *c, '가', *c]).collect()] {
            let mut composed = NormalizedString::from(text.as_str());
            NFC.normalize(&mut composed).unwrap();
            assert!(composed.get() == text);
        }
    }
}
