//! How long passes of a 7B model take, and steps of a draft of half a billion, against the time that reading weights and KV takes.

use std::sync::Arc;

use faser_kernels::cuda::{CudaLane, Gpu, Share, SharePair};

use super::filled::filled;
use super::rates::read_bytes_per_s;
use super::timed_lanes::{ELEMENT, Load, draft_lane, median_seconds, shape, verify_lane};
use super::{CheckResult, Report, Setting, probes};

const ROWS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
const CONTEXTS: [usize; 2] = [512, 4096];
/// Draft steps of a plan.
const STEPS: usize = 4;

/// Passes by the runners of a service: rows of as many sequences, then rows of one; and draft plans.
///
/// # Errors
/// The GPU cannot be opened, or its memory is short.
pub fn passes(setting: &Setting, report: &mut Report<'_>) -> CheckResult {
    let gpu = Gpu::open(setting.ordinal, None)?;
    probes::load(&gpu)?;
    let bandwidth = read_bytes_per_s(&mut CudaLane::new(&[Share::whole(&gpu)], false)?, setting)?;
    report.timed("a kernel that only reads", bandwidth / 1e9, "GB/s", None);
    let whole = [SharePair { draft: Share::whole(&gpu), verify: Share::whole(&gpu) }];
    let rows = setting.size(&ROWS[..], &ROWS[..2]);
    let contexts = setting.size(CONTEXTS, [20, 40]);
    let model = |draft| filled(&gpu, shape(draft, setting.small, 8192), ELEMENT.dtype()).map(Arc::new);

    let target = model(false)?;
    report.timed("weights that a verify pass reads", target.read_bytes() as f64 / 1e9, "GB", None);
    for context in contexts {
        for &rows in rows {
            let (apart, together) =
                (Load { sequences: rows, rows: 1, context }, Load { sequences: 1, rows, context });
            for load in [apart, together].into_iter().take(rows.min(2)) {
                let lane = verify_lane(&target, &whole, load.sizes())?;
                let mut step = 0..;
                let took = median_seconds(setting.small, || {
                    lane.begin(load.verify(step.next().unwrap_or(0), 0));
                    lane.wait()
                })?;
                let bytes = target.read_bytes() as f64 + load.kv_bytes(target.config(), target.kv());
                let what = format!("verify: {} x {} rows at {context}", load.sequences, load.rows);
                report.timed(what, took * 1e3, "ms", Some(bytes / bandwidth * 1e3));
            }
        }
    }
    drop(target);
    let draft = model(true)?;
    report.timed("weights that a draft step reads", draft.read_bytes() as f64 / 1e9, "GB", None);
    for context in contexts {
        for &sequences in rows {
            let load = Load { sequences, rows: STEPS + 1, context };
            let lane = draft_lane(&draft, &whole, load.sizes())?;
            let mut step = 0..;
            let took = median_seconds(setting.small, || {
                lane.begin(load.draft(step.next().unwrap_or(0), 0, STEPS));
                lane.wait()
            })?;
            let bytes = draft.read_bytes() as f64 + load.kv_bytes(draft.config(), draft.kv());
            let what = format!("draft: a step of {STEPS} of {sequences} rows at {context}");
            report.timed(what, took / STEPS as f64 * 1e3, "ms", Some(bytes / bandwidth * 1e3));
        }
    }
    Ok(())
}
