//! rms_norm: `out = x / sqrt(mean(x^2) + eps) * weight`, row by row (Zhang and Sennrich 2019), or `out +=` it: a norm behind a branch; and
//! the same for each head of a row, in place (the QK norm of Qwen3).

use super::write::Write;
use crate::memory::{Vector, View, ViewMut};
use crate::simd::{Kernel, Simd, dispatch};
use crate::{Lane, Op};

/// Normalises each row of `x`.
///
/// # Panics
/// If `out` has another shape than `x`, or `weight` is not one row.
pub fn rms_norm(lane: &Lane, x: View<'_>, weight: &Vector, eps: f32, out: ViewMut<'_>, write: Write) {
    assert_eq!((out.rows(), out.cols()), (x.rows(), x.cols()), "rms_norm: shape of out");
    assert_eq!(weight.len(), x.cols(), "rms_norm: length of weight");
    let out = out.share();
    let isa = lane.supported();
    lane.for_each(Op::RmsNorm, x.rows(), x.cols() / 4, |r, _| {
        // SAFETY: each row is one item, done once.
        let out = unsafe { out.row(r) };
        let weight = weight.as_slice();
        match write {
            Write::Replace => {
                out.copy_from_slice(x.row(r));
                dispatch(isa, Normalise { x: out, weight, eps });
            }
            Write::Add => dispatch(isa, AddNormal { x: x.row(r), weight, eps, out }),
        }
    });
}

/// Normalises each head of each row of `x`, in place; a head is as long as `weight`.
///
/// # Panics
/// If a row of `x` is not whole heads.
pub fn rms_norm_heads(lane: &Lane, x: ViewMut<'_>, weight: &Vector, eps: f32) {
    let (rows, cols) = (x.rows(), x.cols());
    assert!(
        cols.is_multiple_of(weight.len()),
        "rms_norm_heads: {cols} columns are not heads of {}",
        weight.len()
    );
    let x = x.share();
    let isa = lane.supported();
    lane.for_each(Op::RmsNorm, rows, cols / 4, |r, _| {
        // SAFETY: each row is one item, done once.
        for head in unsafe { x.row(r) }.chunks_exact_mut(weight.len()) {
            dispatch(isa, Normalise { x: head, weight: weight.as_slice(), eps });
        }
    });
}

/// A norm in front of another op: what [`rms_norm`] makes of each row.
#[derive(Clone, Copy)]
pub struct Norm<'a> {
    /// As long as a row.
    pub weight: &'a Vector,
    /// Added to the mean square.
    pub eps: f32,
}

impl Norm<'_> {
    /// `row`, normalised, in `out`.
    #[inline(always)]
    pub(super) fn write<S: Simd>(self, s: S, row: &[f32], out: &mut [f32]) {
        let inverse = inverse(s, row, self.eps);
        // Whole vectors are loaded without a look at their lengths.
        let whole = row.len() - row.len() % S::LANES;
        let [(x, x_rest), (weight, weight_rest)] =
            [row, self.weight.as_slice()].map(|all| all.split_at(whole));
        let (out, out_rest) = out.split_at_mut(whole);
        let vectors = x.chunks_exact(S::LANES).zip(weight.chunks_exact(S::LANES));
        for ((x, weight), out) in vectors.zip(out.chunks_exact_mut(S::LANES)) {
            normal(s, inverse, x, weight, out);
        }
        if !x_rest.is_empty() {
            normal(s, inverse, x_rest, weight_rest, out_rest);
        }
    }
}

/// `x * inverse * weight`, of a vector at most.
#[inline(always)]
fn normal<S: Simd>(s: S, inverse: S::F, x: &[f32], weight: &[f32], out: &mut [f32]) {
    s.store_some(out, s.mul(s.mul(s.load_some(x), inverse), s.load_some(weight)));
}

struct Normalise<'a> {
    x: &'a mut [f32],
    weight: &'a [f32],
    eps: f32,
}

impl Kernel for Normalise<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let inverse = inverse(s, self.x, self.eps);
        for (x, weight) in self.x.chunks_mut(S::LANES).zip(self.weight.chunks(S::LANES)) {
            let normal = s.mul(s.load_some(x), inverse);
            s.store_some(x, s.mul(normal, s.load_some(weight)));
        }
    }
}

/// Leaves `x` as it is.
struct AddNormal<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    out: &'a mut [f32],
}

impl Kernel for AddNormal<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let inverse = inverse(s, self.x, self.eps);
        let inputs = self.x.chunks(S::LANES).zip(self.weight.chunks(S::LANES));
        for ((x, weight), out) in inputs.zip(self.out.chunks_mut(S::LANES)) {
            let normal = s.mul(s.mul(s.load_some(x), inverse), s.load_some(weight));
            s.store_some(out, s.add(s.load_some(out), normal));
        }
    }
}

/// `1 / sqrt(mean(x^2) + eps)`.
#[inline(always)]
fn inverse<S: Simd>(s: S, x: &[f32], eps: f32) -> S::F {
    // Two chains hide the latency of the additions.
    let mut sums = [s.splat(0.0); 2];
    let mut pairs = x.chunks_exact(2 * S::LANES);
    for pair in &mut pairs {
        for (sum, x) in sums.iter_mut().zip(pair.chunks_exact(S::LANES)) {
            let x = s.load_some(x);
            *sum = s.mul_add(x, x, *sum);
        }
    }
    for (sum, x) in sums.iter_mut().zip(pairs.remainder().chunks(S::LANES)) {
        let x = s.load_some(x);
        *sum = s.mul_add(x, x, *sum);
    }
    let mean = s.sum(s.add(sums[0], sums[1])) / x.len() as f32;
    s.splat(1.0 / (mean + eps).sqrt())
}
