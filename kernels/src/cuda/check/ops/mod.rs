//! Every kernel against the CPU's op: cases that run on a GPU, and in tests on fibers of the host.

mod attention;
pub mod bench;
mod drafting;
mod matmul;
mod on_gpu;
mod passes;
pub mod reference;
mod rows;
mod sampling;

use bench::Bench;
pub use on_gpu::ops;

/// A case, which panics if it fails.
pub type Case = fn(&Bench<'_>);

macro_rules! cases {
    ($($name:ident ($($slot:ident)?) [$($file:literal),*] [$($module:ident::$case:ident),*];)+) => {
        &[$($((stringify!($case), $module::$case as Case),)*)+]
    };
}

/// All cases by name: those of [`each_op`](crate::each_op).
pub const CASES: &[(&str, Case)] = crate::each_op!(cases);
