//! matmul: `out = x w^T + bias`, added to what `out` holds if asked (the residual of a transformer layer).
//!
//! Each output element is one chain of additions over the inputs in order, then the bias, then the old value. On
//! AVX-512 BF16 and AMX the activations are rounded to bf16 where the weights are bf16; where the weights are int8 the activations are
//! quantised to int8, and the chain goes block by block (`simd/int8.rs`): there all sets give the same bits; so it is in int4. With AMX,
//! bf16 goes in tiles (`amx_strip.rs`), and so do int8 and int4 among many rows (`amx_whole.rs`). Workers divide strips of 32 or 64 outputs; each packs the activations it needs for itself: that is cheaper than a barrier.

#[cfg(target_arch = "x86_64")]
pub(super) mod amx_strip;
#[cfg(target_arch = "x86_64")]
mod amx_whole;
mod experts;
mod strip;

pub use self::experts::{Groups, matmul_experts, matmul_experts_activated};
use super::Norm;
use super::activate::{Activation, Row, activate};
use crate::isa::Supported;
use crate::memory::{FourBitForm, Matrix, PANEL, Panels, SharedRows, Vector, View, ViewMut};
use crate::ops::write::Write;
#[cfg(target_arch = "x86_64")]
use crate::simd::dispatch_tiles;
use crate::simd::{
    DotBf16, DotWhole, E2m1Codes, FmaBf16, FmaF32, Held, Int4, Int8, Kernel, Minima, Product, Simd,
    Symmetric, ZeroPoints, dispatch, dispatch_bytes,
};
use crate::{Isa, Lane, Op};
use half::bf16;
use std::marker::PhantomData;
use std::ops::Range;
use strip::{Job, STRIP, Strips, compute};

/// Most rows whose packed activations stay in a core's cache while it goes through its strips.
fn slab(isa: Isa) -> usize {
    if isa == Isa::Amx { 128 } else { 64 }
}

/// Bytes of a panel, at most, that vectors ask for ahead of their use. On a Xeon with AMX the line buffers were full, and a core stood, where it
/// asked further ahead than 2.5 KiB; on other processors nothing nearer than 8 KiB was measured.
fn ahead(isa: Isa) -> usize {
    if isa == Isa::Amx { 2304 } else { 8 * 1024 }
}

/// Outputs of a strip: tiles go through one panel after the other, vectors through two at once.
fn strip(isa: Isa, w: &Matrix) -> usize {
    if isa == Isa::Amx && matches!(w.panels(), Panels::Bf16(_)) { PANEL } else { STRIP }
}

/// Multiplies each row of `x` by the matrix.
///
/// # Panics
/// If the columns of `x` are not the matrix's inputs, those of `out` not its outputs, rows differ, or the
/// bias has another length.
pub fn matmul(lane: &Lane, x: View<'_>, w: &Matrix, bias: Option<&Vector>, out: ViewMut<'_>, write: Write) {
    run(lane, &job(x, None, w, bias, out, write), None);
}

/// [`rms_norm`](super::rms_norm), if there is one, then [`matmul`], with the same bits: each worker normalises what it packs, so that nothing
/// is written for others to read.
///
/// # Panics
/// As [`matmul`]; if the norm is not as long as a row of `x`.
pub fn matmul_normed(
    lane: &Lane,
    x: View<'_>,
    norm: Option<Norm<'_>>,
    w: &Matrix,
    bias: Option<&Vector>,
    out: ViewMut<'_>,
) {
    run(lane, &job(x, norm, w, bias, out, Write::Replace), None);
}

/// [`matmul_normed`] to `projected`, then this [`activate`](super::activate), to `out`, with the same bits: a worker activates what it has
/// just computed.
///
/// # Panics
/// As both of them.
pub fn matmul_activated(
    lane: &Lane,
    x: View<'_>,
    norm: Option<Norm<'_>>,
    w: &Matrix,
    bias: Option<&Vector>,
    mut projected: ViewMut<'_>,
    (activation, out): (Activation, ViewMut<'_>),
) {
    let (outputs, width) = (w.out_features(), out.cols());
    let gated = outputs == 2 * width;
    if gated && !width.is_multiple_of(STRIP) {
        // A strip is of both.
        matmul_normed(lane, x, norm, w, bias, projected.reborrow());
        return activate(lane, projected.as_view(), activation, out);
    }
    assert_eq!((out.rows(), outputs), (x.rows(), if gated { 2 * width } else { width }), "matmul: activated");
    let activated = Activated { activation, gated, out: out.share() };
    run(lane, &job(x, norm, w, bias, projected, Write::Replace), Some(activated));
}

/// What becomes of the outputs of a matmul.
#[derive(Clone, Copy)]
struct Activated<'a> {
    activation: Activation,
    /// The second half of the outputs are what those of the first half are gates of.
    gated: bool,
    out: SharedRows<'a>,
}

