//! From timings to figures, and those as Markdown.

use faser_kernels::Op;
use serde::Serialize;

use crate::Measured;
use crate::options::{Case, Options};
use crate::pass_workload::{Timing, Workload};

#[derive(Serialize)]
pub(crate) struct Report {
    #[serde(flatten)]
    pub(crate) machine: Machine,
    pub(crate) isa: String,
    pub(crate) threads: usize,
    pub(crate) model: String,
    pub(crate) dtype: String,
    pub(crate) layout: String,
    pub(crate) rounds: usize,
    /// What a pass reads of the weights.
    pub(crate) weight_bytes: u64,
    pub(crate) gb_per_s: Spread,
    /// The weights at that bandwidth.
    pub(crate) floor_ms: Spread,
    pub(crate) cases: Vec<Figures>,
}

#[derive(Serialize)]
pub(crate) struct Machine {
    pub(crate) device: String,
    /// Whether every thread was given its own core.
    pub(crate) pinned: bool,
}

/// Of all readings.
#[derive(Serialize, Clone, Copy)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) best: f64,
}

#[derive(Serialize)]
pub(crate) struct Figures {
    pub(crate) context: usize,
    pub(crate) rows: usize,
    /// What a pass reads of keys and values.
    pub(crate) kv_bytes: u64,
    pub(crate) pass_ms: Spread,
    pub(crate) without_sampling_ms: Spread,
    /// Multiplications and additions with the weights, by the median.
    pub(crate) gflop_per_s: f64,
    pub(crate) parts: Parts,
}

/// What the faster half of the passes took, op by op: the mean of a pass.
#[derive(Serialize)]
pub(crate) struct Parts {
    pub(crate) pass_ms: f64,
    pub(crate) ops: Vec<OpFigures>,
    /// Between the ops.
    pub(crate) unexplained_ms: f64,
}

#[derive(Serialize)]
pub(crate) struct OpFigures {
    #[serde(serialize_with = "by_name")]
    pub(crate) op: Op,
    pub(crate) calls: u64,
    /// Without its barriers.
    pub(crate) own_ms: f64,
    pub(crate) barrier_ms: f64,
}

impl Report {
    pub(crate) fn new(
        options: &Options,
        machine: Machine,
        workload: &Workload,
        weight_bytes: u64,
        measured: &Measured,
    ) -> Report {
        let gb_per_s = spread(measured.bandwidths.iter().map(|rate| rate / 1e9), f64::max);
        let floor = |gb_per_s: f64| weight_bytes as f64 / gb_per_s / 1e6;
        Report {
            machine,
            isa: workload.lane().isa().to_string(),
            threads: workload.lane().workers(),
            model: options.model.clone(),
            dtype: options.dtype.to_string(),
            layout: format!("{:?}", options.layout).to_lowercase(),
            rounds: options.rounds,
            weight_bytes,
            gb_per_s,
            floor_ms: Spread { median: floor(gb_per_s.median), best: floor(gb_per_s.best) },
            cases: measured.timings.iter().map(|(case, timings)| figures(workload, *case, timings)).collect(),
        }
    }
}

fn figures(workload: &Workload, case: Case, timings: &[Timing]) -> Figures {
    let of = |part: fn(&Timing) -> f64| spread(timings.iter().map(part), f64::min);
    let pass_ms = of(|timing| timing.whole.as_secs_f64() * 1e3);
    let config = workload.model().config();
    // What a row is multiplied by; of an embedding that is no LM head it has a row.
    let looked_up = if config.tie_embeddings { 0 } else { config.hidden * config.vocab };
    let weights = config.parameters().map_or(0, |(_, active)| active as usize - looked_up);
    Figures {
        context: case.context,
        rows: case.rows,
        kv_bytes: workload.kv_bytes(case),
        pass_ms,
        without_sampling_ms: of(|timing| timing.forward.as_secs_f64() * 1e3),
        gflop_per_s: (2 * case.rows * weights) as f64 / pass_ms.median / 1e6,
        parts: parts(timings),
    }
}

/// Passes that were disturbed say little about shares.
fn parts(timings: &[Timing]) -> Parts {
    let mut timings: Vec<&Timing> = timings.iter().collect();
    timings.sort_by_key(|timing| timing.whole);
    timings.truncate(timings.len().div_ceil(2));
    let mean = |part: &dyn Fn(&Timing) -> u64| {
        timings.iter().map(|timing| part(timing) as f64).sum::<f64>() / timings.len() as f64 / 1e6
    };
    let pass_ms = mean(&|timing| timing.whole.as_nanos() as u64);
    let figures = |op| OpFigures {
        op,
        calls: timings[0].ops.of(op).calls,
        own_ms: mean(&|timing| timing.ops.of(op).total_ns - timing.ops.of(op).barrier_ns),
        barrier_ms: mean(&|timing| timing.ops.of(op).barrier_ns),
    };
    Parts {
        pass_ms,
        ops: Op::all().map(figures).filter(|figures| figures.calls > 0).collect(),
        unexplained_ms: pass_ms - mean(&|timing| timing.ops.sum().total_ns),
    }
}

