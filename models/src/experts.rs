//! A mixture of experts on the CPU, in place of an MLP.
//!
//! ```text
//! x ─┬─ norm ─┬─ router ─ the experts of each row, and their weights ─┐
//!    │        ├─ each expert, of the rows that go to it ──────────────┴─ weighed sum ─ + ─
//!    │        └─ shared expert, of all rows ── sigmoid of its gate ─────────────────── + ─
//!    └──────────────────────────────────────────────────────────────────────────────── + ─
//! ```
//! The router is held in f32, whatever the experts are held in: it decides by differences that rounding may turn, and takes little.

use faser_kernels::ops::{self, Norm, Routing, Write};
use faser_kernels::{Lane, Matrix, Tensor, Vector};

use crate::ModelConfig;
use crate::layer_spec::Experts;

/// The weights, as a device holds them.
pub(crate) struct ExpertsBranch<M = Matrix, V = Vector> {
    pub(crate) norm_before: V,
    /// The logits of the experts, and behind them the gate of the shared one.
    pub(crate) router: M,
    pub(crate) router_bias: Option<V>,
    pub(crate) each: Vec<GatedMlp<M, V>>,
    pub(crate) shared: Option<GatedMlp<M, V>>,
}

/// An MLP without a norm: gate and up behind one another, and down.
pub(crate) struct GatedMlp<M, V> {
    pub(crate) inputs: M,
    pub(crate) inputs_bias: Option<V>,
    pub(crate) output: M,
    pub(crate) output_bias: Option<V>,
}

impl<M, V> ExpertsBranch<M, V> {
    pub(crate) fn matrices(&self) -> impl Iterator<Item = &M> {
        let experts = self.each.iter().chain(&self.shared);
        std::iter::once(&self.router).chain(experts.flat_map(|expert| [&expert.inputs, &expert.output]))
    }

    pub(crate) fn vectors(&self) -> impl Iterator<Item = &V> {
        let experts = self.each.iter().chain(&self.shared);
        let biases = experts.flat_map(|expert| [&expert.inputs_bias, &expert.output_bias]);
        std::iter::once(&self.norm_before).chain([&self.router_bias].into_iter().chain(biases).flatten())
    }
}

/// The rows of a pass that go through, and room for them.
pub(crate) struct Through<'a> {
    pub(crate) lane: &'a Lane,
    pub(crate) rows: usize,
    /// Of the norm.
    pub(crate) eps: f32,
    /// The residual stream.
    pub(crate) x: &'a mut Tensor,
    pub(crate) normed: &'a mut Tensor,
    /// Of the shared expert: gate and up side by side, and activated.
    pub(crate) mlp: &'a mut Tensor,
    pub(crate) activated: &'a mut Tensor,
    pub(crate) room: &'a mut ExpertsScratch,
}

impl ExpertsBranch {
    /// Adds the branch to the residual stream, or puts it there in its place.
    pub(crate) fn forward(&self, spec: &Experts, through: Through<'_>, mut write: Write) {
        let Through { lane, rows: n, eps, x, normed, mlp, activated, room } = through;
        let (norm, width) = (Norm { weight: &self.norm_before, eps }, spec.width);
        ops::rms_norm(lane, x.view(n), norm.weight, norm.eps, normed.view_mut(n), Write::Replace);
        let normed = normed.view(n);
        ops::matmul(
            lane,
            normed,
            &self.router,
            self.router_bias.as_ref(),
            room.logits.view_mut(n),
            Write::Replace,
        );
        ops::route(lane, room.logits.view(n), spec.renormed, &mut room.routing);
        if let Some(GatedMlp { inputs, output, .. }) = &self.shared {
            let (both, width) = (inputs.out_features(), output.in_features());
            let (mlp, to) = (mlp.view_mut(n).columns(0..both), activated.view_mut(n).columns(0..width));
            ops::matmul_activated(lane, x.view(n), Some(norm), inputs, None, mlp, (spec.activation, to));
            let from = activated.view(n).columns(0..width);
            ops::matmul(lane, from, output, None, room.shared.view_mut(n), Write::Replace);
        }
        let ExpertsScratch { routing, projected, activated, products, .. } = room;
        for groups in routing.batches(products.capacity()) {
            let of_batch = groups.len();
            let both = projected.view_mut(of_batch).columns(0..2 * width);
            let to = activated.view_mut(of_batch).columns(0..width);
            let inputs = |expert: usize| {
                let GatedMlp { inputs, inputs_bias, .. } = &self.each[expert];
                (inputs, inputs_bias.as_ref())
            };
            ops::matmul_experts_activated(lane, normed, groups, &inputs, both, (spec.activation, to));
            let from = activated.view(of_batch).columns(0..width);
            let output = |expert: usize| {
                let GatedMlp { output, output_bias, .. } = &self.each[expert];
                (output, output_bias.as_ref())
            };
            ops::matmul_experts(lane, from, groups, &output, products.view_mut(of_batch));
            ops::sum_experts(lane, products.view(of_batch), groups, routing, x.view_mut(n), write);
            write = Write::Add;
        }
        if self.shared.is_some() {
            let gates = room.logits.view(n).columns(spec.count..spec.count + 1);
            ops::add_gated(lane, gates, room.shared.view(n), x.view_mut(n));
        }
    }
}

/// Room for the experts' activations. A row has as many as it has experts: they are computed in batches of experts, so that the room is that of
/// a dense model's rows. A sum is the same in however many batches.
pub(crate) struct ExpertsScratch {
    /// Of the router.
    logits: Tensor,
    routing: Routing,
    /// Rows of a batch: gate and up side by side, activated, and projected back.
    projected: Tensor,
    activated: Tensor,
    products: Tensor,
    /// What the shared expert makes of all rows.
    shared: Tensor,
}

impl ExpertsScratch {
    /// Rows of a batch, if no pass has more.
    const LEAST_BATCH: usize = 64;

    /// For passes of up to `max_rows` rows of a model that has experts, which are alike in all layers.
    pub(crate) fn of(config: &ModelConfig, max_rows: usize) -> Option<ExpertsScratch> {
        let spec = config.experts()?;
        let (batch, hidden) = (max_rows.max(Self::LEAST_BATCH), config.hidden);
        Some(ExpertsScratch {
            logits: Tensor::zeros(max_rows, spec.router_width()),
            routing: Routing::new(max_rows, spec.count, spec.active),
            projected: Tensor::zeros(batch, 2 * spec.width),
            activated: Tensor::zeros(batch, spec.width),
            products: Tensor::zeros(batch, hidden),
            shared: Tensor::zeros(if spec.shared.is_some() { max_rows } else { 0 }, hidden),
        })
    }

    /// Bytes that [`ExpertsScratch::of`] will allocate, for planning.
    pub(crate) fn bytes(config: &ModelConfig, max_rows: usize) -> u64 {
        let Some(spec) = config.experts() else { return 0 };
        let shared = if spec.shared.is_some() { config.hidden } else { 0 };
        let numbers = max_rows * (spec.router_width() + shared)
            + max_rows.max(Self::LEAST_BATCH) * (3 * spec.width + config.hidden);
        (numbers * size_of::<f32>()) as u64 + Routing::bytes(max_rows, spec.count, spec.active)
    }
}
