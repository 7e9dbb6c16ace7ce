//! all_reduce: each element of `x` becomes the sum of what the ranks of the lane's group have there, added up from rank 0 on.

use crate::memory::ViewMut;
use crate::{CollectiveError, Lane, Op};

/// Sums over the ranks, in place; alone, nothing is to be done.
///
/// # Errors
/// The group is lost: see [`CollectiveError`].
///
/// # Panics
/// If `x` is only some columns of a tensor.
pub fn all_reduce(lane: &Lane, mut x: ViewMut<'_>) -> Result<(), CollectiveError> {
    if lane.group().ranks() == 1 {
        return Ok(());
    }
    lane.with_group(Op::AllReduce, |group, _| group.all_reduce_sum(x.as_slice_mut()))
}
