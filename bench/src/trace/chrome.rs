//! A record as Chrome trace JSON, which Perfetto (ui.perfetto.dev) opens: lanes as tracks, passes as slices with their chunks,
//! cancellations as instants with an arrow from the pass that did it, batch and k as counters, and each request as a track of
//! its own.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::ops::Range;
use std::time::Duration;

use faser_engine::record::{ChunkRecord, Mark, PassRecord, Record};
use faser_engine::{EpochMove, LaneKind, SeqId};
use serde_json::{Value, json};

use super::fate::Fates;

/// Process ids of the trace: the lanes, and the requests.
const LANES: u32 = 1;
const REQUESTS: u32 = 2;
/// Requests that get a track of their own.
const REQUESTS_SHOWN: usize = 64;

/// Writes the trace of what began within `window`, event by event: a record may be large. Times in it are microseconds since the
/// moment from which the record's own are counted.
///
/// # Errors
/// What `out` says.
pub fn write_chrome_trace(record: &Record, window: Range<Duration>, out: &mut impl Write) -> io::Result<()> {
    let head = json!({
        "from_s": window.start.as_secs_f64(), "until_s": window.end.as_secs_f64(),
        "cut_short": record.cut_short, "target_layers": record.target_layers,
    });
    write!(out, "{{\"displayTimeUnit\":\"ms\",\"otherData\":{head},\"traceEvents\":[")?;
    let mut first = true;
    Trace { record, window, fates: Fates::of(record) }.events(&mut |event| {
        let separator = if std::mem::take(&mut first) { "\n" } else { ",\n" };
        write!(out, "{separator}{event}")
    })?;
    out.write_all(b"\n]}\n")
}

struct Trace<'a> {
    record: &'a Record,
    window: Range<Duration>,
    fates: Fates<'a>,
}

type Put<'a> = dyn FnMut(Value) -> io::Result<()> + 'a;

