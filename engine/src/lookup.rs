//! Prompt-lookup (n-gram) and predicted outputs: what the sequence's own text, or the client's prediction of it, says comes next. Such
//! proposals cost no draft step.
//!
//! A cursor stands behind the last token's likeness in the text it copies from, and moves on with every token that agrees.
//! When one does not, the place is looked for again: in a prediction close to where it was left, so that an edit of a few
//! tokens costs a few tokens; in the sequence's own text behind the last occurrence of its last [`GRAM`] tokens (prompt
//! lookup). How far tokens agreed before is the confidence, calibrated as a draft's is.

use std::collections::HashMap;
use std::sync::Arc;

use crate::portfolio::Offered;
use crate::request::TokenId;
use crate::survival::{CONFIDENCE_BINS, Source};

/// Tokens that have to agree for a place to be found anywhere in a text.
const GRAM: usize = 3;
/// Tokens of a prediction, from where it was left on, among which two that agree are enough.
const NEAR: usize = 64;
/// And one.
const VERY_NEAR: usize = 8;
/// What a prediction's beginning counts for, in tokens that agreed.
const PROMISED: usize = 4;
/// Tokens of an output that there is room for from the beginning; for more it is made.
const ROOM: usize = 4000;
/// Slots that a gram may be in.
const PROBES: usize = 16;
/// So many tokens are looked through one by one, if it came to that.
const LATE: usize = 64;
/// Agreement beyond this is not told apart.
const LONGEST: usize = CONFIDENCE_BINS - 1;

/// Three tokens as one number. Vocabularies are smaller than two million; where one is not, a place may be found where nothing agrees: a poor
/// guess, like any other.
type Gram = u64;

fn gram(tokens: &[TokenId; GRAM]) -> Gram {
    tokens.iter().fold(0, |gram, &token| gram << 21 ^ u64::from(token))
}

/// Where one sequence's next tokens can be copied from.
#[derive(Debug)]
pub(crate) struct Lookup {
    prediction: Arc<[TokenId]>,
    /// The place behind the first occurrence in the prediction. Who writes that may not choose what its grams hash to.
    predicted: HashMap<Gram, u32>,
    /// The place behind the last occurrence in the sequence's own text, as far as it is kept.
    seen: LastSeen,
    kept: usize,
    prompt_len: usize,
    /// Tokens of the sequence that have been followed.
    followed: usize,
    cursor: Option<Cursor>,
    left: Option<Left>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cursor {
    source: Source,
    /// Place of the token that comes next, if it is right.
    next: usize,
    /// Tokens before it that agreed, up to [`LONGEST`].
    matched: usize,
}

/// The place behind the last occurrence of each gram of a text. Sequences have many, and they are in nobody's cache: a gram is found by one read
/// of memory, mostly.
#[derive(Debug)]
struct LastSeen {
    /// A power of two of them, at most half of them taken.
    slots: Vec<Seen>,
}

/// A part of a gram's hash, and the place behind it; 0 in a slot that is free.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    tag: u32,
    place: u32,
}

impl LastSeen {
    /// For a text of so many tokens.
    fn of(tokens: usize) -> LastSeen {
        LastSeen { slots: vec![Seen::default(); (2 * tokens.max(16)).next_power_of_two()] }
    }

    /// Where a gram is, or could be put; and the part of its hash that is kept. Where too many are near, another one makes way: whoever writes texts
    /// for that wins no time.
    fn slot(&self, gram: Gram) -> (usize, u32) {
        // Fibonacci hashing: the upper bits of the product depend on all of them.
        let hash = gram.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let first = (hash >> (u64::BITS - self.slots.len().trailing_zeros())) as usize;
        let tag = (hash >> 20) as u32;
        let mut near = (first..first + PROBES).map(|slot| slot & (self.slots.len() - 1));
        let fits = |slot: &usize| self.slots[*slot].place == 0 || self.slots[*slot].tag == tag;
        (near.find(fits).unwrap_or(first), tag)
    }

