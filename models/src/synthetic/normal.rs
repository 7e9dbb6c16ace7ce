//! Seeded normal numbers by counter: number i of a stream is a function of (key, i) alone, the same on every machine.
//!
//! A 64-bit mix (SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014) gives
//! four 16-bit uniform numbers, whose sum is close to normal (Irwin-Hall of four, within 3.46 standard
//! deviations). Weights are summed by the hundred, where this cannot be told from normal ones, and it takes two
//! multiplications instead of a logarithm and a cosine.

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// A stream of numbers with mean 0 and standard deviation 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Normal {
    key: u64,
}

impl Normal {
    /// The stream of one purpose: `name` keeps streams of one seed apart.
    pub(super) fn new(seed: u64, name: &str) -> Normal {
        let key = name.bytes().fold(mix(seed ^ GOLDEN), |key, byte| mix(key ^ u64::from(byte)));
        Normal { key }
    }

    /// Number `index` of the stream.
    pub(super) fn at(&self, index: usize) -> f32 {
        let bits = self.bits(index);
        let sum = (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
        // Mean 2 (2^16 - 1); variance 4 (2^32 - 1) / 12.
        (sum as f32 - 131_070.0) * (1.0 / 37_837.227)
    }

    /// A whole number below `limit`, each as likely.
    pub(super) fn below(&self, index: usize, limit: usize) -> usize {
        ((u128::from(self.bits(index)) * limit as u128) >> 64) as usize
    }

    /// The first `count` numbers, times `scale`.
    pub(super) fn take(&self, count: usize, scale: f32) -> Vec<f32> {
        (0..count).map(|index| self.at(index) * scale).collect()
    }

    fn bits(&self, index: usize) -> u64 {
        mix(self.key.wrapping_add((index as u64).wrapping_mul(GOLDEN)))
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

    fn moment(values: &[f32], power: i32) -> f64 {
        values.iter().map(|v| f64::from(*v).powi(power)).sum::<f64>() / values.len() as f64
    }

    #[test]
    fn moments_are_those_of_a_normal_number() {
        let values = Normal::new(7, "moments").take(1_000_000, 1.0);
        assert!(moment(&values, 1).abs() < 0.004);
        assert!((moment(&values, 2) - 1.0).abs() < 0.006);
        assert!(moment(&values, 3).abs() < 0.01);
        // 3 - 6/20: the fourth moment of Irwin-Hall with four terms.
        assert!((moment(&values, 4) - 2.7).abs() < 0.03);
    }

    #[test]
    fn streams_do_not_resemble_each_other() {
        let first = Normal::new(1, "layers.0.q").take(100_000, 1.0);
        for other in
            [Normal::new(2, "layers.0.q"), Normal::new(1, "layers.0.k"), Normal::new(1, "layers.1.q")]
        {
            let product: f32 = (0..first.len()).map(|i| first[i] * other.at(i)).sum();
            assert!((product / first.len() as f32).abs() < 0.015);
        }
        let shifted: f32 = first.windows(2).map(|pair| pair[0] * pair[1]).sum();
        assert!((shifted / first.len() as f32).abs() < 0.015);
    }

    #[test]
    fn whole_numbers_cover_their_range() {
        let numbers = Normal::new(3, "tokens");
        let mut seen = [0_u32; 10];
        for index in 0..10_000 {
            seen[numbers.below(index, 10)] += 1;
        }
        assert!(seen.iter().all(|count| (850..1150).contains(count)), "{seen:?}");
    }
}
