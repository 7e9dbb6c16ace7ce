//! Weight matrices, packed for the matmul.
//!
//! A panel is [`PANEL`] outputs. Inside a panel the numbers lie in the order the kernels read them, so that a pass
//! streams through memory once: bf16 as `[panel][in / 2][PANEL][2]` (pairs of inputs, what `vdpbf16ps` and AMX take), f32 as
//! `[panel][in][PANEL]`. Missing outputs are zero, and so are inputs after the last, in bf16 up to a tile's depth.
//!
//! In int8 each output and block of 32 inputs has a scale, and its weights are whole numbers of it. A panel is
//! `[in / 64][17][PANEL]` words of 32 bits. In a step of 64 inputs the first eight rows of words are a block, four
//! consecutive inputs to the word, the lowest first; so are the next eight; the last row has the scales of both, the
//! first in the low half. So a step is one run of memory, and the word of an output is at the same place in each row.
//!
//! A weight `q` from -127 to 127 is stored as the byte `q + 128`: `vpdpbusd` takes one unsigned factor. What the
//! offset adds, 128 times the sum of the activations, is known with them and taken off there.
//!
//! How int4 lies, `four_bits.rs` says.
//!
//! A scale is a float of 16 bits without a sign: 6 bits of exponent, 10 of fraction. That is every positive f16, so q8_0 blocks fit as
//! they are, and 23 more powers of two below, for f16 runs out of digits under weights of 0.008. bf16 would have range
//! but not f16's digits; f32 would be 6 % more to read.

use super::codes::FourBitForm;
use super::four_bits::{self, Form};
use super::packing::{Row, fill_panels, rows};
use super::panel_sizes::{BLOCK, BLOCKS, PANEL};
use super::{Buffer, Source, number_source::FromSource};
use crate::{Dtype, KernelError};
use half::bf16;

/// bf16 inputs come in multiples of this: what AMX takes at a time.
pub(crate) const DEPTH: usize = 32;

/// A weight matrix `[out_features, in_features]`, packed at load.
pub struct Matrix {
    out_features: usize,
    in_features: usize,
    panels: Panels,
}

/// The packed numbers.
pub(crate) enum Panels {
    F32(Buffer<f32>),
    Bf16(Buffer<bf16>),
    Int8(Buffer<u32>),
    Int4 { packed: Buffer<u32>, form: FourBitForm },
}

impl Matrix {
    /// Packs the rows of `sources`, one after the other: several make a fused matrix (q|k|v, gate|up).
    /// Each is row-major `[its out_features, in_features]`.
    ///
    /// What a file has quantised keeps its bits where they fit: Q8_0 in int8, and in int4 Q4_0, Q4_1 and, with scales rounded to f16, Q4_K, and
    /// codes of 4 bits that have a form. Others are not made fewer bits of: where int4 was asked for, and a source is of them, all of the matrix
    /// is int8.
    ///
    /// # Errors
    /// If a source is not whole rows, `dtype` is fp8, or int8 or int4 and a weight is not finite or enormous, or there is no memory.
    pub fn pack(in_features: usize, sources: &[Source<'_>], dtype: Dtype) -> Result<Matrix, KernelError> {
        let mut out_features = 0;
        for source in sources {
            if in_features == 0 || !source.len().is_multiple_of(in_features) {
                return Err(KernelError::NotWholeRows { elements: source.len(), columns: in_features });
            }
            out_features += source.len() / in_features;
        }
        let rows = &rows(sources, in_features);
        let panels = match dtype {
            Dtype::F32 => Panels::F32(pack_panels::<f32, 1, 1>(in_features, rows)?),
            Dtype::Bf16 => Panels::Bf16(pack_panels::<bf16, 2, DEPTH>(in_features, rows)?),
            Dtype::Int8 => Panels::Int8(pack_int8(in_features, rows)?),
            Dtype::Fp8 => return Err(KernelError::Fp8OnCpu),
            Dtype::Int4 => match Form::of(sources) {
                Form::Int8 => Panels::Int8(pack_int8(in_features, rows)?),
                Form::FourBits(form) => {
                    let packed = four_bits::pack(in_features, form, rows)?;
                    Panels::Int4 { packed, form }
                }
            },
        };
        Ok(Matrix { out_features, in_features, panels })
    }

    /// Memory a packed matrix takes, in bytes; one of int4 without minima or zero points.
    #[must_use]
    pub fn packed_bytes(out_features: usize, in_features: usize, dtype: Dtype) -> u64 {
        let words = match dtype {
            Dtype::F32 => in_features,
            Dtype::Bf16 => in_features.next_multiple_of(DEPTH) / 2,
            Dtype::Int8 => int8_words(in_features),
            Dtype::Fp8 => in_features.div_ceil(4), // no CPU's panels are: they are never packed
            Dtype::Int4 => four_bits::words(in_features, FourBitForm::Symmetric),
        };
        bytes_of_words(out_features, words)
    }

    /// Memory that [`Matrix::pack`] would take for these sources, in bytes.
    #[must_use]
    pub fn bytes_of(in_features: usize, sources: &[Source<'_>], dtype: Dtype) -> u64 {
        let out_features = sources.iter().map(Source::len).sum::<usize>() / in_features.max(1);
        match dtype {
            Dtype::Int4 => match Form::of(sources) {
                Form::Int8 => Matrix::packed_bytes(out_features, in_features, Dtype::Int8),
                Form::FourBits(form) => bytes_of_words(out_features, four_bits::words(in_features, form)),
            },
            _ => Matrix::packed_bytes(out_features, in_features, dtype),
        }
    }

    /// Number of outputs.
    #[must_use]
    pub fn out_features(&self) -> usize {
        self.out_features
    }

    /// Number of inputs.
    #[must_use]
    pub fn in_features(&self) -> usize {
        self.in_features
    }

    /// Type of the weights.
    #[must_use]
    pub fn dtype(&self) -> Dtype {
        match self.panels {
            Panels::F32(_) => Dtype::F32,
            Panels::Bf16(_) => Dtype::Bf16,
            Panels::Int8(_) => Dtype::Int8,
            Panels::Int4 { .. } => Dtype::Int4,
        }
    }

    /// Memory, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self.panels {
            Panels::Int4 { form, .. } => {
                bytes_of_words(self.out_features, four_bits::words(self.in_features, form))
            }
            _ => Matrix::packed_bytes(self.out_features, self.in_features, self.dtype()),
        }
    }

