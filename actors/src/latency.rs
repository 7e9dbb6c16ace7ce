//! Latencies as the client feels them, measured where tokens leave the dispatcher; under vLLM's names too, if they are wanted.

use std::time::{Duration, Instant};

use faser_engine::{FinishReason, Usage};
use metrics::{Counter, Histogram, Unit, describe_counter, describe_histogram};

use crate::meter::Meter;

/// Upper bounds of histogram buckets for latencies a client feels, in seconds.
pub const LATENCY_BUCKETS: &[f64] =
    &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0];

/// When things happened to one request.
#[derive(Debug)]
pub(crate) struct RequestClock {
    submitted: Instant,
    /// Tokens that it asked for.
    most_tokens: usize,
    /// First and latest emission, and tokens so far.
    emissions: Option<(Instant, Instant, usize)>,
}

impl RequestClock {
    pub(crate) fn new(submitted: Instant, most_tokens: usize) -> RequestClock {
        RequestClock { submitted, most_tokens, emissions: None }
    }

    /// Of a request that has streamed some of its tokens elsewhere, and goes on here from `now` on.
    pub(crate) fn going_on(submitted: Instant, most_tokens: usize, now: Instant) -> RequestClock {
        RequestClock { submitted, most_tokens, emissions: Some((now, now, 1)) }
    }
}

/// The histograms; taken once, so that recording is cheap.
pub(crate) struct Latencies {
    first_token: Histogram,
    emission_gap: Histogram,
    inter_token: Histogram,
    per_output_token: Histogram,
    request: Histogram,
    vllm: Option<VllmRequests>,
}

impl Latencies {
    pub(crate) fn new(meter: &Meter) -> Latencies {
        let described = |name, text| meter.times(name, text);
        Latencies {
            first_token: described(
                "faser_time_to_first_token_seconds",
                "TTFT: from the submission of a request to its first token",
            ),
            emission_gap: described(
                "faser_emission_gap_seconds",
                "time between two emissions of a request; one emission may bring several tokens",
            ),
            inter_token: described(
                "faser_inter_token_latency_seconds",
                "ITL: the emission gap divided among the emission's tokens, counted once per token",
            ),
            per_output_token: described(
                "faser_time_per_output_token_seconds",
                "TPOT: time from the first to the last token of a finished request, per token after the first",
            ),
            request: described(
                "faser_request_latency_seconds",
                "from the submission of a request to its end, for requests that were not cancelled",
            ),
            vllm: meter.vllm().as_ref().map(VllmRequests::new),
        }
    }

    /// `tokens` (at least one) of a request left at `now`.
    pub(crate) fn emitted(&self, clock: &mut RequestClock, now: Instant, tokens: usize) {
        let Some((_, latest, so_far)) = &mut clock.emissions else {
            let took = now.duration_since(clock.submitted);
            self.first_token.record(took);
            self.vllm.iter().for_each(|vllm| vllm.first_token.record(took));
            clock.emissions = Some((now, now, tokens));
            return;
        };
        let gap = now.duration_since(*latest).as_secs_f64();
        self.emission_gap.record(gap);
        for inter_token in self.vllm.iter().map(|vllm| &vllm.inter_token).chain([&self.inter_token]) {
            inter_token.record_many(gap / tokens as f64, tokens);
        }
        *latest = now;
        *so_far += tokens;
    }

    /// A verify pass of so many rows is done.
    pub(crate) fn passed(&self, rows: usize) {
        self.vllm.iter().for_each(|vllm| vllm.iteration.record(rows as f64));
    }

    /// A request ended at `now`.
    pub(crate) fn ended(&self, clock: &RequestClock, now: Instant, reason: FinishReason, usage: &Usage) {
        let took = now.duration_since(clock.submitted);
        self.vllm.iter().for_each(|vllm| vllm.ended(reason, usage, took, clock.most_tokens));
        if reason == FinishReason::Cancelled {
            return;
        }
        self.request.record(took);
        if let Some((first, latest, tokens)) = clock.emissions
            && tokens > 1
        {
            let each = latest.duration_since(first).as_secs_f64() / (tokens - 1) as f64;
            self.per_output_token.record(each);
            self.vllm.iter().for_each(|vllm| vllm.per_output_token.record(each));
        }
    }
}

/// Why a request ended.
const REASONS: [&str; 4] = ["stop", "length", "abort", "error"];

/// What is recorded of each request under vLLM's names.
struct VllmRequests {
    first_token: Histogram,
    inter_token: Histogram,
    per_output_token: Histogram,
    end_to_end: Histogram,
    queue: Histogram,
    prefill: Histogram,
    decode: Histogram,
    inference: Histogram,
    prompt_tokens: Histogram,
    computed_tokens: Histogram,
    generation_tokens: Histogram,
    most_tokens: [Histogram; 2],
    iteration: Histogram,
    /// As [`REASONS`].
    ended: [Counter; 4],
}

