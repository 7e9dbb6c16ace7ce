//! The trace of a request that asks for tokens: which spans it has, and what they say.
//!
//! ```text
//!   POST /v1/completions            from the request's head to the last byte of its answer
//!   ├─ llm_request                  one for each sequence
//!   │  ├─ queue                     until it is admitted
//!   │  ├─ prefill                   until the verdict that brings its first token
//!   │  └─ decode                    until the last one; what its rounds were, in numbers
//!   └─ stream                       from the first byte that is asked for to the last, of a streamed answer
//! ```
//! Names of spans and attributes are vLLM's (vllm/tracing) and those of OpenTelemetry's semantic conventions for generative AI; what
//! neither has begins with `faser.`. No prompt and no output is in them.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use actix_web::dev::ServiceRequest;
use actix_web::http::{Method, StatusCode};
use faser_actors::{ReplicaStream, Sampling, Update};
use faser_engine::Usage;
use faser_telemetry::{KeyValue, RequestSpan, TraceParent, Traces};

tokio::task_local! {
    /// That of the request whose handler runs.
    static CURRENT: Option<RequestTrace>;
}

/// The client's part of what is known of a trace.
pub(crate) fn parent(request: &ServiceRequest) -> Option<TraceParent> {
    TraceParent::of(|name| request.headers().get(name).and_then(|value| value.to_str().ok()))
}

/// Runs a request's handler within its trace.
pub(crate) async fn within<T>(trace: Option<RequestTrace>, handler: impl Future<Output = T>) -> T {
    CURRENT.scope(trace, handler).await
}

/// A request that is traced.
#[derive(Clone, Debug)]
pub(crate) struct RequestTrace {
    span: RequestSpan,
    id: Arc<str>,
}

impl RequestTrace {
    /// The trace of a request of this id that came now; none if nobody wants to see it.
    pub(crate) fn begin(
        traces: Option<&Arc<Traces>>,
        request: &ServiceRequest,
        route: &str,
        id: &str,
        parent: Option<TraceParent>,
    ) -> Option<RequestTrace> {
        let traces = traces?;
        if request.method() != Method::POST || !route.starts_with("/v1/") {
            return None;
        }
        let span = RequestSpan::begin(traces, format!("POST {route}"), parent);
        if span.is_sampled() {
            span.set(vec![
                KeyValue::new("http.request.method", "POST"),
                KeyValue::new("http.route", route.to_owned()),
                KeyValue::new("gen_ai.request.id", id.to_owned()),
            ]);
        }
        Some(RequestTrace { span, id: id.into() })
    }

    /// Its id, in 32 hexadecimal digits.
    pub(crate) fn trace_id(&self) -> String {
        self.span.trace_id()
    }

    /// The head of the answer is there.
    pub(crate) fn answered(&self, status: StatusCode) {
        if self.span.is_sampled() {
            self.span.set(vec![KeyValue::new("http.response.status_code", i64::from(status.as_u16()))]);
            if status.is_server_error() {
                self.span.fail(status.to_string());
            }
        }
    }

    /// The answer has been taken, or its client is gone. `streamed` is when the first of a stream was asked for.
    pub(crate) fn ended(&self, streamed: Option<SystemTime>, sent_bytes: u64, complete: bool) {
        if self.span.is_sampled() {
            let size = i64::try_from(sent_bytes).unwrap_or(i64::MAX);
            let attributes = vec![KeyValue::new("http.response.body.size", size)];
            if let Some(begin) = streamed {
                let _ = self.span.within("stream", (begin, SystemTime::now()), attributes);
            } else {
                self.span.set(attributes);
            }
            if !complete {
                self.span.fail("the client did not take all of it".to_owned());
            }
        }
        self.span.end();
    }
}

/// What a request asks of a sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked<'a> {
    /// The name by which it asks for the model.
    pub(crate) model: &'a str,
    pub(crate) max_new_tokens: usize,
    pub(crate) sampling: &'a Sampling,
    /// Choices per prompt.
    pub(crate) n: usize,
}

/// A sequence of a request that is traced.
#[derive(Clone, Debug)]
pub(crate) struct SequenceTrace {
    request: RequestTrace,
    submitted: SystemTime,
    asked: Vec<KeyValue>,
}

