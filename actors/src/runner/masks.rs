//! What grammars allow, computed beside the lane: its thread asks, goes on with the pass, and waits a little where tokens are drawn.
//!
//! Nobody waits for a grammar that takes long. What is not known in time is late: the sequence sits out until it is, and the others go on. That
//! a clock says who is late changes no token, only when they come. A matcher found slow works in a thread of its own kind from then on, of
//! which there are few, and which get what the lanes leave of the cores.
//!
//! In a group the first rank alone asks, and tells the others what it knows: what a clock says of who is late is the same on all of them.

use std::time::{Duration, Instant};

use faser_engine::{SeqId, TokenId};
use faser_models::{ForcedToken, TokenMask};

use super::mask_threads::{Answer, Job, MaskThreads, Question};
use super::sequences::{Following, OnDevice, Sequences};

/// How long a lane waits that has nothing to do before one of them comes.
const IDLE: Duration = Duration::from_millis(5);

/// What is known of a chunk.
#[derive(Default)]
struct Allowed {
    /// Its job, while its answers are listened to.
    ticket: Option<u64>,
    /// Whether that is worth waiting for.
    quick: bool,
    /// Its sequence has a grammar, and so many places whose tokens are to be drawn.
    places: Option<usize>,
    /// Tokens of text that must come.
    forced: Vec<ForcedToken>,
    /// What may come after those; or in each place of a chunk's samples, as far as it is known. None: anything.
    masks: Vec<Option<Mask>>,
    answered: bool,
}

/// The tokens that may come.
enum Mask {
    /// As the grammar has it.
    Own(TokenMask),
    /// As the first rank told of it: a bit for each token.
    Told(Vec<u32>),
}

impl Mask {
    fn words(&self) -> &[u32] {
        match self {
            Mask::Own(mask) => mask.words(),
            Mask::Told(words) => words,
        }
    }

    fn failure(&self) -> Option<&str> {
        match self {
            Mask::Own(mask) => mask.failure(),
            Mask::Told(_) => None,
        }
    }
}

/// Of a chunk without a grammar, where the others are told of all.
const NO_GRAMMAR: u32 = u32::MAX;

/// The masks of one plan, chunk by chunk.
pub struct Masks {
    /// How long tokens wait to be drawn.
    patience: Duration,
    /// There once a request had a grammar; their threads end with this.
    threads: Option<MaskThreads>,
    tickets: u64,
    of: Vec<Allowed>,
}

impl Masks {
    pub(crate) fn new(patience: Duration) -> Masks {
        Masks { patience, threads: None, tickets: 0, of: Vec::new() }
    }

    /// A new plan of so many chunks. Matchers that came back meanwhile go to their sequences.
    pub(crate) fn begin(&mut self, chunks: usize, sequences: &mut Sequences<impl OnDevice>) {
        self.of.clear();
        self.of.resize_with(chunks, Allowed::default);
        while let Some(answer) = self.threads.as_mut().and_then(MaskThreads::answer) {
            self.hear(answer, sequences);
        }
    }

    /// A chunk's tokens are drawn in so many places under a grammar.
    pub(super) fn expect(&mut self, chunk: usize, places: usize) {
        self.of[chunk].places = Some(places);
    }

    /// In how many places a chunk's tokens can be drawn, if it has a grammar.
    pub(super) fn places(&self, chunk: usize) -> Option<usize> {
        self.of[chunk].places
    }

    /// Must tokens of text come in a chunk?
    pub(super) fn forces(&self, chunk: usize) -> bool {
        self.of.get(chunk).is_some_and(|of| !of.forced.is_empty())
    }

    /// The tokens of text that must come in a chunk, once.
    pub(super) fn take_forced(&mut self, chunk: usize) -> Vec<ForcedToken> {
        std::mem::take(&mut self.of[chunk].forced)
    }

    /// The bits of the tokens that may be drawn in a place of a chunk; none if all may.
    pub(crate) fn bits(&self, chunk: usize, place: usize) -> Option<&[u32]> {
        Some(self.of[chunk].masks.get(place)?.as_ref()?.words())
    }

    /// Why a chunk's grammar could not be followed up to a place, if that is so: the end that came instead may have been proposed, too.
    pub(super) fn failure(&self, chunk: usize, place: usize) -> Option<&str> {
        self.of[chunk].masks.iter().take(place + 1).find_map(|mask| mask.as_ref()?.failure())
    }

    /// Asks what may come after a chunk's output, and after each of the proposals behind it, as far as is expected.
    pub(super) fn ask_along(
        &mut self,
        chunk: usize,
        seq: SeqId,
        following: &mut Following,
        proposals: &[TokenId],
    ) {
        let known = following.known();
        let wanted = self.of[chunk].places.unwrap_or(0);
        self.of[chunk].masks.extend(known.cloned().map(|mask| Some(Mask::Own(mask))));
        let first = self.of[chunk].masks.len();
        if first >= wanted {
            return;
        }
        let proposals = proposals[..wanted - 1].to_vec();
        self.ask(chunk, seq, following, Question::Along { proposals, first });
    }