/// Looks at the shapes.
fn job<'a>(
    x: View<'a>,
    norm: Option<Norm<'a>>,
    w: &'a Matrix,
    bias: Option<&'a Vector>,
    out: ViewMut<'a>,
    write: Write,
) -> Job<'a> {
    let (inputs, outputs) = (w.in_features(), w.out_features());
    assert_eq!(x.cols(), inputs, "matmul: columns of x and inputs of w");
    assert!(norm.is_none_or(|norm| norm.weight.len() == inputs), "matmul: length of the norm");
    assert_eq!((out.rows(), out.cols()), (x.rows(), outputs), "matmul: shape of out");
    let bias = bias.map(Vector::as_slice);
    assert!(bias.is_none_or(|bias| bias.len() == outputs), "matmul: length of the bias");
    Job { x, chosen: None, norm, w, bias, out: out.share(), write }
}

fn run(lane: &Lane, job: &Job<'_>, activated: Option<Activated<'_>>) {
    let rows = job.x.rows();
    let slabs = Slabs::of(rows, lane.supported().isa());
    run_slabs(lane, Op::Matmul, job, (slabs.count, slabs.rows), activated, &|slab| {
        (Biased { w: job.w, bias: job.bias }, slabs.part(slab))
    });
}

/// Rows in even parts, none with more than stay in a core's cache.
#[derive(Clone, Copy)]
struct Slabs {
    all: usize,
    count: usize,
    /// Of each but the last, which may have fewer.
    rows: usize,
}

impl Slabs {
    fn of(all: usize, isa: Isa) -> Slabs {
        let count = all.div_ceil(slab(isa));
        Slabs { all, count, rows: all.div_ceil(count.max(1)) }
    }

    fn part(self, slab: usize) -> Range<usize> {
        slab * self.rows..self.all.min((slab + 1) * self.rows)
    }
}

/// A matrix, and what is added to its products.
#[derive(Clone, Copy)]
struct Biased<'a> {
    w: &'a Matrix,
    bias: Option<&'a [f32]>,
}

/// Does the work of `slabs`, each some rows of the job (about `slab_rows`) and a matrix shaped as the job's.
fn run_slabs<'a>(
    lane: &Lane,
    op: Op,
    job: &Job<'a>,
    (slabs, slab_rows): (usize, usize),
    activated: Option<Activated<'_>>,
    part: &(dyn Fn(usize) -> (Biased<'a>, Range<usize>) + Sync),
) {
    let (inputs, out_features) = (job.w.in_features(), job.w.out_features());
    // Items go slab by slab, each through all strips; a strip that is activated goes with those that it is the gates of.
    let isa = lane.supported();
    let gated = activated.is_some_and(|activated| activated.gated);
    let strip = strip(isa.isa(), job.w);
    let strips = out_features.div_ceil(strip) / if gated { 2 } else { 1 };
    // Read at some 40 GB/s, or multiplied at some 450 GFLOP/s.
    let weights = strip * inputs * if gated { 2 } else { 1 };
    let item_ns = (weights * job.w.dtype().bits() / 320).max(weights * slab_rows / 225);
    lane.run(op, slabs * strips, item_ns, &|queue, scratch| {
        let mut packed = None;
        while let Some(mut items) = queue.next() {
            while !items.is_empty() {
                // Of one slab: consecutive strips.
                let slab = items.start / strips;
                let end = items.end.min((slab + 1) * strips);
                let (Biased { w, bias }, rows) = part(slab);
                let job = &Job { w, bias, ..*job };
                let first = items.start % strips * strip..(end - slab * strips) * strip;
                let second = gated.then_some(strips * strip + first.start..strips * strip + first.end);
                for outputs in [Some(first.clone()), second].into_iter().flatten() {
                    let fresh = packed.replace(slab) != Some(slab);
                    let outputs = outputs.start..outputs.end.min(out_features);
                    let strips =
                        Strips { job, rows: rows.clone(), outputs, fresh, scratch, ahead: ahead(isa.isa()) };
                    // SAFETY: they are strips of this matrix, and of items that are done once.
                    unsafe { over_panels(isa, w, strips) };
                }
                if let Some(activated) = activated {
                    // SAFETY: the items' strips are done, and nobody else's.
                    unsafe { activated.columns(isa, job, rows, first) };
                }
                items.start = end;
            }
        }
    });
}

impl Activated<'_> {
    /// Activates some columns of some rows.
    ///
    /// # Safety
    /// No other worker has these columns, nor those that they are the gates of.
    unsafe fn columns(self, isa: Supported, job: &Job<'_>, rows: Range<usize>, columns: Range<usize>) {
        let (width, first) = (self.out.cols, columns.start);
        let len = columns.end.min(width) - first;
        for row in rows {
            // SAFETY: the caller's promise.
            unsafe {
                let gate = job.out.part(row, first, len);
                let up = if self.gated { job.out.part(row, width + first, len) } else { &mut [] };
                Row { gate, up, out: self.out.part(row, first, len) }.activate(isa, self.activation);
            }
        }
    }
}

