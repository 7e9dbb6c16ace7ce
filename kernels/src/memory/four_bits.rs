//! Weight matrices in 4 bits, packed for the matmul.
//!
//! Each output and block of 32 inputs has a scale; its weights are whole numbers from 0 to 15, less 8, times the scale. If a matrix needs
//! them, each has a minimum too; then a weight is the scale times the number, and the minimum. Both are f16, with a sign.
//!
//! A panel is `[in / 64][9 or 10][PANEL]` words of 32 bits. In a step of 64 inputs the first eight rows of words have two blocks, four
//! consecutive inputs of each to the word: the first block is in the low halves of the bytes, the second in the high ones. The next row has
//! the scales of both, the first in the low half; the last one, if it is there, their minima. So a weight takes 4.5 bits, or 5.
//!
//! Blocks of GGUF files that are of 4 bits keep their numbers. Scales of Q4_0 and Q4_1, and minima, are f16 in the file, and the same here.
//! Those of Q4_K are products of an f16 and 6 bits, rounded to f16: off by 2^-12 of themselves at most, or by 2^-25 if they are below 2^-14.
//! Activations in int8 lose twenty times as much, 0.5 % of a product.
//!
//! All others are quantised here. Of twelve scales, which put the largest weight at 7 to 9.75 steps on the longer side (8 are there), each is
//! moved to where it fits the numbers that it gives best, by least squares, and the best one is taken.

use super::panel_sizes::{BLOCK, BLOCKS, PANEL};
use super::quantised_blocks::{Blocks, FourBits, Group};
use super::{Buffer, Source};
use crate::{Dtype, KernelError};
use half::f16;

/// Rows of words in a step before the scales.
const ROWS: usize = BLOCK / 4;

/// How a matrix is packed where int4 was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// In 4 bits; whether with minima.
    FourBits { minima: bool },
    /// In int8: a source has more bits, or other blocks.
    Int8,
}

impl Form {
    /// Of these sources.
    pub(super) fn of(sources: &[Source<'_>]) -> Form {
        let mut minima = false;
        for blocks in sources.iter().filter_map(Source::blocks) {
            if !blocks.has_four_bits() {
                return Form::Int8;
            }
            minima |= blocks != Blocks::Q4_0;
        }
        Form::FourBits { minima }
    }
}

/// Words that an output's inputs take.
pub(super) fn words(in_features: usize, minima: bool) -> usize {
    in_features.div_ceil(BLOCKS * BLOCK) * step_rows(minima)
}

/// Rows of words in a step.
fn step_rows(minima: bool) -> usize {
    ROWS + 1 + usize::from(minima)
}

/// Packs `rows`, one output each: where a row begins in its source.
pub(super) fn pack<'a>(
    out_features: usize,
    in_features: usize,
    minima: bool,
    mut rows: impl Iterator<Item = (&'a Source<'a>, usize)>,
) -> Result<Buffer<u32>, KernelError> {
    let words = words(in_features, minima);
    let mut packed = Buffer::zeroed(out_features.next_multiple_of(PANEL) * words, "weights")?;
    for panel in packed.chunks_exact_mut(PANEL * words) {
        let outputs: Vec<_> = rows.by_ref().take(PANEL).collect();
        for (step, packed) in panel.chunks_exact_mut(PANEL * step_rows(minima)).enumerate() {
            for (output, (source, row)) in outputs.iter().enumerate() {
                for block in 0..BLOCKS {
                    let first = (step * BLOCKS + block) * BLOCK;
                    let inputs = BLOCK.min(in_features.saturating_sub(first));
                    let Block { numbers, scale, minimum } =
                        Block::read(source, row + first.min(in_features), inputs, minima)?;
                    for (i, four) in numbers.as_chunks::<4>().0.iter().enumerate() {
                        packed[i * PANEL + output] |= u32::from_le_bytes(*four) << (4 * block);
                    }
                    for (row, number) in [(ROWS, scale), (ROWS + 1, minimum)] {
                        if row < step_rows(minima) {
                            packed[row * PANEL + output] |= u32::from(number.to_bits()) << (16 * block);
                        }
                    }
                }
            }
        }
    }
    Ok(packed)
}

/// A block of an output.
#[derive(Debug)]
struct Block {
    /// From 0 to 15.
    numbers: [u8; BLOCK],
    scale: f16,
    /// Zero where the matrix has none.
    minimum: f16,
}

