//! A row's token, of logits that are whole or a part of the vocabulary's; and what of it a device has to be told.

use super::choose::{Among, Best, Greedy, Noisy};
use super::noise::Noise;
use super::nucleus::Nucleus;
use super::{History, Sampling, mask};
use crate::isa::Supported;
use crate::lane::Scratch;
use crate::memory::View;
use crate::simd::dispatch;
use crate::{Lane, Op};

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
/// If `out` is not as long as `rows`, a row does not exist, or `history` is read and with `since` does not reach exactly to `position`.
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

/// How many tokens [`candidates`] finds in each row.
pub const CANDIDATES: usize = 8;

/// What [`sample`] would draw in each row without the token that it drew, `tokens`, then without that one too, and so on.
///
/// # Panics
/// As [`sample`]; if `tokens` is not as long as `rows`.
pub fn candidates(
    lane: &Lane,
    logits: View<'_>,
    rows: &[SampleRow<'_>],
    tokens: &[u32],
    out: &mut [[u32; CANDIDATES]],
) {
    assert_eq!((tokens.len(), out.len()), (rows.len(), rows.len()), "candidates: tokens and places per row");
    let out = crate::memory::SharedMut::new(out);
    let isa = lane.supported();
    lane.for_each(Op::Candidates, rows.len(), CANDIDATES * logits.cols(), |i, scratch| {
        // SAFETY: each row is one item, done once.
        let place = unsafe { out.part(i, 1) };
        let row = &rows[i];
        let (buffer, kept) = scratch.floats_and_candidates(logits.cols());
        adjusted(logits.row(row.row), 0, row, buffer);
        let mut drawn = tokens[i];
        for next in &mut place[0] {
            mask::forbid(&[drawn], 0, buffer);
            drawn = choose(isa, buffer, row, kept);
            *next = drawn;
        }
    });
}

/// The token of a row of logits that is whole.
pub(super) fn draw(isa: Supported, logits: &[f32], row: &SampleRow<'_>, scratch: &mut Scratch) -> u32 {
    let (logits, candidates) = processed(logits, 0, row, scratch);
    choose(isa, logits, row, candidates)
}

/// The token of logits with bias, penalties and bans.
fn choose(isa: Supported, logits: &[f32], row: &SampleRow<'_>, candidates: &mut Vec<(f32, u32)>) -> u32 {
    let SampleRow { position, sampling, .. } = *row;
    let greedy = dispatch(isa, Greedy { logits, first: 0 });
    if sampling.is_greedy() {
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
        return dispatch(isa, Among { candidates, inverse, noise }).token;
    }
    dispatch(isa, Noisy { logits, first: 0, inverse, floor, noise, likeliest: greedy.token }).token
}

/// The best of the tokens from `first` on, where neither top-k nor top-p nor min-p cut any off: of all parts of a vocabulary the best
/// is what [`draw`] draws from the whole.
pub(super) fn best_of_part(
    isa: Supported,
    logits: &[f32],
    first: u32,
    row: &SampleRow<'_>,
    scratch: &mut Scratch,
) -> Best {
    let SampleRow { position, sampling, .. } = *row;
    let (logits, _) = processed(logits, first, row, scratch);
    let greedy = dispatch(isa, Greedy { logits, first });
    if sampling.is_greedy() {
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
    assert!(history.reaches(since, position), "sample: tokens before position {position}");
    let (buffer, candidates) = scratch.floats_and_candidates(logits.len());
    let plain = !sampling.has_penalties() && sampling.logit_bias.is_empty() && !sampling.forbids();
    if plain && !row.goes_on() && allowed.is_none() {
        return (logits, candidates);
    }
    adjusted(logits, first, row, buffer);
    (buffer, candidates)
}

/// Writes the logits of the tokens from `first` on with bias and penalties to `buffer`, and lets no token be drawn that may not be.
fn adjusted(logits: &[f32], first: u32, row: &SampleRow<'_>, buffer: &mut [f32]) {
    let SampleRow { sampling, history, since, allowed, .. } = *row;
    let goes_on = row.goes_on();
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
}

/// The tokens of such a vocabulary that may be drawn in a row's place, a bit each; none if all may. What [`sample`]
/// leaves out by itself, for a device that has to be told.
///
/// # Panics
/// If `history` is read and with `since` does not reach exactly to `position`.
#[must_use]
pub fn mask_of(row: &SampleRow<'_>, vocabulary: usize) -> Option<Vec<u32>> {
    let SampleRow { position, sampling, history, since, allowed, .. } = *row;
    assert!(history.reaches(since, position), "tokens before position {position}");
    let goes_on = row.goes_on();
    if !goes_on && !sampling.forbids() && allowed.is_none() {
        return None;
    }
    let mut mask = vec![u32::MAX; vocabulary.div_ceil(32)];
    for allowed in [sampling.allowed.as_deref(), allowed].into_iter().flatten() {
        let words = allowed.iter().copied().chain(std::iter::repeat(0));
        mask.iter_mut().zip(words).for_each(|(word, allowed)| *word &= allowed);
    }
    let ends = if goes_on { sampling.ends.as_slice() } else { &[] };
    let banned = sampling.banned.iter().filter_map(|word| {
        let (last, before) = word.split_last()?;
        history.output_ends_with(since, before).then_some(last)
    });
    for token in ends.iter().chain(banned) {
        if let Some(word) = mask.get_mut(*token as usize / 32) {
            *word &= !(1 << (token % 32));
        }
    }
    Some(mask)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_leaves_what_the_sampler_leaves() {
        const VOCABULARY: usize = 70;
        let logits = crate::Tensor::from_rows(VOCABULARY, &[1.0; VOCABULARY]);
        let lane = crate::Lane::new(&crate::Partition { cores: vec![0] }, crate::Isa::Portable).unwrap();
        let may_be = |row: &SampleRow<'_>, token: u32| {
            // What is likeliest by far is drawn, if it may be.
            let sampling =
                Sampling { temperature: 0.0, logit_bias: vec![(token, 9.0)], ..row.sampling.clone() };
            let mut out = [0];
            sample(&lane, logits.view(1), &[SampleRow { sampling: &sampling, ..*row }], &mut out);
            out[0] == token
        };
        let bits = |tokens: &[u32]| {
            let mut mask = vec![0u32; 3];
            tokens.iter().for_each(|token| mask[*token as usize / 32] |= 1 << (token % 32));
            mask
        };
        let (few, some) = (bits(&[0, 3, 33, 69]), bits(&[3, 5, 33, 64, 69]));
        let plain = Sampling::default();
        let cases = [
            (plain.clone(), None, false),
            (plain.clone(), Some(few.as_slice()), true),
            // Shorter than the vocabulary.
            (plain.clone(), Some(&few[..2]), true),
            (Sampling { allowed: Some(some.into()), ..plain.clone() }, Some(few.as_slice()), true),
            (Sampling { min_tokens: 4, ends: vec![3, 69, 900], ..plain.clone() }, None, true),
            (Sampling { min_tokens: 3, ends: vec![3], ..plain.clone() }, None, false),
            (Sampling { banned: vec![vec![7], vec![1, 8], vec![2, 9], vec![1, 2, 4]], ..plain }, None, true),
        ];
        for (sampling, allowed, masks) in cases {
            // Of the output, 1 and 2 at its end; a proposal more in the second place.
            let history = History::new(2, &[5, 5, 6, 1], &sampling);
            let row = SampleRow {
                row: 0,
                position: 5,
                sampling: &sampling,
                history: &history,
                since: &[2],
                allowed,
            };
            let mask = mask_of(&row, VOCABULARY);
            assert_eq!(mask.is_some(), masks, "{sampling:?}");
            for token in 0..VOCABULARY as u32 {
                let stays = mask.as_ref().is_none_or(|mask| mask::has(mask, token));
                assert_eq!(stays, may_be(&row, token), "{token} of {sampling:?}");
            }
        }
    }

    #[test]
    fn candidates_are_what_is_drawn_without_those_before() {
        const VOCABULARY: usize = 300;
        let values: Vec<f32> = (0..VOCABULARY).map(|i| ((i * 7919) % 613) as f32 / 60.0).collect();
        let logits = crate::Tensor::from_rows(VOCABULARY, &values);
        let lane = crate::Lane::new(&crate::Partition { cores: vec![0] }, crate::Isa::Portable).unwrap();
        let plain = Sampling { seed: 11, ..Sampling::default() };
        for sampling in [
            plain.clone(),
            Sampling { temperature: 0.0, ..plain.clone() },
            Sampling { temperature: 0.6, top_k: 40, min_p: 0.01, ..plain.clone() },
            Sampling { logit_bias: vec![(5, 4.0)], min_tokens: 2, ends: vec![7], ..plain.clone() },
            Sampling { banned: vec![vec![612 % 300]], ..plain },
        ] {
            let history = History::new(1, &[3], &sampling);
            let row = SampleRow {
                row: 0,
                position: 1,
                sampling: &sampling,
                history: &history,
                since: &[],
                allowed: None,
            };
            let mut drawn = [0];
            sample(&lane, logits.view(1), &[row], &mut drawn);
            let mut found = [[0; CANDIDATES]];
            candidates(&lane, logits.view(1), &[row], &drawn, &mut found);
            let mut without = sampling.clone();
            for candidate in found[0] {
                without.banned.push(drawn.to_vec());
                sample(&lane, logits.view(1), &[SampleRow { sampling: &without, ..row }], &mut drawn);
                assert_eq!(candidate, drawn[0], "{sampling:?}");
            }
        }
    }
}
