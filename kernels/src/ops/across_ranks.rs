//! What the ranks of the lane's group compute together.
//!
//! all_reduce: each element of `x` becomes the sum of what the ranks have there, added up from rank 0 on.
//! broadcast: what one rank has becomes what others have.
//! all_gather: the columns that the ranks have of the same rows, side by side.

use crate::collective::part;
use crate::memory::{View, ViewMut};
use crate::{CollectiveError, Lane, Op};
use std::ops::Range;

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

/// The same over the ranks that have the same layers.
///
/// # Errors
/// As [`all_reduce`].
///
/// # Panics
/// As [`all_reduce`].
pub fn all_reduce_of_stage(lane: &Lane, mut x: ViewMut<'_>) -> Result<(), CollectiveError> {
    if lane.stage().ranks() == 1 {
        return Ok(());
    }
    lane.with_group(Op::AllReduce, |_, _| lane.stage().all_reduce_sum(x.as_slice_mut()))
}

/// The `x` of rank `root` becomes that of the ranks in `to`.
///
/// # Errors
/// As [`all_reduce`].
///
/// # Panics
/// As [`all_reduce`].
pub fn broadcast(
    lane: &Lane,
    root: usize,
    to: Range<usize>,
    mut x: ViewMut<'_>,
) -> Result<(), CollectiveError> {
    lane.with_group(Op::Broadcast, |group, _| group.broadcast(root, to, x.as_slice_mut()))
}

/// Columns that travel in one call: what is brought, and what all brought, is held in memory beside the tensors.
const AT_ONCE: usize = 1 << 20;

/// Row `r` of `all` becomes row `r` of every rank's `own`, one rank after the other. `own` are the columns of `all` that
/// [`part`] gives this rank.
///
/// # Errors
/// The group is lost: see [`CollectiveError`].
///
/// # Panics
/// If rows differ, or `own` has not the columns that this rank has of `all`.
pub fn all_gather(lane: &Lane, own: View<'_>, mut all: ViewMut<'_>) -> Result<(), CollectiveError> {
    let (rank, ranks) = (lane.group().rank(), lane.group().ranks());
    let columns = all.cols();
    let of = |rank| part(columns, rank, ranks);
    assert_eq!((own.rows(), own.cols()), (all.rows(), of(rank).len()), "all_gather: shape of own");
    // The first rank's part is the largest; the others bring a rest that nobody reads.
    let width = of(0).len();
    let rows_at_once = (AT_ONCE / columns.max(1)).max(1);
    lane.with_group(Op::AllGather, |group, scratch| {
        for first in (0..own.rows()).step_by(rows_at_once) {
            let rows = first..own.rows().min(first + rows_at_once);
            let brought = rows.len() * width;
            let [mine, everyones] = scratch.floats([brought, ranks * brought]);
            for (row, place) in rows.clone().zip(mine.chunks_exact_mut(width)) {
                place[..own.cols()].copy_from_slice(own.row(row));
            }
            group.all_gather(mine, everyones)?;
            for (rank, theirs) in everyones.chunks_exact(brought).enumerate() {
                for (row, place) in rows.clone().zip(theirs.chunks_exact(width)) {
                    all.row_mut(row)[of(rank)].copy_from_slice(&place[..of(rank).len()]);
                }
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::in_process;
    use crate::{Isa, Partition, Tensor};
    use std::sync::Arc;
    use std::time::Duration;

    #[test]
    fn columns_of_all_ranks_stand_side_by_side() {
        // The last is more than travels in one call.
        for (rows, columns) in [(1, 4), (3, 10), (5, 7), (2, 5), (3, AT_ONCE / 2 + 3)] {
            let values: Vec<f32> = (0..rows * columns).map(|i| i as f32).collect();
            let whole = Tensor::from_rows(columns, &values);
            for ranks in [1, 2, 3, 4] {
                std::thread::scope(|scope| {
                    for group in in_process(ranks, Duration::from_secs(60)) {
                        let whole = &whole;
                        scope.spawn(move || {
                            let own = whole.view(rows).columns(part(columns, group_rank(&group), ranks));
                            let mut lane = Lane::new(&Partition { cores: vec![0] }, Isa::Portable).unwrap();
                            lane.join(Arc::new(group));
                            let mut all = Tensor::zeros(rows, columns);
                            all_gather(&lane, own, all.view_mut(rows)).unwrap();
                            for r in 0..rows {
                                assert_eq!(all.row(r), whole.row(r), "{rows} {columns} {ranks}");
                            }
                        });
                    }
                });
            }
        }
    }

    fn group_rank(group: &crate::collective::InProcess) -> usize {
        crate::Collective::rank(group)
    }
}
