//! Past outputs: what followed the sequence's last tokens in earlier outputs of the same owner. Such proposals cost no draft step.
//!
//! Outputs lie one behind the other in a ring of tokens, each behind the end of its prompt. Every place of an output is
//! linked to the latest place before it whose last tokens hash alike (as in deflate), once for long and once for short
//! runs of tokens; so the longest suffix that a text has in common with past outputs is found by walking one chain. What
//! followed it most often is proposed. A suffix tree finds the same with a node for every token, at several times the
//! memory. All memory is taken at the start, an output is forgotten whole, and the oldest one first.
//!
//! Owners never see each other's outputs: the hash begins with the owner, and whatever a chain leads to is compared, owner
//! and tokens.

use std::collections::VecDeque;

use arrayvec::ArrayVec;

use crate::portfolio::Offered;
use crate::request::TokenId;
use crate::survival::CONFIDENCE_BINS;
use crate::view::SuffixView;

/// Runs of tokens that are looked for, the longer first.
const RUNS: [usize; 2] = [8, 3];
/// Agreement beyond this is not told apart.
const LONGEST: usize = 16;
/// Places that a chain is followed to, and those of them that have a say.
const STEPS: usize = 16;
const VOICES: usize = 8;
/// Tokens of a prompt that stand before its output, so that what an output begins with is found.
const LEAD: usize = LONGEST;
/// Tokens of the ring for each place in a table of chains, and for each output that it may hold.
const TOKENS_PER_HEAD: usize = 2;
const TOKENS_PER_OUTPUT: usize = 32;
/// Bytes for so many tokens.
const SHARE_BYTES: usize = TOKENS_PER_OUTPUT * (size_of::<TokenId>() + RUNS.len() * size_of::<u32>())
    + HEADS_BYTES
    + size_of::<Output>();
const HEADS_BYTES: usize = TOKENS_PER_OUTPUT / TOKENS_PER_HEAD * RUNS.len() * size_of::<u64>();

/// Who may see an output: the client's key and its salt.
pub(crate) type Owner = (u128, u128);

/// A place counts all tokens that ever came; modulo the ring it is where a token lies.
type Place = u64;

#[derive(Clone, Copy, Debug)]
struct Output {
    owner: Owner,
    /// Of the end of its prompt.
    begin: Place,
    end: Place,
}

/// The past outputs of an engine.
#[derive(Debug)]
pub(crate) struct PastOutputs {
    tokens: Box<[TokenId]>,
    /// Of a place, how far back the one before it in its chain is; 0 if there is none.
    back: [Box<[u32]>; RUNS.len()],
    /// Of a hash, the latest place; 0 if there is none.
    heads: [Box<[Place]>; RUNS.len()],
    outputs: VecDeque<Output>,
    /// Outputs that there is room for.
    most: usize,
    end: Place,
}

/// A place that has a say in what comes next.
#[derive(Clone, Copy)]
struct Voice {
    next: Place,
    end: Place,
    matched: usize,
}

impl PastOutputs {
    /// With room for what takes so many bytes in all; none if that is too little for anything.
    pub(crate) fn new(bytes: usize) -> Option<PastOutputs> {
        // Links are of 32 bits.
        let most = (bytes / SHARE_BYTES).min(u32::MAX as usize / TOKENS_PER_OUTPUT);
        let tokens = most * TOKENS_PER_OUTPUT;
        (most > 0).then(|| PastOutputs {
            tokens: vec![0; tokens].into(),
            back: RUNS.map(|_| vec![0; tokens].into()),
            heads: fresh_heads(tokens),
            outputs: VecDeque::with_capacity(most),
            most,
            end: 1,
        })
    }

    /// What is there.
    pub(crate) fn view(&self) -> SuffixView {
        SuffixView {
            bytes: self.most * SHARE_BYTES,
            outputs: self.outputs.len(),
            tokens: (self.end - self.begin()) as usize,
        }
    }

    /// Forgets everything. What was never written is not touched: it takes no memory yet, and writing it would take seconds.
    pub(crate) fn clear(&mut self) {
        self.outputs.clear();
        let written = usize::try_from(self.end).map_or(self.tokens.len(), |end| end.min(self.tokens.len()));
        self.tokens[..written].fill(0);
        self.heads = fresh_heads(self.tokens.len());
    }

