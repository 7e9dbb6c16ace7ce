//! The tokens a sequence has so far, counted: what penalties read.

use super::Sampling;
use std::collections::HashMap;

/// Prompt, output and proposals of one sequence, on one lane. Counts are kept up to date token by token, and only if
/// the request has penalties; the output itself only if it bans tokens in a row.
#[derive(Clone, Debug)]
pub struct History {
    prompt_len: usize,
    len: usize,
    counted: Option<Counted>,
    output: Option<Vec<u32>>,
}

#[derive(Clone, Debug)]
struct Counted {
    tokens: Vec<u32>,
    counts: HashMap<u32, Counts>,
}

/// How often a token is in the prompt, and after it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Counts {
    prompt: u32,
    output: u32,
}

impl History {
    /// The history of `tokens`, of which the first `prompt_len` are the prompt.
    #[must_use]
    pub fn new(prompt_len: usize, tokens: &[u32], sampling: &Sampling) -> History {
        let counted =
            sampling.has_penalties().then(|| Counted { tokens: Vec::new(), counts: HashMap::new() });
        let output = sampling.bans_runs().then(Vec::new);
        let mut history = History { prompt_len, len: 0, counted, output };
        history.rewind_and_extend(0, tokens);
        history
    }

    /// How many of the tokens are the prompt.
    #[must_use]
    pub fn prompt_len(&self) -> usize {
        self.prompt_len
    }

    /// Number of tokens.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether any draw looks at a token of it: without that, it is but a length.
    #[must_use]
    pub fn is_read(&self) -> bool {
        self.counted.is_some() || self.output.is_some()
    }

    /// Whether it and what follows reach exactly to a position, if it is read at all.
    pub(super) fn reaches(&self, since: &[u32], position: u32) -> bool {
        !self.is_read() || self.len + since.len() == position as usize
    }

    /// Forgets the tokens from position `start` and puts `tokens` there.
    ///
    /// # Panics
    /// If `start` is beyond the end of one that is read: tokens between are missing.
    pub fn rewind_and_extend(&mut self, start: usize, tokens: &[u32]) {
        let gap = start > self.len && self.is_read();
        assert!(!gap, "a history of {} tokens has none before {start}", self.len);
        self.len = start + tokens.len();
        if let Some(counted) = &mut self.counted {
            while counted.tokens.len() > start {
                counted.pop(self.prompt_len);
            }
            tokens.iter().for_each(|token| counted.push(*token, self.prompt_len));
        }
        if let Some(output) = &mut self.output {
            output.truncate(start.saturating_sub(self.prompt_len));
            output.extend(tokens.iter().skip(self.prompt_len.saturating_sub(start)));
        }
    }

    /// Whether the output, with `since` behind it, ends with these tokens. Tokens of the prompt are none of it.
    pub(super) fn output_ends_with(&self, since: &[u32], tokens: &[u32]) -> bool {
        let of_since = tokens.len().min(since.len());
        let (before, after) = tokens.split_at(tokens.len() - of_since);
        let output = self.output.as_deref().unwrap_or_default();
        since.ends_with(after) && (before.is_empty() || output.ends_with(before))
    }

    /// Adds bias and penalties to `logits`, those of the tokens from `first` on, where `since` follow the history.
    pub(super) fn adjust(&self, sampling: &Sampling, since: &[u32], first: u32, logits: &mut [f32]) {
        for (token, bias) in &sampling.logit_bias {
            if let Some(logit) = of_token(logits, first, *token) {
                *logit += bias;
            }
        }
        let Some(counted) = &self.counted else { return };
        let counts_of = |token: &u32| counted.counts.get(token).copied().unwrap_or_default();
        for (i, token) in since.iter().enumerate() {
            if !since[..i].contains(token) {
                let before = counts_of(token);
                let again = since.iter().filter(|other| *other == token).count() as u32;
                let counts = Counts { output: before.output + again, ..before };
                penalise(sampling, of_token(logits, first, *token), counts);
            }
        }
        for (token, counts) in counted.counts.iter().filter(|(token, _)| !since.contains(token)) {
            penalise(sampling, of_token(logits, first, *token), *counts);
        }
    }
}

fn of_token(logits: &mut [f32], first: u32, token: u32) -> Option<&mut f32> {
    logits.get_mut(token.checked_sub(first)? as usize)
}

