//! Types of stored numbers.

use crate::KernelError;
use std::{fmt, str::FromStr};

/// Type of the numbers of weights and KV memory. Activations between ops and accumulators are always f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// IEEE 754 single precision.
    F32,
    /// The upper half of an f32.
    Bf16,
    /// Whole numbers from -127 to 127 with a scale for each output and 32 inputs: weight matrices can be held so, see
    /// [`Matrix`](crate::Matrix), and on CPUs keys and values, with a scale for each token and head. On CPUs activations are quantised in the same way on their way into a product.
    Int8,
    /// Floating-point numbers of 8 bits (E4M3) with a scale for each output and 128 inputs, on GPUs alone: weight matrices can be held so, see
    /// [`EightBitRecords`](crate::EightBitRecords), and keys and values, with a scale for each token and head. Activations are bf16.
    Fp8,
    /// Whole numbers of 4 bits with a scale for each output and 32 inputs, in some matrices of GGUF files a minimum too: weight matrices
    /// alone can be held so, see [`Matrix`](crate::Matrix). On CPUs activations are quantised as for int8.
    Int4,
}

impl Dtype {
    /// As the config and the command line have it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Dtype::F32 => "f32",
            Dtype::Bf16 => "bf16",
            Dtype::Int8 => "int8",
            Dtype::Fp8 => "fp8",
            Dtype::Int4 => "int4",
        }
    }

    /// Bits of one number, without its share of a scale.
    #[must_use]
    pub fn bits(self) -> usize {
        match self {
            Dtype::F32 => 32,
            Dtype::Bf16 => 16,
            Dtype::Int8 | Dtype::Fp8 => 8,
            Dtype::Int4 => 4,
        }
    }

    /// Bytes of one number, whole ones.
    #[must_use]
    pub fn bytes(self) -> usize {
        self.bits().div_ceil(8)
    }

    /// Whether GPUs hold projections of layers in [records](crate::WeightRecords), where this is asked for, or what their files have so.
    #[must_use]
    pub fn is_in_records(self) -> bool {
        matches!(self, Dtype::Int8 | Dtype::Fp8 | Dtype::Int4)
    }

    /// In what the embedding and KV memory of a model are held whose matrices are held in this: bf16 beside 8 and 4 bits, else the same.
    #[must_use]
    pub fn beside(self) -> Dtype {
        match self {
            Dtype::F32 => Dtype::F32,
            Dtype::Bf16 | Dtype::Int8 | Dtype::Fp8 | Dtype::Int4 => Dtype::Bf16,
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Dtype {
    type Err = KernelError;

    fn from_str(name: &str) -> Result<Dtype, KernelError> {
        match name {
            "f32" => Ok(Dtype::F32),
            "bf16" => Ok(Dtype::Bf16),
            "int8" => Ok(Dtype::Int8),
            "fp8" => Ok(Dtype::Fp8),
            "int4" => Ok(Dtype::Int4),
            _ => Err(KernelError::UnknownDtype { name: name.to_owned() }),
        }
    }
}
