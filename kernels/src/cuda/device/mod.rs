//! A GPU: found, opened, its SMs partitioned, its memory, and the lanes that launch on it.
//!
//! Everything is made on the primary context. Lanes share weights, which do not change: what runs on one stream is in order, and
//! where one lane reads what another writes, events order their streams. A lane may be a rank of a group, whose others have GPUs of their own: `nccl_group.rs`.

mod blaslt;
mod communicator;
mod cuda_lane;
mod error;
mod gpu;
mod memory;
mod nccl_group;
mod peers;
mod probe;
mod sms;
mod upload;

pub use blaslt::Product;
pub use communicator::nccl_version;
pub use cuda_lane::{CudaLane, Event, Graph, SmallSums};
pub use error::CudaError;
pub use gpu::Gpu;
pub use memory::{Arena, DeviceBuffer, Flags, Place, Plain};
pub use nccl_group::{GroupTerms, NcclId, NcclRankSlot, nccl_group, nccl_group_of};
pub use probe::{GpuInfo, prepare_environment, probe, probe_one};
pub use sms::{Share, SharePair};
pub use upload::Upload;
