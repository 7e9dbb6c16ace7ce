//! Seeded randomness: one hash that spreads every bit, and a generator of numbers made from it.

/// The finalizer of SplitMix64 (Steele, Lea, Flood 2014): a bijection.
pub(super) fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Evenly spread over 0 to 1, a function of `x`.
pub(super) fn uniform(x: u64) -> f64 {
    mix(x) as f64 / u64::MAX as f64
}

/// Normal with mean 0 and deviation 1, a function of `x` (Box and Muller 1958).
pub(super) fn normal(x: u64) -> f64 {
    let radius = (-2.0 * uniform(x).max(f64::MIN_POSITIVE).ln()).sqrt();
    radius * (std::f64::consts::TAU * uniform(x ^ 0xa5a5_5a5a_c3c3_3c3c)).cos()
}

/// A stream of numbers from a seed.
#[derive(Clone, Debug)]
pub(super) struct Random {
    state: u64,
}

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random { state: mix(seed ^ 0x51ed_270b_7a2f_1c93) }
    }

    pub(super) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    pub(super) fn uniform(&mut self) -> f64 {
        uniform(self.next())
    }

    pub(super) fn normal(&mut self) -> f64 {
        normal(self.next())
    }

    pub(super) fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.uniform()).max(f64::MIN_POSITIVE).ln()
    }

    /// 0 to `below`, which must not be 0.
    pub(super) fn below(&mut self, below: u64) -> u64 {
        self.next() % below.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_right() {
        let mut random = Random::new(3);
        let n = 40_000;
        let (mut sum, mut squares, mut waits) = (0.0, 0.0, 0.0);
        for _ in 0..n {
            let z = random.normal();
            sum += z;
            squares += z * z;
            waits += random.exponential(2.0);
        }
        let n = f64::from(n);
        assert!((sum / n).abs() < 0.02 && (squares / n - 1.0).abs() < 0.03 && (waits / n - 2.0).abs() < 0.04);
    }
}