impl OverPanels for Strips<'_> {
    #[inline(always)]
    unsafe fn in_vectors<S: Simd, Q: Product<S>>(self, s: S, weights: &[Q::Weight]) {
        // SAFETY: the caller's promise.
        unsafe { compute::<S, Q>(s, self, weights) }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn in_tiles<S: Simd>(self, s: S, weights: &[bf16]) {
        // SAFETY: the caller's promise.
        unsafe { amx_strip::compute(s, self, weights) }
    }

    #[cfg(target_arch = "x86_64")]
    fn whole_in_tiles(&self) -> bool {
        self.rows.len() >= amx_whole::LEAST_ROWS
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn in_tiles_of_bytes<S: Simd, H: Held>(self, s: S, weights: &[u32]) {
        // SAFETY: the caller's promise.
        unsafe { amx_whole::compute::<S, H>(s, self, weights) }
    }
}

/// Products with a matrix, in whatever its weights are held. All is inlined into what is compiled for the instruction
/// set.
pub(super) trait OverPanels: Sized {
    /// # Safety
    /// `weights` are those of the matrix, packed for `Q`; [`DotBf16`] needs `S::DOTS`. No other worker writes the same
    /// outputs.
    unsafe fn in_vectors<S: Simd, Q: Product<S>>(self, s: S, weights: &[Q::Weight]);

    /// # Safety
    /// `S::TILES` is true; else as above.
    #[cfg(target_arch = "x86_64")]
    unsafe fn in_tiles<S: Simd>(self, s: S, weights: &[bf16]);

    /// Whether [`OverPanels::in_tiles_of_bytes`] is for it.
    #[cfg(target_arch = "x86_64")]
    fn whole_in_tiles(&self) -> bool {
        false
    }

    /// # Safety
    /// As for `in_tiles`, with weights held as `H`.
    ///
    /// # Panics
    /// If it is not for this work.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn in_tiles_of_bytes<S: Simd, H: Held>(self, _s: S, _weights: &[u32]) {
        unreachable!("asked first")
    }
}

/// Does the work on the panels of a matrix.
///
/// # Safety
/// The work is on this matrix, and no other worker writes the same outputs.
pub(super) unsafe fn over_panels(isa: Supported, w: &Matrix, work: impl OverPanels) {
    match w.panels() {
        Panels::F32(weights) => dispatch(isa, Of { work, weights: &weights[..] }),
        Panels::Bf16(weights) => dispatch(isa, Of { work, weights: &weights[..] }),
        // SAFETY: they are held so; the rest is the caller's promise.
        Panels::Int8(weights) => unsafe { over_whole::<Int8>(isa, work, weights) },
        // Each form by itself: compiled together they take three times as long.
        Panels::Int4 { packed, form } => {
            // SAFETY: as above.
            unsafe {
                match form {
                    FourBitForm::Symmetric => over_whole::<Int4<Symmetric>>(isa, work, packed),
                    FourBitForm::Minima => over_whole::<Int4<Minima>>(isa, work, packed),
                    FourBitForm::ZeroPoints => over_whole::<Int4<ZeroPoints>>(isa, work, packed),
                    FourBitForm::E2m1 => over_whole::<Int4<E2m1Codes>>(isa, work, packed),
                }
            }
        }
    }
}

/// # Safety
/// As for [`over_panels`]; the matrix is held as `H`.
unsafe fn over_whole<H: Held>(isa: Supported, work: impl OverPanels, weights: &[u32]) {
    #[cfg(target_arch = "x86_64")]
    if isa.isa() == Isa::Amx && work.whole_in_tiles() {
        // SAFETY: `Supported` says that the machine has it.
        return unsafe { dispatch_tiles(Whole { work, weights, held: PhantomData::<H> }) };
    }
    dispatch_bytes(isa, Whole { work, weights, held: PhantomData::<H> });
}

/// Work on a matrix with these weights, all of them.
struct Of<'a, T, W> {
    work: T,
    weights: &'a [W],
}

impl<T: OverPanels> Kernel for Of<'_, T, f32> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // SAFETY: the weights are packed as f32; the rest is the promise of `over_panels`.
        unsafe { self.work.in_vectors::<S, FmaF32>(s, self.weights) }
    }
}

impl<T: OverPanels> Kernel for Of<'_, T, bf16> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // SAFETY: the weights are packed as bf16, and `DOTS` is true where it must be; the rest is the promise of
        // `over_panels`.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            if S::TILES {
                return self.work.in_tiles(s, self.weights);
            }
            if S::DOTS {
                self.work.in_vectors::<S, DotBf16>(s, self.weights);
            } else {
                self.work.in_vectors::<S, FmaBf16>(s, self.weights);
            }
        }
    }
}

/// Work on a matrix with these whole-numbered weights, held as `H`.
struct Whole<'a, T, H> {
    work: T,
    weights: &'a [u32],
    held: PhantomData<H>,
}

impl<T: OverPanels, H: Held> Kernel for Whole<'_, T, H> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        // SAFETY: the weights are packed for it; the rest is the promise of `over_panels`.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            if S::TILES {
                return self.work.in_tiles_of_bytes::<S, H>(s, self.weights);
            }
            self.work.in_vectors::<S, DotWhole<H>>(s, self.weights);
        }
    }
}
