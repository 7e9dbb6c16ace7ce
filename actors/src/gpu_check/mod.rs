//! Checks of a real GPU through runners and whole services; beside them those of kernels and models, for whoever has the table.

mod lanes;
mod overlap;
mod passes;
mod service;

pub use faser_kernels::cuda::check::{
    Bound, Check, CheckResult, Figure, Report, Setting, Verdict, attention, compile, device, flags, graph,
    illegal_address, nccl, ops, products, rates, split,
};
pub use faser_models::cuda::check::logits;
pub use overlap::overlap;
pub use passes::passes;
pub use service::{lost, tokens};
