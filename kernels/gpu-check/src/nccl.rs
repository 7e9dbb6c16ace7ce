//! Sums over GPUs, by NCCL and over each other's memory: which NCCL it is, that two ranks sum and gather, what a sum costs, and that a rank which
//! does not come is noticed.
//!
//! On a machine with one GPU both ranks are on it, which NCCL allows from 2.30.3 on where NCCL_MULTI_RANK_GPU_ENABLE is 1: `faser gpu-check`
//! sets that for this check.

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use super::{CheckResult, Report, Setting};
use faser_kernels::cuda::{
    Arena, CudaError, CudaLane, DeviceBuffer, Element, Gpu, Graph, GroupTerms, NcclRankSlot, Share,
    SmallSums, nccl_group, nccl_library, nccl_version, probe,
};

const RANKS: usize = 2;
/// Longer than any call takes, and than one rank waits for the other to begin.
const PATIENT: Duration = Duration::from_secs(30);
/// A rank that keeps the other waiting longer is taken for lost, where that is tried.
const LOST: Duration = Duration::from_secs(2);
/// The first version, as NCCL counts, that allows several ranks on one GPU.
const TOGETHER: u32 = 23_003;
/// SMs of a partition.
const SPLIT: u32 = 32;
/// Bytes of a sum that is timed.
const SIZES: [usize; 8] = [8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20];
/// Calls that are timed together.
const CALLS: usize = 50;

/// What a rank found.
#[derive(Default)]
struct Found {
    sums: bool,
    halves: bool,
    gathered: bool,
    /// Of a captured sum, replayed; none where it cannot be captured.
    replayed: Option<bool>,
    /// The same on the SMs of a partition; none where the GPU cannot be split.
    on_partition: Option<bool>,
    /// Microseconds of a sum of each size.
    us: Vec<f64>,
    /// What the GPU has less of after joining.
    bytes: usize,
    small_sums: Option<SmallSums>,
}

/// Two ranks on two GPUs, or on one.
///
/// # Errors
/// A GPU cannot be opened, or NCCL refuses.
pub fn nccl(setting: &Setting, report: &mut Report<'_>) -> CheckResult {
    let version = match nccl_version() {
        Ok(version) => version,
        Err(CudaError::Library(missing)) => {
            report.no_meaning(missing.to_string());
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    report.says(nccl_library()?.to_string());
    let other = probe()?.iter().map(|gpu| gpu.ordinal).find(|other| *other != setting.ordinal);
    if other.is_none() && version < TOGETHER {
        report.no_meaning("there is one GPU, and two ranks on one take NCCL 2.30.3");
        return Ok(());
    }
    let ordinals = [setting.ordinal, other.unwrap_or(setting.ordinal)];
    report.says(format!("two ranks on GPUs {} and {}", ordinals[0], ordinals[1]));
    for custom_all_reduce in [false, true] {
        let terms = |deadline| GroupTerms { deadline, custom_all_reduce };
        let both = [0, 0, 0].map(AtomicUsize::new);
        let found = on_both(ordinals, terms(PATIENT), |gpu, slot| sums(gpu, slot, setting, &both))?;
        if custom_all_reduce && found[0].replayed.is_none() {
            if found[0].small_sums == Some(SmallSums::Unproven) {
                let words = "what GPUs write to each other's memory, as the driver says that they may, comes as it was written";
                report.right(words, false);
            } else {
                report.says("these GPUs may not write each other's memory: all sums are NCCL's");
            }
            break;
        }
        let way = if custom_all_reduce { "over each other's memory" } else { "by NCCL" };
        report.right(format!("sums of f32 over both ranks, {way}"), found.iter().all(|rank| rank.sums));
        report.right(format!("sums of bf16 over both ranks, {way}"), found.iter().all(|rank| rank.halves));
        report.right(format!("what both ranks have, gathered {way}"), found.iter().all(|rank| rank.gathered));
        if custom_all_reduce {
            report.right("a captured sum, replayed", found.iter().all(|rank| rank.replayed == Some(true)));
            let words = "the same on the SMs of a partition";
            match found[0].on_partition {
                Some(_) => report.right(words, found.iter().all(|rank| rank.on_partition == Some(true))),
                None => report.says("these GPUs cannot be split: partitions are not tried"),
            }
        }
        let mib = found[0].bytes as f64 / f64::from(1 << 20);
        report.number(format!("GPU memory that joining took, {way}"), mib, "MiB");
        for (bytes, us) in sizes(setting).iter().zip(&found[0].us) {
            report.timed(format!("a sum of {} KiB, {way}", bytes >> 10), *us, "us", None);
        }
        lost(ordinals, terms(LOST), way, report)?;
    }
    Ok(())
}

fn sizes(setting: &Setting) -> &'static [usize] {
    setting.size(&SIZES, &SIZES[..1])
}

/// Runs both ranks, each on a thread of its own.
fn on_both<T: Send>(
    ordinals: [usize; RANKS],
    terms: GroupTerms,
    run: impl Fn(&std::sync::Arc<Gpu>, &NcclRankSlot) -> Result<T, CudaError> + Sync,
) -> Result<Vec<T>, CudaError> {
    let slots = nccl_group(RANKS, terms)?;
    let run = &run;
    std::thread::scope(|scope| {
        let rank = |(ordinal, slot): (usize, NcclRankSlot)| {
            scope.spawn(move || {
                let done = Gpu::open(ordinal, None).and_then(|gpu| run(&gpu, &slot));
                done.inspect_err(|error| slot.abort(&error.to_string()))
            })
        };
        let ranks: Vec<_> = ordinals.into_iter().zip(slots).map(rank).collect();
        let panicked = |_| Err(CudaError::Broken("a rank of the check panicked".to_owned()));
        let ended: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap_or_else(panicked)).collect();
        ended.into_iter().collect()
    })
}

