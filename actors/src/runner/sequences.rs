//! What a lane remembers of each sequence between plans: its history, and what its request wants.

use std::collections::HashMap;
use std::sync::Arc;

use faser_engine::{Admission, SeqId, TokenId};
use faser_kernels::History;
use faser_models::GrammarMatcher;

use crate::lane_request::LaneRequest;

pub(crate) struct LaneSequence {
    pub(crate) history: History,
    pub(crate) request: Arc<LaneRequest>,
    /// Its way through its grammar, if it has one.
    pub(super) following: Option<Following>,
}

/// An output that follows a grammar.
pub(super) struct Following {
    /// Tokens behind the prompt, as far as the history goes.
    pub(super) output: Vec<TokenId>,
    /// Away while it is being asked.
    pub(super) matcher: Option<Box<GrammarMatcher>>,
}

impl Following {
    /// How many of `proposals` may come behind the output before one that the grammar forbids.
    pub(super) fn rightful(&mut self, proposals: &[TokenId]) -> usize {
        let Following { output, matcher } = self;
        matcher.as_mut().map_or(proposals.len(), |matcher| matcher.rightful(output, proposals))
    }
}

impl LaneSequence {
    fn new(admission: &Admission, request: &Arc<LaneRequest>) -> LaneSequence {
        let history = History::new(admission.prompt_len, &admission.tokens, &request.sampling);
        let following = request.constraint.as_ref().map(|constraint| Following {
            output: admission.tokens[admission.prompt_len..].to_vec(),
            matcher: Some(Box::new(constraint.grammar().matcher())),
        });
        LaneSequence { history, request: request.clone(), following }
    }

    /// Forgets the tokens from position `start` and puts `tokens` there.
    ///
    /// # Panics
    /// If `start` is beyond the end: tokens between are missing.
    pub(crate) fn rewind_and_extend(&mut self, start: usize, tokens: &[TokenId]) {
        self.history.rewind_and_extend(start, tokens);
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
#[derive(Default)]
pub(crate) struct Sequences(HashMap<SeqId, LaneSequence>);

impl Sequences {
    /// Carries out a plan's `retire`, then its `admit`; `requests` holds one entry per admission.
    pub(crate) fn update(&mut self, retire: &[SeqId], admit: &[Admission], requests: &[Arc<LaneRequest>]) {
        for seq in retire {
            self.0.remove(seq);
        }
        assert_eq!(admit.len(), requests.len(), "one request per admission");
        for (admission, request) in admit.iter().zip(requests) {
            self.0.insert(admission.seq, LaneSequence::new(admission, request));
        }
    }

    /// The sequence of a chunk.
    ///
    /// # Panics
    /// If the engine has not admitted it: a broken plan is a device failure, not something to guess around.
    pub(crate) fn of(&self, seq: SeqId) -> &LaneSequence {
        self.0.get(&seq).unwrap_or_else(|| panic!("{seq} has a chunk but was not admitted to this lane"))
    }

    /// As `of`.
    pub(crate) fn of_mut(&mut self, seq: SeqId) -> &mut LaneSequence {
        self.0.get_mut(&seq).unwrap_or_else(|| panic!("{seq} has a chunk but was not admitted to this lane"))
    }

    /// A matcher comes back to its sequence. What is there to tell of its failure, is told.
    pub(super) fn give_back(&mut self, seq: SeqId, matcher: Box<GrammarMatcher>, tells: bool) {
        let sequence = self.of_mut(seq);
        if let (Some(constraint), Some(reason)) = (&sequence.request.constraint, matcher.failure())
            && tells
        {
            constraint.failed(reason);
        }
        if let Some(following) = &mut sequence.following {
            following.matcher = Some(matcher);
        }
    }
}
