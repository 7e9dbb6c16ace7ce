//! Whole-numbered weights times int8 activations, exact within a block; see `memory/matrix.rs` for how int8 weights lie, and `int4.rs`
//! for what is different in 4 bits.
//!
//! A row of activations is quantised block by block as int8 weights are: scale largest / 127, rounded to nearest, ties to even. For each
//! block the dot product of whole numbers becomes an f32, exactly (it is below 2^19), and `fused(dot, weight scale * activation
//! scale, sum)` goes on with the output's chain. Every operation here is the same on all sets, so the bits are.
//!
//! Where products of four bytes are several instructions ([`Simd::SPLIT`]), small factors are summed in halves of words as long as those
//! hold them, and others multiply activations that lie as numbers of 16 bits.

use super::panel::{Ask, Steps, load_words, part};
use super::{Product, Simd};
use crate::memory::{BLOCK, BLOCKS, SCALE_UNIT};
use std::marker::PhantomData;
use std::ops::Range;

/// Weights held so, times int8 activations.
pub(crate) struct DotWhole<H>(PhantomData<H>);

/// How a step holds its weights, and what becomes of its words.
pub(crate) trait Held {
    /// Rows of words of the weights. Behind them is one with the scales of both blocks, the first in the low half.
    const ROWS: usize;
    /// What one more row has, as the scales lie.
    const BESIDE: Beside = Beside::Nothing;

    /// The row that has the weights of four inputs, the `w`th of a step.
    fn row(w: usize) -> usize;

    /// What is asked for beside the words of a block: each row of words once.
    fn ask<const P: usize>(ask: Ask<P>, block: usize) -> Ask<P>;

    /// Factors for products of bytes, of words of a block.
    fn factors<S: Simd>(s: S, words: S::I, block: usize) -> S::I;

    /// The same, less their offset: signed ones, which tiles multiply.
    #[cfg(target_arch = "x86_64")]
    fn signed<S: Simd>(s: S, words: S::I, block: usize) -> S::I;

    /// The scales of one block, of pairs of them.
    fn scales<S: Simd>(s: S, pairs: S::I, block: usize) -> S::F;

    /// What the row behind the scales has for one block, of pairs.
    #[inline(always)]
    fn beside_scales<S: Simd>(s: S, pairs: S::I, block: usize) -> S::F {
        Self::scales(s, pairs, block)
    }

    /// The largest factor, where they are unsigned.
    const LARGEST: usize;

    /// Whether what is [`Held::beside`] the activations is part of the dot products.
    fn has_offset<S: Simd>() -> bool;

    /// What is kept beside a block of activations.
    fn beside<S: Simd>(activations: &Quantised) -> u32;
}

/// What the weights of a block have beside their scale.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Beside {
    /// No row more.
    Nothing,
    /// What is added to each weight, once it is scaled. Beside activations is their sum.
    Minima,
    /// What is taken off each before. Beside activations is the sum of their bytes, less than zero.
    ZeroPoints,
}

/// A byte each, 128 more than the weight.
pub(crate) struct Int8;

impl Held for Int8 {
    const ROWS: usize = BLOCKS * WORDS;
    const LARGEST: usize = 255;

    #[inline(always)]
    fn row(w: usize) -> usize {
        w
    }

    #[inline(always)]
    fn ask<const P: usize>(ask: Ask<P>, _block: usize) -> Ask<P> {
        ask
    }