    /// Keeps an output behind its prompt; of one that is longer than all the room its beginning.
    pub(crate) fn keep(&mut self, owner: Owner, prompt: &[TokenId], output: &[TokenId]) {
        let lead = &prompt[prompt.len().saturating_sub(LEAD.min(self.tokens.len() / 2))..];
        let output = &output[..output.len().min(self.tokens.len() - lead.len())];
        let (first, all) = (lead.len(), lead.len() + output.len());
        if output.is_empty() || all <= RUNS[RUNS.len() - 1] {
            return;
        }
        while self.outputs.len() == self.most
            || self.end + all as u64 - self.begin() > self.tokens.len() as u64
        {
            self.outputs.pop_front();
        }
        let begin = self.end;
        for (place, &token) in (begin..).zip(lead.iter().chain(output)) {
            let at = self.at(place);
            self.tokens[at] = token;
        }
        self.end += all as u64;
        self.outputs.push_back(Output { owner, begin, end: self.end });
        for (index, run) in RUNS.into_iter().enumerate() {
            for next in (run.max(first)..all).map(|offset| begin + offset as u64) {
                let before = (next - run as u64..next).map(|place| self.tokens[self.at(place)]);
                let head = self.head(index, hash(owner, before));
                let latest = std::mem::replace(&mut self.heads[index][head], next);
                let at = self.at(next);
                self.back[index][at] = if latest >= self.begin() { (next - latest) as u32 } else { 0 };
            }
        }
    }

    /// What is likeliest to follow these tokens, with the confidence in each, by past outputs of this owner; at most as many as there is room for
    /// in `offered`, and `most`.
    pub(crate) fn offer(&self, owner: Owner, tokens: &[TokenId], most: usize, offered: &mut Offered) {
        offered.clear();
        let mut voices = ArrayVec::new();
        for index in 0..RUNS.len() {
            self.find(index, owner, tokens, &mut voices);
            if !voices.is_empty() {
                break;
            }
        }
        for depth in 0..most.min(offered.capacity()) {
            let next = |voice: &Voice| {
                let place = voice.next + depth as u64;
                (place < voice.end).then(|| self.tokens[self.at(place)])
            };
            voices.retain(|voice| next(voice).is_some());
            let count = |token| voices.iter().filter(|voice| next(voice) == Some(token)).count();
            // Among equals the latest, which a chain comes to first.
            let tokens = voices.iter().filter_map(next);
            let votes = tokens
                .map(|token| (count(token), token))
                .reduce(|best, other| if other.0 > best.0 { other } else { best });
            let Some((votes, token)) = votes else { return };
            let matched = voices.first().map_or(0, |voice| voice.matched) + depth;
            offered.push((token, confidence(matched, votes, voices.len())));
            voices.retain(|voice| next(voice) == Some(token));
        }
    }

    /// Places of one chain behind the longest suffix of the tokens that it leads to, the latest first.
    fn find(&self, index: usize, owner: Owner, tokens: &[TokenId], voices: &mut ArrayVec<Voice, VOICES>) {
        let run = RUNS[index];
        let Some(last) = tokens.len().checked_sub(run).map(|from| &tokens[from..]) else { return };
        let mut next = self.heads[index][self.head(index, hash(owner, last.iter().copied()))];
        for _ in 0..STEPS {
            if next < self.begin() || next == 0 {
                return;
            }
            if let Some(voice) = self.voice(next, owner, tokens).filter(|voice| voice.matched >= run) {
                let longest = voices.first().map_or(0, |voice: &Voice| voice.matched);
                if voice.matched > longest {
                    voices.clear();
                }
                // The oldest have no say where there are many.
                if voice.matched >= longest && !voices.is_full() {
                    voices.push(voice);
                }
            }
            match self.back[index][self.at(next)] {
                0 => return,
                back => next -= u64::from(back),
            }
        }
    }

    /// What a place has to say, if its output is the owner's.
    fn voice(&self, next: Place, owner: Owner, tokens: &[TokenId]) -> Option<Voice> {
        let output = self.outputs.partition_point(|output| output.begin <= next).checked_sub(1)?;
        let Output { begin, end, .. } = *self.outputs.get(output).filter(|output| output.owner == owner)?;
        let own = tokens.iter().rev().take(LONGEST);
        let past = (begin..next).rev().map(|place| &self.tokens[self.at(place)]);
        let matched = own.zip(past).take_while(|(own, past)| own == past).count();
        (next < end).then_some(Voice { next, end, matched })
    }

