//! Packing activations for the kernels: row blocks of up to 14 rows, and inside a block the rows' words for one input side by side.

use crate::memory::View;
use crate::simd::{Product, Simd};
use std::ops::Range;

/// Sizes of row blocks there are kernels for: as many as the machine has registers for.
fn block_sizes<S: Simd, Q: Product<S>>() -> &'static [usize] {
    let all: &[usize] = if S::REGISTERS < 32 { &[1, 2, 4, 6] } else { &[1, 2, 4, 6, 8, 12, 14] };
    let most = if S::REGISTERS < 32 { 6 } else { Q::MOST_ROWS };
    &all[..all.iter().filter(|size| **size <= most).count()]
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

/// Packs `rows` of `x` for `Q`, block after block.
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
            } else {
                Q::lay(s, x.row(row + slot), block, slot, size);
            }
        }
        (row, rest) = (row + size, tail);
    }
}
