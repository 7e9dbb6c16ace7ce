//! By how much predictions were wrong: a histogram small enough to be a running total.

use std::time::Duration;

use crate::view::Sum;

/// Buckets of one percent each, and a last one for everything from 100 % on.
const BUCKETS: usize = 101;

/// Relative errors |predicted - measured| / measured of verify passes, by whole percents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorHistogram([u64; BUCKETS]);

impl Default for ErrorHistogram {
    /// Nothing was predicted yet.
    fn default() -> ErrorHistogram {
        ErrorHistogram([0; BUCKETS])
    }
}

impl ErrorHistogram {
    /// Counts one pass.
    pub(crate) fn count(&mut self, predicted: Duration, measured: Duration) {
        let error = predicted.abs_diff(measured).as_nanos().saturating_mul(100);
        let percent = error.checked_div(measured.as_nanos()).unwrap_or(u128::MAX);
        self.0[percent.min(BUCKETS as u128 - 1) as usize] += 1;
    }

    /// Passes counted.
    pub fn passes(&self) -> u64 {
        self.0.iter().sum()
    }

    /// What was counted since `before`, an earlier state of the same histogram.
    #[must_use]
    pub fn since(&self, before: &ErrorHistogram) -> ErrorHistogram {
        ErrorHistogram(std::array::from_fn(|i| self.0[i].saturating_sub(before.0[i])))
    }

    /// The median, as a share of the measured time, interpolated within its percent; 1 stands for everything from there on.
    /// `None` if nothing was counted.
    pub fn median(&self) -> Option<f64> {
        let half = self.passes() as f64 / 2.0;
        let mut below = 0.0;
        for (percent, &passes) in self.0.iter().enumerate().filter(|(_, passes)| **passes > 0) {
            let here = passes as f64;
            if below + here >= half {
                let within = if percent + 1 < BUCKETS { (half - below) / here } else { 0.0 };
                return Some((percent as f64 + within) / 100.0);
            }
            below += here;
        }
        None
    }
}

impl Sum for ErrorHistogram {
    fn add(&mut self, more: &ErrorHistogram) {
        self.0.add(&more.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(errors_ms: &[u64]) -> ErrorHistogram {
        let mut histogram = ErrorHistogram::default();
        let measured = Duration::from_millis(1000);
        for &error in errors_ms {
            histogram.count(measured + Duration::from_millis(error), measured);
        }
        histogram
    }

    #[test]
    fn the_median_is_within_its_percent() {
        assert_eq!(ErrorHistogram::default().median(), None);
        // Two passes at 5 %, one at 60 %: the middle is three quarters through the first two.
        let median = of(&[50, 55, 600]).median().unwrap();
        assert!((median - 0.0575).abs() < 1e-12, "{median}");
        let all_over = of(&[5000, 7000]).median().unwrap();
        assert!((all_over - 1.0).abs() < 1e-12, "{all_over}");
    }

    #[test]
    fn errors_either_way_count_and_a_pass_of_no_time_is_all_error() {
        let mut histogram = ErrorHistogram::default();
        histogram.count(Duration::from_millis(90), Duration::from_millis(100));
        histogram.count(Duration::from_millis(110), Duration::from_millis(100));
        assert_eq!((histogram.0[10], histogram.passes()), (2, 2));
        histogram.count(Duration::from_millis(1), Duration::ZERO);
        assert_eq!(histogram.0[BUCKETS - 1], 1);
    }

    #[test]
    fn a_difference_leaves_what_came_later() {
        let before = of(&[50, 50]);
        let after = of(&[50, 50, 200]);
        assert_eq!(after.since(&before), of(&[200]));
    }
}
