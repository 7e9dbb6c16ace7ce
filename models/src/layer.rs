//! One decoder layer on the CPU: attention branch, then MLP branch, each added to the residual stream.

use faser_kernels::ops::{self, AttentionShape, Norm, Write};
use faser_kernels::{KvCache, Lane, Matrix, RopeTable, Rows, Tensor, Vector, ViewMut};

use crate::block::first;
use crate::experts::{ExpertsBranch, Through};
use crate::scratch::HeadScratch;
use crate::{Experts, LayerSpec, ModelConfig, Scratch, Shard};

/// The weights of one layer, as a device holds them. What a family does not have is `None`.
pub(crate) struct Layer<M = Matrix, V = Vector> {
    pub(crate) attention: Branch<M, V>,
    pub(crate) q_norm: Option<V>,
    pub(crate) k_norm: Option<V>,
    pub(crate) sinks: Option<V>,
    /// Of the residual stream, where the token's embedding stands beside it.
    pub(crate) stream_norm: Option<V>,
    pub(crate) mlp: MlpBranch<M, V>,
}

/// The MLP branch.
pub(crate) enum MlpBranch<M = Matrix, V = Vector> {
    Dense(Branch<M, V>),
    Experts(ExpertsBranch<M, V>),
}

/// What both branches have: see [`crate::layer_spec`].
pub(crate) struct Branch<M = Matrix, V = Vector> {
    pub(crate) norm_before: Option<V>,
    /// The projections of its input, one behind the other along their outputs.
    pub(crate) inputs: M,
    pub(crate) inputs_bias: Option<V>,
    pub(crate) output: M,
    pub(crate) output_bias: Option<V>,
    pub(crate) norm_after: Option<V>,
}

impl<M, V> Layer<M, V> {
    /// Those that all rows go through: not the experts'.
    pub(crate) fn matrices_of_all(&self) -> Vec<&M> {
        let mut all = vec![&self.attention.inputs, &self.attention.output];
        match &self.mlp {
            MlpBranch::Dense(mlp) => all.extend([&mlp.inputs, &mlp.output]),
            MlpBranch::Experts(mlp) => {
                all.extend(mlp.shared.iter().flat_map(|of_all| [&of_all.inputs, &of_all.output]));
            }
        }
        all
    }

    /// All there is, with what each takes.
    pub(crate) fn bytes(&self, matrix: impl Fn(&M) -> u64, vector: impl Fn(&V) -> u64) -> u64 {
        let of_branch = |branch: &Branch<M, V>| {
            let Branch { norm_before, inputs, inputs_bias, output, output_bias, norm_after } = branch;
            let vectors = [norm_before, inputs_bias, output_bias, norm_after].into_iter().flatten();
            matrix(inputs) + matrix(output) + vectors.map(&vector).sum::<u64>()
        };
        let mlp = match &self.mlp {
            MlpBranch::Dense(mlp) => of_branch(mlp),
            MlpBranch::Experts(mlp) => {
                mlp.matrices().map(&matrix).sum::<u64>() + mlp.vectors().map(&vector).sum::<u64>()
            }
        };
        let heads = [&self.q_norm, &self.k_norm, &self.sinks, &self.stream_norm].into_iter().flatten();
        of_branch(&self.attention) + mlp + heads.map(&vector).sum::<u64>()
    }
}

impl Layer {
    /// Rows of the residual stream in, the same rows out, with this layer's contribution added; keys and values go to `kv`.
    pub(crate) fn forward(&self, at: &At<'_>, kv: &mut KvCache, scratch: &mut Scratch) {
        self.attend(at, kv, scratch);
        // Rows of the text have nothing but keys and values, where a head proposes a block.
        let queries = scratch.queries(at.rows.positions.len());
        if queries == 0 {
            return;
        }
        let at = &At { rows: first(at.rows, queries), ..*at };
        let Scratch { x, normed, attended, .. } = scratch;
        self.attention.close(at, attended, normed, x);
        match (&self.mlp, at.spec.mlp.kind.experts()) {
            (MlpBranch::Experts(mlp), Some(experts)) => mix(mlp, experts, at, scratch),
            (MlpBranch::Dense(mlp), None) => {
                mlp.activate(at, scratch);
                let Scratch { x, normed, activated, .. } = scratch;
                mlp.close(at, activated, normed, x);
            }
            _ => panic!("a layer of another spec"),
        }
    }