fn penalise(sampling: &Sampling, logit: Option<&mut f32>, counts: Counts) {
    let Some(logit) = logit else { return };
    let penalty = sampling.repetition_penalty;
    *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
    if counts.output > 0 {
        *logit -= sampling.frequency_penalty * counts.output as f32;
        *logit -= sampling.presence_penalty;
    }
}

impl Counted {
    fn of(&mut self, token: u32, position: usize, prompt_len: usize) -> &mut u32 {
        let counts = self.counts.entry(token).or_default();
        if position < prompt_len { &mut counts.prompt } else { &mut counts.output }
    }

    fn push(&mut self, token: u32, prompt_len: usize) {
        *self.of(token, self.tokens.len(), prompt_len) += 1;
        self.tokens.push(token);
    }

    fn pop(&mut self, prompt_len: usize) {
        if let Some(token) = self.tokens.pop() {
            *self.of(token, self.tokens.len(), prompt_len) -= 1;
            if self.counts.get(&token) == Some(&Counts::default()) {
                self.counts.remove(&token);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn penalties() -> Sampling {
        Sampling {
            repetition_penalty: 2.0,
            presence_penalty: 0.5,
            frequency_penalty: 0.25,
            logit_bias: vec![(3, 1.0), (99, 1.0)],
            ..Sampling::default()
        }
    }

    #[test]
    fn prompt_tokens_get_the_repetition_penalty_and_output_tokens_all() {
        let history = History::new(2, &[0, 1, 1], &penalties());
        let mut logits = [4.0, -4.0, 4.0, 4.0, 4.0];
        history.adjust(&penalties(), &[4, 1, 4], 0, &mut logits);
        // 0: prompt. 1: prompt, output and since. 2: nowhere. 3: bias. 4: twice since.
        assert_eq!(logits, [2.0, -8.0 - 0.5 - 0.5, 4.0, 5.0, 2.0 - 0.5 - 0.5]);
        // The same of some tokens alone.
        let mut part = [-4.0, 4.0, 4.0];
        history.adjust(&penalties(), &[4, 1, 4], 1, &mut part);
        assert_eq!(part, logits[1..4]);
    }

    #[test]
    fn without_penalties_only_the_length_is_kept() {
        let mut history = History::new(1, &[5, 6, 7], &Sampling::default());
        assert!(history.counted.is_none());
        history.rewind_and_extend(1, &[9]);
        assert_eq!(history.len(), 2);
        assert!(!history.is_empty());
    }

    #[test]
    #[should_panic(expected = "a history of 1 tokens has none before 2")]
    fn a_gap_is_refused() {
        History::new(1, &[5], &penalties()).rewind_and_extend(2, &[1]);
    }

    #[test]
    fn the_end_of_the_output_is_found_across_history_and_since() {
        let sampling = Sampling { banned: vec![vec![1, 2, 3]], ..Sampling::default() };
        let mut history = History::new(2, &[8, 1, 2, 1], &sampling);
        for (since, tokens, wanted) in [
            (&[][..], &[][..], true),
            (&[], &[2, 1], true),
            (&[], &[1, 2, 1], false), // its first token is the prompt's
            (&[7], &[1, 7], true),
            (&[5, 7], &[7], true),
            (&[5, 7], &[2, 1, 5, 7], true),
            (&[5, 7], &[1, 7], false),
        ] {
            assert_eq!(history.output_ends_with(since, tokens), wanted, "{since:?} {tokens:?}");
        }
        history.rewind_and_extend(1, &[4, 5, 6]);
        assert_eq!(history.output, Some(vec![5, 6]));
        assert!(History::new(0, &[1], &Sampling { banned: vec![vec![1]], ..sampling }).output.is_none());
    }

    proptest! {
        #[test]
        fn rewinding_is_as_if_it_never_happened(
            prompt_len in 0usize..6, tokens in prop::collection::vec(0u32..8, 0..20),
            steps in prop::collection::vec((0usize..20, prop::collection::vec(0u32..8, 0..6)), 0..8),
        ) {
            let mut history = History::new(prompt_len, &tokens, &penalties());
            let mut plain = tokens;
            for (start, more) in steps {
                let start = start.min(plain.len());
                history.rewind_and_extend(start, &more);
                plain.truncate(start);
                plain.extend(more);
            }
            let fresh = History::new(prompt_len, &plain, &penalties()).counted.unwrap();
            let counted = history.counted.unwrap();
            prop_assert_eq!(history.len, plain.len());
            prop_assert_eq!(counted.tokens, plain);
            prop_assert_eq!(counted.counts, fresh.counts);
        }
    }
}
