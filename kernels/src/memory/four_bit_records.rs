//! Weight matrices in 4 bits as `kernels/cuda/records.cuh` takes them: with the numbers, scales, minima and zero points that the CPU's
//! panels have (`four_bits.rs`), in another order.
//!
//! Eight outputs and 128 inputs, four blocks of 32, are a record:
//!
//! ```text
//! 128 words   numbers: of output g, inputs 8 t to 8 t + 7 of block b in word 16 g + 4 t + b, the first four in the low halves of its bytes
//!  16 words   scales, f16: of output g and block b in half b of word pair g
//!  16 words   minima or zero points in the same order, unless the form is symmetric
//! ```
//! So a warp reads numbers by 16 bytes a thread, one thread after the other. The records of eight outputs lie together. A weight takes 4.5 bits, or 5.

use super::codes::FourBitForm;
use super::four_bits::{Block, Form};
use super::packing::{Row, fill_panels};
use super::panel_sizes::BLOCK;
use super::{Source, packing};
use crate::KernelError;

/// Outputs of a record.
const OUTPUTS: usize = 8;
/// Blocks of an output in it.
const BLOCKS: usize = 4;
/// Words of its numbers.
const NUMBERS: usize = OUTPUTS * BLOCKS * BLOCK / 8;
/// Words of its scales.
const SCALES: usize = OUTPUTS * BLOCKS / 2;

/// A matrix `[outputs, inputs]` in records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FourBitRecords {
    inputs: usize,
    outputs: usize,
    form: FourBitForm,
}

impl FourBitRecords {
    /// How the rows of `sources`, one after the other, are held; `None` if there is no kernel for them: a source has more bits or other blocks, is
    /// E2M1, or of outputs that are no multiple of 8, or inputs are no multiple of 32.
    #[must_use]
    pub fn of(inputs: usize, sources: &[Source<'_>]) -> Option<FourBitRecords> {
        let Form::FourBits(form) = Form::of(sources) else { return None };
        let is_whole = |source: &Source<'_>| source.len().is_multiple_of(inputs * OUTPUTS);
        let fits = inputs > 0 && inputs.is_multiple_of(BLOCK) && sources.iter().all(is_whole);
        let outputs = sources.iter().map(Source::len).sum::<usize>() / inputs.max(1);
        (fits && form != FourBitForm::E2m1).then_some(FourBitRecords { inputs, outputs, form })
    }

    /// What its numbers stand for.
    #[must_use]
    pub fn form(&self) -> FourBitForm {
        self.form
    }

    /// How many numbers it has.
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
        NUMBERS + if self.form == FourBitForm::Symmetric { SCALES } else { 2 * SCALES }
    }

    /// Words of eight outputs.
    pub(crate) fn eight_words(&self) -> usize {
        self.inputs.div_ceil(BLOCKS * BLOCK) * self.record_words()
    }

