//! The planner: from the sizes of models and device to KV pools and lanes. Pure.

use crate::nodes::{Node, split};
use crate::{CpuDevice, Partition, TopologyError};
use serde::Serialize;

/// What the planner must know of one model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFootprint {
    /// All weights, packed.
    pub weight_bytes: u64,
    /// K and V of one token, all layers.
    pub kv_bytes_per_token: u64,
    /// Longest context the model was made for, in tokens.
    pub max_context: usize,
    /// Activations and scratch of a pass.
    pub workspace_bytes: u64,
}

/// What the configuration asks of the KV pools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvRequest {
    /// Tokens per KV block.
    pub block_size: usize,
    /// KV memory of target and draft together; `None`: see [`place`].
    pub memory_bytes: Option<u64>,
    /// Sequences that should be able to run at once.
    pub max_running: usize,
    /// Longest sequence, prompt and output, in tokens.
    pub max_context: usize,
}

/// The sizes of the KV pools. Both hold the same number of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct KvPools {
    /// KV blocks of the target.
    pub target_blocks: usize,
    /// KV blocks of the draft; 0 without a draft.
    pub draft_blocks: usize,
    /// KV memory of both pools.
    pub kv_bytes: u64,
}

/// Where everything goes on a CPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Placement {
    /// The KV pools.
    pub pools: KvPools,
    /// How the cores can be partitioned between the lanes. The first is all of them for both, to be used in turns; the others
    /// are disjoint, to be used at the same time.
    pub partitions: Vec<LanePair>,
}

/// The cores of both lanes on one partition of the device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LanePair {
    /// Cores of the draft lane.
    pub draft: Partition,
    /// Cores of the verify lane.
    pub verify: Partition,
}

/// Plans one target, and maybe a draft, on one CPU device. The lanes share `threads` cores (default: every core).
///
/// Without `kv.memory_bytes` the pools hold `max_running` sequences of `max_context` tokens, or what half of the
/// memory left beside weights and workspaces holds, whichever is less. With it they hold as much as it says.
///
/// # Errors
/// A refusal with numbers and what would fit: too many threads, a context no model was made for, weights larger
/// than the memory, or pools in which not even one sequence of `max_context` tokens fits.
pub fn place(
    device: &CpuDevice,
    threads: Option<usize>,
    target: &ModelFootprint,
    draft: Option<&ModelFootprint>,
    kv: &KvRequest,
) -> Result<Placement, TopologyError> {
    let lane = device.first(threads.unwrap_or(device.cores.len()))?;
    let limit = Limit { memory_bytes: device.memory_bytes, gpu_bytes: None };
    // Memory of the host is wanted by others too.
    let pools =
        pools(&limit, target, draft, kv, |left_bytes, wanted_bytes| wanted_bytes.min(left_bytes / 2))?;
    Ok(Placement { pools, partitions: partitions(&lane, &device.nodes, draft.is_some()) })
}

/// What the models and their KV must fit in.
pub(crate) struct Limit {
    pub(crate) memory_bytes: u64,
    /// The GPU's whole memory, if it is one's.
    pub(crate) gpu_bytes: Option<u64>,
}

impl Limit {
    /// The least utilization of the GPU that gives `needed_bytes`, if one does.
    fn utilization_for(&self, needed_bytes: u64) -> Option<f64> {
        let share = needed_bytes as f64 / self.gpu_bytes? as f64;
        Some((share * 100.0).ceil() / 100.0).filter(|share| *share <= 1.0)
    }
}

