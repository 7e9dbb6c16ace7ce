//! Rotary position embedding: cosines and sines of every position, computed once.
//!
//! Su et al., "RoFormer" (2021); halves split as Hugging Face checkpoints expect; the llama3 scaling of the frequencies
//! is that of Llama 3.1's release, YaRN is Peng et al. (2023), LongRoPE Ding et al. (2024). Angles are f32 products, as in the reference
//! implementations, so that late positions agree.

use super::Buffer;
use crate::KernelError;
use std::f64::consts::PI;
use std::sync::Arc;

/// How the frequencies are stretched for contexts longer than the model was trained on first.
#[derive(Clone, Debug, PartialEq)]
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
    /// YaRN: low frequencies divided by `factor`, high ones kept, a ramp over the dimensions between.
    Yarn {
        /// Times the context grows.
        factor: f32,
        /// Frequencies that turn more often than this within `original_max_positions` are kept.
        beta_fast: f32,
        /// Frequencies that turn less often than this are divided.
        beta_slow: f32,
        /// The ends of the ramp are whole dimensions.
        truncate: bool,
        /// Context of the first training.
        original_max_positions: usize,
        /// What cosines and sines are multiplied by.
        attention_factor: f32,
    },
    /// LongRoPE: each frequency is divided by a number of its own: one of `long` if the table has more positions than
    /// `original_max_positions`, else one of `short`.
    Long {
        /// As many as there are frequencies.
        short: Arc<[f32]>,
        /// Likewise.
        long: Arc<[f32]>,
        /// Context of the first training.
        original_max_positions: usize,
        /// What cosines and sines are multiplied by.
        attention_factor: f32,
    },
}

impl RopeScaling {
    /// What cosines and sines are multiplied by.
    fn attention_factor(&self) -> f32 {
        match *self {
            RopeScaling::Yarn { attention_factor, .. } | RopeScaling::Long { attention_factor, .. } => {
                attention_factor
            }
            RopeScaling::None | RopeScaling::Linear { .. } | RopeScaling::Llama3 { .. } => 1.0,
        }
    }
}

