//! gather_rows: row `r` of `out` becomes row `indices[r]` of `x`. What the LM head and scores of a few tokens begin with.

use crate::memory::{View, ViewMut};
use crate::{Lane, Op};

/// Copies the rows named by `indices`.
///
/// # Panics
/// If an index is not a row of `x`, or `out` is not `indices.len()` rows of the width of `x`.
pub fn gather_rows(lane: &Lane, x: View<'_>, indices: &[u32], out: ViewMut<'_>) {
    assert_eq!((out.rows(), out.cols()), (indices.len(), x.cols()), "gather_rows: shape of out");
    let out = out.share();
    lane.for_each(Op::GatherRows, indices.len(), x.cols() / 8, |r, _| {
        // SAFETY: each row is one item, done once.
        unsafe { out.row(r) }.copy_from_slice(x.row(indices[r] as usize));
    });
}
