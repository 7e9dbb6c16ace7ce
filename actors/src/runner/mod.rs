//! The lanes' executors: they join the engine's plans and a model. No threads but the `Lane`'s workers and those that follow grammars, no actors, no
//! clock in any decision about tokens; GpuActor's lanes call them, and so do the tests that need no actors.

mod cuda;
mod draft;
mod drafting;
mod falls;
mod gone;
mod judging;
mod mask_threads;
mod masks;
mod passes;
mod sequences;
mod telling;
mod verify;

use std::time::Duration;

use faser_kernels::Isa;
use faser_topology::Partition;

pub(crate) use passes::Passes;

pub use cuda::{CudaDraftRunner, CudaRunnerSpec, CudaVerifyRunner};
pub use draft::{DraftRunner, DraftWork};
pub use verify::{VerifyRunner, VerifyWork};

/// What a runner is made for, beside its model.
#[derive(Clone, Debug)]
pub struct RunnerSpec {
    /// The cores of its lane, on each of the device's partitions.
    pub partitions: Vec<Partition>,
    /// The instruction set of its kernels.
    pub isa: Isa,
    /// KV blocks of its pool.
    pub blocks: usize,
    /// Tokens per block.
    pub block_size: usize,
    /// Rows of its largest pass; more work than that is done in several passes.
    pub max_rows: usize,
    /// Rows of its largest pass whose logits are wanted.
    pub max_logit_rows: usize,
    /// How long tokens wait to be drawn for what their grammars allow. Who is late then comes in a later pass, with the same tokens.
    pub mask_patience: Duration,
}

impl RunnerSpec {
    /// As much as nobody notices; what takes microseconds is there by then also on a machine whose cores are all at work.
    pub const MASK_PATIENCE: Duration = Duration::from_millis(3);
}