/// The sizes of both pools. Without `kv.memory_bytes` they are what `sized` says: from the memory left beside weights and workspaces, and
/// what `max_running` sequences need, in bytes.
pub(crate) fn pools(
    limit: &Limit,
    target: &ModelFootprint,
    draft: Option<&ModelFootprint>,
    kv: &KvRequest,
    sized: impl Fn(u64, u64) -> u64,
) -> Result<KvPools, TopologyError> {
    check(target, draft, kv)?;
    let models = || std::iter::once(target).chain(draft);
    let fixed_bytes =
        models().fold(0u64, |sum, m| sum.saturating_add(m.weight_bytes).saturating_add(m.workspace_bytes));
    let left_bytes =
        limit.memory_bytes.checked_sub(fixed_bytes).ok_or_else(|| TopologyError::WeightsDoNotFit {
            needed_bytes: fixed_bytes,
            memory_bytes: limit.memory_bytes,
            utilization: limit.utilization_for(fixed_bytes),
        })?;

    // One block of each model: a token takes a slot in both pools.
    let token_bytes = models().fold(0u64, |sum, m| sum.saturating_add(m.kv_bytes_per_token));
    let block_bytes = token_bytes.saturating_mul(kv.block_size as u64);
    let blocks_per_sequence = kv.max_context.div_ceil(kv.block_size) as u64;
    let wanted_blocks = blocks_per_sequence.saturating_mul(kv.max_running as u64);
    let blocks = match kv.memory_bytes {
        Some(asked_bytes) if asked_bytes > left_bytes => {
            return Err(TopologyError::KvMemory { asked_bytes, left_bytes });
        }
        Some(asked_bytes) => asked_bytes / block_bytes,
        None => sized(left_bytes, wanted_blocks.saturating_mul(block_bytes)) / block_bytes,
    };
    if blocks < blocks_per_sequence {
        let needed_bytes = blocks_per_sequence.saturating_mul(block_bytes);
        return Err(TopologyError::DoesNotFit {
            max_context: kv.max_context,
            needed_bytes,
            kv_bytes: blocks * block_bytes,
            left_bytes,
            fitting_context: blocks as usize * kv.block_size,
            // More memory is of no use to pools whose size was asked for.
            utilization: match kv.memory_bytes {
                Some(_) => None,
                None => limit.utilization_for(fixed_bytes.saturating_add(needed_bytes)),
            },
        });
    }
    let draft_blocks = if draft.is_some() { blocks as usize } else { 0 };
    Ok(KvPools { target_blocks: blocks as usize, draft_blocks, kv_bytes: blocks * block_bytes })
}

/// All cores for both lanes; and, if there is anything to draft, a few ways to give the draft lane the last cores: one, a
/// quarter, half of them, on one NUMA node if it has so many. Few, because each costs its own threads and its own cost table.
pub(crate) fn partitions(lane: &Partition, nodes: &[Node], drafts: bool) -> Vec<LanePair> {
    let mut pairs = vec![LanePair { draft: lane.clone(), verify: lane.clone() }];
    let cores = lane.cores.len();
    let mut shares = [1, cores / 4, cores / 2]
        .into_iter()
        .filter(|&share| drafts && share > 0 && share < cores)
        .collect::<Vec<_>>();
    shares.sort_unstable();
    shares.dedup();
    pairs.extend(shares.into_iter().map(|share| {
        let (verify, draft) = split(&lane.cores, nodes, share);
        LanePair { draft: Partition { cores: draft }, verify: Partition { cores: verify } }
    }));
    pairs
}

pub(crate) fn check(
    target: &ModelFootprint,
    draft: Option<&ModelFootprint>,
    kv: &KvRequest,
) -> Result<(), TopologyError> {
    let positive = [
        ("block_size", kv.block_size as u64),
        ("max_running", kv.max_running as u64),
        ("max_context", kv.max_context as u64),
        ("kv_bytes_per_token of the target", target.kv_bytes_per_token),
        ("kv_bytes_per_token of the draft", draft.map_or(1, |model| model.kv_bytes_per_token)),
    ];
    if let Some((field, _)) = positive.into_iter().find(|(_, value)| *value == 0) {
        return Err(TopologyError::Zero(field));
    }
    // Beyond the draft's context the target goes on alone.
    if kv.max_context > target.max_context {
        return Err(TopologyError::Context { asked: kv.max_context, limit: target.max_context });
    }
    Ok(())
}
