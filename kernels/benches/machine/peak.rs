//! Which multiply-add loop is the roof of which kernels, and its rate.

use super::rate;
use faser_kernels::Dtype;
use std::time::Duration;

/// Rounds between two looks at the clock: some microseconds, with AMX some hundred.
const ROUNDS: u64 = 4096;

/// A loop of independent multiply-adds over registers that this machine has the instructions of.
#[derive(Clone, Copy)]
pub(crate) struct Peak(&'static Loop);

/// A loop; `run` takes rounds and needs what `available` looks for.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "no loop is written"))]
pub(super) struct Loop {
    pub(super) name: &'static str,
    /// Operations of a round: a multiplication and an addition are two.
    pub(super) ops: u64,
    pub(super) available: fn() -> bool,
    pub(super) run: unsafe fn(u64),
}

impl Peak {
    /// All that this machine has.
    pub(crate) fn all() -> Vec<Peak> {
        loops::ALL.iter().filter(|which| (which.available)()).map(|which| Peak(which)).collect()
    }

    /// What matmul's kernels for weights of `dtype` cannot exceed on the instruction set of this name; `None` where none is known.
    pub(crate) fn of(isa: &str, dtype: Dtype) -> Option<Peak> {
        loops::of(isa, dtype).iter().find(|which| (which.available)()).map(|which| Peak(which))
    }

    /// The instruction, and the width of its registers.
    pub(crate) fn name(self) -> &'static str {
        self.0.name
    }

    /// Operations a second, these cores together.
    pub(crate) fn measure(self, cores: &[usize], time: Duration) -> f64 {
        // A core needs a while to reach the frequency it has under wide instructions.
        rate(cores, time / 2, time, |_, _| {
            // SAFETY: a `Peak` is made only of a loop that is available.
            unsafe { (self.0.run)(ROUNDS) };
            ROUNDS * self.0.ops
        })
    }
}

/// The loops of x86-64.
#[cfg(target_arch = "x86_64")]
mod loops {
    use super::super::{amx_peak, vector};
    use super::{Dtype, Loop};

    pub(super) const ALL: [&Loop; 10] = [
        &vector::MUL_ADD_XMM,
        &vector::FMA_YMM,
        &vector::MADD_YMM,
        &vector::VNNI_YMM,
        &vector::FMA_ZMM,
        &vector::MADD_ZMM,
        &vector::VNNI_ZMM,
        &vector::BF16_ZMM,
        &amx_peak::BF16,
        &amx_peak::INT8,
    ];

    /// The first that is available counts: without VNNI the kernels make do with less.
    pub(super) fn of(isa: &str, dtype: Dtype) -> &'static [&'static Loop] {
        match (isa, dtype) {
            ("amx", Dtype::Bf16) => &[&amx_peak::BF16],
            ("amx", Dtype::Int8) => &[&amx_peak::INT8],
            ("avx512-bf16", Dtype::Bf16) => &[&vector::BF16_ZMM],
            ("avx512-bf16" | "avx512", Dtype::Int8) | ("amx" | "avx512-bf16" | "avx512", Dtype::Int4) => {
                &[&vector::VNNI_ZMM, &vector::MADD_ZMM]
            }
            // bf16 weights are widened and multiplied as f32.
            ("amx" | "avx512-bf16" | "avx512", Dtype::F32 | Dtype::Bf16) => &[&vector::FMA_ZMM],
            ("avx2", Dtype::F32 | Dtype::Bf16) => &[&vector::FMA_YMM],
            ("avx2", Dtype::Int8 | Dtype::Int4) => &[&vector::VNNI_YMM, &vector::MADD_YMM],
            ("portable", Dtype::F32 | Dtype::Bf16) => &[&vector::MUL_ADD_XMM],
            _ => &[],
        }
    }
}

/// None are written for other processors.
#[cfg(not(target_arch = "x86_64"))]
mod loops {
    use super::{Dtype, Loop};

    pub(super) const ALL: [&Loop; 0] = [];

    pub(super) fn of(_: &str, _: Dtype) -> &'static [&'static Loop] {
        &[]
    }
}
