//! One policy under one load over all repeats, against the first policy.

use serde::Serialize;

use super::{Load, PassFigures, Run};
use crate::stats::median;

/// A figure of one policy over the same figure of the first, taken within each repeat: what the machine does between
/// repeats cancels out.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// The median over repeats.
    pub median: f64,
    /// The least.
    pub least: f64,
    /// The greatest.
    pub greatest: f64,
}

impl Ratio {
    /// Of pairs (figure, figure of the first policy), one for each repeat; `None` if there are none.
    pub fn of(pairs: &[(f64, f64)]) -> Option<Ratio> {
        let mut ratios: Vec<f64> = pairs.iter().map(|(own, first)| own / first).collect();
        ratios.sort_by(f64::total_cmp);
        let (&least, &greatest) = (ratios.first()?, ratios.last()?);
        Some(Ratio { median: median(ratios), least, greatest })
    }
}

/// Medians over the repeats of one policy under one load.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// The load.
    pub load: Load,
    /// The policy, by its place in [`Comparison::policies`](super::Comparison::policies).
    pub policy: usize,
    /// Tokens per second.
    pub tokens_per_s: f64,
    /// Tokens per second against the first policy.
    pub throughput: Ratio,
    /// Mean latency, in milliseconds.
    pub latency_mean_ms: f64,
    /// Mean latency against the first policy: less is better.
    pub latency: Ratio,
    /// 99th percentile of latency, in milliseconds.
    pub latency_p99_ms: f64,
    /// That against the first policy.
    pub latency_p99: Ratio,
    /// What the engine counted, each figure's median.
    pub passes: PassFigures,
}

impl Cell {
    /// Puts the runs of one policy under one load together; `None` if in no repeat both it and the first policy ran.
    pub(super) fn of(runs: &[Run], load: Load, policy: usize) -> Option<Cell> {
        let of = |policy| runs.iter().filter(move |run| run.load == load && run.policy == policy);
        let own: Vec<&Run> = of(policy).collect();
        let ratio = |figure: fn(&Run) -> f64| {
            let pair =
                |run: &&Run| Some((figure(run), figure(of(0).find(|first| first.repeat == run.repeat)?)));
            Ratio::of(&own.iter().filter_map(pair).collect::<Vec<_>>())
        };
        let over = |figure: fn(&Run) -> f64| median(own.iter().map(|run| figure(run)));
        Some(Cell {
            load,
            policy,
            tokens_per_s: over(|run| run.tokens_per_s),
            throughput: ratio(|run| run.tokens_per_s)?,
            latency_mean_ms: over(|run| run.latency_mean_ms),
            latency: ratio(|run| run.latency_mean_ms)?,
            latency_p99_ms: over(|run| run.latency.p99_ms),
            latency_p99: ratio(|run| run.latency.p99_ms)?,
            passes: medians(&own),
        })
    }
}

fn medians(runs: &[&Run]) -> PassFigures {
    let over = |figure: fn(&PassFigures) -> f64| median(runs.iter().map(|run| figure(&run.passes)));
    let some = |figure: fn(&PassFigures) -> Option<f64>| {
        let known: Vec<f64> = runs.iter().filter_map(|run| figure(&run.passes)).collect();
        (!known.is_empty()).then(|| median(known))
    };
    PassFigures {
        k_mean: over(|p| p.k_mean),
        acceptance: some(|p| p.acceptance),
        rows_pruned: over(|p| p.rows_pruned as f64) as u64,
        pruned: over(|p| p.pruned),
        overlapped: over(|p| p.overlapped),
        verify_passes: over(|p| p.verify_passes as f64) as u64,
        rows_mean: over(|p| p.rows_mean),
        verify_ms: over(|p| p.verify_ms),
        predicted_ms: some(|p| p.predicted_ms),
        error_median: some(|p| p.error_median),
        error_mean: some(|p| p.error_mean),
        draft_passes: over(|p| p.draft_passes as f64) as u64,
        draft_ms: over(|p| p.draft_ms),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::run;
    use super::*;

    const LOAD: Load = Load::Streams(4);

    #[test]
    fn ratios_pair_the_runs_of_one_repeat() {
        // The machine halves its speed in the second repeat, and the order is turned round in it.
        let runs = [
            run(LOAD, 0, 0, 100.0),
            run(LOAD, 1, 0, 210.0),
            run(LOAD, 1, 1, 100.0),
            run(LOAD, 0, 1, 50.0),
            run(LOAD, 0, 2, 100.0),
            run(LOAD, 1, 2, 160.0),
            run(Load::Streams(1), 1, 0, 900.0),
        ];
        let cell = Cell::of(&runs, LOAD, 1).unwrap();
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a}, expected {b}");
        close(cell.tokens_per_s, 160.0);
        close(cell.throughput.median, 2.0);
        close(cell.throughput.least, 1.6);
        close(cell.throughput.greatest, 2.1);
        close(cell.latency.median, 0.5);
        close(cell.latency.greatest, 1.0 / 1.6);
        close(cell.latency_p99_ms, 2e4 / 160.0);
        let first = Cell::of(&runs, LOAD, 0).unwrap();
        assert_eq!(first.throughput, Ratio { median: 1.0, least: 1.0, greatest: 1.0 });
        assert!(Cell::of(&runs, Load::Bursts(1.0), 0).is_none());
    }

    #[test]
    fn a_repeat_without_the_first_policy_has_no_ratio() {
        let runs = [run(LOAD, 0, 0, 100.0), run(LOAD, 1, 0, 150.0), run(LOAD, 1, 1, 900.0)];
        let cell = Cell::of(&runs, LOAD, 1).unwrap();
        assert!((cell.throughput.greatest - 1.5).abs() < 1e-12, "{:?}", cell.throughput);
    }

    #[test]
    fn figures_that_some_runs_lack_are_medians_of_the_others() {
        let mut runs = [run(LOAD, 0, 0, 1.0), run(LOAD, 0, 1, 1.0)];
        assert_eq!(Cell::of(&runs, LOAD, 0).unwrap().passes.error_median, None);
        runs[1].passes.error_median = Some(0.25);
        assert_eq!(Cell::of(&runs, LOAD, 0).unwrap().passes.error_median, Some(0.25));
    }
}
