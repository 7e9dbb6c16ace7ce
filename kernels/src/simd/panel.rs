//! The inner loop of matmul and of attention's scores: a few rows times a few vectors of outputs.
//!
//! Each output element is one accumulator, added to in the order of its inputs: how many rows or vectors are done
//! together changes nothing.

use super::Simd;
use half::bf16;

/// How one step multiplies: a step is [`Product::INPUTS`] consecutive inputs.
pub(crate) trait Product<S: Simd> {
    /// Type of the packed weights.
    type Weight: Copy;
    /// Inputs of a step, which lie together in the weights.
    const INPUTS: usize;
    /// Words of a row's packed activations in a step.
    const WORDS: usize;

    /// Adds a step. Word `w` of row `r` is at `activations[w * stride + r]`.
    ///
    /// # Safety
    /// Pointers are valid for what `R` rows, and `V` vectors of each of `P` panels, read. [`DotBf16`] needs `S::DOTS`.
    unsafe fn step<const R: usize, const P: usize, const V: usize>(
        s: S,
        sums: &mut [[[S::F; V]; P]; R],
        activations: *const f32,
        stride: usize,
        weights: [*const Self::Weight; P],
    );
}

/// bf16 weights times bf16 activations, two inputs in one instruction.
pub(crate) struct DotBf16;
/// bf16 weights, widened, times f32 activations.
pub(crate) struct FmaBf16;
/// f32 weights times f32 activations.
pub(crate) struct FmaF32;

impl<S: Simd> Product<S> for DotBf16 {
    type Weight = bf16;
    const INPUTS: usize = 2;
    const WORDS: usize = 1;

    #[inline(always)]
    unsafe fn step<const R: usize, const P: usize, const V: usize>(
        s: S,
        sums: &mut [[[S::F; V]; P]; R],
        activations: *const f32,
        _: usize,
        weights: [*const bf16; P],
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let weights = load_pairs::<S, P, V>(s, weights);
            for (r, sums) in sums.iter_mut().enumerate() {
                let pair = s.splat_u32((*activations.add(r)).to_bits());
                for (sums, weights) in sums.iter_mut().zip(&weights) {
                    for (sum, weight) in sums.iter_mut().zip(weights) {
                        *sum = s.dot_pairs(*sum, pair, *weight);
                    }
                }
            }
        }
    }
}

impl<S: Simd> Product<S> for FmaBf16 {
    type Weight = bf16;
    const INPUTS: usize = 2;
    const WORDS: usize = 2;

    #[inline(always)]
    unsafe fn step<const R: usize, const P: usize, const V: usize>(
        s: S,
        sums: &mut [[[S::F; V]; P]; R],
        activations: *const f32,
        stride: usize,
        weights: [*const bf16; P],
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let pairs = load_pairs::<S, P, V>(s, weights);
            let high = s.splat_u32(0xffff_0000);
            // Loops, not `map`: a closure would be compiled without the instruction set.
            let mut widened = [[s.splat(0.0); V]; P];
            for (widened, pairs) in widened.iter_mut().zip(&pairs) {
                for (widened, pair) in widened.iter_mut().zip(pairs) {
                    *widened = s.of_bits(s.shift_left::<16>(*pair));
                }
            }
            multiply_add(s, sums, activations, &widened);
            for (widened, pairs) in widened.iter_mut().zip(&pairs) {
                for (widened, pair) in widened.iter_mut().zip(pairs) {
                    *widened = s.of_bits(s.and_u32(*pair, high));
                }
            }
            multiply_add(s, sums, activations.add(stride), &widened);
        }
    }
}

impl<S: Simd> Product<S> for FmaF32 {
    type Weight = f32;
    const INPUTS: usize = 1;
    const WORDS: usize = 1;

    #[inline(always)]
    unsafe fn step<const R: usize, const P: usize, const V: usize>(
        s: S,
        sums: &mut [[[S::F; V]; P]; R],
        activations: *const f32,
        _: usize,
        weights: [*const f32; P],
    ) {
        let mut loaded = [[s.splat(0.0); V]; P];
        // SAFETY: the caller's promise.
        unsafe {
            for (loaded, panel) in loaded.iter_mut().zip(weights) {
                for (v, vector) in loaded.iter_mut().enumerate() {
                    *vector = s.load(panel.add(v * S::LANES));
                }
            }
            multiply_add(s, sums, activations, &loaded);
        }
    }
}

