//! What is seen of a sequence from outside, and what is set from there.

use std::time::Duration;

use super::Sequence;
use crate::view::{RequestState, RequestView};

impl Sequence {
    /// From now on it may get `k_limit` proposals at most. What is drafted beyond that is not sent.
    pub(crate) fn limit_k(&mut self, k_limit: usize) {
        self.k_max = self.asked_k.map_or(k_limit, |k| k.min(k_limit));
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
            level: self.level.typical(),
            age: now.saturating_sub(self.submitted),
            to_first_token: self.first_token.map(|first| first.saturating_sub(self.submitted)),
        }
    }
}
