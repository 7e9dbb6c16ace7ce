//! Texts that repeat themselves or one another: what prompt-lookup and past outputs live on.
//!
//! A text of phrases is written by a rule as simple as that of all others: behind a token of a phrase comes its next one, until
//! the text leaves the phrase; then come a few tokens of its own, and the beginning of some phrase again. Where it leaves and
//! what it goes on with is a function of (seed, prefix) alone. The phrases are a request's own, and stand in its prompt as
//! what it quotes and edits does; or all requests of a class have the same, which no prompt has.

use super::kv::Prefix;
use super::random::{mix, uniform};
use crate::request::TokenId;

/// Whose phrases a text is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phrases {
    /// None: each token is new.
    None,
    /// Its own, which its prompt has too.
    OfRequest,
    /// Those of its class.
    OfClass,
}

/// Phrases of a text, and tokens of each.
const COUNT: u64 = 6;
const TOKENS: u64 = 40;
/// Chances at each token that the text leaves its phrase, and that it comes back to one.
const LEAVES: f64 = 0.06;
const RETURNS: f64 = 0.4;
/// Requests that are told apart by their phrases.
const REQUESTS: u64 = 1024;
/// Tokens of phrases begin here, above every vocabulary that is simulated.
const FIRST: u64 = 1 << 18;

impl Phrases {
    /// The token behind a prefix, if a phrase has it.
    pub(super) fn next(self, seed: u64, prefix: &Prefix) -> Option<TokenId> {
        let first = self.first(prefix)?;
        let coin = |salt: u64| mix(prefix.fingerprint.rotate_left(11) ^ seed ^ salt);
        let place = u64::from(prefix.last).checked_sub(first).filter(|place| *place < COUNT * TOKENS);
        let goes_on = place.is_some_and(|place| (place + 1) % TOKENS != 0 && uniform(coin(1)) >= LEAVES);
        if goes_on {
            return Some(prefix.last + 1);
        }
        let phrase = coin(2) % COUNT;
        (uniform(coin(3)) < RETURNS).then(|| (first + phrase * TOKENS) as TokenId)
    }

    /// The tokens of all phrases that a prompt is to have, whose first tokens are those of `prefix`.
    pub(super) fn quoted(self, prefix: &Prefix) -> impl Iterator<Item = TokenId> + use<> {
        let first = if self == Phrases::OfRequest { self.first(prefix) } else { None };
        first.into_iter().flat_map(|first| (first..first + COUNT * TOKENS).map(|token| token as TokenId))
    }

    fn first(self, prefix: &Prefix) -> Option<u64> {
        let set = match self {
            Phrases::None => return None,
            Phrases::OfRequest => mix(prefix.origin.request) % REQUESTS,
            Phrases::OfClass => REQUESTS + u64::from(prefix.origin.class) % REQUESTS,
        };
        Some(FIRST + set * COUNT * TOKENS)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// A text of so many tokens behind a prompt that says which class and request it is of.
    fn text(phrases: Phrases, class: TokenId, request: TokenId) -> Vec<TokenId> {
        let mut prefix = Prefix::of(&[&[class][..], &[request; 10]].concat());
        let mut text = Vec::new();
        for place in 0..600 {
            let token = phrases.next(3, &prefix).unwrap_or(1000 * request + place);
            text.push(token);
            prefix = prefix.then(token);
        }
        text
    }

    /// The share of a text's runs of four tokens that another one has.
    fn in_common(a: &[TokenId], b: &[TokenId]) -> f64 {
        let of_b: HashSet<&[TokenId]> = b.windows(4).collect();
        a.windows(4).filter(|run| of_b.contains(run)).count() as f64 / a.windows(4).count() as f64
    }

    #[test]
    fn texts_have_their_phrases_again_and_again_and_no_one_elses() {
        for (phrases, of_class) in [(Phrases::OfRequest, 0.0), (Phrases::OfClass, 0.5)] {
            let (one, other) = (text(phrases, 1, 7), text(phrases, 1, 8));
            assert!(in_common(&one[300..], &one[..300]) > 0.5, "{phrases:?}");
            assert!((of_class..=1.0).contains(&in_common(&one, &other)), "{phrases:?}");
            assert_eq!(in_common(&one, &text(phrases, 2, 7)), 0.0);
            assert!(one != other && one == text(phrases, 1, 7));
        }
        let own = text(Phrases::OfRequest, 1, 7);
        assert_eq!(in_common(&own, &text(Phrases::OfRequest, 1, 8)), 0.0);
        let quoted: Vec<TokenId> =
            Phrases::OfRequest.quoted(&Prefix::of(&[&[1][..], &[7; 10]].concat())).collect();
        assert!(quoted.len() as u64 == COUNT * TOKENS && in_common(&own, &quoted) > 0.5);
        assert_eq!(Phrases::OfClass.quoted(&Prefix::of(&[1; 10])).count(), 0);
        assert_eq!(in_common(&text(Phrases::None, 1, 7)[300..], &text(Phrases::None, 1, 7)[..300]), 0.0);
    }
}
