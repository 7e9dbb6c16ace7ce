//! Measures what passes cost on this device: the planner's cost tables at start-up.
//!
//! Each lane of each partition runs passes of the row counts of `ROW_GRID` over rows without context, and passes with context
//! to tell what attention adds, in a few rounds over all of them: a moment in which the machine is busy spoils one reading of each
//! at most, and medians count. Long passes are run once.

mod cpu;
mod cuda;

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use faser_engine::cost::{AttentionCost, PartitionCosts, PassCost, ROW_GRID};
use faser_kernels::cuda::{NcclSeat, Share, SharePair};
use faser_models::Model;
use faser_models::cuda::CudaModel;
use faser_topology::Partition;

use self::cpu::CpuPasses;
use self::cuda::GpuPasses;
use crate::device::{CpuSpec, DeviceSpec, OnGpu, seats, ways};
use crate::error::ServiceError;
use crate::runner::RunnerSpec;

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
    /// The pair, or a target without a draft, and the device with its partitions.
    pub device: &'a DeviceSpec,
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
    let drafts = spec.device.draft().is_some();
    let lanes = (1 + usize::from(drafts)) * spec.device.partitions().len();
    let mut done = 0;
    let mut told = |cost: PassCost| {
        done += 1;
        progress(done, lanes);
        cost
    };
    let mut costs = Vec::with_capacity(lanes);
    match spec.device {
        DeviceSpec::Cpu(cpu) => {
            let (targets, drafts) = (cpu.targets(), cpu.drafts());
            for pair in &cpu.partitions {
                let draft = match drafts.as_slice() {
                    [] => PassCost::nothing(),
                    drafts => told(spec.on_cores(drafts, &pair.draft, cpu)?),
                };
                costs.push(PartitionCosts {
                    draft,
                    verify: told(spec.on_cores(&targets, &pair.verify, cpu)?),
                });
            }
        }
        DeviceSpec::Cuda(cuda) => {
            let ranks = cuda.open(&mut |_| {})?;
            let shares =
                ranks.iter().map(|rank| rank.shares(&cuda.draft_sms)).collect::<Result<Vec<_>, _>>()?;
            for place in 0..=cuda.draft_sms.len() {
                let of_rank = |(rank, shares): (&Arc<OnGpu>, &Vec<SharePair>)| {
                    let SharePair { draft, verify } = shares[place].clone();
                    (rank.draft.clone().map(|model| (model, draft)), (rank.target.clone(), verify))
                };
                let (drafts, targets): (Vec<_>, Vec<_>) = ranks.iter().zip(&shares).map(of_rank).unzip();
                let (drafts, deadline): (Vec<_>, _) =
                    (drafts.into_iter().flatten().collect(), cuda.group.deadline);
                let draft = match drafts.is_empty() {
                    true => PassCost::nothing(),
                    false => told(spec.on_sms(&drafts, true, deadline)?),
                };
                costs.push(PartitionCosts { draft, verify: told(spec.on_sms(&targets, false, deadline)?) });
            }
        }
    }
    Ok(costs)
}

