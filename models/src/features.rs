//! What a head on hidden states reads of its target, on the CPU: the streams of each token that it names, fused, in pages that are indexed as the
//! target's KV is. So they live with the target's blocks: what is found in its prefix cache, copied, preempted or evicted there is so here.
//!
//! ```text
//! stream that enters layer a ─┐
//! stream that enters layer b ─┼─ (norms) ─ fc ─ page of the row's position      (fused where the last of them is there)
//! stream that enters layer c ─┘
//! ```
//! The lane that verifies writes them, the one that drafts reads them. Values are atomics without an order of their own: on a CPU they cost what
//! plain ones do. A draft plan is sent when the pass is back that wrote what it reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use faser_kernels::ops::{self, Write};
use faser_kernels::{BlockId, Lane, Matrix, Rows, Tensor, Vector};

/// Fused streams of the tokens in the target's blocks. Allocated once; share it in an `Arc` between both lanes.
pub struct Features {
    width: usize,
    block_size: usize,
    /// Bits of f32 `[blocks][block_size][width]`.
    values: Box<[AtomicU32]>,
}

impl Features {
    /// Pages for `blocks` blocks of `block_size` tokens, `width` numbers for each.
    pub fn new(blocks: usize, block_size: usize, width: usize) -> Arc<Features> {
        let values = (0..blocks * block_size * width).map(|_| AtomicU32::new(0)).collect();
        Arc::new(Features { width, block_size, values })
    }

    /// Bytes of a token.
    pub fn bytes_per_token(width: usize) -> u64 {
        (width * size_of::<f32>()) as u64
    }

    /// Numbers of a token.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Copies what the token at a position of a block table has.
    ///
    /// # Panics
    /// If the table has no such position, or `to` is not as wide.
    pub fn read(&self, table: &[BlockId], position: usize, to: &mut [f32]) {
        assert_eq!(to.len(), self.width, "room for the features of a token");
        let from = self.of(table, position);
        to.iter_mut().zip(from).for_each(|(to, from)| *to = f32::from_bits(from.load(Ordering::Relaxed)));
    }

    /// Copies a block whole.
    pub fn copy_block(&self, from: BlockId, to: BlockId) {
        let size = self.block_size * self.width;
        let block = |block: BlockId| &self.values[block as usize * size..][..size];
        let to = block(to).iter();
        to.zip(block(from)).for_each(|(to, from)| to.store(from.load(Ordering::Relaxed), Ordering::Relaxed));
    }

    fn of(&self, table: &[BlockId], position: usize) -> &[AtomicU32] {
        let block = table[position / self.block_size] as usize;
        &self.values[(block * self.block_size + position % self.block_size) * self.width..][..self.width]
    }

    fn write(&self, table: &[BlockId], position: usize, values: &[f32]) {
        let to = self.of(table, position).iter();
        to.zip(values).for_each(|(to, value)| to.store(value.to_bits(), Ordering::Relaxed));
    }
}

impl std::fmt::Debug for Features {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let tokens = self.values.len() / self.width.max(1);
        f.debug_struct("Features")
            .field("width", &self.width)
            .field("tokens", &tokens)
            .finish_non_exhaustive()
    }
}

/// The part of a head that runs with its target: from streams to features.
pub(crate) struct Fusion<M = Matrix, V = Vector> {
    /// The streams, by the layers that they enter, ascending.
    pub(crate) streams: Vec<usize>,
    /// None, one for all of them side by side, or one for each.
    pub(crate) norms: Vec<V>,
    /// `[hidden, streams * target's hidden]`.
    pub(crate) matrix: M,
    /// Of what comes of it.
    pub(crate) norm_after: Option<V>,
    pub(crate) rms_eps: f32,
}

/// The writer's end, in the scratch of its passes.
pub(crate) struct FeatureWriter {
    pages: Arc<Features>,
    fusion: Arc<Fusion>,
    /// Side by side: `[rows, streams * hidden]`.
    streams: Tensor,
    normed: Tensor,
    fused: Tensor,
}

impl FeatureWriter {
    /// For passes of at most `max_rows` rows of `hidden` columns.
    ///
    /// # Panics
    /// If the pages or streams are those of other models.
    pub(crate) fn new(
        pages: Arc<Features>,
        fusion: Arc<Fusion>,
        hidden: usize,
        max_rows: usize,
    ) -> FeatureWriter {
        let width = fusion.streams.len() * hidden;
        assert_eq!(fusion.matrix.in_features(), width, "streams of another model");
        assert_eq!(fusion.matrix.out_features(), pages.width, "pages of another head");
        let rows = |cols| Tensor::zeros(max_rows, cols);
        let normed = if fusion.norms.is_empty() { Tensor::zeros(1, width) } else { rows(width) };
        FeatureWriter { streams: rows(width), normed, fused: rows(pages.width), pages, fusion }
    }

    /// The first `n` rows of `x` enter a layer; they stay in the pass as long as `keep` says. With the last stream that is named their features
    /// are there.
    pub(crate) fn enter(&mut self, layer: usize, x: &Tensor, lane: &Lane, rows: Option<Rows<'_>>, n: usize) {
        let (hidden, fusion) = (x.cols(), &self.fusion);
        for place in (0..fusion.streams.len()).filter(|place| fusion.streams[*place] == layer) {
            let columns = place * hidden..(place + 1) * hidden;
            (0..n).for_each(|row| self.streams.row_mut(row)[columns.clone()].copy_from_slice(x.row(row)));
        }
        // Where the embedding alone is read, positions are known at the next layer.
        let last = fusion.streams.last().map(|last| (*last).max(1));
        if let Some(rows) = rows.filter(|_| last == Some(layer)) {
            self.fuse(lane, rows);
        }
    }

    fn fuse(&mut self, lane: &Lane, rows: Rows<'_>) {
        let FeatureWriter { pages, fusion, streams, normed, fused } = self;
        let n = rows.positions.len();
        for (place, norm) in fusion.norms.iter().enumerate() {
            let columns = place * norm.len()..(place + 1) * norm.len();
            let (from, to) = (streams.view(n).columns(columns.clone()), normed.view_mut(n).columns(columns));
            ops::rms_norm(lane, from, norm, fusion.rms_eps, to, Write::Replace);
        }
        let from = if fusion.norms.is_empty() { streams.view(n) } else { normed.view(n) };
        ops::matmul(lane, from, &fusion.matrix, None, fused.view_mut(n), Write::Replace);
        if let Some(norm) = &fusion.norm_after {
            ops::rms_norm_heads(lane, fused.view_mut(n), norm, fusion.rms_eps);
        }
        for row in 0..n {
            let table = rows.tables[rows.table_of[row] as usize];
            pages.write(table, rows.positions[row] as usize, fused.row(row));
        }
    }

    /// Of the `n` rows of the pass those named stay.
    pub(crate) fn keep(&mut self, n: usize, keep: &[u32]) {
        ops::compact_rows(self.streams.view_mut(n), keep);
    }
}
