//! How long work on a lane takes, by the host's clock: what a runner would wait.

use std::time::{Duration, Instant};

use crate::cuda::{CudaError, CudaLane};

/// Readings, of which the median counts.
const READINGS: usize = 5;
/// Time of a reading, about.
const READING: Duration = Duration::from_millis(30);
/// Most runs of a reading.
const MOST_RUNS: usize = 1000;

/// Seconds of one run of what `work` asks of the lane, in a queue of many; warmed up. One run alone if `once`.
///
/// # Errors
/// What `work` says, or the device.
pub fn seconds(
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
