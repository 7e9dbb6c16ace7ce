//! What the runners of a service ask of a GPU, recorded: models of any size, whose weights are address space alone.

use std::path::PathBuf;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use faser_actors::{
    CancelSource, CudaBackend, CudaLaneSpec, DraftRunner, MASK_PATIENCE, VerifyRunner, VerifyWork,
};
use faser_gpu_check::{KnownPass, Load, Pass, Shape};
use faser_kernels::cuda::{Gpu, GroupTerms, KvElement, NcclRankSlot, Share, nccl_group};
use faser_models::cuda::{CudaModel, CudaSizes};
use faser_models::{ModelConfig, Shard};

use crate::recorded::{Rows, Step, idle_bytes};

/// Where the fake driver writes to.
pub(crate) const FILE: &str = "FASER_FAKE_RECORD";
/// Plans before the one that counts: by then all graphs are there.
const BEFORE: u64 = 3;
const STEPS: usize = 4;

/// Nobody cancels, but is asked: as in a service.
struct Nobody;

impl CancelSource for Nobody {
    fn cancelled(&mut self, _step: u64, _layers: usize, _out: &mut Vec<usize>) {}
}

/// What the first GPU was asked for in one pass, and the bytes that all of it could not do without: its weights, and what it sees.
pub(crate) fn record(known: &KnownPass) -> (Vec<Step>, f64) {
    let KnownPass { shape, ranks, load, pass, deterministic, kv } = *known;
    let file = PathBuf::from(std::env::var(FILE).expect("a record is written"));
    let config = shape.config().expect("a config.json");
    let ends = Barrier::new(ranks);
    let sizes = CudaSizes { deterministic, ..load.sizes() };
    let of_rank = &|rank, slot| run((rank, ranks), slot, (shape, &config, kv), (load, sizes), pass, &ends);
    let (first, read_bytes) = if ranks == 1 {
        of_rank(0, None)
    } else {
        let slots = nccl_group(ranks, GroupTerms::within(Duration::from_secs(60))).expect("the fake NCCL");
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..)
                .zip(&slots)
                .map(|(rank, slot)| scope.spawn(move || of_rank(rank, Some(slot))))
                .collect();
            let ranks: Vec<_> = threads.into_iter().map(|rank| rank.join().expect("a rank")).collect();
            ranks[0]
        })
    };
    let text = std::fs::read_to_string(&file).expect("the record");
    let (rows, samples) = match pass {
        Pass::Verify => (load.rows, load.rows),
        Pass::Prefill => (load.rows, 1),
        Pass::DraftStep => (1, 1),
    };
    let experts = config.experts().map_or([0.0; 2], |spec| [spec.count as f64, spec.active as f64]);
    let rows = Rows { load, rows, samples, experts };
    let mut lines: Vec<&str> = of_first(&text).skip(first).collect();
    if pass == Pass::DraftStep {
        // The last graph is the last step.
        let step = lines.iter().rposition(|line| line.starts_with("0 graph")).expect("steps are graphs");
        lines.drain(..step);
        lines.retain(|line| !line.starts_with("0 fetch"));
    }
    let steps = lines.into_iter().map(|line| Step::read(line, &rows)).collect();
    (steps, read_bytes)
}

/// The lines of the first GPU.
fn of_first(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| line.starts_with("0 "))
}

/// A rank's runner, which carries out the same plan again and again; how many lines of the first GPU stand before the
/// last time, and the bytes of the rank's weights and of what is seen.
fn run(
    (rank, ranks): (usize, usize),
    slot: Option<&NcclRankSlot>,
    (shape, config, kv): (Shape, &ModelConfig, KvElement),
    (load, sizes): (Load, CudaSizes),
    pass: Pass,
    ends: &Barrier,
) -> (usize, f64) {
    let gpu = Gpu::open(rank, None).expect("the fake GPU");
    let shard = Shard::of(rank, ranks);
    let model = CudaModel::filled(&gpu, (config.clone(), shard), shape.dtype(), |_, _| Ok(()))
        .expect("address space");
    let model = Arc::new(model.with_kv(kv));
    let drafts = pass == Pass::DraftStep;
    let spec = CudaLaneSpec { shares: vec![Share::whole(&gpu)], sizes, drafts, features: None };
    let mut backend = CudaBackend::new(model.clone(), &spec).expect("address space");
    if let Some(slot) = slot {
        backend.join(slot).expect("all ranks join");
    }
    let mut before = 0;
    if drafts {
        let mut runner = DraftRunner::new(backend, MASK_PATIENCE);
        for step in 0..=BEFORE {
            before = lines_so_far(rank, step);
            drop(runner.run(load.draft(step, 0, STEPS)));
        }
        ends.wait();
    } else {
        let mut runner = VerifyRunner::new(backend, MASK_PATIENCE);
        runner.set_cancel_source(Box::new(Nobody));
        let plan = |step| -> VerifyWork {
            if pass == Pass::Prefill { load.prefill(step, 0) } else { load.verify(step, 0) }
        };
        for step in 0..=BEFORE {
            before = lines_so_far(rank, step);
            drop(runner.run(plan(step)));
        }
        // A rank that goes is missed by the others.
        ends.wait();
    }
    let kept = load.kv_bytes(config, kv) / ranks as f64;
    let rows = load.sequences * if drafts { 1 } else { load.rows };
    let idle = idle_bytes(config, shape.dtype(), rows as f64) / ranks as f64;
    (before, model.read_bytes() as f64 - idle + kept)
}

/// Lines of the first GPU, before the last plan of its lane.
fn lines_so_far(rank: usize, step: u64) -> usize {
    if rank > 0 || step < BEFORE {
        return 0;
    }
    let file = std::env::var(FILE).expect("a record is written");
    of_first(&std::fs::read_to_string(file).expect("the record")).count()
}
