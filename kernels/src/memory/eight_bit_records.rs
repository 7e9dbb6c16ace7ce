//! Weight matrices in 8 bits, FP8 (E4M3) and int8, as `kernels/cuda/records.cuh` takes them.
//!
//! Eight outputs and 128 inputs are a record:
//!
//! ```text
//! 256 words   codes: of output g, inputs 8 t to 8 t + 7 of step b, 32 inputs, in two words from 128 (b / 2) + 16 g + 4 t + 2 (b % 2) on, four inputs each,
//!             the first two in bytes 1 and 3, the others in bytes 0 and 2: shifts and masks make pairs of bf16 of FP8
//!   8 words   scales of FP8, f32, one for each output
//!  16 words   or scales of int8, 16 bits: of output g and step b in half b of word pair g
//! ```
//! So a warp reads codes by 16 bytes a thread, one thread after the other. The records of eight outputs lie together. A weight takes 8.25 bits of
//! FP8, 8.5 of int8.
//!
//! - **FP8**: codes of files stay what they are, with their scales, whether these are of a tensor, of an output, or of blocks of a multiple of 128
//!   inputs. Other weights are rounded to the nearest code here, the largest of an output's 128 to the largest there is: a weight is off by
//!   at most a sixteenth of itself, or by 2^-10 of what 1 stands for if it is less than 2^-6 of that.
//! - **int8**: the numbers and scales that the CPU's panels have (`matrix.rs`).

use super::Source;
use super::e4m3::{LARGEST, of_e4m3, to_e4m3};
use super::matrix::{Int8Block, SCALE_UNIT};
use super::packing::{self, Row, fill_panels};
use super::panel_sizes::BLOCK;
use crate::{Dtype, KernelError};

/// Outputs of a record.
const OUTPUTS: usize = 8;
/// Inputs of a record.
const INPUTS: usize = 128;
/// Words of its codes.
const CODES: usize = OUTPUTS * INPUTS / 4;
/// Weights that are smaller are zero: a scale would not be a normal number.
const TINY: f32 = 1e-30;

/// What codes of 8 bits are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EightBitForm {
    /// Floating-point numbers (E4M3).
    Fp8,
    /// Whole numbers.
    Int8,
}

/// A matrix `[outputs, inputs]` in records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EightBitRecords {
    inputs: usize,
    outputs: usize,
    form: EightBitForm,
}

impl EightBitRecords {
    /// How the rows of `sources`, one after the other, are held; `None` if there is no kernel for them: a source is of outputs that are no multiple of 8, or
    /// inputs are no multiple of 32; or, for FP8, a source is quantised otherwise, or has scales of other inputs.
    #[must_use]
    pub fn of(inputs: usize, sources: &[Source<'_>], form: EightBitForm) -> Option<EightBitRecords> {
        let fits = |source: &Source<'_>| {
            let is_taken = match (form, source.fp8_run()) {
                (EightBitForm::Int8, _) => true,
                (EightBitForm::Fp8, Some(run)) => run >= inputs || run.is_multiple_of(INPUTS),
                (EightBitForm::Fp8, None) => source.four_bit_form().is_none(),
            };
            is_taken && source.len().is_multiple_of(inputs * OUTPUTS)
        };
        let outputs = sources.iter().map(Source::len).sum::<usize>() / inputs.max(1);
        let fits = inputs > 0 && inputs.is_multiple_of(BLOCK) && sources.iter().all(fits);
        fits.then_some(EightBitRecords { inputs, outputs, form })
    }

    /// What its codes are.
    #[must_use]
    pub fn form(&self) -> EightBitForm {
        self.form
    }

    /// How many weights it has.
    #[must_use]
    pub fn numbers(&self) -> usize {
        self.inputs * self.outputs
    }