/// What a [`RopeTable`] is made from.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    /// Elements of a head; even.
    pub head_dim: usize,
    /// Elements of a head that are rotated; even. They are the first of each half.
    pub rotated: usize,
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
    /// If the head size is odd or zero, what is rotated of it is odd or more than it, a list of factors has another length, or there is no
    /// memory.
    pub fn new(spec: &RopeSpec) -> Result<RopeTable, KernelError> {
        let RopeSpec { head_dim, rotated, max_positions, .. } = *spec;
        if head_dim == 0 || !head_dim.is_multiple_of(2) {
            return Err(KernelError::Size { what: "head_dim", value: head_dim, must: "even and positive" });
        }
        if rotated > head_dim || !rotated.is_multiple_of(2) {
            return Err(KernelError::Size {
                what: "rotated elements of a head",
                value: rotated,
                must: "even, and no more than the head has",
            });
        }
        if let RopeScaling::Long { short, long, .. } = &spec.scaling
            && let Some(other) = [short, long].into_iter().find(|list| list.len() != rotated / 2)
        {
            let must = "as many as frequencies";
            return Err(KernelError::Size { what: "factors", value: other.len(), must });
        }
        let (half, attention_factor) = (head_dim / 2, spec.scaling.attention_factor());
        let frequencies: Vec<f32> = (0..rotated / 2).map(|i| frequency(spec, i)).collect();
        let mut cos_sin = Buffer::zeroed(max_positions.saturating_mul(head_dim), "the rope table")?;
        for (position, row) in cos_sin.chunks_exact_mut(head_dim).enumerate() {
            let (cos, sin) = row.split_at_mut(half);
            // What is not rotated stays as it is, whatever the factor.
            cos[frequencies.len()..].fill(1.0);
            for ((cos, sin), frequency) in cos.iter_mut().zip(sin).zip(&frequencies) {
                let angle = f64::from(position as f32 * frequency);
                (*cos, *sin) = (angle.cos() as f32 * attention_factor, angle.sin() as f32 * attention_factor);
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
    let exponent = (2 * i) as f32 / spec.rotated as f32;
    let plain = 1.0 / f64::from(spec.theta).powf(f64::from(exponent));
    match spec.scaling {
        RopeScaling::None => plain as f32,
        RopeScaling::Linear { factor } => (plain / f64::from(factor)) as f32,
        RopeScaling::Yarn { factor, beta_fast, beta_slow, truncate, original_max_positions, .. } => {
            // The dimension whose frequency turns so often within the original context.
            let dimension = |turns: f32| {
                let position = original_max_positions as f64 / (f64::from(turns) * 2.0 * PI);
                spec.rotated as f64 * position.ln() / (2.0 * f64::from(spec.theta).ln())
            };
            let (mut low, mut high) = (dimension(beta_fast), dimension(beta_slow));
            if truncate {
                (low, high) = (low.floor(), high.ceil());
            }
            (low, high) = (low.max(0.0), high.min((spec.rotated - 1) as f64));
            // As transformers keeps from dividing by zero.
            high += if low == high { 0.001 } else { 0.0 };
            let divided = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
            (plain * (divided / f64::from(factor) + (1.0 - divided))) as f32
        }
        RopeScaling::Long { ref short, ref long, original_max_positions, .. } => {
            let own = if spec.max_positions > original_max_positions { long } else { short };
            (plain / f64::from(own[i])) as f32
        }
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_positions } => {
            // Rounded as transformers rounds it: at far positions a frequency's last bit is much of an angle.
            let plain = plain as f32;
            let wavelength = 2.0 * std::f32::consts::PI / plain;
            let positions = original_max_positions as f32;
            if wavelength > positions / low_freq_factor {
                plain / factor
            } else if wavelength < positions / high_freq_factor {
                plain
            } else {
                let kept = (positions / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor);
                (1.0 - kept) * plain / factor + kept * plain
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEC: RopeSpec = RopeSpec {
        head_dim: 128,
        rotated: 128,
        theta: 500_000.0,
        scaling: RopeScaling::None,
        max_positions: 4,
    };
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
    fn yarn_keeps_high_frequencies_divides_low_ones_and_makes_all_larger() {
        let yarn = |truncate| RopeSpec {
            scaling: RopeScaling::Yarn {
                factor: 4.0,
                beta_fast: 32.0,
                beta_slow: 1.0,
                truncate,
                original_max_positions: 32_768,
                attention_factor: 1.25,
            },
            ..SPEC
        };
        let ratios: Vec<f32> = (0..64).map(|i| frequency(&yarn(true), i) / frequency(&SPEC, i)).collect();
        assert_eq!((ratios[0], ratios[63]), (1.0, 0.25));
        assert!(ratios.is_sorted_by(|a, b| *a >= *b - 1e-6), "{ratios:?}");
        let (whole, exact) = (frequency(&yarn(true), 30), frequency(&yarn(false), 30));
        assert!(whole != exact && (whole / exact - 1.0).abs() < 0.05, "{whole} {exact}");
        assert_eq!(RopeTable::new(&yarn(true)).unwrap().at(0).0, [1.25; 64]);
    }

    #[test]
    fn factors_are_those_of_the_length_that_is_served() {
        let long = |max_positions| RopeSpec {
            scaling: RopeScaling::Long {
                short: [1.5; 64].into(),
                long: [3.0; 64].into(),
                original_max_positions: 4,
                attention_factor: 1.0,
            },
            max_positions,
            ..SPEC
        };
        assert_eq!(frequency(&long(4), 9), (f64::from(frequency(&SPEC, 9)) / 1.5) as f32);
        assert_eq!(frequency(&long(5), 9), (f64::from(frequency(&SPEC, 9)) / 3.0) as f32);
        assert!(RopeTable::new(&RopeSpec { rotated: 64, ..long(4) }).is_err());
    }

    #[test]
    fn a_part_of_a_head_turns_and_the_rest_stays() {
        let part = RopeTable::new(&RopeSpec { rotated: 32, ..SPEC }).unwrap();
        let whole = RopeTable::new(&RopeSpec { head_dim: 32, rotated: 32, ..SPEC }).unwrap();
        let ((cos, sin), (all_cos, all_sin)) = (part.at(3), whole.at(3));
        assert_eq!((&cos[..16], &sin[..16]), (all_cos, all_sin));
        assert_eq!((&cos[16..], &sin[16..]), ([1.0; 48].as_slice(), [0.0; 48].as_slice()));
    }

    #[test]
    fn odd_heads_and_parts_of_them_are_refused() {
        for (head_dim, rotated) in [(7, 6), (8, 5), (8, 10)] {
            assert!(RopeTable::new(&RopeSpec { head_dim, rotated, ..SPEC }).is_err());
        }
    }
}
