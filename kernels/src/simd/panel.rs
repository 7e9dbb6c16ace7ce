//! The inner loop of matmul and of attention's scores: a few rows times a few vectors of outputs.
//!
//! Each output element is one accumulator, added to in the order of its inputs: how many rows or vectors are done
//! together changes nothing, nor does a stop between two steps, with the sums in memory.

use super::Simd;
use crate::memory::PANEL;
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
    /// Words of a row that lie together, before those of the next row: whole steps.
    const CHUNK: usize = 16;
    /// Most rows to do at once on a machine with 32 registers.
    const MOST_ROWS: usize;
    /// Most rows to do at once with two panels there.
    const MOST_ROWS_OF_TWO: usize;

    /// Lays a row of activations out in the place `slot` of so many `rows`, `[chunk][row][CHUNK]` words. What it lacks is zero.
    fn lay(s: S, row: &[f32], packed: &mut [f32], slot: usize, rows: usize);

    /// Adds a step. Word `w` of row `r` is at `activations[r * CHUNK + w]`. Memory is asked for beside each row of words of the weights.
    ///
    /// # Safety
    /// Pointers are valid for what `R` rows, and `V` vectors of each of `P` panels, read. [`DotBf16`] needs `S::DOTS`.
    unsafe fn step<const R: usize, const P: usize, const V: usize>(
        s: S,
        sums: &mut [[[S::F; V]; P]; R],
        activations: *const f32,
        weights: [*const Self::Weight; P],
        ask: Ask<P>,
    );

    /// Adds steps, and those behind them, to sums in memory, `[R][P][V]` vectors.
    ///
    /// # Safety
    /// As for [`multiply`]; `sums` are valid for that, and nobody else's.
    #[inline(always)]
    unsafe fn add_steps<const R: usize, const P: usize, const V: usize>(
        s: S,
        both: [Steps<Self::Weight, P>; 2],
        sums: *mut f32,
    ) {
        let mut held = [[[s.splat(0.0); V]; P]; R];
        // SAFETY: the caller's promise.
        unsafe {
            for (i, sum) in held.as_flattened_mut().as_flattened_mut().iter_mut().enumerate() {
                *sum = s.load(sums.add(i * S::LANES));
            }
            for steps in both {
                run::<S, Self, R, P, V>(s, steps, &mut held);
            }
            for (i, sum) in held.as_flattened().as_flattened().iter().enumerate() {
                s.store(sums.add(i * S::LANES), *sum);
            }
        }
    }
}

/// Memory to ask for while products run.
#[derive(Clone, Copy)]
pub(crate) struct Ask<const P: usize> {
    /// Where, beside the first row of words of each panel.
    pub(crate) at: [*const u8; P],
    /// Bytes further for the next row of words; 0: nothing is asked for.
    pub(crate) stride: usize,
}

impl<const P: usize> Ask<P> {
    /// For nothing.
    pub(crate) const NOTHING: Ask<P> = Ask { at: [std::ptr::null(); P], stride: 0 };

    /// As many cache lines as `V` vectors of words are, for each panel.
    #[inline(always)]
    pub(super) fn row<S: Simd, const V: usize>(self, s: S, row: usize) {
        if self.stride > 0 {
            for at in self.at {
                for line in 0..(V * S::LANES * size_of::<u32>()).div_ceil(64) {
                    s.prefetch(at.wrapping_add(row * self.stride + 64 * line));
                }
            }
        }
    }

    /// Some rows of words further.
    #[inline(always)]
    pub(super) fn on(self, rows: usize) -> Ask<P> {
        Ask { at: self.at.map(|at| at.wrapping_add(rows * self.stride)), ..self }
    }
}

/// Consecutive steps: where their operands are, and what is asked for meanwhile.
#[derive(Clone, Copy)]
pub(crate) struct Steps<W, const P: usize> {
    /// How many.
    pub(crate) count: usize,
    /// The first word of the first row, and its place in its chunk.
    pub(crate) activations: *const f32,
    pub(crate) place: usize,
    /// Words from a chunk of the rows to the next.
    pub(crate) chunk_stride: usize,
    pub(crate) weights: [*const W; P],
    /// Weights from a panel's step to the next.
    pub(crate) panel_stride: usize,
    pub(crate) ask: Ask<P>,
}

