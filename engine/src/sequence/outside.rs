//! What is seen of a sequence from outside, and what is set from there.

use std::time::Duration;

use super::Sequence;
use crate::api::SpeculationMode;
use crate::engine::Engine;
use crate::survival::Source;
use crate::view::{RequestState, RequestView};

impl Sequence {
    /// From now on it may get `k_limit` proposals at most. What is drafted beyond that is not sent.
    pub(crate) fn limit_k(&mut self, k_limit: usize) {
        let asked = match self.handling.mode {
            SpeculationMode::Off => Some(0),
            _ => self.handling.k_max,
        };
        self.k_max = asked.map_or(k_limit, |k| k.min(k_limit));
    }

    /// Time since its submission.
    pub(crate) fn age(&self, now: Duration) -> Duration {
        now.saturating_sub(self.submitted)
    }

    /// What can be seen of it from outside.
    pub(crate) fn view(&self, state: RequestState, now: Duration) -> RequestView {
        RequestView {
            seq: self.id,
            state,
            usage: self.usage,
            max_new_tokens: self.max_new_tokens,
            k: if state == RequestState::Decode { self.wanted.min(self.useful_proposals()) } else { 0 },
            proposals: self.proposals.len(),
            level: self.levels[Source::Draft].typical(),
            age: self.age(now),
            to_first_token: self.first_token.map(|first| first.saturating_sub(self.submitted)),
        }
    }
}

impl Engine {
    /// The oldest requests, `most` of them, the oldest first; of those that wait, the next ones to be admitted. `now` as in `handle`.
    pub fn requests(&self, now: Duration, most: usize) -> Vec<RequestView> {
        let state = |seq| match self.sequences.get(seq) {
            Some(sequence) if sequence.decoding() => RequestState::Decode,
            _ => RequestState::Prefill,
        };
        let running = self.running.iter().map(|seq| (seq, state(seq)));
        let waiting = self.waiting.iter().take(most).map(|seq| (seq, RequestState::Waiting));
        let view = |(seq, state)| Some(self.sequences.get(seq)?.view(state, now));
        let mut requests: Vec<RequestView> = running.chain(waiting).filter_map(view).collect();
        requests.sort_by(|a, b| b.age.cmp(&a.age).then(a.seq.cmp(&b.seq)));
        requests.truncate(most);
        requests
    }
}
