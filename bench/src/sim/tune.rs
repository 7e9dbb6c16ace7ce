//! Baselines that are tuned on the very load they run under: better than anyone could do online.

use faser_engine::{K_LIMIT, Policy};

use super::{Figures, Load, SimSpec};
use crate::BenchError;

/// Speculative lengths that are tried.
pub(super) const LENGTHS: [usize; 9] = [0, 1, 2, 3, 4, 5, 6, 8, 10];
/// Batches that are tried; each is the largest of its step.
const BATCHES: [usize; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];
/// Larger than any batch.
const ANY: usize = 1_000_000;

/// The policy of a fixed length, 0 included.
pub(super) fn fixed(k: usize) -> Policy {
    if k == 0 { Policy::Off } else { Policy::Fixed { k: k.min(K_LIMIT) } }
}

/// For every size of batch the length that commits the most tokens per second at that batch, of the same texts.
pub(super) fn batch_table(spec: &SimSpec) -> Result<Policy, BenchError> {
    let mut steps = Vec::new();
    for batch in BATCHES.into_iter().filter(|&batch| batch <= spec.max_running) {
        let backlog = Load::backlog(batch);
        let mut best = (0.0, 0);
        for k in LENGTHS {
            let report = spec.simulate(fixed(k), &backlog, false)?;
            let rate = Figures::of(&report, None).tokens_per_s;
            if rate > best.0 {
                best = (rate, k);
            }
        }
        steps.push((batch, best.1));
    }
    if let Some(last) = steps.last_mut() {
        last.0 = ANY;
    }
    Ok(Policy::BatchTable { steps })
}