impl<W, const P: usize> Steps<W, P> {
    /// Behind the first step of `Q`. Wrapping arithmetic: behind the last step it may point past the end.
    #[inline(always)]
    pub(super) fn next<S: Simd, Q: Product<S, Weight = W> + ?Sized>(self) -> Self {
        let place = self.place + Q::WORDS;
        let (place, words) =
            if place < Q::CHUNK { (place, Q::WORDS) } else { (0, self.chunk_stride + Q::WORDS - Q::CHUNK) };
        Steps {
            count: self.count - 1,
            activations: self.activations.wrapping_add(words),
            place,
            weights: self.weights.map(|panel| panel.wrapping_add(self.panel_stride)),
            ask: self.ask.on(Q::WEIGHTS * size_of::<W>() / size_of::<u32>()),
            ..self
        }
    }
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
    const MOST_ROWS_OF_TWO: usize = 6;

    #[inline(always)]
    fn lay(s: S, row: &[f32], packed: &mut [f32], slot: usize, rows: usize) {
        const INPUTS: usize = 32;
        let size = <Self as Product<S>>::CHUNK;
        for (chunk, to) in packed.chunks_exact_mut(rows * size).enumerate() {
            let to = &mut to[slot * size..][..size];
            let inputs = part(row, chunk * INPUTS, INPUTS);
            if inputs.len() < INPUTS {
                to.fill(0.0);
            }
            let to = to.as_mut_ptr().cast::<bf16>();
            for (i, inputs) in inputs.chunks(S::LANES).enumerate() {
                // SAFETY: a chunk's words are 32 bf16, of which vectors are parts.
                unsafe { s.store_bf16(to.add(i * S::LANES), s.load_some(inputs)) };
            }
        }
    }

    #[inline(always)]
    unsafe fn step<const R: usize, const P: usize, const V: usize>(
        s: S,
        sums: &mut [[[S::F; V]; P]; R],
        activations: *const f32,
        weights: [*const bf16; P],
        ask: Ask<P>,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let weights = load_words::<S, _, P, V>(s, weights, 0, ask);
            for (r, sums) in sums.iter_mut().enumerate() {
                let pair = s.splat_u32((*activations.add(r * <Self as Product<S>>::CHUNK)).to_bits());
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
    const MOST_ROWS_OF_TWO: usize = 4;

    #[inline(always)]
    fn lay(_: S, row: &[f32], packed: &mut [f32], slot: usize, rows: usize) {
        lay_f32(row, packed, slot, rows, <Self as Product<S>>::CHUNK);
    }

    #[inline(always)]
    unsafe fn step<const R: usize, const P: usize, const V: usize>(
        s: S,
        sums: &mut [[[S::F; V]; P]; R],
        activations: *const f32,
        weights: [*const bf16; P],
        ask: Ask<P>,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let pairs = load_words::<S, _, P, V>(s, weights, 0, ask);
            let high = s.splat_u32(0xffff_0000);
            if R == 1 && S::REGISTERS < 32 {
                // One pair after the other: all together, and widened, they take more registers than there are.
                let x = [s.splat(*activations), s.splat(*activations.add(1))];
                for (sum, pair) in
                    sums.as_flattened_mut().as_flattened_mut().iter_mut().zip(pairs.as_flattened())
                {
                    *sum = s.mul_add(x[0], s.of_bits(s.shift_left::<16>(*pair)), *sum);
                    *sum = s.mul_add(x[1], s.of_bits(s.and_u32(*pair, high)), *sum);
                }
                return;
            }
            // Loops, not `map`: a closure would be compiled without the instruction set.
            let mut widened = [[s.splat(0.0); V]; P];
            for (widened, pairs) in widened.iter_mut().zip(&pairs) {
                for (widened, pair) in widened.iter_mut().zip(pairs) {
                    *widened = s.of_bits(s.shift_left::<16>(*pair));
                }
            }
            multiply_add(s, sums, activations, <Self as Product<S>>::CHUNK, &widened);
            for (widened, pairs) in widened.iter_mut().zip(&pairs) {
                for (widened, pair) in widened.iter_mut().zip(pairs) {
                    *widened = s.of_bits(s.and_u32(*pair, high));
                }
            }
            multiply_add(s, sums, activations.add(1), <Self as Product<S>>::CHUNK, &widened);
        }
    }
}

impl<S: Simd> Product<S> for FmaF32 {
    type Weight = f32;
    const INPUTS: usize = 1;
    const WORDS: usize = 1;
    const MOST_ROWS: usize = 14;
    const MOST_ROWS_OF_TWO: usize = 6;

    #[inline(always)]
    fn lay(_: S, row: &[f32], packed: &mut [f32], slot: usize, rows: usize) {
        lay_f32(row, packed, slot, rows, <Self as Product<S>>::CHUNK);
    }

