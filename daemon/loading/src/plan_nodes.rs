//! What each of several nodes would have of a target, and of its KV, if all are like one machine.

use std::fmt::{self, Formatter};
use std::ops::Range;

use faser_config::sizes::written;
use faser_models::{ModelConfig, Shard};
use faser_topology::{CpuDevice, GpuDevice, KvRequest, ModelFootprint, ShareBytes, place, place_on_gpu};
use serde::Serialize;

/// One of several nodes.
#[derive(Debug, Serialize)]
pub struct NodeShare {
    /// Its number.
    pub node: usize,
    /// Its ranks of the target.
    pub ranks: Range<usize>,
    /// The layers that they have.
    pub layers: Range<usize>,
    /// Weights of its ranks.
    pub target_weight_bytes: u64,
    /// Of the draft, which is on the first node.
    pub draft_weight_bytes: u64,
    /// Activations of all lanes.
    pub workspace_bytes: u64,
    /// KV of its ranks, and of the draft.
    pub kv_bytes: u64,
    /// What the machine has, or may be used of its GPUs.
    pub memory_bytes: u64,
}

/// How a target goes over nodes.
#[derive(Debug, Serialize)]
pub struct NodesPlan {
    /// Ranks of the target, and stages that its layers are in.
    pub ranks: usize,
    /// See `ranks`.
    pub stages: usize,
    /// Blocks of the target's KV, and tokens in them.
    pub kv_blocks: usize,
    /// See `kv_blocks`.
    pub kv_tokens: usize,
    /// One node after the other.
    pub nodes: Vec<NodeShare>,
}

/// A model, by its shape and what a shard of it takes.
pub(crate) struct ModelOnNodes<'a> {
    /// The shape.
    pub(crate) shape: &'a ModelConfig,
    /// What a shard takes.
    pub(crate) bytes: &'a dyn Fn(Shard) -> ShareBytes,
}

/// A machine such as each node is.
pub(crate) enum NodeMachine<'a> {
    /// Its cores and memory.
    Cpu(&'a CpuDevice),
    /// A GPU of it, one for each rank, and the SMs for drafting that are asked for.
    Gpus(GpuDevice, Option<&'a [u32]>),
}

/// Plans `shards`, all of a group, for so many nodes. The first node sizes the KV, as it does where it is served.
///
/// # Errors
/// What does not fit, in words.
pub(crate) fn over_nodes(
    machine: &NodeMachine<'_>,
    (nodes, shards): (usize, &[Shard]),
    target: &ModelOnNodes<'_>,
    draft: Option<&ModelOnNodes<'_>>,
    kv: &KvRequest,
) -> Result<NodesPlan, String> {
    let each = shards.len() / nodes;
    let of_ranks = |ranks: Range<usize>| {
        footprint(shards[ranks].iter().map(|shard| (target.bytes)(*shard)), target.shape.max_context)
    };
    let of_node = |node: usize| of_ranks(node * each..(node + 1) * each);
    let draft =
        draft.map(|draft| footprint(std::iter::once((draft.bytes)(Shard::WHOLE)), draft.shape.max_context));
    let (pools, memory_bytes) = match machine {
        NodeMachine::Cpu(host) => {
            let placed = place(host, None, &of_node(0), draft.as_ref(), kv);
            (placed.map_err(|error| error.to_string())?.pools, host.memory_bytes)
        }
        NodeMachine::Gpus(gpu, draft_sms) => {
            // The first rank has most: the draft is with it.
            let placed = place_on_gpu(gpu, *draft_sms, &of_ranks(0..1), draft.as_ref(), kv);
            let budget_bytes = (gpu.memory_bytes as f64 * gpu.utilization) as u64;
            (placed.map_err(|error| error.to_string())?.pools, budget_bytes * each as u64)
        }
    };
    let block_tokens = kv.block_size as u64;
    let tokens = pools.target_blocks as u64 * block_tokens;
    let draft_tokens = pools.draft_blocks as u64 * block_tokens;
    let share = |node: usize| {
        let own = of_node(node);
        let draft = draft.as_ref().filter(|_| node == 0);
        let of_draft = |bytes: fn(&ModelFootprint) -> u64| draft.map_or(0, bytes);
        NodeShare {
            node,
            ranks: node * each..(node + 1) * each,
            layers: {
                let layers = |shard: &Shard| shard.layers(target.shape);
                layers(&shards[node * each]).start..layers(&shards[(node + 1) * each - 1]).end
            },
            target_weight_bytes: own.weight_bytes,
            draft_weight_bytes: of_draft(|draft| draft.weight_bytes),
            workspace_bytes: own.workspace_bytes + of_draft(|draft| draft.workspace_bytes),
            kv_bytes: tokens * own.kv_bytes_per_token
                + draft_tokens * of_draft(|draft| draft.kv_bytes_per_token),
            memory_bytes,
        }
    };
    let planned: Vec<NodeShare> = (0..nodes).map(share).collect();
    if let Some(full) = planned.iter().find(|node| node.used_bytes() > node.memory_bytes) {
        return Err(format!(
            "node {} would need {} of {}: name less KV by `kv.memory`, or give the target more nodes",
            full.node,
            written(full.used_bytes()),
            written(full.memory_bytes)
        ));
    }
    let Shard { ranks, stages, .. } = shards[0];
    let (kv_blocks, kv_tokens) = (pools.target_blocks, tokens as usize);
    Ok(NodesPlan { ranks, stages, kv_blocks, kv_tokens, nodes: planned })
}

fn footprint(shares: impl Iterator<Item = ShareBytes>, max_context: usize) -> ModelFootprint {
    let none =
        ModelFootprint { weight_bytes: 0, kv_bytes_per_token: 0, max_context, workspace_bytes: 0, copies: 1 };
    shares.fold(none, |sum, own| ModelFootprint {
        weight_bytes: sum.weight_bytes + own.weight_bytes,
        kv_bytes_per_token: sum.kv_bytes_per_token + own.kv_bytes_per_token,
        workspace_bytes: sum.workspace_bytes + own.workspace_bytes,
        copies: 1,
        max_context,
    })
}

impl NodeShare {
    fn used_bytes(&self) -> u64 {
        self.target_weight_bytes + self.draft_weight_bytes + self.workspace_bytes + self.kv_bytes
    }
}

impl fmt::Display for NodesPlan {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let NodesPlan { ranks, stages, kv_tokens, kv_blocks, nodes } = self;
        writeln!(
            f,
            "\nnodes    {}, each like this machine; {ranks} ranks in {stages} stage(s); KV for {kv_tokens} tokens ({kv_blocks} blocks)",
            nodes.len()
        )?;
        for one in nodes {
            let NodeShare { node, ranks, layers, target_weight_bytes, workspace_bytes, kv_bytes, .. } = one;
            let last = |range: &Range<usize>| range.end.saturating_sub(1);
            let draft = match one.draft_weight_bytes {
                0 => String::new(),
                bytes => format!(", draft {}", written(bytes)),
            };
            writeln!(
                f,
                "  node {node}  ranks {}-{}, layers {}-{}: weights {}{draft}, workspaces {}, KV {}, {} left of {}",
                ranks.start,
                last(ranks),
                layers.start,
                last(layers),
                written(*target_weight_bytes),
                written(*workspace_bytes),
                written(*kv_bytes),
                written(one.memory_bytes - one.used_bytes()),
                written(one.memory_bytes),
            )?;
        }
        Ok(())
    }
}
