//! Paged KV memory: keys and values of all layers, in blocks of token positions.
//!
//! Keys lie as the matmul's panels do, positions across the lanes: bf16 `[layer][block][kv_head][head_dim / 2][block_size][2]`,
//! f32 `[layer][block][kv_head][head_dim][block_size]`; so a score is one chain over the head and needs no sum across
//! lanes. Values lie `[layer][block][kv_head][block_size][value_dim]`, where `value_dim` is `head_dim` padded to 16.
//!
//! In int8 the key and the value of a token and head each have a scale of their own, f32, `[layer][block][kv_head][block_size]`: what is
//! stored for a token depends on nothing but the token, whatever the block has beside it, and is the same when it is computed again. Keys
//! lie `[layer][block][kv_head][head_dim / 4][block_size]` in words of four consecutive elements, the lowest first, each a byte that is 128
//! more than it; values are as above, in signed bytes.

use super::Buffer;
use crate::{Dtype, KernelError};
use half::bf16;

/// Number of a KV block in its pool.
pub type BlockId = u32;

/// Positions that are scored together.
pub(crate) const POSITIONS: usize = 16;

/// A KV block holds a multiple of so many positions.
pub const KV_BLOCK_MULTIPLE: usize = POSITIONS;

/// Sizes of a [`KvCache`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Layers of the model.
    pub layers: usize,
    /// Blocks of the pool.
    pub blocks: usize,
    /// Token positions of a block; a multiple of 16.
    pub block_size: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Elements of a head; even.
    pub head_dim: usize,
}

impl KvShape {
    /// Memory of keys and values, in bytes.
    #[must_use]
    pub fn bytes(&self, dtype: Dtype) -> u64 {
        let heads = (self.layers * self.blocks * self.kv_heads) as u64;
        let of_token = match dtype {
            Dtype::Int8 => 4 * self.key_words() + self.value_dim() + 2 * size_of::<f32>(),
            _ => (self.head_dim + self.value_dim()) * dtype.bytes(),
        };
        heads * (self.block_size * of_token) as u64
    }

    /// Words of a key in int8.
    pub(crate) fn key_words(&self) -> usize {
        self.head_dim.div_ceil(4)
    }

    /// Elements of a stored value: the head, padded to whole vectors.
    pub(crate) fn value_dim(&self) -> usize {
        self.head_dim.next_multiple_of(16)
    }

    /// Which (layer, block, head), counted from the start of the memory.
    pub(crate) fn page(&self, layer: usize, block: BlockId, head: usize) -> usize {
        assert!(
            layer < self.layers && (block as usize) < self.blocks && head < self.kv_heads,
            "no such KV page"
        );
        (layer * self.blocks + block as usize) * self.kv_heads + head
    }

    /// Copies the pages of all heads, `width` numbers for each position, from page `from` on to where page `to` is.
    fn copy_pages<T: Copy>(&self, pages: &mut [T], width: usize, from: usize, to: usize) {
        let page = self.block_size * width;
        pages.copy_within(from * page..(from + self.kv_heads) * page, to * page);
    }

    fn check(&self) -> Result<(), KernelError> {
        let positive = "at least 1";
        let sizes = [
            ("layers", self.layers, self.layers > 0, positive),
            ("blocks", self.blocks, self.blocks > 0 && self.blocks <= BlockId::MAX as usize, "1 to 2^32 - 1"),
            ("kv_heads", self.kv_heads, self.kv_heads > 0, positive),
            (
                "head_dim",
                self.head_dim,
                self.head_dim > 0 && self.head_dim.is_multiple_of(2),
                "even and positive",
            ),
            (
                "block_size",
                self.block_size,
                self.block_size > 0 && self.block_size.is_multiple_of(POSITIONS),
                "a multiple of 16",
            ),
        ];
        match sizes.into_iter().find(|(_, _, fine, _)| !fine) {
            Some((what, value, _, must)) => Err(KernelError::Size { what, value, must }),
            None => Ok(()),
        }
    }
}

