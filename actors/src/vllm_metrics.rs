//! vLLM's names for what vLLM measures too, so that dashboards, autoscalers and gateways that were made for it find what they ask for. Names,
//! labels and meanings are those of vllm/v1/metrics and vllm/v1/spec_decode/metrics.py; docs/metrics.md says where ours differ.

use std::time::Duration;

use faser_engine::{FinishReason, Usage};
use metrics::{Counter, Histogram, Unit, describe_counter, describe_gauge, describe_histogram};

use crate::load_metrics::Value;
use crate::meter::Meter;

pub(crate) const VLLM_KV_USAGE: &str = "vllm:kv_cache_usage_perc";
pub(crate) const VLLM_BY_REASON: &str = "vllm:num_requests_waiting_by_reason";
pub(crate) const VLLM_BY_SOURCE: &str = "vllm:prompt_tokens_by_source_total";

/// A label of its own with its value, and what is counted there.
type Labelled<T> = ((&'static str, &'static str), Value<T>);

pub(crate) const VLLM_WAITING: [Labelled<f64>; 2] =
    [(("reason", "capacity"), |view| view.waiting as f64), (("reason", "deferred"), |_| 0.0)];

pub(crate) const VLLM_PROMPT_TOKENS: [Labelled<u64>; 3] = [
    (("source", "local_compute"), |view| {
        view.totals.prompt_tokens.saturating_sub(view.totals.cached_prompt_tokens)
    }),
    (("source", "local_cache_hit"), |view| view.totals.cached_prompt_tokens),
    (("source", "external_kv_transfer"), |_| 0),
];

/// Describes what vLLM tells otherwise than faser does.
pub(crate) fn describe_vllm() {
    describe_gauge!(
        VLLM_KV_USAGE,
        Unit::Count,
        "share of the target's KV blocks that sequences hold, 0 to 1"
    );
    let text = "sequences that wait for admission, by why; the deferred are none here";
    describe_gauge!(VLLM_BY_REASON, Unit::Count, text);
    describe_counter!(VLLM_BY_SOURCE, Unit::Count, "prompt tokens, by where their KV came from");
}

pub(crate) const VLLM_ACCEPTED_PER_POSITION: &str = "vllm:spec_decode_num_accepted_tokens_per_pos_total";

/// Why a request ended.
const REASONS: [&str; 4] = ["stop", "length", "abort", "error"];

/// What is recorded of each request.
pub(crate) struct VllmRequests {
    pub(crate) first_token: Histogram,
    pub(crate) inter_token: Histogram,
    pub(crate) per_output_token: Histogram,
    end_to_end: Histogram,
    queue: Histogram,
    prefill: Histogram,
    decode: Histogram,
    inference: Histogram,
    prompt_tokens: Histogram,
    computed_tokens: Histogram,
    generation_tokens: Histogram,
    most_tokens: [Histogram; 2],
    pub(crate) iteration: Histogram,
    /// As [`REASONS`].
    ended: [Counter; 4],
}

impl VllmRequests {
    /// With vLLM's labels.
    pub(crate) fn new(meter: &Meter) -> VllmRequests {
        const SUCCESS: &str = "vllm:request_success_total";
        describe_counter!(SUCCESS, Unit::Count, "requests that ended, by why");
        let tokens = |name, text| {
            describe_histogram!(name, Unit::Count, text);
            meter.histogram(name)
        };
        VllmRequests {
            first_token: meter.times(
                "vllm:time_to_first_token_seconds",
                "from the submission of a request to its first token",
            ),
            inter_token: meter.times(
                "vllm:inter_token_latency_seconds",
                "time between two emissions of a request, shared out over the tokens of the second",
            ),
            per_output_token: meter.times(
                "vllm:request_time_per_output_token_seconds",
                "time from the first to the last token of a request, per token after the first",
            ),
            end_to_end: meter
                .times("vllm:e2e_request_latency_seconds", "from the submission of a request to its end"),
            queue: meter.times(
                "vllm:request_queue_time_seconds",
                "from the submission of a request to its admission",
            ),
            prefill: meter.times(
                "vllm:request_prefill_time_seconds",
                "from the admission of a request to its first token",
            ),
            decode: meter
                .times("vllm:request_decode_time_seconds", "from the first token of a request to its last"),
            inference: meter.times(
                "vllm:request_inference_time_seconds",
                "from the admission of a request to its last token",
            ),
            prompt_tokens: tokens("vllm:request_prompt_tokens", "prompt tokens of a request"),
            computed_tokens: tokens(
                "vllm:request_prefill_kv_computed_tokens",
                "prompt tokens of a request whose KV was not cached",
            ),
            generation_tokens: tokens("vllm:request_generation_tokens", "output tokens of a request"),
            most_tokens: [
                tokens(
                    "vllm:request_max_num_generation_tokens",
                    "output tokens that a request might have had",
                ),
                tokens("vllm:request_params_max_tokens", "max_tokens of a request"),
            ],
            iteration: tokens("vllm:iteration_tokens_total", "rows of a verify pass"),
            ended: REASONS.map(|reason| meter.with("finished_reason", reason).counter(SUCCESS)),
        }
    }

    /// A request ended `took` after its submission, of `most_tokens` that it asked for.
    pub(crate) fn ended(&self, reason: FinishReason, usage: &Usage, took: Duration, most_tokens: usize) {
        let place = match reason {
            FinishReason::StopToken(_) => 0,
            FinishReason::Length => 1,
            FinishReason::Cancelled => 2,
            FinishReason::DeviceFailed => 3,
        };
        self.ended[place].increment(1);
        self.end_to_end.record(took);
        self.prompt_tokens.record(usage.prompt_tokens as f64);
        self.computed_tokens.record(usage.prompt_tokens.saturating_sub(usage.cached_tokens) as f64);
        self.generation_tokens.record(usage.output_tokens as f64);
        self.most_tokens.iter().for_each(|most| most.record(most_tokens as f64));
        let moments = usage.moments;
        let began = Some(Duration::ZERO);
        for (times, from, to) in [
            (&self.queue, began, moments.admitted),
            (&self.prefill, moments.admitted, moments.first_token),
            (&self.decode, moments.first_token, moments.last_token),
            (&self.inference, moments.admitted, moments.last_token),
        ] {
            if let (Some(from), Some(to)) = (from, to) {
                times.record(to.saturating_sub(from));
            }
        }
    }
}
