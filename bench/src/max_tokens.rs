//! How many tokens each request asks for.

use std::{fmt, str::FromStr};

use serde::{Serialize, Serializer};

use crate::BenchError;

/// Tokens that requests ask for: all the same, or each a number of its own between two bounds.
///
/// Requests of one length that begin together keep in step: they end together, and their successors' prompts share passes. No users do that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxTokens {
    least: usize,
    most: usize,
}

impl MaxTokens {
    /// So many for every request.
    pub const fn exactly(tokens: usize) -> MaxTokens {
        MaxTokens { least: tokens, most: tokens }
    }

    /// Those of this request, counted from 0: the same in every run.
    pub fn of(self, request: usize) -> usize {
        let mixed = (request as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // The upper bits are evenly spread, over few requests too.
        let place = (u128::from(mixed) * (self.most - self.least + 1) as u128) >> 64;
        self.least + place as usize
    }

    /// The most that any request asks for.
    pub const fn most(self) -> usize {
        self.most
    }
}

impl FromStr for MaxTokens {
    type Err = BenchError;

    fn from_str(text: &str) -> Result<Self, BenchError> {
        let bounds = text.split_once("..").unwrap_or((text, text));
        match (bounds.0.parse(), bounds.1.parse()) {
            (Ok(least), Ok(most)) if 1 <= least && least <= most => Ok(MaxTokens { least, most }),
            _ => Err(BenchError::Spec(format!(
                "max_tokens `{text}` must be a number of at least 1, or two such as 32..96, the lower one first"
            ))),
        }
    }
}

impl fmt::Display for MaxTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.least == self.most {
            write!(f, "{}", self.most)
        } else {
            write!(f, "{} to {}", self.least, self.most)
        }
    }
}

/// A number, or both bounds as a list.
impl Serialize for MaxTokens {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.least == self.most {
            self.most.serialize(serializer)
        } else {
            [self.least, self.most].serialize(serializer)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_kept_and_reached_and_the_mean_is_between_them() {
        let tokens: MaxTokens = "32..96".parse().expect("bounds");
        let all: Vec<usize> = (0..1000).map(|request| tokens.of(request)).collect();
        assert_eq!((all.iter().min(), all.iter().max(), tokens.most()), (Some(&32), Some(&96), 96));
        let mean = |all: &[usize]| all.iter().sum::<usize>() as f64 / all.len() as f64;
        assert!((mean(&all) - 64.0).abs() < 1.0 && (mean(&all[..16]) - 64.0).abs() < 8.0, "{}", mean(&all));
        assert_eq!("64".parse::<MaxTokens>().expect("a number"), MaxTokens::exactly(64));
        assert!((0..100).all(|request| MaxTokens::exactly(64).of(request) == 64));
    }

    #[test]
    fn what_is_no_number_or_pair_in_order_is_refused_with_an_example() {
        for text in
            ["", "0", "0..5", "96..32", "32..", "..32", "32-96", "1..2..3", "-1", "99999999999999999999"]
        {
            let refused = text.parse::<MaxTokens>().expect_err(text).to_string();
            assert!(refused.contains("32..96"), "{refused}");
        }
        assert!(usize::MAX.to_string().parse::<MaxTokens>().is_ok_and(|tokens| tokens.of(3) == usize::MAX));
    }
}
