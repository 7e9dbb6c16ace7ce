//! The lanes' executors: they join the engine's plans and a model on a device. No actors, no clock in any decision about tokens; GpuActor's lanes
//! call them, and so do the tests that need no actors. What a device does is in `backend.rs`; `cpu_backend.rs` and `cuda` do it.

mod backend;
mod copies;
mod cpu_backend;
mod cuda;
mod draft;
mod judging;
mod mask_threads;
mod masks;
mod sequences;
mod verify;

use std::time::Duration;

pub use backend::LaneBackend;
pub(crate) use backend::{Begins, Draw, PassOutputs, PassRows, Piece};
pub use copies::{CopyRunner, Gathering};
pub use cpu_backend::{CpuBackend, CpuFeatures, CpuLaneSpec};
pub use cuda::{CudaBackend, CudaFeatures, CudaLaneSpec};
pub use draft::{DraftRunner, DraftWork};
pub(crate) use masks::Masks;
pub(crate) use sequences::Sequences;
pub use verify::{VerifyRunner, VerifyWork};

/// How long tokens wait to be drawn for what their grammars allow: as much as nobody notices; what takes microseconds is there by then also on a
/// machine whose cores are all at work.
pub const MASK_PATIENCE: Duration = Duration::from_millis(3);
