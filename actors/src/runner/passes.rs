//! One lane's model with its KV memory and buffers, fed row by row.

use std::sync::Arc;

use faser_engine::{BlockId, PartitionId};
use faser_kernels::{KvCache, Lane, Rows, View};
use faser_models::{Model, Pass, Scratch};

use super::RunnerSpec;
use crate::error::ServiceError;

/// Rows of the pass that is being put together, and all a pass needs.
pub(crate) struct Passes {
    /// One lane per partition, and the one in use.
    lanes: Vec<Lane>,
    current: usize,
    pinned: bool,
    model: Arc<Model>,
    kv: KvCache,
    scratch: Scratch,
    max_rows: usize,
    max_logit_rows: usize,
    tokens: Vec<u32>,
    positions: Vec<u32>,
    table_of: Vec<u32>,
    logits: Vec<u32>,
}

impl Passes {
    pub(crate) fn new(model: Arc<Model>, spec: &RunnerSpec) -> Result<Passes, ServiceError> {
        let lanes = spec
            .partitions
            .iter()
            .map(|partition| Lane::new(partition, spec.isa))
            .collect::<Result<Vec<_>, _>>()?;
        if lanes.is_empty() {
            return Err(ServiceError::Contradiction(
                "a runner needs the cores of at least one partition".to_owned(),
            ));
        }
        let kv = KvCache::new(model.kv_shape(spec.blocks, spec.block_size), model.kv_dtype())?;
        let scratch = Scratch::new(model.config(), spec.max_rows, spec.max_logit_rows);
        Ok(Passes {
            lanes,
            current: 0,
            pinned: false,
            model,
            kv,
            scratch,
            max_rows: spec.max_rows,
            max_logit_rows: spec.max_logit_rows,
            tokens: Vec::with_capacity(spec.max_rows),
            positions: Vec::with_capacity(spec.max_rows),
            table_of: Vec::with_capacity(spec.max_rows),
            logits: Vec::with_capacity(spec.max_logit_rows),
        })
    }

    /// Pins the calling thread to the first core of the lane in use, and from now on to that of every lane that is used.
    /// False if the system does not allow it.
    pub(crate) fn pin_current_thread(&mut self) -> bool {
        self.pinned = self.lane().pin_current_thread();
        self.pinned
    }

    /// Runs what follows on this partition.
    pub(crate) fn work_on(&mut self, partition: PartitionId) {
        if partition.0 == self.current {
            return;
        }
        assert!(
            partition.0 < self.lanes.len(),
            "a plan for {partition:?}, but there are {}",
            self.lanes.len()
        );
        self.current = partition.0;
        if self.pinned {
            // It worked before; if it does not now, the lane is slower and nothing else.
            let _ = self.lane().pin_current_thread();
        }
    }

    fn lane(&self) -> &Lane {
        &self.lanes[self.current]
    }

    /// Adds a row; `table` is an index into the tables that `forward` will be given.
    pub(crate) fn push(&mut self, token: u32, position: usize, table: usize, logits_wanted: bool) {
        if logits_wanted {
            self.logits.push(index(self.tokens.len()));
        }
        self.tokens.push(token);
        self.positions.push(index(position));
        self.table_of.push(index(table));
    }

    /// Whether another row fits; if not, the pass has to run first.
    pub(crate) fn fits(&self, logits_wanted: bool) -> bool {
        self.tokens.len() < self.max_rows && (!logits_wanted || self.logits.len() < self.max_logit_rows)
    }

    /// Runs the pass and starts an empty one. The rows' KV is stored; the logits that were wanted come back in the order
    /// of their rows. An empty pass does nothing.
    pub(crate) fn forward(&mut self, tables: &[&[BlockId]]) -> (&Lane, View<'_>) {
        if !self.tokens.is_empty() {
            let rows = Rows { positions: &self.positions, table_of: &self.table_of, tables };
            let pass = Pass { tokens: &self.tokens, rows, logits: &self.logits };
            self.model.forward(&self.lanes[self.current], &mut self.kv, &mut self.scratch, &pass);
        }
        let wanted = self.logits.len();
        self.tokens.clear();
        self.positions.clear();
        self.table_of.clear();
        self.logits.clear();
        (&self.lanes[self.current], self.scratch.logits().view(wanted))
    }
}

/// Positions, rows and tables are far below 2^32: a context or a batch that large has no memory to stand in.
fn index(value: usize) -> u32 {
    u32::try_from(value).unwrap_or_else(|_| panic!("{value} does not fit a 32-bit index"))
}
