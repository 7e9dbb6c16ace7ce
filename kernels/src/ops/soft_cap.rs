//! soft_cap: `x = cap tanh(x / cap)`, in place: no logit is larger than `cap` (Gemma 2).

use crate::memory::ViewMut;
use crate::simd::{Kernel, Simd, dispatch, tanh};
use crate::{Lane, Op};

/// Caps each number of each row.
pub fn soft_cap(lane: &Lane, x: ViewMut<'_>, cap: f32) {
    let (rows, cols) = (x.rows(), x.cols());
    let x = x.share();
    let isa = lane.supported();
    lane.for_each(Op::SoftCap, rows, cols / 2, |r, _| {
        // SAFETY: each row is one item, done once.
        dispatch(isa, Cap { x: unsafe { x.row(r) }, cap });
    });
}

struct Cap<'a> {
    x: &'a mut [f32],
    cap: f32,
}

impl Kernel for Cap<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for x in self.x.chunks_mut(S::LANES) {
            s.store_some(x, capped(s, s.load_some(x), self.cap));
        }
    }
}

/// `cap tanh(x / cap)`.
#[inline(always)]
pub(super) fn capped<S: Simd>(s: S, x: S::F, cap: f32) -> S::F {
    s.mul(s.splat(cap), tanh(s, s.mul(x, s.splat(1.0 / cap))))
}
