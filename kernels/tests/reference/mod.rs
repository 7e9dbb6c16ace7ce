//! What the tests of ops share: random numbers, a lane for every instruction set, comparison with f64.
#![allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    reason = "a module of several test files, each uses a part"
)]

pub use faser_kernels::cuda::check::ops::reference::{Random, bf16, close, lane};
use faser_kernels::{Isa, Tensor};

/// Calls `test` for each instruction set of this machine, and says which ones it has not.
pub fn on_each_isa(mut test: impl FnMut(Isa)) {
    for isa in Isa::ALL {
        if isa.is_available() {
            test(isa);
        } else {
            println!("skipped: this machine has no {isa}");
        }
    }
}

/// All bits of the first rows.
pub fn bits(tensor: &Tensor, rows: usize) -> Vec<Vec<u32>> {
    (0..rows).map(|r| tensor.row(r).iter().map(|x| x.to_bits()).collect()).collect()
}
