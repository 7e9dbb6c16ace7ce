//! silu_mul: `out = silu(gate) * up`, where the columns of `gate_up` are `gate | up` and `silu(x) = x / (1 + e^-x)`.

use crate::memory::{View, ViewMut};
use crate::simd::{Kernel, Simd, dispatch, exp};
use crate::{Lane, Op};

/// The gated activation of a Llama MLP.
///
/// # Panics
/// If `gate_up` does not have the rows and twice the columns of `out`.
pub fn silu_mul(lane: &Lane, gate_up: View<'_>, out: ViewMut<'_>) {
    let (rows, cols) = (out.rows(), out.cols());
    assert_eq!((gate_up.rows(), gate_up.cols()), (rows, 2 * cols), "silu_mul: shape of gate_up");
    let out = out.share();
    let isa = lane.supported();
    lane.for_each(Op::SiluMul, rows, cols / 4, |r, _| {
        let (gate, up) = gate_up.row(r).split_at(cols);
        // SAFETY: each row is one item, done once.
        dispatch(isa, SiluMul { gate, up, out: unsafe { out.row(r) } });
    });
}

struct SiluMul<'a> {
    gate: &'a [f32],
    up: &'a [f32],
    out: &'a mut [f32],
}

impl Kernel for SiluMul<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let one = s.splat(1.0);
        let inputs = self.gate.chunks(S::LANES).zip(self.up.chunks(S::LANES));
        for ((gate, up), out) in inputs.zip(self.out.chunks_mut(S::LANES)) {
            let (gate, up) = (s.load_some(gate), s.load_some(up));
            let silu = s.div(gate, s.add(one, exp(s, s.sub(s.splat(0.0), gate))));
            s.store_some(out, s.mul(silu, up));
        }
    }
}
