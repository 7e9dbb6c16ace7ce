//! What this host has (cores, memory) and where a draft and a target model go on it.
//!
//! [`CpuDevice::discover`] and [`Topology::discover`] look at the machine; [`place`], [`place_on_gpu`] and, for groups and replicas, [`plan()`] are pure:
//! from sizes to a placement, or a refusal that says what would fit.
#![forbid(unsafe_code)]

mod cpu;
mod discover;
mod error;
mod gpu_placement;
mod machine;
mod nodes;
mod place;
mod plan;
mod proc;
mod ranks;
mod share;

pub use cpu::{CpuDevice, Partition};
pub use error::TopologyError;
pub use gpu_placement::{ALL_SMS, GpuDevice, GpuPlacement, place_on_gpu};
pub use machine::{Gpu, Joined, Link, LinkKind, Topology};
pub use nodes::Node;
pub use place::{KvPools, KvRequest, LanePair, ModelFootprint, Placement, place};
pub use plan::{
    DeviceId, DeviceLoad, DraftPlace, Lanes, Plan, PlanDevices, PlanModel, PlanRefusal, PlanRequest, Problem,
    Rank, Replica, Shard, ShareBytes, plan,
};
pub use ranks::rank_partitions;
pub use share::{Divisible, Share, part};
