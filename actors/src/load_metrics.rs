//! The engine's load view in the words of the metrics: names, units, descriptions.

use metrics::{Counter, Gauge, Unit, describe_counter, describe_gauge};

use faser_engine::{K_LIMIT, LoadView, PoolView};

use crate::meter::Meter;

/// Handles of all metrics that follow from a `LoadView`. Publishing the same view twice changes nothing, so anyone may
/// do it at any time.
pub(crate) struct LoadMetrics {
    running: Gauge,
    waiting: Gauge,
    target_pool: PoolGauges,
    draft_pool: PoolGauges,
    submitted: Counter,
    refused: Counter,
    finished: Counter,
    cancelled: Counter,
    failed: Counter,
    preemptions: Counter,
    prompt_tokens: Counter,
    prefix_hits: Counter,
    output_tokens: Counter,
    draft_passes: Counter,
    target_passes: Counter,
    target_rows: Counter,
    drafts: Counter,
    draft_tokens: Counter,
    accepted_tokens: Counter,
    copied_tokens: Counter,
    copied_accepted_tokens: Counter,
    late_drafts: Counter,
    chunks_cancelled: Counter,
    overlapped_passes: Counter,
    gated_passes: Counter,
    late_chunks: Counter,
    rows_pruned: Counter,
    pruned_in_vain: Counter,
    partition: Gauge,
    predicted_verify_time: Gauge,
    verify_time_error: Gauge,
    calibrated: Counter,
    calibration_log_loss: Gauge,
    chunks_by_length: [Counter; K_LIMIT + 1],
    accepted_per_position: [Counter; K_LIMIT],
    proposed_per_position: [Counter; K_LIMIT],
}

struct PoolGauges {
    total: Gauge,
    free: Gauge,
    cached: Gauge,
    usage: Gauge,
}

impl LoadMetrics {
    /// Describes and registers everything with the recorder that is installed now.
    pub(crate) fn new(meter: &Meter) -> LoadMetrics {
        describe_pools();
        describe_passes();
        LoadMetrics {
            running: count_now(
                meter,
                "faser_requests_running",
                "sequences that hold KV and are being decoded",
            ),
            waiting: count_now(
                meter,
                "faser_requests_waiting",
                "sequences that wait for admission, preempted ones included",
            ),
            target_pool: PoolGauges::new(meter, "target"),
            draft_pool: PoolGauges::new(meter, "draft"),
            submitted: meter.counts("faser_requests_submitted", Unit::Count, "requests taken"),
            refused: meter.counts("faser_requests_refused", Unit::Count, "requests refused by the engine"),
            finished: meter.counts(
                "faser_requests_finished",
                Unit::Count,
                "requests ended by a stop token or their length",
            ),
            cancelled: meter.counts(
                "faser_requests_cancelled",
                Unit::Count,
                "requests cancelled, most often by a disconnect",
            ),
            failed: meter.counts(
                "faser_requests_failed",
                Unit::Count,
                "requests given up because the device failed under them",
            ),
            preemptions: meter.counts(
                "faser_preemptions",
                Unit::Count,
                "times a sequence lost its KV to others, to be recomputed",
            ),
            prompt_tokens: meter.counts(
                "faser_prompt_tokens",
                Unit::Count,
                "prompt tokens of admitted requests",
            ),
            prefix_hits: meter.counts(
                "faser_prefix_cache_hit_tokens",
                Unit::Count,
                "prompt tokens whose target KV came from the prefix cache",
            ),
            output_tokens: meter.counts("faser_output_tokens", Unit::Count, "tokens emitted"),
            draft_passes: meter.with("lane", "draft").counter("faser_passes"),
            target_passes: meter.with("lane", "verify").counter("faser_passes"),
            target_rows: meter.counts("faser_target_rows", Unit::Count, "rows of all verify passes"),
            drafts: meter.counts(
                "faser_spec_decode_num_drafts",
                Unit::Count,
                "verified chunks with at least one proposal",
            ),
            draft_tokens: meter.counts(
                "faser_spec_decode_num_draft_tokens",
                Unit::Count,
                "proposals verified",
            ),
            accepted_tokens: meter.counts(
                "faser_spec_decode_num_accepted_tokens",
                Unit::Count,
                "proposals accepted",
            ),
            copied_tokens: meter.counts(
                "faser_spec_decode_num_copied_tokens",
                Unit::Count,
                "proposals verified that were copied from the text before or from a prediction, and cost no draft step",
            ),
            copied_accepted_tokens: meter.counts(
                "faser_spec_decode_num_copied_accepted_tokens",
                Unit::Count,
                "copied proposals accepted",
            ),
            late_drafts: meter.counts(
                "faser_spec_decode_num_late_draft_tokens",
                Unit::Count,
                "proposals that came when their sequence had moved on or ended",
            ),
            chunks_cancelled: meter.counts(
                "faser_chunks_cancelled",
                Unit::Count,
                "chunks drafted past the frontier that fell with a rejection in front of them",
            ),
            overlapped_passes: meter.counts(
                "faser_overlapped_passes",
                Unit::Count,
                "verify passes beside which the draft lane drafted on",
            ),
            gated_passes: meter.counts(
                "faser_gated_passes",
                Unit::Count,
                "verify passes in which proposals were tested between layers",
            ),
            late_chunks: meter.counts(
                "faser_late_chunks",
                Unit::Count,
                "verify chunks that sat out, since it was not known in time what their grammar allows",
            ),
            rows_pruned: meter.counts(
                "faser_rows_pruned",
                Unit::Count,
                "proposals whose rows left a verify pass before its end",
            ),
            pruned_in_vain: meter.counts(
                "faser_chunks_pruned_in_vain",
                Unit::Count,
                "chunks that lost rows although the first of them would have been accepted",
            ),
            partition: count_now(
                meter,
                "faser_partition",
                "partition of the last verify pass, 0 for the whole device",
            ),
            predicted_verify_time: seconds_total(
                meter,
                "faser_verify_time_predicted_seconds_total",
                "times that the cost tables predicted for the verify passes done",
            ),
            verify_time_error: seconds_total(
                meter,
                "faser_verify_time_error_seconds_total",
                "differences between the predicted and the measured time of each verify pass, either way",
            ),
            calibrated: meter.counts(
                "faser_calibration_proposals",
                Unit::Count,
                "verified proposals whose predicted survival was put to the test",
            ),
            calibration_log_loss: calibration_log_loss(meter),
            chunks_by_length: by_length(meter),
            accepted_per_position: per_position(
                meter,
                "faser_spec_decode_num_accepted_tokens_per_pos",
                "proposals accepted, by their place in the chunk, counted from 0",
            ),
            proposed_per_position: per_position(
                meter,
                "faser_spec_decode_num_draft_tokens_per_pos",
                "proposals verified, by their place in the chunk, counted from 0",
            ),
        }
    }

