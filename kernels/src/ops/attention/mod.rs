//! attention: causal softmax attention of each row over its own sequence's keys and values, up to its own position.
//!
//! Query heads share key heads in groups (GQA). The softmax is computed online (Milakov and Gimelshein 2018) over
//! tiles of [`TILE`] positions counted from position 0, so the order of every sum depends on the row's position
//! alone. An item of work is one key head for a few rows of one sequence: they read the keys once.

mod attend;
mod values;

use crate::memory::{KvCache, KvShape, Pages, Rows, View, ViewMut};
use crate::simd::{DotBf16, FmaBf16, FmaF32, Kernel, Simd, dispatch};
use crate::{Lane, Op};
use attend::{Item, attend};

/// Positions of a tile of the online softmax.
pub(crate) const TILE: usize = 64;
/// Most rows of an item.
const ROWS: usize = 8;

/// What attention needs beside its tensors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape<'a> {
    /// Query heads; a multiple of the cache's.
    pub heads: usize,
    /// Factor of the scores, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Scores, so scaled, are at most this large: `cap tanh(score / cap)`.
    pub soft_cap: Option<f32>,
    /// Sliding window: a row sees this many positions, its own included.
    pub window: Option<usize>,
    /// A score more in the softmax of each head, which has no value (the sinks of gpt-oss, learned).
    pub sinks: Option<&'a [f32]>,
}

/// Attends with `q` (`heads * head_dim` columns, rotated) to what [`store_kv`](super::store_kv) stored in `layer`.
///
/// # Panics
/// If shapes do not fit, a window is zero, or a block table is too short for a row's position.
pub fn attention(
    lane: &Lane,
    q: View<'_>,
    kv: &KvCache,
    layer: usize,
    rows: Rows<'_>,
    shape: AttentionShape<'_>,
    out: ViewMut<'_>,
) {
    let KvShape { kv_heads, head_dim, .. } = *kv.shape();
    let count = rows.positions.len();
    assert_eq!((q.rows(), q.cols()), (count, shape.heads * head_dim), "attention: shape of q");
    assert_eq!((out.rows(), out.cols()), (count, q.cols()), "attention: shape of out");
    assert_eq!(rows.table_of.len(), count, "attention: length of table_of");
    assert!(
        shape.heads.is_multiple_of(kv_heads),
        "attention: {} heads over {kv_heads} kv heads",
        shape.heads
    );
    assert!(shape.window != Some(0), "attention: an empty window");
    assert!(shape.sinks.is_none_or(|sinks| sinks.len() == shape.heads), "attention: number of sinks");
    let context: usize = rows.positions.iter().map(|position| *position as usize + 1).sum();
    // Fewer rows per item when there are too few items for the workers.
    let rows_per_item = (count * kv_heads / (4 * lane.workers())).clamp(1, ROWS);
    let chunks = count.div_ceil(rows_per_item);
    // At some 150 GFLOP/s: products with keys and with values.
    let item_ns = 4 * context * shape.heads * head_dim / 150 / (chunks * kv_heads).max(1);
    let out = out.share();
    let isa = lane.supported();
    lane.for_each(Op::Attention, chunks * kv_heads, item_ns, |item, scratch| {
        let (chunk, head) = (item / kv_heads, item % kv_heads);
        let mut first = chunk * rows_per_item;
        let end = count.min(first + rows_per_item);
        while first < end {
            let table = rows.table_of[first];
            let same = rows.table_of[first..end].iter().take_while(|of| **of == table).count();
            let item = Item { q, kv, layer, rows, shape, out, head, first, count: same };
            dispatch(isa, Attend { item, scratch });
            first += same;
        }
    });
}

struct Attend<'a> {
    item: Item<'a>,
    scratch: &'a mut crate::lane::Scratch,
}

impl Kernel for Attend<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Attend { item, scratch } = self;
        match item.kv.pages() {
            // SAFETY: keys are packed as bf16, and `DOTS` is true; the item is this worker's.
            Pages::Bf16 { k, v } if S::DOTS => unsafe { attend::<S, DotBf16>(s, &item, k, v, scratch) },
            // SAFETY: keys are packed as bf16; the item is this worker's.
            Pages::Bf16 { k, v } => unsafe { attend::<S, FmaBf16>(s, &item, k, v, scratch) },
            // SAFETY: keys are packed as f32; the item is this worker's.
            Pages::F32 { k, v } => unsafe { attend::<S, FmaF32>(s, &item, k, v, scratch) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::asked;
    use crate::{Dtype, Isa, Partition, Tensor};

    #[test]
    fn the_pages_that_come_next_are_asked_for_and_no_others() {
        // Values are padded to 32.
        let shape = KvShape { layers: 2, blocks: 12, block_size: 16, kv_heads: 2, head_dim: 20 };
        let lane = Lane::new(&Partition { cores: vec![0] }, Isa::Portable).unwrap();
        let table = [11, 3, 7, 0, 5, 9, 2, 10, 4];
        let rows = Rows { positions: &[129], table_of: &[0], tables: &[&table] };
        for (window, first_tile) in [(None, 0), (Some(40), 64)] {
            for dtype in [Dtype::F32, Dtype::Bf16] {
                let kv = KvCache::new(shape, dtype).unwrap();
                let (q, mut out) = (Tensor::zeros(1, 80), Tensor::zeros(1, 80));
                let attended = AttentionShape { heads: 4, scale: 1.0, soft_cap: None, window, sinks: None };
                let mut found = asked::during(|| {
                    attention(&lane, q.view(1), &kv, 1, rows, attended, out.view_mut(1));
                });
                let (keys, values) = match kv.pages() {
                    Pages::F32 { k, v } => (k.as_ptr().addr(), v.as_ptr().addr()),
                    Pages::Bf16 { k, v } => (k.as_ptr().addr(), v.as_ptr().addr()),
                };
                let mut expected = Vec::new();
                for head in 0..2 {
                    // Nobody asks for the very first tile.
                    let first = if head == 0 { first_tile + TILE } else { first_tile };
                    for block in &table[first / 16..] {
                        let page = shape.page(1, *block, head);
                        for (start, width) in [(keys, 20), (values, 32)] {
                            let bytes = 16 * width * dtype.bytes();
                            expected.extend((0..bytes).step_by(64).map(|line| start + page * bytes + line));
                        }
                    }
                }
                found.sort_unstable();
                expected.sort_unstable();
                assert_eq!(found, expected, "{dtype}, window {window:?}");
            }
        }
    }
}