    /// The attention branch up to its output projection: `scratch.x` to `scratch.attended`.
    pub(crate) fn attend(&self, at: &At<'_>, kv: &mut KvCache, scratch: &mut Scratch) {
        let At { config, lane, rows, .. } = *at;
        let n = rows.positions.len();
        let (q, kv_width) = (config.q_width(), config.kv_width());
        let (queries, keys, values) = (0..q, q..q + kv_width, q + kv_width..q + 2 * kv_width);

        let Scratch { x, normed, qkv, attended, head, .. } = scratch;
        match (&self.stream_norm, head.as_mut()) {
            (Some(norm), Some(head)) => self.open_beside(norm, at, x, head, qkv),
            (None, Some(HeadScratch { block: Some(block), .. })) => {
                self.open_block(block.queries, at, x, normed, qkv);
            }
            _ => self.attention.open(at, x, qkv),
        }
        for (norm, columns) in [(&self.q_norm, queries.clone()), (&self.k_norm, keys.clone())] {
            if let Some(weight) = norm {
                ops::rms_norm_heads(lane, qkv.view_mut(n).columns(columns), weight, config.rms_eps);
            }
        }
        if let Some(rope) = at.rope {
            ops::rope(lane, qkv.view_mut(n).columns(0..q + kv_width), rows.positions, rope);
        }
        let (k, v) = (qkv.view(n).columns(keys), qkv.view(n).columns(values));
        ops::store_kv(lane, k, v, kv, at.index, rows);
        let spec = &at.spec.attention;
        let shape = AttentionShape {
            heads: config.heads,
            scale: spec.scale,
            soft_cap: spec.soft_cap,
            window: spec.window,
            first: spec.first,
            sinks: self.sinks.as_ref().map(Vector::as_slice),
        };
        let rows = match head.as_mut().and_then(|head| head.block.as_mut()) {
            Some(block) if block.queries == 0 => return,
            Some(block) => block.seeing(rows),
            None => rows,
        };
        let n = rows.positions.len();
        let (q, out) = (qkv.view(n).columns(queries), attended.view_mut(n));
        ops::attention(lane, q, kv, at.index, rows, shape, out);
    }

    /// The projections of the attention branch of a head that proposes a block: of the residual stream in its first rows, of the target's features,
    /// as they are, in the others.
    fn open_block(&self, queries: usize, at: &At<'_>, x: &Tensor, normed: &mut Tensor, out: &mut Tensor) {
        let n = at.rows.positions.len();
        let (from, eps, to) = (x.view(queries), at.config.rms_eps, normed.view_mut(queries));
        ops::rms_norm(at.lane, from, self.attention.norm_of_head(), eps, to, Write::Replace);
        (queries..n).for_each(|row| normed.row_mut(row).copy_from_slice(x.row(row)));
        let Branch { inputs, inputs_bias, .. } = &self.attention;
        let out = out.view_mut(n).columns(0..inputs.out_features());
        ops::matmul(at.lane, normed.view(n), inputs, inputs_bias.as_ref(), out, Write::Replace);
    }

    /// The projections of the attention branch, of the tokens' embeddings and the residual stream `x` beside them.
    fn open_beside(
        &self,
        norm: &Vector,
        at: &At<'_>,
        x: &mut Tensor,
        head: &mut HeadScratch,
        out: &mut Tensor,
    ) {
        let At { config, lane, .. } = *at;
        let (n, hidden, eps) = (at.rows.positions.len(), config.hidden, config.rms_eps);
        let HeadScratch { embedded, beside, .. } = head;
        let (embedding, stream) = (0..hidden, hidden..2 * hidden);
        let to = beside.view_mut(n).columns(embedding);
        ops::rms_norm(lane, embedded.view(n), self.attention.norm_of_head(), eps, to, Write::Replace);
        let to = beside.view_mut(n).columns(stream.clone());
        ops::rms_norm(lane, x.view(n), norm, eps, to, Write::Replace);
        if at.spec.attention.beside_embedding.is_some_and(|kind| kind.residual_normed) {
            (0..n).for_each(|row| x.row_mut(row).copy_from_slice(&beside.row(row)[stream.clone()]));
        }
        let Branch { inputs, inputs_bias, .. } = &self.attention;
        let out = out.view_mut(n).columns(0..inputs.out_features());
        ops::matmul(lane, beside.view(n), inputs, inputs_bias.as_ref(), out, Write::Replace);
    }
}

