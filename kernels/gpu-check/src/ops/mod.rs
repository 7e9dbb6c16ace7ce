//! Every kernel against the CPU's op: cases that run on a GPU, and in tests on fibers of the host.

mod attention_cases;
pub mod case_bench;
mod drafting_cases;
mod expert_cases;
mod markov_cases;
mod matmul_cases;
mod pruning_cases;
mod record_cases;
pub mod reference;
mod row_cases;
mod sampling_cases;
mod tail_cases;

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::{CheckResult, Report, Setting, probes};
use case_bench::{AnyArgs, Bench, Executor};
use faser_kernels::cuda::{Arena, CudaError, CudaLane, DeviceBuffer, Gpu, Launch, Ptr, Share};

/// A case, which panics if it fails.
pub type Case = fn(&Bench<'_>);

macro_rules! cases {
    ($($name:ident ($($slot:ident)?) [$($file:literal),*] [$($module:ident::$case:ident),*];)+) => {
        &[$($((stringify!($case), $module::$case as Case),)*)+]
    };
}

/// All cases by name: those of [`each_op`](faser_kernels::each_op).
pub const CASES: &[(&str, Case)] = faser_kernels::each_op!(cases);

/// Every case on the whole GPU; those after one that fails go on.
///
/// # Errors
/// The GPU cannot be opened, or a case has lost it.
pub fn ops(setting: &Setting, report: &mut Report<'_>) -> CheckResult {
    let gpu = Gpu::open(setting.ordinal, None)?;
    probes::load(&gpu)?;
    for (name, case) in CASES {
        let on_gpu = OnGpu::new(&gpu, setting.size(256 << 20, 48 << 20))?;
        let failed = catch_unwind(AssertUnwindSafe(|| case(&Bench(&on_gpu)))).err();
        match failed {
            None => report.right(name.replace('_', " "), true),
            Some(panic) => {
                let words = words_of(&*panic);
                report.right(format!("{}: {words}", name.replace('_', " ")), false);
                // A context that is lost fails every case after it, for no fault of theirs.
                gpu.memory()?;
            }
        }
    }
    Ok(())
}

/// What a panic says, on one line.
fn words_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without words");
    text.chars().map(|c| if c == '\n' { ' ' } else { c }).take(300).collect()
}

/// Bytes that travel at once.
const STAGED: usize = 4 << 20;

struct OnGpu {
    lane: RefCell<CudaLane>,
    staging: RefCell<Arena>,
    memory: DeviceBuffer,
    used: RefCell<usize>,
}

impl OnGpu {
    fn new(gpu: &Arc<Gpu>, bytes: usize) -> Result<OnGpu, CudaError> {
        Ok(OnGpu {
            lane: RefCell::new(CudaLane::new(&[Share::whole(gpu)], false)?),
            staging: RefCell::new(Arena::new(gpu, STAGED + 64, "the staging of a case")?),
            memory: DeviceBuffer::zeroed(gpu, bytes, "the memory of a case")?,
            used: RefCell::new(0),
        })
    }
}

fn well<T>(result: Result<T, CudaError>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

impl Executor for OnGpu {
    fn store(&self, bytes: &[u8]) -> Ptr {
        let (mut lane, mut staging) = (self.lane.borrow_mut(), self.staging.borrow_mut());
        let at = self.used.replace_with(|used| *used + bytes.len().next_multiple_of(256).max(256));
        let end = *self.used.borrow();
        assert!(end <= self.memory.bytes(), "a case of more than {} bytes", self.memory.bytes());
        for (part, offset) in bytes.chunks(STAGED).zip((at..).step_by(STAGED)) {
            staging.clear();
            let words: Vec<u32> = part.chunks(4).map(word).collect();
            let from = staging.put(&words);
            well(lane.send(&mut staging));
            well(lane.copy(from, self.memory.at(offset), part.len()));
            well(lane.wait(&mut || {}));
        }
        self.memory.at(at)
    }

    fn load(&self, from: Ptr, to: &mut [u8]) {
        let (mut lane, mut staging) = (self.lane.borrow_mut(), self.staging.borrow_mut());
        for (part, offset) in to.chunks_mut(STAGED).zip((0u64..).step_by(STAGED)) {
            staging.clear();
            let (through, place) = staging.reserve::<u32>(part.len().div_ceil(4));
            well(lane.copy(Ptr(from.0 + offset), through, part.len()));
            well(lane.fetch(&mut staging));
            well(lane.wait(&mut || {}));
            for (bytes, word) in part.chunks_mut(4).zip(staging.get::<u32>(place)) {
                bytes.copy_from_slice(&word.to_le_bytes()[..bytes.len()]);
            }
        }
    }

    fn orders(&self) -> &'static [i32] {
        // The GPU's own.
        &[0]
    }

    fn most_shared(&self) -> u32 {
        self.lane.borrow().gpu().info().block_shared_bytes
    }

    fn run(&self, launch: &Launch<AnyArgs>, _order: i32) -> Result<(), String> {
        let mut lane = self.lane.borrow_mut();
        let done = lane.launch(launch).and_then(|()| lane.wait(&mut || {}));
        done.map_err(|error| error.to_string())
    }
}

fn word(bytes: &[u8]) -> u32 {
    let mut all = [0; 4];
    all[..bytes.len()].copy_from_slice(bytes);
    u32::from_le_bytes(all)
}
