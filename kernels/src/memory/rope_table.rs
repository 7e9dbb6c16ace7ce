//! Rotary position embedding: cosines and sines of every position, computed once.
//!
//! Su et al., "RoFormer" (2021); halves split as Hugging Face checkpoints expect; the llama3 scaling of the frequencies
//! is that of Llama 3.1's release. Angles are f32 products, as in the reference implementations, so that late positions agree.

use super::Buffer;
use crate::KernelError;
use std::f64::consts::PI;

/// How the frequencies are stretched for contexts longer than the model was trained on first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All frequencies divided by `factor`.
    Linear {
        /// Times the context grows.
        factor: f32,
    },
    /// Low frequencies divided by `factor`, high ones kept, a blend between.
    Llama3 {
        /// Times the context grows.
        factor: f32,
        /// Wavelengths longer than `original_max_positions / low_freq_factor` are divided.
        low_freq_factor: f32,
        /// Wavelengths shorter than `original_max_positions / high_freq_factor` are kept.
        high_freq_factor: f32,
        /// Context of the first training.
        original_max_positions: usize,
    },
}

/// What a [`RopeTable`] is made from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeSpec {
    /// Elements of a head; even.
    pub head_dim: usize,
    /// Base of the frequencies.
    pub theta: f32,
    /// Scaling of the frequencies.
    pub scaling: RopeScaling,
    /// Positions to make: the longest context served.
    pub max_positions: usize,
}

/// Cosines and sines: `[position][head_dim / 2]` each, `4 * head_dim` bytes per position.
pub struct RopeTable {
    half: usize,
    max_positions: usize,
    cos_sin: Buffer<f32>,
}

impl RopeTable {
    /// Makes the table.
    ///
    /// # Errors
    /// If the head size is odd or zero, or there is no memory.
    pub fn new(spec: &RopeSpec) -> Result<RopeTable, KernelError> {
        let RopeSpec { head_dim, max_positions, .. } = *spec;
        if head_dim == 0 || !head_dim.is_multiple_of(2) {
            return Err(KernelError::Size { what: "head_dim", value: head_dim, must: "even and positive" });
        }
        let half = head_dim / 2;
        let frequencies: Vec<f32> = (0..half).map(|i| frequency(spec, i)).collect();
        let mut cos_sin = Buffer::zeroed(max_positions.saturating_mul(head_dim), "the rope table")?;
        for (position, row) in cos_sin.chunks_exact_mut(head_dim).enumerate() {
            let (cos, sin) = row.split_at_mut(half);
            for ((cos, sin), frequency) in cos.iter_mut().zip(sin).zip(&frequencies) {
                let angle = f64::from(position as f32 * frequency);
                (*cos, *sin) = (angle.cos() as f32, angle.sin() as f32);
            }
        }
        Ok(RopeTable { half, max_positions, cos_sin })
    }

    /// Elements of a head.
    #[must_use]
    pub fn head_dim(&self) -> usize {
        2 * self.half
    }

    /// Positions there are.
    #[must_use]
    pub fn max_positions(&self) -> usize {
        self.max_positions
    }

    /// Cosines, then sines of a position: as long as a head.
    ///
    /// # Panics
    /// If there is no such position.
    #[must_use]
    pub fn row(&self, position: usize) -> &[f32] {
        &self.cos_sin[position * 2 * self.half..(position + 1) * 2 * self.half]
    }

    /// Cosines and sines of a position, half a head each.
    pub(crate) fn at(&self, position: u32) -> (&[f32], &[f32]) {
        let position = position as usize;
        assert!(
            position < self.max_positions,
            "position {position} of a rope table of {}",
            self.max_positions
        );
        self.cos_sin[position * 2 * self.half..(position + 1) * 2 * self.half].split_at(self.half)
    }
}

fn frequency(spec: &RopeSpec, i: usize) -> f32 {
    let exponent = (2 * i) as f32 / spec.head_dim as f32;
    let plain = 1.0 / f64::from(spec.theta).powf(f64::from(exponent));
    match spec.scaling {
        RopeScaling::None => plain as f32,
        RopeScaling::Linear { factor } => (plain / f64::from(factor)) as f32,
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_positions } => {
            let (low, high) = (f64::from(low_freq_factor), f64::from(high_freq_factor));
            let turns = original_max_positions as f64 * plain / (2.0 * PI);
            let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
            (plain * (kept + (1.0 - kept) / f64::from(factor))) as f32
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEC: RopeSpec =
        RopeSpec { head_dim: 128, theta: 500_000.0, scaling: RopeScaling::None, max_positions: 4 };
    const LLAMA3: RopeScaling = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_positions: 8192,
    };

    #[test]
    fn angles_are_position_times_frequency() {
        let table = RopeTable::new(&SPEC).unwrap();
        let (cos, sin) = table.at(3);
        assert_eq!((cos[0], sin[0]), (3f64.cos() as f32, 3f64.sin() as f32));
        assert_eq!((table.at(0).0, table.at(0).1), ([1.0f32; 64].as_slice(), [0.0f32; 64].as_slice()));
    }

    #[test]
    fn llama3_keeps_high_frequencies_divides_low_ones_and_blends_between() {
        let scaled = RopeSpec { scaling: LLAMA3, ..SPEC };
        let ratio = |i| frequency(&scaled, i) / frequency(&SPEC, i);
        assert_eq!(ratio(0), 1.0);
        assert_eq!(ratio(63), 0.125);
        let ratios: Vec<f32> = (0..64).map(ratio).collect();
        assert!(ratios.is_sorted_by(|a, b| *a >= *b - 1e-6), "{ratios:?}");
        assert!(ratios.iter().any(|r| (0.2..0.9).contains(r)));
        let linear = RopeSpec { scaling: RopeScaling::Linear { factor: 4.0 }, ..SPEC };
        assert_eq!(frequency(&linear, 7), frequency(&SPEC, 7) / 4.0);
    }

    #[test]
    fn an_odd_head_is_refused() {
        assert!(RopeTable::new(&RopeSpec { head_dim: 7, ..SPEC }).is_err());
    }
}
