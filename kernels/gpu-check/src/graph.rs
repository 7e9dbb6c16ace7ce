//! Graphs: what was captured on a half of a split stays on its SMs and does what its launches did; and what it saves.

use std::time::Instant;

use super::probes::{self, FillArgs, ReadArgs, SmsArgs};
use super::{CheckResult, Report, Setting, seconds};
use faser_kernels::cuda::{
    Arena, CudaError, CudaLane, DeviceBuffer, Element, Gpu, Graph, Product, Ptr, Share, SharePair,
};

/// SMs of the first half.
const SPLIT: u32 = 32;
/// Launches of the graph that is timed: about as many as some layers have.
const LAUNCHES: usize = 128;

/// Graphs on both halves of a split, replayed at once.
///
/// # Errors
/// The GPU cannot be opened or split, or does not capture.
pub fn graph(setting: &Setting, report: &mut Report<'_>) -> CheckResult {
    let gpu = Gpu::open(setting.ordinal, None)?;
    probes::load(&gpu)?;
    let pair = Share::split(&gpu, SPLIT)?;
    where_it_runs(&pair, setting, report)?;
    for share in [Share::whole(&gpu), pair.draft, pair.verify] {
        let lane = &mut CudaLane::new(&[share], false)?;
        let wrong = differing(lane, setting)?;
        report.at_most(
            format!("replays on {} SMs that differ from launches", lane.sms()),
            wrong as f64,
            "",
            0.0,
        );
        speed(lane, setting, report)?;
    }
    Ok(())
}

/// A graph on each half, both replayed at the same time, some times over.
fn where_it_runs(pair: &SharePair, setting: &Setting, report: &mut Report<'_>) -> CheckResult {
    let (blocks, turns, replays) = setting.size((4096, 20_000, 10), (16, 10, 2));
    let mut halves = Vec::new();
    for share in [&pair.draft, &pair.verify] {
        let mut lane = CudaLane::new(std::slice::from_ref(share), false)?;
        let all = lane.gpu().info().sms as usize;
        let mut arena = Arena::new(lane.gpu(), 4 * all + 64, "SMs seen")?;
        let (seen, place) = arena.reserve::<u32>(all + 1);
        lane.clear(seen, 4 * (all + 1))?;
        let graph = captured(&mut lane, |lane| {
            lane.launch(&SmsArgs { seen, sms: all as u32, turns }.launch(blocks))
        })?;
        halves.push((lane, arena, place, graph));
    }
    for _ in 0..replays {
        for (lane, _, _, graph) in &mut halves {
            lane.replay(graph)?;
        }
    }
    let mut on = Vec::new();
    let (mut ran, mut silent) = (true, true);
    for (lane, arena, place, _) in &mut halves {
        lane.fetch(arena)?;
        lane.wait(&mut || {})?;
        let (unknown, seen) = arena.get::<u32>(*place).split_last().ok_or("no SMs")?;
        ran &= seen.iter().sum::<u32>() + unknown == replays * blocks;
        silent &= *unknown == replays * blocks;
        on.push((0..seen.len()).filter(|sm| seen[*sm] > 0).collect::<Vec<usize>>());
    }
    report.right("all blocks of all replays ran", ran);
    if silent {
        report.no_meaning("SMs of each half: blocks cannot say where they run");
        return Ok(());
    }
    for (on, share) in on.iter().zip([&pair.draft, &pair.verify]) {
        let what = format!("SMs that a graph of {} ran on", share.sms());
        report.at_most(what, on.len() as f64, "SMs", f64::from(share.sms()));
    }
    let both = on[0].iter().filter(|sm| on[1].contains(sm)).count();
    report.at_most("SMs that both graphs ran on", both as f64, "SMs", 0.0);
    Ok(())
}

fn captured(
    lane: &mut CudaLane,
    launches: impl FnOnce(&mut CudaLane) -> Result<(), CudaError>,
) -> Result<Graph, CudaError> {
    lane.begin_capture()?;
    let asked = launches(lane);
    let graph = lane.end_capture();
    asked.and(graph)
}

/// Rounds in which a kernel, a copy, zeros and a product by cublasLt, replayed, gave another sum than when they were launched.
fn differing(lane: &mut CudaLane, setting: &Setting) -> Result<usize, CudaError> {
    let gpu = lane.gpu().clone();
    let (size, sms) = (setting.size(512, 16), lane.sms());
    let buffer = || DeviceBuffer::zeroed(&gpu, size * size * 4, "a check of graphs");
    let (x, w, out) = (buffer()?, buffer()?, buffer()?);
    let mut arena = Arena::new(&gpu, 64, "a sum")?;
    let (sum, place) = arena.reserve::<u32>(1);
    let work = |lane: &mut CudaLane| {
        lane.clear(sum, 4)?;
        lane.clear(out.ptr(), size * size * 4)?;
        lane.launch(&FillArgs::new(Element::F32, x.ptr(), size * size, 9, 1.0).launch(sms))?;
        lane.copy(x.ptr(), w.ptr(), size * size * 4)?;
        lane.multiply(&Product {
            element: Element::F32,
            x: x.ptr(),
            w: w.ptr(),
            bias: Ptr::NULL,
            out: out.ptr(),
            rows: size,
            inputs: size,
            outputs: size,
            add: true,
            records: None,
        })?;
        lane.launch(&ReadArgs { from: out.ptr(), sum, count: (size * size / 4) as u64 }.launch(sms))
    };
    let mut sum_of = |lane: &mut CudaLane| {
        lane.fetch(&mut arena)?;
        lane.wait(&mut || {})?;
        Ok::<u32, CudaError>(arena.get::<u32>(place)[0])
    };
    work(lane)?;
    let expected = sum_of(lane)?;
    let graph = captured(lane, work)?;
    let mut wrong = usize::from(expected == 0);
    for _ in 0..setting.size(50, 2) {
        lane.clear(out.ptr(), size * size * 4)?;
        lane.replay(&graph)?;
        wrong += usize::from(sum_of(lane)? != expected);
    }
    Ok(wrong)
}

/// Small launches one by one, and by a graph; and how long the graph takes to make.
fn speed(lane: &mut CudaLane, setting: &Setting, report: &mut Report<'_>) -> CheckResult {
    let (sms, launches) = (lane.sms(), setting.size(LAUNCHES, 4));
    let buffer = DeviceBuffer::zeroed(lane.gpu(), 4096, "small launches")?;
    let args = FillArgs::new(Element::F32, buffer.ptr(), 256, 1, 1.0).launch(sms);
    let work = |lane: &mut CudaLane| (0..launches).try_for_each(|_| lane.launch(&args));
    let one_by_one = seconds(lane, setting.small, &mut |lane, _| work(lane))?;
    let started = Instant::now();
    let graph = captured(lane, work)?;
    let making = started.elapsed().as_secs_f64();
    let replayed = seconds(lane, setting.small, &mut |lane, _| lane.replay(&graph))?;
    let name = |what: &str| format!("{launches} small launches on {sms} SMs, {what}");
    report.timed(name("one by one"), one_by_one * 1e6, "us", None);
    report.timed(name("by a graph"), replayed * 1e6, "us", None);
    report.timed(name("captured and instantiated"), making * 1e6, "us", None);
    Ok(())
}
