//! Weight matrices in 4 bits, packed for the matmul.
//!
//! Each output and block of 32 inputs has a scale; what its numbers from 0 to 15 are times the scale, the matrix's form says:
//!
//! ```text
//! symmetric    the number less 8
//! minima       the number; and a minimum is added, once it is scaled
//! zero points  the number less a zero point, from 0 to 16
//! E2M1         0, 0.5, 1, 1.5, 2, 3, 4, 6, and from 8 on the same below zero
//! ```
//! Scales are f16, with a sign; so are minima and zero points. Scales of E2M1 are powers of two, in bf16: of half of what the file's are of,
//! for numbers are whole here.
//!
//! A panel is `[in / 64][9 or 10][PANEL]` words of 32 bits. In a step of 64 inputs the first eight rows of words have two blocks, four
//! consecutive inputs of each to the word: the first block is in the low halves of the bytes, the second in the high ones. The next row has
//! the scales of both, the first in the low half; the last one, if it is there, their minima or zero points. So a weight takes 4.5 bits, or 5.
//!
//! Blocks of files that are of 4 bits keep their numbers. Scales of Q4_0 and Q4_1, minima, and most scales of AWQ and GPTQ are f16 in the
//! file, and the same here; so are those in bf16 from 2^-17 to 2^15. Those of Q4_K are products of an f16 and 6 bits. They, and what is f32 in a file, are rounded to
//! f16: off by 2^-12 of themselves at most, or by 2^-25 if they are below 2^-14. Activations in int8 lose twenty times as much, 0.5 % of a
//! product.
//!
//! All others are quantised here. Of twelve scales, which put the largest weight at 7 to 9.75 steps on the longer side (8 are there), each is
//! moved to where it fits the numbers that it gives best, by least squares, and the best one is taken.

use super::codes::{Beside, FourBitForm, FourBits};
use super::packing::{Row, fill_panels};
use super::panel_sizes::{BLOCK, BLOCKS, PANEL};
use super::{Buffer, Source};
use crate::{Dtype, KernelError};
use half::{bf16, f16};

/// Rows of words in a step before the scales.
const ROWS: usize = BLOCK / 4;

/// How a matrix is packed where int4 was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// In 4 bits, which stand for this.
    FourBits(FourBitForm),
    /// In int8: a source has more bits, or other blocks.
    Int8,
}