    /// Sets every gauge and brings every counter to the view's totals.
    pub(crate) fn publish(&self, view: &LoadView) {
        self.running.set(view.running as f64);
        self.waiting.set(view.waiting as f64);
        self.partition.set(view.partition as f64);
        self.target_pool.publish(view.target_pool);
        self.draft_pool.publish(view.draft_pool);
        self.calibration_log_loss.set(view.calibration.log_loss_nats);
        let totals = &view.totals;
        self.predicted_verify_time.set(totals.predicted_verify_time.as_secs_f64());
        self.verify_time_error.set(totals.verify_time_error.as_secs_f64());
        for (counter, value) in [
            (&self.submitted, totals.submitted),
            (&self.refused, totals.refused),
            (&self.finished, totals.finished),
            (&self.cancelled, totals.cancelled),
            (&self.failed, totals.failed),
            (&self.preemptions, totals.preemptions),
            (&self.prompt_tokens, totals.prompt_tokens),
            (&self.prefix_hits, totals.cached_prompt_tokens),
            (&self.output_tokens, totals.output_tokens),
            (&self.draft_passes, totals.draft_passes),
            (&self.target_passes, totals.target_passes),
            (&self.target_rows, totals.target_rows),
            (&self.drafts, totals.drafts),
            (&self.draft_tokens, totals.draft_tokens),
            (&self.accepted_tokens, totals.accepted_tokens),
            (&self.copied_tokens, totals.copied_tokens),
            (&self.copied_accepted_tokens, totals.copied_accepted_tokens),
            (&self.late_drafts, totals.late_drafts),
            (&self.chunks_cancelled, totals.chunks_cancelled),
            (&self.overlapped_passes, totals.overlapped_passes),
            (&self.gated_passes, totals.gated_passes),
            (&self.late_chunks, totals.late_chunks),
            (&self.rows_pruned, totals.rows_pruned),
            (&self.pruned_in_vain, totals.pruned_in_vain),
            (&self.calibrated, view.calibration.observed),
        ] {
            counter.absolute(value);
        }
        let accepted = self.accepted_per_position.iter().zip(totals.accepted_per_position);
        let proposed = self.proposed_per_position.iter().zip(totals.proposed_per_position);
        let lengths = self.chunks_by_length.iter().zip(totals.chunks_by_length);
        accepted.chain(proposed).chain(lengths).for_each(|(counter, value)| counter.absolute(value));
    }
}

