//! What the engine counted during one run.

use std::time::Duration;

use faser_engine::Totals;
use serde::Serialize;

/// The engine's figures of one run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PassFigures {
    /// Proposals verified per verdict.
    pub k_mean: f64,
    /// Share of them that were accepted; none without proposals.
    pub acceptance: Option<f64>,
    /// Proposals whose rows left a verify pass before its end.
    pub rows_pruned: u64,
    /// Those over all proposals sent to verification.
    pub pruned: f64,
    /// Share of the verify passes beside which the draft lane was to work.
    pub overlapped: f64,
    /// Verify passes.
    pub verify_passes: u64,
    /// Rows of a verify pass, in the mean.
    pub rows_mean: f64,
    /// Time of a verify pass, in the mean, in milliseconds.
    pub verify_ms: f64,
    /// What the cost tables said of it before; none without tables.
    pub predicted_ms: Option<f64>,
    /// Median over passes of |predicted - measured| / measured.
    pub error_median: Option<f64>,
    /// Sum over passes of |predicted - measured| over the sum of measured: long passes weigh more.
    pub error_mean: Option<f64>,
    /// Draft plans done.
    pub draft_passes: u64,
    /// Time of a draft plan with all its steps, in the mean, in milliseconds.
    pub draft_ms: f64,
}

impl PassFigures {
    /// The figures between two states of one engine's totals.
    pub fn between(before: &Totals, after: &Totals) -> PassFigures {
        let gained = |of: fn(&Totals) -> u64| of(after).saturating_sub(of(before)) as f64;
        let seconds = |of: fn(&Totals) -> Duration| of(after).saturating_sub(of(before)).as_secs_f64();
        let verdicts = gained(|t| t.chunks_by_length.iter().sum());
        let verified = gained(|t| t.draft_tokens);
        let rows_pruned = gained(|t| t.rows_pruned);
        let (passes, drafts) = (gained(|t| t.target_passes), gained(|t| t.draft_passes));
        let errors = after.verify_errors.since(&before.verify_errors);
        let predicted = errors.passes() as f64;
        let took = seconds(|t| t.verify_time);
        PassFigures {
            k_mean: share(verified, verdicts).unwrap_or(0.0),
            acceptance: share(gained(|t| t.accepted_tokens), verified),
            rows_pruned: rows_pruned as u64,
            pruned: share(rows_pruned, verified + rows_pruned).unwrap_or(0.0),
            overlapped: share(gained(|t| t.overlapped_passes), passes).unwrap_or(0.0),
            verify_passes: passes as u64,
            rows_mean: share(gained(|t| t.target_rows), passes).unwrap_or(0.0),
            verify_ms: share(1e3 * took, passes).unwrap_or(0.0),
            predicted_ms: share(1e3 * seconds(|t| t.predicted_verify_time), predicted),
            error_median: errors.median(),
            error_mean: share(seconds(|t| t.verify_time_error), took).filter(|_| predicted > 0.0),
            draft_passes: drafts as u64,
            draft_ms: share(1e3 * seconds(|t| t.draft_time), drafts).unwrap_or(0.0),
        }
    }
}

/// `None` when there is nothing to divide by.
fn share(of: f64, by: f64) -> Option<f64> {
    (by > 0.0).then(|| of / by)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_came_between_counts() {
        let mut before = Totals { draft_tokens: 10, accepted_tokens: 10, ..Totals::default() };
        before.chunks_by_length[5] = 2;
        let mut after = Totals {
            draft_tokens: 40,
            accepted_tokens: 25,
            rows_pruned: 10,
            target_passes: 4,
            overlapped_passes: 1,
            verify_time: Duration::from_millis(20),
            ..before.clone()
        };
        after.chunks_by_length[3] = 10;
        let figures = PassFigures::between(&before, &after);
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a}, expected {b}");
        close(figures.k_mean, 3.0);
        close(figures.acceptance.unwrap(), 0.5);
        close(figures.pruned, 0.25);
        close(figures.overlapped, 0.25);
        close(figures.verify_ms, 5.0);
        assert_eq!((figures.predicted_ms, figures.error_mean, figures.error_median), (None, None, None));
    }

    #[test]
    fn a_run_in_which_nothing_happened_has_no_shares() {
        let totals = Totals::default();
        assert_eq!(PassFigures::between(&totals, &totals), PassFigures::default());
    }
}
