//! Whole rows, copied.
//!
//! embed: row `r` of `out` becomes the table's row of token `r`, in f32, times `scale`. embed_part: as if all tokens
//! that the table has not had rows of zeros; what ranks with parts of a table sum up to its rows.
//! gather_rows: row `r` of `out` becomes row `indices[r]` of `x`. What the LM head and scores of a few tokens begin with.
//! compact_rows: in place, row `i` becomes row `keep[i]`. What stays of a pass when rows leave it.

use crate::memory::{Table, TableRows, View, ViewMut};
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

/// Moves the rows named by `keep` to the front, in order; what the rows after them hold is of no use any more.
///
/// # Panics
/// If `keep` does not ascend strictly, or names a row that `x` has not.
pub fn compact_rows(mut x: ViewMut<'_>, keep: &[u32]) {
    assert!(keep.is_sorted_by(|a, b| a < b), "compact_rows: {keep:?} does not ascend");
    let rows = x.rows();
    assert!(keep.last().is_none_or(|last| (*last as usize) < rows), "compact_rows: {keep:?} of {rows} rows");
    // A row comes from where it is or from further back: what is written was read, or leaves.
    for (to, from) in keep.iter().enumerate().filter(|(to, from)| *to != **from as usize) {
        x.copy_row(*from as usize, to);
    }
}