impl ProfileSpec<'_> {
    fn most_rows(&self) -> usize {
        self.max_rows.min(ROW_GRID[ROW_GRID.len() - 1])
    }

    /// The context that attention is measured at, of a model that holds so many tokens.
    fn context(&self, holds: usize) -> usize {
        CONTEXT.min(self.max_context.min(holds) - 1)
    }

    /// What the first rank measures of a model's shards; the others do what it does.
    fn on_cores(
        &self,
        shards: &[&Arc<Model>],
        partition: &Partition,
        cpu: &CpuSpec,
    ) -> Result<PassCost, ServiceError> {
        let holds = shards.first().map_or(1, |model| model.config().max_context);
        let (most_rows, context) = (self.most_rows(), self.context(holds));
        let ranks =
            shards.iter().zip(partition.split(shards.len())).zip(ways(shards.len(), cpu.group.deadline));
        let mut threads = Vec::with_capacity(shards.len());
        for ((model, cores), way) in ranks {
            let runner = RunnerSpec {
                partitions: vec![cores],
                isa: cpu.isa,
                blocks: most_rows.max(context / self.block_size + 1),
                block_size: self.block_size,
                max_rows: most_rows,
                max_logit_rows: most_rows,
                mask_patience: RunnerSpec::MASK_PATIENCE,
            };
            let model = Arc::clone(model);
            // On a thread of its own, which may be pinned as the lane's will be.
            let measured = std::thread::Builder::new().name("faser-profile".to_owned()).spawn(move || {
                let mut passes = CpuPasses::new(model, &runner, way.as_ref())?;
                if !passes.leads() {
                    passes.follow();
                    return Ok(None);
                }
                let cost = cost(&mut passes, most_rows, context)?;
                passes.end();
                Ok(Some(cost))
            });
            threads.push(measured.map_err(|source| ServiceError::Thread { name: "profiling", source })?);
        }
        let panicked = |_| {
            Err(ServiceError::Lane {
                lane: "profiled",
                reason: format!("a pass on cores {:?} panicked", partition.cores),
            })
        };
        let measured: Vec<_> =
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect();
        let measured = measured.into_iter().collect::<Result<Vec<_>, _>>()?;
        measured
            .into_iter()
            .flatten()
            .next()
            .ok_or_else(|| ServiceError::Lane { lane: "profiled", reason: "it has no first rank".to_owned() })
    }

    /// What the first rank measures of a model's shards, each with its share of its GPU; the others do what it does.
    fn on_sms(
        &self,
        shards: &[(Arc<CudaModel>, Arc<Share>)],
        drafts: bool,
        deadline: Duration,
    ) -> Result<PassCost, ServiceError> {
        let holds = shards.first().map_or(1, |(model, _)| model.config().max_context);
        let (most_rows, context) = (self.most_rows(), self.context(holds));
        let make = |(model, share): (Arc<CudaModel>, Arc<Share>), seat: Option<NcclSeat>| {
            let made = GpuPasses::new(model, share, drafts, most_rows, context + 1);
            let Some(seat) = seat else { return made };
            let joined = made.and_then(|mut passes| passes.join(&seat).map(|()| passes));
            joined.inspect_err(|error| seat.abort(&format!("rank {} cannot be built: {error}", seat.rank())))
        };
        let mut ranks = shards.iter().cloned().zip(seats(shards.len(), deadline)?);
        let Some((first, seat)) = ranks.next() else {
            return Err(ServiceError::Lane { lane: "profiled", reason: "it has no first rank".to_owned() });
        };
        std::thread::scope(|scope| {
            let mut ways = Vec::new();
            let mut followers = Vec::new();
            for (own, seat) in ranks {
                let (way, told) = channel();
                ways.push(way);
                followers.push(scope.spawn(move || make(own, seat)?.follow(&told)));
            }
            let measured = make(first, seat).and_then(|mut passes| {
                passes.lead(ways);
                cost(&mut passes, most_rows, context)
            });
            let panicked = |_| {
                let reason = "a pass of another rank panicked".to_owned();
                Err(ServiceError::Lane { lane: "profiled", reason })
            };
            let followed: Vec<_> =
                followers.into_iter().map(|rank| rank.join().unwrap_or_else(panicked)).collect();
            let measured = measured?;
            followed.into_iter().collect::<Result<(), _>>()?;
            Ok(measured)
        })
    }
}

/// Passes of a lane.
trait Timed {
    /// Whether the first pass of a row count takes longer than those after it.
    const FIRST_IS_COLD: bool;

    /// Carries out one of `rows` rows, each at position `context`, or those of one chunk that ends there.
    fn pass(&mut self, rows: usize, context: usize) -> Result<(), ServiceError>;
}

fn cost<T: Timed>(lane: &mut T, most_rows: usize, context: usize) -> Result<PassCost, ServiceError> {
    reading(lane, 1, 0)?;
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
                if T::FIRST_IS_COLD && round == 0 {
                    lane.pass(rows, context)?;
                }
                readings.push(reading(lane, rows, context)?);
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
    Ok(PassCost::new(times, AttentionCost::fitted(context, some, one, many)))
}

/// Median time of a few passes.
fn reading(lane: &mut impl Timed, rows: usize, context: usize) -> Result<Duration, ServiceError> {
    let mut times = Vec::with_capacity(RUNS);
    let begin = Instant::now();
    while times.is_empty() || (times.len() < RUNS && begin.elapsed() < ENOUGH) {
        let started = Instant::now();
        lane.pass(rows, context)?;
        times.push(started.elapsed());
    }
    Ok(median(times).unwrap_or_default())
}

fn median(mut times: Vec<Duration>) -> Option<Duration> {
    times.sort_unstable();
    times.get(times.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use faser_engine::cost::Reach;
    use faser_kernels::{Dtype, Isa};
    use faser_models::synthetic::{self, SyntheticSpec};
    use faser_topology::LanePair;

    use crate::device::CpuGroup;

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
                device: &DeviceSpec::Cpu(CpuSpec {
                    target: Arc::new(target),
                    draft: Some(Arc::new(draft)),
                    partitions: vec![LanePair { draft: lane.clone(), verify: lane }],
                    isa: Isa::detect(),
                    group: CpuGroup::default(),
                }),
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
            costs[0].verify.seconds(64, Reach::NONE) > costs[0].verify.seconds(1, Reach::NONE),
            "{costs:?}"
        );
    }
}
