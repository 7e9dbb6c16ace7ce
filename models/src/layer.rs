//! One decoder layer, the same for all families: attention branch, then MLP branch, each added to the residual
//! stream.

use faser_kernels::ops::{self, AttentionShape, Write};
use faser_kernels::{KvCache, Lane, Matrix, RopeTable, Rows, Vector};

use crate::segments::summed;
use crate::{ModelConfig, Scratch, Shard};

/// The weights of one layer, as a device holds them. What a family does not have is `None`.
pub(crate) struct Layer<M = Matrix, V = Vector> {
    pub(crate) attention_norm: V,
    /// Queries, keys and values in one matrix.
    pub(crate) qkv: M,
    pub(crate) qkv_bias: Option<V>,
    pub(crate) q_norm: Option<V>,
    pub(crate) k_norm: Option<V>,
    pub(crate) o: M,
    pub(crate) o_bias: Option<V>,
    pub(crate) mlp_norm: V,
    /// Gate and up projection in one matrix.
    pub(crate) gate_up: M,
    pub(crate) gate_up_bias: Option<V>,
    pub(crate) down: M,
    pub(crate) down_bias: Option<V>,
}

impl Layer {
    pub(crate) fn bytes(&self) -> u64 {
        let optional =
            [&self.qkv_bias, &self.q_norm, &self.k_norm, &self.o_bias, &self.gate_up_bias, &self.down_bias];
        let vectors =
            [&self.attention_norm, &self.mlp_norm].into_iter().chain(optional.into_iter().flatten());
        let matrices = [&self.qkv, &self.o, &self.gate_up, &self.down];
        vectors.map(Vector::bytes).sum::<u64>() + matrices.into_iter().map(Matrix::bytes).sum::<u64>()
    }

    /// Rows of the residual stream in, the same rows out, with this layer's contribution added; keys and values
    /// go to `kv`. A rank has a share of each branch's sum: the first adds its own to the stream, and all shares are added up.
    pub(crate) fn forward(&self, at: &At<'_>, kv: &mut KvCache, scratch: &mut Scratch) {
        let n = at.rows.positions.len();
        let write = if at.shard.is_first() { Write::Add } else { Write::Replace };
        self.attend(at, kv, scratch);
        ops::matmul(
            at.lane,
            scratch.attended.view(n),
            &self.o,
            self.o_bias.as_ref(),
            scratch.x.view_mut(n),
            write,
        );
        summed(at.lane, scratch.x.view_mut(n));
        self.activate(at, scratch);
        ops::matmul(
            at.lane,
            scratch.activated.view(n),
            &self.down,
            self.down_bias.as_ref(),
            scratch.x.view_mut(n),
            write,
        );
        summed(at.lane, scratch.x.view_mut(n));
    }

    /// The attention branch up to its output projection: `scratch.x` to `scratch.attended`.
    pub(crate) fn attend(&self, at: &At<'_>, kv: &mut KvCache, scratch: &mut Scratch) {
        let At { config, lane, rows, .. } = *at;
        let n = rows.positions.len();
        let (q, kv_width) = (config.q_width(), config.kv_width());
        let (queries, keys, values) = (0..q, q..q + kv_width, q + kv_width..q + 2 * kv_width);

        ops::rms_norm(
            lane,
            scratch.x.view(n),
            &self.attention_norm,
            config.rms_eps,
            scratch.normed.view_mut(n),
        );
        let (normed, qkv) = (scratch.normed.view(n), scratch.qkv.view_mut(n));
        ops::matmul(lane, normed, &self.qkv, self.qkv_bias.as_ref(), qkv, Write::Replace);
        if let Some(weight) = &self.q_norm {
            ops::rms_norm_heads(
                lane,
                scratch.qkv.view_mut(n).columns(queries.clone()),
                weight,
                config.rms_eps,
            );
        }
        if let Some(weight) = &self.k_norm {
            ops::rms_norm_heads(lane, scratch.qkv.view_mut(n).columns(keys.clone()), weight, config.rms_eps);
        }
        ops::rope(lane, scratch.qkv.view_mut(n).columns(0..q + kv_width), rows.positions, at.rope);
        let qkv = scratch.qkv.view(n);
        ops::store_kv(lane, qkv.columns(keys), qkv.columns(values), kv, at.index, rows);
        let shape = AttentionShape {
            heads: config.heads,
            scale: (config.head_dim as f32).sqrt().recip(),
            window: config.windows.get(at.index).copied().flatten(),
        };
        ops::attention(lane, qkv.columns(queries), kv, at.index, rows, shape, scratch.attended.view_mut(n));
    }

    /// The MLP branch up to its down projection: `scratch.x` to `scratch.activated`.
    pub(crate) fn activate(&self, at: &At<'_>, scratch: &mut Scratch) {
        let n = at.rows.positions.len();
        ops::rms_norm(
            at.lane,
            scratch.x.view(n),
            &self.mlp_norm,
            at.config.rms_eps,
            scratch.normed.view_mut(n),
        );
        let (normed, gate_up) = (scratch.normed.view(n), scratch.gate_up.view_mut(n));
        ops::matmul(at.lane, normed, &self.gate_up, self.gate_up_bias.as_ref(), gate_up, Write::Replace);
        ops::silu_mul(at.lane, scratch.gate_up.view(n), scratch.activated.view_mut(n));
    }
}

/// Where and for which rows a layer runs.
#[derive(Clone, Copy)]
pub(crate) struct At<'a> {
    /// The sizes of the shard.
    pub(crate) config: &'a ModelConfig,
    pub(crate) shard: Shard,
    pub(crate) rope: &'a RopeTable,
    pub(crate) lane: &'a Lane,
    /// Which layer of the KV cache.
    pub(crate) index: usize,
    pub(crate) rows: Rows<'a>,
}
