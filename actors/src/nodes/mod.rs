//! One target over several nodes: processes on machines of their own, each with some ranks of the group.
//!
//! ```text
//! node 0, the leader                                        nodes 1, 2, ..
//! API, engine, draft; its own ranks of the target           their ranks of the target
//!      |                                                         |
//!      |<-- a connection, and what they have: Hello -------------|   rendezvous
//!      |--- what their lanes are made for: Begin --------------->|   a session: once for each generation of the device,
//!      |<================ a socket for each two ranks ==========>|   and for what is measured at the start
//!      |--- every verify plan ---------------------------------->|   the lanes do the same, and sum by the sockets
//! ```
//! To the leader another node is a rank's lane like any other: one that sends its plans on (`leader.rs`). To the other node a session is all
//! there is: it ends when a connection does, and then the node comes again (`follower.rs`). A node that dies, hangs or is cut off ends the group;
//! the watchdog has the device built anew, which waits for all nodes to come. Every sequence is computed again, so no text changes.
//!
//! Nothing here knows who a peer is: the nodes of a group need a network of their own.

mod follower;
mod frames;
mod leader;
mod listening;
mod mesh;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;

use faser_kernels::cuda::GpuInfo;
use faser_kernels::{Dtype, Isa};
use faser_models::{Model, ModelConfig, Shard};
use serde::{Deserialize, Serialize};

pub use follower::{NodeControl, NodeError, NodeSpec, NodeState, follow};
pub(crate) use follower::{RunLane, SessionLanes};

pub(crate) use frames::{MeasuredLane, SessionWork, VerifyLaneSpec};

pub(crate) use leader::{Link, Session, SessionWays};
pub use leader::{Nodes, NodesSpec};

/// Which of the nodes this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodePlace {
    /// Its number; 0 leads.
    pub rank: usize,
    /// How many there are.
    pub of: usize,
}

impl NodePlace {
    /// The ranks of a group that a node has: as many as every other.
    pub fn ranks(self, all: usize) -> Range<usize> {
        let each = all / self.of;
        self.rank * each..(self.rank + 1) * each
    }
}

/// What all nodes must have alike, so that their ranks compute one model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFacts {
    /// Of faser: other versions may compute otherwise.
    version: String,
    /// Of the target's shape, and of its weights as far as they were looked at.
    model: u64,
    /// In which it is held.
    dtype: String,
    /// In which its keys and values are.
    kv_dtype: String,
    /// Tokens that it is laid out for.
    max_context: usize,
    /// The kernels: others sum in another order.
    kernels: String,
    /// Whether ranks are on GPUs.
    on_gpus: bool,
    /// Ranks and stages of the target.
    ranks: usize,
    stages: usize,
}

impl NodeFacts {
    /// Those of a rank's shard on a CPU, computed by kernels of this instruction set; `weights` is by what its weights are told from others.
    pub fn of(model: &Model, weights: &str, isa: Isa) -> NodeFacts {
        let held = (model.config(), model.dtype(), model.kv_dtype());
        NodeFacts { on_gpus: false, ..NodeFacts::new(held, model.shard(), weights, isa.to_string()) }
    }

    /// The same on a GPU such as this, of a model whose matrices are held in the first of these dtypes, and its KV in the second.
    pub fn on_gpu(
        held: (&ModelConfig, Dtype, Dtype),
        shard: Shard,
        weights: &str,
        gpu: &GpuInfo,
    ) -> NodeFacts {
        let (major, minor) = gpu.capability;
        let kernels = format!("{} (compute capability {major}.{minor})", gpu.name);
        NodeFacts::new(held, shard, weights, kernels)
    }

    fn new(
        (config, dtype, kv_dtype): (&ModelConfig, Dtype, Dtype),
        shard: Shard,
        weights: &str,
        kernels: String,
    ) -> NodeFacts {
        let Shard { ranks, stages, .. } = shard;
        let mut hash = DefaultHasher::new();
        // As far as it is the files', not the config's.
        (weights, format!("{:?}", ModelConfig { max_context: 0, ..config.clone() })).hash(&mut hash);
        NodeFacts {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            model: hash.finish(),
            dtype: dtype.to_string(),
            kv_dtype: kv_dtype.to_string(),
            max_context: config.max_context,
            kernels,
            on_gpus: true,
            ranks,
            stages,
        }
    }

    /// What another node has that the leader has not: what is to be done about it.
    fn differs(&self, other: &NodeFacts) -> Option<String> {
        let differ = |what: &str, own: &dyn ToString, theirs: &dyn ToString, advice: &str| {
            format!("it has {what} {}, the leader {}: {advice}", theirs.to_string(), own.to_string())
        };
        let config = "give all nodes the same config";
        Some(if self.version != other.version {
            differ("version", &self.version, &other.version, "install the same faser on all nodes")
        } else if (self.ranks, self.stages) != (other.ranks, other.stages) {
            let words = |facts: &NodeFacts| format!("{} in stages {}", facts.ranks, facts.stages);
            differ("ranks", &words(self), &words(other), config)
        } else if self.dtype != other.dtype {
            differ("`model.dtype`", &self.dtype, &other.dtype, config)
        } else if self.kv_dtype != other.kv_dtype {
            differ("`kv.cache_dtype`", &self.kv_dtype, &other.kv_dtype, config)
        } else if self.max_context != other.max_context {
            differ("`scheduler.max_context`", &self.max_context, &other.max_context, config)
        } else if self.kernels != other.kernels {
            let advice = if self.on_gpus {
                "nodes need equal GPUs, or all of them CPUs (`device.kind`)"
            } else {
                "set `device.isa` on all nodes to one that each processor has"
            };
            differ("kernels for", &self.kernels, &other.kernels, advice)
        } else if self.model != other.model {
            "it has another target than the leader: give all nodes the same files".to_owned()
        } else {
            return None;
        })
    }
}
