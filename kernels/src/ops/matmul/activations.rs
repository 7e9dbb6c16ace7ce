//! Packing activations for the kernels: row blocks of up to 14 rows, and inside a block the rows' words for one input side by side.

use crate::memory::View;
use crate::simd::{Product, Simd};
use half::bf16;
use std::ops::Range;

/// Sizes of row blocks there are kernels for: as many as the machine has registers for.
fn block_sizes<S: Simd, Q: Product<S>>() -> &'static [usize] {
    if S::REGISTERS < 32 {
        &[1, 2, 4, 6]
    } else if Q::WORDS == 2 {
        &[1, 2, 4, 6, 8, 12] // widened weights take registers too
    } else {
        &[1, 2, 4, 6, 8, 12, 14]
    }
}

/// Size of the next block when `rows` are left: even parts of as few blocks as there must be, the size rounded up to one
/// there is a kernel for. A block may be larger than the rows left: the rest is padding.
pub(super) fn block_size<S: Simd, Q: Product<S>>(rows: usize) -> usize {
    let sizes = block_sizes::<S, Q>();
    let largest = sizes[sizes.len() - 1];
    let wanted = rows.div_ceil(rows.div_ceil(largest));
    sizes.iter().copied().find(|size| *size >= wanted).unwrap_or(largest)
}

/// Words the packed `rows` take.
pub(super) fn packed_len<S: Simd, Q: Product<S>>(rows: usize, words_per_row: usize) -> usize {
    let mut left = rows;
    let mut len = 0;
    while left > 0 {
        let size = block_size::<S, Q>(left);
        len += size * words_per_row;
        left = left.saturating_sub(size);
    }
    len
}

/// Packs `rows` of `x` for `Q`, block after block: as pairs of bf16 or as f32; an odd last input gets a zero beside it.
#[inline(always)]
pub(super) fn pack<S: Simd, Q: Product<S>>(
    s: S,
    x: View<'_>,
    rows: Range<usize>,
    words_per_row: usize,
    to: &mut [f32],
) {
    let (mut row, mut rest) = (rows.start, to);
    while row < rows.end {
        let size = block_size::<S, Q>(rows.end - row);
        let (block, tail) = std::mem::take(&mut rest).split_at_mut(size * words_per_row);
        for slot in 0..size {
            if row + slot >= rows.end {
                block.iter_mut().skip(slot).step_by(size).for_each(|word| *word = 0.0);
            } else if Q::INPUTS > Q::WORDS {
                pack_pairs(s, x.row(row + slot), slot, size, block);
            } else {
                let values = x.row(row + slot).iter().copied().chain(std::iter::once(0.0));
                block.iter_mut().skip(slot).step_by(size).zip(values).for_each(|(word, x)| *word = x);
            }
        }
        (row, rest) = (row + size, tail);
    }
}

/// One row as pairs of bf16, every `size`th word from `slot`.
#[inline(always)]
fn pack_pairs<S: Simd>(s: S, x: &[f32], slot: usize, size: usize, block: &mut [f32]) {
    let mut words = block.iter_mut().skip(slot).step_by(size);
    for chunk in x.chunks(S::LANES) {
        let mut rounded = [bf16::ZERO; 16];
        // SAFETY: the array holds 16, a vector at most that.
        unsafe { s.store_bf16(rounded.as_mut_ptr(), s.load_some(chunk)) };
        let pairs = rounded.chunks_exact(2).take(chunk.len().div_ceil(2));
        for (pair, word) in pairs.zip(&mut words) {
            *word = f32::from_bits(u32::from(pair[0].to_bits()) | u32::from(pair[1].to_bits()) << 16);
        }
    }
}
