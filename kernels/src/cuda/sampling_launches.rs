//! Launches of the sampler.

use super::launch::{Launch, Ptr, strided};
use crate::sampling::{CANDIDATES, Logprobs, MAX_TOP_LOGPROBS, Sampling, logprob};

/// Logits of a part: what one block looks at.
pub const LOGITS_CHUNK: u32 = 4096;

/// How the tokens of a sequence are drawn, in device memory: one for each chunk of a pass.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampler {
    seed: u64,
    bias_tokens: Ptr,
    bias: Ptr,
    counts: Ptr,
    bias_len: u32,
    top_k: u32,
    greedy: u32,
    reserved: u32,
    temperature: f32,
    inverse: f32,
    floor_offset: f32,
    top_p: f32,
    repetition: f32,
    presence: f32,
    frequency: f32,
    unused: f32,
}

impl Sampler {
    /// `bias_tokens` (u32) and `bias` (f32) hold [`Sampling::logit_bias`]; `counts` is the table of [`CountArgs`]. What the parameters
    /// do not use may be null.
    ///
    /// # Panics
    /// If there are penalties but no `counts`.
    #[must_use]
    pub fn new(sampling: &Sampling, bias_tokens: Ptr, bias: Ptr, counts: Ptr) -> Sampler {
        let penalties = sampling.has_penalties();
        assert!(!penalties || counts != Ptr::NULL, "penalties need counts");
        let greedy = sampling.is_greedy();
        let offset = sampling.temperature * sampling.min_p.ln();
        Sampler {
            seed: sampling.seed,
            bias_tokens,
            bias,
            counts: if penalties { counts } else { Ptr::NULL },
            bias_len: sampling.logit_bias.len() as u32,
            top_k: sampling.top_k,
            greedy: u32::from(greedy),
            reserved: 0,
            temperature: sampling.temperature,
            inverse: if greedy { 0.0 } else { 1.0 / sampling.temperature },
            floor_offset: if sampling.min_p > 0.0 { offset } else { f32::NEG_INFINITY },
            top_p: sampling.top_p,
            repetition: sampling.repetition_penalty,
            presence: sampling.presence_penalty,
            frequency: sampling.frequency_penalty,
            unused: 0.0,
        }
    }
}

/// Committed tokens into a sequence's table of counts.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CountArgs {
    /// u32: the tokens.
    pub tokens: Ptr,
    /// u32 per token of the vocabulary, zero to begin with.
    pub counts: Ptr,
    /// How many tokens.
    pub len: u32,
    /// Position of the first.
    pub first_position: u32,
    /// Tokens before this position are the prompt's.
    pub prompt_len: u32,
    /// The vocabulary.
    pub vocabulary: u32,
    /// 1: the tokens, which are the output's and were counted, are taken out again; 0: they are counted.
    pub remove: u32,
}

impl CountArgs {
    /// One thread for a token.
    #[must_use]
    pub fn launch(self, sms: u32) -> Launch<CountArgs> {
        Launch::new("count_tokens", [strided(self.len.div_ceil(256), sms, 8), 1, 1], 256, self)
    }
}

/// Bias, penalties and masks, in place.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AdjustArgs {
    /// f32 `[samples][vocabulary]`.
    pub logits: Ptr,
    /// [`super::Sample`]s.
    pub samples: Ptr,
    /// [`Sampler`] of each chunk.
    pub samplers: Ptr,
    /// u32 `[chunk][proposal_stride]`.
    pub proposals: Ptr,
    /// u32 `[..][mask_words]`: a bit for each token that may be drawn.
    pub masks: Ptr,
    /// u32 of each chunk: the mask of a sample with no proposal before it, those of others follow; [`super::NOTHING`]: all tokens may be drawn.
    /// Null: so it is of all.
    pub mask_of: Ptr,
    /// u32: how many samples there are.
    pub count: Ptr,
    /// Tokens that the logits are of.
    pub vocabulary: u32,
    /// Places for proposals of a chunk.
    pub proposal_stride: u32,
    /// The first of those tokens.
    pub first: u32,
    /// Words of a mask.
    pub mask_words: u32,
}

impl AdjustArgs {
    /// One block for a sample.
    #[must_use]
    pub fn launch(self, most: u32, sms: u32) -> Launch<AdjustArgs> {
        Launch::new("adjust_logits", [strided(most, sms, 4), 1, 1], 512, self)
    }
}

/// What [`LogitStatsArgs`] finds of a part, in device memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LogitStats {
    /// The best logit and its token, as one word; 0 if none is finite.
    pub best: u64,
    /// The sum of `e^(logit - best)`.
    pub sum: f32,
    unused: u32,
}

/// Best logit and sum of exponentials of each part of each row.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LogitStatsArgs {
    /// f32 `[rows][vocabulary]`.
    pub logits: Ptr,
    /// [`LogitStats`] `[rows][parts]`.
    pub stats: Ptr,
    /// u32: how many rows there are.
    pub rows: Ptr,
    /// Tokens that the logits are of.
    pub vocabulary: u32,
    /// The first of them.
    pub first_token: u32,
}

