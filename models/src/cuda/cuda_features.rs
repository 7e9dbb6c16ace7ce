//! Heads on hidden states on a GPU: what the target's passes leave for them, and what theirs have more than those of a model. As on the CPU
//! (`features.rs`), but that all of it stays on the device: pages are read by launches behind those that wrote them.
//!
//! ```text
//! target:  x enters a layer ── streams side by side ── (norms) ── fc ── page of the row's position
//! head:    page of the position before, or what the chunk's last row passed on ── x; the token's embedding beside it
//! ```

use std::sync::Arc;

use faser_kernels::cuda::{
    BLOCK_SIZE, CompactRowsArgs, CudaError, DeviceBuffer, Element, FeaturesArgs, GatherRowsArgs, PassOnArgs,
    Product, Ptr, RmsNormArgs, SpreadLogitsArgs,
};

use super::along::Samples;
use super::cuda_model::ptr;
use super::feature_buffers::FeatureWriter;
use super::{CudaFeaturePages, CudaModel, CudaPasses};
use crate::HeadSpec;
use crate::layer_spec::BesideEmbedding;

impl CudaPasses {
    /// From now on these passes, of its target, leave in `pages` what this head reads of them.
    ///
    /// # Errors
    /// The GPU has not enough memory.
    ///
    /// # Panics
    /// If this is no head, or one of a target of another width; if the pages are of another head.
    pub fn attach(&mut self, head: &CudaModel, pages: Arc<CudaFeaturePages>) -> Result<(), CudaError> {
        let fusion = head.parts.of_head.as_ref().map(|of_head| of_head.fusion.clone());
        let fusion = fusion.expect("features are for a head");
        let spec = head.config.head.as_ref();
        let wide = spec.map_or(0, HeadSpec::streams_width);
        assert_eq!(wide, fusion.streams.len() * self.model.config.hidden, "streams of another model");
        assert_eq!((pages.width, pages.element), (head.config.hidden, head.element), "pages of another head");
        let (rows, gpu) = (self.sizes.rows(), self.model.gpu.clone());
        let buffer = |each: usize| DeviceBuffer::zeroed(&gpu, rows * each, "streams for a head");
        let f32 = size_of::<f32>();
        self.features = Some(FeatureWriter {
            streams: buffer(wide * f32)?,
            normed: buffer(wide * pages.element.bytes())?,
            fused: buffer(pages.width * f32)?,
            reached: 0,
            pages,
            fusion,
        });
        Ok(())
    }

    /// From now on rows of these passes, of a head, begin with what is in `pages`.
    ///
    /// # Panics
    /// If the model is no head.
    pub fn read_features(&mut self, pages: Arc<CudaFeaturePages>) {
        let head = self.head.as_mut().expect("a head reads features");
        head.pages = Some(pages);
    }

    /// The residual stream enters a layer. With the last stream that is named the features of the pass's rows are there.
    pub(super) fn enter(&mut self, layer: usize) -> Result<(), CudaError> {
        let Some(writer) = &self.features else { return Ok(()) };
        let (rows, sms, hidden) = (self.pass.rows, self.lane.sms(), self.model.config.hidden);
        let fusion = &writer.fusion;
        for place in (0..fusion.streams.len()).filter(|place| fusion.streams[*place] == layer) {
            let args = RmsNormArgs {
                x: self.x.ptr(),
                weight: Ptr::NULL,
                out: writer.streams.at(place * hidden * size_of::<f32>()),
                rows: rows.counts,
                cols: hidden as u32,
                x_stride: hidden as u32,
                out_stride: (fusion.streams.len() * hidden) as u32,
                eps: 0.0,
            };
            self.lane.launch(&args.launch(Element::F32, rows.bucket as u32, sms))?;
        }
        if fusion.streams.last() == Some(&layer) { self.fuse() } else { Ok(()) }
    }

    fn fuse(&mut self) -> Result<(), CudaError> {
        let Some(writer) = &self.features else { return Ok(()) };
        let (rows, sms, fusion) = (self.pass.rows, self.lane.sms(), &writer.fusion);
        let CudaFeaturePages { memory, width, element } = &*writer.pages;
        let wide = fusion.streams.len() * self.model.config.hidden;
        // One norm over all of them, one for each, or none.
        let parts = fusion.norms.len().max(1);
        let cols = wide / parts;
        for part in 0..parts {
            let args = RmsNormArgs {
                x: writer.streams.at(part * cols * size_of::<f32>()),
                weight: fusion.norms.get(part).map_or(Ptr::NULL, DeviceBuffer::ptr),
                out: writer.normed.at(part * cols * element.bytes()),
                rows: rows.counts,
                cols: cols as u32,
                x_stride: wide as u32,
                out_stride: wide as u32,
                eps: fusion.rms_eps,
            };
            self.lane.launch(&args.launch(*element, rows.bucket as u32, sms))?;
        }
        let write = FeaturesArgs {
            pages: memory.ptr(),
            tables: rows.tables,
            chunk_of: rows.chunk_of,
            positions: rows.positions,
            x: writer.fused.ptr(),
            rows: rows.counts,
            masked: Ptr::NULL,
            unknown: Ptr::NULL,
            table_stride: rows.table_stride,
            cols: *width as u32,
        };
        let (write, product) = (
            write.write(*element, rows.bucket as u32, sms),
            Product {
                element: *element,
                x: writer.normed.ptr(),
                w: fusion.matrix.ptr(),
                bias: Ptr::NULL,
                out: writer.fused.ptr(),
                rows: rows.bucket,
                inputs: wide,
                outputs: *width,
                add: false,
                records: None,
            },
        );
        let norm_after = fusion.norm_after.as_ref().map(|weight| {
            let (x, cols) = (writer.fused.ptr(), *width as u32);
            let (weight, eps) = (weight.ptr(), fusion.rms_eps);
            RmsNormArgs { x, weight, out: x, rows: rows.counts, cols, x_stride: cols, out_stride: cols, eps }
        });
        self.multiply(product, rows.counts)?;
        if let Some(norm) = norm_after {
            self.lane.launch(&norm.launch(Element::F32, rows.bucket as u32, sms))?;
        }
        self.lane.launch(&write)
    }

