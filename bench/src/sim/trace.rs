//! A simulation as Chrome trace JSON, which Perfetto (ui.perfetto.dev) opens: lanes as tracks, passes as slices with their
//! chunks, cancellations as instants, batch and k as counters, and each request a track of its own with k as counter.

use std::collections::BTreeSet;
use std::time::Duration;

use faser_engine::LaneKind;
use faser_engine::sim::{Mark, PassRecord, Report};
use serde_json::{Value, json};

/// Process ids of the trace: the lanes, and the requests.
const LANES: u32 = 1;
const REQUESTS: u32 = 2;
/// Requests that get a counter of their own.
const REQUESTS_SHOWN: usize = 64;

/// The trace of a simulation that was kept in detail: what began at `from` or later, and before `to`.
pub fn chrome_trace(report: &Report, from: Duration, to: Duration) -> Value {
    let within = |at: Duration| (from..to).contains(&at);
    let mut shown = BTreeSet::new();
    let mut events = vec![
        json!({"ph": "M", "pid": LANES, "name": "process_name", "args": {"name": "lanes"}}),
        json!({"ph": "M", "pid": REQUESTS, "name": "process_name", "args": {"name": "requests"}}),
        json!({"ph": "M", "pid": LANES, "tid": 0, "name": "thread_name", "args": {"name": "draft lane"}}),
        json!({"ph": "M", "pid": LANES, "tid": 1, "name": "thread_name", "args": {"name": "verify lane"}}),
    ];
    for pass in report.passes.iter().filter(|pass| within(pass.began)) {
        events.push(slice(pass));
        if pass.lane == LaneKind::Verify {
            let counters = json!({"running": pass.running, "waiting": pass.waiting});
            events.push(counter(LANES, "sequences", pass.began, &counters));
            let k = pass.proposals as f64 / pass.sequences.max(1) as f64;
            events.push(counter(LANES, "mean k", pass.began, &json!({"k": k})));
            for chunk in &pass.chunks {
                if shown.len() < REQUESTS_SHOWN {
                    shown.insert(chunk.seq);
                } else if !shown.contains(&chunk.seq) {
                    continue;
                }
                let name = format!("{} k", chunk.seq);
                let args = json!({"proposed": chunk.proposals, "accepted": chunk.accepted});
                events.push(counter(REQUESTS, &name, pass.began, &args));
            }
        }
    }
    for (seq, outcome) in report.outcomes.iter().filter(|(seq, _)| shown.contains(seq)) {
        let Some(ended) = outcome.ended_after else { continue };
        events.push(json!({
            "ph": "X", "pid": REQUESTS, "tid": seq.0, "name": seq.to_string(),
            "ts": micros(outcome.arrived), "dur": micros(ended),
            "args": {"output_tokens": outcome.usage.output_tokens, "proposed": outcome.usage.proposed,
                     "accepted": outcome.usage.accepted},
        }));
    }
    for (at, mark) in report.marks.iter().filter(|(at, _)| within(*at)) {
        let (name, lane, count) = match mark {
            Mark::ChunksCancelled(n) => ("chunks cancelled", LaneKind::Draft, n),
            Mark::LateDrafts(n) => ("late drafts", LaneKind::Draft, n),
            Mark::Preemptions(n) => ("preemptions", LaneKind::Verify, n),
        };
        events.push(json!({
            "ph": "i", "s": "t", "pid": LANES, "tid": lane as u32, "name": name, "ts": micros(*at),
            "args": {"count": count},
        }));
    }
    json!({"displayTimeUnit": "ms", "traceEvents": events})
}

fn slice(pass: &PassRecord) -> Value {
    let name = match pass.lane {
        LaneKind::Draft => format!("draft {} x {}", pass.sequences, pass.steps),
        LaneKind::Verify => format!("verify {} + {}", pass.rows - pass.proposals, pass.proposals),
    };
    let chunks: Vec<String> = pass
        .chunks
        .iter()
        .map(|chunk| match pass.lane {
            LaneKind::Draft => {
                format!("{} @{}: {} rows, {} proposals", chunk.seq, chunk.start, chunk.rows, chunk.proposals)
            }
            LaneKind::Verify => format!(
                "{} @{}: {} rows, {} of {} accepted, {} pruned",
                chunk.seq, chunk.start, chunk.rows, chunk.accepted, chunk.proposals, chunk.pruned
            ),
        })
        .collect();
    json!({
        "ph": "X", "pid": LANES, "tid": pass.lane as u32, "name": name,
        "ts": micros(pass.began), "dur": micros(pass.ended - pass.began),
        "args": {"partition": pass.partition, "rows": pass.rows, "proposals": pass.proposals,
                 "accepted": pass.accepted, "pruned": pass.pruned, "committed": pass.committed, "chunks": chunks},
    })
}

fn counter(pid: u32, name: &str, at: Duration, args: &Value) -> Value {
    json!({"ph": "C", "pid": pid, "name": name, "ts": micros(at), "args": args})
}

fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}