impl LogitStatsArgs {
    /// Parts of a row.
    #[must_use]
    pub fn parts(vocabulary: u32) -> u32 {
        vocabulary.div_ceil(LOGITS_CHUNK)
    }

    /// One block for a part.
    #[must_use]
    pub fn launch(self, most_rows: u32) -> Launch<LogitStatsArgs> {
        Launch::new("logit_stats", [Self::parts(self.vocabulary), most_rows.min(65_535), 1], 256, self)
    }
}

/// The probability of a token in each row.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ConfidenceArgs {
    /// f32 `[rows][vocabulary]`, plain.
    pub logits: Ptr,
    /// [`LogitStats`] of them.
    pub stats: Ptr,
    /// u32 per row.
    pub tokens: Ptr,
    /// f32 per row.
    pub out: Ptr,
    /// u32: how many rows there are.
    pub rows: Ptr,
    /// The vocabulary.
    pub vocabulary: u32,
    /// Parts of a row.
    pub parts: u32,
}

impl ConfidenceArgs {
    /// One warp for a row.
    #[must_use]
    pub fn launch(self, most_rows: u32, sms: u32) -> Launch<ConfidenceArgs> {
        Launch::new("confidence", [strided(most_rows.div_ceil(4), sms, 8), 1, 1], 128, self)
    }
}

/// What top-k and top-p leave of each sample.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct NucleusArgs {
    /// f32 `[samples][vocabulary]`, processed.
    pub logits: Ptr,
    /// [`LogitStats`] of them.
    pub stats: Ptr,
    /// [`super::Sample`]s.
    pub samples: Ptr,
    /// [`Sampler`] of each chunk.
    pub samplers: Ptr,
    /// u64 per sample.
    pub least: Ptr,
    /// u32: how many samples there are.
    pub count: Ptr,
    /// The vocabulary; at most 2^19.
    pub vocabulary: u32,
    /// Parts of a row.
    pub parts: u32,
}

impl NucleusArgs {
    /// One block for a sample.
    ///
    /// # Panics
    /// If the vocabulary is too large for sums in fixed point.
    #[must_use]
    pub fn launch(self, most: u32, sms: u32) -> Launch<NucleusArgs> {
        assert!(self.vocabulary <= 1 << 19, "nucleus: a vocabulary of {}", self.vocabulary);
        Launch::new("nucleus", [strided(most, sms, 2), 1, 1], 1024, self)
    }
}

/// The best token of each part of each sample; [`PickArgs`] follows.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DrawArgs {
    /// f32 `[samples][vocabulary]`, processed.
    pub logits: Ptr,
    /// [`LogitStats`] of them.
    pub stats: Ptr,
    /// What [`NucleusArgs`] left; null where no sequence has top-k or top-p.
    pub least: Ptr,
    /// [`super::Sample`]s.
    pub samples: Ptr,
    /// [`Sampler`] of each chunk.
    pub samplers: Ptr,
    /// u64 `[samples][parts]`.
    pub best: Ptr,
    /// u32: how many samples there are.
    pub count: Ptr,
    /// Tokens that the logits are of.
    pub vocabulary: u32,
    /// Parts of a row.
    pub parts: u32,
    /// The first of those tokens.
    pub first_token: u32,
}

impl DrawArgs {
    /// One block for a part.
    #[must_use]
    pub fn launch(self, most: u32) -> Launch<DrawArgs> {
        Launch::new("draw_tokens", [self.parts, most.min(65_535), 1], 256, self)
    }
}

/// The token of each sample, or its key: of value and token together, greater where the token is better.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PickArgs {
    /// u64 of each sample and part.
    pub best: Ptr,
    /// u32 per sample; 0 if no logit is finite. Or null.
    pub tokens: Ptr,
    /// u64 per sample, or null.
    pub keys: Ptr,
    /// u32: how many samples there are.
    pub count: Ptr,
    /// Parts of a row.
    pub parts: u32,
    /// From a sample to the next, in `best`.
    pub sample_stride: u32,
    /// From a part to the next.
    pub part_stride: u32,
}

impl PickArgs {
    /// The tokens of what [`DrawArgs`] found.
    #[must_use]
    pub fn tokens(best: Ptr, tokens: Ptr, count: Ptr, parts: u32) -> PickArgs {
        PickArgs { best, tokens, keys: Ptr::NULL, count, parts, sample_stride: parts, part_stride: 1 }
    }

    /// The keys of what [`DrawArgs`] found.
    #[must_use]
    pub fn keys(best: Ptr, keys: Ptr, count: Ptr, parts: u32) -> PickArgs {
        PickArgs { best, tokens: Ptr::NULL, keys, count, parts, sample_stride: parts, part_stride: 1 }
    }