    /// A pass begins, or has been through the layers before this one.
    pub(super) fn reach(&mut self, layer: usize) {
        self.features.iter_mut().for_each(|writer| writer.reached = layer);
    }

    /// Streams of rows that leave go with them, where there are more to come.
    pub(super) fn compact_streams(&mut self) -> Result<(), CudaError> {
        let Some(writer) = &self.features else { return Ok(()) };
        if writer.fusion.streams.last().is_none_or(|last| *last <= writer.reached) {
            return Ok(());
        }
        let cols = (writer.fusion.streams.len() * self.model.config.hidden) as u32;
        let (x, keep, counts) = (writer.streams.ptr(), self.keep.ptr(), self.pass.rows.counts);
        self.lane.launch(&CompactRowsArgs { x, keep, counts, cols }.launch())
    }

    /// Copies the features of a block.
    pub(super) fn copy_features(&mut self, from: usize, to: usize) -> Result<(), CudaError> {
        let Some(writer) = &self.features else { return Ok(()) };
        let CudaFeaturePages { memory, width, element } = &*writer.pages;
        let bytes = BLOCK_SIZE * width * element.bytes();
        self.lane.copy(memory.at(from * bytes), memory.at(to * bytes), bytes)
    }

    /// The rows of a head's pass begin with the features of the tokens before them, by the target's block tables of their chunks; `masked` are those
    /// of mask tokens, if there are any.
    pub(super) fn begin_with_features(
        &mut self,
        (tables, table_stride): (Ptr, u32),
        masked: Ptr,
    ) -> Result<(), CudaError> {
        let (count, most) = (self.pass.rows.counts, self.pass.rows.bucket);
        self.read_pages((tables, table_stride), masked, 0, (count, most))
    }

    /// The `text` rows behind `first` rows of blocks have keys and values alone, in every layer of the same features: those stand where the norms of
    /// these rows would, and nothing else is written there.
    pub(super) fn begin_text(
        &mut self,
        tables: (Ptr, u32),
        first: usize,
        (count, text): (Ptr, usize),
    ) -> Result<(), CudaError> {
        self.read_pages(tables, Ptr::NULL, first, (count, text))?;
        let (hidden, element) = (self.model.config.hidden, self.model.element);
        let args = RmsNormArgs {
            x: self.x.at(first * hidden * size_of::<f32>()),
            weight: Ptr::NULL,
            out: self.normed.at(first * hidden * element.bytes()),
            rows: count,
            cols: hidden as u32,
            x_stride: hidden as u32,
            out_stride: hidden as u32,
            eps: 0.0,
        };
        self.lane.launch(&args.launch(element, text as u32, self.lane.sms()))
    }

    /// The features of the tokens before the rows from `first` on, to the residual stream; `count` is where the number of those rows is, `most` how
    /// many there may be.
    fn read_pages(
        &mut self,
        (tables, table_stride): (Ptr, u32),
        masked: Ptr,
        first: usize,
        (count, most): (Ptr, usize),
    ) -> Result<(), CudaError> {
        let Some(pages) = self.head.as_ref().and_then(|head| head.pages.as_ref()) else { return Ok(()) };
        let (rows, of_head) = (self.pass.rows, self.model.parts.of_head.as_ref());
        let unknown = of_head.and_then(|of_head| of_head.mask_features.as_ref());
        let of_row = |array: Ptr| array.behind(first * size_of::<u32>());
        let args = FeaturesArgs {
            pages: pages.memory.ptr(),
            tables,
            chunk_of: of_row(rows.chunk_of),
            positions: of_row(rows.positions),
            x: self.x.at(first * pages.width * size_of::<f32>()),
            rows: count,
            masked,
            unknown: unknown.map_or(Ptr::NULL, DeviceBuffer::ptr),
            table_stride,
            cols: pages.width as u32,
        };
        self.lane.launch(&args.read(pages.element, most as u32, self.lane.sms()))
    }

