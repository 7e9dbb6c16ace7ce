//! Passes to be timed on cores of this host.

use std::sync::Arc;

use faser_engine::BlockId;
use faser_kernels::Collective;
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
    pub(super) fn new(
        model: Arc<Model>,
        spec: &RunnerSpec,
        way: Option<&Arc<dyn Collective>>,
    ) -> Result<CpuPasses, ServiceError> {
        let mut passes = Passes::new(model, spec)?;
        way.into_iter().for_each(|way| passes.join(way));
        let _pinned = passes.pin_current_thread();
        Ok(CpuPasses { passes, blocks: (0..spec.blocks as BlockId).collect() })
    }

    /// Whether it is this rank that measures.
    pub(super) fn leads(&self) -> bool {
        self.passes.group().rank() == 0
    }

    /// The other ranks need not follow any more.
    pub(super) fn end(&self) {
        self.told(0, 0);
    }

    /// Does what the first rank does until it ends.
    pub(super) fn follow(&mut self) {
        loop {
            let (rows, context) = self.told(0, 0);
            if rows == 0 {
                return;
            }
            self.run(rows, context);
        }
    }

    /// Rows and context of the first rank's pass.
    fn told(&self, rows: usize, context: usize) -> (usize, usize) {
        // Exact: both are far below 2^24.
        let mut words = [rows as f32, context as f32];
        self.passes.add_up(&mut words);
        (words[0] as usize, words[1] as usize)
    }

    /// Rows without context have a block of their own, rows with context share their blocks: nothing is read that another row writes, but
    /// for its own position.
    fn run(&mut self, rows: usize, context: usize) {
        let tables: Vec<&[BlockId]> = (0..rows)
            .map(|row| if context == 0 { &self.blocks[row..=row] } else { &self.blocks[..] })
            .collect();
        for row in 0..rows {
            self.passes.push(0, context, row, row < SAMPLED_ROWS);
        }
        self.passes.forward(&tables);
    }
}

impl Timed for CpuPasses {
    const FIRST_IS_COLD: bool = false;

    fn pass(&mut self, rows: usize, context: usize) -> Result<(), ServiceError> {
        self.told(rows, context);
        self.run(rows, context);
        Ok(())
    }
}
