//! Predicted goodput of overlapped execution.
//!
//! While a verify pass runs, the draft lane drafts m tokens past the frontier of every sequence. If the whole chunk is
//! accepted and the next token is what was drafted in its place, the next pass finds m - 1 proposals ready; after a rejection
//! it finds none, commits one token, and the drafts made meanwhile stand if their first is what it commits. With a
//! probability of acceptance a, a sequence is therefore in one of two states, ready or bare:
//!
//! ```text
//!   bare  --a--> ready,   commits 1                         share of passes that find it ready:
//!   ready --a^m-> ready,  commits 1 + a + .. + a^(m-1)      r = a / (a + 1 - a^m)
//! ```

use super::Batch;
use crate::api::K_LIMIT;
use crate::cost::PartitionCosts;

/// The best partition (its place in `partitions`) and its predicted goodput.
pub(super) fn best(batch: &Batch<'_>, partitions: &[PartitionCosts]) -> Option<(usize, f64)> {
    let load = Load::of(batch);
    if load.able == 0 {
        return None;
    }
    let goodputs = partitions.iter().map(|costs| load.goodput(costs)).enumerate();
    goodputs.max_by(|a, b| a.1.total_cmp(&b.1))
}

/// A batch as far as this prediction looks at it.
struct Load {
    sequences: usize,
    /// Those that may speculate.
    able: usize,
    /// Their mean probability of acceptance.
    acceptance: f64,
    context: usize,
    prefill_rows: usize,
}

impl Load {
    fn of(batch: &Batch<'_>) -> Load {
        let able = batch.candidates.iter().filter(|candidate| candidate.useful > 0);
        let (count, sum) =
            able.fold((0, 0.0), |(n, sum), candidate| (n + 1, sum + f64::from(candidate.typical)));
        Load {
            sequences: batch.candidates.len(),
            able: count,
            acceptance: sum / (count.max(1) as f64),
            context: batch.candidates.iter().map(|candidate| candidate.context).sum(),
            prefill_rows: batch.prefill_rows,
        }
    }

    fn goodput(&self, costs: &PartitionCosts) -> f64 {
        let step = costs.draft.seconds(self.able, self.context);
        let mut best = 0.0f64;
        // More proposals make a longer pass, in which more can be drafted: try every length.
        for proposals in 0..K_LIMIT {
            let (ready, committed) = steady_state(self.acceptance, proposals + 1);
            let proposal_rows = self.able as f64 * ready * proposals as f64;
            let rows = self.sequences + self.prefill_rows + proposal_rows.round() as usize;
            let context = self.context as f64 * (1.0 + proposal_rows / self.sequences as f64);
            let pass = costs.verify.seconds(rows, context as usize);
            let period = pass.max(step * (proposals + 1) as f64).max(f64::MIN_POSITIVE);
            let tokens = (self.sequences - self.able) as f64 + self.able as f64 * committed;
            best = best.max(tokens / period);
        }
        best
    }
}

/// Share of passes that find a sequence ready, and tokens it commits per pass, with `m` drafts per pass.
fn steady_state(acceptance: f64, m: usize) -> (f64, f64) {
    let all = acceptance.powi(m as i32);
    let ready = acceptance / (acceptance + 1.0 - all).max(f64::MIN_POSITIVE);
    let proposals: f64 = (1..m).map(|i| acceptance.powi(i as i32)).sum();
    (ready, 1.0 + ready * proposals)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_perfect_draft_is_always_ready_and_a_hopeless_one_never() {
        assert_eq!(steady_state(1.0, 4), (1.0, 4.0));
        let (ready, committed) = steady_state(0.0, 4);
        assert_eq!((ready, committed), (0.0, 1.0));
    }
}
