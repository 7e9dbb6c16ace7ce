//! CUDA: the kernels' sources, how each is launched and compiled, and the GPUs they run on; nothing here needs a GPU or CUDA's
//! libraries to build, and a binary with it starts without them.
//!
//! The sources stand in kernels/cuda, whose README.md says what is held in which type. Each op has a struct of arguments, the
//! same bytes on both sides, and a method that makes a [`Launch`] of it: kernel, grid, block, shared memory. Whoever
//! launches it ([`CudaLane`], or the tests on fibers) passes the address of [`Launch::args`] as the kernel's one parameter.

mod attention_launches;
mod compile;
mod cubins;
mod device;
mod expert_launches;
mod group_launches;
mod kv_element;
mod launch;
mod libraries;
mod matmul_launches;
mod row_launches;
mod sampling_launches;
mod sources;
mod speculation_launches;

pub use attention_launches::*;
pub use compile::{Compiler, Cubin, KernelUsage, NvrtcError, usages};
pub use cubins::{ARCHS, are_prebuilt, libraries, prebuilt_name};
pub use device::{
    Arena, CudaError, CudaLane, DeviceBuffer, Event, Flags, Gpu, GpuInfo, Graph, GroupTerms, NcclId,
    NcclRankSlot, Place, Plain, Product, Share, SharePair, SmallSums, Upload, nccl_group, nccl_group_of,
    nccl_version, prepare_environment, probe, probe_one,
};
pub use expert_launches::*;
pub use group_launches::*;
pub use kv_element::KvElement;
pub use launch::*;
pub use libraries::{LibraryError, LoadedLibrary, nccl_library};
pub use matmul_launches::*;
pub use row_launches::*;
pub use sampling_launches::*;
pub use sources::{File, HEADERS, Kernel, file, files, kernels};
pub use speculation_launches::*;