    #[inline(always)]
    unsafe fn step<const R: usize, const P: usize, const V: usize>(
        s: S,
        sums: &mut [[[S::F; V]; P]; R],
        activations: *const f32,
        weights: [*const f32; P],
        ask: Ask<P>,
    ) {
        let mut loaded = [[s.splat(0.0); V]; P];
        // SAFETY: the caller's promise.
        unsafe {
            let words = load_words::<S, _, P, V>(s, weights, 0, ask);
            for (loaded, words) in loaded.iter_mut().zip(&words) {
                for (loaded, word) in loaded.iter_mut().zip(words) {
                    *loaded = s.of_bits(*word);
                }
            }
            multiply_add(s, sums, activations, <Self as Product<S>>::CHUNK, &loaded);
        }
    }
}

/// `V` vectors of a row of words of each panel; asks for memory beside them.
///
/// # Safety
/// Pointers are valid for reading that.
#[inline(always)]
pub(super) unsafe fn load_words<S: Simd, W, const P: usize, const V: usize>(
    s: S,
    panels: [*const W; P],
    row: usize,
    ask: Ask<P>,
) -> [[S::I; V]; P] {
    ask.row::<S, V>(s, row);
    let mut words = [[s.splat_u32(0); V]; P];
    for (words, panel) in words.iter_mut().zip(panels) {
        let panel = panel.cast::<u32>().wrapping_add(row * PANEL);
        for (v, word) in words.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            *word = unsafe { s.load_u32(panel.add(v * S::LANES)) };
        }
    }
    words
}

/// # Safety
/// `activations` is valid for reading `R` words, so many `apart`.
#[inline(always)]
unsafe fn multiply_add<S: Simd, const R: usize, const P: usize, const V: usize>(
    s: S,
    sums: &mut [[[S::F; V]; P]; R],
    activations: *const f32,
    apart: usize,
    weights: &[[S::F; V]; P],
) {
    for (r, sums) in sums.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        let x = s.splat(unsafe { *activations.add(r * apart) });
        for (sums, weights) in sums.iter_mut().zip(weights) {
            for (sum, weight) in sums.iter_mut().zip(weights) {
                *sum = s.mul_add(x, *weight, *sum);
            }
        }
    }
}

/// As they are, in chunks of so many words.
#[inline(always)]
fn lay_f32(row: &[f32], packed: &mut [f32], slot: usize, rows: usize, size: usize) {
    for (chunk, to) in packed.chunks_exact_mut(rows * size).enumerate() {
        let inputs = part(row, chunk * size, size);
        let (to, lacking) = to[slot * size..][..size].split_at_mut(inputs.len());
        to.copy_from_slice(inputs);
        lacking.fill(0.0);
    }
}

/// `len` numbers of a row, or what is left of it.
#[inline(always)]
pub(super) fn part(row: &[f32], from: usize, len: usize) -> &[f32] {
    let rest = row.get(from..).unwrap_or_default();
    &rest[..len.min(rest.len())]
}

/// Words of a packed row of so many inputs: whole chunks.
pub(crate) fn packed_words<S: Simd, Q: Product<S>>(inputs: usize) -> usize {
    (inputs.div_ceil(Q::INPUTS) * Q::WORDS).next_multiple_of(Q::CHUNK)
}

/// `R` rows of packed activations times `V` vectors of each of `P` panels.
///
/// # Safety
/// Pointers are valid for so many steps of that; [`DotBf16`] needs `S::DOTS`.
#[inline(always)]
pub(crate) unsafe fn multiply<S: Simd, Q: Product<S>, const R: usize, const P: usize, const V: usize>(
    s: S,
    steps: Steps<Q::Weight, P>,
) -> [[[S::F; V]; P]; R] {
    let mut sums = [[[s.splat(0.0); V]; P]; R];
    // SAFETY: the caller's promise.
    unsafe { run::<S, Q, R, P, V>(s, steps, &mut sums) };
    sums
}

/// Adds steps to sums in registers.
///
/// # Safety
/// As for [`multiply`].
#[inline(always)]
unsafe fn run<S: Simd, Q: Product<S> + ?Sized, const R: usize, const P: usize, const V: usize>(
    s: S,
    mut steps: Steps<Q::Weight, P>,
    sums: &mut [[[S::F; V]; P]; R],
) {
    while steps.count > 0 {
        // SAFETY: the caller's promise.
        unsafe { Q::step(s, sums, steps.activations, steps.weights, steps.ask) };
        steps = steps.next::<S, Q>();
    }
}
