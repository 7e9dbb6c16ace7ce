//! One sequence on one lane: what the tests and the acceptance example need of a lane's executor.
#![allow(dead_code, reason = "a module of a test and examples, each uses a part")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use faser_kernels::{BlockId, Dtype, HostCollective, Isa, KvCache, Lane, Partition, Rows};
use faser_models::{Model, ModelError, Pass, Scratch, Shard, WeightSource};

const BLOCK_SIZE: usize = 16;

/// A shard of a model of tests/golden.
pub(crate) fn load(case: &str, shard: Shard, dtype: Dtype) -> Result<Model, ModelError> {
    Model::load(&WeightSource::folder(&golden(case))?, shard, dtype, &mut |_| {})
}

/// A checkpoint of tests/golden.
pub(crate) fn golden(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(case)
}

/// Those that have logits: a family has some of its own.
pub(crate) fn golden_cases() -> Vec<String> {
    let entries = std::fs::read_dir(golden("")).expect("a folder").map(|entry| entry.expect("an entry"));
    let cases = entries.filter(|entry| entry.path().join("expected.safetensors").exists());
    let mut names: Vec<String> =
        cases.map(|entry| entry.file_name().into_string().expect("a name")).collect();
    names.sort();
    assert!(names.len() >= 14, "{names:?}");
    names
}

/// A sequence with its KV memory.
pub(crate) struct Session<'m> {
    model: &'m Model,
    lane: Lane,
    kv: KvCache,
    scratch: Scratch,
    table: Vec<BlockId>,
}

impl<'m> Session<'m> {
    /// Room for `max_context` positions; passes of up to `max_rows` rows.
    pub(crate) fn new(model: &'m Model, isa: Isa, max_context: usize, max_rows: usize) -> Session<'m> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let blocks = max_context.div_ceil(BLOCK_SIZE);
        Session {
            model,
            lane: Lane::new(&Partition { cores: (0..cores).collect() }, isa).expect("a lane"),
            kv: KvCache::new(model.kv_shape(blocks, BLOCK_SIZE), model.kv_dtype()).expect("memory"),
            scratch: model.scratch(max_rows, max_rows),
            // Backwards, so that a block is not where its position is.
            table: (0..blocks as BlockId).rev().collect(),
        }
    }

    /// The session of one rank, whose shard the model is.
    pub(crate) fn join(&mut self, [group, stage]: [Arc<dyn HostCollective>; 2]) {
        self.lane.join(group);
        self.lane.join_stage(stage);
    }

    /// Runs `tokens` at the positions from `start` on as one pass; the logits of every row.
    pub(crate) fn feed(&mut self, start: usize, tokens: &[u32]) -> Vec<Vec<f32>> {
        let wanted: Vec<u32> = (0..tokens.len() as u32).collect();
        self.feed_for(start, tokens, &wanted)
    }

    /// The same with the logits of the rows `wanted` alone.
    pub(crate) fn feed_for(&mut self, start: usize, tokens: &[u32], wanted: &[u32]) -> Vec<Vec<f32>> {
        let positions: Vec<u32> = (start as u32..).take(tokens.len()).collect();
        let rows = Rows { positions: &positions, table_of: &vec![0; tokens.len()], tables: &[&self.table] };
        let pass = Pass { tokens, rows, logits: wanted };
        self.model.forward(&self.lane, &mut self.kv, &mut self.scratch, &pass);
        (0..wanted.len()).map(|row| self.scratch.logits().row(row).to_vec()).collect()
    }
}