/// # Safety
/// As for [`Product::step`].
#[inline(always)]
unsafe fn load_pairs<S: Simd, const P: usize, const V: usize>(
    s: S,
    weights: [*const bf16; P],
) -> [[S::I; V]; P] {
    let mut pairs = [[s.splat_u32(0); V]; P];
    for (pairs, panel) in pairs.iter_mut().zip(weights) {
        for (v, pair) in pairs.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            *pair = unsafe { s.load_u32(panel.cast::<u32>().add(v * S::LANES)) };
        }
    }
    pairs
}

/// # Safety
/// `activations` is valid for reading `R` words.
#[inline(always)]
unsafe fn multiply_add<S: Simd, const R: usize, const P: usize, const V: usize>(
    s: S,
    sums: &mut [[[S::F; V]; P]; R],
    activations: *const f32,
    weights: &[[S::F; V]; P],
) {
    for (r, sums) in sums.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        let x = s.splat(unsafe { *activations.add(r) });
        for (sums, weights) in sums.iter_mut().zip(weights) {
            for (sum, weight) in sums.iter_mut().zip(weights) {
                *sum = s.mul_add(x, *weight, *sum);
            }
        }
    }
}

/// Lays a row of activations out for `Q`: every `stride`th word from `slot`, as pairs of bf16 or as f32; an odd last input gets
/// a zero beside it.
#[inline(always)]
pub(crate) fn lay<S: Simd, Q: Product<S>>(s: S, row: &[f32], packed: &mut [f32], slot: usize, stride: usize) {
    let mut words = packed.iter_mut().skip(slot).step_by(stride);
    if Q::INPUTS == Q::WORDS {
        words.zip(row.iter().copied().chain(std::iter::once(0.0))).for_each(|(word, x)| *word = x);
        return;
    }
    for chunk in row.chunks(S::LANES) {
        let mut rounded = [bf16::ZERO; 16];
        // SAFETY: the array holds 16, a vector at most that.
        unsafe { s.store_bf16(rounded.as_mut_ptr(), s.load_some(chunk)) };
        let pairs = rounded.chunks_exact(2).take(chunk.len().div_ceil(2));
        for (pair, word) in pairs.zip(&mut words) {
            *word = f32::from_bits(u32::from(pair[0].to_bits()) | u32::from(pair[1].to_bits()) << 16);
        }
    }
}

/// Bytes that weights are asked for ahead of their use.
const AHEAD: usize = 12 * 1024;

/// `R` rows of packed activations (`stride` words apart from step's word to word) times `V` vectors of each of `P` panels,
/// whose steps are `panel_stride` weights apart.
///
/// # Safety
/// Pointers are valid for `steps` steps of that; [`DotBf16`] needs `S::DOTS`.
#[inline(always)]
pub(crate) unsafe fn multiply<S: Simd, Q: Product<S>, const R: usize, const P: usize, const V: usize>(
    s: S,
    steps: usize,
    mut activations: *const f32,
    stride: usize,
    mut weights: [*const Q::Weight; P],
    panel_stride: usize,
) -> [[[S::F; V]; P]; R] {
    let mut sums = [[[s.splat(0.0); V]; P]; R];
    for _ in 0..steps {
        for panel in weights {
            for line in 0..(V * S::LANES * size_of::<f32>()).div_ceil(64) {
                s.prefetch(panel.cast::<u8>().wrapping_add(AHEAD + 64 * line));
            }
        }
        // SAFETY: the caller's promise; wrapping arithmetic, so that the last step may point past the end.
        unsafe { Q::step(s, &mut sums, activations, stride, weights) };
        activations = activations.wrapping_add(Q::WORDS * stride);
        weights = weights.map(|panel| panel.wrapping_add(panel_stride));
    }
    sums
}
