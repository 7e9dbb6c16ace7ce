//! Checks of a real GPU through a whole service; beside them those of the kernels, for whoever has the table.

pub use faser_kernels::cuda::check::{
    Bound, Check, CheckResult, Figure, Report, Setting, Verdict, astray, attention, compile, device, flags,
    ops, products, rates, split,
};