    fn get(&self, gram: Gram) -> Option<u32> {
        let (slot, tag) = self.slot(gram);
        let seen = self.slots[slot];
        (seen.place > 0 && seen.tag == tag).then_some(seen.place)
    }

    /// The last gram of a text, of which the others are known.
    fn insert(&mut self, text: &[TokenId]) {
        if 2 * text.len() > self.slots.len() {
            *self = LastSeen::of(2 * text.len());
            (GRAM..text.len()).for_each(|end| self.put(&text[..end]));
        }
        self.put(text);
    }

    fn put(&mut self, text: &[TokenId]) {
        if let Some(last) = text.last_chunk() {
            let (slot, tag) = self.slot(gram(last));
            self.slots[slot] = Seen { tag, place: text.len() as u32 };
        }
    }
}

/// Where the prediction was left.
#[derive(Clone, Copy, Debug)]
struct Left {
    place: usize,
    /// Tokens since.
    since: usize,
}

impl Lookup {
    /// Of a sequence whose first `prompt_len` tokens are its prompt, and which gets `max_new_tokens` at most.
    pub(crate) fn new(prediction: Arc<[TokenId]>, prompt_len: usize, max_new_tokens: usize) -> Lookup {
        let mut predicted = HashMap::new();
        let windows = prediction.windows(GRAM).filter_map(|window| window.first_chunk());
        for (place, window) in (GRAM as u32..).zip(windows) {
            predicted.entry(gram(window)).or_insert(place);
        }
        let (seen, cursor) = (LastSeen::of(prompt_len + max_new_tokens.min(ROOM)), None);
        Lookup { prediction, predicted, seen, kept: 0, prompt_len, followed: 0, cursor, left: None }
    }

    /// Takes in the tokens that are new.
    pub(crate) fn follow(&mut self, tokens: &[TokenId]) {
        if self.followed - self.kept > LATE {
            self.keep(tokens);
        }
        while self.followed < tokens.len() {
            self.followed += 1;
            let known = &tokens[..self.followed];
            if self.followed >= self.prompt_len {
                self.step(known, self.followed == tokens.len());
            }
        }
    }

    /// Keeps where the grams of what was followed stand, so that they are not looked for in the text itself. It can wait until nobody waits for it.
    pub(crate) fn keep(&mut self, tokens: &[TokenId]) {
        while self.kept < self.followed {
            self.kept += 1;
            self.seen.insert(&tokens[..self.kept]);
        }
    }

    /// The place behind the last occurrence of the last tokens of `known` before those.
    fn seen_before(&self, known: &[TokenId]) -> Option<u32> {
        let last: &[TokenId; GRAM] = known.last_chunk()?;
        let since = &known[self.kept.saturating_sub(GRAM - 1)..known.len() - 1];
        let latest = since.windows(GRAM).rposition(|window| window == last);
        let latest = latest.map(|place| self.kept.saturating_sub(GRAM - 1) + place + GRAM);
        latest.map(|place| place as u32).or_else(|| self.seen.get(gram(last)))
    }

    /// Moves the cursor over the last of `known`. Its place in the sequence's own text is looked for behind the `latest` token alone: what was found
    /// behind one before it would be found there again.
    fn step(&mut self, known: &[TokenId], latest: bool) {
        if self.followed == self.prompt_len && !self.prediction.is_empty() {
            self.cursor = Some(Cursor { source: Source::Prediction, next: 0, matched: PROMISED });
            return;
        }
        let kept = self.cursor.filter(|cursor| self.at(known, cursor.next, cursor.source) == known.last());
        let kept = kept.map(|Cursor { source, next, matched }| Cursor {
            source,
            next: next + 1,
            matched: (matched + 1).min(LONGEST),
        });
        if let Some(Cursor { source: Source::Prediction, matched, .. }) = kept {
            // One token may agree by chance.
            self.left = self.left.filter(|_| matched < 2);
            self.cursor = kept;
            return;
        }
        if let Some(Cursor { source: Source::Prediction, next, .. }) = self.cursor {
            self.left.get_or_insert(Left { place: next, since: 0 });
        }
        if let Some(left) = &mut self.left {
            left.since += 1;
        }
        let long_enough = |cursor: &Cursor| cursor.source == Source::Text && cursor.matched >= GRAM;
        let predicted = || self.predicted.get(&gram(known.last_chunk()?)).copied();
        let seen = || latest.then(|| self.seen_before(known))?;
        self.cursor = self
            .returned(known)
            .or(kept)
            .or_else(|| self.found(known, predicted()?, Source::Prediction))
            .or_else(|| self.found(known, seen()?, Source::Text).filter(long_enough))
            .or_else(|| self.replaced());
    }

