//! Tokens that must not be drawn: their logits become negative infinity, which the sampler never draws.

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
    fn forbidden_tokens_outside_of_the_part_are_no_matter() {
        let mut logits = [1.0; 4];
        forbid(&[1, 10, 12, 14], 10, &mut logits);
        assert_eq!(logits, [OUT, 1.0, OUT, 1.0]);
    }
}
