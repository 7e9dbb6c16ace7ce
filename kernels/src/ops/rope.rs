//! rope: rotates each head of row `r` to position `positions[r]`, in place. The halves of a head are the two coordinates:
//! `(a, b) -> (a cos - b sin, b cos + a sin)`, as Hugging Face checkpoints expect.

use crate::memory::{RopeTable, ViewMut};
use crate::simd::{Kernel, Simd, dispatch};
use crate::{Lane, Op};

/// Rotates all heads of `x`; queries and keys that lie side by side may go in one call.
///
/// # Panics
/// If a row is not whole heads, there is not one position per row, or a position is not in the table.
pub fn rope(lane: &Lane, x: ViewMut<'_>, positions: &[u32], table: &RopeTable) {
    let (rows, cols, head_dim) = (x.rows(), x.cols(), table.head_dim());
    assert!(cols.is_multiple_of(head_dim), "rope: {cols} columns are not heads of {head_dim}");
    assert_eq!(positions.len(), rows, "rope: number of positions");
    let x = x.share();
    let isa = lane.supported();
    lane.for_each(Op::Rope, rows, cols / 8, |r, _| {
        let (cos, sin) = table.at(positions[r]);
        // SAFETY: each row is one item, done once.
        dispatch(isa, Rotate { heads: unsafe { x.row(r) }, cos, sin });
    });
}

struct Rotate<'a> {
    heads: &'a mut [f32],
    cos: &'a [f32],
    sin: &'a [f32],
}

impl Kernel for Rotate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let half = self.cos.len();
        for head in self.heads.chunks_exact_mut(2 * half) {
            let (first, second) = head.split_at_mut(half);
            let angles = self.cos.chunks(S::LANES).zip(self.sin.chunks(S::LANES));
            for ((a, b), (cos, sin)) in
                first.chunks_mut(S::LANES).zip(second.chunks_mut(S::LANES)).zip(angles)
            {
                let (x, y, cos, sin) = (s.load_some(a), s.load_some(b), s.load_some(cos), s.load_some(sin));
                s.store_some(a, s.sub(s.mul(x, cos), s.mul(y, sin)));
                s.store_some(b, s.add(s.mul(y, cos), s.mul(x, sin)));
            }
        }
    }
}
