//! The figures of one simulated run.

use std::time::Duration;

use faser_engine::record::PassRecord;
use faser_engine::sim::{Outcome, Report};
use faser_engine::{FinishReason, LaneKind, Usage};
use serde::Serialize;

use crate::{Answered, Attained, Quantiles, Targets};

/// What a policy brought under one load.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Figures {
    /// Requests that ended with all their tokens.
    pub finished: usize,
    /// Requests refused, cancelled or failed.
    pub others: usize,
    /// Tokens committed per second while requests came; of a backlog, while any waited.
    pub tokens_per_s: f64,
    /// Mean time from arrival to the last token, in seconds.
    pub latency_mean_s: f64,
    /// Arrival to last token.
    pub latency: Quantiles,
    /// Arrival to first token.
    pub ttft: Quantiles,
    /// First to last token, over the tokens but one.
    pub tpot: Quantiles,
    /// Mean of TPOT over requests, in milliseconds.
    pub tpot_mean_ms: f64,
    /// Proposals verified per verdict.
    pub k_mean: f64,
    /// Draft steps of a round that drafts, in the mean; the longest k of its sequences, at least.
    pub draft_steps: f64,
    /// Share of the verified proposals that were accepted.
    pub acceptance: f64,
    /// Tokens committed per verdict.
    pub tokens_per_verdict: f64,
    /// Rejected proposals, over all rows of verify passes.
    pub wasted_rows: f64,
    /// Proposals whose rows left a verify pass before its end, over all that were sent.
    pub pruned: f64,
    /// Chunks that lost such rows although the first of them would have been accepted, over all sent proposals.
    pub pruned_in_vain: f64,
    /// How far the cost tables were off the times of verify passes, in the mean, as a share of them.
    pub cost_error: f64,
    /// Proposals drafted and never verified, over all drafted.
    pub unused_drafts: f64,
    /// Share of the busy time in which both lanes worked.
    pub overlap: f64,
    /// Share of the verify passes on each partition, the whole device first.
    pub partitions: Vec<f64>,
    /// Sequences in a verify pass, in the mean over the time of those passes.
    pub batch_mean: f64,
    /// Sequences preempted for want of KV.
    pub preemptions: u64,
    /// Share of the prompts' tokens whose KV came from the prefix cache.
    pub cached_prompt_tokens: f64,
    /// How the latency targets were met, if there are any; clients that left before they had everything do not count.
    pub attained: Option<Attained>,
    /// The run over time.
    pub timeline: Vec<Moment>,
}

/// What happened in one slice of a run.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Moment {
    /// Its end, in seconds.
    pub until_s: f64,
    /// Sequences running, in the mean of its verify passes.
    pub running: f64,
    /// Requests waiting.
    pub waiting: f64,
    /// Proposals per sequence in a verify pass.
    pub k: f64,
    /// Tokens committed per second.
    pub tokens_per_s: f64,
    /// The partition of most of its verify passes, 0 for the whole device.
    pub partition: usize,
}

/// Slices of the timeline.
const SLICES: usize = 240;