impl VllmRequests {
    /// With vLLM's labels.
    fn new(meter: &Meter) -> VllmRequests {
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
                "time between two emissions of a request, divided among the tokens of the second",
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
    fn ended(&self, reason: FinishReason, usage: &Usage, took: Duration, most_tokens: usize) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use faser_engine::Moments;

    use crate::ledger::Ledger;
    use crate::meter::MetricNames;

    #[test]
    fn latencies_are_what_a_client_would_measure() {
        let ledger = Ledger::default();
        let latencies = metrics::with_local_recorder(&ledger, || Latencies::new(&Meter::default()));
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut clock = RequestClock::new(start, 9);
        latencies.emitted(&mut clock, at(2), 1);
        latencies.emitted(&mut clock, at(8), 3);
        latencies.emitted(&mut clock, at(10), 1);
        latencies.ended(&clock, at(11), FinishReason::Length, &Usage::default());
        assert_eq!(ledger.sampled("faser_time_to_first_token_seconds"), [2.0]);
        assert_eq!(ledger.sampled("faser_emission_gap_seconds"), [6.0, 2.0]);
        assert_eq!(ledger.sampled("faser_inter_token_latency_seconds"), [2.0, 2.0, 2.0, 2.0]);
        assert_eq!(ledger.sampled("faser_time_per_output_token_seconds"), [2.0]);
        assert_eq!(ledger.sampled("faser_request_latency_seconds"), [11.0]);
        assert_eq!(ledger.undescribed(), [""; 0]);
    }

    #[test]
    fn the_first_token_is_counted_once_of_a_request_that_moved() {
        let ledger = Ledger::default();
        let latencies = metrics::with_local_recorder(&ledger, || Latencies::new(&Meter::default()));
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut clock = RequestClock::going_on(start, 9, at(5));
        latencies.emitted(&mut clock, at(6), 2);
        latencies.ended(&clock, at(7), FinishReason::Length, &Usage::default());
        assert!(ledger.sampled("faser_time_to_first_token_seconds").is_empty());
        assert_eq!(ledger.sampled("faser_inter_token_latency_seconds"), [0.5, 0.5]);
        assert_eq!(ledger.sampled("faser_time_per_output_token_seconds"), [0.5]);
        assert_eq!(ledger.sampled("faser_request_latency_seconds"), [7.0]);
    }

    #[test]
    fn a_request_without_tokens_has_no_token_latencies() {
        let ledger = Ledger::default();
        let latencies = metrics::with_local_recorder(&ledger, || Latencies::new(&Meter::default()));
        let start = Instant::now();
        let clock = RequestClock::new(start, 9);
        latencies.ended(&clock, start + Duration::from_secs(1), FinishReason::Length, &Usage::default());
        assert_eq!(ledger.sampled("faser_request_latency_seconds"), [1.0]);
        assert!(ledger.sampled("faser_time_to_first_token_seconds").is_empty());
        assert!(ledger.sampled("faser_time_per_output_token_seconds").is_empty());
    }

    #[test]
    fn vllms_names_have_what_vllm_has() {
        let ledger = Ledger::default();
        let names = MetricNames { vllm_model: Some("m".to_owned()), pair: None };
        let latencies = metrics::with_local_recorder(&ledger, || Latencies::new(&Meter::of_pair(&names)));
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut clock = RequestClock::new(start, 9);
        latencies.emitted(&mut clock, at(3), 1);
        latencies.emitted(&mut clock, at(7), 2);
        let second = |seconds| Some(Duration::from_secs(seconds));
        let moments = Moments { admitted: second(1), first_token: second(3), last_token: second(7) };
        let usage = Usage { prompt_tokens: 5, output_tokens: 3, moments, ..Usage::default() };
        latencies.ended(&clock, at(8), FinishReason::StopToken(1), &usage);
        let ours = |name: &str| ledger.sampled(&format!("vllm:{name}{{model_name=m}}{{engine=0}}"));
        for (name, expected) in [
            ("time_to_first_token_seconds", vec![3.0]),
            ("inter_token_latency_seconds", vec![2.0, 2.0]),
            ("request_time_per_output_token_seconds", vec![2.0]),
            ("e2e_request_latency_seconds", vec![8.0]),
            ("request_queue_time_seconds", vec![1.0]),
            ("request_prefill_time_seconds", vec![2.0]),
            ("request_decode_time_seconds", vec![4.0]),
            ("request_inference_time_seconds", vec![6.0]),
            ("request_prompt_tokens", vec![5.0]),
            ("request_generation_tokens", vec![3.0]),
            ("request_max_num_generation_tokens", vec![9.0]),
        ] {
            assert_eq!(ours(name), expected, "{name}");
        }
        let ended = |reason| {
            format!("vllm:request_success_total{{model_name=m}}{{engine=0}}{{finished_reason={reason}}}")
        };
        assert_eq!((ledger.counted(&ended("stop")), ledger.counted(&ended("abort"))), (1, 0));
        // One that was cancelled before it was admitted.
        latencies.ended(&RequestClock::new(start, 9), at(1), FinishReason::Cancelled, &Usage::default());
        assert_eq!((ledger.counted(&ended("abort")), ours("request_queue_time_seconds").len()), (1, 1));
        assert_eq!(ledger.undescribed(), [""; 0]);
    }
}