    /// The place in the prediction near where it was left, if the text has come back to it.
    fn returned(&self, known: &[TokenId]) -> Option<Cursor> {
        let from = self.left?.place;
        let last = *known.last()?;
        let at = |next, matched| Cursor { source: Source::Prediction, next, matched };
        let near = self.prediction.get(from..(from + NEAR).min(self.prediction.len()))?;
        if let [.., before, _] = *known
            && let Some(place) = near.windows(2).position(|pair| *pair == [before, last])
        {
            return Some(at(from + place + 2, 2));
        }
        let place = near.iter().take(VERY_NEAR).position(|token| *token == last)?;
        Some(at(from + place + 1, 1))
    }

    /// The place behind the same last tokens, anywhere in a text.
    fn found(&self, known: &[TokenId], place: u32, source: Source) -> Option<Cursor> {
        let next = place as usize;
        let matched = (0..LONGEST.min(next)).take_while(|back| {
            let own = known.len().checked_sub(back + 1).map(|place| &known[place]);
            own.is_some() && self.at(known, next - 1 - back, source) == own
        });
        Some(Cursor { source, next, matched: matched.count() })
    }

    /// A guess: as many tokens were replaced as have come since.
    fn replaced(&self) -> Option<Cursor> {
        let Left { place, since } = self.left?;
        Some(Cursor { source: Source::Prediction, next: place + since, matched: 0 })
            .filter(|_| since < VERY_NEAR)
    }

    fn at<'a>(&'a self, known: &'a [TokenId], place: usize, source: Source) -> Option<&'a TokenId> {
        match source {
            Source::Prediction => self.prediction.get(place),
            Source::Text => known.get(place),
            Source::Draft | Source::Suffix => None,
        }
    }

