//! A model and its forward pass.

use std::sync::Arc;

use faser_kernels::{Dtype, KvCache, KvShape, Lane, Matrix, RopeSpec, RopeTable, Rows, Table, Vector};

use crate::layer::Layer;
use crate::{ModelConfig, ModelError, RopeConfig, Scratch, Shard};

/// Weights and shape of one model, or of a rank's shard of it; never changed after loading. Share it in an `Arc`.
pub struct Model {
    config: ModelConfig,
    shard: Shard,
    /// The sizes of the shard.
    own: ModelConfig,
    dtype: Dtype,
    pub(crate) parts: Parts,
    /// Of each layer.
    pub(crate) ropes: Vec<Arc<RopeTable>>,
}

/// The weights, as a device holds them. They are counted, so that a draft model can be the first layers of its target without a copy.
pub(crate) struct Parts<T = Table, M = Matrix, V = Vector> {
    pub(crate) embedding: Arc<T>,
    pub(crate) layers: Vec<Arc<Layer<M, V>>>,
    pub(crate) norm: Arc<V>,
    pub(crate) head: Arc<M>,
}

impl<T, M, V> Parts<T, M, V> {
    /// The same weights with the first `layers` layers alone.
    pub(crate) fn first_layers(&self, layers: usize) -> Parts<T, M, V> {
        Parts {
            embedding: self.embedding.clone(),
            layers: self.layers.iter().take(layers).cloned().collect(),
            norm: self.norm.clone(),
            head: self.head.clone(),
        }
    }
}

/// One pass over the model: row `r` is `tokens[r]` at the position that `rows` gives it.
#[derive(Clone, Copy, Debug)]
pub struct Pass<'a> {
    /// One token per row; each below the model's `vocab`.
    pub tokens: &'a [u32],
    /// Positions and block tables of the rows; positions are below the model's `max_context`.
    pub rows: Rows<'a>,
    /// Rows whose logits are wanted: the LM head runs on those alone.
    pub logits: &'a [u32],
}

impl Model {
    /// `parts` are those of the shard.
    pub(crate) fn new(
        config: ModelConfig,
        shard: Shard,
        dtype: Dtype,
        parts: Parts,
    ) -> Result<Model, ModelError> {
        let ropes = rope_tables(&config, Ok)?;
        let own = shard.config(&config);
        Ok(Model { config, shard, own, dtype, parts, ropes })
    }

    /// The model of the first `layers` layers, which are shared.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn first_layers(&self, layers: usize) -> Model {
        Model {
            config: self.config.first_layers(layers),
            shard: self.shard,
            own: self.own.first_layers(layers),
            dtype: self.dtype,
            parts: self.parts.first_layers(layers),
            ropes: self.ropes[..layers].to_vec(),
        }
    }

    /// The shape of the whole model.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// What of the whole this is. The lanes that run a shard are those of its rank in the group.
    pub fn shard(&self) -> Shard {
        self.shard
    }

    /// The shape of this shard: sizes of its activations, its KV memory and its logits.
    pub fn own(&self) -> &ModelConfig {
        &self.own
    }

    /// In what the matrices are held.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// In what keys and values are to be held: as the matrices, but bf16 beside int8.
    pub fn kv_dtype(&self) -> Dtype {
        self.dtype.beside()
    }

    /// Bytes of all weights; weights shared with another model are counted in both.
    pub fn weight_bytes(&self) -> u64 {
        let Parts { embedding, layers, norm, head } = &self.parts;
        let layers: u64 = layers.iter().map(|layer| layer.bytes(Matrix::bytes, Vector::bytes)).sum();
        embedding.bytes() + layers + norm.bytes() + head.bytes()
    }

    /// Bytes of keys and values per token, all layers together.
    pub fn kv_bytes_per_token(&self) -> u64 {
        self.own.kv_bytes_per_token(self.kv_dtype())
    }

    /// The shape of this model's KV memory.
    pub fn kv_shape(&self, blocks: usize, block_size: usize) -> KvShape {
        let ModelConfig { kv_heads, head_dim, .. } = self.own;
        KvShape { layers: self.own.layers.len(), blocks, block_size, kv_heads, head_dim }
    }

    /// Room for passes of this model: see [`Scratch::new`].
    pub fn scratch(&self, max_rows: usize, max_logit_rows: usize) -> Scratch {
        Scratch::new(&self.own, max_rows, max_logit_rows)
    }

    /// Runs the rows of `pass` through all layers: their keys and values are in `kv` afterwards, the logits of
    /// the wanted rows in [`Scratch::logits`]. Keys and values of all earlier positions must be there. What a
    /// row computes depends on its token, its position and the positions before it alone: not on the other rows
    /// of the pass, nor on the lane's number of workers. Nothing is allocated.
    ///
    /// It is [`Model::begin`], all [`Model::layers`], [`Model::finish`].
    ///
    /// # Panics
    /// If the pass does not fit `scratch` or `kv`, a token is not below `vocab`, or the lane is not that of the shard's rank: a programmer's
    /// error. If the group is lost: see [`Model::begin`].
    pub fn forward(&self, lane: &Lane, kv: &mut KvCache, scratch: &mut Scratch, pass: &Pass<'_>) {
        self.begin(lane, scratch, pass.tokens);
        self.layers(lane, 0..self.parts.layers.len(), kv, scratch, pass.rows);
        self.finish(lane, scratch, pass.tokens.len(), pass.logits);
    }
}

/// Cosines and sines of all positions, as `held` on a device, for each layer: those that turn alike have one table.
pub(crate) fn rope_tables<T>(
    config: &ModelConfig,
    mut held: impl FnMut(RopeTable) -> Result<T, ModelError>,
) -> Result<Vec<Arc<T>>, ModelError> {
    let mut tables: Vec<Arc<T>> = Vec::with_capacity(config.layers.len());
    for (index, layer) in config.layers.iter().enumerate() {
        let table = match config.turns_like(index) {
            Some(same) => tables[same].clone(),
            None => Arc::new(held(rope_table(config, layer.attention.rope)?)?),
        };
        tables.push(table);
    }
    Ok(tables)
}

/// Those of one rotary embedding.
pub(crate) fn rope_table(config: &ModelConfig, rope: RopeConfig) -> Result<RopeTable, ModelError> {
    let RopeConfig { theta, scaling } = rope;
    let (head_dim, max_positions) = (config.head_dim, config.max_context);
    Ok(RopeTable::new(&RopeSpec { head_dim, theta, scaling, max_positions })?)
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model")
            .field("config", &self.config)
            .field("shard", &self.shard)
            .field("dtype", &self.dtype)
            .finish_non_exhaustive()
    }
}