/// Keys and values of one model on one device.
pub struct KvCache {
    shape: KvShape,
    pages: Pages,
}

/// Keys and values in their type.
pub(crate) enum Pages {
    F32 { k: Buffer<f32>, v: Buffer<f32> },
    Bf16 { k: Buffer<bf16>, v: Buffer<bf16> },
    Int8 { k: Buffer<u32>, v: Buffer<i8>, k_scales: Buffer<f32>, v_scales: Buffer<f32> },
}

impl KvCache {
    /// Zeroed memory of that shape.
    ///
    /// # Errors
    /// If a size is impossible, `dtype` is fp8 or int4, or there is no memory.
    pub fn new(shape: KvShape, dtype: Dtype) -> Result<KvCache, KernelError> {
        shape.check()?;
        let heads = shape.layers.saturating_mul(shape.blocks).saturating_mul(shape.kv_heads);
        let k = heads.saturating_mul(shape.block_size * shape.head_dim);
        let v = heads.saturating_mul(shape.block_size * shape.value_dim());
        let what = "the KV cache";
        let pages = match dtype {
            Dtype::F32 => Pages::F32 { k: Buffer::zeroed(k, what)?, v: Buffer::zeroed(v, what)? },
            Dtype::Bf16 => Pages::Bf16 { k: Buffer::zeroed(k, what)?, v: Buffer::zeroed(v, what)? },
            Dtype::Int8 => {
                let positions = heads.saturating_mul(shape.block_size);
                Pages::Int8 {
                    k: Buffer::zeroed(positions.saturating_mul(shape.key_words()), what)?,
                    v: Buffer::zeroed(v, what)?,
                    k_scales: Buffer::zeroed(positions, what)?,
                    v_scales: Buffer::zeroed(positions, what)?,
                }
            }
            Dtype::Fp8 | Dtype::Int4 => return Err(KernelError::MatricesAlone { what, dtype: dtype.name() }),
        };
        Ok(KvCache { shape, pages })
    }

    /// Its sizes.
    #[must_use]
    pub fn shape(&self) -> &KvShape {
        &self.shape
    }

    /// Its type.
    #[must_use]
    pub fn dtype(&self) -> Dtype {
        match self.pages {
            Pages::F32 { .. } => Dtype::F32,
            Pages::Bf16 { .. } => Dtype::Bf16,
            Pages::Int8 { .. } => Dtype::Int8,
        }
    }

    /// Copies a block, keys and values of all layers.
    ///
    /// # Panics
    /// If one of the blocks does not exist.
    pub fn copy_block(&mut self, from: BlockId, to: BlockId) {
        let shape = self.shape;
        for layer in 0..shape.layers {
            let (from, to) = (shape.page(layer, from, 0), shape.page(layer, to, 0));
            match &mut self.pages {
                Pages::F32 { k, v } => {
                    shape.copy_pages(k, shape.head_dim, from, to);
                    shape.copy_pages(v, shape.value_dim(), from, to);
                }
                Pages::Bf16 { k, v } => {
                    shape.copy_pages(k, shape.head_dim, from, to);
                    shape.copy_pages(v, shape.value_dim(), from, to);
                }
                Pages::Int8 { k, v, k_scales, v_scales } => {
                    shape.copy_pages(k, shape.key_words(), from, to);
                    shape.copy_pages(v, shape.value_dim(), from, to);
                    shape.copy_pages(k_scales, 1, from, to);
                    shape.copy_pages(v_scales, 1, from, to);
                }
            }
        }
    }

    pub(crate) fn pages(&self) -> &Pages {
        &self.pages
    }

    pub(crate) fn pages_mut(&mut self) -> &mut Pages {
        &mut self.pages
    }
}

/// Which rows a pass has: row `r` is token position `positions[r]` of the sequence whose block table is
/// `tables[table_of[r]]`. Rows of one sequence stand together, in ascending positions.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// Token position of each row.
    pub positions: &'a [u32],
    /// Index into `tables` of each row.
    pub table_of: &'a [u32],
    /// Block tables; block `i` of a table holds positions `i * block_size ..`.
    pub tables: &'a [&'a [BlockId]],
}

