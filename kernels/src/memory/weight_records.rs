//! Weight matrices in fewer bits than kernels compute with, as GPUs take them: records of eight outputs and 128 inputs.

use super::{EightBitForm, EightBitRecords, FourBitForm, FourBitRecords, Source};
use crate::KernelError;

/// What the numbers of a matrix in records are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordForm {
    /// Of 4 bits, which stand for this.
    FourBits(FourBitForm),
    /// Of 8 bits.
    EightBits(EightBitForm),
}

/// A matrix in records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightRecords {
    /// Of 4 bits.
    FourBits(FourBitRecords),
    /// Of 8 bits.
    EightBits(EightBitRecords),
}

impl WeightRecords {
    /// What its numbers are.
    #[must_use]
    pub fn form(&self) -> RecordForm {
        match self {
            WeightRecords::FourBits(records) => RecordForm::FourBits(records.form()),
            WeightRecords::EightBits(records) => RecordForm::EightBits(records.form()),
        }
    }

    /// How many numbers it has.
    #[must_use]
    pub fn numbers(&self) -> usize {
        match self {
            WeightRecords::FourBits(records) => records.numbers(),
            WeightRecords::EightBits(records) => records.numbers(),
        }
    }

    /// Memory that it takes, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            WeightRecords::FourBits(records) => records.bytes(),
            WeightRecords::EightBits(records) => records.bytes(),
        }
    }

    /// Words of eight outputs.
    pub(crate) fn eight_words(&self) -> usize {
        match self {
            WeightRecords::FourBits(records) => records.eight_words(),
            WeightRecords::EightBits(records) => records.eight_words(),
        }
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
        match self {
            WeightRecords::FourBits(records) => records.write(sources, first, to),
            WeightRecords::EightBits(records) => records.write(sources, first, to),
        }
    }
}
