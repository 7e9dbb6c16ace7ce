//! The noise `G(seed, position, token)`: standard Gumbel variates from a counter, the same on every device.
//!
//! (seed, position) is mixed to two 32-bit keys by the finaliser of SplitMix64 (Steele et al. 2014); a token's bits are two rounds of a
//! 32-bit finaliser (the constants of Wellons' lowbias32 and triple32 searches) with a key before each. They give `x` in (0, 1) with its
//! full precision near 0, then `E = -ln(1 - x)` is exponential and `G = -ln E`. Integer operations and single-rounding
//! `+ - *` only: CUDA computes the same bits.

use crate::simd::{Kernel, Simd, ln, minus_ln_one_minus, portably};

/// No variate is larger: `x` is at least 2^-33, so `G` is below 22.9.
pub(super) const LARGEST: f32 = 23.0;

/// The noise of one position of one request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Noise {
    keys: [u32; 2],
}

impl Noise {
    pub(super) fn new(seed: u64, position: u32) -> Noise {
        let key = mix(mix(seed.wrapping_add(0x9e37_79b9_7f4a_7c15)).wrapping_add(u64::from(position)));
        Noise { keys: [key as u32, (key >> 32) as u32] }
    }

    /// The variate of one token.
    pub(super) fn of(self, token: u32) -> f32 {
        portably(Of { noise: self, token })
    }

    /// The variates of `tokens`.
    #[inline(always)]
    pub(super) fn gumbel<S: Simd>(self, s: S, tokens: S::I) -> S::F {
        gumbel(s, self.uniform(s, tokens))
    }

    /// The `x` of `tokens`, uniform in (0, 1).
    #[inline(always)]
    pub(super) fn uniform<S: Simd>(self, s: S, tokens: S::I) -> S::F {
        let mut h = s.xor_u32(tokens, s.splat_u32(self.keys[0]));
        h = s.mul_u32(s.xor_u32(h, s.shift_right::<16>(h)), s.splat_u32(0x7feb_352d));
        h = s.mul_u32(s.xor_u32(h, s.shift_right::<15>(h)), s.splat_u32(0x846c_a68b));
        h = s.add_u32(s.xor_u32(h, s.shift_right::<16>(h)), s.splat_u32(self.keys[1]));
        h = s.mul_u32(s.xor_u32(h, s.shift_right::<17>(h)), s.splat_u32(0xed5a_d4bb));
        h = s.mul_u32(s.xor_u32(h, s.shift_right::<11>(h)), s.splat_u32(0xac4c_1b51));
        h = s.mul_u32(s.xor_u32(h, s.shift_right::<15>(h)), s.splat_u32(0x3184_8bab));
        h = s.xor_u32(h, s.shift_right::<14>(h));
        // x = (h + 1/2) / 2^32, by halves: each is exact in f32, only their sum is rounded, and never to 1.
        let high = s.mul(s.to_f32(s.shift_right::<16>(h)), s.splat(2f32.powi(-16)));
        let low = s.add(s.to_f32(s.and_u32(h, s.splat_u32(0xffff))), s.splat(0.5));
        let x = s.add(high, s.mul(low, s.splat(2f32.powi(-32))));
        s.min(x, s.splat(1.0 - 2f32.powi(-24)))
    }
}

/// The variate of a uniform `x`. It is at most `-ln x`, as `-ln(1 - x)` is at least `x`.
#[inline(always)]
pub(super) fn gumbel<S: Simd>(s: S, x: S::F) -> S::F {
    s.sub(s.splat(0.0), ln(s, minus_ln_one_minus(s, x)))
}

struct Of {
    noise: Noise,
    token: u32,
}

impl Kernel for Of {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        s.largest(self.noise.gumbel(s, s.splat_u32(self.token)))
    }
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Supported;
    use crate::simd::dispatch;

    struct Fill<'a>(Noise, &'a mut [f32]);
    impl Kernel for Fill<'_> {
        type Output = ();
        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            for (i, chunk) in self.1.chunks_mut(S::LANES).enumerate() {
                s.store_some(chunk, self.0.gumbel(s, s.count_from((i * S::LANES) as u32)));
            }
        }
    }

    fn noise(isa: crate::Isa, seed: u64, position: u32, tokens: usize) -> Vec<f32> {
        let mut out = vec![0.0; tokens];
        dispatch(Supported::new(isa).unwrap(), Fill(Noise::new(seed, position), &mut out));
        out
    }

    #[test]
    fn it_is_the_same_on_every_instruction_set_and_for_ever() {
        for isa in crate::Isa::available() {
            for position in 0..50 {
                assert_eq!(
                    noise(isa, 7, position, 1000),
                    noise(crate::Isa::Portable, 7, position, 1000),
                    "{isa}"
                );
            }
        }
        let one_by_one: Vec<f32> = (0..1000).map(|token| Noise::new(7, 49).of(token)).collect();
        assert_eq!(one_by_one, noise(crate::Isa::Portable, 7, 49, 1000));
        // Pinned: the text of a seed must not change with a release.
        assert_eq!(noise(crate::Isa::Portable, 1, 2, 3), [3.372_484_7, 3.598_653_8, 0.417_324_24]);
    }

    #[test]
    fn it_is_gumbel() {
        let mut all: Vec<f32> =
            (0..40).flat_map(|position| noise(crate::Isa::detect(), 3, position, 5000)).collect();
        all.sort_by(f32::total_cmp);
        // Kolmogorov-Smirnov: the largest distance from the distribution function exp(-exp(-g)).
        let n = all.len() as f64;
        let distance = |(i, g): (usize, &f32)| ((-(-f64::from(*g)).exp()).exp() - (i as f64 + 0.5) / n).abs();
        let largest = all.iter().enumerate().map(distance).fold(0.0, f64::max);
        assert!(largest < 1.63 / n.sqrt(), "{largest}"); // 1 % level
        assert!(all.iter().all(|g| (-3.0..LARGEST).contains(g)));
    }

    #[test]
    fn neighbours_in_token_position_and_seed_are_independent() {
        let correlation = |a: &[f32], b: &[f32]| {
            let n = a.len() as f64;
            let mean = |x: &[f32]| x.iter().map(|x| f64::from(*x)).sum::<f64>() / n;
            let (ma, mb) = (mean(a), mean(b));
            let dot = |x: &[f32], mx: f64, y: &[f32], my: f64| {
                x.iter().zip(y).map(|(x, y)| (f64::from(*x) - mx) * (f64::from(*y) - my)).sum::<f64>()
            };
            dot(a, ma, b, mb) / (dot(a, ma, a, ma) * dot(b, mb, b, mb)).sqrt()
        };
        let isa = crate::Isa::detect();
        let base = noise(isa, 11, 100, 100_001);
        let (token, position, seed) =
            (&base[1..], noise(isa, 11, 101, 100_000), noise(isa, 12, 100, 100_000));
        for other in [token, &position, &seed] {
            let r = correlation(&base[..100_000], other);
            assert!(r.abs() < 0.012, "{r}"); // 4 sigma
        }
    }
}
