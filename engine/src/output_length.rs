//! How long outputs are, by those that ended: what a draft has to catch up with must pay over the tokens to come.
//!
//! Those that ended at their limit, or that a client left, say how long outputs are at least. How many tokens a sequence has says little of how
//! many come: the estimate is the likeliest mean of lengths without memory (exponential), some of which were cut off: all tokens by all
//! outputs that ended by themselves or were left. It fades, for loads change.

/// Ends after which what was before them counts for a third.
const MEMORY: f64 = 256.0;

/// Sums over outputs, the older the less.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OutputLength {
    tokens: f64,
    ends: f64,
}

impl OutputLength {
    /// So many tokens came.
    pub(crate) fn came(&mut self, tokens: usize) {
        self.tokens += tokens as f64;
    }

    /// An output ended, before its limit or there.
    pub(crate) fn ended(&mut self, before_limit: bool) {
        self.tokens *= 1.0 - 1.0 / MEMORY;
        self.ends = self.ends * (1.0 - 1.0 / MEMORY) + f64::from(u8::from(before_limit));
    }

    /// Tokens that an output is expected to have yet, however many it has; none if none has ended before its limit.
    pub(crate) fn expected(&self) -> Option<usize> {
        (self.ends > 0.0).then(|| (self.tokens / self.ends) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(length: &mut OutputLength, outputs: usize, tokens: usize, before_limit: bool) -> Option<usize> {
        for _ in 0..outputs {
            length.came(tokens);
            length.ended(before_limit);
        }
        length.expected()
    }

    #[test]
    fn it_is_the_mean_of_those_that_ended_and_longer_where_limits_cut_them_off() {
        let mut length = OutputLength::default();
        assert_eq!(after(&mut length, 100, 50, false), None);
        let all = after(&mut length, 1000, 50, true).unwrap();
        assert!((49..53).contains(&all), "{all}");
        let half = (0..1000).map(|i| after(&mut length, 1, 50, i % 2 == 0)).last().flatten().unwrap();
        assert!((95..106).contains(&half), "{half}");
    }

    #[test]
    fn it_follows_when_outputs_become_longer() {
        let mut length = OutputLength::default();
        after(&mut length, 50_000, 5, true);
        let later = after(&mut length, 500, 300, true).unwrap();
        assert!(later > 200, "{later}");
    }
}
