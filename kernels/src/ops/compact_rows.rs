//! compact_rows: in place, row `i` becomes row `keep[i]`. What stays of a pass when rows leave it.

use crate::memory::ViewMut;

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
