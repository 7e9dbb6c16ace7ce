//! Measures what passes cost on this device: the planner's cost tables at start-up.
//!
//! Each lane of each partition runs passes of the row counts of `ROW_GRID` over rows without context, and passes with context
//! to tell what attention adds, in a few rounds over all of them: a moment in which the machine is busy spoils one reading of each
//! at most, and medians count. Long passes are run once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use faser_engine::BlockId;
use faser_engine::cost::{AttentionCost, PartitionCosts, PassCost, ROW_GRID};
use faser_kernels::Isa;
use faser_models::Model;
use faser_topology::{LanePair, Partition};

use crate::error::ServiceError;
use crate::runner::{Passes, RunnerSpec};

/// Rounds over all passes.
const ROUNDS: usize = 3;
/// Runs of one pass in a round, at most.
const RUNS: usize = 3;
/// Time after which one row count has been run often enough in a round.
const ENOUGH: Duration = Duration::from_millis(20);
/// Passes longer than this are run in the first round only.
const ONCE: Duration = Duration::from_millis(250);
/// Passes longer than this are not followed by longer ones: cost is taken to grow with the rows from there.
const LONG: Duration = Duration::from_millis(600);
/// Rows and context tokens of the pass that tells what attention costs.
const CONTEXT_ROWS: usize = 8;
const CONTEXT: usize = 512;
/// Rows of a pass whose logits are wanted, at most: larger passes are mostly prefill, which needs none.
const SAMPLED_ROWS: usize = 64;

/// What is to be measured.
pub struct ProfileSpec<'a> {
    /// The target model.
    pub target: &'a Arc<Model>,
    /// The draft model.
    pub draft: &'a Arc<Model>,
    /// The device's partitions, the whole device first.
    pub partitions: &'a [LanePair],
    /// The instruction set of the kernels.
    pub isa: Isa,
    /// Tokens per KV block.
    pub block_size: usize,
    /// Rows of the largest pass that will be asked for.
    pub max_rows: usize,
    /// Tokens of the longest sequence.
    pub max_context: usize,
}

/// Measures all partitions, in their order; `progress` hears of every lane that is done, and of how many there are.
///
/// # Errors
/// A lane or its memory cannot be had.
pub fn profile(
    spec: &ProfileSpec<'_>,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Vec<PartitionCosts>, ServiceError> {
    let lanes = 2 * spec.partitions.len();
    let mut done = 0;
    let mut costs = Vec::with_capacity(spec.partitions.len());
    for pair in spec.partitions {
        let mut lane = |model: &Arc<Model>, partition: &Partition| -> Result<PassCost, ServiceError> {
            let cost = spec.measure(model, partition)?;
            done += 1;
            progress(done, lanes);
            Ok(cost)
        };
        costs.push(PartitionCosts {
            draft: lane(spec.draft, &pair.draft)?,
            verify: lane(spec.target, &pair.verify)?,
        });
    }
    Ok(costs)
}

impl ProfileSpec<'_> {
    fn measure(&self, model: &Arc<Model>, partition: &Partition) -> Result<PassCost, ServiceError> {
        let most_rows = self.max_rows.min(ROW_GRID[ROW_GRID.len() - 1]);
        let context = CONTEXT.min(self.max_context - 1);
        let blocks = most_rows.max(context / self.block_size + 1);
        let runner = RunnerSpec {
            partitions: vec![partition.clone()],
            isa: self.isa,
            blocks,
            block_size: self.block_size,
            max_rows: most_rows,
            max_logit_rows: most_rows,
        };
        let (model, partition) = (model.clone(), partition.clone());
        // On a thread of its own, which may be pinned as the lane's will be.
        let measured = std::thread::Builder::new().name("faser-profile".to_owned()).spawn(move || {
            let mut bench =
                Bench { passes: Passes::new(model, &runner)?, blocks: (0..blocks as BlockId).collect() };
            let _pinned = bench.passes.pin_current_thread();
            Ok(bench.cost(most_rows, context))
        });
        let thread = measured.map_err(|source| ServiceError::Thread { name: "profiling", source })?;
        thread.join().unwrap_or_else(|_| {
            Err(ServiceError::Lane {
                lane: "profiled",
                reason: format!("a pass on cores {:?} panicked", partition.cores),
            })
        })
    }
}

struct Bench {
    passes: Passes,
    blocks: Vec<BlockId>,
}