impl Figures {
    /// The figures of a run whose requests had these targets; `until` is when its arrivals ended, or none for a backlog.
    pub fn of(report: &Report, until: Option<Duration>, targets: &Targets) -> Figures {
        let totals = &report.view.totals;
        let whole =
            |o: &&Outcome| matches!(o.finish, Some(FinishReason::Length | FinishReason::StopToken(_)));
        let finished: Vec<&Outcome> = report.outcomes.values().filter(whole).collect();
        let latencies: Vec<Duration> = finished.iter().filter_map(|o| o.ended_after).collect();
        let ttft: Vec<Duration> = finished.iter().filter_map(|o| o.first_token_after).collect();
        let tpot: Vec<Duration> = finished.iter().filter_map(|o| tpot_of(o)).collect();
        let answered =
            |o: &Outcome| whole(&o).then_some(Answered { ttft: o.first_token_after?, tpot: tpot_of(o) });
        let left = |o: &&Outcome| o.finish == Some(FinishReason::Cancelled);
        let asked = report.outcomes.values().filter(|o| !left(o)).map(answered);
        let verify: Vec<&PassRecord> =
            report.passes.iter().filter(|pass| pass.lane == LaneKind::Verify).collect();
        let sum = |of: fn(&PassRecord) -> usize| verify.iter().map(|pass| of(pass)).sum::<usize>() as f64;
        let verdicts: usize = report.outcomes.values().map(|o| o.usage.target_passes).sum();
        let drafted: usize =
            report.passes.iter().filter(|pass| pass.lane == LaneKind::Draft).map(|pass| pass.proposals).sum();
        let drafts =
            || report.passes.iter().filter(|pass| pass.lane == LaneKind::Draft && pass.proposals > 0);
        let steps: usize = drafts().map(|pass| pass.steps).sum();
        let prompts = |of: fn(&Usage) -> usize| {
            report.outcomes.values().map(|outcome| of(&outcome.usage)).sum::<usize>() as f64
        };
        let most = verify.iter().map(|pass| pass.partition).max().unwrap_or(0);
        let on = |partition| {
            ratio(verify.iter().filter(|p| p.partition == partition).count() as f64, verify.len() as f64)
        };
        Figures {
            finished: finished.len(),
            others: report.outcomes.len() - finished.len(),
            tokens_per_s: rate(report, &verify, until),
            latency_mean_s: mean(&latencies),
            latency: Quantiles::of(&latencies),
            ttft: Quantiles::of(&ttft),
            tpot: Quantiles::of(&tpot),
            tpot_mean_ms: 1e3 * mean(&tpot),
            k_mean: ratio(sum(|pass| pass.proposals), verdicts as f64),
            draft_steps: ratio(steps as f64, drafts().count() as f64),
            acceptance: ratio(totals.accepted_tokens as f64, totals.draft_tokens as f64),
            tokens_per_verdict: ratio(totals.output_tokens as f64, verdicts as f64),
            wasted_rows: ratio(
                (totals.draft_tokens - totals.accepted_tokens) as f64,
                totals.target_rows as f64,
            ),
            pruned: ratio(totals.rows_pruned as f64, sum(|pass| pass.proposals)),
            pruned_in_vain: ratio(totals.pruned_in_vain as f64, sum(|pass| pass.proposals)),
            cost_error: ratio(totals.verify_time_error.as_secs_f64(), totals.verify_time.as_secs_f64()),
            unused_drafts: ratio((drafted as f64 - totals.draft_tokens as f64).max(0.0), drafted as f64),
            overlap: ratio(report.both_lanes_busy.as_secs_f64(), report.any_lane_busy.as_secs_f64()),
            partitions: (0..=most).map(on).collect(),
            batch_mean: batch_mean(&verify),
            preemptions: totals.preemptions,
            cached_prompt_tokens: ratio(
                prompts(|usage| usage.cached_tokens),
                prompts(|usage| usage.prompt_tokens),
            ),
            attained: targets.attained(asked, report.makespan),
            timeline: timeline(&verify),
        }
    }
}

/// Time per token after the first; none for one token.
fn tpot_of(outcome: &Outcome) -> Option<Duration> {
    let later = u32::try_from(outcome.tokens.len().checked_sub(1).filter(|&later| later > 0)?).ok()?;
    Some((outcome.ended_after? - outcome.first_token_after?) / later)
}

fn batch_mean(verify: &[&PassRecord]) -> f64 {
    let seconds = |pass: &PassRecord| (pass.ended - pass.began).as_secs_f64();
    let sequences = verify.iter().map(|pass| pass.sequences as f64 * seconds(pass)).sum();
    ratio(sequences, verify.iter().map(|pass| seconds(pass)).sum())
}

/// Tokens per second under load, without the drain at the end.
fn rate(report: &Report, verify: &[&PassRecord], until: Option<Duration>) -> f64 {
    match until {
        Some(until) => ratio(report.tokens_counted as f64, until.as_secs_f64()),
        None => {
            let Some(last) = verify.iter().rev().find(|pass| pass.waiting > 0) else {
                return report.tokens_per_second();
            };
            let tokens: usize =
                verify.iter().filter(|pass| pass.ended <= last.ended).map(|pass| pass.committed).sum();
            ratio(tokens as f64, last.ended.as_secs_f64())
        }
    }
}

fn timeline(verify: &[&PassRecord]) -> Vec<Moment> {
    let Some(end) = verify.last().map(|pass| pass.ended.as_secs_f64()) else { return Vec::new() };
    let slice_s = end / SLICES as f64;
    let mut slices = vec![Vec::new(); SLICES];
    for &pass in verify {
        slices[((pass.ended.as_secs_f64() / slice_s) as usize).min(SLICES - 1)].push(pass);
    }
    let moment = |(i, passes): (usize, &Vec<&PassRecord>)| {
        let sum = |of: fn(&PassRecord) -> usize| passes.iter().map(|pass| of(pass)).sum::<usize>() as f64;
        let n = passes.len() as f64;
        let most = passes.iter().map(|pass| pass.partition).max().unwrap_or(0);
        let partition = (0..=most).max_by_key(|p| passes.iter().filter(|pass| pass.partition == *p).count());
        Moment {
            until_s: slice_s * (i + 1) as f64,
            running: ratio(sum(|pass| pass.running), n),
            waiting: ratio(sum(|pass| pass.waiting), n),
            k: ratio(sum(|pass| pass.proposals), sum(|pass| pass.sequences)),
            tokens_per_s: sum(|pass| pass.committed) / slice_s,
            partition: partition.unwrap_or(0),
        }
    };
    slices.iter().enumerate().map(moment).collect()
}

fn mean(times: &[Duration]) -> f64 {
    ratio(times.iter().map(Duration::as_secs_f64).sum(), times.len() as f64)
}

/// Zero over zero is zero: nothing happened.
fn ratio(a: f64, b: f64) -> f64 {
    if b == 0.0 { 0.0 } else { a / b }
}
