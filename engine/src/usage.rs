//! What a sequence took: tokens, passes, what came of its proposals, and when.

use std::time::Duration;

use crate::request::K_LIMIT;
use crate::survival::{PerSource, Source};

/// What a sequence took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Prompt tokens whose target KV came from the prefix cache at first admission.
    pub cached_tokens: usize,
    /// Tokens emitted, those of another replica included.
    pub output_tokens: usize,
    /// Verify passes that sampled for this sequence.
    pub target_passes: usize,
    /// Proposals verified.
    pub proposed: usize,
    /// Proposals accepted.
    pub accepted: usize,
    /// Both, by where proposals came from.
    pub by_source: PerSource<Tried>,
    /// Verify passes that had proposals of this sequence, by how many of them they accepted: none, one, two, …
    pub passes_by_accepted: [u32; K_LIMIT + 1],
    /// The most proposals that one pass verified.
    pub longest: usize,
    /// When.
    pub moments: Moments,
}

/// Proposals of one source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tried {
    /// Those verified.
    pub proposed: usize,
    /// Those of them that were accepted.
    pub accepted: usize,
}

/// Moments of a request, as times since its submission; none before they have come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moments {
    /// Its first admission.
    pub admitted: Option<Duration>,
    /// The verdict that brought its first token.
    pub first_token: Option<Duration>,
    /// The latest verdict.
    pub last_token: Option<Duration>,
}

impl Usage {
    /// Counts the verdict of a pass at a time since submission: of proposals from these sources so many were accepted. What is counted of each
    /// source.
    pub(crate) fn count(
        &mut self,
        sources: impl Iterator<Item = Source>,
        accepted: usize,
        at: Duration,
    ) -> PerSource<Tried> {
        let (mut proposed, mut by_source) = (0, PerSource::<Tried>::default());
        for source in sources {
            let tried = &mut by_source[source];
            tried.proposed += 1;
            tried.accepted += usize::from(proposed < accepted);
            proposed += 1;
        }
        for source in Source::ALL {
            self.by_source[source].proposed += by_source[source].proposed;
            self.by_source[source].accepted += by_source[source].accepted;
        }
        if proposed > 0 {
            self.passes_by_accepted[accepted.min(K_LIMIT)] += 1;
        }
        self.target_passes += 1;
        self.proposed += proposed;
        self.accepted += accepted;
        self.longest = self.longest.max(proposed);
        self.moments.first_token.get_or_insert(at);
        self.moments.last_token = Some(at);
        by_source
    }

    /// What a request took in all that went on elsewhere, `later` of it there, where its output is counted from the beginning. Clocks
    /// of two places have nothing in common: the moments are not known any more.
    #[must_use]
    pub fn gone_on(self, later: Usage) -> Usage {
        let passes = |accepted: usize| self.passes_by_accepted[accepted] + later.passes_by_accepted[accepted];
        Usage {
            prompt_tokens: later.prompt_tokens.max(self.prompt_tokens),
            cached_tokens: self.cached_tokens,
            output_tokens: later.output_tokens.max(self.output_tokens),
            target_passes: self.target_passes + later.target_passes,
            proposed: self.proposed + later.proposed,
            accepted: self.accepted + later.accepted,
            by_source: PerSource::of(|source| Tried {
                proposed: self.by_source[source].proposed + later.by_source[source].proposed,
                accepted: self.by_source[source].accepted + later.by_source[source].accepted,
            }),
            passes_by_accepted: std::array::from_fn(passes),
            longest: self.longest.max(later.longest),
            moments: Moments::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_counts_for_its_sources_in_their_order() {
        let mut usage = Usage::default();
        let at = Duration::from_millis;
        usage.count([].into_iter(), 0, at(5));
        usage.count([Source::Prediction, Source::Prediction, Source::Draft].into_iter(), 1, at(6));
        usage.count([Source::Draft; K_LIMIT].into_iter(), K_LIMIT, at(9));
        let tried = |source| (usage.by_source[source].proposed, usage.by_source[source].accepted);
        assert_eq!(Source::ALL.map(tried), [(K_LIMIT + 1, K_LIMIT), (0, 0), (2, 1), (0, 0)]);
        assert_eq!((usage.proposed, usage.accepted, usage.target_passes), (K_LIMIT + 3, K_LIMIT + 1, 3));
        assert_eq!(
            (usage.passes_by_accepted[1], usage.passes_by_accepted[K_LIMIT], usage.longest),
            (1, 1, K_LIMIT)
        );
        assert_eq!(
            usage.passes_by_accepted.iter().sum::<u32>(),
            2,
            "a pass without proposals tells nothing of them"
        );
        assert_eq!((usage.moments.first_token, usage.moments.last_token), (Some(at(5)), Some(at(9))));
        let all = usage.gone_on(Usage { output_tokens: 40, ..usage });
        assert_eq!((all.proposed, all.passes_by_accepted[1], all.output_tokens), (2 * usage.proposed, 2, 40));
        assert_eq!((all.longest, all.moments), (K_LIMIT, Moments::default()));
    }
}
