//! The sampler: noise shared by draft and target, so that a token depends on (logits, parameters, seed, position) alone.
//!
//! The token at position `j` is `argmax_v (z[v] + G(seed, j, v))` over processed logits `z` (Gumbel-max trick), where
//! `G` is a counter-based Gumbel variate (see `noise.rs`). A draft model that draws with the same noise proposes the same token
//! whenever its distribution is close (Daliri, Musco, Suresh 2024), and what is emitted is always the target's own.
//! Logits are processed as vLLM does: logit bias, penalties, temperature, top-k, top-p, min-p. Greedy is temperature 0: no noise.

mod choose;
mod confidence;
mod draw;
mod history;
mod logprobs;
mod margin;
mod mask;
mod noise;
mod nucleus;
mod part;
mod top_tokens;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::KernelError;
pub use confidence::confidence;
pub use draw::{CANDIDATES, SampleRow, candidates, mask_of, sample};
pub use history::History;
pub(crate) use logprobs::logprob;
pub use logprobs::{LogprobRow, Logprobs, MAX_TOP_LOGPROBS, logprobs};
pub use margin::margin;
pub use part::PartSampler;
pub use top_tokens::{TOP_TOKENS, top_tokens};

/// Temperatures below this are greedy: scaled logits would leave the range in which the noise still counts.
const GREEDY_BELOW: f32 = 1e-5;

/// How the tokens of one request are drawn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// Divides the logits; 0 (and what is below 1e-5) takes the likeliest token.
    pub temperature: f32,
    /// Only this many likeliest tokens; 0 is all.
    pub top_k: u32,
    /// Only the likeliest tokens that together have this probability; 1 is all.
    pub top_p: f32,
    /// Only tokens at least this times as probable as the likeliest; 0 is all.
    pub min_p: f32,
    /// Above 1, tokens of prompt and output lose: positive logits are divided, negative ones multiplied; 1 is off.
    pub repetition_penalty: f32,
    /// Taken once from the logit of each token of the output.
    pub presence_penalty: f32,
    /// Taken from the logit of each token of the output as often as it is there.
    pub frequency_penalty: f32,
    /// Added to the logits of these tokens. Tokens beyond the vocabulary are ignored: check before.
    pub logit_bias: Vec<(u32, f32)>,
    /// The tokens that may be drawn, as in [`SampleRow::allowed`].
    pub allowed: Option<Arc<[u32]>>,
    /// Tokens of which the last is not drawn where the output ends with those before it. One that is alone is never drawn.
    pub banned: Vec<Vec<u32>>,
    /// Tokens of output that there are at least before any of `ends` is drawn.
    pub min_tokens: u32,
    /// Tokens that end the text. Tokens beyond the vocabulary are ignored.
    pub ends: Vec<u32>,
    /// The request's seed: same seed, same tokens.
    pub seed: u64,
}

impl Default for Sampling {
    /// Temperature 1, all else off, seed 0.
    fn default() -> Sampling {
        Sampling {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            allowed: None,
            banned: Vec::new(),
            min_tokens: 0,
            ends: Vec::new(),
            seed: 0,
        }
    }
}

impl Sampling {
    /// Whether all parameters are in their range.
    ///
    /// # Errors
    /// Names the first parameter that is not, and its range.
    pub fn validate(&self) -> Result<(), KernelError> {
        let finite = "a finite number";
        let bias = self.logit_bias.iter().map(|(_, bias)| *bias).find(|bias| !bias.is_finite());
        let checks = [
            (
                "temperature",
                self.temperature,
                (0.0..=f32::MAX).contains(&self.temperature),
                "0 or a positive number",
            ),
            ("top_p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, "above 0 and at most 1"),
            ("min_p", self.min_p, (0.0..=1.0).contains(&self.min_p), "between 0 and 1"),
            (
                "repetition_penalty",
                self.repetition_penalty,
                self.repetition_penalty > 0.0 && self.repetition_penalty.is_finite(),
                "a positive number",
            ),
            ("presence_penalty", self.presence_penalty, self.presence_penalty.is_finite(), finite),
            ("frequency_penalty", self.frequency_penalty, self.frequency_penalty.is_finite(), finite),
            ("logit_bias", bias.unwrap_or(0.0), bias.is_none(), finite),
        ];
        match checks.into_iter().find(|(_, _, fine, _)| !fine) {
            Some((field, value, _, must)) => Err(KernelError::Sampling { field, value, must }),
            None => Ok(()),
        }
    }

    /// Whether the likeliest token is taken always, so that the seed is of no account.
    #[must_use]
    pub fn is_greedy(&self) -> bool {
        self.temperature < GREEDY_BELOW
    }

    /// Whether the history matters.
    #[must_use]
    pub fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }

    /// Whether what may be drawn depends on the tokens before, but by the model.
    #[must_use]
    pub fn reads_history(&self) -> bool {
        self.has_penalties() || self.bans_runs()
    }

    /// Whether tokens in a row are banned.
    pub(crate) fn bans_runs(&self) -> bool {
        self.banned.iter().any(|word| word.len() > 1)
    }

    /// Whether tokens are left out, whatever the logits are.
    #[must_use]
    pub fn forbids(&self) -> bool {
        self.allowed.is_some() || !self.banned.is_empty()
    }

    /// Whether a token is never drawn.
    #[must_use]
    pub fn never(&self, token: u32) -> bool {
        let banned = || self.banned.iter().any(|word| matches!(word.as_slice(), [only] if *only == token));
        self.allowed.as_deref().is_some_and(|allowed| !mask::has(allowed, token)) || banned()
    }

    /// Whether a token may be none of `ends`, with so many tokens of output before it.
    #[must_use]
    pub fn goes_on(&self, output: usize) -> bool {
        output < self.min_tokens as usize && !self.ends.is_empty()
    }

    /// Whether top-k or top-p leave tokens of such a vocabulary out.
    #[must_use]
    pub fn restricts(&self, vocabulary: usize) -> bool {
        self.top_p < 1.0 || (self.top_k > 0 && (self.top_k as usize) < vocabulary)
    }

    /// Whether tokens are cut off by what all of them are.
    #[must_use]
    pub fn cuts(&self, vocabulary: usize) -> bool {
        !self.is_greedy() && (self.restricts(vocabulary) || self.min_p > 0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_out_of_range_are_named() {
        assert!(Sampling::default().validate().is_ok());
        let bad = [
            (Sampling { temperature: -1.0, ..Sampling::default() }, "temperature"),
            (Sampling { temperature: f32::NAN, ..Sampling::default() }, "temperature"),
            (Sampling { top_p: 0.0, ..Sampling::default() }, "top_p"),
            (Sampling { min_p: 1.5, ..Sampling::default() }, "min_p"),
            (Sampling { repetition_penalty: 0.0, ..Sampling::default() }, "repetition_penalty"),
            (Sampling { frequency_penalty: f32::INFINITY, ..Sampling::default() }, "frequency_penalty"),
            (Sampling { logit_bias: vec![(1, 2.0), (2, f32::NAN)], ..Sampling::default() }, "logit_bias"),
        ];
        for (sampling, field) in bad {
            let refusal = sampling.validate().unwrap_err().to_string();
            assert!(refusal.contains(field), "{refusal}");
        }
    }
}
