//! What the passes of a lane take of a GPU's memory: one place for those who plan and those who allocate.

use faser_kernels::cuda::{
    ATTENTION_SPLITS, BLOCK_SIZE, DraftStepArgs, LogitStatsArgs, LogprobFound, QkvArgs,
};
use faser_kernels::ops::TOP_TOKENS;
use faser_kernels::{BlockId, Dtype};

use super::group::GroupBuffers;
use super::penalties::PenaltyTables;
use crate::{ModelConfig, Shard};

/// The bounds of a lane's passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaSizes {
    /// KV blocks of its pool, of 16 positions.
    pub blocks: usize,
    /// Rows of its largest pass.
    pub max_rows: usize,
    /// Rows of it that get tokens.
    pub max_logit_rows: usize,
    /// Sequences of a pass.
    pub max_chunks: usize,
    /// Tokens of the longest sequence.
    pub max_context: usize,
    /// Gates of a pass.
    pub max_gates: usize,
}

/// Rows times splits that attention has workspace for, unless a pass has more rows.
const SPLIT_ROWS: usize = 1024;
/// What cublasLt's workspace takes, and staging.
const FIXED_BYTES: u64 = 48 << 20;

impl CudaSizes {
    /// Rows that a pass of `rows` counts as where sizes are fixed in advance: powers of two, and half-way between.
    pub fn bucket(rows: usize) -> usize {
        let power = rows.next_power_of_two();
        let between = power / 4 * 3;
        if between >= rows && power >= 8 { between } else { power }
    }

    /// Rows up to which passes are padded to their bucket, so that they can be captured in graphs: those of decoding and verifying. Beyond,
    /// what a launch costs the host is little beside what it computes.
    pub(super) const GRAPH_ROWS: usize = 64;

    /// Chunks that the arrays of a pass of this bucket have places for.
    pub(super) fn chunk_places(&self, bucket: usize) -> usize {
        bucket.min(CudaSizes::bucket(self.max_chunks))
    }

    pub(super) fn rows(&self) -> usize {
        CudaSizes::bucket(self.max_rows)
    }

    pub(super) fn logit_rows(&self) -> usize {
        CudaSizes::bucket(self.max_logit_rows.max(1))
    }

    /// Rows times splits of attention's workspace.
    pub(super) fn split_rows(&self) -> usize {
        SPLIT_ROWS.max(self.max_rows)
    }

    /// Blocks of a table.
    pub(super) fn table_stride(&self) -> usize {
        self.max_context.div_ceil(BLOCK_SIZE).max(1)
    }

    /// The stride of block tables that stand together, and the tables: a power of two, which grows seldom.
    ///
    /// # Panics
    /// If one is longer than a sequence.
    pub(super) fn block_tables(&self, tables: &[&[BlockId]]) -> (usize, Vec<u32>) {
        let longest = tables.iter().map(|table| table.len()).max().unwrap_or(0).max(1);
        assert!(longest <= self.table_stride(), "a table of {longest} blocks");
        let stride = longest.next_power_of_two();
        let mut blocks = vec![0; tables.len() * stride];
        for (to, table) in blocks.chunks_exact_mut(stride).zip(tables) {
            to[..table.len()].copy_from_slice(table);
        }
        (stride, blocks)
    }

    pub(super) fn parts(config: &ModelConfig) -> usize {
        LogitStatsArgs::parts(config.vocab as u32) as usize
    }

    /// Bytes of one of keys and values, all layers.
    pub(super) fn kv_bytes(&self, config: &ModelConfig, dtype: Dtype) -> usize {
        let layer = QkvArgs::layer_elements(self.blocks, config.kv_heads, config.head_dim);
        config.layers.len() * layer * dtype.bytes()
    }