    /// Elements of a panel.
    pub(crate) fn panel_len(&self) -> usize {
        let len = match &self.panels {
            Panels::F32(packed) => packed.len(),
            Panels::Bf16(packed) => packed.len(),
            Panels::Int8(packed) | Panels::Int4 { packed, .. } => packed.len(),
        };
        len / self.out_features.div_ceil(PANEL).max(1)
    }

    pub(crate) fn panels(&self) -> &Panels {
        &self.panels
    }
}

/// Of a matrix with so many words for each output.
fn bytes_of_words(out_features: usize, words: usize) -> u64 {
    (out_features.next_multiple_of(PANEL) * words * size_of::<u32>()) as u64
}

/// Inputs of a row that are read at a time: what they become stays in the first cache.
const RUN: usize = 64;

/// `PAIR` consecutive inputs of an output lie together; zeros make them whole multiples of `WHOLE`.
fn pack_panels<T: FromSource, const PAIR: usize, const WHOLE: usize>(
    in_features: usize,
    rows: &[Row<'_>],
) -> Result<Buffer<T>, KernelError> {
    let row = in_features.next_multiple_of(WHOLE);
    let mut packed = Buffer::zeroed(rows.len().next_multiple_of(PANEL) * row, "weights")?;
    fill_panels(&mut packed, (PANEL * row, PANEL), rows, |panel, outputs| {
        for (run, packed) in panel.chunks_mut(RUN * PANEL).enumerate() {
            let inputs = RUN.min(in_features - run * RUN);
            for (output, (source, row)) in outputs.iter().enumerate() {
                let mut read = [T::ZERO; RUN];
                source.read(row + run * RUN, &mut read[..inputs]);
                for (group, pair) in packed.chunks_exact_mut(PANEL * PAIR).zip(read.chunks_exact(PAIR)) {
                    group[output * PAIR..(output + 1) * PAIR].copy_from_slice(pair);
                }
            }
        }
        Ok(())
    })?;
    Ok(packed)
}

/// Rows of words in a step of int8.
const INT8_ROWS: usize = BLOCKS * BLOCK / 4 + 1;
/// What a scale's bits, moved up by 13 and read as an f32, are to be multiplied by.
pub(crate) const SCALE_UNIT: f32 = f32::from_bits((127 + 79) << 23);
/// Adding it rounds a small number to an integer, which stands in the low bits.
const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23

/// Words that an output's inputs take.
fn int8_words(in_features: usize) -> usize {
    in_features.div_ceil(BLOCKS * BLOCK) * INT8_ROWS
}

/// Packs `rows`, one output each.
fn pack_int8(in_features: usize, rows: &[Row<'_>]) -> Result<Buffer<u32>, KernelError> {
    let words = int8_words(in_features);
    let mut packed = Buffer::zeroed(rows.len().next_multiple_of(PANEL) * words, "weights")?;
    fill_panels(&mut packed, (PANEL * words, PANEL), rows, |panel, outputs| {
        for (step, packed) in panel.chunks_exact_mut(PANEL * INT8_ROWS).enumerate() {
            for (output, (source, row)) in outputs.iter().enumerate() {
                for block in 0..BLOCKS {
                    let first = (step * BLOCKS + block) * BLOCK;
                    let inputs = BLOCK.min(in_features.saturating_sub(first));
                    let Int8Block { scale, bytes } =
                        Int8Block::read(source, row + first.min(in_features), inputs)?;
                    for (i, four) in bytes.as_chunks::<4>().0.iter().enumerate() {
                        packed[(block * BLOCK / 4 + i) * PANEL + output] = u32::from_le_bytes(*four);
                    }
                    packed[(INT8_ROWS - 1) * PANEL + output] |= u32::from(scale) << (16 * block);
                }
            }
        }
        Ok(())
    })?;
    Ok(packed)
}

/// A block of an output in int8.
pub(super) struct Int8Block {
    /// Bits of the scale.
    pub(super) scale: u16,
    /// The numbers, and 128.
    pub(super) bytes: [u8; BLOCK],
}

impl Int8Block {
    /// The `inputs` weights from `from` on; what a block lacks is zero.
    ///
    /// # Errors
    /// A weight is not finite, or enormous.
    pub(super) fn read(source: &Source<'_>, from: usize, inputs: usize) -> Result<Int8Block, KernelError> {
        let (scale, bytes) = match own(source, from, inputs) {
            Some(own) => own,
            None => {
                let mut weights = [0.0; BLOCK];
                source.read(from, &mut weights[..inputs]);
                quantised(&weights)?
            }
        };
        Ok(Int8Block { scale, bytes })
    }
}

/// Scale and bytes of a block that its file has so.
fn own(source: &Source<'_>, from: usize, inputs: usize) -> Option<(u16, [u8; BLOCK])> {
    let (scale, numbers) = source.group(from).filter(|_| inputs == BLOCK)?.eight_bits()?;
    let scale = encode(scale).filter(|encoded| decode(*encoded) == scale)?;
    Some((scale, numbers.map(|number| number.cast_unsigned() ^ 128)))
}

/// Scale and bytes of a block: the largest weight becomes 127 or -127, as nearly as the scale's digits allow.
fn quantised(weights: &[f32; BLOCK]) -> Result<(u16, [u8; BLOCK]), KernelError> {
    // NaN is largest as a pattern of bits.
    let largest = f32::from_bits(weights.iter().map(|w| w.abs().to_bits()).fold(0, u32::max));
    let scale = encode(largest / 127.0).ok_or(KernelError::Weight {
        value: largest,
        dtype: Dtype::Int8.name(),
        most: "8 million",
    })?;
    let step = decode(scale);
    let inverse = if step > 0.0 { 1.0 / step } else { 0.0 };
    let byte = |w: &f32| ((w * inverse).clamp(-127.0, 127.0) + (ROUND + 128.0)).to_bits() as u8;
    let mut bytes = [0; BLOCK];
    bytes.iter_mut().zip(weights).for_each(|(to, w)| *to = byte(w));
    Ok((scale, bytes))
}

/// The nearest scale to `x`, which is not negative; zero if `x` is below 2^-47, `None` if it is 2^16 or more, or NaN.
fn encode(x: f32) -> Option<u16> {
    if x < SMALLEST {
        return Some(0);
    }
    let bits = (x / SCALE_UNIT).to_bits();
    u16::try_from((bits + 0xfff + (bits >> 13 & 1)) >> 13).ok()
}

const SMALLEST: f32 = f32::from_bits((127 - 47) << 23);

/// What a scale stands for.
fn decode(scale: u16) -> f32 {
    f32::from_bits(u32::from(scale) << 13) * SCALE_UNIT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fused_sources_lie_in_panels_of_pairs_padded_with_zeros() {
        let (first, second): (Vec<f32>, Vec<f32>) = ((0..9).map(|i| i as f32).collect(), vec![20., 21., 22.]);
        let matrix = Matrix::pack(3, &[Source::F32(&first), Source::F32(&second)], Dtype::Bf16).unwrap();
        assert_eq!((matrix.out_features(), matrix.in_features()), (4, 3));
        let Panels::Bf16(packed) = matrix.panels() else { panic!("wrong dtype") };
        assert_eq!(matrix.bytes(), 2 * 32 * 32);
        let at = |out: usize, k: usize| packed[(k / 2) * 2 * PANEL + out * 2 + k % 2].to_f32();
        assert_eq!([at(0, 0), at(0, 1), at(0, 2), at(0, 3)], [0., 1., 2., 0.]);
        assert_eq!([at(2, 0), at(3, 0), at(3, 2), at(4, 0)], [6., 20., 22., 0.]);
    }

    #[test]
    fn f32_panels_keep_every_output() {
        let values: Vec<f32> = (0..40 * 5).map(|i| i as f32).collect();
        let matrix = Matrix::pack(5, &[Source::F32(&values)], Dtype::F32).unwrap();
        let Panels::F32(packed) = matrix.panels() else { panic!("wrong dtype") };
        for (i, value) in values.iter().enumerate() {
            let (out, k) = (i / 5, i % 5);
            assert_eq!(packed[out / PANEL * PANEL * 5 + k * PANEL + out % PANEL], *value);
        }
    }

    #[test]
    fn half_rows_are_refused() {
        let refusal = Matrix::pack(3, &[Source::F32(&[1.0; 7])], Dtype::F32).err().unwrap().to_string();
        assert!(refusal.contains("7 elements") && refusal.contains("rows of 3"), "{refusal}");
    }

    /// The weights that stand for what was packed.
    fn unpacked(packed: &[u32], outputs: usize, inputs: usize) -> Vec<f32> {
        let panel_len = PANEL * int8_words(inputs);
        let weight = |output: usize, input: usize| {
            let panel = &packed[output / PANEL * panel_len..][..panel_len];
            let step = &panel[input / 64 * PANEL * INT8_ROWS..][..PANEL * INT8_ROWS];
            let (input, output) = (input % 64, output % PANEL);
            let byte = step[input / 4 * PANEL + output].to_le_bytes()[input % 4];
            let scale = (step[16 * PANEL + output] >> (input / 32 * 16)) as u16;
            decode(scale) * (f32::from(byte) - 128.0)
        };
        (0..outputs * inputs).map(|i| weight(i / inputs, i % inputs)).collect()
    }

    fn packed(inputs: usize, weights: &[f32]) -> Result<Buffer<u32>, KernelError> {
        pack_int8(inputs, &rows(&[Source::F32(weights)], inputs))
    }

    #[test]
    fn every_weight_is_within_half_a_step_of_its_block() {
        for (outputs, inputs) in [(1, 1), (3, 31), (33, 32), (40, 65), (70, 100), (64, 128)] {
            let sizes = [1.0, 1e-3, 3e4, 1e-8];
            let weights: Vec<f32> =
                (0..outputs * inputs).map(|i| ((i * i) as f32).sin() * sizes[i / 32 % 4]).collect();
            let found = unpacked(&packed(inputs, &weights).unwrap(), outputs, inputs);
            for (row, found) in weights.chunks(inputs).zip(found.chunks(inputs)) {
                for (block, found) in row.chunks(BLOCK).zip(found.chunks(BLOCK)) {
                    let largest = block.iter().fold(0.0, |most: f32, w| most.max(w.abs()));
                    for (w, found) in block.iter().zip(found) {
                        // Half a step, and what the scale's 11 digits are off.
                        assert!(
                            (w - found).abs() <= largest / 127.0 * 0.5 * 1.001,
                            "{w} {found} of {largest}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn scales_are_every_positive_f16_and_smaller_ones() {
        for bits in 1..0x7c00 {
            let scale = half::f16::from_bits(bits).to_f32();
            assert_eq!(decode(encode(scale).unwrap()), scale);
        }
        for scale in [0.0, SMALLEST, 2f32.powi(-30) * 1.5, 65_504.0] {
            assert_eq!(decode(encode(scale).unwrap()), scale);
        }
        for i in 0..1000 {
            let x = 1.01_f32.powi(i) * 1e-8 % 6e4;
            assert!((decode(encode(x).unwrap()) / x - 1.0).abs() <= 1.0 / 2048.0, "{x}");
        }
        assert_eq!(encode(SMALLEST / 2.0), Some(0));
        assert!([65_536.0, 65_530.0, f32::INFINITY, f32::NAN].into_iter().all(|x| encode(x).is_none()));
    }

    #[test]
    fn weights_without_a_scale_are_refused() {
        for bad in [f32::NAN, f32::NEG_INFINITY, 1e7, -3e38] {
            let mut weights = [0.5; 70];
            weights[68] = bad;
            let refusal = packed(70, &weights).err().unwrap().to_string();
            assert!(refusal.contains("int8") && refusal.contains("bf16"), "{refusal}");
        }
        assert_eq!(unpacked(&packed(33, &[0.0; 33]).unwrap(), 1, 33), [0.0; 33]);
    }
}
