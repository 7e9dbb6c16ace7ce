//! What this host has (cores, memory) and where a draft and a target model go on it.
//!
//! [`CpuDevice::discover`] reads the operating system; [`place`] and [`place_on_gpu`] are pure: from sizes to a placement, or a
//! refusal that says what would fit.
#![forbid(unsafe_code)]

mod cpu;
mod error;
mod gpu;
mod nodes;
mod place;
mod proc;
mod ranks;

pub use cpu::{CpuDevice, Partition};
pub use error::TopologyError;
pub use gpu::{GpuDevice, GpuPlacement, place_on_gpu};
pub use nodes::Node;
pub use place::{KvPools, KvRequest, LanePair, ModelFootprint, Placement, place};
pub use ranks::rank_partitions;
