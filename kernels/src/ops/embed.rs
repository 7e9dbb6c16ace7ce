//! embed: row `r` of `out` becomes the table's row of token `r`, in f32, times `scale`. embed_part: as if all tokens that the table has not had rows of
//! zeros; what ranks with parts of a table sum up to its rows.

use crate::memory::{Table, TableRows, ViewMut};
use crate::{Lane, Op};

/// Looks up `tokens`.
///
/// # Panics
/// If a token is not in the table (check before), or `out` is not `tokens.len()` rows of the table's width.
pub fn embed(lane: &Lane, table: &Table, tokens: &[u32], scale: f32, out: ViewMut<'_>) {
    let vocabulary = table.rows();
    if let Some(token) = tokens.iter().find(|token| **token as usize >= vocabulary) {
        panic!("embed: token {token} of a vocabulary of {vocabulary}");
    }
    embed_part(lane, table, 0, tokens, scale, out);
}

/// Looks up `tokens` in a table of tokens `first..first + table.rows()`; the rows of all others become zeros.
///
/// # Panics
/// If `out` is not `tokens.len()` rows of the table's width.
pub fn embed_part(lane: &Lane, table: &Table, first: usize, tokens: &[u32], scale: f32, out: ViewMut<'_>) {
    let cols = table.cols();
    assert_eq!((out.rows(), out.cols()), (tokens.len(), cols), "embed: shape of out");
    let out = out.share();
    lane.for_each(Op::Embed, tokens.len(), cols / 4, |r, _| {
        // SAFETY: each row is one item, done once.
        let out = unsafe { out.row(r) };
        let row = (tokens[r] as usize).checked_sub(first).filter(|row| *row < table.rows());
        let Some(row) = row else { return out.fill(0.0) };
        let range = row * cols..(row + 1) * cols;
        match table.data() {
            TableRows::F32(rows) => out.copy_from_slice(&rows[range]),
            TableRows::Bf16(rows) => out.iter_mut().zip(&rows[range]).for_each(|(y, x)| *y = x.to_f32()),
        }
        if scale != 1.0 {
            out.iter_mut().for_each(|x| *x *= scale);
        }
    });
}