impl Trace<'_> {
    fn events(&self, put: &mut Put<'_>) -> io::Result<()> {
        put(name("process_name", LANES, 0, "lanes"))?;
        put(name("process_name", REQUESTS, 0, "requests"))?;
        put(name("thread_name", LANES, LaneKind::Draft as u64, "draft lane"))?;
        put(name("thread_name", LANES, LaneKind::Verify as u64, "verify lane"))?;
        let mut shown = BTreeSet::new();
        for pass in self.record.passes.iter().filter(|pass| self.window.contains(&pass.began)) {
            put(self.slice(pass))?;
            if pass.lane == LaneKind::Verify {
                counters(pass, &mut shown, put)?;
            }
        }
        self.requests(&shown, put)?;
        for (at, mark) in self.record.marks.iter().filter(|(at, _)| self.window.contains(at)) {
            self.mark(*at, mark, &shown, put)?;
        }
        Ok(())
    }

    fn slice(&self, pass: &PassRecord) -> Value {
        let cancelled: BTreeSet<u64> = match pass.lane {
            LaneKind::Draft => pass.chunks.iter().filter_map(|chunk| self.fates.cancelled(chunk)).collect(),
            LaneKind::Verify => BTreeSet::new(),
        };
        let ahead = pass.lane == LaneKind::Draft && pass.partition > 0;
        let mut name = match pass.lane {
            LaneKind::Draft if pass.proposals == 0 && pass.chunks.iter().all(|chunk| chunk.k == 0) => {
                format!("draft prefill {}", pass.rows)
            }
            LaneKind::Draft => format!("draft {} x {}", pass.sequences, pass.steps),
            LaneKind::Verify => {
                format!("verify {} + {}: {}", pass.rows - pass.proposals, pass.proposals, pass.accepted)
            }
        };
        name.push_str(if ahead { " ahead" } else { "" });
        name.push_str(if cancelled.is_empty() { "" } else { ", cancelled" });
        let chunks: Vec<String> = pass.chunks.iter().map(|chunk| words_of(pass.lane, chunk)).collect();
        let mut args = json!({
            "step": pass.step, "partition": pass.partition, "rows": pass.rows, "sequences": pass.sequences,
            "proposals": pass.proposals, "running": pass.running, "waiting": pass.waiting,
            "waited_us": micros(pass.began.saturating_sub(pass.left)),
            "predicted_us": pass.predicted.map(micros), "chunks": chunks,
        });
        match pass.lane {
            LaneKind::Draft => {
                args["steps"] = json!(pass.steps);
                args["past_the_frontier"] = json!(ahead);
                args["cancelled_by_verify_steps"] = json!(cancelled);
            }
            LaneKind::Verify => {
                args["accepted"] = json!(pass.accepted);
                args["committed"] = json!(pass.committed);
                args["pruned"] = json!(pass.pruned);
                args["prune_checkpoints_after_layers"] = json!(pass.prune_checkpoints);
            }
        }
        json!({
            "ph": "X", "pid": LANES, "tid": pass.lane as u32, "name": name,
            "ts": micros(pass.began), "dur": micros(pass.ended - pass.began), "args": args,
        })
    }

    /// The tracks of the requests: from arrival to end, as far as the record knows.
    fn requests(&self, shown: &BTreeSet<SeqId>, put: &mut Put<'_>) -> io::Result<()> {
        let mut lives: BTreeMap<SeqId, (Duration, Duration, Value)> = BTreeMap::new();
        for &seq in shown {
            lives.insert(seq, (self.record.from, self.record.until, json!({})));
        }
        for (at, mark) in &self.record.marks {
            match mark {
                Mark::Arrived(seq) => lives.entry(*seq).and_modify(|life| life.0 = *at),
                Mark::Ended { seq, reason, usage } => lives.entry(*seq).and_modify(|life| {
                    life.1 = *at;
                    life.2 = json!({
                        "reason": format!("{reason:?}"), "output_tokens": usage.output_tokens,
                        "proposed": usage.proposed, "accepted": usage.accepted,
                    });
                }),
                _ => continue,
            };
        }
        for (seq, (began, ended, args)) in lives {
            put(name("thread_name", REQUESTS, seq.0, &seq.to_string()))?;
            put(json!({
                "ph": "X", "pid": REQUESTS, "tid": seq.0, "name": seq.to_string(),
                "ts": micros(began), "dur": micros(ended.saturating_sub(began)), "args": args,
            }))?;
        }
        Ok(())
    }

    fn mark(&self, at: Duration, mark: &Mark, shown: &BTreeSet<SeqId>, put: &mut Put<'_>) -> io::Result<()> {
        let on_lane = |lane: LaneKind, name: &str, args: Value| {
            json!({
                "ph": "i", "s": "t", "pid": LANES, "tid": lane as u32, "name": name, "ts": micros(at),
                "args": args,
            })
        };
        match mark {
            Mark::EpochMoved { moved, by: Some(by) } if moved.cancelled() => {
                let args = json!({
                    "by": format!("the verdict of verify pass {by} on {}", moved.seq),
                    "verify_step": by, "seq": moved.seq.0, "epoch": moved.epoch,
                    "proposals_drafted": moved.unsent, "draft_step_in_flight": moved.drafting,
                });
                put(on_lane(LaneKind::Draft, "chunk cancelled", args))?;
                self.arrow(at, moved, *by, put)
            }
            Mark::EpochMoved { moved, by } if shown.contains(&moved.seq) => put(json!({
                "ph": "i", "s": "t", "pid": REQUESTS, "tid": moved.seq.0, "ts": micros(at),
                "name": if moved.rejected { "rejection" } else { "KV lost" },
                "args": {"epoch": moved.epoch, "verify_step": by, "proposals_lost": moved.unsent},
            })),
            Mark::ChunkCancelled(chunk) => {
                put(on_lane(chunk.lane, "cancel chunk", json!({"step": chunk.step, "seq": chunk.seq.0})))
            }
            Mark::LateDrafts(n) => put(on_lane(LaneKind::Draft, "late drafts", json!({"count": n}))),
            Mark::Preemptions(n) => put(on_lane(LaneKind::Verify, "preemptions", json!({"count": n}))),
            Mark::Refused(seq) => put(on_lane(LaneKind::Verify, "refused", json!({"seq": seq.0}))),
            Mark::DeviceLost => put(on_lane(LaneKind::Verify, "device lost", json!({}))),
            Mark::DeviceReady => put(on_lane(LaneKind::Verify, "device ready", json!({}))),
            Mark::Arrived(_) | Mark::Ended { .. } | Mark::EpochMoved { .. } => Ok(()),
        }
    }

    /// From the pass that rejected to the draft pass that it reached, if that was still at work.
    fn arrow(&self, at: Duration, moved: &EpochMove, by: u64, put: &mut Put<'_>) -> io::Result<()> {
        let pass = |lane, step| {
            let passes = self.record.passes.iter().rev();
            passes.into_iter().find(|pass| (pass.lane, pass.step) == (lane, step))
        };
        let Some(drafting) = moved.drafting.and_then(|step| pass(LaneKind::Draft, step)) else {
            return Ok(());
        };
        let Some(judge) = pass(LaneKind::Verify, by) else { return Ok(()) };
        // An arrow begins and ends inside slices, and a lane may leave at once what was cancelled.
        let within = |pass: &PassRecord| pass.ended.saturating_sub(Duration::from_nanos(1));
        let (tail, head) = (within(judge), within(drafting).min(at));
        if head < tail {
            return Ok(());
        }
        let id = format!("{by}-{}", moved.seq.0);
        let end = |ph: &str, lane: LaneKind, at: Duration| {
            json!({
                "ph": ph, "bp": "e", "id": id, "cat": "cancel", "name": "cancels", "pid": LANES,
                "tid": lane as u32, "ts": micros(at),
            })
        };
        put(end("s", LaneKind::Verify, tail))?;
        put(end("f", LaneKind::Draft, head))
    }
}

