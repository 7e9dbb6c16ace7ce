//! The sampler: noise shared by draft and target, so that a token depends on (logits, parameters, seed, position) alone.
//!
//! The token at position `j` is `argmax_v (z[v] + G(seed, j, v))` over processed logits `z` (Gumbel-max trick), where
//! `G` is a counter-based Gumbel variate (see `noise.rs`). A draft model that draws with the same noise proposes the same token
//! whenever its distribution is close (Daliri, Musco, Suresh 2024), and what is emitted is always the target's own.
//! Logits are processed as vLLM does: logit bias, penalties, temperature, top-k, top-p, min-p. Greedy is temperature 0: no noise.

mod choose;
mod confidence;
mod gap;
mod history;
mod logprobs;
mod mask;
mod noise;
mod nucleus;
mod part;
mod top_tokens;

use std::sync::Arc;

use crate::isa::Supported;
use crate::lane::Scratch;
use crate::memory::View;
use crate::simd::dispatch;
use crate::{KernelError, Lane, Op};
use choose::{Best, Greedy, Noisy};
pub use confidence::confidence;
pub use gap::gap;
pub use history::History;
pub(crate) use logprobs::logprob;
pub use logprobs::{LogprobRow, Logprobs, MAX_TOP_LOGPROBS, logprobs};
pub use mask::mask_of;
use noise::Noise;
use nucleus::Nucleus;
pub use part::PartSampler;
pub use top_tokens::{TOP_TOKENS, top_tokens};

/// Temperatures below this are greedy: scaled logits would leave the range in which the noise still counts.
pub(crate) const GREEDY_BELOW: f32 = 1e-5;

/// How the tokens of one request are drawn.
#[derive(Clone, Debug, PartialEq)]
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

    /// Whether the history matters.
    #[must_use]
    pub fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
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
        self.temperature >= GREEDY_BELOW && (self.restricts(vocabulary) || self.min_p > 0.0)
    }
}

/// A row of logits to draw a token from.
#[derive(Clone, Copy, Debug)]
pub struct SampleRow<'a> {
    /// Row of the logits.
    pub row: usize,
    /// Position of the token in prompt and output: the same for draft and target, it selects the noise.
    pub position: u32,
    /// The request's parameters.
    pub sampling: &'a Sampling,
    /// Tokens of the sequence, up to some position.
    pub history: &'a History,
    /// The tokens after those and before `position`: proposals of the same chunk.
    pub since: &'a [u32],
    /// The tokens that may be drawn, a bit each, the lowest first; tokens beyond its end may not. None: all may.
    pub allowed: Option<&'a [u32]>,
}

impl SampleRow<'_> {
    /// Whether the token may be none of the ends.
    fn goes_on(&self) -> bool {
        self.sampling.goes_on((self.position as usize).saturating_sub(self.history.prompt_len()))
    }
}

/// Draws one token for each of `rows`. Logits that are not finite are never drawn; token 0 if none is finite.
///
/// # Panics
/// If `out` is not as long as `rows`, a row does not exist, or `history` and `since` do not reach exactly to `position`.
pub fn sample(lane: &Lane, logits: View<'_>, rows: &[SampleRow<'_>], out: &mut [u32]) {
    assert_eq!(out.len(), rows.len(), "sample: length of out");
    let out = crate::memory::SharedMut::new(out);
    let isa = lane.supported();
    lane.for_each(Op::Sample, rows.len(), logits.cols(), |i, scratch| {
        // SAFETY: each row is one item, done once.
        let token = unsafe { out.part(i, 1) };
        token[0] = draw(isa, logits.row(rows[i].row), &rows[i], scratch);
    });
}

/// The token of a row of logits that is whole.
fn draw(isa: Supported, logits: &[f32], row: &SampleRow<'_>, scratch: &mut Scratch) -> u32 {
    let SampleRow { position, sampling, .. } = *row;
    let (logits, candidates) = processed(logits, 0, row, scratch);
    let greedy = dispatch(isa, Greedy { logits, first: 0 });
    if sampling.temperature < GREEDY_BELOW {
        return greedy.token;
    }
    let noise = Noise::new(sampling.seed, position);
    let inverse = 1.0 / sampling.temperature;
    // The logit below which `min_p` cuts off: relative to the likeliest token, so it needs no sum.
    let floor = greedy.logit + sampling.temperature * sampling.min_p.ln();
    let floor = if sampling.min_p > 0.0 { floor } else { f32::MIN };
    if sampling.restricts(logits.len()) {
        let nucleus = Nucleus { logits, largest: greedy.logit, inverse, floor, sampling };
        nucleus.collect(isa, candidates);
        return dispatch(isa, choose::Among { candidates, inverse, noise }).token;
    }
    dispatch(isa, Noisy { logits, first: 0, inverse, floor, noise, likeliest: greedy.token }).token
}

/// The best of the tokens from `first` on, where neither top-k nor top-p nor min-p cut any off: of all parts of a vocabulary the best
/// is what [`draw`] draws from the whole.
fn best_of_part(
    isa: Supported,
    logits: &[f32],
    first: u32,
    row: &SampleRow<'_>,
    scratch: &mut Scratch,
) -> Best {
    let SampleRow { position, sampling, .. } = *row;
    let (logits, _) = processed(logits, first, row, scratch);
    let greedy = dispatch(isa, Greedy { logits, first });
    if sampling.temperature < GREEDY_BELOW {
        return greedy;
    }
    let noise = Noise::new(sampling.seed, position);
    let (inverse, floor) = (1.0 / sampling.temperature, f32::MIN);
    dispatch(isa, Noisy { logits, first, inverse, floor, noise, likeliest: greedy.token })
}

/// The logits of the tokens from `first` on with bias and penalties; and room for candidates.
fn processed<'a>(
    logits: &'a [f32],
    first: u32,
    row: &SampleRow<'_>,
    scratch: &'a mut Scratch,
) -> (&'a [f32], &'a mut Vec<(f32, u32)>) {
    let SampleRow { position, sampling, history, since, allowed, .. } = *row;
    assert_eq!(history.len() + since.len(), position as usize, "sample: tokens before position {position}");
    let (buffer, candidates) = scratch.floats_and_candidates(logits.len());
    let goes_on = row.goes_on();
    let plain = !sampling.has_penalties() && sampling.logit_bias.is_empty() && !sampling.forbids();
    if plain && !goes_on && allowed.is_none() {
        return (logits, candidates);
    }
    buffer.copy_from_slice(logits);
    history.adjust(sampling, since, first, buffer);
    if goes_on {
        mask::forbid(&sampling.ends, first, buffer);
    }
    for allowed in [sampling.allowed.as_deref(), allowed].into_iter().flatten() {
        mask::only(allowed, first, buffer);
    }
    for word in &sampling.banned {
        if let Some((last, before)) = word.split_last()
            && history.output_ends_with(since, before)
        {
            mask::forbid(&[*last], first, buffer);
        }
    }
    (buffer, candidates)
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
