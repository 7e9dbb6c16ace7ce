//! What this host has (cores, memory) and where a draft and a target model go on it.
//!
//! [`CpuDevice::discover`] reads the operating system; [`place`] is pure: from sizes to a [`Placement`], or a
//! refusal that says what would fit.
#![forbid(unsafe_code)]

mod cpu;
mod error;
mod nodes;
mod place;
mod proc;

pub use cpu::{CpuDevice, Partition};
pub use error::TopologyError;
pub use nodes::Node;
pub use place::{KvRequest, LanePair, ModelFootprint, Placement, place};