impl Form {
    /// Of these sources.
    pub(super) fn of(sources: &[Source<'_>]) -> Form {
        let mut all = None;
        for own in sources.iter().filter_map(Source::four_bit_form) {
            use FourBitForm::{Minima, Symmetric, ZeroPoints};
            all = match (all, own) {
                (None, Ok(own)) => Some(own),
                (Some(known), Ok(own)) if known == own => all,
                // What they are less is a minimum of 8 scales, or a zero point of 8.
                (Some(Symmetric), Ok(other @ (Minima | ZeroPoints)))
                | (Some(other @ (Minima | ZeroPoints)), Ok(Symmetric)) => Some(other),
                _ => return Form::Int8,
            }
        }
        Form::FourBits(all.unwrap_or(FourBitForm::Symmetric))
    }
}

/// Words that an output's inputs take.
pub(super) fn words(in_features: usize, form: FourBitForm) -> usize {
    in_features.div_ceil(BLOCKS * BLOCK) * step_rows(form)
}

/// Rows of words in a step.
fn step_rows(form: FourBitForm) -> usize {
    match form {
        FourBitForm::Symmetric | FourBitForm::E2m1 => ROWS + 1,
        FourBitForm::Minima | FourBitForm::ZeroPoints => ROWS + 2,
    }
}

/// Packs `rows`, one output each.
pub(super) fn pack(
    in_features: usize,
    form: FourBitForm,
    rows: &[Row<'_>],
) -> Result<Buffer<u32>, KernelError> {
    let words = words(in_features, form);
    let mut packed = Buffer::zeroed(rows.len().next_multiple_of(PANEL) * words, "weights")?;
    fill_panels(&mut packed, (PANEL * words, PANEL), rows, |panel, outputs| {
        for (step, packed) in panel.chunks_exact_mut(PANEL * step_rows(form)).enumerate() {
            for (output, (source, row)) in outputs.iter().enumerate() {
                for block in 0..BLOCKS {
                    let first = (step * BLOCKS + block) * BLOCK;
                    let inputs = BLOCK.min(in_features.saturating_sub(first));
                    let Block { numbers, scale, beside } =
                        Block::read(source, row + first.min(in_features), inputs, form)?;
                    for (i, four) in numbers.as_chunks::<4>().0.iter().enumerate() {
                        packed[i * PANEL + output] |= u32::from_le_bytes(*four) << (4 * block);
                    }
                    for (row, half) in [(ROWS, scale), (ROWS + 1, beside)] {
                        if row < step_rows(form) {
                            packed[row * PANEL + output] |= u32::from(half) << (16 * block);
                        }
                    }
                }
            }
        }
        Ok(())
    })?;
    Ok(packed)
}

/// A block of an output.
#[derive(Debug)]
pub(super) struct Block {
    /// From 0 to 15.
    pub(super) numbers: [u8; BLOCK],
    /// Bits of the scale.
    pub(super) scale: u16,
    /// Those of the minimum or the zero point.
    pub(super) beside: u16,
}

impl Block {
    /// The `inputs` weights from `from` on; what a block lacks is zero, or as near to it as may be.
    pub(super) fn read(
        source: &Source<'_>,
        from: usize,
        inputs: usize,
        form: FourBitForm,
    ) -> Result<Block, KernelError> {
        let own = if inputs == BLOCK { source.four_bits(from) } else { None };
        let whole = |zero: u8| f16::from_f32(f32::from(zero)).to_bits();
        if let Some(FourBits { numbers, scale, beside }) = own {
            let of = |largest: f32| held(scale, largest);
            match (form, beside) {
                (FourBitForm::Symmetric, Beside::Nothing) => {
                    return Ok(Block { numbers, scale: of(scale * 8.0)?, beside: 0 });
                }
                (FourBitForm::Minima, Beside::Nothing | Beside::Minimum(_)) => {
                    // 8 times a scale, if others have minima.
                    let minimum = if let Beside::Minimum(own) = beside { own } else { -8.0 * scale };
                    let largest = (scale * 15.0 + minimum).abs().max(minimum.abs());
                    return Ok(Block { numbers, scale: of(largest)?, beside: held(minimum, largest)? });
                }
                (FourBitForm::ZeroPoints, Beside::Nothing | Beside::ZeroPoint(_)) => {
                    let zero = if let Beside::ZeroPoint(own) = beside { own } else { 8 };
                    return Ok(Block { numbers, scale: of(scale * 16.0)?, beside: whole(zero) });
                }
                (FourBitForm::E2m1, Beside::Nothing) => {
                    let scale = bf16::from_f32(scale / 2.0).to_bits();
                    return Ok(Block { numbers, scale, beside: 0 });
                }
                _ => {}
            }
        }
        let mut weights = [0.0; BLOCK];
        source.read(from, &mut weights[..inputs]);
        match form {
            FourBitForm::Symmetric => around_zero(&weights),
            FourBitForm::Minima => between(&weights),
            FourBitForm::ZeroPoints => Ok(Block { beside: whole(8), ..around_zero(&weights)? }),
            FourBitForm::E2m1 => powers(&weights),
        }
    }
}

/// As f16; `largest` is the weight that is named if it cannot be.
fn held(x: f32, largest: f32) -> Result<u16, KernelError> {
    let held = f16::from_f32(x);
    if held.is_finite() { Ok(held.to_bits()) } else { Err(refusal(largest)) }
}

fn refusal(largest: f32) -> KernelError {
    KernelError::Weight { value: largest, dtype: Dtype::Int4.name(), most: "half a million" }
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
        return Err(refusal(largest));
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
    Ok(Block { numbers, scale, beside: 0 })
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
    let (inverse, from) = (inverse(scale), f16::from_bits(minimum).to_f32());
    let numbers = weights.map(|w| whole((w - from) * inverse, 0.0, 15.0) as u8);
    Ok(Block { numbers, scale, beside: minimum })
}

/// E2M1 with the power of two that leaves the largest weight at 4 to 6 of it (OCP's Microscaling Formats 1.0, 6.3).
fn powers(weights: &[f32; BLOCK]) -> Result<Block, KernelError> {
    let largest = largest(weights);
    if !largest.is_finite() {
        return Err(refusal(largest));
    }
    // Whole numbers are twice as large.
    let scale = 2_f32.powi((largest.abs().max(TINY).log2().floor() as i32 - 3).max(-126));
    let numbers = weights.map(|w| {
        let steps = w.abs() / scale;
        let nearest = (0..8_u8).min_by(|a, b| {
            let off = |code: &u8| (f32::from(E2M1[usize::from(*code)]) - steps).abs();
            off(a).total_cmp(&off(b))
        });
        nearest.unwrap_or(0) | if w < 0.0 { 8 } else { 0 }
    });
    Ok(Block { numbers, scale: bf16::from_f32(scale).to_bits(), beside: 0 })
}

/// Twice what codes of E2M1 without their sign stand for.
pub(crate) const E2M1: [u8; 8] = [0, 1, 2, 3, 4, 6, 8, 12];

/// Of a scale in f16; zero of zero.
fn inverse(scale: u16) -> f32 {
    let scale = f16::from_bits(scale).to_f32();
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

#[cfg(test)]
mod tests {
    use super::super::packing::rows;
    use super::super::{Blocks, Codes};
    use super::*;

    /// The weights that stand for what was packed.
    fn unpacked(packed: &[u32], outputs: usize, inputs: usize, form: FourBitForm) -> Vec<f32> {
        let panel_len = PANEL * words(inputs, form);
        let weight = |output: usize, input: usize| {
            let panel = &packed[output / PANEL * panel_len..][..panel_len];
            let step = &panel[input / 64 * PANEL * step_rows(form)..][..PANEL * step_rows(form)];
            let (block, output) = (input / 32 % 2, output % PANEL);
            let byte = step[input % 32 / 4 * PANEL + output].to_le_bytes()[input % 4];
            let code = byte >> (4 * block) & 15;
            let (number, bits) =
                (f32::from(code), |row: usize| (step[row * PANEL + output] >> (16 * block)) as u16);
            let half = |row: usize| f16::from_bits(bits(row)).to_f32();
            match form {
                FourBitForm::Symmetric => half(ROWS) * (number - 8.0),
                FourBitForm::Minima => half(ROWS) * number + half(ROWS + 1),
                FourBitForm::ZeroPoints => half(ROWS) * (number - half(ROWS + 1)),
                FourBitForm::E2m1 => {
                    let size = f32::from(E2M1[usize::from(code & 7)]);
                    bf16::from_bits(bits(ROWS)).to_f32() * if code < 8 { size } else { -size }
                }
            }
        };
        (0..outputs * inputs).map(|i| weight(i / inputs, i % inputs)).collect()
    }

    const ALL: [FourBitForm; 4] =
        [FourBitForm::Symmetric, FourBitForm::Minima, FourBitForm::ZeroPoints, FourBitForm::E2m1];

    fn packed(inputs: usize, source: &Source<'_>, form: FourBitForm) -> Result<Buffer<u32>, KernelError> {
        pack(inputs, form, &rows(&[*source], inputs))
    }

    /// Numbers that look like noise, from -1 to 1.
    fn noise(count: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * i) as f32 * 0.37).sin()).collect()
    }