fn spread(values: impl Iterator<Item = f64>, better: fn(f64, f64) -> f64) -> Spread {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let (low, high) = (values[(values.len() - 1) / 2], values[values.len() / 2]);
    Spread { median: (low + high) / 2.0, best: values.into_iter().reduce(better).unwrap_or(f64::NAN) }
}

fn by_name<S: serde::Serializer>(op: &Op, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(op)
}

/// As Markdown.
pub(crate) fn print(report: &Report, shares: bool) {
    let Report { machine, isa, threads, model, dtype, layout, rounds, gb_per_s, floor_ms, .. } = report;
    let (device, pinned) = (&machine.device, if machine.pinned { "" } else { " (not pinned)" });
    println!(
        "{device}, {threads} threads{pinned}, {isa}; {model} in {dtype}; rows: {layout}; {rounds} rounds\n"
    );
    println!(
        "Floor: a pass reads {:.3} GB of weights. Read bandwidth {:.1} GB/s (median; best {:.1}): {:.2} ms (best {:.2}).\n",
        report.weight_bytes as f64 / 1e9,
        gb_per_s.median,
        gb_per_s.best,
        floor_ms.median,
        floor_ms.best
    );
    passes(report);
    if shares {
        println!();
        shares_of(&report.cases);
    }
}

/// Ratios are of medians, those in brackets of the best.
fn passes(report: &Report) {
    println!(
        "| context | rows | ms per pass | best | without sampling | x 1 row | x floor | GFLOP/s | KV read, MB |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for case in &report.cases {
        let one = report.cases.iter().find(|one| one.rows == 1 && one.context == case.context);
        let against_one = one.map_or("-".to_owned(), |one| {
            ratio(case.pass_ms.median / one.pass_ms.median, case.pass_ms.best / one.pass_ms.best)
        });
        println!(
            "| {} | {} | {:.2} | {:.2} | {:.2} | {against_one} | {} | {:.0} | {:.1} |",
            case.context,
            case.rows,
            case.pass_ms.median,
            case.pass_ms.best,
            case.without_sampling_ms.median,
            ratio(case.pass_ms.median / report.floor_ms.median, case.pass_ms.best / report.floor_ms.best),
            case.gflop_per_s,
            case.kv_bytes as f64 / 1e6
        );
    }
    println!(
        "\nRatios are of medians (of the best). GFLOP/s count multiplications and additions with the weights."
    );
}

fn ratio(median: f64, best: f64) -> String {
    format!("{median:.2} ({best:.2})")
}

/// Shares add up to the whole: barriers are taken out of the ops they end.
fn shares_of(cases: &[Figures]) {
    println!(
        "| context | rows | ms | matmul | attention | small ops | sampling | barriers | of these matmul's | unexplained |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for case in cases {
        let parts = &case.parts;
        let share = |ms: f64| format!("{:.1} %", 100.0 * ms / parts.pass_ms);
        let own = |which: fn(Op) -> bool| {
            share(parts.ops.iter().filter(|figures| which(figures.op)).map(|figures| figures.own_ms).sum())
        };
        let barriers = |which: fn(Op) -> bool| {
            share(
                parts.ops.iter().filter(|figures| which(figures.op)).map(|figures| figures.barrier_ms).sum(),
            )
        };
        println!(
            "| {} | {} | {:.2} | {} | {} | {} | {} | {} | {} | {} |",
            case.context,
            case.rows,
            parts.pass_ms,
            own(|op| matches!(op, Op::Matmul | Op::MatmulExperts)),
            own(|op| op == Op::Attention),
            own(|op| !matches!(op, Op::Matmul | Op::MatmulExperts | Op::Attention | Op::Sample)),
            own(|op| op == Op::Sample),
            barriers(|_| true),
            barriers(|op| matches!(op, Op::Matmul | Op::MatmulExperts)),
            share(parts.unexplained_ms)
        );
    }
    println!(
        "\nShares of the faster half of the passes. Small ops: embed, rms_norm, rope, store_kv, activate, gather_rows. Barriers: the lane's \
         thread calls its helpers, or waits for those that are still at work. Unexplained: between the ops."
    );
}
