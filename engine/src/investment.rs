//! What catching up cost: paid at once, worth something with every token that comes after it.

/// What a sequence's catching up cost and is not settled yet, spread over the tokens that were expected of it then.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Investment {
    seconds: f64,
    tokens: usize,
}

impl Investment {
    /// So many seconds more, for so many tokens to come.
    pub(crate) fn add(&mut self, seconds: f64, to_come: usize) {
        self.seconds += seconds;
        self.tokens = to_come;
    }

    /// Is anything to be settled yet?
    pub(crate) fn is_open(&self) -> bool {
        self.seconds > 0.0
    }

    /// Of so many tokens that came, their part: all that is left, once as many came as were expected.
    pub(crate) fn settle(&mut self, tokens: usize) -> f64 {
        let due = if tokens < self.tokens {
            self.seconds * tokens as f64 / self.tokens as f64
        } else {
            self.seconds
        };
        self.seconds -= due;
        self.tokens = self.tokens.saturating_sub(tokens);
        due
    }

    /// The sequence ends, or is preempted.
    pub(crate) fn write_off(&mut self) -> f64 {
        self.tokens = 0;
        std::mem::take(&mut self.seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_settled_by_the_tokens_that_were_expected_or_at_the_end() {
        let mut investment = Investment::default();
        assert_eq!(investment.settle(3), 0.0);
        investment.add(8.0, 16);
        assert_eq!([4, 1, 3].map(|tokens| investment.settle(tokens)), [2.0, 0.5, 1.5]);
        // More of it, for fewer.
        investment.add(4.0, 2);
        assert_eq!([1, 1, 1].map(|tokens| investment.settle(tokens)), [4.0, 4.0, 0.0]);
        investment.add(2.0, 10);
        assert_eq!((investment.settle(5), investment.write_off(), investment.settle(9)), (1.0, 1.0, 0.0));
    }
}