impl Block {
    /// The `inputs` weights from `from` on; what a block lacks is zero, or as near to it as may be.
    fn read(source: &Source<'_>, from: usize, inputs: usize, minima: bool) -> Result<Block, KernelError> {
        let own = if inputs == BLOCK { source.group(from) } else { None };
        if let Some(FourBits { numbers, scale, minimum }) = own.and_then(Group::four_bits)
            && (minima || minimum.is_none())
        {
            // 8 times a scale, if others have minima.
            let minimum = minimum.unwrap_or(if minima { -8.0 * scale } else { 0.0 });
            let largest = (scale * 15.0 + minimum).abs().max(minimum.abs());
            return Ok(Block { numbers, scale: held(scale, largest)?, minimum: held(minimum, largest)? });
        }
        let mut weights = [0.0; BLOCK];
        source.read(from, &mut weights[..inputs]);
        if minima { between(&weights) } else { around_zero(&weights) }
    }
}

/// As f16; `largest` is the weight that is named if it cannot be.
fn held(x: f32, largest: f32) -> Result<f16, KernelError> {
    let held = f16::from_f32(x);
    let refusal = KernelError::Weight { value: largest, dtype: Dtype::Int4.name(), most: "half a million" };
    if held.is_finite() { Ok(held) } else { Err(refusal) }
}

/// The weight that is largest in size; NaN if one is.
fn largest(weights: &[f32; BLOCK]) -> f32 {
    // NaN is largest as a pattern of bits.
    weights.iter().copied().max_by_key(|w| w.abs().to_bits()).unwrap_or(0.0)
}

/// Adding it rounds a small number to an integer.
const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23
/// Smaller weights are zero: f16 has no scale for them.
const TINY: f32 = 1e-8;

/// `x` as a whole number from `least` to `most`.
#[inline(always)]
fn whole(x: f32, least: f32, most: f32) -> f32 {
    (x.clamp(least, most) + ROUND) - ROUND
}

/// The block nearest to `weights` without a minimum.
fn around_zero(weights: &[f32; BLOCK]) -> Result<Block, KernelError> {
    let largest = largest(weights);
    if !largest.is_finite() {
        return Err(KernelError::Weight {
            value: largest,
            dtype: Dtype::Int4.name(),
            most: "half a million",
        });
    }
    let mut best = (0.0, 0.0);
    if largest.abs() > TINY {
        for quarters in 28_u8..40 {
            let inverse = -0.25 * f32::from(quarters) / largest;
            let (mut products, mut squares) = ([0.0; 8], [0.0; 8]);
            for weights in weights.as_chunks::<8>().0 {
                for ((w, product), square) in weights.iter().zip(&mut products).zip(&mut squares) {
                    let number = whole(w * inverse, -8.0, 7.0);
                    // Of steps, whose squares are not too large.
                    *product += number * (w * inverse);
                    *square += number * number;
                }
            }
            let (product, square): (f32, f32) = (products.iter().sum(), squares.iter().sum());
            // What the error's square is less for it, with the scale that is best for these numbers.
            let share = product / (square * inverse);
            let gain = share * product / inverse;
            if gain > best.0 {
                best = (gain, share);
            }
        }
    }
    let scale = held(best.1, largest)?;
    let inverse = inverse(scale);
    let numbers = weights.map(|w| (whole(w * inverse, -8.0, 7.0) + 8.0) as u8);
    Ok(Block { numbers, scale, minimum: f16::ZERO })
}

/// The block nearest to `weights` with a minimum, if not by much: from the range on, numbers and what fits them best take turns.
fn between(weights: &[f32; BLOCK]) -> Result<Block, KernelError> {
    let largest = largest(weights);
    let (least, most) = weights.iter().fold((f32::MAX, f32::MIN), |(l, m), w| (l.min(*w), m.max(*w)));
    let (mut scale, mut minimum) = ((most - least) / 15.0, least);
    for _ in 0..4 {
        let inverse = if scale > TINY { 1.0 / scale } else { 0.0 };
        let numbers = weights.map(|w| whole((w - minimum) * inverse, 0.0, 15.0));
        let count = BLOCK as f32;
        let (of_numbers, of_weights) =
            (numbers.iter().sum::<f32>() / count, weights.iter().sum::<f32>() / count);
        let (mut products, mut squares) = (0.0, 0.0);
        for (number, w) in numbers.iter().zip(weights) {
            products += (number - of_numbers) * (w - of_weights);
            squares += (number - of_numbers) * (number - of_numbers);
        }
        if squares == 0.0 {
            break;
        }
        scale = products / squares;
        minimum = of_weights - scale * of_numbers;
    }
    let (scale, minimum) = (held(scale, largest)?, held(minimum, largest)?);
    let (inverse, from) = (inverse(scale), minimum.to_f32());
    let numbers = weights.map(|w| whole((w - from) * inverse, 0.0, 15.0) as u8);
    Ok(Block { numbers, scale, minimum })
}

