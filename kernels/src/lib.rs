//! Devices' work: lanes, memory, ops and the sampler, on CPU.
//!
//! Every op is in one file of [`ops`]; its contract stands at the top in words. Results are batch invariant: each
//! output element is computed in an order that depends on nothing but its own inputs, never on how many rows a pass
//! has, how they are blocked, or how many workers share them.

pub mod collective;
pub mod cuda;
mod dtype;
mod error;
mod isa;
mod lane;
mod memory;
pub mod ops;
mod process;
pub mod sampling;
mod simd;

pub use collective::{Collective, CollectiveError, HostCollective};
pub use dtype::Dtype;
pub use error::KernelError;
pub use faser_topology::{CpuDevice, Partition};
pub use isa::Isa;
pub use lane::{Lane, Op, OpTime, OpTimes};
pub use memory::{
    Beside, BlockId, Blocks, Codes, EightBitForm, EightBitRecords, FourBitForm, FourBitRecords, FourBits,
    HeadRows, KV_BLOCK_MULTIPLE, KvCache, KvShape, Make, MappedFile, Matrix, RecordForm, RopeScaling,
    RopeSpec, RopeTable, Rows, Slice, Source, Stored, Table, Tensor, Vector, View, ViewMut, WeightRecords,
    of_e4m3, on_nodes, to_e4m3,
};
pub use process::{end_after_cpu_time, end_with_parent, fork, give_memory_back, one_arena};
pub use sampling::{History, SampleRow, Sampling};
