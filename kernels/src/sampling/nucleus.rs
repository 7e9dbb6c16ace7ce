//! top-k, top-p and min-p: the candidates that are left, without sorting the vocabulary.

use super::Sampling;
use crate::isa::Supported;
use crate::simd::{Kernel, Simd, dispatch, exp};
use std::cmp::Ordering;

/// Logits, and how they are cut.
pub(super) struct Nucleus<'a> {
    pub(super) logits: &'a [f32],
    /// The largest finite logit.
    pub(super) largest: f32,
    /// One over the temperature.
    pub(super) inverse: f32,
    /// Lowest logit that min-p allows.
    pub(super) floor: f32,
    pub(super) sampling: &'a Sampling,
}

impl Nucleus<'_> {
    /// Fills `candidates` with (logit, token) of the tokens that may be drawn.
    pub(super) fn collect(&self, isa: Supported, candidates: &mut Vec<(f32, u32)>) {
        let Sampling { top_k, top_p, .. } = *self.sampling;
        let vocabulary = self.logits.len();
        let top_k = if top_k == 0 { vocabulary } else { vocabulary.min(top_k as usize) };
        candidates.clear();
        // Room for all at once: later rows of any shape allocate nothing.
        candidates.reserve(vocabulary);
        let cut = if top_k < vocabulary { f32::MIN } else { self.negligible() };
        let finite = self.logits.iter().zip(0u32..).filter(|(z, _)| **z >= cut && **z < f32::INFINITY);
        candidates.extend(finite.map(|(z, token)| (*z, token)));
        if top_k < candidates.len() {
            candidates.select_nth_unstable_by(top_k - 1, likelier);
            candidates.truncate(top_k);
        }
        if top_p < 1.0 {
            let total = if top_k < vocabulary {
                // In the order of tokens: a sum must not depend on how the selection shuffled them.
                candidates.sort_unstable_by_key(|(_, token)| *token);
                candidates.iter().map(|(z, _)| self.weight(*z)).sum()
            } else {
                f64::from(dispatch(
                    isa,
                    Total { logits: self.logits, largest: self.largest, inverse: self.inverse },
                ))
            };
            let kept = self.reach(f64::from(top_p) * total, candidates);
            candidates.truncate(kept);
        }
        candidates.retain(|(z, _)| *z >= self.floor);
    }

    /// How many of the likeliest candidates, now sorted to the front, reach `mass`: at least one.
    fn reach(&self, mass: f64, candidates: &mut [(f32, u32)]) -> usize {
        let (mut kept, mut sum, mut portion) = (0, 0.0, 64);
        while kept < candidates.len() {
            let rest = &mut candidates[kept..];
            if portion < rest.len() {
                rest.select_nth_unstable_by(portion - 1, likelier);
            }
            let sorted = rest.len().min(portion);
            rest[..sorted].sort_unstable_by(likelier);
            for (z, _) in &rest[..sorted] {
                kept += 1;
                sum += self.weight(*z);
                if sum >= mass {
                    return kept;
                }
            }
            portion *= 4;
        }
        kept
    }

    /// Probability of a token, times a constant.
    fn weight(&self, z: f32) -> f64 {
        f64::from((z - self.largest) * self.inverse).exp()
    }

    /// A logit below which all tokens together have less than `1 - top_p`: the likeliest weighs 1, each of these less
    /// than `(1 - top_p) / vocabulary`. The nucleus is full before it comes to them.
    fn negligible(&self) -> f32 {
        let share = (1.0 - self.sampling.top_p) / self.logits.len() as f32;
        // A little lower, against rounding.
        (self.largest + (share.ln() - 1e-3) / self.inverse - 1e-3).max(f32::MIN)
    }
}

/// Likelier first, then the lower token.
fn likelier(a: &(f32, u32), b: &(f32, u32)) -> Ordering {
    b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
}

/// Sum of the weights of all finite logits.
struct Total<'a> {
    logits: &'a [f32],
    largest: f32,
    inverse: f32,
}

impl Kernel for Total<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let (largest, inverse) = (s.splat(self.largest), s.splat(self.inverse));
        let (infinity, zero) = (s.splat(f32::INFINITY), s.splat(0.0));
        let mut total = zero;
        for chunk in self.logits.chunks(S::LANES) {
            let mut z = s.load_some(chunk);
            if chunk.len() < S::LANES {
                let mut lanes = [f32::INFINITY; 16];
                lanes[..chunk.len()].copy_from_slice(chunk);
                z = s.load_some(&lanes);
            }
            let finite = s.both(s.less(s.splat(f32::NEG_INFINITY), z), s.less(z, infinity));
            let weight = exp(s, s.mul(s.sub(z, largest), inverse));
            total = s.add(total, s.select(finite, weight, zero));
        }
        s.sum(total)
    }
}
