//! The engine's load view in the words of the metrics: names, units, descriptions. vLLM's names for what vLLM measures too stand beside
//! faser's own, so that dashboards, autoscalers and gateways that were made for it find what they ask for: names, labels and meanings are those
//! of vllm/v1/metrics and vllm/v1/spec_decode/metrics.py; docs/metrics.md says where ours differ.

use metrics::{Counter, Gauge, Unit, describe_counter, describe_gauge};

use faser_engine::{CANDIDATES, K_LIMIT, LoadView, PoolView};

use crate::meter::Meter;

/// Where a view has a value.
type Value<T, V = LoadView> = fn(&V) -> T;

/// A counter or gauge: its name, vLLM's names for it, what it shows, and its value.
type Declared<T> = (&'static str, &'static [&'static str], &'static str, Value<T>);

const COUNTERS: [Declared<u64>; 32] = [
    ("faser_requests_submitted_total", &[], "requests taken", |view| view.totals.submitted),
    ("faser_requests_refused_total", &[], "requests refused by the engine", |view| view.totals.refused),
    ("faser_requests_finished_total", &[], "requests ended by a stop token or their length", |view| {
        view.totals.finished
    }),
    ("faser_requests_cancelled_total", &[], "requests cancelled, most often by a disconnect", |view| {
        view.totals.cancelled
    }),
    ("faser_requests_failed_total", &[], "requests given up because the device failed under them", |view| {
        view.totals.failed
    }),
    (
        "faser_preemptions_total",
        &["vllm:num_preemptions_total"],
        "times a sequence lost its KV to others, to be recomputed",
        |view| view.totals.preemptions,
    ),
    (
        "faser_prompt_tokens_total",
        &["vllm:prompt_tokens_total", "vllm:prefix_cache_queries_total"],
        "prompt tokens of admitted requests",
        |view| view.totals.prompt_tokens,
    ),
    (
        "faser_prefix_cache_hit_tokens_total",
        &["vllm:prefix_cache_hits_total", "vllm:prompt_tokens_cached_total"],
        "prompt tokens whose target KV came from the prefix cache",
        |view| view.totals.cached_prompt_tokens,
    ),
    ("faser_output_tokens_total", &["vllm:generation_tokens_total"], "tokens emitted", |view| {
        view.totals.output_tokens
    }),
    ("faser_target_rows_total", &[], "rows of all verify passes", |view| view.totals.target_rows),
    (
        "faser_spec_decode_num_drafts_total",
        &["vllm:spec_decode_num_drafts_total"],
        "verified chunks with at least one proposal",
        |view| view.totals.drafts,
    ),
    (
        "faser_spec_decode_num_draft_tokens_total",
        &["vllm:spec_decode_num_draft_tokens_total"],
        "proposals verified",
        |view| view.totals.draft_tokens,
    ),
    (
        "faser_spec_decode_num_accepted_tokens_total",
        &["vllm:spec_decode_num_accepted_tokens_total"],
        "proposals accepted",
        |view| view.totals.accepted_tokens,
    ),
    (
        "faser_spec_decode_num_prompt_lookup_tokens_total",
        &[],
        "proposals verified that came from prompt-lookup (n-gram) or a predicted output, and cost no draft step",
        |view| view.totals.prompt_lookup_tokens,
    ),
    (
        "faser_spec_decode_num_prompt_lookup_accepted_tokens_total",
        &[],
        "prompt-lookup and predicted-output proposals accepted",
        |view| view.totals.prompt_lookup_accepted_tokens,
    ),
    (
        "faser_spec_decode_num_suffix_tokens_total",
        &[],
        "proposals verified that came from past outputs, and cost no draft step",
        |view| view.totals.suffix_tokens,
    ),
    (
        "faser_spec_decode_num_suffix_accepted_tokens_total",
        &[],
        "proposals from past outputs accepted",
        |view| view.totals.suffix_accepted_tokens,
    ),
    (
        "faser_spec_decode_num_late_draft_tokens_total",
        &[],
        "proposals that came when their sequence had moved on or ended",
        |view| view.totals.late_drafts,
    ),
    (
        "faser_chunks_cancelled_total",
        &[],
        "chunks held back or being drafted that a verdict cancelled",
        |view| view.totals.chunks_cancelled,
    ),
    ("faser_overlapped_passes_total", &[], "verify passes beside which the draft lane was to work", |view| {
        view.totals.overlapped_passes
    }),
    ("faser_outcomes_drafted_total", &[], "branches drafted for verdicts yet to come", |view| {
        view.totals.outcomes_drafted
    }),
    ("faser_outcome_verdicts_total", &[], "verdicts on chunks for which branches had been drafted", |view| {
        view.totals.outcome_verdicts
    }),
    (
        "faser_outcome_hits_total",
        &[],
        "those that found their proposals at hand, or a branch for what came",
        |view| view.totals.outcome_hits,
    ),
    (
        "faser_outcome_verdicts_drawn_total",
        &[],
        "of the verdicts, those on requests whose tokens are drawn at a temperature",
        |view| view.totals.outcome_verdicts_drawn,
    ),
    (
        "faser_outcome_hits_drawn_total",
        &[],
        "of the hits, those on requests whose tokens are drawn at a temperature",
        |view| view.totals.outcome_hits_drawn,
    ),
    ("faser_outcomes_taken_total", &[], "hits that found them on a branch", |view| {
        view.totals.outcomes_taken
    }),
    ("faser_draft_steps_cancelled_total", &[], "draft steps of cancelled chunks that no lane ran", |view| {
        view.totals.draft_steps_cancelled
    }),
    (
        "faser_pruning_passes_total",
        &[],
        "verify passes in which proposals were tested between layers",
        |view| view.totals.pruning_passes,
    ),
    (
        "faser_late_chunks_total",
        &[],
        "verify chunks that sat out, since it was not known in time what their grammar allows",
        |view| view.totals.late_chunks,
    ),
    ("faser_rows_pruned_total", &[], "proposals whose rows left a verify pass before its end", |view| {
        view.totals.rows_pruned
    }),
    (
        "faser_chunks_pruned_in_vain_total",
        &[],
        "chunks that lost rows although the first of them would have been accepted",
        |view| view.totals.pruned_in_vain,
    ),
    (
        "faser_calibration_proposals_total",
        &[],
        "proposals whose predicted survival was put to the test, those that were held back too",
        |view| view.calibration.observed,
    ),
];

const GAUGES: [Declared<f64>; 9] = [
    ("faser_suffix_tokens", &[], "tokens of past outputs that are kept to be proposed from", |view| {
        view.suffix.tokens as f64
    }),
    (
        "faser_requests_running",
        &["vllm:num_requests_running"],
        "sequences that hold KV and are being decoded",
        |view| view.running as f64,
    ),
    (
        "faser_requests_waiting",
        &["vllm:num_requests_waiting"],
        "sequences that wait for admission, preempted ones included",
        |view| view.waiting as f64,
    ),
    ("faser_partition", &[], "partition of the last verify pass, 0 for the whole device", |view| {
        view.partition as f64
    }),
    ("faser_pass_rows", &[], "rows of a verify pass beside which somebody decodes, at most", |view| {
        view.steering.pass_rows as f64
    }),
    (
        "faser_displaced_share",
        &[],
        "how far a row is charged the row of a prompt that waits for it, 0 to 1",
        |view| view.steering.displaced_share,
    ),
    (
        "faser_speculation_credit_seconds",
        &[],
        "time that speculation may still lose before it is suspended",
        |view| view.steering.credit_s,
    ),
    (
        "faser_speculation_suspended",
        &[],
        "1 while nothing is proposed, since speculation lost what it may lose",
        |view| f64::from(u8::from(view.steering.suspended)),
    ),
    (
        "faser_kv_short",
        &[],
        "1 while the target's KV is short, so that proposals get no further blocks",
        |view| f64::from(u8::from(view.steering.kv_short)),
    ),
];

/// Sums of seconds. They never go down, but counters here hold whole numbers only: so they are gauges.
const SECONDS: [Declared<f64>; 2] = [
    (
        "faser_verify_time_predicted_seconds_total",
        &[],
        "times that the cost tables predicted for the verify passes done",
        |view| view.totals.predicted_verify_time.as_secs_f64(),
    ),
    (
        "faser_verify_time_error_seconds_total",
        &[],
        "differences between the predicted and the measured time of each verify pass, either way",
        |view| view.totals.verify_time_error.as_secs_f64(),
    ),
];

const LOG_LOSS: &str = "faser_calibration_log_loss";
const PASSES: &str = "faser_passes_total";

/// Of each pool.
const POOL_GAUGES: [(&str, &str, Value<f64, PoolView>); 4] = [
    ("faser_kv_blocks_total", "KV blocks of the pool", |pool| pool.total as f64),
    ("faser_kv_blocks_free", "KV blocks no sequence holds, cached ones included", |pool| pool.free as f64),
    ("faser_kv_blocks_cached", "KV blocks that hold a prefix for later requests", |pool| pool.cached as f64),
    ("faser_kv_usage_ratio", "share of the KV blocks that sequences hold, 0 to 1", PoolView::usage),
];

const VLLM_KV_USAGE: &str = "vllm:kv_cache_usage_perc";
const VLLM_BY_REASON: &str = "vllm:num_requests_waiting_by_reason";
const VLLM_BY_SOURCE: &str = "vllm:prompt_tokens_by_source_total";

/// A label of its own with its value, and what is counted there.
type Labelled<T> = ((&'static str, &'static str), Value<T>);

const VLLM_WAITING: [Labelled<f64>; 2] =
    [(("reason", "capacity"), |view| view.waiting as f64), (("reason", "deferred"), |_| 0.0)];

const VLLM_PROMPT_TOKENS: [Labelled<u64>; 3] = [
    (("source", "local_compute"), |view| {
        view.totals.prompt_tokens.saturating_sub(view.totals.cached_prompt_tokens)
    }),
    (("source", "local_cache_hit"), |view| view.totals.cached_prompt_tokens),
    (("source", "external_kv_transfer"), |_| 0),
];

const VLLM_ACCEPTED_PER_POSITION: &str = "vllm:spec_decode_num_accepted_tokens_per_pos_total";

/// Handles of all metrics that follow from a `LoadView`. Publishing the same view twice changes nothing, so anyone may
/// do it at any time.
pub(crate) struct LoadMetrics {
    counters: Vec<(Counter, Value<u64>)>,
    gauges: Vec<(Gauge, Value<f64>)>,
    /// Of the target, and of the draft; as declared.
    pools: [Vec<Gauge>; 2],
    chunks_by_length: [Counter; K_LIMIT + 1],
    recovered_by_rank: [Counter; CANDIDATES + 1],
    accepted_per_position: [Counter; K_LIMIT],
    proposed_per_position: [Counter; K_LIMIT],
    /// By vLLM's name.
    vllm_accepted_per_position: Option<[Counter; K_LIMIT]>,
}

impl LoadMetrics {
    /// Describes and registers everything with the recorder that is installed now.
    pub(crate) fn new(meter: &Meter) -> LoadMetrics {
        let lanes: [(_, Value<u64>); 2] =
            [("draft", |view| view.totals.draft_passes), ("verify", |view| view.totals.target_passes)];
        describe_counter!(PASSES, Unit::Count, "plans a lane has finished");
        let passes = lanes.map(|(lane, value)| (meter.with("lane", lane).counter(PASSES), value));
        let vllm = meter.vllm();
        let mut counters: Vec<(Counter, Value<u64>)> = passes.into();
        for (name, vllm_names, text, value) in COUNTERS {
            counters.push((meter.counts(name, Unit::Count, text), value));
            let again = vllm.iter().flat_map(|vllm| vllm_names.iter().map(move |name| (vllm, name)));
            counters.extend(again.map(|(vllm, name)| (vllm.counts(name, Unit::Count, text), value)));
        }
        describe_gauge!(
            LOG_LOSS,
            "mean log-loss of what was predicted of proposals, in nats; 0 before the first"
        );
        let mut gauges: Vec<(Gauge, Value<f64>)> =
            vec![(meter.gauge(LOG_LOSS), |view| view.calibration.log_loss_nats)];
        let units = GAUGES.map(|gauge| (Unit::Count, gauge)).into_iter();
        for (unit, (name, vllm_names, text, value)) in
            units.chain(SECONDS.map(|gauge| (Unit::Seconds, gauge)))
        {
            gauges.push((meter.shows(name, unit, text), value));
            let again = vllm.iter().flat_map(|vllm| vllm_names.iter().map(move |name| (vllm, name)));
            gauges.extend(again.map(|(vllm, name)| (vllm.shows(name, unit, text), value)));
        }
        if let Some(vllm) = &vllm {
            describe_gauge!(
                VLLM_KV_USAGE,
                Unit::Count,
                "share of the target's KV blocks that sequences hold, 0 to 1"
            );
            let text = "sequences that wait for admission, by why; the deferred are none here";
            describe_gauge!(VLLM_BY_REASON, Unit::Count, text);
            describe_counter!(VLLM_BY_SOURCE, Unit::Count, "prompt tokens, by where their KV came from");
            let labelled = |(label, value): (&'static str, &'static str)| vllm.with(label, value);
            counters.extend(
                VLLM_PROMPT_TOKENS.map(|(label, value)| (labelled(label).counter(VLLM_BY_SOURCE), value)),
            );
            gauges.extend(VLLM_WAITING.map(|(label, value)| (labelled(label).gauge(VLLM_BY_REASON), value)));
            gauges.push((vllm.gauge(VLLM_KV_USAGE), |view| view.target_pool.usage()));
        }
        POOL_GAUGES.iter().for_each(|(name, text, _)| describe_gauge!(*name, Unit::Count, *text));
        LoadMetrics {
            counters,
            gauges,
            pools: ["target", "draft"].map(|model| {
                let meter = meter.with("model", model);
                POOL_GAUGES.iter().map(|(name, ..)| meter.gauge(name)).collect()
            }),
            chunks_by_length: by_place(
                meter,
                ("k", "faser_chunks_by_length_total"),
                "verified chunks, by their number of proposals k",
            ),
            recovered_by_rank: by_place(
                meter,
                ("rank", "faser_recovered_tokens_by_rank_total"),
                "recovered tokens that the draft's candidates were known for, by their rank among them, counted from 0; the last: none of them",
            ),
            accepted_per_position: by_place(
                meter,
                ("position", "faser_spec_decode_num_accepted_tokens_per_pos_total"),
                "proposals accepted, by their place in the chunk, counted from 0",
            ),
            proposed_per_position: by_place(
                meter,
                ("position", "faser_spec_decode_num_draft_tokens_per_pos_total"),
                "proposals verified, by their place in the chunk, counted from 0",
            ),
            vllm_accepted_per_position: vllm.map(|vllm| {
                let text = "proposals accepted, by their place in the chunk, counted from 0";
                by_place(&vllm, ("position", VLLM_ACCEPTED_PER_POSITION), text)
            }),
        }
    }

    /// Sets every gauge and brings every counter to the view's totals.
    pub(crate) fn publish(&self, view: &LoadView) {
        self.counters.iter().for_each(|(counter, value)| counter.absolute(value(view)));
        self.gauges.iter().for_each(|(gauge, value)| gauge.set(value(view)));
        for (gauges, pool) in self.pools.iter().zip([view.target_pool, view.draft_pool]) {
            gauges.iter().zip(&POOL_GAUGES).for_each(|(gauge, (.., value))| gauge.set(value(&pool)));
        }
        let totals = &view.totals;
        let accepted = self.vllm_accepted_per_position.iter().chain([&self.accepted_per_position]);
        let accepted = accepted.flat_map(|counters| counters.iter().zip(totals.accepted_per_position));
        let proposed = self.proposed_per_position.iter().zip(totals.proposed_per_position);
        let lengths = self.chunks_by_length.iter().zip(totals.chunks_by_length);
        let recovered = self.recovered_by_rank.iter().zip(totals.recovered_ranks);
        accepted
            .chain(proposed)
            .chain(lengths)
            .chain(recovered)
            .for_each(|(counter, value)| counter.absolute(value));
    }
}

/// A counter for each value of a label.
fn by_place<const N: usize>(
    meter: &Meter,
    (label, name): (&'static str, &'static str),
    text: &'static str,
) -> [Counter; N] {
    describe_counter!(name, Unit::Count, text);
    std::array::from_fn(|place| meter.with(label, place.to_string()).counter(name))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use faser_engine::CalibrationView;

    use super::*;
    use crate::ledger::Ledger;
    use crate::meter::MetricNames;

    #[test]
    fn a_view_is_published_exactly_and_any_number_of_times() {
        let ledger = Ledger::default();
        let mut view = LoadView {
            running: 3,
            partition: 2,
            target_pool: PoolView { total: 10, free: 4, cached: 2 },
            calibration: CalibrationView { observed: 9, log_loss_nats: 0.625 },
            ..LoadView::default()
        };
        view.totals.accepted_tokens = 41;
        view.totals.accepted_per_position[2] = 7;
        view.totals.target_passes = 5;
        view.totals.overlapped_passes = 4;
        view.totals.rows_pruned = 8;
        view.totals.chunks_by_length[3] = 6;
        view.totals.predicted_verify_time = Duration::from_millis(1500);
        view.totals.verify_time_error = Duration::from_millis(250);
        metrics::with_local_recorder(&ledger, || {
            let metrics = LoadMetrics::new(&Meter::default());
            metrics.publish(&view);
            metrics.publish(&view);
            view.totals.accepted_tokens = 42;
            view.running = 0;
            metrics.publish(&view);
        });
        assert_eq!(ledger.counted("faser_spec_decode_num_accepted_tokens_total"), 42);
        assert_eq!(ledger.counted("faser_spec_decode_num_accepted_tokens_per_pos_total{position=2}"), 7);
        assert_eq!(ledger.counted("faser_spec_decode_num_accepted_tokens_per_pos_total{position=15}"), 0);
        assert_eq!(ledger.counted("faser_passes_total{lane=verify}"), 5);
        assert_eq!(ledger.counted("faser_overlapped_passes_total"), 4);
        assert_eq!(ledger.counted("faser_rows_pruned_total"), 8);
        assert_eq!(ledger.counted("faser_chunks_by_length_total{k=3}"), 6);
        assert_eq!(ledger.counted("faser_chunks_by_length_total{k=0}"), 0);
        assert_eq!(ledger.gauged("faser_verify_time_predicted_seconds_total"), 1.5);
        assert_eq!(ledger.gauged("faser_verify_time_error_seconds_total"), 0.25);
        assert_eq!(ledger.counted("faser_calibration_proposals_total"), 9);
        assert_eq!(ledger.gauged("faser_calibration_log_loss"), 0.625);
        assert_eq!(ledger.gauged("faser_kv_blocks_free{model=target}"), 4.0);
        assert_eq!(ledger.gauged("faser_kv_usage_ratio{model=target}"), 0.6);
        assert_eq!(ledger.gauged("faser_kv_usage_ratio{model=draft}"), 0.0);
        assert_eq!(ledger.gauged("faser_requests_running"), 0.0);
    }

    #[test]
    fn every_metric_is_described() {
        let ledger = Ledger::default();
        let names = MetricNames { vllm_model: Some("m".to_owned()), pair: None };
        let view = LoadView { running: 3, waiting: 2, ..LoadView::default() };
        metrics::with_local_recorder(&ledger, || LoadMetrics::new(&Meter::of_pair(&names)).publish(&view));
        assert_eq!(ledger.undescribed(), [""; 0]);
        let vllm = |name: &str| ledger.gauged(&format!("vllm:{name}"));
        assert_eq!(vllm("num_requests_running{model_name=m}{engine=0}"), 3.0);
        assert_eq!(vllm("num_requests_waiting_by_reason{model_name=m}{engine=0}{reason=capacity}"), 2.0);
    }
}
