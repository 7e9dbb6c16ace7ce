//! Plans of a machine: which ranks hold which shards of a pair on which devices, and what of each device's memory that takes. Pure.
//!
//! ```text
//! Topology, PlanRequest ── assign: devices of each replica's ranks ── fit: bytes of each device, KV tokens ── warnings ── Plan
//!                                                                  └─ advice: what would fit ── PlanRefusal
//! ```

mod advice;
mod assign;
mod fit;
mod warnings;

use std::fmt;

use crate::error::Bytes;
use crate::{Divisible, Joined, KvRequest, LanePair, Share};
use serde::{Serialize, Serializer};

pub use advice::{PlanRefusal, plan};

/// What a shard takes of its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareBytes {
    /// Its weights, packed.
    pub weight_bytes: u64,
    /// K and V of one token, all layers.
    pub kv_bytes_per_token: u64,
    /// Activations, scratch, and what its group's collectives keep.
    pub workspace_bytes: u64,
}

/// A model to be placed.
#[derive(Clone, Copy)]
pub struct PlanModel<'a> {
    /// What it is called.
    pub name: &'a str,
    /// What of it can be split over ranks.
    pub whole: &'a Divisible,
    /// Longest context it was made for, in tokens.
    pub max_context: usize,
    /// What a share of it takes, held in the dtype of that name.
    pub bytes: &'a dyn Fn(&Share, &str) -> ShareBytes,
}

/// Where the draft model is, beside a target that has ranks of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DraftPlace {
    /// On the first ranks' devices, as many as it is split over.
    First,
    /// Whole, on every rank's device.
    Replicated,
    /// On devices where the target is not.
    Own,
}

/// On what a pair is to be placed.
#[derive(Clone, Debug, PartialEq)]
pub enum PlanDevices {
    /// Cores of the host: all ranks share its memory.
    Cpu {
        /// Threads of a lane, all ranks of a replica together; `None` takes every core.
        threads: Option<usize>,
    },
    /// GPUs, one for each rank.
    Gpus {
        /// Those that may be used.
        usable: Vec<usize>,
        /// How much of a GPU's memory may be used, 0 to 1.
        utilization: f64,
        /// SMs of the draft lane in each split; `None`: a few sensible ones.
        draft_sms: Option<Vec<u32>>,
    },
}

/// What is to be placed, and how.
#[derive(Clone)]
pub struct PlanRequest<'a> {
    /// The target model.
    pub target: PlanModel<'a>,
    /// The draft model, if there is one.
    pub draft: Option<PlanModel<'a>>,
    /// In what weights are held.
    pub dtype: &'a str,
    /// In what else they could be held.
    pub other_dtypes: &'a [&'a str],
    /// Ranks of the target's group.
    pub target_ranks: usize,
    /// Ranks of the draft's group.
    pub draft_ranks: usize,
    /// Where the draft is.
    pub draft_place: DraftPlace,
    /// Copies of it all, each with its own requests.
    pub replicas: usize,
    /// On what.
    pub devices: PlanDevices,
    /// KV memory; `memory_bytes` are those of each device.
    pub kv: KvRequest,
}

/// A device of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeviceId {
    /// The host's cores and memory.
    Cpu,
    /// The GPU of that number.
    Gpu(usize),
}

/// As `device.kind` names it.
impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceId::Cpu => f.write_str("cpu"),
            DeviceId::Gpu(number) => write!(f, "cuda:{number}"),
        }
    }
}

impl Serialize for DeviceId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Where everything goes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plan {
    /// The replicas.
    pub replicas: Vec<Replica>,
    /// The devices that are used, in order.
    pub devices: Vec<DeviceLoad>,
    /// What will work, and not well.
    pub warnings: Vec<String>,
}

/// One copy of the pair.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Replica {
    /// Its ranks: first those of the target, then a draft's that are elsewhere.
    pub ranks: Vec<Rank>,
    /// KV blocks of each pool, on every rank that has it.
    pub kv_blocks: usize,
    /// Tokens whose KV fits.
    pub kv_tokens: usize,
    /// Sequences of the longest context whose KV fits.
    pub sequences: usize,
    /// The slowest link between ranks that sum over it.
    pub slowest_link: Option<Joined>,
}

/// One rank: what a device holds of a replica, and how its lanes share it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rank {
    /// Its device.
    pub device: DeviceId,
    /// Of the target.
    pub target: Option<Shard>,
    /// Of the draft.
    pub draft: Option<Shard>,
    /// How the lanes can share the device; in turns on all of it first.
    pub partitions: Vec<Lanes>,
}

/// A shard in its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Shard {
    /// Which.
    pub share: Share,
    /// Its weights.
    pub weight_bytes: u64,
    /// Its KV pool.
    pub kv_bytes: u64,
    /// Its workspace.
    pub workspace_bytes: u64,
}

/// What both lanes have of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Lanes {
    /// Of a GPU.
    Sms {
        /// SMs of the draft lane.
        draft_sms: u32,
        /// SMs of the verify lane.
        verify_sms: u32,
    },
    /// Of the host.
    Cores(LanePair),
}

/// What is taken of one device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeviceLoad {
    /// Which.
    pub device: DeviceId,
    /// What it calls itself.
    pub name: String,
    /// All of its memory.
    pub memory_bytes: u64,
    /// What of it may be used.
    pub budget_bytes: u64,
    /// The target's weights.
    pub target_weight_bytes: u64,
    /// The draft's weights.
    pub draft_weight_bytes: u64,
    /// KV pools.
    pub kv_bytes: u64,
    /// Workspaces.
    pub workspace_bytes: u64,
}

impl DeviceLoad {
    /// All that is taken.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.target_weight_bytes + self.draft_weight_bytes + self.kv_bytes + self.workspace_bytes
    }
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// What is asked for does not go together, on whatever device.
    #[error("{0}")]
    Asked(String),
    /// There are too few GPUs.
    #[error("{needed} GPUs are needed ({ranks} for a replica), and there are {there}")]
    Devices {
        /// GPUs asked for, all replicas together.
        needed: usize,
        /// GPUs that may be used.
        there: usize,
        /// GPUs of a replica.
        ranks: usize,
    },
    /// Weights and workspaces alone are more than a device has.
    #[error(
        "weights and workspaces need {} on {device}, and {} of it may be used",
        Bytes(*needed_bytes), Bytes(*budget_bytes)
    )]
    Weights {
        /// Which device.
        device: DeviceId,
        /// What they need.
        needed_bytes: u64,
        /// What may be used.
        budget_bytes: u64,
    },
    /// The KV memory asked for is not left.
    #[error(
        "kv.memory is {}, and beside weights and workspaces {} are left on {device}",
        Bytes(*asked_bytes), Bytes(*left_bytes)
    )]
    KvMemory {
        /// Which device.
        device: DeviceId,
        /// `kv.memory`.
        asked_bytes: u64,
        /// What is left.
        left_bytes: u64,
    },
    /// Not even one sequence of the longest context fits.
    #[error(
        "one sequence of {max_context} tokens needs {} of KV memory on {device}, and there are {}",
        Bytes(*needed_bytes), Bytes(*kv_bytes)
    )]
    Context {
        /// The device with the least room.
        device: DeviceId,
        /// Tokens of the sequence.
        max_context: usize,
        /// What they need there.
        needed_bytes: u64,
        /// What there is for KV.
        kv_bytes: u64,
    },
}