    /// Writes the records of some outputs from the `first` on, which is a multiple of 8, as many as there is room for.
    ///
    /// # Errors
    /// A weight is not finite, or enormous.
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
            let (numbers, halves) = to.split_at_mut(NUMBERS);
            let first = record * BLOCKS * BLOCK;
            let blocks = BLOCKS.min((self.inputs - first) / BLOCK);
            for (output, (source, row)) in outputs.iter().enumerate() {
                for block in 0..blocks {
                    let found = Block::read(source, row + first + block * BLOCK, BLOCK, self.form)?;
                    for (t, eight) in found.numbers.as_chunks::<8>().0.iter().enumerate() {
                        let (low, high) = (&eight[..4], &eight[4..]);
                        let bytes = [0, 1, 2, 3].map(|i| low[i] | high[i] << 4);
                        numbers[(output * 4 + t) * BLOCKS + block] = u32::from_le_bytes(bytes);
                    }
                    let place = output * 2 + block / 2;
                    for (part, half) in halves.chunks_exact_mut(SCALES).zip([found.scale, found.beside]) {
                        part[place] |= u32::from(half) << (16 * (block % 2));
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
        use half::f16;
        assert_eq!(size_of_val(records), self.bytes(), "words of {self:?}");
        let weight = |output: usize, input: usize| {
            let eight = &records[output / OUTPUTS * self.eight_words()..][..self.eight_words()];
            let record = &eight[input / (BLOCKS * BLOCK) * self.record_words()..][..self.record_words()];
            let (g, block, i) = (output % OUTPUTS, input / BLOCK % BLOCKS, input % BLOCK);
            let byte = record[(g * 4 + i / 8) * BLOCKS + block].to_le_bytes()[i % 4];
            let number = f32::from(byte >> (i % 8 / 4 * 4) & 15);
            let half = |part: usize| {
                let word = record[NUMBERS + part * SCALES + g * 2 + block / 2];
                f16::from_bits((word >> (16 * (block % 2))) as u16).to_f32()
            };
            match self.form {
                FourBitForm::Symmetric => half(0) * (number - 8.0),
                FourBitForm::Minima => half(0) * number + half(1),
                FourBitForm::ZeroPoints => half(0) * (number - half(1)),
                FourBitForm::E2m1 => unreachable!("there are no records of E2M1"),
            }
        };
        (0..self.outputs * self.inputs).map(|i| weight(i / self.inputs, i % self.inputs)).collect()
    }

    /// All records in the host's memory.
    ///
    /// # Errors
    /// A weight is not finite, or enormous.
    pub fn pack(&self, sources: &[Source<'_>]) -> Result<Vec<u32>, KernelError> {
        let mut all = vec![0; self.bytes() / size_of::<u32>()];
        self.write(sources, 0, &mut all)?;
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Blocks, Slice};
    use super::*;

    /// Blocks of Q4_0 or Q4_1, whose numbers and scales are noise.
    fn blocks(kind: Blocks, count: usize) -> Vec<u8> {
        let mut state = 7_u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        let of_scales = kind.bytes() - 16;
        let block = |_| {
            let halves = (0..of_scales).map(|i| if i % 2 == 0 { next() } else { 0x20 | next() & 0x87 });
            let halves: Vec<u8> = halves.collect();
            halves.into_iter().chain((0..16).map(|_| next()).collect::<Vec<u8>>()).collect::<Vec<u8>>()
        };
        (0..count).flat_map(block).collect()
    }

    #[test]
    fn records_have_the_numbers_of_their_files() {
        for (kind, words) in [(Blocks::Q4_0, 144), (Blocks::Q4_1, 160)] {
            for (outputs, inputs) in [(8, 32), (24, 128), (16, 416)] {
                let bytes = blocks(kind, outputs * inputs / 32);
                let source = Source::Blocks(kind, &bytes);
                let records = FourBitRecords::of(inputs, &[source]).unwrap();
                assert_eq!(records.bytes(), outputs / 8 * inputs.div_ceil(128) * words * 4);
                let mut expected = vec![0.0; outputs * inputs];
                source.read_f32(0, &mut expected);
                let packed = records.pack(&[source]).unwrap();
                assert!(records.widened(&packed) == expected, "{kind:?} {outputs} {inputs}");
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
    }

    #[test]
    fn what_no_kernel_takes_has_none() {
        let bytes = blocks(Blocks::Q4_0, 8 * 2);
        let whole = Source::Blocks(Blocks::Q4_0, &bytes);
        assert!(FourBitRecords::of(64, &[whole]).is_some());
        assert!(FourBitRecords::of(64, &[whole, Source::F32(&[0.0; 8 * 64])]).is_some());
        // Outputs that are no multiple of 8 of one part, a cut within a block, inputs that are no whole blocks, more bits.
        assert!(FourBitRecords::of(64, &[whole, Source::F32(&[0.0; 4 * 64])]).is_none());
        let cut = Source::Part(&whole, Slice::new(64, 0..8, 16..48));
        assert!(FourBitRecords::of(32, &[cut]).is_none());
        let halves = Source::Part(&whole, Slice::new(64, 0..8, 32..64));
        assert!(FourBitRecords::of(32, &[halves]).is_some());
        assert!(FourBitRecords::of(48, &[Source::F32(&[0.0; 8 * 48])]).is_none());
        assert!(FourBitRecords::of(32, &[Source::Blocks(Blocks::Q8_0, &[0; 8 * 34])]).is_none());
    }

    #[test]
    fn weights_that_are_not_finite_are_refused() {
        let mut weights = vec![0.5; 8 * 64];
        weights[100] = f32::INFINITY;
        let source = Source::F32(&weights);
        let refusal = FourBitRecords::of(64, &[source]).unwrap().pack(&[source]).unwrap_err().to_string();
        assert!(refusal.contains("inf") && refusal.contains("int4"), "{refusal}");
    }
}