    /// What comes next by the cursor, with the confidence in each, at most as many as there is room for; `tokens` have been followed.
    pub(crate) fn offer(&self, tokens: &[TokenId], most: usize, offered: &mut Offered) -> Source {
        offered.clear();
        let Some(Cursor { source, next, matched }) = self.cursor else { return Source::Text };
        for i in 0..most.min(offered.capacity()) {
            let place = next + i;
            let token = match self.at(tokens, place, source) {
                Some(token) => *token,
                // A text that repeats itself goes on doing so.
                None if source == Source::Text && place >= tokens.len() => {
                    match offered.get(place - tokens.len()) {
                        Some((token, _)) => *token,
                        None => break,
                    }
                }
                None => break,
            };
            offered.push((token, ((matched + i).min(LONGEST) as f32 + 0.5) / CONFIDENCE_BINS as f32));
        }
        source
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::survival::confidence_bin;

    /// What is offered after `output`, at most four tokens, and the bin of the first.
    fn offered(
        prompt: &[TokenId],
        prediction: &[TokenId],
        output: &[TokenId],
    ) -> (Vec<TokenId>, Option<usize>) {
        let mut lookup = Lookup::new(prediction.into(), prompt.len(), 0);
        let tokens = [prompt, output].concat();
        // Token by token, and all at once, must be the same.
        (prompt.len()..=tokens.len()).for_each(|end| {
            lookup.follow(&tokens[..end]);
            lookup.keep(&tokens[..end]);
        });
        let (mut offered, mut at_once) = (Offered::new(), Offered::new());
        lookup.offer(&tokens, 4, &mut offered);
        let mut other = Lookup::new(prediction.into(), prompt.len(), 100);
        other.follow(&tokens);
        other.offer(&tokens, 4, &mut at_once);
        assert_eq!(offered, at_once);
        let bin = offered.first().map(|(_, confidence)| confidence_bin(*confidence));
        (offered.into_iter().map(|(token, _)| token).collect(), bin)
    }

    #[test]
    fn what_followed_the_same_tokens_is_offered() {
        let text = [1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(offered(&text, &[], &[9, 2, 3]), (vec![], None));
        assert_eq!(offered(&text, &[], &[9, 2, 3, 4]), (vec![5, 6, 7, 8], Some(3)));
        assert_eq!(offered(&text, &[], &[1, 2, 3, 4, 5]), (vec![6, 7, 8, 1], Some(5)));
        // The prompt's own end may be a quotation already.
        assert_eq!(offered(&[1, 2, 3, 4, 9, 1, 2, 3], &[], &[]), (vec![4, 9, 1, 2], Some(3)));
        // The latest place wins.
        assert_eq!(offered(&[1, 2, 3, 4, 1, 2, 3, 5, 6], &[], &[1, 2, 3]), (vec![5, 6, 1, 2], Some(3)));
    }

    #[test]
    fn texts_whose_grams_all_come_to_lie_in_one_place_take_no_longer() {
        // Of these the hashes have their upper bits in common.
        let mut seen = LastSeen::of(1 << 12);
        let one = seen.slot(0).0;
        let alike: Vec<Gram> = (0..10_000_000).filter(|gram| seen.slot(*gram).0 == one).take(500).collect();
        assert_eq!(alike.len(), 500);
        for (place, gram) in (1..).zip(&alike) {
            let (slot, tag) = seen.slot(*gram);
            seen.slots[slot] = Seen { tag, place };
        }
        assert_eq!(seen.slots.iter().filter(|seen| seen.place > 0).count(), PROBES);
        assert_eq!(seen.get(alike[499]), Some(500));
        let found = alike.iter().filter(|gram| seen.get(**gram).is_some()).count();
        assert_eq!(found, PROBES);
    }

    #[test]
    fn a_text_that_repeats_itself_goes_on_doing_so() {
        assert_eq!(offered(&[7], &[], &[7, 7, 7, 7]).0, [7; 4]);
        assert_eq!(offered(&[1, 2], &[], &[1, 2, 1, 2, 1]).0, [2, 1, 2, 1]);
    }

    #[test]
    fn a_prediction_is_followed_from_its_beginning() {
        let expected = [10, 11, 12, 13, 14, 15, 16, 17, 18, 19];
        assert_eq!(offered(&[1], &expected, &[]), (vec![10, 11, 12, 13], Some(PROMISED)));
        assert_eq!(offered(&[1], &expected, &[10, 11]), (vec![12, 13, 14, 15], Some(PROMISED + 2)));
        assert_eq!(offered(&[1], &expected, &expected), (vec![], None));
        // One token in another's place: a guess, and after two that agree it is sure again.
        assert_eq!(offered(&[1], &expected, &[10, 11, 99]), (vec![13, 14, 15, 16], Some(0)));
        assert_eq!(offered(&[1], &expected, &[10, 11, 99, 13]), (vec![14, 15, 16, 17], Some(1)));
        // Two left out; two more than expected.
        assert_eq!(offered(&[1], &expected, &[10, 13]), (vec![14, 15, 16, 17], Some(1)));
        assert_eq!(offered(&[1], &expected, &[10, 98, 99, 11, 12]), (vec![13, 14, 15, 16], Some(2)));
        // Somewhere else entirely.
        assert_eq!(offered(&[1], &expected, &[90, 15, 16, 17]), (vec![18, 19], Some(3)));
    }
}
