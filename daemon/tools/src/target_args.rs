//! Latency targets on a command line.

use clap::Args;
use faser_bench::{BenchError, Targets};

/// Latency targets that requests are held to.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct TargetArgs {
    /// Milliseconds to the first token that a request may take: shows which share of the requests met the targets, and how many a second.
    #[arg(long, value_name = "MS")]
    pub ttft_target: Option<f64>,
    /// Milliseconds per token after it; both targets count where both are given.
    #[arg(long, value_name = "MS")]
    pub tpot_target: Option<f64>,
}

impl TargetArgs {
    /// The targets, checked.
    ///
    /// # Errors
    /// One is no time.
    pub(crate) fn targets(&self) -> Result<Targets, BenchError> {
        let targets = Targets { ttft_ms: self.ttft_target, tpot_ms: self.tpot_target };
        targets.validate()?;
        Ok(targets)
    }
}