    #[inline(always)]
    fn factors<S: Simd>(s: S, words: S::I, _block: usize) -> S::I {
        if S::SIGNED { less_128(s, words) } else { words }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn signed<S: Simd>(s: S, words: S::I, _block: usize) -> S::I {
        less_128(s, words)
    }

    #[inline(always)]
    fn scales<S: Simd>(s: S, pairs: S::I, block: usize) -> S::F {
        one_of(s, pairs, block)
    }

    #[inline(always)]
    fn has_offset<S: Simd>() -> bool {
        !S::SIGNED
    }

    #[inline(always)]
    fn beside<S: Simd>(activations: &Quantised) -> u32 {
        (-128 * activations.sum).cast_unsigned()
    }
}

/// Bytes less 128.
#[inline(always)]
fn less_128<S: Simd>(s: S, bytes: S::I) -> S::I {
    s.xor_u32(bytes, s.splat_u32(0x8080_8080))
}

/// Words of a block: four weights each.
const WORDS: usize = BLOCK / 4;

/// How a row of activations lies in a step.
struct Laid<S, H>(PhantomData<(S, H)>);

impl<S: Simd, H: Held> Laid<S, H> {
    /// Words whose products [`Simd::dot_halves`] can add, a part of a block's; 0: it is not used.
    const HALVES: usize = {
        assert!(!(S::SPLIT && S::SIGNED), "split products are of unsigned factors");
        let most = i16::MAX as usize / (2 * 127 * H::LARGEST);
        if !S::SPLIT || most == 0 {
            0
        } else if most < WORDS {
            1 << most.ilog2()
        } else {
            WORDS
        }
    };
    /// Whether the even bytes of four, and then the odd ones, are a word of two numbers of 16 bits.
    const SHORTS: bool = S::SPLIT && Self::HALVES == 0;
    /// Words of a block of activations.
    const WORDS: usize = if Self::SHORTS { 2 * WORDS } else { WORDS };
    /// Where scales are, and after them what is [`Held::beside`] them.
    const SCALES: usize = BLOCKS * Self::WORDS;
    const BESIDE: usize = Self::SCALES + BLOCKS;
    /// All words.
    const ALL: usize = Self::BESIDE + BLOCKS;
}

impl<S: Simd, H: Held> Product<S> for DotWhole<H> {
    type Weight = u32;
    const INPUTS: usize = BLOCKS * BLOCK;
    const WEIGHTS: usize = H::ROWS + 1 + !matches!(H::BESIDE, Beside::Nothing) as usize;
    const WORDS: usize = Laid::<S, H>::ALL;
    const CHUNK: usize = Laid::<S, H>::ALL;
    const MOST_ROWS: usize = 12;
    const MOST_ROWS_OF_TWO: usize = 5;

    #[inline(always)]
    unsafe fn step<const R: usize, const P: usize, const V: usize>(
        s: S,
        sums: &mut [[[S::F; V]; P]; R],
        activations: *const f32,
        weights: [*const u32; P],
        ask: Ask<P>,
    ) {
        for block in 0..BLOCKS {
            // SAFETY: the caller's promise.
            unsafe {
                let at = Block { block, activations, weights, ask: H::ask(ask, block) };
                let dots = at.dots::<S, H, R, V>(s);
                let scales = at.scales::<S, H, V>(s);
                let beside = at.beside_scales::<S, H, V>(s);
                for (r, (sums, dots)) in sums.iter_mut().zip(&dots).enumerate() {
                    let of_row = at.row::<S, H>(s, r);
                    let sums = sums.as_flattened_mut().iter_mut().zip(dots.as_flattened());
                    let of_block = scales.as_flattened().iter().zip(beside.as_flattened());
                    for ((sum, dot), (scale, beside)) in sums.zip(of_block) {
                        *sum = add_block::<S, H>(s, *sum, *dot, [*scale, *beside], of_row);
                    }
                }
            }
        }
    }

    /// The dot products of a block take the registers: sums stay in memory.
    #[inline(always)]
    unsafe fn add_steps<const R: usize, const P: usize, const V: usize>(
        s: S,
        both: [Steps<u32, P>; 2],
        sums: *mut f32,
    ) {
        for mut steps in both {
            while steps.count > 0 {
                let Steps { activations, weights, ask, .. } = steps;
                for block in 0..BLOCKS {
                    let at = Block { block, activations, weights, ask: H::ask(ask, block) };
                    // SAFETY: the caller's promise.
                    unsafe { at.add::<S, H, R, V>(s, sums) };
                }
                steps = steps.next::<S, Self>();
            }
        }
    }

