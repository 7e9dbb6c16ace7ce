//! matmul_experts: the products of a mixture of experts, each row with the matrix of the expert that it goes to. All experts are one job of
//! the lane, whose items are strips of one expert: each matrix is read once, and workers meet once, however many experts there are and
//! however few rows each has. A row's bits are those of [`matmul`](super::matmul) with its matrix.

use super::super::activate::{Activation, activate};
use super::strip::{Job, STRIP};
use super::{Activated, Biased, Slabs, run_slabs};
use crate::memory::{Matrix, Vector, View, ViewMut};
use crate::ops::write::Write;
use crate::{Lane, Op};
use std::ops::Range;

/// Rows of a pass by the experts that they go to: see [`Routing`](crate::ops::Routing). A row is here once for each of its experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups<'a> {
    /// The expert of each group.
    pub experts: &'a [u32],
    /// Where each group begins among all rows, and where the last one ends.
    pub starts: &'a [u32],
    /// Of each row of the groups, which of the pass it is.
    pub rows: &'a [u32],
}

impl Groups<'_> {
    /// Rows of all groups.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Rows of a group among those of these groups.
    fn rows_of(&self, group: usize) -> Range<usize> {
        let at = |group: usize| (self.starts[group] - self.starts[0]) as usize;
        at(group)..at(group + 1)
    }
}

/// The matrix of an expert, and its bias.
type Of<'f, 'a> = &'f (dyn Fn(usize) -> (&'a Matrix, Option<&'a Vector>) + Sync);

/// The rows of `x` that the groups name, times the matrix of their expert; row `i` of `projected` and `out` is row `i` of the groups. They are
/// activated on the way: see [`matmul_activated`](super::matmul_activated).
///
/// # Panics
/// If the groups name a row that `x` has not, a group has none, or shapes do not fit.
pub fn matmul_experts_activated<'a>(
    lane: &Lane,
    x: View<'_>,
    groups: Groups<'_>,
    w: Of<'_, 'a>,
    mut projected: ViewMut<'_>,
    (activation, out): (Activation, ViewMut<'_>),
) {
    let (outputs, width) = (projected.cols(), out.cols());
    let gated = outputs == 2 * width;
    assert_eq!(
        (out.rows(), outputs),
        (groups.len(), if gated { 2 * width } else { width }),
        "matmul_experts: activated"
    );
    let chosen = Some(groups.rows);
    if gated && !width.is_multiple_of(STRIP) {
        run(lane, (x, chosen), groups, w, projected.reborrow(), None);
        return activate(lane, projected.as_view(), activation, out);
    }
    let activated = Activated { activation, gated, out: out.share() };
    run(lane, (x, chosen), groups, w, projected, Some(activated));
}

/// The rows of `x`, which are those of the groups, times the matrix of their expert.
///
/// # Panics
/// If a group has no rows, or shapes do not fit.
pub fn matmul_experts<'a>(lane: &Lane, x: View<'_>, groups: Groups<'_>, w: Of<'_, 'a>, out: ViewMut<'_>) {
    assert_eq!(x.rows(), groups.len(), "matmul_experts: rows of x");
    run(lane, (x, None), groups, w, out, None);
}

fn run<'a>(
    lane: &Lane,
    (x, chosen): (View<'_>, Option<&[u32]>),
    groups: Groups<'_>,
    w: Of<'_, 'a>,
    out: ViewMut<'_>,
    activated: Option<Activated<'_>>,
) {
    let Some(first) = groups.experts.first() else { return };
    let (shape, _) = w(*first as usize);
    assert_eq!(x.cols(), shape.in_features(), "matmul_experts: columns of x and inputs of w");
    assert_eq!(
        (out.rows(), out.cols()),
        (groups.len(), shape.out_features()),
        "matmul_experts: shape of out"
    );
    let isa = lane.supported().isa();
    let slabs = |group| Slabs::of(groups.rows_of(group).len(), isa);
    let count = groups.experts.len();
    // Else slabs would be taken for groups below.
    assert!(
        (0..count).all(|group| !groups.rows_of(group).is_empty()),
        "matmul_experts: a group without rows"
    );
    let all: usize = (0..count).map(|group| slabs(group).count).sum();
    // Which group a slab is of, and which of its slabs.
    let place = |slab: usize| {
        if all == count {
            return (slab, 0);
        }
        let (mut group, mut own) = (0, slab);
        while own >= slabs(group).count {
            own -= slabs(group).count;
            group += 1;
        }
        (group, own)
    };
    let job = Job { x, chosen, norm: None, w: shape, bias: None, out: out.share(), write: Write::Replace };
    run_slabs(lane, Op::MatmulExperts, &job, (all, groups.len().div_ceil(all)), activated, &|slab| {
        let (group, own) = place(slab);
        let (expert, start, part) =
            (groups.experts[group] as usize, groups.rows_of(group).start, slabs(group).part(own));
        let (w, bias) = w(expert);
        let bias = bias.map(Vector::as_slice);
        assert_eq!(
            (w.in_features(), w.out_features(), bias.map_or(w.out_features(), <[f32]>::len)),
            (shape.in_features(), shape.out_features(), shape.out_features()),
            "shape of an expert"
        );
        (Biased { w, bias }, start + part.start..start + part.end)
    });
}
