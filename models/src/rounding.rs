//! How far logits are from those of the same model in f32, and how far rounding may put them.
//!
//! Two ways of computing in bf16 are not compared with each other: what each rounds on its way depends on the instruction set or on the
//! device, and how far they are apart on which two of them meet. How far each is from f32 has a bound that holds for all.

use std::fmt;

use faser_kernels::Dtype;

/// Relative error of a number rounded to bf16, as RMS. Steps are 2^-7 of the power of two below the number, and errors are spread evenly over
/// a step: 1/sqrt(12) of it. The logarithms of numbers are spread evenly too, so the mean of (power / number)^2 is 0.54.
const ROUNDED: f64 = 0.007_812_5 * 0.2887 * 0.7355;

/// The largest standard deviation of attention's scores among the models of tests: those of synthetic pairs have 3.
const SCORES: f64 = 3.0;

/// The farthest of a million normal errors is five deviations away, and some rows are three times as bad as the mean: tokens with a small
/// embedding amplify what the branches add.
const FARTHEST: f64 = 5.0 * 3.0;

/// A distance between logits, as shares of the RMS of those that are right.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Distance {
    /// RMS over all logits.
    pub rms: f64,
    /// The largest of any logit.
    pub largest: f64,
}

impl Distance {
    /// How far `found` is from `right`, rows of logits; NaN if any number of `found` is not finite.
    ///
    /// # Panics
    /// They are not as many.
    #[must_use]
    pub fn between(found: &[impl AsRef<[f32]>], right: &[impl AsRef<[f32]>]) -> Distance {
        assert_eq!(found.len(), right.len(), "rows of logits");
        let (mut errors, mut squares, mut largest, mut count) = (0.0, 0.0, 0.0f64, 0);
        for (found, right) in found.iter().zip(right) {
            let (found, right) = (found.as_ref(), right.as_ref());
            assert_eq!(found.len(), right.len(), "logits of a row");
            for (found, right) in found.iter().zip(right) {
                let (found, right) = (f64::from(*found), f64::from(*right));
                errors += (found - right).powi(2);
                squares += right.powi(2);
                // `max` would take the other one beside NaN.
                largest = if (found - right).abs() <= largest { largest } else { (found - right).abs() };
                count += 1;
            }
        }
        Distance { rms: (errors / squares).sqrt(), largest: largest / (squares / f64::from(count)).sqrt() }
    }

    /// How far rounding alone puts a model of so many layers from f32.
    ///
    /// f32: sums in another order. bf16, in units of [`ROUNDED`], where independent errors add up as squares: a normed row and the matrix it
    /// meets are rounded, so a query, key or value is off by sqrt(2), and by sqrt(3) when it is rounded itself. A score is a sum of
    /// products of two such numbers, off by sqrt(6) of its deviation, which is the relative error of its weight. What is attended has
    /// that of the weights, 1 for their rounding, sqrt(3) of the values; its own rounding and the last matrix add sqrt(2). An MLP has less:
    /// about 3. Each branch takes the errors of those before it along, so the stream is off by no more than the sum of all; and the head
    /// adds sqrt(2).
    #[must_use]
    pub fn of_rounding(dtype: Dtype, layers: usize) -> Distance {
        if dtype == Dtype::F32 {
            return Distance { rms: 1e-5, largest: 1e-4 };
        }
        let attention = 6.0 * SCORES * SCORES + 1.0 + 3.0 + 2.0;
        let rms = ROUNDED * (2.0 * layers as f64 * attention + 2.0).sqrt();
        Distance { rms, largest: FARTHEST * rms }
    }

    /// Whether neither figure is beyond that of `most`.
    #[must_use]
    pub fn is_within(self, most: Distance) -> bool {
        self.rms <= most.rms && self.largest <= most.largest
    }
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1e} as RMS, {:.1e} at most", self.rms, self.largest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distance_is_a_share_of_the_right_ones_and_nan_is_far() {
        let right = [[3.0f32, -4.0], [0.0, 0.0]];
        let distance = Distance::between(&[[3.0f32, -4.0], [0.0, 0.5]], &right);
        assert_eq!(distance, Distance { rms: 0.1, largest: 0.2 });
        assert!(distance.is_within(distance) && !distance.is_within(Distance { rms: 0.1, largest: 0.19 }));
        for bad in [f32::NAN, f32::INFINITY] {
            let distance = Distance::between(&[[3.0, bad], [0.0, 0.5]], &right);
            assert!(!distance.is_within(Distance { rms: 1e30, largest: 1e30 }), "{distance:?}");
        }
    }

    /// `ROUNDED` is what rounding does to numbers whose logarithms are spread evenly.
    #[test]
    fn rounding_is_as_derived() {
        let count = 100_000;
        let errors = (0..count).map(|i| {
            let number = 2f64.powf(f64::from(i) * 8.0 / f64::from(count) - 4.0);
            let rounded = f64::from(half::bf16::from_f64(number).to_f32());
            ((rounded - number) / number).powi(2)
        });
        let rms = (errors.sum::<f64>() / f64::from(count)).sqrt();
        assert!((rms / ROUNDED - 1.0).abs() < 0.01, "{rms:e} beside {ROUNDED:e}");
    }
}