    #[test]
    fn every_weight_is_near_the_one_that_it_was() {
        for form in ALL {
            for (outputs, inputs) in [(1, 1), (3, 31), (33, 32), (40, 65), (70, 100), (64, 128)] {
                let sizes = [1.0, 1e-2, 3e4, 1e-4];
                let noise = noise(outputs * inputs);
                let weights: Vec<f32> =
                    noise.iter().enumerate().map(|(i, x)| x * sizes[i / 32 % 4]).collect();
                let found =
                    unpacked(&packed(inputs, &Source::F32(&weights), form).unwrap(), outputs, inputs, form);
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
            let (found, plain) = (error(f16::from_bits(found.scale).to_f32()), error(plain));
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
            let found = block.numbers.map(|n| f16::from_bits(block.scale).to_f32() * (f32::from(n) - 8.0));
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
            let own = if halves == 2 { FourBitForm::Minima } else { FourBitForm::Symmetric };
            for form in [own, FourBitForm::Minima] {
                assert_eq!(Form::of(&[source]), Form::FourBits(own));
                for inputs in [64, 32] {
                    let found = packed(inputs, &source, form).unwrap();
                    assert_eq!(unpacked(&found, 64 / inputs, inputs, form), wanted, "{blocks:?} {inputs}");
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
        assert_eq!(Form::of(&[source]), Form::FourBits(FourBitForm::Minima));
        let found =
            unpacked(&packed(256, &source, FourBitForm::Minima).unwrap(), 1, 256, FourBitForm::Minima);
        for (found, wanted) in found.iter().zip(&wanted) {
            // The largest scale times 15, and the largest minimum.
            let size = 0.001 * 63.0 * 15.0 + 0.01 * 63.0;
            assert!((found - wanted).abs() < size / 4096.0, "{found} {wanted}");
        }
        // Where groups of the file are not blocks here, or others have more bits.
        let part = Source::Part(&source, super::super::Slice::new(16, 0..16, 0..16));
        assert_eq!(Form::of(&[part]), Form::Int8);
        for more in [Blocks::Q5_0, Blocks::Q6K, Blocks::Q8_0, Blocks::Q2K] {
            assert_eq!(Form::of(&[source, Source::Blocks(more, &[])]), Form::Int8);
        }
    }

    #[test]
    fn weights_without_a_scale_are_refused() {
        for form in ALL {
            for bad in [f32::NAN, f32::NEG_INFINITY, 1e7, -3e38] {
                let mut weights = [0.5; 70];
                weights[68] = bad;
                let found = packed(70, &Source::F32(&weights), form);
                if form == FourBitForm::E2m1 && bad.is_finite() {
                    // Its scales reach as far as numbers do.
                    assert!(found.is_ok());
                    continue;
                }
                let refusal = found.err().unwrap().to_string();
                assert!(refusal.contains("int4") && refusal.contains("bf16"), "{refusal}");
            }
            let zeros = packed(33, &Source::F32(&[0.0; 33]), form).unwrap();
            assert_eq!(unpacked(&zeros, 1, 33, form), [0.0; 33]);
        }
        // A scale of a file that is one, and not with its 6 bits more.
        let mut bytes = [0xff_u8; 144];
        bytes[..4].copy_from_slice(&[0x00, 0x7b, 0x00, 0x3c]);
        let refusal =
            packed(256, &Source::Blocks(Blocks::Q4K, &bytes), FourBitForm::Minima).err().unwrap().to_string();
        assert!(refusal.contains("int4"), "{refusal}");
    }

    /// Codes from 0 on, and a scale and a zero point of each 32.
    struct Coded {
        form: FourBitForm,
        scales: Vec<f32>,
    }

    impl Codes for Coded {
        fn widen(&self, from: usize, to: &mut [f32]) {
            for (to, at) in to.iter_mut().zip(from..) {
                let FourBits { numbers, scale, beside } = self.four_bits(at / BLOCK * BLOCK).unwrap();
                let code = numbers[at % BLOCK];
                let number = match beside {
                    Beside::ZeroPoint(zero) => f32::from(code) - f32::from(zero),
                    Beside::Minimum(_) => panic!("no minima here"),
                    Beside::Nothing if self.form == FourBitForm::Symmetric => f32::from(code) - 8.0,
                    Beside::Nothing => {
                        let size = f32::from(E2M1[usize::from(code & 7)]) / 2.0;
                        if code < 8 { size } else { -size }
                    }
                };
                *to = number * scale;
            }
        }

        fn form(&self) -> Result<FourBitForm, &'static str> {
            Ok(self.form)
        }

        fn four_bits(&self, from: usize) -> Option<FourBits> {
            let block = from / BLOCK;
            let zero = Beside::ZeroPoint((block * 5 % 17) as u8);
            Some(FourBits {
                numbers: std::array::from_fn(|i| ((i * 7 + block * 3) % 16) as u8),
                scale: *self.scales.get(block)?,
                beside: if self.form == FourBitForm::ZeroPoints { zero } else { Beside::Nothing },
            })
        }
    }

    #[test]
    fn codes_of_checkpoints_are_the_numbers_that_they_stand_for() {
        let halves: Vec<f32> =
            (0..36).map(|i| f16::from_f32(0.37 * (i as f32 - 9.5) / 64.0).to_f32()).collect();
        // From the least exponent of E8M0 to the last.
        let powers: Vec<f32> =
            (0..36).map(|i| if i == 0 { f32::from_bits(1 << 22) } else { 2_f32.powi(i * 7 - 126) }).collect();
        for (form, scales) in [
            (FourBitForm::Symmetric, &halves),
            (FourBitForm::ZeroPoints, &halves),
            (FourBitForm::E2m1, &powers),
        ] {
            let coded = Coded { form, scales: scales.clone() };
            let source = Source::Codes(36 * BLOCK, &coded);
            let mut wanted = vec![0.0; 36 * BLOCK];
            source.read_f32(0, &mut wanted);
            assert_eq!(Form::of(&[source]), Form::FourBits(form));
            for inputs in [32, 64, 96] {
                let outputs = wanted.len() / inputs;
                let found = packed(inputs, &source, form).unwrap();
                assert_eq!(unpacked(&found, outputs, inputs, form), wanted, "{form:?} {inputs}");
            }
            // A part, from the second block of 64 inputs on.
            let part = Source::Part(&source, super::super::Slice::new(64, 3..9, 32..64));
            let mut wanted = vec![0.0; 6 * BLOCK];
            part.read_f32(0, &mut wanted);
            let found = packed(32, &part, form).unwrap();
            assert_eq!(unpacked(&found, 6, 32, form), wanted, "{form:?}");
        }
    }

    #[test]
    fn sources_of_several_forms_are_held_in_one_that_all_fit() {
        let coded = |form| Coded { form, scales: vec![0.25; 2] };
        let [symmetric, zero_points, e2m1] =
            [FourBitForm::Symmetric, FourBitForm::ZeroPoints, FourBitForm::E2m1].map(coded);
        let [symmetric, zero_points, e2m1] =
            [&symmetric, &zero_points, &e2m1].map(|coded| Source::Codes(2 * BLOCK, coded));
        assert_eq!(Form::of(&[symmetric, zero_points]), Form::FourBits(FourBitForm::ZeroPoints));
        assert_eq!(Form::of(&[zero_points, symmetric]), Form::FourBits(FourBitForm::ZeroPoints));
        for other in [symmetric, zero_points] {
            assert_eq!(Form::of(&[e2m1, other]), Form::Int8);
        }
        let mut wanted = vec![0.0; 2 * BLOCK];
        symmetric.read_f32(0, &mut wanted);
        let found = packed(32, &symmetric, FourBitForm::ZeroPoints).unwrap();
        assert_eq!(unpacked(&found, 2, 32, FourBitForm::ZeroPoints), wanted);
    }

    #[test]
    fn numbers_that_e2m1_holds_stay_as_they_are() {
        let sizes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        for power in [-60, -9, 0, 20] {
            let weights: [f32; BLOCK] = std::array::from_fn(|i| {
                2_f32.powi(power) * sizes[(i * 5 + 7) % 8] * if i % 3 == 0 { -1.0 } else { 1.0 }
            });
            let found = packed(32, &Source::F32(&weights), FourBitForm::E2m1).unwrap();
            let found = unpacked(&found, 1, 32, FourBitForm::E2m1);
            if power == -60 {
                // As small ones of the others they are zero, or next to it.
                assert!(found.iter().all(|w| w.abs() < TINY), "{found:?}");
            } else {
                assert_eq!(found, weights, "{power}");
            }
        }
    }
}