    #[inline(always)]
    fn lay(s: S, row: &[f32], packed: &mut [f32], slot: usize, rows: usize) {
        let size = Laid::<S, H>::ALL;
        for (step, to) in packed.chunks_exact_mut(rows * size).enumerate() {
            let to = &mut to[slot * size..][..size];
            let (bytes, others) = to.split_at_mut(Laid::<S, H>::SCALES);
            for (block, words) in bytes.chunks_exact_mut(Laid::<S, H>::WORDS).enumerate() {
                let quantised = quantise(s, part(row, (step * BLOCKS + block) * BLOCK, BLOCK));
                let fours = quantised.bytes.as_chunks::<4>().0.iter().map(|four| u32::from_le_bytes(*four));
                if Laid::<S, H>::SHORTS {
                    for (two, four) in words.as_chunks_mut::<2>().0.iter_mut().zip(fours) {
                        *two = shorts(four).map(f32::from_bits);
                    }
                } else {
                    words.iter_mut().zip(fours).for_each(|(word, four)| *word = f32::from_bits(four));
                }
                others[block] = quantised.scale;
                others[BLOCKS + block] = f32::from_bits(H::beside::<S>(&quantised));
            }
        }
    }
}

/// The even ones of four signed bytes as numbers of 16 bits, and the odd ones.
#[inline(always)]
pub(crate) fn shorts(four: u32) -> [u32; 2] {
    let wide = |byte: u32| u32::from(i16::from(byte as i8).cast_unsigned());
    [wide(four) | wide(four >> 16) << 16, wide(four >> 8) | wide(four >> 24) << 16]
}

/// The even ones of four unsigned bytes of each lane as numbers of 16 bits, or the odd ones.
#[inline(always)]
pub(crate) fn half_of<S: Simd>(s: S, four: S::I, odd: usize) -> S::I {
    let four = if odd == 0 { four } else { s.shift_right::<8>(four) };
    s.and_u32(four, s.splat_u32(0x00ff_00ff))
}

/// One block of a step.
struct Block<const P: usize> {
    block: usize,
    activations: *const f32,
    weights: [*const u32; P],
    ask: Ask<P>,
}

impl<const P: usize> Block<P> {
    /// # Safety
    /// The step has that word, and the row.
    #[inline(always)]
    unsafe fn word<S: Simd, H: Held>(&self, word: usize, row: usize) -> f32 {
        // SAFETY: the caller's promise.
        unsafe { *self.activations.add(row * Laid::<S, H>::ALL + word) }
    }

    /// The dot products of whole numbers.
    ///
    /// # Safety
    /// Pointers are valid for what `R` rows, and `V` vectors of each panel, read.
    #[inline(always)]
    unsafe fn dots<S: Simd, H: Held, const R: usize, const V: usize>(&self, s: S) -> [[[S::I; V]; P]; R] {
        let mut dots = [[[s.splat_u32(0); V]; P]; R];
        let first = self.block * WORDS;
        // SAFETY: the caller's promise.
        unsafe {
            for group in 0..WORDS.checked_div(Laid::<S, H>::HALVES).unwrap_or(0) {
                let mut halves = [[[s.splat_u32(0); V]; P]; R];
                let first = first + group * Laid::<S, H>::HALVES;
                self.add_words::<S, H, R, V>(s, first..first + Laid::<S, H>::HALVES, &mut halves);
                for (dots, halves) in dots.iter_mut().zip(&halves) {
                    for (dot, halves) in dots.as_flattened_mut().iter_mut().zip(halves.as_flattened()) {
                        *dot = s.dot_shorts(*dot, *halves, s.splat_u32(0x0001_0001));
                    }
                }
            }
            if H::has_offset::<S>() {
                for (r, dots) in dots.iter_mut().enumerate() {
                    let offset =
                        s.splat_u32(self.word::<S, H>(Laid::<S, H>::BESIDE + self.block, r).to_bits());
                    for dot in dots.as_flattened_mut() {
                        *dot = s.add_u32(*dot, offset);
                    }
                }
            }
            if Laid::<S, H>::HALVES == 0 {
                self.add_words::<S, H, R, V>(s, first..first + WORDS, &mut dots);
            }
        }
        dots
    }

    /// Adds the products of some words.
    ///
    /// # Safety
    /// As for [`Block::dots`].
    #[inline(always)]
    unsafe fn add_words<S: Simd, H: Held, const R: usize, const V: usize>(
        &self,
        s: S,
        words: Range<usize>,
        dots: &mut [[[S::I; V]; P]; R],
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            // Unrolled, the loop would want more registers than there are.
            for w in words.start..std::hint::black_box(words.end) {
                let mut four = load_words::<S, _, P, V>(s, self.weights, H::row(w), self.ask);
                for four in four.as_flattened_mut() {
                    *four = H::factors(s, *four, self.block);
                }
                if !Laid::<S, H>::SHORTS {
                    for (r, dots) in dots.iter_mut().enumerate() {
                        let x = s.splat_u32(self.word::<S, H>(w, r).to_bits());
                        for (dot, four) in dots.as_flattened_mut().iter_mut().zip(four.as_flattened()) {
                            *dot = if Laid::<S, H>::HALVES > 0 {
                                s.dot_halves(*dot, *four, x)
                            } else {
                                s.dot_bytes(*dot, *four, x)
                            };
                        }
                    }
                    continue;
                }
                for odd in 0..2 {
                    let mut two = four;
                    for two in two.as_flattened_mut() {
                        *two = half_of(s, *two, odd);
                    }
                    for (r, dots) in dots.iter_mut().enumerate() {
                        let x = s.splat_u32(self.word::<S, H>(2 * w + odd, r).to_bits());
                        for (dot, two) in dots.as_flattened_mut().iter_mut().zip(two.as_flattened()) {
                            *dot = s.dot_shorts(*dot, *two, x);
                        }
                    }
                }
            }
        }
    }

