//! Checks of a real GPU: what only one can show. Each is a function of its own, near what it checks; `faser gpu-check` has the table.
//!
//! They are written for a process of their own each: a failed launch loses the context, and a case that fails panics.

mod astray;
mod attention;
mod compile;
mod device;
mod flags;
mod graph;
mod nccl;
pub mod ops;
mod probes;
mod products;
mod rates;
mod report;
mod split;
mod timing;

pub use astray::astray;
pub use attention::attention;
pub use compile::compile;
pub use device::device;
pub use flags::flags;
pub use graph::graph;
pub use nccl::nccl;
pub use ops::ops;
pub use probes::{FillArgs, StrayArgs};
pub use products::products;
pub use rates::{rates, read_bytes_per_s};
pub use report::{Bound, Figure, Report, Verdict};
pub use split::split;
pub use timing::seconds;

use std::error::Error;

/// How a check goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The GPU's number at the driver.
    pub ordinal: usize,
    /// Shapes for a GPU that is none: times have no meaning then.
    pub small: bool,
}

impl Setting {
    /// One of two sizes.
    pub fn size<T>(&self, large: T, small: T) -> T {
        if self.small { small } else { large }
    }
}

/// How a check ends: it has told its figures, or could not go on.
pub type CheckResult = Result<(), Box<dyn Error + Send + Sync>>;

/// A check. Panics count as failures.
pub type Check = fn(&Setting, &mut Report<'_>) -> CheckResult;
