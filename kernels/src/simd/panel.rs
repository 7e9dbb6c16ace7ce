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
    /// Weights that an output has in a step: more than inputs where scales are among them.
    const WEIGHTS: usize = Self::INPUTS;
    /// Words of a row's packed activations in a step.
    const WORDS: usize;
    /// Most rows to do at once on a machine with 32 registers.
    const MOST_ROWS: usize;

    /// Lays a row of activations out: every `stride`th word from `slot`. What a last step lacks is zero.
    fn lay(s: S, row: &[f32], packed: &mut [f32], slot: usize, stride: usize);

    /// Adds a step. Word `w` of row `r` is at `activations[w * stride + r]`. Weights so many bytes `ahead` are asked for; 0: none.
    ///
    /// # Safety
    /// Pointers are valid for what `R` rows, and `V` vectors of each of `P` panels, read. [`DotBf16`] needs `S::DOTS`.
    unsafe fn step<const R: usize, const P: usize, const V: usize>(
        s: S,
        sums: &mut [[[S::F; V]; P]; R],
        activations: *const f32,
        stride: usize,
        weights: [*const Self::Weight; P],
        ahead: usize,
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
    const MOST_ROWS: usize = 14;

    #[inline(always)]
    fn lay(s: S, row: &[f32], packed: &mut [f32], slot: usize, stride: usize) {
        let mut words = packed.iter_mut().skip(slot).step_by(stride);
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

    #[inline(always)]
    unsafe fn step<const R: usize, const P: usize, const V: usize>(
        s: S,
        sums: &mut [[[S::F; V]; P]; R],
        activations: *const f32,
        _: usize,
        weights: [*const bf16; P],
        ahead: usize,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let weights = load_words::<S, _, P, V>(s, weights, 0, ahead);
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
    const MOST_ROWS: usize = 12; // widened weights take registers too

    #[inline(always)]
    fn lay(_: S, row: &[f32], packed: &mut [f32], slot: usize, stride: usize) {
        lay_f32(row, packed, slot, stride);
    }

    #[inline(always)]
    unsafe fn step<const R: usize, const P: usize, const V: usize>(
        s: S,
        sums: &mut [[[S::F; V]; P]; R],
        activations: *const f32,
        stride: usize,
        weights: [*const bf16; P],
        ahead: usize,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let pairs = load_words::<S, _, P, V>(s, weights, 0, ahead);
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
    const MOST_ROWS: usize = 14;

    #[inline(always)]
    fn lay(_: S, row: &[f32], packed: &mut [f32], slot: usize, stride: usize) {
        lay_f32(row, packed, slot, stride);
    }

    #[inline(always)]
    unsafe fn step<const R: usize, const P: usize, const V: usize>(
        s: S,
        sums: &mut [[[S::F; V]; P]; R],
        activations: *const f32,
        _: usize,
        weights: [*const f32; P],
        ahead: usize,
    ) {
        let mut loaded = [[s.splat(0.0); V]; P];
        // SAFETY: the caller's promise.
        unsafe {
            let words = load_words::<S, _, P, V>(s, weights, 0, ahead);
            for (loaded, words) in loaded.iter_mut().zip(&words) {
                for (loaded, word) in loaded.iter_mut().zip(words) {
                    *loaded = s.of_bits(*word);
                }
            }
            multiply_add(s, sums, activations, &loaded);
        }
    }
}

/// Bytes that a matrix's weights are asked for ahead of their use.
pub(crate) const AHEAD: usize = 12 * 1024;

/// `V` vectors of words of each panel, `skip` words on; asks for those `ahead` of them.
///
/// # Safety
/// Pointers are valid for reading that.
#[inline(always)]
pub(super) unsafe fn load_words<S: Simd, W, const P: usize, const V: usize>(
    s: S,
    panels: [*const W; P],
    skip: usize,
    ahead: usize,
) -> [[S::I; V]; P] {
    let mut words = [[s.splat_u32(0); V]; P];
    for (words, panel) in words.iter_mut().zip(panels) {
        let panel = panel.cast::<u32>().wrapping_add(skip);
        if ahead > 0 {
            for line in 0..(V * S::LANES * size_of::<u32>()).div_ceil(64) {
                s.prefetch(panel.cast::<u8>().wrapping_add(ahead + 64 * line));
            }
        }
        for (v, word) in words.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            *word = unsafe { s.load_u32(panel.add(v * S::LANES)) };
        }
    }
    words
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

/// As they are; an odd last input gets a zero beside it.
#[inline(always)]
fn lay_f32(row: &[f32], packed: &mut [f32], slot: usize, stride: usize) {
    let words = packed.iter_mut().skip(slot).step_by(stride);
    words.zip(row.iter().copied().chain(std::iter::once(0.0))).for_each(|(word, x)| *word = x);
}

/// `R` rows of packed activations (`stride` words apart from step's word to word) times `V` vectors of each of `P` panels,
/// whose steps are `panel_stride` weights apart; weights so many bytes `ahead` are asked for.
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
    ahead: usize,
) -> [[[S::F; V]; P]; R] {
    let mut sums = [[[s.splat(0.0); V]; P]; R];
    for _ in 0..steps {
        // SAFETY: the caller's promise; wrapping arithmetic, so that the last step may point past the end.
        unsafe { Q::step(s, &mut sums, activations, stride, weights, ahead) };
        activations = activations.wrapping_add(Q::WORDS * stride);
        weights = weights.map(|panel| panel.wrapping_add(panel_stride));
    }
    sums
}
