//! matmul: `out = x w^T + bias`, added to what `out` holds if asked (the residual of a transformer layer).
//!
//! Each output element is one chain of additions over the inputs in order, then the bias, then the old value. On
//! AVX-512 BF16 and AMX the activations are rounded to bf16 where the weights are bf16; where the weights are int8 the activations are
//! quantised to int8, and the chain goes block by block (`simd/int8.rs`): there all sets give the same bits. Workers share out
//! strips of 64 outputs; each packs the activations it needs for itself: that is cheaper than a barrier.

mod activations;
#[cfg(target_arch = "x86_64")]
mod bytes_in_tiles;
mod strip;
#[cfg(target_arch = "x86_64")]
pub(super) mod tiles;

use crate::memory::{Matrix, PANEL, Panels, Vector, View, ViewMut};
use crate::simd::{DotBf16, DotInt8, FmaBf16, FmaF32, Kernel, Simd, dispatch, dispatch_bytes};
use crate::{Isa, Lane};
use half::bf16;
use strip::{Job, compute};

/// What becomes of the old content of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// Overwritten.
    Replace,
    /// Added to.
    Add,
}

/// Outputs of a strip, what one worker does at a time: two panels.
const STRIP: usize = 2 * PANEL;
/// Most rows whose packed activations stay in a core's cache while it goes through its strips.
fn slab(isa: Isa) -> usize {
    if isa == Isa::Amx { 128 } else { 56 }
}

/// Multiplies each row of `x` by the matrix.
///
/// # Panics
/// If the columns of `x` are not the matrix's inputs, those of `out` not its outputs, rows differ, or the
/// bias has another length.
pub fn matmul(lane: &Lane, x: View<'_>, w: &Matrix, bias: Option<&Vector>, out: ViewMut<'_>, write: Write) {
    let (rows, inputs, outputs) = (x.rows(), w.in_features(), w.out_features());
    assert_eq!(x.cols(), inputs, "matmul: columns of x and inputs of w");
    assert_eq!((out.rows(), out.cols()), (rows, outputs), "matmul: shape of out");
    let bias = bias.map(Vector::as_slice);
    assert!(bias.is_none_or(|bias| bias.len() == outputs), "matmul: length of the bias");
    let job = Job { x, w, bias, out: out.share(), write };
    // Items go slab by slab, each through all strips.
    let isa = lane.supported();
    let slabs = rows.div_ceil(slab(isa.isa()));
    let slab_rows = rows.div_ceil(slabs.max(1));
    let strips = outputs.div_ceil(STRIP);
    // Read at some 40 GB/s, or multiplied at some 450 GFLOP/s.
    let weights = STRIP * inputs;
    let strip_ns = (weights * w.dtype().bytes() / 40).max(weights * slab_rows / 225);
    lane.run(crate::Op::Matmul, slabs * strips, strip_ns, &|claims, scratch| {
        let mut packed = None;
        while let Some(range) = claims.next() {
            for item in range {
                let (slab, strip) = (item / strips, item % strips);
                let rows = slab * slab_rows..rows.min((slab + 1) * slab_rows);
                let fresh = packed.replace(slab) != Some(slab);
                let strip = Strip { job: &job, rows, strip, fresh, scratch };
                match w.panels() {
                    Panels::F32(weights) => dispatch(isa, Of { strip, weights: &weights[..] }),
                    Panels::Bf16(weights) => dispatch(isa, Of { strip, weights: &weights[..] }),
                    Panels::Int8(weights) => dispatch_bytes(isa, Of { strip, weights: &weights[..] }),
                }
            }
        }
    });
}

/// One strip for one slab of rows.
struct Strip<'a> {
    job: &'a Job<'a>,
    rows: std::ops::Range<usize>,
    strip: usize,
    /// Whether the activations of these rows must be packed first.
    fresh: bool,
    scratch: &'a mut crate::lane::Scratch,
}

/// A strip of a matrix with these weights, all of them.
struct Of<'a, W> {
    strip: Strip<'a>,
    weights: &'a [W],
}

impl Kernel for Of<'_, f32> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // SAFETY: the weights are packed as f32; a strip is one item, done once.
        unsafe { compute::<S, FmaF32>(s, self.strip, self.weights) }
    }
}

impl Kernel for Of<'_, bf16> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // SAFETY: the weights are packed as bf16, and `DOTS` is true where it must be; a strip is one item, done once.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            if S::TILES {
                return tiles::compute(s, self.strip, self.weights);
            }
            if S::DOTS {
                compute::<S, DotBf16>(s, self.strip, self.weights);
            } else {
                compute::<S, FmaBf16>(s, self.strip, self.weights);
            }
        }
    }
}

impl Kernel for Of<'_, u32> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // SAFETY: words are the weights of int8, packed for it; a strip is one item, done once.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            if S::TILES && self.strip.rows.len() >= bytes_in_tiles::LEAST_ROWS {
                return bytes_in_tiles::compute(s, self.strip, self.weights);
            }
            compute::<S, DotInt8>(s, self.strip, self.weights);
        }
    }
}
