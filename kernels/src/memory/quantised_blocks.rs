//! Quantised numbers as GGUF files store them: in blocks of 32 or 256, each with scales of its own. They are widened to f32 in groups of
//! 32, wherever a reader begins.
//!
//! Source: the block structs of ggml (`ggml-common.h`), whose names these are. What a number is, and in which order it is computed, is as
//! ggml's `dequantize_row_*` have it, bit for bit.

use super::codes::{Beside, FourBitForm, FourBits};
use half::f16;

/// Numbers that are widened together; a block has a whole number of such groups.
pub(crate) const GROUP: usize = 32;
/// Numbers of a block of the formats whose names end in `_K`.
const SUPER: usize = 256;

/// How a block stores its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocks {
    /// 32 of 4 bits, and a scale.
    Q4_0,
    /// 32 of 4 bits, a scale and a minimum.
    Q4_1,
    /// 32 of 5 bits, and a scale.
    Q5_0,
    /// 32 of 5 bits, a scale and a minimum.
    Q5_1,
    /// 32 of 8 bits, and a scale.
    Q8_0,
    /// 256 of 2 bits; scales and minima of 4 bits for each 16.
    Q2K,
    /// 256 of 3 bits; scales of 6 bits for each 16.
    Q3K,
    /// 256 of 4 bits; scales and minima of 6 bits for each 32.
    Q4K,
    /// 256 of 5 bits; scales and minima of 6 bits for each 32.
    Q5K,
    /// 256 of 6 bits; scales of 8 bits for each 16.
    Q6K,
}

impl Blocks {
    /// Numbers of a block.
    #[must_use]
    pub fn numbers(self) -> usize {
        match self {
            Blocks::Q4_0 | Blocks::Q4_1 | Blocks::Q5_0 | Blocks::Q5_1 | Blocks::Q8_0 => GROUP,
            Blocks::Q2K | Blocks::Q3K | Blocks::Q4K | Blocks::Q5K | Blocks::Q6K => SUPER,
        }
    }

    /// Bytes of a block.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Blocks::Q4_0 => 18,
            Blocks::Q4_1 => 20,
            Blocks::Q5_0 => 22,
            Blocks::Q5_1 => 24,
            Blocks::Q8_0 => 34,
            Blocks::Q2K => 84,
            Blocks::Q3K => 110,
            Blocks::Q4K => 144,
            Blocks::Q5K => 176,
            Blocks::Q6K => 210,
        }
    }

    /// What its numbers of 4 bits stand for, if it has one scale of such for each 32.
    pub(crate) fn four_bit_form(self) -> Option<FourBitForm> {
        match self {
            Blocks::Q4_0 => Some(FourBitForm::Symmetric),
            Blocks::Q4_1 | Blocks::Q4K => Some(FourBitForm::Minima),
            _ => None,
        }
    }

    /// Where in a block the f16 numbers stand that all others are multiplied by.
    fn scales(self) -> &'static [usize] {
        match self {
            Blocks::Q4_0 | Blocks::Q5_0 | Blocks::Q8_0 => &[0],
            Blocks::Q4_1 | Blocks::Q5_1 | Blocks::Q4K | Blocks::Q5K => &[0, 2],
            Blocks::Q2K => &[80, 82],
            Blocks::Q3K => &[108],
            Blocks::Q6K => &[208],
        }
    }

    /// A scale of `block` that is infinite or no number: what is widened by it is none either.
    pub(crate) fn scale_not_finite(self, block: &[u8]) -> Option<f32> {
        self.scales().iter().map(|at| half(block, *at)).find(|scale| !scale.is_finite())
    }

    /// The numbers of a group of the blocks in `data`.
    ///
    /// # Panics
    /// If there are not so many groups.
    pub(crate) fn widen(self, data: &[u8], group: usize, to: &mut [f32; GROUP]) {
        let groups = self.numbers() / GROUP;
        let (block, group) = (group / groups, group % groups);
        let block = &data[block * self.bytes()..(block + 1) * self.bytes()];
        match self {
            Blocks::Q4_0 => halves(&block[2..], to, scaled(half(block, 0), -8.0)),
            Blocks::Q4_1 => halves(&block[4..], to, with_minimum(half(block, 0), half(block, 2))),
            Blocks::Q5_0 => {
                let (scale, high) = (half(block, 0), word(block, 2));
                fifths(&block[6..], high, to, scaled(scale, -16.0));
            }
            Blocks::Q5_1 => {
                let (number, high) = (with_minimum(half(block, 0), half(block, 2)), word(block, 4));
                fifths(&block[8..], high, to, number);
            }
            Blocks::Q8_0 => {
                let scale = half(block, 0);
                let numbers = block[2..].iter().map(|byte| f32::from(byte.cast_signed()) * scale);
                to.iter_mut().zip(numbers).for_each(|(to, x)| *to = x);
            }
            Blocks::Q2K => q2k(block, group, to),
            Blocks::Q3K => q3k(block, group, to),
            Blocks::Q4K => {
                let number = with_small_scales(block, group);
                let bytes = &block[16 + group / 2 * GROUP..];
                to.iter_mut().zip(bytes).for_each(|(to, byte)| *to = number(nibble(*byte, group)));
            }
            Blocks::Q5K => {
                let number = with_small_scales(block, group);
                let (high, bytes) = (&block[16..48], &block[48 + group / 2 * GROUP..]);
                for ((to, byte), high) in to.iter_mut().zip(bytes).zip(high) {
                    *to = number(nibble(*byte, group) + 16 * (high >> group & 1));
                }
            }
            Blocks::Q6K => q6k(block, group, to),
        }
    }
}