impl Rows<'_> {
    /// Block and offset in it of row `r`'s own position.
    pub(crate) fn slot(&self, r: usize, block_size: usize) -> (BlockId, usize) {
        let position = self.positions[r] as usize;
        (self.tables[self.table_of[r] as usize][position / block_size], position % block_size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: KvShape = KvShape { layers: 2, blocks: 3, block_size: 16, kv_heads: 2, head_dim: 20 };

    #[test]
    fn bytes_count_padding_and_pages_do_not_overlap() {
        assert_eq!(SHAPE.bytes(Dtype::Bf16), 2 * 3 * 2 * 16 * (20 + 32) * 2);
        let cache = KvCache::new(SHAPE, Dtype::F32).unwrap();
        let Pages::F32 { k, v } = cache.pages() else { panic!("wrong dtype") };
        assert_eq!(((k.len() + v.len()) * 4) as u64, SHAPE.bytes(Dtype::F32));
        assert_eq!(SHAPE.page(1, 2, 1), 11);
        // A byte for each number, and a scale for each key and value.
        assert_eq!(SHAPE.bytes(Dtype::Int8), 2 * 3 * 2 * 16 * (20 + 32 + 8));
        let cache = KvCache::new(SHAPE, Dtype::Int8).unwrap();
        let Pages::Int8 { k, v, k_scales, v_scales } = cache.pages() else { panic!("wrong dtype") };
        let bytes = 4 * (k.len() + k_scales.len() + v_scales.len()) + v.len();
        assert_eq!((bytes as u64, cache.dtype()), (SHAPE.bytes(Dtype::Int8), Dtype::Int8));
    }

    #[test]
    fn a_block_is_copied_in_all_layers_and_nothing_else_changes() {
        let numbers = |buffer: &mut [f32]| (0..).zip(buffer).for_each(|(i, x)| *x = i as f32);
        let mut cache = KvCache::new(SHAPE, Dtype::F32).unwrap();
        let Pages::F32 { k, v } = cache.pages_mut() else { panic!("wrong dtype") };
        numbers(k);
        numbers(v);
        cache.copy_block(0, 2);
        let Pages::F32 { k, v } = cache.pages() else { panic!("wrong dtype") };
        for (pages, width) in [(k, SHAPE.head_dim), (v, SHAPE.value_dim())] {
            let block = SHAPE.kv_heads * SHAPE.block_size * width;
            for (at, x) in pages.iter().enumerate() {
                let from = if at / block % SHAPE.blocks == 2 { at - 2 * block } else { at };
                assert_eq!(*x, from as f32, "element {at}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "no such KV page")]
    fn a_block_that_is_not_there_is_not_copied() {
        KvCache::new(SHAPE, Dtype::Bf16).unwrap().copy_block(1, 3);
    }

    #[test]
    fn impossible_sizes_are_refused() {
        for (shape, what) in [
            (KvShape { block_size: 8, ..SHAPE }, "block_size"),
            (KvShape { head_dim: 5, ..SHAPE }, "head_dim"),
            (KvShape { blocks: 0, ..SHAPE }, "blocks"),
        ] {
            let refusal = KvCache::new(shape, Dtype::F32).err().unwrap().to_string();
            assert!(refusal.contains(what), "{refusal}");
        }
        let int4 = KvCache::new(SHAPE, Dtype::Int4).err().unwrap().to_string();
        assert!(int4.contains("the KV cache") && int4.contains("bf16"), "{int4}");
        let huge = KvShape { blocks: 1 << 31, block_size: 1 << 20, ..SHAPE };
        assert!(KvCache::new(huge, Dtype::F32).is_err());
    }

    #[test]
    fn a_slot_is_found_through_the_table() {
        let rows = Rows { positions: &[3, 37], table_of: &[1, 0], tables: &[&[7, 8, 9], &[4]] };
        assert_eq!(rows.slot(0, 16), (4, 3));
        assert_eq!(rows.slot(1, 16), (9, 5));
    }
}