    /// Adds the block to sums in memory.
    ///
    /// # Safety
    /// As for [`Block::dots`]; `sums` are `[R][P][V]` vectors, and nobody else's.
    #[inline(always)]
    unsafe fn add<S: Simd, H: Held, const R: usize, const V: usize>(&self, s: S, sums: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe {
            let dots = self.dots::<S, H, R, V>(s);
            let scales = self.scales::<S, H, V>(s);
            let beside = self.beside_scales::<S, H, V>(s);
            for (r, dots) in dots.iter().enumerate() {
                let of_row = self.row::<S, H>(s, r);
                let both = scales.as_flattened().iter().zip(beside.as_flattened());
                for (i, (dot, (scale, beside))) in dots.as_flattened().iter().zip(both).enumerate() {
                    let at = sums.add((r * P * V + i) * S::LANES);
                    s.store(at, add_block::<S, H>(s, s.load(at), *dot, [*scale, *beside], of_row));
                }
            }
        }
    }

    /// The scale of a row's activations, and what is beside it.
    ///
    /// # Safety
    /// The step has the row.
    #[inline(always)]
    unsafe fn row<S: Simd, H: Held>(&self, s: S, row: usize) -> [S::F; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let at = Laid::<S, H>::SCALES + self.block;
            [s.splat(self.word::<S, H>(at, row)), s.splat(self.word::<S, H>(at + BLOCKS, row))]
        }
    }

    /// The weights' scales.
    ///
    /// # Safety
    /// As for [`Block::dots`].
    #[inline(always)]
    unsafe fn scales<S: Simd, H: Held, const V: usize>(&self, s: S) -> [[S::F; V]; P] {
        let mut scales = [[s.splat(0.0); V]; P];
        // SAFETY: the caller's promise.
        let pairs = unsafe { load_words::<S, _, P, V>(s, self.weights, H::ROWS, self.ask) };
        // `array::map` is not compiled for the instruction set, and takes vectors through memory.
        for (scales, pair) in scales.as_flattened_mut().iter_mut().zip(pairs.as_flattened()) {
            *scales = H::scales(s, *pair, self.block);
        }
        scales
    }

    /// What they have beside them; zeros if that is nothing.
    ///
    /// # Safety
    /// As for [`Block::dots`].
    #[inline(always)]
    unsafe fn beside_scales<S: Simd, H: Held, const V: usize>(&self, s: S) -> [[S::F; V]; P] {
        let mut beside = [[s.splat(0.0); V]; P];
        if !matches!(H::BESIDE, Beside::Nothing) {
            // SAFETY: the caller's promise.
            let pairs = unsafe { load_words::<S, _, P, V>(s, self.weights, H::ROWS + 1, self.ask) };
            for (beside, pair) in beside.as_flattened_mut().iter_mut().zip(pairs.as_flattened()) {
                *beside = H::beside_scales(s, *pair, self.block);
            }
        }
        beside
    }
}

/// Adds a block's dot product: of an output, its scale and what is beside it, and of a row the same.
#[inline(always)]
pub(crate) fn add_block<S: Simd, H: Held>(
    s: S,
    sum: S::F,
    dot: S::I,
    [scale, beside]: [S::F; 2],
    [x, of_row]: [S::F; 2],
) -> S::F {
    let (dot, scale) = (s.to_f32(dot), s.mul(scale, x));
    match H::BESIDE {
        Beside::Nothing => s.fused(dot, scale, sum),
        Beside::Minima => s.fused(beside, of_row, s.fused(dot, scale, sum)),
        // Whole numbers below 2^17: exact.
        Beside::ZeroPoints => s.fused(s.fused(beside, of_row, dot), scale, sum),
    }
}

