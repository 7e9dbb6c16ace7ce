//! The planner's interface: how many proposals each sequence gets. Later policies join the enum and `Planner`.

use std::fmt;
use std::str::FromStr;

use crate::api::K_LIMIT;

/// How speculative lengths are chosen; written `off` or `fixed:4` in config.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Plain decoding: no sequence speculates.
    Off,
    /// The same speculative length for everyone, always.
    Fixed {
        /// Proposals per sequence and pass, 1 to `K_LIMIT`.
        k: usize,
    },
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Policy, String> {
        if text == "off" {
            return Ok(Policy::Off);
        }
        text.strip_prefix("fixed:")
            .and_then(|k| k.parse().ok())
            .filter(|k| (1..=K_LIMIT).contains(k))
            .map(|k| Policy::Fixed { k })
            .ok_or_else(|| {
                format!("unknown policy `{text}`: write `off`, or `fixed:K` with K from 1 to {K_LIMIT}")
            })
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Policy::Off => f.write_str("off"),
            Policy::Fixed { k } => write!(f, "fixed:{k}"),
        }
    }
}

/// What the planner knows of a sequence that could be given proposals.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    /// Proposals that could still be used: bounded by the request's `k_max`, its tokens to come and its context.
    pub(crate) useful: usize,
}

/// Chooses the speculative length of every sequence of a batch.
#[derive(Debug)]
pub(crate) struct Planner {
    policy: Policy,
}

impl Planner {
    /// A planner that follows `policy`.
    pub(crate) fn new(policy: Policy) -> Planner {
        Planner { policy }
    }

    /// Fills `lengths` with one speculative length per candidate, never above its `useful`; `rows` is what the pass
    /// has left for proposals, shared out in order.
    pub(crate) fn plan(&mut self, candidates: &[Candidate], rows: usize, lengths: &mut Vec<usize>) {
        lengths.clear();
        let wanted = match self.policy {
            Policy::Off => 0,
            Policy::Fixed { k } => k,
        };
        let mut left = rows;
        lengths.extend(candidates.iter().map(|candidate| {
            let k = wanted.min(candidate.useful).min(left);
            left -= k;
            k
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_read_and_written_alike() {
        for text in ["off", "fixed:1", "fixed:16"] {
            assert_eq!(text.parse::<Policy>().map(|p| p.to_string()), Ok(text.to_owned()));
        }
        for text in ["fixed:0", "fixed:17", "fixed:", "fixed", "faser", ""] {
            assert!(text.parse::<Policy>().is_err(), "{text} was taken");
        }
    }

    #[test]
    fn lengths_keep_within_what_is_useful_and_what_the_pass_has_left() {
        let mut lengths = Vec::new();
        let candidates = [4, 1, 9, 9].map(|useful| Candidate { useful });
        Planner::new(Policy::Fixed { k: 4 }).plan(&candidates, 7, &mut lengths);
        assert_eq!(lengths, [4, 1, 2, 0]);
        Planner::new(Policy::Off).plan(&candidates, 7, &mut lengths);
        assert_eq!(lengths, [0, 0, 0, 0]);
    }
}
