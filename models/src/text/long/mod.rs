//! Long texts: one that has too many tokens is found out before it is tokenized, or after a part of it; the others are tokenized in pieces, for
//! a tokenizer takes more than a hundred bytes of memory for each byte of text that it is given at once.

mod cuts;
mod fewest;
mod pipeline;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use faser_kernels::give_memory_back;
use tokenizers::{Encoding, Token, Tokenizer};

use self::cuts::{Cuts, boundary};
use self::fewest::{Fewest, weight_of};
use self::pipeline::Pipeline;
use super::catch_panic::catch_panic;
use crate::ModelError;

/// Bytes of a piece, and a few more up to the next cut.
const PIECE: usize = 32 << 10;
/// Bytes to look for a cut in. Where there is none the rest is one piece: the pattern that splits a text into words gives up over some hundred
/// thousand characters of one kind, and does not split what comes after them any more.
const STRETCH: usize = 256 << 10;
/// Pieces of more bytes are tokenized one at a time, and their memory is given back.
const LARGE_PIECE: usize = 128 << 10;

/// Whether a text is more than one piece.
pub(super) fn is_long(text: &str) -> bool {
    text.len() > PIECE
}

/// The tokens of a text, of which there may be too many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Encoded {
    /// All of them, however many.
    All(Vec<u32>),
    /// More than were asked for; how many more is not known.
    TooMany,
}

/// What is known of a tokenizer for the sake of long texts.
pub(super) struct Long {
    piece: usize,
    stretch: usize,
    cuts: Option<Cuts>,
    fewest: Option<Fewest>,
    around: Option<Around>,
    large: Mutex<()>,
}

/// What the tokenizer puts around a text, if it is asked to.
#[derive(Clone, Default)]
struct Around {
    before: Vec<u32>,
    after: Vec<u32>,
}

impl Long {
    pub(super) fn of(inner: &Tokenizer) -> Long {
        let pipeline = Pipeline::of(inner);
        Long {
            piece: PIECE,
            stretch: STRETCH,
            cuts: pipeline.and_then(|pipeline| Cuts::of(inner, pipeline)),
            fewest: pipeline.and_then(|pipeline| Fewest::of(inner, pipeline)),
            around: Around::of(inner),
            large: Mutex::default(),
        }
    }

    /// The ids of a text, unless it is long and has more tokens than `most`.
    pub(super) fn encode(
        &self,
        inner: &Tokenizer,
        text: &str,
        add_special: bool,
        most: usize,
    ) -> Result<Encoded, ModelError> {
        if text.len() <= self.piece {
            return self.whole(inner, text, add_special).map(Encoded::All);
        }
        let too_heavy = weight_of(most);
        let mut rest = self.weight(text, too_heavy.saturating_add(1));
        if rest > too_heavy {
            return Ok(Encoded::TooMany);
        }
        let around = if add_special { self.around.clone() } else { Some(Around::default()) };
        let (Some(cuts), Some(Around { before: mut ids, after })) = (&self.cuts, around) else {
            return self.whole(inner, text, add_special).map(Encoded::All);
        };
        let mut start = 0;
        while start < text.len() {
            let end = cuts.find(text, start + self.piece, start + self.stretch).unwrap_or(text.len());
            let Some(piece) = self.piece(inner, text, start..end)? else {
                return self.whole(inner, text, add_special).map(Encoded::All);
            };
            ids.extend(piece);
            rest = rest.saturating_sub(self.weight(&text[start..end], u64::MAX));
            if weight_of(ids.len() + after.len()).saturating_add(rest) > too_heavy {
                return Ok(Encoded::TooMany);
            }
            start = end;
        }
        ids.extend(after);
        Ok(Encoded::All(ids))
    }

    /// The first ids of a text. Where a long one cannot be cut for sure it is cut anywhere: the ids there may not be those of the whole.
    pub(super) fn beginning(
        &self,
        inner: &Tokenizer,
        text: &str,
        most: usize,
    ) -> Result<Vec<u32>, ModelError> {
        let (mut ids, mut start) = (Vec::new(), 0);
        while start < text.len() && ids.len() < most {
            let (from, to) = (start + self.piece, start + 2 * self.piece);
            let cut = self.cuts.as_ref().and_then(|cuts| cuts.find(text, from, to));
            let end = cut.unwrap_or_else(|| boundary(text, from));
            ids.extend(match self.piece(inner, text, start..end)? {
                Some(ids) => ids,
                None => self.whole(inner, &text[start..end], false)?,
            });
            start = end;
        }
        ids.truncate(most);
        Ok(ids)
    }

    fn weight(&self, text: &str, enough: u64) -> u64 {
        self.fewest.as_ref().map_or(0, |fewest| fewest.weight(text, enough))
    }

    /// The ids of a piece behind a cut. It is tokenized together with the letter before it, whose ids are left out: none if they are not there,
    /// which must not be.
    fn piece(
        &self,
        inner: &Tokenizer,
        text: &str,
        piece: Range<usize>,
    ) -> Result<Option<Vec<u32>>, ModelError> {
        let letter = text[..piece.start].char_indices().next_back().map_or(0, |(at, _)| at);
        let before = self.whole(inner, &text[letter..piece.start], false)?;
        let mut ids = self.whole(inner, &text[letter..piece.end], false)?;
        Ok(ids.starts_with(&before).then(|| ids.split_off(before.len())))
    }

    fn whole(&self, inner: &Tokenizer, text: &str, add_special: bool) -> Result<Vec<u32>, ModelError> {
        let large = text.len() > LARGE_PIECE;
        let _alone = large.then(|| self.large.lock().unwrap_or_else(PoisonError::into_inner));
        let encoding =
            catch_panic(|| inner.encode_fast(text, add_special)).unwrap_or_else(|why| Err(why.into()));
        let ids = encoding.map(|encoding| encoding.get_ids().to_vec());
        if large {
            give_memory_back();
        }
        ids.map_err(|err| ModelError::Tokenize(err.to_string()))
    }
}

impl Around {
    /// Found out with a token that no vocabulary has; none if it is not there once.
    fn of(inner: &Tokenizer) -> Option<Around> {
        const MARK: u32 = u32::MAX;
        let text = Encoding::from_tokens(vec![Token::new(MARK, "x".to_owned(), (0, 1))], 0);
        let encoding = catch_panic(|| inner.post_process(text, None, true)).ok()?.ok()?;
        let mut sides = encoding.get_ids().split(|id| *id == MARK);
        let (before, after) = (sides.next()?.to_vec(), sides.next()?.to_vec());
        sides.next().is_none().then_some(Around { before, after })
    }
}