/// A group of a block, as the file has it.
#[derive(Clone, Copy)]
pub(crate) struct Group<'a> {
    pub(crate) blocks: Blocks,
    pub(crate) block: &'a [u8],
    /// Which of the block's.
    pub(crate) group: usize,
}

impl Group<'_> {
    /// The numbers of a format that has one scale of 4-bit numbers for the group.
    pub(crate) fn four_bits(self) -> Option<FourBits> {
        let Group { blocks, block, group } = self;
        let mut numbers = [0; GROUP];
        let mut of_halves = |bytes: &[u8]| {
            let (low, high) = numbers.split_at_mut(GROUP / 2);
            for ((low, high), byte) in low.iter_mut().zip(high).zip(bytes) {
                (*low, *high) = (byte & 15, byte >> 4);
            }
        };
        let (scale, beside) = match blocks {
            Blocks::Q4_0 => {
                of_halves(&block[2..]);
                (half(block, 0), Beside::Nothing)
            }
            Blocks::Q4_1 => {
                of_halves(&block[4..]);
                (half(block, 0), Beside::Minimum(half(block, 2)))
            }
            Blocks::Q4K => {
                let (scale, least) = small_scales(block, group);
                let bytes = &block[16 + group / 2 * GROUP..];
                numbers.iter_mut().zip(bytes).for_each(|(to, byte)| *to = nibble(*byte, group));
                (scale, Beside::Minimum(-least))
            }
            _ => return None,
        };
        Some(FourBits { numbers, scale, beside })
    }

    /// Scale and numbers of Q8_0.
    pub(crate) fn eight_bits(self) -> Option<(f32, [i8; GROUP])> {
        let bytes = self.block.get(2..).and_then(<[u8]>::first_chunk::<GROUP>)?;
        (self.blocks == Blocks::Q8_0).then(|| (half(self.block, 0), bytes.map(u8::cast_signed)))
    }
}

