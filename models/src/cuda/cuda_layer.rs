//! A layer on a GPU: attention branch, then MLP branch, each added to the residual stream by its last product; and the pieces of it.

use std::ops::Range;

use faser_kernels::cuda::{
    ActivateArgs, AttentionArgs, CudaError, DeviceBuffer, Element, GatherRowsArgs, MatmulArgs, Product, Ptr,
    QkvArgs, RmsNormArgs,
};

use super::cuda_model::{CudaBranch, ptr};
use super::pass::Work;
use super::staged::RowArrays;
use super::{CudaModel, CudaPasses};
use crate::layer::MlpBranch;
use crate::layer_spec::{LayerSpec, QkNorm};

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
        for index in range {
            self.layer(&model, index)?;
            self.enter(index + 1)?;
        }
        Ok(())
    }

    fn layer(&mut self, model: &CudaModel, index: usize) -> Result<(), CudaError> {
        let (config, layer, pass) = (&model.own, &model.parts.layers[index], self.pass.rows);
        let LayerSpec { attention, mlp } = &config.layers[index];
        let (element, bucket, sms) = (model.element, pass.bucket as u32, self.lane.sms());
        let (q, kv) = (config.q_width(), config.kv_width());
        let (heads, kv_heads, head_dim) =
            (config.heads as u32, config.kv_heads as u32, config.head_dim as u32);
        let kv_at = index * QkvArgs::layer_elements(self.sizes.blocks, config.kv_heads, config.head_dim);
        let (keys, values) = (self.keys.at(kv_at * element.bytes()), self.values.at(kv_at * element.bytes()));
        let stride = pass.table_stride;

        // The bias of q, k and v is added where their heads are normalised and rotated, but before a norm of all heads.
        let bias = ptr(&layer.attention.inputs_bias);
        let whole = attention.qk_norm == Some(QkNorm::Whole);
        let (first, second) = if whole { (bias, Ptr::NULL) } else { (Ptr::NULL, bias) };
        match attention.beside_embedding {
            None => self.open(&layer.attention, first, self.qkv.ptr(), q + 2 * kv, pass),
            Some(kind) => self.open_beside(index, kind, self.qkv.ptr(), q + 2 * kv),
        }?;
        let mut norms = [&layer.q_norm, &layer.k_norm].map(ptr);
        if whole {
            self.norm_whole(norms, [q, kv], pass)?;
            norms = [Ptr::NULL; 2];
        }
        let args = QkvArgs {
            qkv: self.qkv.ptr(),
            bias: second,
            q_norm: norms[0],
            k_norm: norms[1],
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
        };
        self.lane.launch(&args.launch(element, bucket, sms))?;
        let pass = pass.through();
        if pass.bucket == 0 {
            return Ok(());
        }
        let bucket = pass.bucket as u32;
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
        self.lane.launch(&args.launch(element, pass.tile_queries, stages, pass.tile_count as u32))?;
        if let Some(merge) = args.merge(element, pass.counts, bucket, sms) {
            self.lane.launch(&merge)?;
        }
        self.close(&layer.attention, self.attended.ptr(), q)?;

        let (inner, (activation, gated)) = (config.intermediate, mlp.kind.activation());
        let MlpBranch::Dense(branch) = &layer.mlp else { panic!("a model that does not fit was refused") };
        let bias = ptr(&branch.inputs_bias);
        self.open(branch, bias, self.mlp.ptr(), if gated { 2 * inner } else { inner }, pass)?;
        let args = ActivateArgs {
            x: self.mlp.ptr(),
            out: self.activated.ptr(),
            rows: pass.counts,
            cols: inner as u32,
            activation: activation as u32,
            gated: u32::from(gated),
        };
        self.lane.launch(&args.launch(element, bucket, sms))?;
        self.close(branch, self.activated.ptr(), inner)
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

    /// The residual stream, normalised if the branch begins so, to so many `outputs` of its projections. Rows of a text behind those of blocks are not normalised.
    fn open(
        &mut self,
        branch: &CudaBranch,
        bias: Ptr,
        out: Ptr,
        outputs: usize,
        rows: RowArrays,
    ) -> Result<(), CudaError> {
        let (through, hidden) = (rows.through(), self.model.config.hidden);
        if through.bucket > 0 {
            let counts = (through.counts, through.bucket as u32);
            self.norm(self.x.ptr(), ptr(&branch.norm_before), self.normed.ptr(), counts)?;
        }
        let (x, w, element) = (self.normed.ptr(), branch.inputs.ptr(), self.model.element);
        let product =
            Product { element, x, w, bias, out, rows: rows.bucket, inputs: hidden, outputs, add: false };
        self.multiply(product, rows.counts)
    }

    /// Projects what a branch computed back, and adds it to the residual stream. A rank has a share of the sum: without a norm the first adds
    /// its own to the stream, and all shares are added up.
    fn close(&mut self, branch: &CudaBranch, x: Ptr, inputs: usize) -> Result<(), CudaError> {
        let (rows, element) = (self.pass.rows.through(), self.model.element);
        let outputs = self.model.config.hidden;
        let (w, bias) = (branch.output.ptr(), ptr(&branch.output_bias));
        let (out, add) = match &branch.norm_after {
            None => (self.x.ptr(), self.model.shard().is_first()),
            Some(_) => (self.branch.ptr(), false),
        };
        self.multiply(
            Product { element, x, w, bias, out, rows: rows.bucket, inputs, outputs, add },
            rows.counts,
        )?;
        self.add_up(out)?;
        let Some(weight) = branch.norm_after.as_ref().map(DeviceBuffer::ptr) else { return Ok(()) };
        let (cols, eps) = (outputs as u32, self.model.config.rms_eps);
        let args = RmsNormArgs {
            x: out,
            weight,
            out: self.x.ptr(),
            rows: rows.counts,
            cols,
            x_stride: cols,
            out_stride: cols,
            eps,
        };
        self.lane.launch(&args.add(rows.bucket as u32, self.lane.sms()))
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
        self.norm(self.gathered.ptr(), self.model.parts.norm.ptr(), self.final_normed.ptr(), rows)
    }

    /// Without a weight it is rounded to the element alone.
    fn norm(&mut self, x: Ptr, weight: Ptr, out: Ptr, rows: (Ptr, u32)) -> Result<(), CudaError> {
        let config = &self.model.config;
        let (cols, eps, sms) = (config.hidden as u32, config.rms_eps, self.lane.sms());
        let args = RmsNormArgs { x, weight, out, rows: rows.0, cols, x_stride: cols, out_stride: cols, eps };
        self.lane.launch(&args.launch(self.model.element, rows.1, sms))
    }

    /// By our own kernel where there are few rows, else by cublasLt; `rows` is where their number is.
    pub(super) fn multiply(&mut self, product: Product, rows: Ptr) -> Result<(), CudaError> {
        let Product { element, x, w, bias, out, inputs, outputs, add, .. } = product;
        let few = product.rows as u32 <= MatmulArgs::MOST_ROWS && inputs.is_multiple_of(32);
        if element == Element::F32 || !few {
            return self.lane.multiply(&product);
        }
        let (inputs, outputs, add) = (inputs as u32, outputs as u32, u32::from(add));
        let args = MatmulArgs { x, w, bias, out, rows, inputs, outputs, add };
        self.lane.launch(&args.launch(element, product.rows as u32, self.lane.sms()))
    }
}
