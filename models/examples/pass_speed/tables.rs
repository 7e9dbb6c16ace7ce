//! The report as Markdown.

use faser_kernels::Op;

use crate::report::{Figures, Report};

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
        parts(&report.cases);
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
fn parts(cases: &[Figures]) {
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
            own(|op| op == Op::Matmul),
            own(|op| op == Op::Attention),
            own(|op| !matches!(op, Op::Matmul | Op::Attention | Op::Sample)),
            own(|op| op == Op::Sample),
            barriers(|_| true),
            barriers(|op| op == Op::Matmul),
            share(parts.unexplained_ms)
        );
    }
    println!(
        "\nShares of the faster half of the passes. Small ops: embed, rms_norm, rope, store_kv, activate, gather_rows. Barriers: the lane's \
         thread calls its helpers, or waits for those that are still at work. Unexplained: between the ops."
    );
}
