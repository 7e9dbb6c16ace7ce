//! Quantised numbers of checkpoints whose layouts are told by whoever reads them, and what numbers of 4 bits stand for.

/// Numbers of a block that have a scale in common: the same as a GGUF file's group.
const GROUP: usize = 32;

/// Quantised numbers, row after row, by their places. Several threads read them.
pub trait Codes: Sync {
    /// Writes numbers from this one on, widened, as many as there is room for.
    fn widen(&self, from: usize, to: &mut [f32]);

    /// What the numbers stand for, if all of them are of 4 bits, and each 32 of a row from a multiple of 32 on have a scale in common.
    ///
    /// # Errors
    /// They are not: why.
    fn form(&self) -> Result<FourBitForm, &'static str>;

    /// The 32 numbers from `from` on, which is a multiple of 32; `None` if they have no [`Codes::form`].
    fn four_bits(&self, from: usize) -> Option<FourBits>;

    /// If all numbers are FP8 (E4M3): of how many inputs, from each multiple of that on, an output has a scale in common.
    fn fp8_run(&self) -> Option<usize> {
        None
    }

    /// The codes of so many numbers of an output from `from` on, and the scale that they have in common; `None` if they are not FP8.
    fn fp8(&self, _from: usize, _len: usize) -> Option<(&[u8], f32)> {
        None
    }
}

/// What numbers of 4 bits stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FourBitForm {
    /// Numbers less 8, times the scale.
    Symmetric,
    /// Numbers times the scale, and a minimum.
    Minima,
    /// Numbers less a zero point, which is a whole number from 0 to 16, times the scale.
    ZeroPoints,
    /// Floating-point numbers of a sign, two bits of exponent and one of mantissa (E2M1), times the scale, which is a power of two.
    E2m1,
}

/// 32 numbers of 4 bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FourBits {
    /// Each from 0 to 15.
    pub numbers: [u8; GROUP],
    /// Theirs.
    pub scale: f32,
    /// What they have beside it.
    pub beside: Beside,
}

/// What 32 numbers have beside their scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Beside {
    /// Nothing: they are less 8, or E2M1.
    Nothing,
    /// What is added to each.
    Minimum(f32),
    /// What is taken off each before it is scaled: from 0 to 16.
    ZeroPoint(u8),
}
