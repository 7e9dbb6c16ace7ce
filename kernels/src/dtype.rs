//! Types of stored numbers.

use crate::KernelError;
use std::{fmt, str::FromStr};

/// Type of the numbers of weights and KV memory. Activations and accumulators are always f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// IEEE 754 single precision.
    F32,
    /// The upper half of an f32.
    Bf16,
}

impl Dtype {
    /// Bytes of one number.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Dtype::F32 => 4,
            Dtype::Bf16 => 2,
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Dtype::F32 => "f32",
            Dtype::Bf16 => "bf16",
        })
    }
}

impl FromStr for Dtype {
    type Err = KernelError;

    fn from_str(name: &str) -> Result<Dtype, KernelError> {
        match name {
            "f32" => Ok(Dtype::F32),
            "bf16" => Ok(Dtype::Bf16),
            _ => Err(KernelError::UnknownDtype { name: name.to_owned() }),
        }
    }
}
