//! A layer on a GPU: attention branch, then MLP branch, each added to the residual stream by its last product; and the pieces of it.
//!
//! What follows a product row by row, the product's own kernel does where it is ours (few rows in bf16), and a kernel of its own elsewhere, with the same bits.

use std::ops::Range;

use faser_kernels::cuda::{
    ActivateArgs, AttentionArgs, CudaError, DequantiseArgs, DeviceBuffer, Element, GatherRowsArgs,
    MatmulActivateArgs, MatmulArgs, MatmulHeadsArgs, MatmulNormArgs, Product, Ptr, QkvArgs, RmsNormArgs,
    form_of,
};

use super::cuda_model::{CudaBranch, ptr};
use super::pass::Work;
use super::rows_packer::CudaMatrix;
use super::staged::RowArrays;
use super::{CudaModel, CudaPasses};
use crate::layer::MlpBranch;
use crate::layer_spec::{LayerSpec, QkNorm};

/// What is done with the rows of a product.
#[derive(Clone, Copy)]
pub(super) enum Then {
    /// Nothing.
    Nothing,
    /// Its outputs are queries, keys and values.
    Heads(QkvArgs),
    /// They are gate and up, or what goes through the activation alone.
    Activate(ActivateArgs),
    /// The next branch begins with their norm.
    Norm(RmsNormArgs),
}