    /// The first place that is not forgotten.
    fn begin(&self) -> Place {
        self.outputs.front().map_or(self.end, |oldest| oldest.begin)
    }

    fn at(&self, place: Place) -> usize {
        (place % self.tokens.len() as u64) as usize
    }

    fn head(&self, index: usize, hash: u64) -> usize {
        ((u128::from(hash) * self.heads[index].len() as u128) >> 64) as usize
    }
}

/// Tables of chains, all of them empty, for a ring of so many tokens.
fn fresh_heads(tokens: usize) -> [Box<[Place]>; RUNS.len()] {
    RUNS.map(|_| vec![0; tokens / TOKENS_PER_HEAD].into())
}

fn hash(owner: Owner, tokens: impl Iterator<Item = TokenId>) -> u64 {
    let halves = [owner.0, owner.1].into_iter().flat_map(|half| [half as u64, (half >> 64) as u64]);
    halves.chain(tokens.map(u64::from)).fold(0, |hash: u64, word| {
        let mixed = (hash.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ mixed >> 29
    })
}

/// Four bins each for how many tokens agreed before, and within those for how many of the places say so: half of them, most, the only one, all of
/// several.
fn confidence(matched: usize, votes: usize, voices: usize) -> f32 {
    let agreed = match matched {
        0..=4 => 0,
        5..=7 => 1,
        8..LONGEST => 2,
        _ => 3,
    };
    let said = match (votes, voices) {
        (1, 1) => 2,
        _ if votes == voices => 3,
        _ => usize::from(2 * votes > voices),
    };
    ((4 * agreed + said) as f32 + 0.5) / CONFIDENCE_BINS as f32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::survival::confidence_bin;

    const ANA: Owner = (1, 0);

    fn offered(past: &PastOutputs, owner: Owner, tokens: &[TokenId]) -> Vec<TokenId> {
        let mut offered = Offered::new();
        past.offer(owner, tokens, 4, &mut offered);
        offered.into_iter().map(|(token, _)| token).collect()
    }

    fn kept(outputs: &[&[TokenId]]) -> PastOutputs {
        let mut past = PastOutputs::new(1 << 16).expect("room");
        outputs.iter().for_each(|output| past.keep(ANA, &[100, 101, 102], output));
        past
    }

    #[test]
    fn what_is_forgotten_is_gone_and_what_comes_later_is_kept() {
        let mut past = kept(&[&[1, 2, 3, 4]]);
        assert_eq!(offered(&past, ANA, &[1, 2, 3]), [4]);
        past.clear();
        assert!(offered(&past, ANA, &[1, 2, 3]).is_empty() && past.tokens.iter().all(|token| *token == 0));
        past.keep(ANA, &[100, 101, 102], &[1, 2, 3, 5]);
        assert_eq!(offered(&past, ANA, &[1, 2, 3]), [5]);
    }

    #[test]
    fn what_followed_most_often_is_offered_and_the_longest_suffix_decides() {
        let past = kept(&[&[1, 2, 3, 4, 5], &[9, 2, 3, 4, 6, 7], &[8, 2, 3, 4, 6, 8]]);
        // Two of three say 6, and the later of the two 8.
        assert_eq!(offered(&past, ANA, &[7, 2, 3, 4]), [6, 8]);
        assert_eq!(offered(&past, ANA, &[1, 2, 3, 4]), [5]);
        assert_eq!(offered(&past, ANA, &[9, 2, 3, 4]), [6, 7]);
        assert_eq!(offered(&past, ANA, &[3, 4]), []);
        assert_eq!(offered(&past, ANA, &[7, 7, 7]), []);
        // What an output begins with, behind the same end of a prompt; nothing of a prompt is ever offered.
        assert_eq!(offered(&past, ANA, &[100, 101, 102]), [8, 2, 3, 4]);
        assert_eq!(offered(&past, ANA, &[99, 100, 101]), []);
        let bin = |tokens: &[TokenId]| {
            let mut offered = Offered::new();
            past.offer(ANA, tokens, 4, &mut offered);
            offered.first().map(|(_, confidence)| confidence_bin(*confidence))
        };
        assert_eq!((bin(&[7, 2, 3, 4]), bin(&[1, 2, 3, 4])), (Some(1), Some(2)));
    }

    #[test]
    fn other_owners_find_nothing_and_nobody_what_was_cleared() {
        let mut past = kept(&[&[1, 2, 3, 4, 5]]);
        for other in [(2, 0), (1, 1), (0, 1)] {
            assert_eq!(offered(&past, other, &[1, 2, 3]), []);
        }
        assert_eq!(offered(&past, ANA, &[1, 2, 3]), [4, 5]);
        past.clear();
        assert_eq!(offered(&past, ANA, &[1, 2, 3]), []);
        assert_eq!((past.view().tokens, past.view().outputs), (0, 0));
        past.keep(ANA, &[], &[1, 2, 3, 7]);
        assert_eq!(offered(&past, ANA, &[1, 2, 3]), [7]);
    }

    #[test]
    fn all_memory_is_taken_at_the_start_and_within_the_bound() {
        assert!(PastOutputs::new(SHARE_BYTES - 1).is_none());
        for bytes in [SHARE_BYTES, 10_000, 1 << 20] {
            let mut past = None;
            let taken = allocation_counter::measure(|| past = PastOutputs::new(bytes));
            let mut past = past.expect("room");
            assert_eq!(taken.bytes_total, past.view().bytes as u64);
            assert!(past.view().bytes <= bytes && past.view().bytes + SHARE_BYTES > bytes);
            let used = allocation_counter::measure(|| {
                let mut offered = Offered::new();
                for round in 0..1000u32 {
                    let output: [TokenId; 60] = std::array::from_fn(|place| round % 7 + place as u32 % 11);
                    past.keep(ANA, &output[..20], &output[..(round % 60) as usize]);
                    past.offer(ANA, &output[..30], 16, &mut offered);
                }
            });
            assert_eq!(used.count_total, 0);
        }
    }

    proptest! {
        #[test]
        fn whatever_is_offered_continues_a_past_output_of_the_same_owner_that_is_not_forgotten(
            bytes in SHARE_BYTES..8 * SHARE_BYTES,
            texts in prop::collection::vec((0u128..3, prop::collection::vec(0u32..4, 0..40), prop::collection::vec(0u32..4, 0..80)), 1..40),
        ) {
            let mut past = PastOutputs::new(bytes).expect("room");
            let room = past.tokens.len();
            let mut kept: Vec<(u128, Vec<TokenId>, usize)> = Vec::new();
            for (owner, prompt, output) in &texts {
                past.keep((*owner, 0), prompt, output);
                let view = past.view();
                prop_assert!(view.tokens <= room && view.outputs <= past.most && view.bytes <= bytes);
                let all = [&prompt[..], output].concat();
                kept.push((*owner, all, prompt.len()));
                for asked in 0..3u128 {
                    let tokens = &kept[kept.len() - 1].1;
                    for end in 0..=tokens.len() {
                        let mut offered = Offered::new();
                        past.offer((asked, 0), &tokens[..end], 6, &mut offered);
                        let offered: Vec<TokenId> = offered.into_iter().map(|(token, _)| token).collect();
                        if offered.is_empty() {
                            continue;
                        }
                        // Behind a run of the same tokens in an output of the owner's own.
                        let run = RUNS[RUNS.len() - 1];
                        let wanted = [&tokens[end - run..end], &offered].concat();
                        let real = kept.iter().filter(|(owner, ..)| *owner == asked).any(|(_, text, first)| {
                            let mut places = text.windows(wanted.len()).enumerate();
                            places.any(|(place, window)| window == wanted && place + run >= *first)
                        });
                        prop_assert!(real, "{asked}: {offered:?} behind {:?}", &tokens[..end]);
                    }
                }
            }
            // The last one is there, if it is long enough to be found.
            let (owner, prompt, output) = &texts[texts.len() - 1];
            if prompt.len() < room / 2 && output.len() > RUNS[0] && output.len() <= room / 2 {
                let mut offered = Offered::new();
                past.offer((*owner, 0), &output[..RUNS[0]], 6, &mut offered);
                prop_assert!(!offered.is_empty());
            }
        }
    }
}
