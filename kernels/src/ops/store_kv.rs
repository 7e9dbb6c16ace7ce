//! store_kv: writes the keys and values of each row into the slot of its own position, rounded to the cache's type.

use crate::memory::{BlockId, KvCache, KvShape, Pages, Rows, SharedMut, View};
use crate::{Lane, Op};
use half::bf16;

/// Stores the rows' `k` and `v` (`kv_heads * head_dim` columns each) in `layer`.
///
/// # Panics
/// If shapes do not fit, a block or layer does not exist, or two rows have one slot.
pub fn store_kv(lane: &Lane, k: View<'_>, v: View<'_>, kv: &mut KvCache, layer: usize, rows: Rows<'_>) {
    let shape = *kv.shape();
    let expected = (rows.positions.len(), shape.kv_heads * shape.head_dim);
    assert_eq!((k.rows(), k.cols()), expected, "store_kv: shape of k");
    assert_eq!((v.rows(), v.cols()), expected, "store_kv: shape of v");
    assert_eq!(rows.table_of.len(), expected.0, "store_kv: length of table_of");
    // Every worker walks all rows but writes only its heads: no two write the same page, whatever the slots are.
    let pages = match kv.pages_mut() {
        Pages::F32 { k, v } => SharedPages::F32(SharedMut::new(k), SharedMut::new(v)),
        Pages::Bf16 { k, v } => SharedPages::Bf16(SharedMut::new(k), SharedMut::new(v)),
    };
    lane.for_each(Op::StoreKv, shape.kv_heads, expected.0 * shape.head_dim, |head, _| {
        let columns = head * shape.head_dim..(head + 1) * shape.head_dim;
        for r in 0..expected.0 {
            let (block, slot) = rows.slot(r, shape.block_size);
            let (k, v) = (&k.row(r)[columns.clone()], &v.row(r)[columns.clone()]);
            match pages {
                SharedPages::F32(keys, values) => {
                    let at = Slot { shape: &shape, layer, block, head, slot };
                    at.write::<f32, 1>(keys, values, k, v, |x| x);
                }
                SharedPages::Bf16(keys, values) => {
                    let at = Slot { shape: &shape, layer, block, head, slot };
                    at.write::<bf16, 2>(keys, values, k, v, bf16::from_f32);
                }
            }
        }
    });
}

#[derive(Clone, Copy)]
enum SharedPages<'a> {
    F32(SharedMut<'a, f32>, SharedMut<'a, f32>),
    Bf16(SharedMut<'a, bf16>, SharedMut<'a, bf16>),
}

/// Where one head of one row goes.
struct Slot<'a> {
    shape: &'a KvShape,
    layer: usize,
    block: BlockId,
    head: usize,
    slot: usize,
}

impl Slot<'_> {
    /// `PAIR`: how many elements of a key lie together (see [`KvCache`]).
    fn write<T: Copy, const PAIR: usize>(
        &self,
        keys: SharedMut<'_, T>,
        values: SharedMut<'_, T>,
        k: &[f32],
        v: &[f32],
        round: impl Fn(f32) -> T,
    ) {
        let shape = self.shape;
        let page = shape.page(self.layer, self.block, self.head);
        let key_page = shape.block_size * shape.head_dim;
        // SAFETY: the page belongs to this head, and each head is one item, done once.
        let keys = unsafe { keys.part(page * key_page, key_page) };
        let columns = keys.chunks_exact_mut(shape.block_size * PAIR);
        for (column, pair) in columns.zip(k.chunks_exact(PAIR)) {
            let stored = &mut column[self.slot * PAIR..(self.slot + 1) * PAIR];
            stored.iter_mut().zip(pair).for_each(|(y, x)| *y = round(*x));
        }
        let value_dim = shape.value_dim();
        let start = (page * shape.block_size + self.slot) * value_dim;
        // SAFETY: as above.
        let value = unsafe { values.part(start, value_dim) };
        value.iter_mut().zip(v).for_each(|(y, x)| *y = round(*x));
    }
}
