//! `add_special_tokens` and `truncate_prompt_tokens`, as in vLLM: what becomes of a prompt on its way to tokens.

use std::sync::Arc;

use faser_engine::TokenId;

use super::answer::Shape;
use super::bounds::Bounds;
use crate::fields::{FieldError, Fields, wrong_type, wrong_value};

/// What a request says of its prompts' tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PromptTokens {
    /// Whether the tokenizer adds its own; if nothing is said it does for texts, and not for chats, whose templates write them.
    pub add_special: Option<bool>,
    /// What of longer prompts is kept.
    pub kept: Kept,
}

/// What of a prompt is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kept {
    /// All of it.
    #[default]
    All,
    /// The last tokens, so many.
    Last(usize),
    /// The last tokens, as many as the context holds beside the output.
    Fitting,
}

/// Reads both; responses have neither.
///
/// # Errors
/// One of them is wrong.
pub(super) fn prompt_tokens(
    fields: &mut Fields<'_>,
    shape: Shape,
    bounds: &Bounds<'_>,
) -> Result<PromptTokens, FieldError> {
    const TRUNCATE: &str = "truncate_prompt_tokens";
    if shape == Shape::Response {
        return Ok(PromptTokens::default());
    }
    let add_special = fields.flag("add_special_tokens")?;
    let kept = match fields.value(TRUNCATE) {
        None => Kept::All,
        Some(value) if value.as_i64() == Some(-1) => Kept::Fitting,
        Some(value) => {
            let wanted = format!("-1 or a whole number from 1 to {}", bounds.max_context);
            let most = value.as_u64().filter(|most| (1..=bounds.max_context as u64).contains(most));
            let wrong = if value.is_number() { wrong_value } else { wrong_type };
            Kept::Last(most.ok_or_else(|| wrong(&fields.path(TRUNCATE), &wanted, value))? as usize)
        }
    };
    Ok(PromptTokens { add_special, kept })
}

impl Kept {
    /// What is kept of `ids`, where the context holds `max_context` tokens of which `output` are to be written; none if it is all of them.
    pub(super) fn of(self, ids: &[TokenId], max_context: usize, output: usize) -> Option<Arc<[TokenId]>> {
        let most = match self {
            Kept::All => return None,
            Kept::Last(most) => most,
            Kept::Fitting => max_context.saturating_sub(output).max(1),
        };
        let first = ids.len().checked_sub(most).filter(|first| *first > 0)?;
        Some(ids.get(first..)?.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_tokens_are_kept() {
        let kept = |kept: Kept| kept.of(&[1, 2, 3, 4], 8, 6).map(|ids| ids.to_vec());
        assert_eq!([kept(Kept::All), kept(Kept::Last(4)), kept(Kept::Last(9))], [None, None, None]);
        assert_eq!(kept(Kept::Last(1)), Some(vec![4]));
        assert_eq!(kept(Kept::Fitting), Some(vec![3, 4]));
        assert_eq!(Kept::Fitting.of(&[1, 2], 8, 9).map(|ids| ids.to_vec()), Some(vec![2]));
    }
}
