//! What a lane remembers of each sequence between plans: its history, and what its request wants.

use std::collections::HashMap;
use std::sync::Arc;

use faser_engine::{Admission, SeqId, TokenId};
use faser_kernels::History;
use faser_models::{GrammarCancel, GrammarMatcher, TokenMask};

use crate::submission::LaneRequest;

/// What a device keeps of a sequence.
pub trait OnDevice {
    /// The tokens from position `start` on are these now.
    fn rewind_and_extend(&mut self, start: usize, tokens: &[TokenId]);
}

/// A sequence of a lane.
pub(crate) struct LaneSequence<S> {
    pub(crate) history: History,
    pub(crate) request: Arc<LaneRequest>,
    /// What the device keeps of it.
    pub(crate) on_device: S,
    /// Its way through its grammar, if it has one.
    pub(super) following: Option<Following>,
}

/// An output that follows a grammar.
pub(super) struct Following {
    /// Tokens behind the prompt, as far as the history goes.
    pub(super) output: Vec<TokenId>,
    /// Away while it is being asked.
    pub(super) matcher: Option<Box<GrammarMatcher>>,
    /// What it was asked last: who comes back with another one was of a sequence that is gone.
    pub(super) ticket: u64,
    /// Tokens of the output then.
    pub(super) asked_at: usize,
    /// It takes longer than a lane should wait for.
    pub(super) slow: bool,
    /// What may come behind so many tokens of the output: an answer that came too late for the pass that asked.
    late: Option<(usize, TokenMask)>,
    cancel: GrammarCancel,
}

impl Following {
    fn new(output: Vec<TokenId>, matcher: GrammarMatcher) -> Following {
        let cancel = matcher.cancel();
        Following {
            output,
            matcher: Some(Box::new(matcher)),
            ticket: 0,
            asked_at: 0,
            slow: false,
            late: None,
            cancel,
        }
    }

    /// In how many places tokens may be drawn in the next pass, as far as is known: behind the output and behind each of `proposals` before
    /// one that the grammar forbids, which only has to be looked for where nobody has checked them. Of a slow one behind the output alone; nowhere, as
    /// long as its matcher is away and has not said what may come there.
    pub(super) fn places(&mut self, proposals: &[TokenId], unchecked: bool) -> usize {
        match &mut self.matcher {
            None => usize::from(self.known().is_some()),
            Some(_) if self.slow => 1,
            Some(matcher) if unchecked => 1 + matcher.valid_prefix_len(&self.output, proposals).unwrap_or(0),
            Some(_) => 1 + proposals.len(),
        }
    }

    /// What may come behind the output, if that is known already.
    pub(super) fn known(&self) -> Option<&TokenMask> {
        self.late.as_ref().filter(|(tokens, _)| *tokens == self.output.len()).map(|(_, mask)| mask)
    }
}

impl Drop for Following {
    /// Nobody waits for a matcher that is still away.
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

impl<S: OnDevice> LaneSequence<S> {
    /// `leads`: of the first rank of a group, or alone. No other follows grammars.
    pub(super) fn new(
        admission: &Admission,
        request: &Arc<LaneRequest>,
        on_device: S,
        leads: bool,
    ) -> LaneSequence<S> {
        let history = History::new(admission.prompt_len, &admission.tokens, &request.sampling);
        let grammar =
            request.constraint.as_ref().filter(|_| leads).and_then(|constraint| constraint.grammar());
        let following = grammar.map(|grammar| {
            Following::new(admission.tokens[admission.prompt_len..].to_vec(), grammar.matcher())
        });
        LaneSequence { history, request: request.clone(), on_device, following }
    }

    /// Forgets the tokens from position `start` and puts `tokens` there.
    ///
    /// # Panics
    /// If `start` is beyond the end: tokens between are missing.
    pub(crate) fn rewind_and_extend(&mut self, start: usize, tokens: &[TokenId]) {
        self.history.rewind_and_extend(start, tokens);
        self.on_device.rewind_and_extend(start, tokens);
        if let Some(Following { output, .. }) = &mut self.following {
            let prompt_len = self.history.prompt_len();
            output.truncate(start.saturating_sub(prompt_len));
            output.extend(tokens.iter().skip(prompt_len.saturating_sub(start)));
        }
    }

    /// One more token.
    pub(crate) fn push(&mut self, token: TokenId) {
        self.rewind_and_extend(self.history.len(), &[token]);
    }
}

/// The sequences of one lane. Bounded by the engine, which retires what it admits.
pub struct Sequences<S>(pub(super) HashMap<SeqId, LaneSequence<S>>);

impl<S> Default for Sequences<S> {
    fn default() -> Sequences<S> {
        Sequences(HashMap::new())
    }
}

impl<S: OnDevice> Sequences<S> {
    /// The sequence of a chunk.
    ///
    /// # Panics
    /// If the engine has not admitted it: a broken plan is a device failure, not something to guess around.
    pub(crate) fn of(&self, seq: SeqId) -> &LaneSequence<S> {
        self.0.get(&seq).unwrap_or_else(|| panic!("{seq} has a chunk but was not admitted to this lane"))
    }

    /// As `of`.
    pub(crate) fn of_mut(&mut self, seq: SeqId) -> &mut LaneSequence<S> {
        self.0.get_mut(&seq).unwrap_or_else(|| panic!("{seq} has a chunk but was not admitted to this lane"))
    }

    /// A matcher comes back to its sequence, if that is still there.
    pub(super) fn give_back(&mut self, seq: SeqId, ticket: u64, matcher: Box<GrammarMatcher>, slow: bool) {
        if let Some(following) = self.following(seq, ticket) {
            (following.matcher, following.slow) = (Some(matcher), slow);
        }
    }

    /// What may come behind the output of a sequence, as long as that was when it was asked.
    pub(super) fn know(&mut self, seq: SeqId, ticket: u64, mask: TokenMask) {
        if let Some(following) = self.following(seq, ticket) {
            following.late = Some((following.asked_at, mask));
        }
    }

    fn following(&mut self, seq: SeqId, ticket: u64) -> Option<&mut Following> {
        let following = self.0.get_mut(&seq)?.following.as_mut();
        following.filter(|following| following.ticket == ticket)
    }
}
