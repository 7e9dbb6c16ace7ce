//! Tokens that must not be drawn: their logits become negative infinity, which the sampler never draws.

use super::SampleRow;

/// The tokens of such a vocabulary that may be drawn in a row's place, a bit each; none if all may. What [`super::sample`] leaves out by itself, for a
/// device that has to be told.
///
/// # Panics
/// If `history` and `since` do not reach exactly to `position`.
#[must_use]
pub fn mask_of(row: &SampleRow<'_>, vocabulary: usize) -> Option<Vec<u32>> {
    let SampleRow { position, sampling, history, since, allowed, .. } = *row;
    assert_eq!(history.len() + since.len(), position as usize, "tokens before position {position}");
    let goes_on = row.goes_on();
    if !goes_on && !sampling.forbids() && allowed.is_none() {
        return None;
    }
    let mut mask = vec![u32::MAX; vocabulary.div_ceil(32)];
    for allowed in [sampling.allowed.as_deref(), allowed].into_iter().flatten() {
        let words = allowed.iter().copied().chain(std::iter::repeat(0));
        mask.iter_mut().zip(words).for_each(|(word, allowed)| *word &= allowed);
    }
    let ends = if goes_on { sampling.ends.as_slice() } else { &[] };
    let banned = sampling.banned.iter().filter_map(|word| {
        let (last, before) = word.split_last()?;
        history.output_ends_with(since, before).then_some(last)
    });
    for token in ends.iter().chain(banned) {
        if let Some(word) = mask.get_mut(*token as usize / 32) {
            *word &= !(1 << (token % 32));
        }
    }
    Some(mask)
}

/// Leaves only the tokens whose bit is set; the first logit is that of token `first`.
pub(super) fn only(allowed: &[u32], first: u32, logits: &mut [f32]) {
    let mut rest = logits;
    let mut token = first as usize;
    while !rest.is_empty() {
        let word = allowed.get(token / 32).copied().unwrap_or(0);
        let (some, behind) = rest.split_at_mut(rest.len().min(32 - token % 32));
        token += some.len();
        rest = behind;
        if word != u32::MAX {
            let bits = word >> ((token - some.len()) % 32);
            let forbidden = some.iter_mut().enumerate().filter(|(bit, _)| bits >> bit & 1 == 0);
            forbidden.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
        }
    }
}

/// Whether the bit of a token is set.
pub(super) fn has(allowed: &[u32], token: u32) -> bool {
    allowed.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
}

/// Leaves all but these tokens.
pub(super) fn forbid(tokens: &[u32], first: u32, logits: &mut [f32]) {
    for token in tokens {
        if let Some(logit) = token.checked_sub(first).and_then(|at| logits.get_mut(at as usize)) {
            *logit = f32::NEG_INFINITY;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{History, Sampling};

    const OUT: f32 = f32::NEG_INFINITY;

    #[test]
    fn only_tokens_with_a_bit_stay_wherever_the_part_begins() {
        // Tokens 0, 33 and 63; none of the third word, which is not there.
        let allowed = [1, 1 << 1 | 1 << 31];
        let stays = |token: usize| [0, 33, 63].contains(&token);
        for first in [0, 1, 31, 32, 33, 40, 64] {
            let mut logits = [2.0; 70];
            only(&allowed, first, &mut logits);
            for (i, logit) in logits.into_iter().enumerate() {
                let wanted = if stays(first as usize + i) { 2.0 } else { OUT };
                assert_eq!(logit, wanted, "token {} of a part from {first}", first as usize + i);
            }
        }
        let mut all = [2.0; 64];
        only(&[u32::MAX; 2], 0, &mut all);
        assert_eq!(all, [2.0; 64]);
    }

    #[test]
    fn a_mask_leaves_what_the_sampler_leaves() {
        const VOCABULARY: usize = 70;
        let logits = crate::Tensor::from_rows(VOCABULARY, &[1.0; VOCABULARY]);
        let lane = crate::Lane::new(&crate::Partition { cores: vec![0] }, crate::Isa::Portable).unwrap();
        let may_be = |row: &SampleRow<'_>, token: u32| {
            // What is likeliest by far is drawn, if it may be.
            let sampling =
                Sampling { temperature: 0.0, logit_bias: vec![(token, 9.0)], ..row.sampling.clone() };
            let mut out = [0];
            super::super::sample(
                &lane,
                logits.view(1),
                &[SampleRow { sampling: &sampling, ..*row }],
                &mut out,
            );
            out[0] == token
        };
        let bits = |tokens: &[u32]| {
            let mut mask = vec![0u32; 3];
            tokens.iter().for_each(|token| mask[*token as usize / 32] |= 1 << (token % 32));
            mask
        };
        let (few, some) = (bits(&[0, 3, 33, 69]), bits(&[3, 5, 33, 64, 69]));
        let plain = Sampling::default();
        let cases = [
            (plain.clone(), None, false),
            (plain.clone(), Some(few.as_slice()), true),
            // Shorter than the vocabulary.
            (plain.clone(), Some(&few[..2]), true),
            (Sampling { allowed: Some(some.into()), ..plain.clone() }, Some(few.as_slice()), true),
            (Sampling { min_tokens: 4, ends: vec![3, 69, 900], ..plain.clone() }, None, true),
            (Sampling { min_tokens: 3, ends: vec![3], ..plain.clone() }, None, false),
            (Sampling { banned: vec![vec![7], vec![1, 8], vec![2, 9], vec![1, 2, 4]], ..plain }, None, true),
        ];
        for (sampling, allowed, masks) in cases {
            // Of the output, 1 and 2 at its end; a proposal more in the second place.
            let history = History::new(2, &[5, 5, 6, 1], &sampling);
            let row = SampleRow {
                row: 0,
                position: 5,
                sampling: &sampling,
                history: &history,
                since: &[2],
                allowed,
            };
            let mask = mask_of(&row, VOCABULARY);
            assert_eq!(mask.is_some(), masks, "{sampling:?}");
            for token in 0..VOCABULARY as u32 {
                let stays = mask.as_ref().is_none_or(|mask| has(mask, token));
                assert_eq!(stays, may_be(&row, token), "{token} of {sampling:?}");
            }
        }
    }

    #[test]
    fn forbidden_tokens_outside_of_the_part_are_no_matter() {
        let mut logits = [1.0; 4];
        forbid(&[1, 10, 12, 14], 10, &mut logits);
        assert_eq!(logits, [OUT, 1.0, OUT, 1.0]);
    }
}