impl Bench {
    fn cost(&mut self, most_rows: usize, context: usize) -> PassCost {
        self.median(1, 0);
        let some = CONTEXT_ROWS.min(most_rows);
        // At position 0 for each row count, then one row and some rows with context.
        let passes: Vec<(usize, usize)> =
            ROW_GRID.iter().map(|&rows| (rows, 0)).chain([(1, context), (some, context)]).collect();
        let mut readings = vec![Vec::with_capacity(ROUNDS); passes.len()];
        for round in 0..ROUNDS {
            let mut longest = Duration::ZERO;
            for (&(rows, context), readings) in passes.iter().zip(&mut readings) {
                let first = readings.first().copied().unwrap_or_default();
                let wanted = context > 0 || (rows <= most_rows && longest < LONG);
                if wanted && (round == 0 || (!readings.is_empty() && first < ONCE)) {
                    readings.push(self.median(rows, context));
                }
                longest = readings.first().copied().unwrap_or(longest);
            }
        }
        let medians: Vec<Option<Duration>> = readings.into_iter().map(median).collect();
        let mut last = (1, Duration::ZERO);
        let times = std::array::from_fn(|i| {
            if let Some(time) = medians[i] {
                last = (ROW_GRID[i], time);
            }
            last.1.mul_f64(ROW_GRID[i] as f64 / last.0 as f64).max(last.1)
        });
        let longer = |rows, with: usize| {
            let without = ROW_GRID.iter().position(|&grid| grid >= rows).and_then(|i| medians[i]);
            medians[with].unwrap_or_default().saturating_sub(without.unwrap_or_default())
        };
        let (one, many) = (longer(1, ROW_GRID.len()), longer(some, ROW_GRID.len() + 1));
        PassCost::new(times, AttentionCost::fitted(context, some, one, many))
    }

    /// Median time of a pass of `rows` rows, each at position `context`. Rows without context have a block of their own,
    /// rows with context share their blocks: nothing is read that another row writes, but for its own position.
    fn median(&mut self, rows: usize, context: usize) -> Duration {
        let mut times = Vec::with_capacity(RUNS);
        let begin = Instant::now();
        while times.is_empty() || (times.len() < RUNS && begin.elapsed() < ENOUGH) {
            let tables: Vec<&[BlockId]> = (0..rows)
                .map(|row| if context == 0 { &self.blocks[row..=row] } else { &self.blocks[..] })
                .collect();
            let started = Instant::now();
            for row in 0..rows {
                self.passes.push(0, context, row, row < SAMPLED_ROWS);
            }
            self.passes.forward(&tables);
            times.push(started.elapsed());
        }
        median(times).unwrap_or_default()
    }
}

fn median(mut times: Vec<Duration>) -> Option<Duration> {
    times.sort_unstable();
    times.get(times.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use faser_engine::cost::Reach;
    use faser_kernels::Dtype;
    use faser_models::synthetic::{self, SyntheticSpec};

    #[test]
    fn a_target_costs_more_than_its_draft_and_more_rows_cost_more() {
        let spec = SyntheticSpec {
            layers: 8,
            draft_layers: 1,
            hidden: 64,
            intermediate: 128,
            heads: 2,
            kv_heads: 1,
            vocab: 256,
            max_context: 128,
            seed: 1,
            residual_scale: 0.1,
        };
        let (target, draft) = synthetic::pair(&spec, Dtype::F32, &mut |_| {}).unwrap();
        let lane = Partition { cores: vec![0] };
        let mut heard = Vec::new();
        let costs = profile(
            &ProfileSpec {
                target: &Arc::new(target),
                draft: &Arc::new(draft),
                partitions: &[LanePair { draft: lane.clone(), verify: lane }],
                isa: Isa::detect(),
                block_size: 16,
                max_rows: 64,
                max_context: 128,
            },
            &mut |done, all| heard.push((done, all)),
        );
        let costs = costs.unwrap();
        assert_eq!(heard, [(1, 2), (2, 2)]);
        // Far enough apart to be true on any machine: eight layers against one, 64 rows against one.
        assert!(
            costs[0].verify.seconds(1, Reach::NONE) > costs[0].draft.seconds(1, Reach::NONE),
            "{costs:?}"
        );
        assert!(
            costs[0].verify.seconds(64, Reach::NONE) > 2.0 * costs[0].verify.seconds(1, Reach::NONE),
            "{costs:?}"
        );
    }
}