impl Branch {
    /// The MLP branch up to its down projection: `scratch.x` to `scratch.activated`.
    pub(crate) fn activate(&self, at: &At<'_>, scratch: &mut Scratch) {
        let n = at.rows.positions.len();
        let Scratch { x, mlp, activated, .. } = scratch;
        let norm = self.norm(at);
        let activation = at.spec.mlp.kind.activation().0;
        // They may be wide enough for layers that have more.
        let mlp = mlp.view_mut(n).columns(0..self.inputs.out_features());
        let activated = activated.view_mut(n).columns(0..self.output.in_features());
        let bias = self.inputs_bias.as_ref();
        ops::matmul_activated(at.lane, x.view(n), norm, &self.inputs, bias, mlp, (activation, activated));
    }

    /// Of what goes in.
    fn norm(&self, at: &At<'_>) -> Option<Norm<'_>> {
        self.norm_before.as_ref().map(|weight| Norm { weight, eps: at.config.rms_eps })
    }

    /// The same of a head, which has one.
    fn norm_of_head(&self) -> &Vector {
        self.norm_before.as_ref().expect("layers of heads begin with a norm")
    }

    /// The residual stream `x`, normalised if the branch begins so, to the branch's projections `out`.
    fn open(&self, at: &At<'_>, x: &Tensor, out: &mut Tensor) {
        let n = at.rows.positions.len();
        // It may be wide enough for layers that have more.
        let out = out.view_mut(n).columns(0..self.inputs.out_features());
        ops::matmul_normed(at.lane, x.view(n), self.norm(at), &self.inputs, self.inputs_bias.as_ref(), out);
    }

    /// Projects what the branch computed, `from`, back, and adds it to the residual stream `x`; `sum` is room for it where it has a norm of
    /// its own. Of a group each rank has a share: without a norm the first adds its own to the stream, and all shares are added up.
    fn close(&self, at: &At<'_>, from: &Tensor, sum: &mut Tensor, x: &mut Tensor) {
        let n = at.rows.positions.len();
        let project = |to: &mut Tensor, write| {
            // It may be wide enough for layers that have more.
            let (from, to) = (from.view(n).columns(0..self.output.in_features()), to.view_mut(n));
            ops::matmul(at.lane, from, &self.output, self.output_bias.as_ref(), to, write);
        };
        match &self.norm_after {
            None => {
                project(x, if at.shard.is_first() { Write::Add } else { Write::Replace });
                summed(at.lane, x.view_mut(n));
            }
            Some(norm) => {
                project(sum, Write::Replace);
                summed(at.lane, sum.view_mut(n));
                ops::rms_norm(at.lane, sum.view(n), norm, at.config.rms_eps, x.view_mut(n), Write::Add);
            }
        }
    }
}

/// Adds what the experts make of the residual stream to it. Of a group each rank has a share, as of any branch.
pub(crate) fn mix(branch: &ExpertsBranch, spec: &Experts, at: &At<'_>, scratch: &mut Scratch) {
    let (lane, rows, eps) = (at.lane, at.rows.positions.len(), at.config.rms_eps);
    let Scratch { x, normed, mlp, activated, experts: Some(room), .. } = scratch else {
        panic!("the scratch of a model without experts");
    };
    let write = if at.shard.is_first() { Write::Add } else { Write::Replace };
    let through = Through { lane, rows, eps, x: &mut *x, normed, mlp, activated, room };
    branch.forward(spec, through, write);
    summed(lane, x.view_mut(rows));
}

/// Where and for which rows a layer runs.
#[derive(Clone, Copy)]
pub(crate) struct At<'a> {
    /// The sizes of the shard.
    pub(crate) config: &'a ModelConfig,
    pub(crate) spec: &'a LayerSpec,
    pub(crate) shard: Shard,
    /// `None`: heads are not rotated.
    pub(crate) rope: Option<&'a RopeTable>,
    pub(crate) lane: &'a Lane,
    /// Which layer of the KV cache.
    pub(crate) index: usize,
    pub(crate) rows: Rows<'a>,
}

/// Adds up the ranks' shares; alone, they are the sum.
///
/// # Panics
/// If the group is lost: a pass that others have left cannot be finished, and its lane is of no use any more.
pub(crate) fn summed(lane: &Lane, x: ViewMut<'_>) {
    ops::all_reduce_of_stage(lane, x).unwrap_or_else(|error| panic!("{error}"));
}
