//! Runs a calibration batch through the layers as they are made, to find the scale of each branch.

use faser_kernels::ops::{self, Write};
use faser_kernels::{
    BlockId, Dtype, Isa, KvCache, KvShape, Lane, Make, Matrix, Partition, RopeTable, Rows, Tensor, View,
};

use super::normal::Normal;
use crate::layer::{At, Layer, MlpBranch, mix};
use crate::model::rope_table;
use crate::{LayerSpec, ModelConfig, ModelError, Scratch, Shard};

const BRANCH_RMS: f32 = 0.7;
const SEQUENCES: usize = 2;
const LENGTH: usize = 64;
const BLOCK_SIZE: usize = 16;
const BLOCKS: usize = LENGTH / BLOCK_SIZE;

/// A batch of random texts, somewhere between two layers. Each branch is added at full scale (epsilon 1), so
/// that models that differ in epsilon alone have the same perturbation at different sizes.
pub(super) struct Calibration {
    lane: Lane,
    /// The same in all layers.
    rope: Option<RopeTable>,
    /// Of one layer: no layer is run twice.
    kv: KvCache,
    scratch: Scratch,
    positions: Vec<u32>,
    table_of: Vec<u32>,
    tables: Vec<Vec<BlockId>>,
}

impl Calibration {
    pub(super) fn new(
        config: &ModelConfig,
        dtype: Dtype,
        seed: u64,
        embedding: &Make<'_>,
    ) -> Result<Calibration, ModelError> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let length = LENGTH.min(config.max_context);
        let mut scratch = Scratch::new(config, SEQUENCES * length, 0);
        let tokens = Normal::new(seed, "calibration");
        for row in 0..SEQUENCES * length {
            let token = tokens.below(row, config.vocab);
            embedding(token * config.hidden, scratch.x.row_mut(row));
        }
        let ModelConfig { kv_heads, head_dim, .. } = *config;
        let shape =
            KvShape { layers: 1, blocks: SEQUENCES * BLOCKS, block_size: BLOCK_SIZE, kv_heads, head_dim };
        Ok(Calibration {
            lane: Lane::new(&Partition { cores: (0..cores).collect() }, Isa::auto()?)?,
            rope: {
                let config = ModelConfig { max_context: length, ..config.clone() };
                let rope = config.layers[0].attention.rope.as_ref();
                rope.map(|rope| rope_table(&config, rope)).transpose()?
            },
            kv: KvCache::new(shape, dtype.beside())?,
            scratch,
            positions: (0..SEQUENCES).flat_map(|_| 0..length as u32).collect(),
            table_of: (0..SEQUENCES as u32)
                .flat_map(|sequence| std::iter::repeat_n(sequence, length))
                .collect(),
            tables: (0..SEQUENCES)
                .map(|s| (s * BLOCKS..(s + 1) * BLOCKS).map(|b| b as BlockId).collect())
                .collect(),
        })
    }

    /// By what the attention's output projection must be scaled; adds the scaled branch to the batch.
    pub(super) fn attention_gain(&mut self, config: &ModelConfig, spec: &LayerSpec, layer: &Layer) -> f32 {
        let tables: Vec<&[BlockId]> = self.tables.iter().map(Vec::as_slice).collect();
        let rows = Rows { positions: &self.positions, table_of: &self.table_of, tables: &tables };
        let at = At {
            config,
            spec,
            shard: Shard::WHOLE,
            rope: self.rope.as_ref(),
            lane: &self.lane,
            index: 0,
            rows,
        };
        layer.attend(&at, &mut self.kv, &mut self.scratch);
        let Scratch { attended, normed, x, .. } = &mut self.scratch;
        add_scaled(&self.lane, attended.view(self.positions.len()), &layer.attention.output, normed, x)
    }

    /// By what the MLP's must be scaled; adds the scaled branch to the batch.
    pub(super) fn mlp_gain(&mut self, config: &ModelConfig, spec: &LayerSpec, layer: &Layer) -> f32 {
        let rows = Rows { positions: &self.positions, table_of: &self.table_of, tables: &[] };
        let rope = self.rope.as_ref();
        let at = At { config, spec, shard: Shard::WHOLE, rope, lane: &self.lane, index: 0, rows };
        let n = self.positions.len();
        match &layer.mlp {
            MlpBranch::Dense(mlp) => {
                mlp.activate(&at, &mut self.scratch);
                let Scratch { activated, normed, x, .. } = &mut self.scratch;
                add_scaled(&self.lane, activated.view(n), &mlp.output, normed, x)
            }
            MlpBranch::Experts(mlp) => {
                let Some(experts) = spec.mlp.kind.experts() else { panic!("a layer of another spec") };
                let mut branch = Tensor::zeros(n, config.hidden);
                (0..n).for_each(|row| branch.row_mut(row).copy_from_slice(self.scratch.x.row(row)));
                mix(mlp, experts, &at, &mut self.scratch);
                for row in 0..n {
                    for (branch, x) in branch.row_mut(row).iter_mut().zip(self.scratch.x.row_mut(row)) {
                        (*branch, *x) = (*x - *branch, *branch);
                    }
                }
                add_with_gain(&branch, n, &mut self.scratch.x)
            }
        }
    }
}

/// `x += gain * (input . w)` with the gain that gives the addend RMS [`BRANCH_RMS`]; returns it.
fn add_scaled(lane: &Lane, input: View<'_>, w: &Matrix, branch: &mut Tensor, x: &mut Tensor) -> f32 {
    let n = input.rows();
    ops::matmul(lane, input, w, None, branch.view_mut(n), Write::Replace);
    add_with_gain(branch, n, x)
}

/// The same of what a branch gave.
fn add_with_gain(branch: &Tensor, n: usize, x: &mut Tensor) -> f32 {
    let squares = (0..n).flat_map(|row| branch.row(row)).map(|v| f64::from(*v).powi(2)).sum::<f64>();
    let rms = (squares / (n * branch.cols()) as f64).sqrt();
    let gain = BRANCH_RMS / (rms as f32).max(1e-9);
    for row in 0..n {
        for (x, branch) in x.row_mut(row).iter_mut().zip(branch.row(row)) {
            *x += gain * branch;
        }
    }
    gain
}