    /// Everything but weights and KV that a shard of a model takes, in bytes: what a planner leaves free. A little more than it takes.
    pub fn workspace_bytes(&self, whole: &ModelConfig, shard: Shard, dtype: Dtype) -> u64 {
        let config = &shard.config(whole);
        let (rows, logit_rows, f32) = (self.rows() as u64, self.logit_rows() as u64, size_of::<f32>() as u64);
        let held = dtype.bytes() as u64;
        let (hidden, q, kv) = (config.hidden as u64, config.q_width() as u64, config.kv_width() as u64);
        let (mlp, intermediate) = (config.mlp_width() as u64, config.intermediate as u64);
        let branch = if config.norms_after() { hidden } else { 0 };
        let row = f32 * (hidden + branch + q + 2 * kv + mlp) + held * (hidden + q + intermediate);
        let attention = self.split_rows() as u64 * config.heads as u64 * (config.head_dim as u64 + 2) * f32;
        // Logits twice: plain, and with penalties.
        let parts = CudaSizes::parts(whole) as u64;
        let logit_row = f32 * (hidden + 2 * whole.vocab as u64) + held * hidden + 32 * parts + 64;
        let rope = config.max_context as u64 * config.head_dim as u64 * f32;
        let (steps, drafted) = self.step_bytes();
        let staging =
            self.input_bytes() + self.output_bytes() + self.history_bytes() + self.mask_bytes(whole);
        let penalties = (self.max_chunks * PenaltyTables::bytes_each(whole)) as u64;
        let group = GroupBuffers::bytes(whole, shard, self);
        let staging = (staging + steps + drafted) as u64;
        rows * row + attention + logit_rows * logit_row + rope + staging + penalties + group + FIXED_BYTES
    }

    /// Small arrays of a pass: rows, chunks with their tables, samples, tests.
    pub(super) fn input_bytes(&self) -> usize {
        let rows = self.rows() * 84;
        let chunks = CudaSizes::bucket(self.max_chunks) * (288 + 4 * self.table_stride().next_power_of_two());
        let samples = self.logit_rows() * 128;
        rows + chunks + samples + (64 << 10)
    }

    /// What draft steps keep of each chunk: rows, state and table; and what they bring.
    pub(super) fn step_bytes(&self) -> (usize, usize) {
        let chunks = CudaSizes::bucket(self.max_chunks);
        let each = 512 + 4 * self.table_stride().next_power_of_two();
        (chunks * each + (4 << 10), chunks * (DraftStepArgs::STEPS * 4 * (2 + TOP_TOKENS) + 4) + (4 << 10))
    }

    /// What comes back: a few integers per sample and chunk, gaps.
    pub(super) fn output_bytes(&self) -> usize {
        let sample = 64 + size_of::<LogprobFound>() + 4 * self.max_gates;
        self.logit_rows() * sample + self.max_chunks * 48 + 16 * self.max_gates + (4 << 10)
    }

    /// A mask for each row that gets a token, and as many as one chunk may have that went before; and where those of each chunk are.
    pub(super) fn mask_bytes(&self, config: &ModelConfig) -> usize {
        let masks = self.logit_rows() + DraftStepArgs::STEPS + 1;
        4 * (masks * mask_words(config) + CudaSizes::bucket(self.max_chunks)) + 64
    }

    /// Tokens on their way into tables of counts, and biases into theirs.
    pub(super) fn history_bytes(&self) -> usize {
        2 * 4 * self.max_context + (256 << 10)
    }
}

/// Words of a mask of the vocabulary.
pub(super) fn mask_words(config: &ModelConfig) -> usize {
    config.vocab.div_ceil(32)
}

// A split is at least as long as a block of keys.
const _: () = assert!(ATTENTION_SPLITS > 0);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_close_above() {
        let found: Vec<usize> =
            [1, 2, 3, 5, 6, 7, 9, 12, 13, 17, 25, 33, 500, 513].map(CudaSizes::bucket).to_vec();
        assert_eq!(found, [1, 2, 4, 6, 6, 8, 12, 12, 16, 24, 32, 48, 512, 768]);
    }
}