/// The scales of one block of int8, of pairs of them.
#[inline(always)]
fn one_of<S: Simd>(s: S, pairs: S::I, block: usize) -> S::F {
    let bits = if block == 0 {
        s.shift_left::<13>(s.and_u32(pairs, s.splat_u32(0xffff)))
    } else {
        s.and_u32(s.shift_right::<3>(pairs), s.splat_u32(0xffff << 13))
    };
    s.mul(s.of_bits(bits), s.splat(SCALE_UNIT))
}

/// A block of activations.
pub(crate) struct Quantised {
    pub(crate) bytes: [u8; BLOCK],
    pub(crate) scale: f32,
    /// Of the bytes.
    pub(crate) sum: i32,
}

/// Smaller activations are zero: their inverse would be none.
const TINY: f32 = 1e-35;
/// Adding it rounds a small number to an integer, which stands in the low bits.
const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23

/// Quantises a block, the first of `inputs`; what it lacks is zero. If an input is not finite the scale is NaN.
#[inline(always)]
pub(crate) fn quantise<S: Simd>(s: S, inputs: &[f32]) -> Quantised {
    let mut padded = [0.0; BLOCK];
    let inputs = inputs.first_chunk().unwrap_or_else(|| {
        padded[..inputs.len()].copy_from_slice(inputs);
        &padded
    });
    let mut largest = s.splat(0.0);
    let mut finite = s.less(largest, s.splat(1.0));
    for vector in inputs.chunks_exact(S::LANES) {
        // SAFETY: the chunk is as long as a vector.
        let x = unsafe { s.load(vector.as_ptr()) };
        let x = s.of_bits(s.and_u32(s.bits(x), s.splat_u32(0x7fff_ffff)));
        finite = s.both(finite, s.less(x, s.splat(f32::INFINITY)));
        largest = s.max(x, largest);
    }
    let largest = if s.any(s.not(finite)) { f32::NAN } else { s.largest(largest) };
    let inverse = s.splat(if largest > TINY { 127.0 / largest } else { 0.0 });
    let mut bytes = [0; BLOCK];
    let mut sums = s.splat(0.0); // whole numbers, so in any order
    for (bytes, vector) in bytes.chunks_exact_mut(S::LANES).zip(inputs.chunks_exact(S::LANES)) {
        // SAFETY: the chunks are as long as a vector.
        unsafe {
            let x = s.add(s.mul(s.load(vector.as_ptr()), inverse), s.splat(ROUND));
            s.store_bytes(bytes.as_mut_ptr(), s.bits(x));
            sums = s.add(sums, s.sub(x, s.splat(ROUND)));
        }
    }
    Quantised { bytes, scale: largest * (1.0 / 127.0), sum: s.sum(sums) as i32 }
}

#[cfg(test)]
mod tests {
    use super::super::{Kernel, portably};
    use super::*;
    use crate::memory::PANEL;

    type Words = [u32; 16];

    /// Sums, bytes and signed bytes: what the sums become, and the low bytes of the signed ones; and whether the others are signed.
    struct Bytes([Words; 3]);

    impl Kernel for Bytes {
        type Output = (Words, [u8; 16], bool);

        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> Self::Output {
            let (mut sums, mut bytes) = ([0; 16], [0; 16]);
            for i in (0..16).step_by(S::LANES) {
                // SAFETY: vectors divide 16.
                unsafe {
                    let [sum, a, b] = self.0.each_ref().map(|words| s.load_u32(words[i..].as_ptr()));
                    s.store_u32(sums[i..].as_mut_ptr(), s.dot_bytes(sum, a, b));
                    s.store_bytes(bytes[i..].as_mut_ptr(), b);
                }
            }
            (sums, bytes, S::SIGNED)
        }
    }

