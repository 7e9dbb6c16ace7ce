//! Splits of the SMs: launches stay on theirs, and what is asked of a stream is in order.

use super::probes::{self, FillArgs, ReadArgs, SmsArgs};
use super::{CheckResult, Report, Setting};
use faser_kernels::cuda::{Arena, CudaError, CudaLane, DeviceBuffer, Element, Gpu, Ptr, Share};

/// SMs of the first half.
const SPLIT: u32 = 32;
/// Rounds of work that must be in order.
const ROUNDS: u64 = 200;

/// Launches on both halves of a split at once, of kernels in modules of the primary context; then kernels, copies and zeros on each.
///
/// # Errors
/// The GPU cannot be opened or split.
pub fn split(setting: &Setting, report: &mut Report<'_>) -> CheckResult {
    let gpu = Gpu::open(setting.ordinal, None)?;
    probes::load(&gpu)?;
    let all = gpu.info().sms as usize;
    let pair = Share::split(&gpu, SPLIT)?;
    let (blocks, turns) = setting.size((4096, 20_000), (16, 10));
    let mut lanes = Vec::new();
    for share in [&pair.draft, &pair.verify] {
        let lane = CudaLane::new(std::slice::from_ref(share), false)?;
        lanes.push((lane, Arena::new(&gpu, 4 * all + 64, "SMs seen")?));
    }
    let mut places = Vec::new();
    for (lane, arena) in &mut lanes {
        let (seen, place) = arena.reserve::<u32>(all + 1);
        places.push(place);
        lane.send(arena)?;
        lane.clear(seen, 4 * (all + 1))?;
        lane.launch(&SmsArgs { seen, sms: all as u32, turns }.launch(blocks))?;
        lane.fetch(arena)?;
    }
    let mut seen = Vec::new();
    for ((lane, arena), place) in lanes.iter_mut().zip(places) {
        lane.wait(&mut || {})?;
        seen.push(arena.get::<u32>(place).to_vec());
    }
    let on = |half: usize| (0..all).filter(|sm| seen[half][*sm] > 0).collect::<Vec<usize>>();
    let (draft, verify) = (on(0), on(1));
    report.right("all blocks ran", seen.iter().all(|seen| seen.iter().sum::<u32>() == blocks));
    if seen.iter().all(|seen| seen[all] == blocks) {
        report.no_meaning("SMs of each half: blocks cannot say where they run");
    } else {
        let both = draft.iter().filter(|sm| verify.contains(sm)).count();
        report.at_most(
            "SMs that the first half ran on",
            draft.len() as f64,
            "SMs",
            f64::from(pair.draft.sms()),
        );
        report.at_most("SMs that the rest ran on", verify.len() as f64, "SMs", f64::from(pair.verify.sms()));
        report.at_most("SMs that both ran on", both as f64, "SMs", 0.0);
        report.at_least("SMs that were used", (draft.len() + verify.len()) as f64, "SMs", all as f64);
    }
    for (half, share) in [&pair.draft, &pair.verify].into_iter().enumerate() {
        let mut lane = CudaLane::new(std::slice::from_ref(share), half == 0)?;
        let wrong = disorder(&mut lane, setting)?;
        report.at_most(format!("rounds out of order on {} SMs", share.sms()), wrong as f64, "", 0.0);
    }
    Ok(())
}

/// Rounds in which a kernel, a copy, zeros and two reads that were all asked for at once gave another result than with waits between.
fn disorder(lane: &mut CudaLane, setting: &Setting) -> Result<usize, CudaError> {
    let gpu = lane.gpu().clone();
    let numbers = setting.size(1 << 22, 1 << 10);
    let (first, second) = (
        DeviceBuffer::zeroed(&gpu, numbers * 4, "a check of order")?,
        DeviceBuffer::zeroed(&gpu, numbers * 4, "a check of order")?,
    );
    let mut arena = Arena::new(&gpu, 256, "a check of order")?;
    let mut wrong = 0;
    for round in 0..setting.size(ROUNDS, 3) {
        let mut sums = [0u32; 2];
        for (sum, waits) in sums.iter_mut().zip([true, false]) {
            arena.clear();
            let (copied, place) = arena.reserve::<u32>(2);
            let (cleared, sms) = (Ptr(copied.0 + 4), lane.sms());
            let reads = |from, sum| ReadArgs { from, sum, count: numbers as u64 / 4 }.launch(sms);
            let pause = |lane: &mut CudaLane| if waits { lane.wait(&mut || {}) } else { Ok(()) };
            lane.clear(copied, 8)?;
            pause(lane)?;
            lane.launch(&FillArgs::new(Element::F32, first.ptr(), numbers, round, 1.0).launch(sms))?;
            pause(lane)?;
            lane.copy(first.ptr(), second.ptr(), numbers * 4)?;
            pause(lane)?;
            lane.clear(first.ptr(), numbers * 4)?;
            pause(lane)?;
            lane.launch(&reads(second.ptr(), copied))?;
            pause(lane)?;
            lane.launch(&reads(first.ptr(), cleared))?;
            lane.fetch(&mut arena)?;
            lane.wait(&mut || {})?;
            let found = arena.get::<u32>(place);
            *sum = found[0];
            wrong += usize::from(found[1] != 0);
        }
        wrong += usize::from(sums[0] != sums[1] || sums[0] == 0);
    }
    Ok(wrong)
}
