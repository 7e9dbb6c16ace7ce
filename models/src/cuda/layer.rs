//! A layer on a GPU: attention branch, then MLP branch, each added to the residual stream by its last product; and the pieces of it.

use std::ops::Range;

use faser_kernels::cuda::{
    AttentionArgs, CudaError, DeviceBuffer, Element, GatherRowsArgs, MatmulArgs, Product, Ptr, QkvArgs,
    RmsNormArgs, SiluMulArgs,
};

use super::graphs::Work;
use super::model::ptr;
use super::{CudaModel, CudaPasses};

impl CudaPasses {
    /// Runs the pass through these layers.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn layers(&mut self, range: Range<usize>) -> Result<(), CudaError> {
        let work = Work::Layers { from: range.start, to: range.end };
        self.captured(work, |passes| passes.run_layers(range))
    }

    pub(super) fn run_layers(&mut self, range: Range<usize>) -> Result<(), CudaError> {
        let model = self.model.clone();
        for index in range {
            self.layer(&model, index)?;
        }
        Ok(())
    }

    fn layer(&mut self, model: &CudaModel, index: usize) -> Result<(), CudaError> {
        let (config, layer, pass) = (&model.own, &model.layers[index], self.pass.rows);
        let (element, bucket, sms) = (model.element, pass.bucket as u32, self.lane.sms());
        let (hidden, q, kv) = (config.hidden, config.q_width(), config.kv_width());
        let (heads, kv_heads, head_dim) =
            (config.heads as u32, config.kv_heads as u32, config.head_dim as u32);
        let kv_at = index * QkvArgs::layer_elements(self.sizes.blocks, config.kv_heads, config.head_dim);
        let (keys, values) = (self.keys.at(kv_at * element.bytes()), self.values.at(kv_at * element.bytes()));
        let stride = pass.table_stride;

        self.norm(self.x.ptr(), layer.attention_norm.ptr(), self.normed.ptr(), (pass.counts, bucket))?;
        let into =
            |x: &DeviceBuffer, w: &DeviceBuffer, bias, out: &DeviceBuffer, shape: (usize, usize), add| {
                Product {
                    element,
                    x: x.ptr(),
                    w: w.ptr(),
                    bias,
                    out: out.ptr(),
                    rows: pass.bucket,
                    inputs: shape.0,
                    outputs: shape.1,
                    add,
                }
            };
        let product = into(&self.normed, &layer.qkv, Ptr::NULL, &self.qkv, (hidden, q + 2 * kv), false);
        self.multiply(product, pass.counts)?;
        let args = QkvArgs {
            qkv: self.qkv.ptr(),
            bias: ptr(&layer.qkv_bias),
            q_norm: ptr(&layer.q_norm),
            k_norm: ptr(&layer.k_norm),
            cos_sin: model.rope.ptr(),
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
        let args = AttentionArgs {
            q: self.qkv.ptr(),
            keys,
            values,
            tables: pass.tables,
            positions: pass.positions,
            chunks: pass.chunks,
            tiles: pass.tiles,
            out: self.attended.ptr(),
            sums: self.attention_sums.ptr(),
            stats: self.attention_stats.ptr(),
            q_stride: (q + 2 * kv) as u32,
            table_stride: stride,
            heads,
            kv_heads,
            head_dim,
            window: config.windows.get(index).copied().flatten().unwrap_or(0) as u32,
            split: pass.split,
            splits: pass.splits,
            scale: (config.head_dim as f32).sqrt().recip(),
        };
        self.lane.launch(&args.launch(element, pass.tile_queries, pass.tile_count as u32))?;
        if let Some(merge) = args.merge(element, pass.counts, bucket, sms) {
            self.lane.launch(&merge)?;
        }
        // A rank has a share of each branch's sum: the first adds its own to the stream, and all shares are added up.
        let first = model.shard().is_first();
        let bias = ptr(&layer.o_bias);
        self.multiply(into(&self.attended, &layer.o, bias, &self.x, (q, hidden), first), pass.counts)?;
        self.add_up()?;

        self.norm(self.x.ptr(), layer.mlp_norm.ptr(), self.normed.ptr(), (pass.counts, bucket))?;
        let inner = config.intermediate;
        let bias = ptr(&layer.gate_up_bias);
        self.multiply(
            into(&self.normed, &layer.gate_up, bias, &self.gate_up, (hidden, 2 * inner), false),
            pass.counts,
        )?;
        let args = SiluMulArgs {
            gate_up: self.gate_up.ptr(),
            out: self.activated.ptr(),
            rows: pass.counts,
            cols: inner as u32,
        };
        self.lane.launch(&args.launch(element, bucket, sms))?;
        let bias = ptr(&layer.down_bias);
        self.multiply(
            into(&self.activated, &layer.down, bias, &self.x, (inner, hidden), first),
            pass.counts,
        )?;
        self.add_up()
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
        self.norm(self.gathered.ptr(), self.model.norm.ptr(), self.final_normed.ptr(), rows)
    }

    fn norm(&mut self, x: Ptr, weight: Ptr, out: Ptr, rows: (Ptr, u32)) -> Result<(), CudaError> {
        let config = &self.model.config;
        let (cols, eps, sms) = (config.hidden as u32, config.rms_eps, self.lane.sms());
        let args = RmsNormArgs { x, partial: Ptr::NULL, weight, out, rows: rows.0, cols, eps };
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