    /// The tokens of keys that stand rank after rank, `most` of each.
    #[must_use]
    pub fn of_ranks(keys: Ptr, tokens: Ptr, count: Ptr, ranks: u32, most: u32) -> PickArgs {
        let (sample_stride, part_stride) = (1, most);
        PickArgs { best: keys, tokens, keys: Ptr::NULL, count, parts: ranks, sample_stride, part_stride }
    }

    /// One warp for a sample.
    #[must_use]
    pub fn launch(self, most: u32, sms: u32) -> Launch<PickArgs> {
        Launch::new("pick_tokens", [strided(most.div_ceil(4), sms, 8), 1, 1], 128, self)
    }
}

/// The likeliest [`TOP_TOKENS`] of each row.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TopTokensArgs {
    /// f32 `[rows][vocabulary]`.
    pub logits: Ptr,
    /// u32 `[rows][TOP_TOKENS]`.
    pub out: Ptr,
    /// u32: how many rows there are.
    pub rows: Ptr,
    /// The vocabulary.
    pub vocabulary: u32,
}

impl TopTokensArgs {
    /// One block for a row.
    #[must_use]
    pub fn launch(self, most_rows: u32, sms: u32) -> Launch<TopTokensArgs> {
        Launch::new("top_tokens", [strided(most_rows, sms, 4), 1, 1], 512, self)
    }
}

/// The [`CANDIDATES`] tokens that would be drawn in each row without the one that was.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CandidatesArgs {
    /// f32 `[samples][vocabulary]`, processed; of all tokens.
    pub logits: Ptr,
    /// [`LogitStats`] of them.
    pub stats: Ptr,
    /// What [`NucleusArgs`] left; null where no sequence has top-k or top-p.
    pub least: Ptr,
    /// [`super::Sample`]s.
    pub samples: Ptr,
    /// [`Sampler`] of each chunk.
    pub samplers: Ptr,
    /// u32 per sample: what was drawn.
    pub tokens: Ptr,
    /// u32 `[samples][CANDIDATES]`; [`super::NOTHING`] where no more is left.
    pub out: Ptr,
    /// u32: how many samples there are.
    pub count: Ptr,
    /// The vocabulary.
    pub vocabulary: u32,
    /// Parts of a row.
    pub parts: u32,
}

impl CandidatesArgs {
    /// One block for a row.
    #[must_use]
    pub fn launch(self, most_rows: u32, sms: u32) -> Launch<CandidatesArgs> {
        Launch::new("candidates", [strided(most_rows, sms, 4), 1, 1], 512, self)
    }
}

// The kernel's number.
const _: () = assert!(CANDIDATES == 8);

/// What of log-probabilities a chunk wants, in device memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogprobWish {
    /// How many of the likeliest tokens; [`super::NOTHING`]: no log-probabilities at all.
    pub top: u32,
    /// Where its prompt's tokens begin, among those of all chunks: they are asked for in their places, in place of what is drawn there.
    pub prompt_at: u32,
    /// Position of the first of them.
    pub start: u32,
    /// How many there are.
    pub count: u32,
}

impl LogprobWish {
    /// None.
    pub const NONE: LogprobWish = LogprobWish { top: super::NOTHING, prompt_at: 0, start: 0, count: 0 };
}

/// What is found for a sample, in device memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LogprobFound {
    /// The largest logit; infinite if none is finite.
    largest: f32,
    /// The sum of `e^(logit - largest)`.
    sum: f32,
    logit: f32,
    token: u32,
    found: u32,
    tokens: [u32; MAX_TOP_LOGPROBS],
    logits: [f32; MAX_TOP_LOGPROBS],
}

impl LogprobFound {
    /// The token asked for, and the likeliest.
    #[must_use]
    pub fn logprobs(&self) -> Logprobs {
        let normaliser = f64::from(self.largest) + f64::from(self.sum).ln();
        let likeliest = self.tokens.iter().zip(self.logits).take(self.found as usize);
        Logprobs {
            token: self.token,
            logprob: logprob(self.logit, normaliser),
            top: likeliest.map(|(token, logit)| (*token, logprob(logit, normaliser))).collect(),
        }
    }
}

/// What log-probabilities are made of.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LogprobsArgs {
    /// f32 `[samples][vocabulary]`, plain.
    pub logits: Ptr,
    /// [`LogitStats`] of them.
    pub stats: Ptr,
    /// [`super::Sample`]s.
    pub samples: Ptr,
    /// u32 per sample: what was drawn.
    pub tokens: Ptr,
    /// [`LogprobWish`] of each chunk.
    pub wishes: Ptr,
    /// u32: tokens of prompts.
    pub prompt_tokens: Ptr,
    /// [`LogprobFound`] per sample.
    pub out: Ptr,
    /// u32: how many samples there are.
    pub count: Ptr,
    /// The vocabulary.
    pub vocabulary: u32,
    /// Parts of a row.
    pub parts: u32,
}

impl LogprobsArgs {
    /// One block for a sample.
    #[must_use]
    pub fn launch(self, most: u32, sms: u32) -> Launch<LogprobsArgs> {
        Launch::new("logprobs", [strided(most, sms, 4), 1, 1], 512, self)
    }
}