    /// Memory that it takes, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.outputs / OUTPUTS * self.eight_words() * size_of::<u32>()
    }

    /// Words of a record.
    fn record_words(&self) -> usize {
        CODES
            + match self.form {
                EightBitForm::Fp8 => OUTPUTS,
                EightBitForm::Int8 => OUTPUTS * INPUTS / BLOCK / 2,
            }
    }

    /// Words of eight outputs.
    pub(crate) fn eight_words(&self) -> usize {
        self.inputs.div_ceil(INPUTS) * self.record_words()
    }

    /// Writes the records of some outputs from the `first` on, which is a multiple of 8, as many as there is room for.
    ///
    /// # Errors
    /// A weight is not finite, or, for int8, enormous.
    pub(crate) fn write(
        &self,
        sources: &[Source<'_>],
        first: usize,
        to: &mut [u32],
    ) -> Result<(), KernelError> {
        let rows = packing::rows(sources, self.inputs);
        to.fill(0);
        let panel = (self.eight_words(), OUTPUTS);
        fill_panels(to, panel, &rows[first..], |eight, outputs| self.write_eight(outputs, eight))
    }

    fn write_eight(&self, outputs: &[Row<'_>], to: &mut [u32]) -> Result<(), KernelError> {
        for (record, to) in to.chunks_exact_mut(self.record_words()).enumerate() {
            let first = record * INPUTS;
            let inputs = INPUTS.min(self.inputs - first);
            for (output, (source, row)) in outputs.iter().enumerate() {
                let mut codes = [0; INPUTS];
                match self.form {
                    EightBitForm::Fp8 => {
                        let scale = read_fp8(source, row + first, &mut codes[..inputs])?;
                        to[CODES + output] = scale.to_bits();
                    }
                    EightBitForm::Int8 => {
                        for (step, codes) in codes[..inputs].as_chunks_mut::<BLOCK>().0.iter_mut().enumerate()
                        {
                            let Int8Block { scale, bytes } =
                                Int8Block::read(source, row + first + step * BLOCK, BLOCK)?;
                            *codes = bytes;
                            to[CODES + output * 2 + step / 2] |= u32::from(scale) << (16 * (step % 2));
                        }
                    }
                }
                for (eighth, eight) in codes.as_chunks::<8>().0.iter().enumerate() {
                    let place = word_of(output, eighth * 8);
                    for (word, four) in to[place..place + 2].iter_mut().zip(eight.as_chunks::<4>().0) {
                        *word = u32::from_le_bytes([four[2], four[0], four[3], four[1]]);
                    }
                }
            }
        }
        Ok(())
    }

    /// The weights that stand for records, `[outputs][inputs]`: what kernels are held against.
    ///
    /// # Panics
    /// If there are not as many words as records take.
    #[must_use]
    pub fn widened(&self, records: &[u32]) -> Vec<f32> {
        assert_eq!(size_of_val(records), self.bytes(), "words of {self:?}");
        let weight = |output: usize, input: usize| {
            let eight = &records[output / OUTPUTS * self.eight_words()..][..self.eight_words()];
            let record = &eight[input / INPUTS * self.record_words()..][..self.record_words()];
            let (g, i) = (output % OUTPUTS, input % INPUTS);
            let code = record[word_of(g, i)].to_le_bytes()[[1, 3, 0, 2][i % 4]];
            match self.form {
                EightBitForm::Fp8 => of_e4m3(code) * f32::from_bits(record[CODES + g]),
                EightBitForm::Int8 => {
                    let step = i / BLOCK;
                    let scale = record[CODES + g * 2 + step / 2] >> (16 * (step % 2)) & 0xFFFF;
                    (f32::from(code) - 128.0) * (f32::from_bits(scale << 13) * SCALE_UNIT)
                }
            }
        };
        (0..self.numbers()).map(|i| weight(i / self.inputs, i % self.inputs)).collect()
    }

    /// All records in the host's memory.
    ///
    /// # Errors
    /// A weight is not finite, or, for int8, enormous.
    pub fn pack(&self, sources: &[Source<'_>]) -> Result<Vec<u32>, KernelError> {
        let mut all = vec![0; self.bytes() / size_of::<u32>()];
        self.write(sources, 0, &mut all)?;
        Ok(all)
    }
}

/// The word of a record that has the code of this output and input.
fn word_of(output: usize, input: usize) -> usize {
    let (step, within) = (input / BLOCK, input % BLOCK);
    step / 2 * (CODES / 2) + output * 16 + within / 8 * 4 + step % 2 * 2 + within % 8 / 4
}

/// Reads weights from `from` on as codes of FP8, as many as there is room for, and their scale.
fn read_fp8(source: &Source<'_>, from: usize, codes: &mut [u8]) -> Result<f32, KernelError> {
    if let Some((own, scale)) = source.fp8(from, codes.len()) {
        codes.copy_from_slice(own);
        return Ok(scale);
    }
    let mut weights = [0.0; INPUTS];
    let weights = &mut weights[..codes.len()];
    source.read(from, weights);
    if let Some(value) = weights.iter().copied().find(|weight| !weight.is_finite()) {
        return Err(KernelError::Weight { value, dtype: Dtype::Fp8.name(), most: "any" });
    }
    let largest = weights.iter().fold(0.0, |largest: f32, weight| largest.max(weight.abs()));
    if largest < TINY {
        return Ok(0.0);
    }
    let scale = largest / LARGEST;
    codes.iter_mut().zip(weights).for_each(|(code, weight)| *code = to_e4m3(*weight / scale));
    Ok(scale)
}

#[cfg(test)]
mod tests {
    use super::super::{Blocks, Codes, FourBitForm, FourBits, HeadRows, Slice};
    use super::*;

    /// Codes of noise, and scales of blocks.
    struct Noise {
        codes: Vec<u8>,
        inputs: usize,
        /// Outputs and inputs of a block.
        block: [usize; 2],
    }

    impl Noise {
        fn new(outputs: usize, inputs: usize, block: [usize; 2]) -> Noise {
            let mut state = 7_u32;
            let mut next = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            };
            let mut code = || [next(), 0x38][usize::from(next() == 0)];
            let codes = (0..outputs * inputs).map(|_| code()).map(|code| code & !1).collect();
            Noise { codes, inputs, block }
        }

        fn scale(&self, at: usize) -> f32 {
            let (output, input) = (at / self.inputs / self.block[0], at % self.inputs / self.block[1]);
            0.001 * (1 + output * 5 + input) as f32
        }

        fn source(&self) -> Source<'_> {
            Source::Codes(self.codes.len(), self)
        }
    }

    impl Codes for Noise {
        fn widen(&self, from: usize, to: &mut [f32]) {
            (from..).zip(to).for_each(|(at, to)| *to = of_e4m3(self.codes[at]) * self.scale(at));
        }

        fn form(&self) -> Result<FourBitForm, &'static str> {
            Err("not of 4 bits")
        }

        fn four_bits(&self, _from: usize) -> Option<FourBits> {
            None
        }

        fn fp8_run(&self) -> Option<usize> {
            Some(self.block[1])
        }

        fn fp8(&self, from: usize, len: usize) -> Option<(&[u8], f32)> {
            Some((&self.codes[from..from + len], self.scale(from)))
        }
    }

    fn widened(source: &Source<'_>) -> Vec<f32> {
        let mut all = vec![0.0; source.len()];
        source.read_f32(0, &mut all);
        all
    }

    #[test]
    fn records_have_the_codes_and_scales_of_their_files() {
        for (outputs, inputs, block) in
            [(8, 32, [1, 32]), (24, 128, [8, 128]), (16, 416, [16, 128]), (16, 416, [16, usize::MAX])]
        {
            let noise = Noise::new(outputs, inputs, block);
            let source = noise.source();
            let records = EightBitRecords::of(inputs, &[source], EightBitForm::Fp8).unwrap();
            assert_eq!(records.bytes(), outputs / 8 * inputs.div_ceil(128) * 1056);
            let packed = records.pack(&[source]).unwrap();
            assert!(records.widened(&packed) == widened(&source), "{outputs} {inputs}");
            // Piece by piece, as they travel.
            let (eight, mut pieces) = (records.eight_words(), Vec::new());
            for first in (0..outputs).step_by(8) {
                let mut piece = vec![77; eight];
                records.write(&[source], first, &mut piece).unwrap();
                pieces.extend(piece);
            }
            assert_eq!(pieces, packed);
        }
    }

    #[test]
    fn parts_and_heads_in_another_order_have_their_codes() {
        let noise = Noise::new(32, 512, [16, 128]);
        let source = noise.source();
        let order = HeadRows { cols: 512, head: 16, rotated: 16, neighbours: true };
        let reordered = Source::Reordered(&source, order);
        let columns = Source::Part(&source, Slice::new(512, 8..24, 128..384));
        let both = Source::Part(&reordered, Slice::new(512, 16..32, 256..512));
        for part in [reordered, columns, both] {
            let inputs = if part.len() == source.len() { 512 } else { 256 };
            let records = EightBitRecords::of(inputs, &[part], EightBitForm::Fp8).unwrap();
            assert!(records.widened(&records.pack(&[part]).unwrap()) == widened(&part));
        }
        // A scale of each output is one of any part of it.
        let noise = Noise::new(32, 512, [1, 512]);
        let source = noise.source();
        let part = Source::Part(&source, Slice::new(512, 8..24, 96..192));
        let records = EightBitRecords::of(96, &[part], EightBitForm::Fp8).unwrap();
        assert!(records.widened(&records.pack(&[part]).unwrap()) == widened(&part));
    }

    #[test]
    fn other_weights_are_rounded_to_the_nearest_code() {
        let weights: Vec<f32> = (0..8 * 160).map(|i| ((i * 37 % 1001) as f32 - 500.0) / 300.0).collect();
        let zeros = [0.0; 8 * 160];
        let sources = [Source::F32(&weights), Source::F32(&zeros)];
        let records = EightBitRecords::of(160, &sources, EightBitForm::Fp8).unwrap();
        let found = records.widened(&records.pack(&sources).unwrap());
        for (found, weight) in found.iter().zip(&weights) {
            assert!((found - weight).abs() <= weight.abs() / 16.0 + 2f32.powi(-10) * 1.7 / 448.0);
        }
        assert!(found[weights.len()..].iter().all(|found| *found == 0.0));
        let mut bad = weights.clone();
        bad[700] = f32::NAN;
        let refusal = records.pack(&[Source::F32(&bad), sources[1]]).unwrap_err().to_string();
        assert!(refusal.contains("NaN") && refusal.contains("fp8"), "{refusal}");
    }

    #[test]
    fn what_no_kernel_takes_has_none() {
        let of =
            |inputs, source: Source<'_>| EightBitRecords::of(inputs, &[source], EightBitForm::Fp8).is_some();
        let int8 =
            |inputs, source: Source<'_>| EightBitRecords::of(inputs, &[source], EightBitForm::Int8).is_some();
        let noise = Noise::new(16, 256, [16, 128]);
        let source = noise.source();
        assert!(of(256, source));
        // Cut within a block, inputs that are no whole steps, outputs that are no multiple of 8, blocks of other inputs, 4 bits.
        assert!(!of(128, Source::Part(&source, Slice::new(256, 0..16, 64..192))));
        assert!(!of(48, Source::F32(&[0.0; 8 * 48])) && !of(32, Source::F32(&[0.0; 4 * 32])));
        let noise = Noise::new(16, 256, [1, 64]);
        assert!(!of(256, noise.source()));
        let blocks = Source::Blocks(Blocks::Q4_0, &[0; 8 * 18]);
        assert!(!of(32, blocks) && int8(32, blocks));
        assert!(!int8(48, Source::F32(&[0.0; 8 * 48])) && !int8(32, Source::F32(&[0.0; 4 * 32])));
    }

    #[test]
    fn int8_has_the_numbers_of_the_cpu() {
        let weights: Vec<f32> = (0..16 * 416).map(|i| ((i * 37 % 1001) as f32 - 500.0) / 300.0).collect();
        let bytes: Vec<u8> = (0..16 * 416 / 32)
            .flat_map(|block: usize| {
                let scale = half::f16::from_f32(0.01 + block as f32 / 1000.0).to_le_bytes();
                let numbers = (0..32).map(move |i| ((block * 31 + i * 7) % 255) as u8 ^ 1);
                scale.into_iter().chain(numbers)
            })
            .collect();
        for source in [Source::F32(&weights), Source::Blocks(Blocks::Q8_0, &bytes)] {
            let records = EightBitRecords::of(416, &[source], EightBitForm::Int8).unwrap();
            assert_eq!(records.bytes(), 16 / 8 * 4 * 1088);
            let found = records.widened(&records.pack(&[source]).unwrap());
            for (block, found) in found.as_chunks::<BLOCK>().0.iter().enumerate() {
                let Int8Block { scale, bytes } = Int8Block::read(&source, block * BLOCK, BLOCK).unwrap();
                let scale = f32::from_bits(u32::from(scale) << 13) * SCALE_UNIT;
                assert_eq!(*found, bytes.map(|byte| (f32::from(byte) - 128.0) * scale));
            }
            if let Source::Blocks(..) = source {
                assert!(found == widened(&source), "Q8_0 is what it was");
            }
        }
        let enormous = [1e9; 8 * 32];
        let source = Source::F32(&enormous);
        let records = EightBitRecords::of(32, &[source], EightBitForm::Int8).unwrap();
        assert!(records.pack(&[source]).unwrap_err().to_string().contains("int8"));
    }
}