    /// The rows of a head's pass begin with what the last row of a chunk of the plan passed on; `chunks` has that of each.
    pub(super) fn begin_with_passed_on(&mut self, chunks: Ptr) -> Result<(), CudaError> {
        let Some(head) = &self.head else { return Ok(()) };
        let (rows, cols) = (self.pass.rows, self.model.config.hidden as u32);
        let (x, out) = (head.passed_on.ptr(), self.x.ptr());
        let args = GatherRowsArgs { x, indices: chunks, out, rows: rows.counts, cols, stride: 1 };
        self.lane.launch(&args.launch(rows.bucket as u32, self.lane.sms()))
    }

    /// The rows that were gathered for logits are what the rows behind them begin with; where all come from one pass, there are none.
    pub(super) fn pass_on(&mut self) -> Result<(), CudaError> {
        let config = &self.model.config;
        let (Some(head), Some(spec), None) = (&self.head, &config.head, config.mask_token) else {
            return Ok(());
        };
        let (pass, sms, cols) = (self.pass, self.lane.sms(), self.model.config.hidden as u32);
        let (most, x, count) = (pass.tail.samples as u32, self.gathered.ptr(), pass.sample_count());
        if spec.output_normed {
            let (weight, eps) = (self.model.parts.norm.ptr(), self.model.config.rms_eps);
            let args =
                RmsNormArgs { x, weight, out: x, rows: count, cols, x_stride: cols, out_stride: cols, eps };
            self.lane.launch(&args.launch(Element::F32, most, sms))?;
        }
        let (samples, of_plan, out) = (pass.tail.sample_rows, pass.of_plan, head.passed_on.ptr());
        self.lane.launch(&PassOnArgs { x, samples, of_plan, out, count, cols }.launch(most, sms))
    }

    /// Where the LM head writes, and how many tokens it has.
    pub(super) fn own_logits(&self) -> (Ptr, usize) {
        let proposed = self.head.as_ref().and_then(|head| head.proposed.as_ref());
        let own = self.model.config.head.as_ref().and_then(|spec| spec.proposed_vocab);
        match proposed.zip(own) {
            Some((proposed, own)) => (proposed.ptr(), own),
            None => (self.logits.ptr(), self.model.own.vocab),
        }
    }

    /// Logits of the tokens that a head proposes become those of all.
    pub(super) fn spread_logits(&mut self, samples: Samples) -> Result<(), CudaError> {
        let Some(places) = &self.model.places else { return Ok(()) };
        let ((own, held), vocabulary) = (self.own_logits(), self.model.config.vocab as u32);
        let Samples { first, most, count: rows } = samples;
        let of_first = |logits: Ptr, cols: usize| logits.behind(first * cols * size_of::<f32>());
        let (own, places) = (of_first(own, held), places.ptr());
        let out = of_first(self.logits.ptr(), vocabulary as usize);
        let args = SpreadLogitsArgs { own, places, out, rows, held: held as u32, vocabulary };
        self.lane.launch(&args.launch(most as u32, self.lane.sms()))
    }

    /// The embeddings, normalised, and beside them the residual stream, normalised, to the projections of a branch.
    pub(super) fn open_beside(
        &mut self,
        index: usize,
        kind: BesideEmbedding,
        out: Ptr,
        outputs: usize,
    ) -> Result<(), CudaError> {
        let model = self.model.clone();
        let (layer, element) = (&model.parts.layers[index], model.element);
        let Some(embedded) = self.head.as_ref().and_then(|head| head.embedded.as_ref()) else {
            return Ok(());
        };
        let (rows, sms, hidden) = (self.pass.rows, self.lane.sms(), model.config.hidden);
        let embedding = ptr(&layer.attention.norm_before);
        let stream = layer.stream_norm.as_ref().map_or(Ptr::NULL, DeviceBuffer::ptr);
        let beside = self.normed.at(hidden * element.bytes());
        let norm = |x, weight, out, out_stride: usize| RmsNormArgs {
            x,
            weight,
            out,
            rows: rows.counts,
            cols: hidden as u32,
            x_stride: hidden as u32,
            out_stride: out_stride as u32,
            eps: model.config.rms_eps,
        };
        let bucket = rows.bucket as u32;
        let args = norm(embedded.ptr(), embedding, self.normed.ptr(), 2 * hidden);
        self.lane.launch(&args.launch(element, bucket, sms))?;
        let args = norm(self.x.ptr(), stream, beside, 2 * hidden);
        self.lane.launch(&args.launch(element, bucket, sms))?;
        if kind.residual_normed {
            let args = norm(self.x.ptr(), stream, self.x.ptr(), hidden);
            self.lane.launch(&args.launch(Element::F32, bucket, sms))?;
        }
        let (matrix, x) = (&layer.attention.inputs, self.normed.ptr());
        let product = self.product(matrix, x, Ptr::NULL, out, [2 * hidden, outputs]);
        self.multiply(Product { rows: rows.bucket, ..product }, rows.counts)
    }
}