fn sums(
    gpu: &std::sync::Arc<Gpu>,
    slot: &NcclRankSlot,
    setting: &Setting,
    both: &[AtomicUsize; 3],
) -> Result<Found, CudaError> {
    let part = Share::split(gpu, SPLIT).ok();
    let shares: Vec<_> = [Share::whole(gpu)].into_iter().chain(part.map(|pair| pair.draft)).collect();
    let mut lane = CudaLane::new(&shares, false)?;
    let (rank, len) = (slot.rank(), setting.size(1 << 18, 1 << 8));
    // Before anything is asked for: on one GPU an allocation would wait for the other rank's call, which waits for this rank.
    let mut arena = Arena::new(gpu, (3 + RANKS) * 4 * len + 512, "a check of sums")?;
    let memory = DeviceBuffer::zeroed(gpu, SIZES[SIZES.len() - 1], "sums to be timed")?;
    let (before, _) = gpu.memory()?;
    let small_sums = Some(lane.join(slot, false)?);
    let (after, _) = gpu.memory()?;
    let mut found = Found { bytes: before.saturating_sub(after), small_sums, ..Found::default() };
    // Whole numbers, so that any order of adding gives the same.
    let value = |rank: usize, i: usize| ((i * 31 + rank * 7) % 97) as f32;
    let sum = |i| (0..RANKS).map(|rank| value(rank, i)).sum::<f32>();
    let floats: Vec<f32> = (0..len).map(|i| value(rank, i)).collect();
    let halves: Vec<half::bf16> = floats.iter().map(|x| half::bf16::from_f32(*x)).collect();
    let words: Vec<u32> = (0..len as u32).map(|i| 0xff80_0000 ^ i ^ rank as u32).collect();
    let [floats_at, halves_at, words_at] = [arena.put(&floats), arena.put(&halves), arena.put(&words)];
    let all_at = arena.reserve::<u32>(RANKS * len).0;
    lane.send(&mut arena)?;
    lane.all_reduce_sum(floats_at, len, Element::F32)?;
    lane.all_reduce_sum(halves_at, len, Element::Bf16)?;
    lane.all_gather(words_at, all_at, len)?;
    lane.fetch(&mut arena)?;
    lane.wait(&mut || {})?;
    // What comes back stands where it was put.
    arena.clear();
    let floats = arena.reserve::<f32>(len).1;
    let halves = arena.reserve::<half::bf16>(len).1;
    arena.reserve::<u32>(len);
    let all = arena.reserve::<u32>(RANKS * len).1;
    found.sums = arena.get::<f32>(floats).iter().enumerate().all(|(i, x)| *x == sum(i));
    found.halves = arena.get::<half::bf16>(halves).iter().enumerate().all(|(i, x)| x.to_f32() == sum(i));
    let word = |at: usize| 0xff80_0000 ^ (at % len) as u32 ^ (at / len) as u32;
    found.gathered = arena.get::<u32>(all).iter().enumerate().all(|(at, x)| *x == word(at));
    // Graphs go when the other rank has ended too: destroying one may wait for the GPU.
    let mut graphs = Vec::new();
    if lane.captures_sums(2) {
        let [first, second, _] = both;
        found.replayed = Some(replayed(&mut lane, &mut arena, first, &mut graphs)?);
        if shares.len() > 1 {
            lane.work_on(1)?;
            found.on_partition = Some(replayed(&mut lane, &mut arena, second, &mut graphs)?);
            lane.work_on(0)?;
        }
    }
    for bytes in sizes(setting) {
        let calls = setting.size(CALLS, 2);
        let mut time = 0.0;
        // The first round opens the ways.
        for _ in 0..2 {
            let started = Instant::now();
            for _ in 0..calls {
                lane.all_reduce_sum(memory.ptr(), bytes / 4, Element::F32)?;
            }
            lane.wait(&mut || {})?;
            time = started.elapsed().as_secs_f64() / calls as f64;
        }
        found.us.push(time * 1e6);
    }
    meet(&both[2]);
    Ok(found)
}