    /// Asks which text must come after a chunk's output, `most` tokens at most.
    pub(super) fn ask_forced(&mut self, chunk: usize, seq: SeqId, following: &mut Following, most: usize) {
        self.of[chunk] = Allowed { places: Some(1), ..Allowed::default() };
        self.ask(chunk, seq, following, Question::Forced { most });
    }

    fn ask(&mut self, chunk: usize, seq: SeqId, following: &mut Following, question: Question) {
        let Some(matcher) = following.matcher.take() else { return };
        self.tickets += 1;
        (following.ticket, following.asked_at) = (self.tickets, following.output.len());
        let allowed = &mut self.of[chunk];
        (allowed.ticket, allowed.answered, allowed.quick) = (Some(self.tickets), false, !following.slow);
        let (output, slow) = (following.output.clone(), following.slow);
        let job = Job { ticket: self.tickets, seq, matcher, output, question, slow };
        self.threads.get_or_insert_default().send(job);
    }

    /// Waits for what was asked of the first so many chunks, though not long, and for slow ones not at all. Then it is known for each of those
    /// with a grammar in how many places tokens can be drawn. The first rank of a group does this, and [tells](Masks::tell) the others.
    pub(super) fn settle(&mut self, sequences: &mut Sequences<impl OnDevice>, chunks: usize) {
        if self.of.iter().all(|allowed| allowed.places.is_none()) {
            return;
        }
        let until = Instant::now() + self.patience;
        let awaited = |allowed: &Allowed| allowed.ticket.is_some() && allowed.quick && !allowed.answered;
        while self.of[..chunks].iter().any(awaited) {
            let Some(answer) = self.threads.as_mut().and_then(|threads| threads.answer_until(until)) else {
                break;
            };
            self.hear(answer, sequences);
        }
        // Later chunks are asked about later.
        let last = self.of[..chunks].iter().filter_map(|allowed| allowed.ticket).max();
        if let (Some(threads), Some(last)) = (&mut self.threads, last) {
            threads.settled(last);
        }
        for allowed in &mut self.of[..chunks] {
            let known = allowed.masks.len();
            if let Some(places) = allowed.places.as_mut().filter(|places| **places > known) {
                (*places, allowed.ticket) = (known, None);
            }
        }
    }

    /// Of a group's first rank: what it knows, for [`Masks::hear_of`] on the others.
    pub(super) fn tell(&self) -> Vec<u32> {
        let mut words = Vec::new();
        for Allowed { places, forced, masks, .. } in &self.of {
            words.extend([places.map_or(NO_GRAMMAR, |places| places as u32), forced.len() as u32]);
            words.extend(forced.iter().flat_map(|forced| [forced.token, u32::from(forced.certain)]));
            words.push(masks.len() as u32);
            for mask in masks {
                let bits = mask.as_ref().map_or(&[][..], Mask::words);
                words.push(bits.len() as u32);
                words.extend(bits);
            }
        }
        words
    }

    /// Of any other rank: what the first one knows.
    ///
    /// # Panics
    /// If that is not of so many chunks: the ranks have different plans.
    pub(super) fn hear_of(&mut self, words: &[u32]) {
        let mut words = words.iter().copied();
        let mut word = || words.next().expect("the first rank knows of as many chunks") as usize;
        for allowed in &mut self.of {
            let places = word();
            allowed.places = (places != NO_GRAMMAR as usize).then_some(places);
            allowed.forced =
                (0..word()).map(|_| ForcedToken { token: word() as u32, certain: word() > 0 }).collect();
            allowed.masks = (0..word())
                .map(|_| Some((0..word()).map(|_| word() as u32).collect()))
                .map(|bits: Option<Vec<u32>>| bits.filter(|bits| !bits.is_empty()).map(Mask::Told))
                .collect();
        }
    }

    /// Nothing else is to be done: waits until something comes, though not long.
    pub(super) fn idle(&mut self, sequences: &mut Sequences<impl OnDevice>) {
        let until = Instant::now() + IDLE;
        if let Some(answer) = self.threads.as_mut().and_then(|threads| threads.answer_until(until)) {
            self.hear(answer, sequences);
        }
    }

    fn hear(&mut self, answer: Answer, sequences: &mut Sequences<impl OnDevice>) {
        match answer {
            Answer::Place { ticket, seq, place, mask } => {
                if let Some(allowed) = self.asked(ticket) {
                    allowed.masks.push(mask.map(Mask::Own));
                } else if let Some(mask) = mask.filter(|_| place == 0) {
                    sequences.know(seq, ticket, mask);
                }
            }
            Answer::Forced { ticket, forced, mask } => {
                if let Some(allowed) = self.asked(ticket) {
                    (allowed.forced, allowed.masks) = (forced, vec![mask.map(Mask::Own)]);
                }
            }
            Answer::Home { ticket, seq, matcher, slow } => {
                if let Some(allowed) = self.asked(ticket) {
                    allowed.answered = true;
                }
                sequences.give_back(seq, ticket, matcher, slow);
            }
            // Seen to where answers are taken.
            Answer::Lost => {}
        }
    }

    fn asked(&mut self, ticket: u64) -> Option<&mut Allowed> {
        self.of.iter_mut().find(|allowed| allowed.ticket == Some(ticket))
    }
}
