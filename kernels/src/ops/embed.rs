//! embed: row `r` of `out` becomes the table's row of token `r`, in f32.

use crate::memory::{Table, TableRows, ViewMut};
use crate::{Lane, Op};

/// Looks up `tokens`.
///
/// # Panics
/// If a token is not in the table (check before), or `out` is not `tokens.len()` rows of the table's width.
pub fn embed(lane: &Lane, table: &Table, tokens: &[u32], out: ViewMut<'_>) {
    let cols = table.cols();
    assert_eq!((out.rows(), out.cols()), (tokens.len(), cols), "embed: shape of out");
    let out = out.share();
    lane.for_each(Op::Embed, tokens.len(), cols / 4, |r, _| {
        let token = tokens[r] as usize;
        assert!(token < table.rows(), "embed: token {token} of a vocabulary of {}", table.rows());
        let range = token * cols..(token + 1) * cols;
        // SAFETY: each row is one item, done once.
        let out = unsafe { out.row(r) };
        match table.data() {
            TableRows::F32(rows) => out.copy_from_slice(&rows[range]),
            TableRows::Bf16(rows) => out.iter_mut().zip(&rows[range]).for_each(|(y, x)| *y = x.to_f32()),
        }
    });
}
