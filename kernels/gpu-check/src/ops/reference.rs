//! What the cases and tests of ops are made of, and judged by: random numbers, lanes of the CPU, distances.
#![allow(unreachable_pub, dead_code, reason = "a module of several test files too")]

use faser_kernels::ops::{Write, matmul};
use faser_kernels::{Isa, Lane, Matrix, Partition, Tensor, View};

/// A small reproducible generator (xorshift64*).
pub struct Random(u64);

impl Random {
    /// Of a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Any 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Less than `n`, which is not 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() >> 33) as usize % n
    }

    /// Between -1 and 1.
    pub fn number(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    /// So many numbers between -1 and 1.
    pub fn numbers(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.number()).collect()
    }

    /// Different numbers below `n`, in random order.
    pub fn shuffled(&mut self, n: usize) -> Vec<u32> {
        let mut all: Vec<u32> = (0..n as u32).collect();
        for i in (1..n).rev() {
            all.swap(i, self.below(i + 1));
        }
        all
    }

    /// A tensor of numbers between -1 and 1.
    pub fn tensor(&mut self, rows: usize, cols: usize) -> Tensor {
        Tensor::from_rows(cols, &self.numbers(rows * cols))
    }
}

/// A lane of `workers`.
///
/// # Panics
/// If this processor does not have the instruction set.
pub fn lane(isa: Isa, workers: usize) -> Lane {
    let cores = (0..workers).map(|worker| worker % 2).collect();
    Lane::new(&Partition { cores }, isa).expect("the instruction set is available")
}

/// What bf16 makes of a number.
pub fn bf16(x: f32) -> f32 {
    half::bf16::from_f32(x).to_f32()
}

/// `|a - b|` is at most `tolerance` times the scale of the numbers involved.
///
/// # Panics
/// If not: `what` it is stands in the message.
#[track_caller]
pub fn close(actual: f32, expected: f64, scale: f64, tolerance: f64, what: &str) {
    let error = (f64::from(actual) - expected).abs() / scale.max(1e-30);
    assert!(error <= tolerance, "{what}: {actual} is not {expected}, error {error:e} of {tolerance:e}");
}

/// Calls `test` for each instruction set of this machine.
pub fn on_each_isa(test: impl FnMut(Isa)) {
    Isa::available().into_iter().for_each(test);
}

/// All bits of the first rows.
pub fn bits(tensor: &Tensor, rows: usize) -> Vec<Vec<u32>> {
    (0..rows).map(|r| tensor.row(r).iter().map(|x| x.to_bits()).collect()).collect()
}

/// Each row of `x` times the matrix.
pub fn product(lane: &Lane, x: View<'_>, matrix: &Matrix) -> Tensor {
    let mut out = Tensor::zeros(x.rows(), matrix.out_features());
    matmul(lane, x, matrix, None, out.view_mut(x.rows()), Write::Replace);
    out
}