impl CudaPasses {
    /// Runs the pass through these layers.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn layers(&mut self, range: Range<usize>) -> Result<(), CudaError> {
        let work = Work::Layers { from: range.start, to: range.end };
        self.reach(range.end);
        self.captured(work, |passes| passes.run_layers(range.clone()))
    }

    pub(super) fn run_layers(&mut self, range: Range<usize>) -> Result<(), CudaError> {
        let model = self.model.clone();
        let mut normed = false;
        for index in range.clone() {
            // Rows may leave behind the last layer, and what is noted of the stream takes the place of its norm.
            let next = model.parts.layers.get(index + 1).map(|layer| ptr(&layer.attention.norm_before));
            let follows = index + 1 < range.end
                && self.features.is_none()
                && model.own.layers[index + 1].attention.beside_embedding.is_none();
            normed = self.layer(&model, index, normed, next.filter(|_| follows))?;
            self.enter(index + 1)?;
        }
        Ok(())
    }

    /// `normed`: the norm that it begins with is there already. `next` is the weight of the norm that what follows begins with, if that may be done
    /// here: whether it was.
    fn layer(
        &mut self,
        model: &CudaModel,
        index: usize,
        normed: bool,
        next: Option<Ptr>,
    ) -> Result<bool, CudaError> {
        let (config, layer, pass) = (&model.own, &model.parts.layers[index], self.pass.rows);
        let LayerSpec { attention, mlp } = &config.layers[index];
        let (element, bucket, sms) = (model.element, pass.bucket as u32, self.lane.sms());
        let (q, kv) = (config.q_width(), config.kv_width());
        let (heads, kv_heads, head_dim) =
            (config.heads as u32, config.kv_heads as u32, config.head_dim as u32);
        let kv_at = index * self.sizes.blocks * model.kv.block_bytes(config.kv_heads, config.head_dim);
        let (keys, values) = (self.keys.at(kv_at), self.values.at(kv_at));
        let stride = pass.table_stride;

        // The bias of q, k and v is added where their heads are normalised and rotated, but before a norm of all heads.
        let bias = ptr(&layer.attention.inputs_bias);
        let whole = attention.qk_norm == Some(QkNorm::Whole);
        let (first, second) = if whole { (bias, Ptr::NULL) } else { (Ptr::NULL, bias) };
        let norms = [&layer.q_norm, &layer.k_norm].map(ptr);
        let of_each = if whole { [Ptr::NULL; 2] } else { norms };
        let args = QkvArgs {
            qkv: self.qkv.ptr(),
            bias: second,
            q_norm: of_each[0],
            k_norm: of_each[1],
            cos_sin: model.ropes[index].as_ref().map_or(Ptr::NULL, |rope| rope.ptr()),
            positions: pass.positions,
            chunk_of: pass.chunk_of,
            tables: pass.tables,
            keys,
            values,
            rows: pass.counts,
            heads,
            kv_heads,
            head_dim,
            table_stride: stride,
            eps: config.rms_eps,
            fp8: QkvArgs::fp8(model.kv),
        };
        let (out, outputs) = (self.qkv.ptr(), q + 2 * kv);
        // Kernels stand in between where all heads are normed together, and behind a product of two streams.
        let together = !whole && attention.beside_embedding.is_none();
        match attention.beside_embedding {
            None => {
                let then = if together { Then::Heads(args) } else { Then::Nothing };
                self.open(&layer.attention, (first, out, outputs), pass, normed, then)?;
            }
            Some(kind) => self.open_beside(index, kind, out, outputs)?,
        }
        if whole {
            self.norm_whole(norms, [q, kv], pass)?;
        }
        if !together {
            self.lane.launch(&args.launch(element, bucket, sms))?;
        }
        let pass = pass.through();
        if pass.bucket == 0 {
            return Ok(false);
        }
        let args = AttentionArgs {
            q: self.qkv.ptr(),
            keys,
            values,
            tables: pass.tables,
            positions: pass.sees,
            chunks: pass.chunks,
            tiles: pass.tiles,
            out: self.attended.ptr(),
            sums: self.attention_sums.ptr(),
            stats: self.attention_stats.ptr(),
            sinks: ptr(&layer.sinks),
            tickets: self.tickets.ptr(),
            q_stride: (q + 2 * kv) as u32,
            table_stride: stride,
            heads,
            kv_heads,
            head_dim,
            window: attention.window.unwrap_or(0) as u32,
            first: attention.first as u32,
            split: pass.split,
            splits: pass.splits,
            scale: attention.scale,
            soft_cap: attention.soft_cap.unwrap_or(0.0),
        };
        let stages = self.model.attention_stages();
        self.lane.launch(&args.launch(
            (element, model.kv),
            pass.tile_queries,
            stages,
            pass.tile_count as u32,
        ))?;
        let norm = match &layer.mlp {
            MlpBranch::Dense(branch) => ptr(&branch.norm_before),
            MlpBranch::Experts(branch) => branch.norm_before.ptr(),
        };
        let normed = self.close(&layer.attention, self.attended.ptr(), q, Some(norm))?;
        let branch = match (&layer.mlp, mlp.kind.experts()) {
            (MlpBranch::Dense(branch), None) => branch,
            (MlpBranch::Experts(branch), Some(experts)) => {
                return self.mix(branch, experts, pass, normed, next);
            }
            _ => panic!("a layer of another spec"),
        };

        let (inner, (activation, gated)) = (config.intermediate, mlp.kind.activation());
        let args = ActivateArgs {
            x: self.mlp.ptr(),
            out: self.activated.ptr(),
            rows: pass.counts,
            cols: inner as u32,
            activation: activation as u32,
            gated: u32::from(gated),
        };
        let outputs = if gated { 2 * inner } else { inner };
        let what = (ptr(&branch.inputs_bias), self.mlp.ptr(), outputs);
        self.open(branch, what, pass, normed, Then::Activate(args))?;
        self.close(branch, self.activated.ptr(), inner, next)
    }

    /// Queries and keys, so wide, each normalised over all heads, where they are.
    fn norm_whole(
        &mut self,
        weights: [Ptr; 2],
        [q, kv]: [usize; 2],
        rows: RowArrays,
    ) -> Result<(), CudaError> {
        for (weight, first, cols) in [(weights[0], 0, q), (weights[1], q, kv)] {
            let x = self.qkv.at(first * size_of::<f32>());
            let (stride, eps) = ((q + 2 * kv) as u32, self.model.config.rms_eps);
            let args = RmsNormArgs {
                x,
                weight,
                out: x,
                rows: rows.counts,
                cols: cols as u32,
                x_stride: stride,
                out_stride: stride,
                eps,
            };
            self.lane.launch(&args.launch(Element::F32, rows.bucket as u32, self.lane.sms()))?;
        }
        Ok(())
    }

    /// The residual stream, normalised if the branch begins so and it is not yet, to the outputs of its projections: their bias, where they go, how many there are. Rows
    /// of a text behind those of blocks are not normalised.
    fn open(
        &mut self,
        branch: &CudaBranch,
        (bias, out, outputs): (Ptr, Ptr, usize),
        rows: RowArrays,
        normed: bool,
        then: Then,
    ) -> Result<(), CudaError> {
        let (through, hidden) = (rows.through(), self.model.config.hidden);
        if through.bucket > 0 && !normed {
            let args =
                self.norm_of(self.x.ptr(), ptr(&branch.norm_before), self.normed.ptr(), through.counts);
            self.lane.launch(&args.launch(self.model.element, through.bucket as u32, self.lane.sms()))?;
        }
        let product = self.product(&branch.inputs, self.normed.ptr(), bias, out, [hidden, outputs]);
        self.multiply_then(Product { rows: rows.bucket, ..product }, rows.counts, then)
    }

    /// Projects what a branch computed back, and adds it to the residual stream. A rank has a share of the sum: without a norm the first adds
    /// its own to the stream, and all shares are added up. Where nothing stands in between, the norm that `next` is the weight of is done: whether it was.
    fn close(
        &mut self,
        branch: &CudaBranch,
        x: Ptr,
        inputs: usize,
        next: Option<Ptr>,
    ) -> Result<bool, CudaError> {
        let rows = self.pass.rows.through();
        let outputs = self.model.config.hidden;
        let (out, add) = match &branch.norm_after {
            None => (self.x.ptr(), self.model.shard().is_first()),
            Some(_) => (self.branch.ptr(), false),
        };
        let product = self.product(&branch.output, x, ptr(&branch.output_bias), out, [inputs, outputs]);
        let product = Product { rows: rows.bucket, add, ..product };
        if let Some(next) = next.filter(|_| branch.norm_after.is_none() && !self.is_split()) {
            let norm = self.norm_of(out, next, self.normed.ptr(), rows.counts);
            self.multiply_then(product, rows.counts, Then::Norm(norm))?;
            return Ok(true);
        }
        self.multiply(product, rows.counts)?;
        self.add_up(out)?;
        let Some(weight) = branch.norm_after.as_ref().map(DeviceBuffer::ptr) else { return Ok(false) };
        let args = self.norm_of(out, weight, self.x.ptr(), rows.counts);
        self.lane.launch(&args.add(rows.bucket as u32, self.lane.sms()))?;
        Ok(false)
    }

    /// The final norm of some rows; `rows` is where their number is, and their bucket.
    pub(super) fn final_norm(
        &mut self,
        indices: Ptr,
        stride: u32,
        rows: (Ptr, u32),
    ) -> Result<(), CudaError> {
        let (cols, sms) = (self.model.config.hidden as u32, self.lane.sms());
        let out = self.gathered.ptr();
        let args = GatherRowsArgs { x: self.x.ptr(), indices, out, rows: rows.0, cols, stride };
        self.lane.launch(&args.launch(rows.1, sms))?;
        let weight = self.model.parts.norm.ptr();
        let args = self.norm_of(self.gathered.ptr(), weight, self.final_normed.ptr(), rows.0);
        self.lane.launch(&args.launch(self.model.element, rows.1, sms))
    }

    /// Of rows as wide as the residual stream. Without a weight they are rounded to the element alone.
    pub(super) fn norm_of(&self, x: Ptr, weight: Ptr, out: Ptr, rows: Ptr) -> RmsNormArgs {
        let config = &self.model.config;
        let cols = config.hidden as u32;
        RmsNormArgs { x, weight, out, rows, cols, x_stride: cols, out_stride: cols, eps: config.rms_eps }
    }

    /// A product of no rows yet with a matrix of so many inputs and outputs, which replaces what `out` holds.
    pub(super) fn product(
        &self,
        matrix: &CudaMatrix,
        x: Ptr,
        bias: Ptr,
        out: Ptr,
        [inputs, outputs]: [usize; 2],
    ) -> Product {
        let (element, w, records) = (self.model.element, matrix.ptr(), matrix.form());
        Product { element, x, w, bias, out, rows: 0, inputs, outputs, add: false, records }
    }

    /// A product, and what is done with its rows: by our own kernel together, where there are few.
    pub(super) fn multiply_then(&mut self, product: Product, rows: Ptr, then: Then) -> Result<(), CudaError> {
        let (most, sms, element) = (product.rows as u32, self.lane.sms(), product.element);
        let tickets = self.tickets.ptr();
        let fits = |own: &MatmulArgs| element == Element::Bf16 && MatmulArgs::fits(most, own.inputs);
        let together = self.own_kernel(&product, rows).filter(fits);
        match (together, then) {
            (Some(product), Then::Heads(heads)) if MatmulHeadsArgs::fits(heads.head_dim) => {
                return self.lane.launch(&MatmulHeadsArgs { product, heads, tickets }.launch(most, sms));
            }
            (Some(product), Then::Activate(ActivateArgs { gated: 1, out, activation, .. })) => {
                let product = MatmulArgs { out, ..product };
                return self.lane.launch(&MatmulActivateArgs { product, activation }.launch(most, sms));
            }
            (Some(product), Then::Norm(norm)) if most <= MatmulNormArgs::MOST_ROWS => {
                return self.lane.launch(&MatmulNormArgs { product, norm, tickets }.launch(most, sms));
            }
            _ => self.multiply(product, rows)?,
        }
        match then {
            Then::Nothing => Ok(()),
            Then::Heads(args) => self.lane.launch(&args.launch(element, most, sms)),
            Then::Activate(args) => self.lane.launch(&args.launch(element, most, sms)),
            Then::Norm(args) => self.lane.launch(&args.launch(element, most, sms)),
        }
    }

    /// By our own kernel where there are few rows, else by cublasLt, of weights in records once they are widened; `rows` is where their number is.
    pub(super) fn multiply(&mut self, product: Product, rows: Ptr) -> Result<(), CudaError> {
        let sms = self.lane.sms();
        match (self.own_kernel(&product, rows), &self.widened) {
            (Some(own), _) => {
                let (element, rows) = (product.element, product.rows as u32);
                let launch = if self.sizes.deterministic {
                    own.launch(element, rows, sms)
                } else {
                    // Whatever part of the SMs a lane has: no number is to depend on that.
                    let sms =
                        if MatmulArgs::fits(rows, own.inputs) { sms } else { self.model.gpu().info().sms };
                    own.launch_of_any_bits(element, rows, sms, self.room_for_splits(&product))
                };
                self.lane.launch(&launch)
            }
            (None, Some(widened)) if product.records.is_some() => {
                let Product { w, inputs, outputs, records: form, .. } = product;
                let (out, records, form) = (widened.ptr(), w, form_of(form));
                let (inputs, outputs) = (inputs as u32, outputs as u32);
                self.lane.launch(&DequantiseArgs { records, out, inputs, outputs, form }.launch(sms))?;
                self.lane.multiply(&Product { w: out, records: None, ..product })
            }
            _ => self.lane.multiply(&product),
        }
    }

    /// Splits of a product that attention's workspace has room for, which attention has not begun to use, or is done with.
    fn room_for_splits(&self, product: &Product) -> u32 {
        let numbers = self.sizes.split_rows() * self.model.own.heads * self.model.config.head_dim;
        (numbers / (product.rows * product.outputs).max(1)).min(MatmulArgs::SPLITS as usize) as u32
    }

    /// Our own kernel's arguments, for few rows in bf16; none elsewhere. Of deterministic passes for all: its bits are of a row alone.
    fn own_kernel(&self, product: &Product, rows: Ptr) -> Option<MatmulArgs> {
        let Product { element, x, w, bias, out, inputs, outputs, add, records, .. } = *product;
        let (inputs, outputs, add, form) = (inputs as u32, outputs as u32, u32::from(add), form_of(records));
        let own = match records {
            _ if self.sizes.deterministic => true,
            None => element == Element::Bf16 && MatmulArgs::fits(product.rows as u32, inputs),
            Some(_) => product.rows <= MatmulArgs::MOST_ROWS_OF_RECORDS as usize,
        };
        let least = if self.sizes.deterministic { MatmulArgs::SPLITS } else { 2 };
        let has_room = self.room_for_splits(product) >= least;
        let parts = if has_room { self.attention_sums.ptr() } else { Ptr::NULL };
        let tickets = self.tickets.ptr();
        own.then_some(MatmulArgs { x, w, bias, out, rows, inputs, outputs, add, form, parts, tickets })
    }
}
