//! Checks of a real GPU: what only one can show. Each is a function of its own; `faser gpu-check` has the table.
//!
//! They are written for a process of their own each: a failed launch loses the context, and a case that fails panics.

mod attention_speed;
mod check_report;
mod device_facts;
mod filled;
mod flags;
mod graph;
mod known_passes;
mod logits;
mod nccl;
pub mod ops;
mod overlap;
mod pass_times;
mod probes;
mod products;
mod rates;
mod shapes;
mod split;
mod timed_lanes;
mod two_sequences;
mod whole_service;

pub use attention_speed::attention;
pub use check_report::{Bound, Figure, Report, Verdict};
pub use device_facts::{compile, device, illegal_address};
pub use flags::flags;
pub use graph::graph;
pub use known_passes::{KnownPass, Pass, known_passes, models};
pub use logits::logits;
pub use nccl::nccl;
pub use ops::ops;
pub use overlap::overlap;
pub use pass_times::passes;
pub use probes::FILES;
pub use products::products;
pub use rates::rates;
pub use shapes::Shape;
pub use split::split;
pub use timed_lanes::Load;
pub use whole_service::{lost, tokens};

use std::error::Error;
use std::time::{Duration, Instant};

use faser_kernels::cuda::{CudaError, CudaLane};

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

/// Readings, of which the median counts.
const READINGS: usize = 5;
/// Time of a reading, about.
const READING: Duration = Duration::from_millis(30);
/// Most runs of a reading.
const MOST_RUNS: usize = 1000;

/// How long work on a lane takes, by the host's clock, which is what a runner would wait: seconds of one run of what
/// `work` asks of the lane, in a queue of many; warmed up. One run alone if `once`.
///
/// # Errors
/// What `work` says, or the device.
fn seconds(
    lane: &mut CudaLane,
    once: bool,
    work: &mut dyn FnMut(&mut CudaLane, usize) -> Result<(), CudaError>,
) -> Result<f64, CudaError> {
    let mut reading = |lane: &mut CudaLane, runs: usize| {
        let started = Instant::now();
        for run in 0..runs {
            work(lane, run)?;
        }
        lane.wait(&mut || {})?;
        Ok::<f64, CudaError>(started.elapsed().as_secs_f64() / runs as f64)
    };
    let first = reading(lane, 1)?;
    if once {
        return Ok(first);
    }
    let warm = reading(lane, 3)?.min(first);
    let runs = ((READING.as_secs_f64() / warm.max(1e-9)) as usize).clamp(1, MOST_RUNS);
    let mut readings = (0..READINGS).map(|_| reading(lane, runs)).collect::<Result<Vec<f64>, _>>()?;
    readings.sort_by(f64::total_cmp);
    Ok(readings[READINGS / 2])
}