/// What is counted when a verify pass begins.
fn counters(pass: &PassRecord, shown: &mut BTreeSet<SeqId>, put: &mut Put<'_>) -> io::Result<()> {
    let counter = |pid: u32, tid: u64, name: &str, args: Value| json!({"ph": "C", "pid": pid, "tid": tid, "name": name, "ts": micros(pass.began), "args": args});
    let lane = pass.lane as u64;
    put(counter(LANES, lane, "sequences", json!({"running": pass.running, "waiting": pass.waiting})))?;
    let k = pass.proposals as f64 / pass.sequences.max(1) as f64;
    put(counter(LANES, lane, "mean k", json!({"k": k})))?;
    for chunk in &pass.chunks {
        if shown.len() < REQUESTS_SHOWN {
            shown.insert(chunk.seq);
        } else if !shown.contains(&chunk.seq) {
            continue;
        }
        let args = json!({"proposed": chunk.proposals, "accepted": chunk.accepted});
        put(counter(REQUESTS, chunk.seq.0, &format!("{} k", chunk.seq), args))?;
    }
    Ok(())
}

fn words_of(lane: LaneKind, chunk: &ChunkRecord) -> String {
    let ChunkRecord { seq, epoch, start, rows, k, proposals, accepted, pruned, .. } = chunk;
    let mut words = format!("{seq} @{start} epoch {epoch}: {rows} rows, k {k}, ");
    words += &match lane {
        LaneKind::Draft => format!("{proposals} proposals"),
        LaneKind::Verify => format!("{accepted} of {proposals} accepted, {pruned} pruned"),
    };
    if *pruned > 0 {
        words += &format!(" by layer {}", chunk.pruned_after);
    }
    words += if chunk.tested { ", tested" } else { "" };
    words += if chunk.cancelled { ", cancelled" } else { "" };
    words += match (chunk.outcome, chunk.taken) {
        (false, _) => "",
        (true, false) => ", an outcome that did not come",
        (true, true) => ", the outcome that came",
    };
    words
}

fn name(what: &str, pid: u32, tid: u64, name: &str) -> Value {
    json!({"ph": "M", "pid": pid, "tid": tid, "ts": 0, "name": what, "args": {"name": name}})
}

fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::example::{example, ms};

    fn events(window: Range<Duration>) -> Vec<Value> {
        let mut out = Vec::new();
        write_chrome_trace(&example(), window, &mut out).unwrap();
        let trace: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(trace["otherData"]["target_layers"], 4);
        trace["traceEvents"].as_array().unwrap().clone()
    }

    #[test]
    fn what_happened_is_in_words_and_numbers() {
        let events = events(ms(0)..ms(60));
        let named = |name: &str| {
            let mut found = events.iter().filter(|event| event["name"] == name);
            found.next().unwrap_or_else(|| panic!("no {name:?}"))
        };
        let verify = named("verify 1 + 3: 2");
        assert_eq!((&verify["ts"], &verify["dur"]), (&json!(13_000.0), &json!(12_000.0)));
        assert_eq!(verify["args"]["chunks"][0], "seq-1 @9 epoch 3: 4 rows, k 3, 2 of 3 accepted, 0 pruned");
        assert_eq!(verify["args"]["prune_checkpoints_after_layers"], json!([2]));
        assert_eq!(verify["args"]["predicted_us"], 1000.0);
        let serial = named("draft 1 x 3");
        assert_eq!(serial["args"]["cancelled_by_verify_steps"], json!([]));
        let ahead = named("draft 1 x 1 ahead, cancelled");
        assert_eq!(ahead["args"]["cancelled_by_verify_steps"], json!([7]));
        let cancelled = named("chunk cancelled");
        assert_eq!((&cancelled["ts"], &cancelled["tid"]), (&json!(25_000.0), &json!(0)));
        assert_eq!(cancelled["args"]["by"], "the verdict of verify pass 7 on seq-1");
        let request = named("seq-1");
        assert_eq!((&request["ts"], &request["dur"]), (&json!(9_000.0), &json!(41_000.0)));
        assert_eq!(request["args"]["output_tokens"], 9);
        let arrow: Vec<_> = events.iter().filter(|event| event["name"] == "cancels").collect();
        assert_eq!(arrow.len(), 2);
        // The second draft ahead is still at work when the arrow reaches it.
        assert!(arrow[1]["ts"].as_f64().is_some_and(|ts| (21_000.0..27_000.0).contains(&ts)));
    }

    #[test]
    fn a_window_has_what_began_in_it() {
        let events = events(ms(20)..ms(30));
        let slices: Vec<_> =
            events.iter().filter(|event| event["ph"] == "X" && event["pid"] == LANES).collect();
        assert_eq!(slices.len(), 1);
        assert_eq!(slices[0]["args"]["step"], 7);
        assert!(events.iter().any(|event| event["name"] == "chunk cancelled"));
        assert!(!events.iter().any(|event| event["name"] == "late drafts"));
    }
}
