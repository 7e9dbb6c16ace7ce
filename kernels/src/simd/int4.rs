//! Weights of 4 bits; all else is as for int8. See `memory/four_bits.rs` for how they lie.
//!
//! The low halves of a step's words are the first block, the high ones the second, so each word is read twice, the second time from the
//! nearest cache. Halves of bytes from 0 to 15 are factors as they are, whether [`Simd::dot_bytes`] takes signed or unsigned ones. What is
//! to come off for each, 8 or nothing beside a minimum, is known with the sum of the activations.

use super::Simd;
use super::int8::{DotWhole, Held, Quantised};
use super::panel::Ask;
use crate::memory::BLOCK;

/// Half a byte each, 8 more than the weight; or, with `MINIMA`, less by the minimum.
pub(crate) struct Int4<const MINIMA: bool>;

/// Weights of 4 bits times int8 activations.
pub(crate) type DotInt4<const MINIMA: bool> = DotWhole<Int4<MINIMA>>;

/// Rows of words in a step.
const ROWS: usize = BLOCK / 4;
/// What the bits of an f16 without its sign, moved up by 13 and read as an f32, are to be multiplied by.
const F16_UNIT: f32 = f32::from_bits((127 + 112) << 23);

impl<const WITH_MINIMA: bool> Held for Int4<WITH_MINIMA> {
    const ROWS: usize = ROWS;
    const MINIMA: bool = WITH_MINIMA;

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
        let words = if block == 0 { words } else { s.shift_right::<4>(words) };
        s.and_u32(words, s.splat_u32(0x0f0f_0f0f))
    }

    /// f16, exactly.
    #[inline(always)]
    fn one_of<S: Simd>(s: S, pairs: S::I, block: usize) -> S::F {
        let high = if block == 0 { s.shift_left::<16>(pairs) } else { pairs };
        let size = s.and_u32(s.shift_right::<3>(high), s.splat_u32(0x7fff << 13));
        let size = s.mul(s.of_bits(size), s.splat(F16_UNIT));
        s.of_bits(s.xor_u32(s.bits(size), s.and_u32(high, s.splat_u32(1 << 31))))
    }

    #[inline(always)]
    fn has_offset<S: Simd>() -> bool {
        !WITH_MINIMA
    }

    #[inline(always)]
    fn beside(activations: &Quantised) -> u32 {
        if WITH_MINIMA {
            (activations.scale * activations.sum as f32).to_bits()
        } else {
            (-8 * activations.sum).cast_unsigned()
        }
    }
}
