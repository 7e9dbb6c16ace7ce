//! Quantiles and medians of measured times.

use std::time::Duration;

use serde::Serialize;

/// Median, 90th and 99th percentile of a set of times, in milliseconds; zero when there were none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Quantiles {
    /// Half of the times are below it.
    pub median_ms: f64,
    /// Nine in ten are below it.
    pub p90_ms: f64,
    /// All but one in a hundred are below it.
    pub p99_ms: f64,
}

impl Quantiles {
    /// Quantiles of `times`, by linear interpolation between the two nearest ranks.
    pub fn of(times: &[Duration]) -> Quantiles {
        let mut ms: Vec<f64> = times.iter().map(|time| time.as_secs_f64() * 1e3).collect();
        ms.sort_by(f64::total_cmp);
        Quantiles { median_ms: quantile(&ms, 0.5), p90_ms: quantile(&ms, 0.9), p99_ms: quantile(&ms, 0.99) }
    }

    /// The median of each figure over several runs.
    pub fn median_of(runs: &[Quantiles]) -> Quantiles {
        let over = |figure: fn(&Quantiles) -> f64| median(runs.iter().map(figure));
        Quantiles { median_ms: over(|q| q.median_ms), p90_ms: over(|q| q.p90_ms), p99_ms: over(|q| q.p99_ms) }
    }
}

/// Whether one request was answered differently by some of the runs that answered it.
pub(crate) fn differ<T: PartialEq>(mut answers: impl Iterator<Item = T>) -> bool {
    answers.next().is_some_and(|first| answers.any(|other| other != first))
}

/// The median of `values`; zero when there are none.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    quantile(&sorted, 0.5)
}

fn quantile(sorted: &[f64], q: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let rank = q * last as f64;
    let below = rank.floor() as usize;
    let above = (below + 1).min(last);
    sorted[below] + (sorted[above] - sorted[below]) * (rank - below as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_interpolate_between_ranks() {
        let times: Vec<Duration> = (1..=101).rev().map(Duration::from_millis).collect();
        let q = Quantiles::of(&times);
        assert!((q.median_ms - 51.0).abs() < 1e-9);
        assert!((q.p90_ms - 91.0).abs() < 1e-9);
        assert!((q.p99_ms - 100.0).abs() < 1e-9);
        assert!((median([1.0, 4.0, 2.0, 3.0]) - 2.5).abs() < 1e-12);
    }

    #[test]
    fn no_times_and_one_time() {
        assert_eq!(Quantiles::of(&[]), Quantiles::default());
        let one = Quantiles::of(&[Duration::from_millis(7)]);
        assert!((one.p99_ms - 7.0).abs() < 1e-9);
    }

    #[test]
    fn median_of_runs_is_per_figure() {
        let run = |median_ms, p90_ms| Quantiles { median_ms, p90_ms, p99_ms: 9.0 };
        let m = Quantiles::median_of(&[run(1.0, 30.0), run(2.0, 10.0), run(3.0, 20.0)]);
        assert_eq!(m, run(2.0, 20.0));
    }
}