fn half(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

fn word(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// A number less what it is stored with, by a scale.
fn scaled(scale: f32, offset: f32) -> impl Fn(u8) -> f32 {
    move |x| (f32::from(x) + offset) * scale
}

fn with_minimum(scale: f32, minimum: f32) -> impl Fn(u8) -> f32 {
    move |x| f32::from(x) * scale + minimum
}

/// The lower half of a byte for even groups, the upper one for odd ones.
fn nibble(byte: u8, group: usize) -> u8 {
    byte >> (group % 2 * 4) & 15
}

/// 16 bytes whose lower halves are the first 16 numbers.
fn halves(bytes: &[u8], to: &mut [f32; GROUP], number: impl Fn(u8) -> f32) {
    let (low, high) = to.split_at_mut(GROUP / 2);
    for ((low, high), byte) in low.iter_mut().zip(high).zip(bytes) {
        (*low, *high) = (number(byte & 15), number(byte >> 4));
    }
}

/// The same with a fifth bit, which is the number's own of `high`.
fn fifths(bytes: &[u8], high: u32, to: &mut [f32; GROUP], number: impl Fn(u8) -> f32) {
    let (first, second) = to.split_at_mut(GROUP / 2);
    for (i, ((first, second), byte)) in first.iter_mut().zip(second).zip(bytes).enumerate() {
        let fifth = |place: usize| (high >> place & 1) as u8 * 16;
        (*first, *second) = (number((byte & 15) + fifth(i)), number((byte >> 4) + fifth(i + GROUP / 2)));
    }
}

/// By the scale and the minimum of 6 bits that a group of 32 has; 8 of both are in 12 bytes.
fn with_small_scales(block: &[u8], group: usize) -> impl Fn(u8) -> f32 {
    let (scale, least) = small_scales(block, group);
    move |x| scale * f32::from(x) - least
}

/// Both of them.
fn small_scales(block: &[u8], group: usize) -> (f32, f32) {
    let (scale, least, packed) = (half(block, 0), half(block, 2), &block[4..16]);
    let (small, small_least) = match group {
        0..4 => (packed[group] & 63, packed[group + 4] & 63),
        _ => {
            let (low, high) = (packed[group + 4], [packed[group - 4], packed[group]]);
            (low & 15 | high[0] >> 6 << 4, low >> 4 | high[1] >> 6 << 4)
        }
    };
    (scale * f32::from(small), least * f32::from(small_least))
}

/// Two bits each: four groups of 32 share 32 bytes.
fn q2k(block: &[u8], group: usize, to: &mut [f32; GROUP]) {
    let (scale, least) = (half(block, 80), half(block, 82));
    let (bytes, shift) = (&block[16 + group / 4 * GROUP..], group % 4 * 2);
    for (i, (to, byte)) in to.iter_mut().zip(bytes).enumerate() {
        let small = block[group * 2 + i / 16];
        let (scale, least) = (scale * f32::from(small & 15), least * f32::from(small >> 4));
        *to = scale * f32::from(byte >> shift & 3) - least;
    }
}

/// The same with a third bit, which takes 4 away where it is not set, and 16 scales of 6 bits in 12 bytes.
fn q3k(block: &[u8], group: usize, to: &mut [f32; GROUP]) {
    let scale = half(block, 108);
    let (bytes, shift) = (&block[32 + group / 4 * GROUP..], group % 4 * 2);
    let packed = &block[96..108];
    for (i, ((to, byte), third)) in to.iter_mut().zip(bytes).zip(&block[..GROUP]).enumerate() {
        let place = group * 2 + i / 16;
        let low = packed[place % 8] >> (place / 8 * 4) & 15;
        let small = low | (packed[8 + place % 4] >> (place / 4 * 2) & 3) << 4;
        let number = i16::from(byte >> shift & 3) - 4 * i16::from(third >> group & 1 == 0);
        *to = scale * (f32::from(small) - 32.0) * f32::from(number);
    }
}

/// Four bits and two more: of 128 numbers, four groups, 64 bytes and 32.
fn q6k(block: &[u8], group: usize, to: &mut [f32; GROUP]) {
    let (scale, half_block, quarter) = (half(block, 208), group / 4, group % 4);
    let low = &block[half_block * 64 + quarter % 2 * GROUP..];
    let high = &block[128 + half_block * GROUP..];
    for (i, ((to, low), high)) in to.iter_mut().zip(low).zip(high).enumerate() {
        let small = block[192 + group * 2 + i / 16].cast_signed();
        let number = low >> (quarter / 2 * 4) & 15 | (high >> (quarter * 2) & 3) << 4;
        *to = scale * f32::from(small) * (f32::from(number) - 32.0);
    }
}
