//! Flags that the host sets while kernels run are seen by the next kernel that looks.

use std::time::Duration;

use super::probes::{self, WaitArgs};
use super::{CheckResult, Report, Setting};
use faser_kernels::cuda::{
    Arena, Chunk, CompactPassArgs, CudaError, CudaLane, DeviceBuffer, Flags, Gpu, NOTHING, Sample, Share,
};

/// Looks before a kernel gives up to wait: seconds.
const MOST_LOOKS: u32 = 10_000_000;
/// After that a kernel that was asked for is running.
const BEGUN: Duration = Duration::from_millis(20);
const CHUNKS: usize = 3;
const ROWS: u32 = 2;

/// A kernel holds the lane up; `compact_pass` is queued behind it; then the host cancels a chunk, and lets the first kernel go on.
///
/// # Errors
/// The GPU cannot be opened.
pub fn flags(setting: &Setting, report: &mut Report<'_>) -> CheckResult {
    let gpu = Gpu::open(setting.ordinal, None)?;
    probes::load(&gpu)?;
    let pair = Share::split(&gpu, 16)?;
    for share in [Share::whole(&gpu), pair.draft] {
        let lane = &mut CudaLane::new(&[share], true)?;
        let (go_on, cancelled) = (Flags::new(&gpu, 1)?, Flags::new(&gpu, CHUNKS)?);
        let mut wrong = 0;
        let rounds = setting.size(50, 4);
        for round in 0..rounds {
            go_on.clear();
            cancelled.clear();
            wrong += usize::from(!seen(lane, &go_on, &cancelled, round % CHUNKS)?);
        }
        report.at_most(
            format!("rounds of {rounds} in which a flag was not seen, on {} SMs", lane.sms()),
            wrong as f64,
            "",
            0.0,
        );
    }
    Ok(())
}

fn seen(lane: &mut CudaLane, go_on: &Flags, cancelled: &Flags, chunk: usize) -> Result<bool, CudaError> {
    let gpu = lane.gpu().clone();
    let mut arena = Arena::new(&gpu, 2048, "rows to be compacted")?;
    let rows = CHUNKS as u32 * ROWS;
    let chunks: Vec<Chunk> = (0..CHUNKS as u32)
        .map(|c| Chunk { first: c * ROWS, rows: ROWS, sampled_from: NOTHING, since: 0 })
        .collect();
    let samples = DeviceBuffer::zeroed(&gpu, rows as usize * size_of::<Sample>(), "samples")?;
    let args = CompactPassArgs {
        chunks: arena.put(&chunks),
        cancelled: cancelled.ptr(),
        live: arena.put(&[ROWS; CHUNKS]),
        positions: arena.put(&(0..rows).collect::<Vec<u32>>()),
        chunk_of: arena.put(&(0..rows).map(|row| row / ROWS).collect::<Vec<u32>>()),
        keep: arena.put(&vec![0u32; rows as usize]),
        samples: samples.ptr(),
        counts: arena.put(&[rows, 0, 0]),
        chunk_count: CHUNKS as u32,
    };
    let (looks, looked) = arena.reserve::<u32>(1);
    let (left, counted) = arena.reserve::<u32>(1);
    lane.send(&mut arena)?;
    lane.launch(&WaitArgs { flag: go_on.ptr(), looks, most: MOST_LOOKS }.launch())?;
    lane.launch(&args.launch())?;
    lane.copy(args.counts, left, 4)?;
    lane.fetch(&mut arena)?;
    std::thread::sleep(BEGUN);
    cancelled.set(chunk);
    go_on.set(0);
    lane.wait(&mut || {})?;
    let waited = arena.get::<u32>(looked)[0] < MOST_LOOKS;
    Ok(waited && arena.get::<u32>(counted)[0] == rows - ROWS)
}