/// Of a scale; zero of zero.
fn inverse(scale: f16) -> f32 {
    if scale == f16::ZERO { 0.0 } else { 1.0 / scale.to_f32() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The weights that stand for what was packed.
    fn unpacked(packed: &[u32], outputs: usize, inputs: usize, minima: bool) -> Vec<f32> {
        let panel_len = PANEL * words(inputs, minima);
        let weight = |output: usize, input: usize| {
            let panel = &packed[output / PANEL * panel_len..][..panel_len];
            let step = &panel[input / 64 * PANEL * step_rows(minima)..][..PANEL * step_rows(minima)];
            let (block, output) = (input / 32 % 2, output % PANEL);
            let byte = step[input % 32 / 4 * PANEL + output].to_le_bytes()[input % 4];
            let number = f32::from(byte >> (4 * block) & 15);
            let half =
                |row: usize| f16::from_bits((step[row * PANEL + output] >> (16 * block)) as u16).to_f32();
            if minima { half(ROWS) * number + half(ROWS + 1) } else { half(ROWS) * (number - 8.0) }
        };
        (0..outputs * inputs).map(|i| weight(i / inputs, i % inputs)).collect()
    }

    fn packed(inputs: usize, source: &Source<'_>, minima: bool) -> Result<Buffer<u32>, KernelError> {
        let outputs = source.len() / inputs;
        pack(outputs, inputs, minima, (0..outputs).map(|o| (source, o * inputs)))
    }

    /// Numbers that look like noise, from -1 to 1.
    fn noise(count: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * i) as f32 * 0.37).sin()).collect()
    }

    #[test]
    fn every_weight_is_near_the_one_that_it_was() {
        for minima in [false, true] {
            for (outputs, inputs) in [(1, 1), (3, 31), (33, 32), (40, 65), (70, 100), (64, 128)] {
                let sizes = [1.0, 1e-2, 3e4, 1e-4];
                let noise = noise(outputs * inputs);
                let weights: Vec<f32> =
                    noise.iter().enumerate().map(|(i, x)| x * sizes[i / 32 % 4]).collect();
                let found = unpacked(
                    &packed(inputs, &Source::F32(&weights), minima).unwrap(),
                    outputs,
                    inputs,
                    minima,
                );
                for (row, found) in weights.chunks(inputs).zip(found.chunks(inputs)) {
                    for (block, found) in row.chunks(BLOCK).zip(found.chunks(BLOCK)) {
                        let largest = block.iter().fold(0.0, |most: f32, w| most.max(w.abs()));
                        for (w, found) in block.iter().zip(found) {
                            // Half a step between, and a step or two at the ends, where the rest is the better for it.
                            assert!((w - found).abs() <= largest * 0.25, "{w} {found} of {largest}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn the_search_is_never_worse_than_the_largest_weight_at_eight_steps() {
        let mut better = 0;
        for seed in 0..500 {
            let weights: [f32; BLOCK] = std::array::from_fn(|i| {
                let i = (seed * 37 + i) as f32;
                (i * i * 0.61).sin() * (i * 1.7).cos()
            });
            let error = |scale: f32| -> f64 {
                let number = |w: f32| whole(w / scale, -8.0, 7.0);
                weights.iter().map(|w| f64::from(w - scale * number(*w)).powi(2)).sum()
            };
            let (found, plain) =
                (around_zero(&weights).unwrap(), f16::from_f32(largest(&weights) / -8.0).to_f32());
            let (found, plain) = (error(found.scale.to_f32()), error(plain));
            assert!(found <= plain * 1.001, "{seed}: {found} {plain}");
            better += usize::from(found < plain * 0.9);
        }
        assert!(better > 150, "{better}");
    }

    #[test]
    fn numbers_that_4_bits_hold_stay_as_they_are() {
        for (seed, scale) in [(1, 0.25), (2, -0.003), (3, 4096.0), (4, -2f32.powi(-20))] {
            let scale = f16::from_f32(scale).to_f32();
            let mut weights: [f32; BLOCK] =
                std::array::from_fn(|i| scale * (((i * 7 + seed) * (i + 3) % 16) as f32 - 8.0));
            weights[5] = -8.0 * scale;
            let block = around_zero(&weights).unwrap();
            let found = block.numbers.map(|n| block.scale.to_f32() * (f32::from(n) - 8.0));
            assert_eq!(found, weights);
        }
    }

    /// Two blocks of 32: a scale, here also a minimum, and bytes with halves from `first` on.
    fn file(head: &[[f32; 2]; 2], halves: usize) -> Vec<u8> {
        let block = |head: &[f32; 2]| {
            let head = head[..halves].iter().flat_map(|x| f16::from_f32(*x).to_le_bytes());
            head.chain((0..16_u8).map(|i| i | (15 - i) << 4)).collect::<Vec<u8>>()
        };
        head.iter().flat_map(block).collect()
    }

    #[test]
    fn blocks_of_files_keep_their_bits() {
        let head = [[0.37, -1.5], [-2.5, 0.003]];
        for (blocks, halves) in [(Blocks::Q4_0, 1), (Blocks::Q4_1, 2)] {
            let bytes = file(&head, halves);
            let source = Source::Blocks(blocks, &bytes);
            let mut wanted = vec![0.0; 64];
            source.read_f32(0, &mut wanted);
            for minima in [halves == 2, true] {
                assert_eq!(Form::of(&[source]), Form::FourBits { minima: halves == 2 });
                for inputs in [64, 32] {
                    let found = packed(inputs, &source, minima).unwrap();
                    assert_eq!(unpacked(&found, 64 / inputs, inputs, minima), wanted, "{blocks:?} {inputs}");
                }
            }
        }
    }

    #[test]
    fn blocks_of_256_keep_their_numbers_and_nearly_their_scales() {
        let mut bytes = vec![0_u8; 144];
        bytes[..2].copy_from_slice(&f16::from_f32(0.001).to_le_bytes());
        bytes[2..4].copy_from_slice(&f16::from_f32(0.01).to_le_bytes());
        bytes[4..].iter_mut().enumerate().for_each(|(i, byte)| *byte = (i * 89 + 7) as u8);
        let source = Source::Blocks(Blocks::Q4K, &bytes);
        let mut wanted = vec![0.0; 256];
        source.read_f32(0, &mut wanted);
        assert_eq!(Form::of(&[source]), Form::FourBits { minima: true });
        let found = unpacked(&packed(256, &source, true).unwrap(), 1, 256, true);
        for (found, wanted) in found.iter().zip(&wanted) {
            // The largest scale times 15, and the largest minimum.
            let size = 0.001 * 63.0 * 15.0 + 0.01 * 63.0;
            assert!((found - wanted).abs() < size / 4096.0, "{found} {wanted}");
        }
        // Where groups of the file are not blocks here, or others have more bits.
        let part = Source::Part(&source, super::super::Slice::new(16, 0..16, 0..16));
        assert!(packed(16, &part, true).is_ok());
        for more in [Blocks::Q5_0, Blocks::Q6K, Blocks::Q8_0, Blocks::Q2K] {
            assert_eq!(Form::of(&[source, Source::Blocks(more, &[])]), Form::Int8);
        }
    }

    #[test]
    fn weights_without_a_scale_are_refused() {
        for minima in [false, true] {
            for bad in [f32::NAN, f32::NEG_INFINITY, 1e7, -3e38] {
                let mut weights = [0.5; 70];
                weights[68] = bad;
                let refusal = packed(70, &Source::F32(&weights), minima).err().unwrap().to_string();
                assert!(refusal.contains("int4") && refusal.contains("bf16"), "{refusal}");
            }
            let zeros = packed(33, &Source::F32(&[0.0; 33]), minima).unwrap();
            assert_eq!(unpacked(&zeros, 1, 33, minima), [0.0; 33]);
        }
        // A scale of a file that is one, and not with its 6 bits more.
        let mut bytes = [0xff_u8; 144];
        bytes[..4].copy_from_slice(&[0x00, 0x7b, 0x00, 0x3c]);
        let refusal = packed(256, &Source::Blocks(Blocks::Q4K, &bytes), true).err().unwrap().to_string();
        assert!(refusal.contains("int4"), "{refusal}");
    }
}
