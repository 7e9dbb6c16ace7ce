//! Weights of 4 bits; all else is as for int8. See `memory/four_bits.rs` for how they lie, and what their forms stand for.
//!
//! The low halves of a step's words are the first block, the high ones the second, so each word is read twice, the second time from the
//! nearest cache. Halves of bytes from 0 to 15 are factors as they are, whether [`Simd::dot_bytes`] takes signed or unsigned ones. What is
//! to come off for each, 8 or nothing beside a minimum or a zero point, is known with the sum of the activations. Halves that are E2M1 are
//! looked up in a table of their doubles, where unsigned ones are due of 12 more.

use super::Simd;
use super::int8::{Beside, Held, Quantised};
use super::panel::Ask;
use crate::memory::{BLOCK, E2M1};
use std::marker::PhantomData;

/// What is different between the forms.
pub(crate) trait Form {
    /// What a block has beside its scale.
    const BESIDE: Beside;
    /// The largest factor, where they are unsigned.
    const LARGEST: usize = 15;

    /// Factors, of halves of bytes.
    #[inline(always)]
    fn factors<S: Simd>(_s: S, halves: S::I) -> S::I {
        halves
    }

    /// The same, less their offset.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn signed<S: Simd>(_s: S, halves: S::I) -> S::I {
        halves
    }

    /// A scale in the high half of each word.
    #[inline(always)]
    fn scales<S: Simd>(s: S, high: S::I) -> S::F {
        of_f16(s, high)
    }

    /// What factors are more than what they stand for.
    fn offset<S: Simd>() -> i32;
}

/// Half a byte each, 8 more than the weight.
pub(crate) struct Symmetric;
/// Half a byte each, less than the weight by the minimum.
pub(crate) struct Minima;
/// Half a byte each, more than the weight by the zero point.
pub(crate) struct ZeroPoints;
/// Half a byte each, which stands for a floating-point number.
pub(crate) struct E2m1Codes;

impl Form for Symmetric {
    const BESIDE: Beside = Beside::Nothing;

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn signed<S: Simd>(s: S, halves: S::I) -> S::I {
        s.look_up(&EIGHT_LESS, halves)
    }

    #[inline(always)]
    fn offset<S: Simd>() -> i32 {
        8
    }
}

impl Form for Minima {
    const BESIDE: Beside = Beside::Minima;

    #[inline(always)]
    fn offset<S: Simd>() -> i32 {
        0
    }
}

impl Form for ZeroPoints {
    const BESIDE: Beside = Beside::ZeroPoints;

    #[inline(always)]
    fn offset<S: Simd>() -> i32 {
        0
    }
}

impl Form for E2m1Codes {
    const BESIDE: Beside = Beside::Nothing;
    const LARGEST: usize = 24;

    #[inline(always)]
    fn factors<S: Simd>(s: S, halves: S::I) -> S::I {
        s.look_up(if S::SIGNED { &DOUBLES } else { &TWELVE_MORE }, halves)
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn signed<S: Simd>(s: S, halves: S::I) -> S::I {
        s.look_up(&DOUBLES, halves)
    }

    /// bf16, exactly.
    #[inline(always)]
    fn scales<S: Simd>(s: S, high: S::I) -> S::F {
        s.of_bits(s.and_u32(high, s.splat_u32(0xffff << 16)))
    }

    #[inline(always)]
    fn offset<S: Simd>() -> i32 {
        if S::SIGNED { 0 } else { 12 }
    }
}

/// Halves of bytes, 8 less.
#[cfg(target_arch = "x86_64")]
const EIGHT_LESS: [u8; 16] = [0xf8, 0xf9, 0xfa, 0xfb, 0xfc, 0xfd, 0xfe, 0xff, 0, 1, 2, 3, 4, 5, 6, 7];

/// Twice what each code stands for, and that as bytes that are all positive.
const DOUBLES: [u8; 16] = doubles(0);
const TWELVE_MORE: [u8; 16] = doubles(12);

const fn doubles(more: u8) -> [u8; 16] {
    let mut table = [0; 16];
    let mut code = 0;
    while code < 8 {
        table[code] = more + E2M1[code];
        table[code + 8] = more.wrapping_sub(E2M1[code]);
        code += 1;
    }
    table
}

/// Half a byte each, of this form.
pub(crate) struct Int4<F>(PhantomData<F>);

/// Rows of words in a step.
const ROWS: usize = BLOCK / 4;
/// What the bits of an f16 without its sign, moved up by 13 and read as an f32, are to be multiplied by.
const F16_UNIT: f32 = f32::from_bits((127 + 112) << 23);

/// f16 in the high half of each word, exactly.
#[inline(always)]
fn of_f16<S: Simd>(s: S, high: S::I) -> S::F {
    let size = s.and_u32(s.shift_right::<3>(high), s.splat_u32(0x7fff << 13));
    let size = s.mul(s.of_bits(size), s.splat(F16_UNIT));
    s.of_bits(s.xor_u32(s.bits(size), s.and_u32(high, s.splat_u32(1 << 31))))
}

/// Those of a block: a half of each byte.
#[inline(always)]
fn halves<S: Simd>(s: S, words: S::I, block: usize) -> S::I {
    let words = if block == 0 { words } else { s.shift_right::<4>(words) };
    s.and_u32(words, s.splat_u32(0x0f0f_0f0f))
}

/// That of a block.
#[inline(always)]
fn high<S: Simd>(s: S, pairs: S::I, block: usize) -> S::I {
    if block == 0 { s.shift_left::<16>(pairs) } else { pairs }
}

impl<F: Form> Held for Int4<F> {
    const ROWS: usize = ROWS;
    const BESIDE: Beside = F::BESIDE;
    const LARGEST: usize = F::LARGEST;

    #[inline(always)]
    fn row(w: usize) -> usize {
        w % ROWS
    }

    #[inline(always)]
    fn ask<const P: usize>(ask: Ask<P>, block: usize) -> Ask<P> {
        if block == 0 { ask } else { Ask::NOTHING }
    }

    #[inline(always)]
    fn factors<S: Simd>(s: S, words: S::I, block: usize) -> S::I {
        F::factors(s, halves(s, words, block))
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn signed<S: Simd>(s: S, words: S::I, block: usize) -> S::I {
        F::signed(s, halves(s, words, block))
    }

    #[inline(always)]
    fn scales<S: Simd>(s: S, pairs: S::I, block: usize) -> S::F {
        F::scales(s, high(s, pairs, block))
    }

    #[inline(always)]
    fn beside_scales<S: Simd>(s: S, pairs: S::I, block: usize) -> S::F {
        of_f16(s, high(s, pairs, block))
    }

    #[inline(always)]
    fn has_offset<S: Simd>() -> bool {
        F::offset::<S>() != 0
    }

    #[inline(always)]
    fn beside<S: Simd>(activations: &Quantised) -> u32 {
        match F::BESIDE {
            Beside::Nothing => (-F::offset::<S>() * activations.sum).cast_unsigned(),
            Beside::Minima => (activations.scale * activations.sum as f32).to_bits(),
            Beside::ZeroPoints => (-activations.sum as f32).to_bits(),
        }
    }
}