    /// Rows times a panel of so many steps: the bits of `[row][output]`, of each way to hold weights.
    struct Products<'a> {
        rows: &'a [Vec<f32>; 6],
        steps: usize,
        weights: &'a [u32],
    }

    impl Products<'_> {
        #[inline(always)]
        fn of<S: Simd, H: Held>(&self, s: S, scale: u32) -> Vec<u32> {
            type Q<H> = DotWhole<H>;
            let (words, row_len) = (<Q<H> as Product<S>>::WEIGHTS, <Q<H> as Product<S>>::CHUNK);
            // Behind the weights of each step, its scales.
            let mut panel = self.weights[..self.steps * words * PANEL].to_vec();
            panel.chunks_exact_mut(words * PANEL).for_each(|step| step[H::ROWS * PANEL..].fill(scale));
            let mut packed = vec![0.0; 6 * self.steps * row_len];
            for (slot, row) in self.rows.iter().enumerate() {
                <Q<H> as Product<S>>::lay(s, row, &mut packed, slot, 6);
            }
            let mut found = vec![0; 6 * PANEL];
            for first in (0..PANEL).step_by(S::LANES) {
                let steps = Steps {
                    count: self.steps,
                    activations: packed.as_ptr(),
                    place: 0,
                    chunk_stride: 6 * row_len,
                    weights: [panel[first..].as_ptr()],
                    panel_stride: words * PANEL,
                    ask: Ask::NOTHING,
                };
                // SAFETY: the panel and six rows have so many steps; an output's place is in `found`.
                unsafe {
                    let sums = super::super::multiply::<S, Q<H>, 6, 1, 1>(s, steps);
                    for (r, [[sum]]) in sums.into_iter().enumerate() {
                        s.store_u32(found[r * PANEL + first..].as_mut_ptr(), s.bits(sum));
                    }
                }
            }
            found
        }
    }

    impl Kernel for Products<'_> {
        type Output = [Vec<u32>; 5];

        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> Self::Output {
            use super::super::int4::{E2m1Codes, Int4, Minima, Symmetric, ZeroPoints};
            let (f16, bf16) = (0x3c00_3c00, 0x3f80_3f80); // ones
            [
                self.of::<S, Int8>(s, f16),
                self.of::<S, Int4<Symmetric>>(s, f16),
                self.of::<S, Int4<Minima>>(s, f16),
                self.of::<S, Int4<ZeroPoints>>(s, f16),
                self.of::<S, Int4<E2m1Codes>>(s, bf16),
            ]
        }
    }

    /// [`Kernel`] with every way to multiply bytes that the machine has, and the portable one first.
    fn with_every_product<K: Kernel>(kernel: impl Fn() -> K) -> Vec<(&'static str, K::Output)> {
        let mut found = vec![("portable", portably(kernel()))];
        #[cfg(target_arch = "x86_64")]
        {
            use super::super::{avx2, avx512};
            use crate::Isa;
            let (has_avx2, has_avx512) = (Isa::Avx2.is_available(), Isa::Avx512.is_available());
            if has_avx2 {
                // SAFETY: it was found.
                found.push(("avx2", unsafe { avx2::run(kernel()) }));
            }
            if has_avx2 && is_x86_feature_detected!("avxvnni") {
                // SAFETY: it was found.
                found.push(("avx2 with VNNI", unsafe { avx2::run_vnni(kernel()) }));
            }
            if has_avx512 {
                // SAFETY: it was found.
                found.push(("avx512", unsafe { avx512::run(kernel()) }));
            }
            if has_avx512 && is_x86_feature_detected!("avx512vnni") {
                // SAFETY: it was found.
                found.push(("avx512 with VNNI", unsafe { avx512::run_vnni(kernel()) }));
            }
        }
        #[cfg(target_arch = "aarch64")]
        {
            use super::super::neon;
            use std::arch::is_aarch64_feature_detected;
            if is_aarch64_feature_detected!("neon") {
                // SAFETY: it was found.
                found.push(("neon", unsafe { neon::run(kernel()) }));
            }
            if is_aarch64_feature_detected!("neon") && is_aarch64_feature_detected!("dotprod") {
                // SAFETY: it was found.
                found.push(("neon with sdot", unsafe { neon::run_dot(kernel()) }));
            }
        }
        found
    }

    /// The largest sums too: all bytes as large as they get, of one sign.
    #[test]
    fn products_have_the_same_bits_on_every_set_up_to_the_largest_sums() {
        const STEPS: usize = 3;
        let mut state = 7_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 32) as u32
        };
        let inputs = STEPS * BLOCKS * BLOCK;
        for round in 0..40 {
            let rows: [Vec<f32>; 6] = std::array::from_fn(|row| {
                let sign = [1.0, -1.0][row % 2];
                (0..inputs)
                    .map(|_| if row < 2 { sign } else { random() as f32 / u32::MAX as f32 * 2.0 - 1.0 })
                    .collect()
            });
            let weights: Vec<u32> = (0..STEPS * (BLOCKS * WORDS + 2) * PANEL)
                .map(|_| match round {
                    0 => u32::MAX,
                    1 => 0,
                    // E2M1's largest.
                    2 => 0x7777_7777,
                    _ => random(),
                })
                .collect();
            let found = with_every_product(|| Products { rows: &rows, steps: STEPS, weights: &weights });
            for (set, products) in &found[1..] {
                assert_eq!(products, &found[0].1, "{set}, round {round}");
            }
        }
    }

    /// Words as signed factors, and as what factors are less their offset.
    #[cfg(target_arch = "x86_64")]
    struct Signed<'a, H>(&'a [u32], PhantomData<H>);

    #[cfg(target_arch = "x86_64")]
    impl<H: Held> Kernel for Signed<'_, H> {
        type Output = [Vec<i8>; 2];

        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> Self::Output {
            assert!(!S::SIGNED);
            let bytes = |words: S::I| {
                let mut out = vec![0; S::LANES];
                // SAFETY: there is room for a vector.
                unsafe { s.store_u32(out.as_mut_ptr(), words) };
                out.into_iter().flat_map(u32::to_le_bytes)
            };
            // Beside an activation of one is what comes off a factor.
            let one = Quantised { bytes: [0; BLOCK], scale: 1.0, sum: 1 };
            let offset = if H::has_offset::<S>() { H::beside::<S>(&one).cast_signed() } else { 0 };
            let (mut signed, mut less) = (Vec::new(), Vec::new());
            for words in self.0.chunks_exact(S::LANES) {
                for block in 0..BLOCKS {
                    // SAFETY: the chunk is as long as a vector.
                    let words = unsafe { s.load_u32(words.as_ptr()) };
                    signed.extend(bytes(H::signed(s, words, block)).map(u8::cast_signed));
                    let factors = bytes(H::factors(s, words, block));
                    less.extend(factors.map(|factor| i8::try_from(i32::from(factor) + offset).unwrap()));
                }
            }
            [signed, less]
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn signed_factors_are_factors_less_their_offset() {
        use super::super::int4::{E2m1Codes, Int4, Minima, Symmetric, ZeroPoints};
        // Every byte.
        let words: Vec<u32> = (0..64).map(|i| u32::from_le_bytes([0, 1, 2, 3].map(|j| 4 * i + j))).collect();
        let found = [
            portably(Signed(&words, PhantomData::<Int8>)),
            portably(Signed(&words, PhantomData::<Int4<Symmetric>>)),
            portably(Signed(&words, PhantomData::<Int4<Minima>>)),
            portably(Signed(&words, PhantomData::<Int4<ZeroPoints>>)),
            portably(Signed(&words, PhantomData::<Int4<E2m1Codes>>)),
        ];
        for (i, [signed, less]) in found.iter().enumerate() {
            assert_eq!(signed.len(), 2 * 256);
            assert_eq!(signed, less, "{i}");
        }
    }

    #[test]
    fn products_of_bytes_are_exact_on_every_set() {
        let mut state = 1_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 32) as u32
        };
        let ends = [0, 0x7f7f_7f7f, 0x8080_8080, u32::MAX, 0x80ff_7f00];
        for round in 0..2000 {
            let mut words = [[0; 16]; 3];
            words.as_flattened_mut().iter_mut().for_each(|word| *word = random());
            if round % 2 == 0 {
                words[1..].as_flattened_mut().iter_mut().for_each(|word| *word = ends[random() as usize % 5]);
            }
            let [sums, a, b] = words;
            for (set, found) in with_every_product(|| Bytes(words)) {
                let signed = found.2;
                let factor = |a: u8| if signed { i64::from(a.cast_signed()) } else { i64::from(a) };
                let expected: Words = std::array::from_fn(|i| {
                    let pairs = a[i].to_le_bytes().into_iter().zip(b[i].to_le_bytes());
                    let dot: i64 = pairs.map(|(a, b)| factor(a) * i64::from(b.cast_signed())).sum();
                    (i64::from(sums[i]) + dot) as u32
                });
                assert_eq!(found, (expected, b.map(|word| word as u8), signed), "{set}");
            }
        }
    }
}