impl PoolGauges {
    fn new(meter: &Meter, model: &'static str) -> PoolGauges {
        let meter = meter.with("model", model);
        PoolGauges {
            total: meter.gauge("faser_kv_blocks_total"),
            free: meter.gauge("faser_kv_blocks_free"),
            cached: meter.gauge("faser_kv_blocks_cached"),
            usage: meter.gauge("faser_kv_usage_ratio"),
        }
    }

    fn publish(&self, pool: PoolView) {
        self.total.set(pool.total as f64);
        self.free.set(pool.free as f64);
        self.cached.set(pool.cached as f64);
        self.usage.set(pool.total.saturating_sub(pool.free) as f64 / pool.total.max(1) as f64);
    }
}

fn describe_pools() {
    describe_gauge!("faser_kv_blocks_total", Unit::Count, "KV blocks of the pool");
    describe_gauge!("faser_kv_blocks_free", Unit::Count, "KV blocks no sequence holds, cached ones included");
    describe_gauge!(
        "faser_kv_usage_ratio",
        Unit::Count,
        "share of the KV blocks that sequences hold, 0 to 1"
    );
    describe_gauge!("faser_kv_blocks_cached", Unit::Count, "KV blocks that hold a prefix for later requests");
}

fn describe_passes() {
    describe_counter!("faser_passes", Unit::Count, "plans a lane has finished");
}

fn count_now(meter: &Meter, name: &'static str, text: &'static str) -> Gauge {
    meter.shows(name, Unit::Count, text)
}

/// A sum of seconds. It never goes down, but counters here hold whole numbers only: so it is a gauge.
fn seconds_total(meter: &Meter, name: &'static str, text: &'static str) -> Gauge {
    meter.shows(name, Unit::Seconds, text)
}

fn calibration_log_loss(meter: &Meter) -> Gauge {
    const NAME: &str = "faser_calibration_log_loss";
    describe_gauge!(NAME, "mean log-loss of what was predicted of proposals, in nats; 0 before the first");
    meter.gauge(NAME)
}

fn per_position(meter: &Meter, name: &'static str, text: &'static str) -> [Counter; K_LIMIT] {
    describe_counter!(name, Unit::Count, text);
    std::array::from_fn(|position| meter.with("position", position.to_string()).counter(name))
}

fn by_length(meter: &Meter) -> [Counter; K_LIMIT + 1] {
    const NAME: &str = "faser_chunks_by_length";
    describe_counter!(NAME, Unit::Count, "verified chunks, by their number of proposals k");
    std::array::from_fn(|k| meter.with("k", k.to_string()).counter(NAME))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use faser_engine::CalibrationView;

    use super::*;
    use crate::ledger::Ledger;

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
        assert_eq!(ledger.counted("faser_spec_decode_num_accepted_tokens"), 42);
        assert_eq!(ledger.counted("faser_spec_decode_num_accepted_tokens_per_pos{position=2}"), 7);
        assert_eq!(ledger.counted("faser_spec_decode_num_accepted_tokens_per_pos{position=15}"), 0);
        assert_eq!(ledger.counted("faser_passes{lane=verify}"), 5);
        assert_eq!(ledger.counted("faser_overlapped_passes"), 4);
        assert_eq!(ledger.counted("faser_rows_pruned"), 8);
        assert_eq!(ledger.counted("faser_chunks_by_length{k=3}"), 6);
        assert_eq!(ledger.counted("faser_chunks_by_length{k=0}"), 0);
        assert_eq!(ledger.gauged("faser_verify_time_predicted_seconds_total"), 1.5);
        assert_eq!(ledger.gauged("faser_verify_time_error_seconds_total"), 0.25);
        assert_eq!(ledger.counted("faser_calibration_proposals"), 9);
        assert_eq!(ledger.gauged("faser_calibration_log_loss"), 0.625);
        assert_eq!(ledger.gauged("faser_kv_blocks_free{model=target}"), 4.0);
        assert_eq!(ledger.gauged("faser_kv_usage_ratio{model=target}"), 0.6);
        assert_eq!(ledger.gauged("faser_kv_usage_ratio{model=draft}"), 0.0);
        assert_eq!(ledger.gauged("faser_requests_running"), 0.0);
    }

    #[test]
    fn every_metric_is_described() {
        let ledger = Ledger::default();
        metrics::with_local_recorder(&ledger, || LoadMetrics::new(&Meter::default()));
        assert_eq!(ledger.undescribed(), [""; 0]);
    }
}