/// Waits for the other rank, which comes too unless it has failed: what is captured may be compiled or loaded, for which the driver may wait for the GPU.
fn meet(come: &AtomicUsize) {
    let begun = Instant::now();
    come.fetch_add(1, SeqCst);
    while come.load(SeqCst) < RANKS && begun.elapsed() < PATIENT {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether a sum that was captured is right each time that it runs.
fn replayed(
    lane: &mut CudaLane,
    arena: &mut Arena,
    come: &AtomicUsize,
    graphs: &mut Vec<Graph>,
) -> Result<bool, CudaError> {
    const TIMES: i32 = 3;
    arena.clear();
    let at = arena.put(&[1.0, 10.0 * (lane.rank() + 1) as f32]);
    lane.send(arena)?;
    lane.wait(&mut || {})?;
    lane.begin_capture()?;
    lane.all_reduce_sum(at, 2, Element::F32)?;
    let graph = lane.end_capture()?;
    meet(come);
    for _ in 0..TIMES {
        lane.replay(&graph)?;
    }
    lane.fetch(arena)?;
    lane.wait(&mut || {})?;
    graphs.push(graph);
    arena.clear();
    let place = arena.reserve::<f32>(2).1;
    // Both have the sum behind the first, and twice as much behind each other.
    let doubled = (RANKS as f32).powi(TIMES - 1);
    Ok(arena.get::<f32>(place) == [2.0 * doubled, 30.0 * doubled])
}

/// The second rank joins and never calls: the first must hear of it at the deadline, and its lane be free for other work.
fn lost(ordinals: [usize; RANKS], terms: GroupTerms, way: &str, report: &mut Report<'_>) -> CheckResult {
    let over = Barrier::new(RANKS);
    let found = on_both(ordinals, terms, |gpu, slot| {
        let mut lane = CudaLane::new(&[Share::whole(gpu)], false)?;
        let memory = DeviceBuffer::zeroed(gpu, 4096, "a sum that is not to be")?;
        lane.join(slot, false)?;
        if lane.rank() > 0 {
            over.wait();
            return Ok(None);
        }
        let started = Instant::now();
        let asked = lane.all_reduce_sum(memory.ptr(), 1024, Element::F32);
        let noticed = asked.and_then(|()| lane.wait(&mut || {}));
        let took = started.elapsed().as_secs_f64();
        let freed = lane.clear(memory.ptr(), 4096).and_then(|()| {
            drop(lane);
            gpu.finish()
        });
        over.wait();
        let words = noticed.err().map_or_else(String::new, |error| error.to_string());
        Ok(Some((words, took, freed.is_ok())))
    })?;
    let (words, took, freed) = found.into_iter().flatten().next().ok_or("no first rank")?;
    report.right(
        format!("a rank that does not come, {way}: {words}"),
        words.contains("rank 1 of 2 has not come"),
    );
    report.timed("noticed after", took, "s", Some(LOST.as_secs_f64()));
    report.right(format!("the GPU goes on without it, {way}"), freed);
    Ok(())
}
