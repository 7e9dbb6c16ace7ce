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
    /// Ranks that have it whole, each for its part of the sequences; 1 for all others.
    pub copies: usize,
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

/// The sizes of the KV pools. Both hold the same number of tokens, where the draft is not on several ranks that divide the sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct KvPools {
    /// KV blocks of the target.
    pub target_blocks: usize,
    /// KV blocks of the draft, of each rank that has it whole; 0 without a draft.
    pub draft_blocks: usize,
    /// KV memory of all pools.
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

    let draft_token_bytes = draft.map_or(0, |model| model.kv_bytes_per_token);
    let copies = draft.map_or(1, |model| model.copies);
    let sizes = BlockSizes::new(kv, (target.kv_bytes_per_token, draft_token_bytes), copies);
    let blocks_per_sequence = sizes.per_sequence;
    let wanted_blocks = blocks_per_sequence.saturating_mul(kv.max_running as u64);
    let blocks = match kv.memory_bytes {
        Some(asked_bytes) if asked_bytes > left_bytes => {
            return Err(TopologyError::KvMemory { asked_bytes, left_bytes });
        }
        Some(asked_bytes) => sizes.fitting(asked_bytes),
        None => sizes.fitting(sized(left_bytes, sizes.bytes(wanted_blocks))),
    };
    if blocks < blocks_per_sequence {
        let needed_bytes = sizes.bytes(blocks_per_sequence);
        return Err(TopologyError::DoesNotFit {
            max_context: kv.max_context,
            needed_bytes,
            kv_bytes: sizes.bytes(blocks),
            left_bytes,
            fitting_context: blocks as usize * kv.block_size,
            // More memory is of no use to pools whose size was asked for.
            utilization: match kv.memory_bytes {
                Some(_) => None,
                None => limit.utilization_for(fixed_bytes.saturating_add(needed_bytes)),
            },
        });
    }
    let draft_blocks = if draft.is_some() { sizes.draft_blocks(blocks) as usize } else { 0 };
    Ok(KvPools { target_blocks: blocks as usize, draft_blocks, kv_bytes: sizes.bytes(blocks) })
}

/// Of ranks that divide the sequences each has draft KV for so many times its part of them: they are not alike, and do not end alike.
const COPY_ROOM: (u64, u64) = (5, 4);

/// What blocks of the pools take of a memory, and how many of the draft there are beside those of the target.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockSizes {
    /// Of a block of the target.
    target_bytes: u64,
    /// Of a block of the draft, of all ranks in this memory that have it whole.
    draft_bytes: u64,
    /// Ranks that have it whole.
    copies: u64,
    /// Blocks of the longest sequence.
    pub(crate) per_sequence: u64,
}

impl BlockSizes {
    /// Of models whose tokens take so many bytes in this memory: the target's, and the draft's, which so many ranks have whole.
    pub(crate) fn new(kv: &KvRequest, (target, draft): (u64, u64), copies: usize) -> BlockSizes {
        let block = |token_bytes: u64| token_bytes.saturating_mul(kv.block_size as u64);
        BlockSizes {
            target_bytes: block(target),
            draft_bytes: block(draft),
            copies: copies as u64,
            per_sequence: kv.max_context.div_ceil(kv.block_size) as u64,
        }
    }

    /// Blocks of the draft, on each rank that has it whole, beside so many of the target: as many, or a rank's part and some more.
    pub(crate) fn draft_blocks(&self, target_blocks: u64) -> u64 {
        let part = target_blocks.saturating_mul(COPY_ROOM.0).div_ceil(COPY_ROOM.1 * self.copies);
        part.max(self.per_sequence).min(target_blocks)
    }

    /// What so many blocks of the target take, and those of the draft beside them.
    pub(crate) fn bytes(&self, target_blocks: u64) -> u64 {
        let draft_bytes = self.draft_blocks(target_blocks).saturating_mul(self.draft_bytes);
        target_blocks.saturating_mul(self.target_bytes).saturating_add(draft_bytes)
    }

    /// The most blocks of the target in so many bytes, with those of the draft.
    pub(crate) fn fitting(&self, bytes: u64) -> u64 {
        // Of the draft there is at least a rank's part.
        let both = self.target_bytes.saturating_add(self.draft_bytes).max(1);
        let (mut fits, mut beyond) =
            (0, (bytes / both).saturating_add(1).saturating_mul(self.copies).saturating_add(1));
        while beyond - fits > 1 {
            let middle = fits.midpoint(beyond);
            *(if self.bytes(middle) <= bytes { &mut fits } else { &mut beyond }) = middle;
        }
        fits
    }
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
