//! `allowed_token_ids` and `bad_words`, as in vLLM: tokens that alone may be drawn, and texts of which no output has the tokens.

use std::collections::HashSet;
use std::sync::Arc;

use faser_actors::Sampling;
use faser_engine::TokenId;
use serde_json::Value;

use super::errors::ApiError;
use super::params::token_ids;
use crate::app::Served;
use crate::fields::{Fault, FieldError, Fields, at_most, each, wrong_type, wrong_value};

/// Bad words of a request at most, and bytes of each: together no more than a thread that serves everybody may tokenize.
const MAX_BAD_WORDS: usize = 128;
const MAX_BAD_WORD_BYTES: usize = 64;
const ALLOWED: &str = "allowed_token_ids";
const BAD_WORDS: &str = "bad_words";

/// The tokens that may be drawn, a bit each; none if all may.
///
/// # Errors
/// It is no list of token ids, or an empty one.
pub(super) fn allowed_tokens(
    fields: &mut Fields<'_>,
    vocab: usize,
) -> Result<Option<Arc<[u32]>>, FieldError> {
    let path = fields.path(ALLOWED);
    let Some(list) = fields.list(ALLOWED)? else { return Ok(None) };
    if list.is_empty() {
        return Err(FieldError::new(
            path,
            Fault::Value,
            "is an empty list, so that nothing could be written",
        ));
    }
    let mut bits = vec![0; vocab.div_ceil(32)];
    for id in token_ids(&path, list, vocab, vocab)? {
        // Ids are below `vocab`.
        if let Some(word) = bits.get_mut(id as usize / 32) {
            *word |= 1 << (id % 32);
        }
    }
    Ok(Some(bits.into()))
}

/// Texts of which no output is to have the tokens.
///
/// # Errors
/// It is no list of texts, or there are too many or too long ones.
pub(super) fn bad_words(fields: &mut Fields<'_>) -> Result<Vec<String>, FieldError> {
    let path = fields.path(BAD_WORDS);
    let list = fields.list(BAD_WORDS)?.unwrap_or_default();
    at_most(&path, list.len(), MAX_BAD_WORDS, "words")?;
    let wanted = format!("a string of 1 to {MAX_BAD_WORD_BYTES} bytes that is not only white space");
    each(&path, list, |path, value| match value {
        Value::String(text) if text.len() <= MAX_BAD_WORD_BYTES && !text.trim().is_empty() => {
            Ok(text.clone())
        }
        Value::String(_) => Err(wrong_value(&path, &wanted, value)),
        other => Err(wrong_type(&path, &wanted, other)),
    })
}

/// Tokens of bad words, of each as it is and with a space before it: both at the beginning of a text and within one.
///
/// # Errors
/// 400: the tokenizer cannot express one.
pub(super) fn banned(served: &Served, words: &[String]) -> Result<Vec<Vec<TokenId>>, ApiError> {
    let mut banned: Vec<Vec<TokenId>> = Vec::new();
    for word in words {
        let word = word.trim_start();
        for text in [word.to_owned(), format!(" {word}")] {
            let ids = served.tokenizer.encode(&text, false)?;
            if !ids.is_empty() && !banned.contains(&ids) {
                banned.push(ids);
            }
        }
    }
    Ok(banned)
}

/// Refuses a request to which no token might be left.
///
/// # Errors
/// 400: of what is allowed, all may be forbidden at once.
pub(super) fn check_left(sampling: &Sampling, vocab: usize, ends: &[TokenId]) -> Result<(), ApiError> {
    let lasts = sampling.banned.iter().filter_map(|word| word.last());
    let barred: HashSet<TokenId> = lasts.chain(ends).copied().collect();
    let (name, left) = match &sampling.allowed {
        None => (BAD_WORDS, vocab > barred.len()),
        Some(bits) => {
            let mut allowed = (0..vocab as TokenId)
                .filter(|id| bits.get(*id as usize / 32).is_some_and(|word| word >> (id % 32) & 1 == 1));
            (ALLOWED, allowed.any(|id| !barred.contains(&id)))
        }
    };
    if left {
        return Ok(());
    }
    let problem = "leaves no token that `bad_words` and `min_tokens` do not forbid";
    Err(FieldError::new(name, Fault::Value, problem).into())
}
