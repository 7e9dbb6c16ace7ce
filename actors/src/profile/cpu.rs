//! Passes to be timed on cores of this host.

use std::sync::Arc;

use faser_engine::BlockId;
use faser_models::Model;

use super::{SAMPLED_ROWS, Timed};
use crate::error::ServiceError;
use crate::runner::{Passes, RunnerSpec};

pub(super) struct CpuPasses {
    passes: Passes,
    blocks: Vec<BlockId>,
}

impl CpuPasses {
    /// Passes of one lane, whose cores are the only partition of `spec`; the calling thread is pinned to the first.
    pub(super) fn new(model: Arc<Model>, spec: &RunnerSpec) -> Result<CpuPasses, ServiceError> {
        let mut passes = Passes::new(model, spec)?;
        let _pinned = passes.pin_current_thread();
        Ok(CpuPasses { passes, blocks: (0..spec.blocks as BlockId).collect() })
    }
}

impl Timed for CpuPasses {
    const FIRST_IS_COLD: bool = false;

    /// Rows without context have a block of their own, rows with context share their blocks: nothing is read that another row writes, but
    /// for its own position.
    fn pass(&mut self, rows: usize, context: usize) -> Result<(), ServiceError> {
        let tables: Vec<&[BlockId]> = (0..rows)
            .map(|row| if context == 0 { &self.blocks[row..=row] } else { &self.blocks[..] })
            .collect();
        for row in 0..rows {
            self.passes.push(0, context, row, row < SAMPLED_ROWS);
        }
        self.passes.forward(&tables);
        Ok(())
    }
}
