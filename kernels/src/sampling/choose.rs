//! The arg max, with and without noise. Ties go to the lowest token.

use super::noise::{LARGEST, Noise, gumbel};
use crate::simd::{Kernel, Simd, exp};

/// The likeliest token.
pub(super) struct Greedy<'a> {
    pub(super) logits: &'a [f32],
    /// Token of the first logit.
    pub(super) first: u32,
}

/// A token and its logit, or what else was compared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Best {
    pub(super) token: u32,
    pub(super) logit: f32,
}

impl Best {
    /// The better of two; the lower token in a tie.
    #[inline(always)]
    pub(super) fn or(self, other: Best) -> Best {
        let wins = other.logit > self.logit || (other.logit == self.logit && other.token < self.token);
        if wins { other } else { self }
    }
}

/// The best of each lane so far.
struct Lanes<S: Simd> {
    value: S::F,
    token: S::I,
}

impl<S: Simd> Lanes<S> {
    #[inline(always)]
    fn new(s: S, first: u32) -> Lanes<S> {
        Lanes { value: s.splat(f32::NEG_INFINITY), token: s.splat_u32(first) }
    }

    /// Later tokens win only if larger: a lane's tokens come in ascending order.
    #[inline(always)]
    fn offer(&mut self, s: S, allowed: S::M, value: S::F, token: S::I) {
        let better = s.both(allowed, s.less(self.value, value));
        self.value = s.select(better, value, self.value);
        self.token = s.select_u32(better, token, self.token);
    }

    #[inline(always)]
    fn best(&self, s: S) -> Best {
        let (mut values, mut tokens) = ([0.0; 16], [0; 16]);
        // SAFETY: the arrays hold 16, a vector at most that.
        unsafe {
            s.store(values.as_mut_ptr(), self.value);
            s.store_u32(tokens.as_mut_ptr(), self.token);
        }
        let first = Best { token: tokens[0], logit: values[0] };
        let others = values.into_iter().zip(tokens).take(S::LANES).skip(1);
        others.fold(first, |best, (logit, token)| best.or(Best { token, logit }))
    }
}

/// The next logits, and which of their lanes are finite and real.
#[inline(always)]
fn finite<S: Simd>(s: S, chunk: &[f32]) -> (S::F, S::M) {
    // Lanes beyond the end become -inf: like every value that is not finite, it is not allowed.
    let z = if chunk.len() < S::LANES {
        let mut lanes = [f32::NEG_INFINITY; 16];
        lanes[..chunk.len()].copy_from_slice(chunk);
        s.load_some(&lanes)
    } else {
        s.load_some(chunk)
    };
    (z, s.both(s.less(s.splat(f32::NEG_INFINITY), z), s.less(z, s.splat(f32::INFINITY))))
}

impl Kernel for Greedy<'_> {
    type Output = Best;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Best {
        let mut lanes = Lanes::new(s, self.first);
        for (i, chunk) in self.logits.chunks(S::LANES).enumerate() {
            let (z, allowed) = finite(s, chunk);
            lanes.offer(s, allowed, z, s.count_from(self.first + (i * S::LANES) as u32));
        }
        lanes.best(s)
    }
}

/// The token with the largest sum of scaled logit and noise, among those of at least `floor`.
pub(super) struct Noisy<'a> {
    pub(super) logits: &'a [f32],
    /// Token of the first logit.
    pub(super) first: u32,
    /// One over the temperature.
    pub(super) inverse: f32,
    /// Lowest logit allowed.
    pub(super) floor: f32,
    pub(super) noise: Noise,
    /// Where the search starts: the better the first guess, the more tokens need no noise.
    pub(super) likeliest: u32,
}

impl Kernel for Noisy<'_> {
    type Output = Best;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Best {
        let Noisy { logits, first, inverse, floor, noise, likeliest } = self;
        let Some(guess) = logits.get((likeliest - first) as usize) else {
            return Best { token: likeliest, logit: f32::NEG_INFINITY };
        };
        let (inverse, floor, hopeless) = (s.splat(inverse), s.splat(floor), s.splat(-LARGEST));
        let mut beaten = s.add(s.mul(s.splat(*guess), inverse), noise.gumbel(s, s.splat_u32(likeliest)));
        let mut bar = below(s, beaten);
        let mut lanes = Lanes::new(s, first);
        for (i, chunk) in logits.chunks(S::LANES).enumerate() {
            let (z, allowed) = finite(s, chunk);
            let scaled = s.mul(z, inverse);
            let lead = s.sub(scaled, bar);
            let allowed = s.both(allowed, s.not(s.either(s.less(lead, hopeless), s.less(z, floor))));
            if !s.any(allowed) {
                continue;
            }
            // A token wins only if its noise is at least -lead, and noise is at most -ln x: only if x is at most e^lead.
            // That rules out nearly all before a logarithm is taken.
            let token = s.count_from(first + (i * S::LANES) as u32);
            let x = noise.uniform(s, token);
            let allowed = s.both(allowed, s.less(x, exp(s, lead)));
            if s.any(allowed) {
                lanes.offer(s, allowed, s.add(scaled, gumbel(s, x)), token);
                beaten = s.max(beaten, lanes.value);
                bar = below(s, beaten);
            }
        }
        lanes.best(s)
    }
}

/// A little less than what must be beaten: more than all rounding between a token's lead and its value.
#[inline(always)]
fn below<S: Simd>(s: S, beaten: S::F) -> S::F {
    let slack = s.mul(s.max(beaten, s.sub(s.splat(0.0), beaten)), s.splat(1e-6));
    s.sub(beaten, s.add(slack, s.splat(0.01)))
}

/// [`Noisy`] among candidates (logit and token), in any order.
pub(super) struct Among<'a> {
    pub(super) candidates: &'a [(f32, u32)],
    pub(super) inverse: f32,
    pub(super) noise: Noise,
}

impl Kernel for Among<'_> {
    type Output = Best;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Best {
        let mut best = Best { token: 0, logit: f32::NEG_INFINITY };
        for chunk in self.candidates.chunks(S::LANES) {
            let (mut logits, mut tokens) = ([0.0; 16], [0; 16]);
            for (i, (logit, token)) in chunk.iter().enumerate() {
                (logits[i], tokens[i]) = (*logit, *token);
            }
            // SAFETY: the arrays hold 16, a vector at most that.
            unsafe {
                let noise = self.noise.gumbel(s, s.load_u32(tokens.as_ptr()));
                let scaled = s.mul(s.load(logits.as_ptr()), s.splat(self.inverse));
                s.store(logits.as_mut_ptr(), s.add(scaled, noise));
            }
            for (logit, token) in logits.into_iter().zip(tokens).take(chunk.len()) {
                best = best.or(Best { token, logit });
            }
        }
        best
    }
}
