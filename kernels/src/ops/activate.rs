//! Functions of each number.
//!
//! activate: the activation of an MLP: `out = f(gate) * up` where the columns of `x` are `gate | up`, or `out = f(x)` where there is no gate.
//! soft_cap: `x = cap tanh(x / cap)`, in place: no logit is larger than `cap` (Gemma 2).

use crate::isa::Supported;
use crate::memory::{View, ViewMut};
use crate::simd::{Kernel, Simd, dispatch, exp, tanh};
use crate::{Lane, Op};

/// The function. `kernels/cuda/activate.cu` has the same ones, by their place here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x / (1 + e^-x)`.
    Silu,
    /// `x Phi(x)`, Phi by a hyperbolic tangent: `x / (1 + e^-2u)`, `u = sqrt(2 / pi) (x + 0.044715 x^3)` (Hendrycks and Gimpel 2016).
    GeluTanh,
    /// `x Phi(x)`, Phi the normal distribution's.
    Gelu,
    /// `max(x, 0)^2`.
    ReluSquared,
    /// `x / (1 + e^-1.702x)` of an `x` of 7 at most, and times `up + 1` where it is the gate of an `up`, which counts from -7 to 7 (gpt-oss).
    SwigluOai,
}

/// What [`Activation::SwigluOai`] clamps to.
const SWIGLU_LIMIT: f32 = 7.0;

impl Activation {
    /// All there are.
    pub const ALL: [Activation; 5] = [
        Activation::Silu,
        Activation::GeluTanh,
        Activation::Gelu,
        Activation::ReluSquared,
        Activation::SwigluOai,
    ];

    /// The names that config.json may have: those of transformers. The last has none.
    pub const NAMES: [(Activation, &[&str]); 4] = [
        (Activation::Silu, &["silu", "swish"]),
        (Activation::GeluTanh, &["gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu_python_tanh"]),
        (Activation::Gelu, &["gelu", "gelu_python"]),
        (Activation::ReluSquared, &["relu2"]),
    ];

    /// By such a name.
    #[must_use]
    pub fn named(name: &str) -> Option<Activation> {
        Self::NAMES.iter().find(|(_, names)| names.contains(&name)).map(|(activation, _)| *activation)
    }

    /// Its value.
    #[inline(always)]
    fn of<S: Simd>(self, s: S, x: S::F) -> S::F {
        let (zero, one) = (s.splat(0.0), s.splat(1.0));
        match self {
            Activation::Silu => s.div(x, s.add(one, exp(s, s.sub(zero, x)))),
            Activation::GeluTanh => {
                let cubic = s.mul_add(s.mul(x, x), s.splat(0.044_715), one);
                s.div(x, s.add(one, exp(s, s.mul(s.mul(x, s.splat(-1.595_769)), cubic))))
            }
            Activation::Gelu => {
                let tail = s.mul(upper_tail(s, s.max(x, s.sub(zero, x))), s.max(x, s.sub(zero, x)));
                s.sub(s.max(x, zero), tail)
            }
            Activation::ReluSquared => s.select(s.less(x, zero), zero, s.mul(x, x)),
            Activation::SwigluOai => {
                let x = s.min(x, s.splat(SWIGLU_LIMIT));
                s.div(x, s.add(one, exp(s, s.mul(s.splat(-1.702), x))))
            }
        }
    }

    /// Its value where it is the gate of `up`.
    #[inline(always)]
    fn gating<S: Simd>(self, s: S, gate: S::F, up: S::F) -> S::F {
        let up = match self {
            Activation::SwigluOai => {
                let up = s.max(s.min(up, s.splat(SWIGLU_LIMIT)), s.splat(-SWIGLU_LIMIT));
                s.add(up, s.splat(1.0))
            }
            _ => up,
        };
        s.mul(self.of(s, gate), up)
    }
}

/// `1 - Phi(x)` for `x` of 0 or more: `e^(-x^2 / 2) t Q(t)` with `t = 1 / (1 + 0.3 x / sqrt 2)`. Q, of degree 8, goes through the exact
/// values at Chebyshev's nodes for x up to 9.9; its relative error is 2e-8.
#[inline(always)]
fn upper_tail<S: Simd>(s: S, x: S::F) -> S::F {
    let t = s.div(s.splat(1.0), s.mul_add(x, s.splat(0.3 * std::f32::consts::FRAC_1_SQRT_2), s.splat(1.0)));
    let mut q = s.splat(-0.125_708_17);
    for c in [
        0.465_423_4,
        -0.466_601_53,
        0.489_652_93,
        -0.049_437_64,
        0.192_866_16,
        0.154_920_3,
        0.169_618_36,
        0.169_266_16,
    ] {
        q = s.mul_add(q, t, s.splat(c));
    }
    let power = exp(s, s.mul(s.mul(x, x), s.splat(-0.5)));
    s.mul(s.mul(power, s.splat(0.5)), s.mul(t, q))
}

/// Activates each row; with a gate if `x` has twice the columns of `out`.
///
/// # Panics
/// If `x` does not have the rows, and the columns or twice the columns, of `out`.
pub fn activate(lane: &Lane, x: View<'_>, activation: Activation, out: ViewMut<'_>) {
    let (rows, cols) = (out.rows(), out.cols());
    let gated = x.cols() == 2 * cols;
    assert_eq!((x.rows(), x.cols()), (rows, if gated { 2 * cols } else { cols }), "activate: shape of x");
    let out = out.share();
    let isa = lane.supported();
    lane.for_each(Op::Activate, rows, cols / 4, |r, _| {
        let (gate, up) = x.row(r).split_at(cols);
        // SAFETY: each row is one item, done once.
        Row { gate, up, out: unsafe { out.row(r) } }.activate(isa, activation);
    });
}

/// A row, or some columns of it.
pub(super) struct Row<'a> {
    pub(super) gate: &'a [f32],
    /// Empty without a gate.
    pub(super) up: &'a [f32],
    pub(super) out: &'a mut [f32],
}

impl Row<'_> {
    /// Activates it.
    pub(super) fn activate(self, isa: Supported, activation: Activation) {
        match activation {
            Activation::Silu => dispatch(isa, Activate::<0>(self)),
            Activation::GeluTanh => dispatch(isa, Activate::<1>(self)),
            Activation::Gelu => dispatch(isa, Activate::<2>(self)),
            Activation::ReluSquared => dispatch(isa, Activate::<3>(self)),
            Activation::SwigluOai => dispatch(isa, Activate::<4>(self)),
        }
    }
}

/// With the function of this place among all.
struct Activate<'a, const ACTIVATION: usize>(Row<'a>);

impl<const ACTIVATION: usize> Kernel for Activate<'_, ACTIVATION> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Row { gate, up, out } = self.0;
        let activation = Activation::ALL[ACTIVATION];
        if up.is_empty() {
            for (x, out) in gate.chunks(S::LANES).zip(out.chunks_mut(S::LANES)) {
                s.store_some(out, activation.of(s, s.load_some(x)));
            }
            return;
        }
        let inputs = gate.chunks(S::LANES).zip(up.chunks(S::LANES));
        for ((gate, up), out) in inputs.zip(out.chunks_mut(S::LANES)) {
            let (gate, up) = (s.load_some(gate), s.load_some(up));
            s.store_some(out, activation.gating(s, gate, up));
        }
    }
}

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