impl SequenceTrace {
    /// One that is submitted now, by the request whose handler runs, to this model; none if that is not traced.
    pub(crate) fn of(model: &str, asks: Asked<'_>) -> Option<SequenceTrace> {
        let request = CURRENT.try_with(Clone::clone).ok().flatten()?;
        if !request.span.is_sampled() {
            return None;
        }
        let asked = vec![
            KeyValue::new("gen_ai.request.id", request.id.to_string()),
            KeyValue::new("gen_ai.request.model", asks.model.to_owned()),
            KeyValue::new("gen_ai.response.model", model.to_owned()),
            KeyValue::new("gen_ai.request.max_tokens", number(asks.max_new_tokens)),
            KeyValue::new("gen_ai.request.temperature", f64::from(asks.sampling.temperature)),
            KeyValue::new("gen_ai.request.top_p", f64::from(asks.sampling.top_p)),
            KeyValue::new("gen_ai.request.n", number(asks.n)),
        ];
        Some(SequenceTrace { request, submitted: SystemTime::now(), asked })
    }

    /// It was cancelled, as a stop string has come or its client is gone: what it took is heard without anybody's waiting.
    pub(crate) fn cancelled(self, mut tokens: ReplicaStream, why: &'static str) {
        // Without a runtime the daemon is at its end, and its traces with it.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        tokens.cancel();
        runtime.spawn(async move {
            while let Some(update) = tokens.next().await {
                if let Update::Finished { usage, .. } = update {
                    return self.ended(why, &usage);
                }
            }
        });
    }

    /// It has ended, for a reason as the API names it.
    pub(crate) fn ended(self, finish: &'static str, usage: &Usage) {
        let SequenceTrace { request, submitted, asked: mut attributes } = self;
        let now = SystemTime::now();
        let moments = usage.moments;
        let since = |begin: Option<Duration>, end: Option<Duration>| end?.checked_sub(begin?);
        let latencies = [
            ("time_in_queue", moments.admitted),
            ("time_to_first_token", moments.first_token),
            ("time_in_model_prefill", since(moments.admitted, moments.first_token)),
            ("time_in_model_decode", since(moments.first_token, moments.last_token)),
            ("time_in_model_inference", since(moments.admitted, moments.last_token)),
            ("e2e", now.duration_since(submitted).ok()),
        ];
        let latencies = latencies.into_iter().filter_map(|(name, time)| {
            Some(KeyValue::new(format!("gen_ai.latency.{name}"), time?.as_secs_f64()))
        });
        attributes.extend(latencies);
        attributes.extend([
            KeyValue::new("gen_ai.usage.prompt_tokens", number(usage.prompt_tokens)),
            KeyValue::new("gen_ai.usage.input_tokens", number(usage.prompt_tokens)),
            KeyValue::new("gen_ai.usage.completion_tokens", number(usage.output_tokens)),
            KeyValue::new("gen_ai.usage.output_tokens", number(usage.output_tokens)),
            KeyValue::new("gen_ai.usage.cached_tokens", number(usage.cached_tokens)),
            KeyValue::new("gen_ai.response.finish_reasons", finish),
        ]);
        let whole = request.span.within("llm_request", (submitted, now), attributes);
        let phase = |name, begin: Option<Duration>, end: Option<Duration>, attributes| {
            if let (Some(begin), Some(end)) = (begin, end) {
                let _ = whole.within(name, (submitted + begin, submitted + end), attributes);
            }
        };
        phase("queue", Some(Duration::ZERO), moments.admitted, Vec::new());
        let computed = number(usage.prompt_tokens.saturating_sub(usage.cached_tokens));
        let computed = vec![KeyValue::new("faser.computed_prompt_tokens", computed)];
        phase("prefill", moments.admitted, moments.first_token, computed);
        let rounds = vec![
            KeyValue::new("faser.verify_passes", number(usage.target_passes)),
            KeyValue::new("faser.proposed_tokens", number(usage.proposed)),
            KeyValue::new("faser.accepted_tokens", number(usage.accepted)),
            KeyValue::new("faser.longest_proposal", number(usage.longest)),
        ];
        phase("decode", moments.first_token, moments.last_token, rounds);
    }
}

fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
