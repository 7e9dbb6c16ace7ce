//! The spans of a request: one from its first byte to its last, and those within.

use std::sync::Arc;
use std::time::SystemTime;

use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{SpanKind, Status, TraceContextExt, Tracer};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::propagation::TraceContextPropagator;

use crate::traces::Traces;

/// What a client says of the trace that its request is part of, by W3C's Trace Context: the headers `traceparent` and `tracestate`.
#[derive(Clone, Debug)]
pub struct TraceParent(Context);

impl TraceParent {
    /// From headers, by their names. One that is malformed is none, as the standard has it.
    pub fn of<'h>(header: impl Fn(&str) -> Option<&'h str>) -> Option<TraceParent> {
        let headers = Headers([TRACEPARENT, TRACESTATE].map(|name| (name, header(name))));
        let context = TraceContextPropagator::new().extract_with_context(&Context::new(), &headers);
        context.span().span_context().is_valid().then_some(TraceParent(context))
    }

    /// The trace's id, in 32 hexadecimal digits.
    pub fn trace_id(&self) -> String {
        self.0.span().span_context().trace_id().to_string()
    }
}

const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";

struct Headers<'h>([(&'static str, Option<&'h str>); 2]);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| *name == key).and_then(|(_, value)| *value)
    }

    fn keys(&self) -> Vec<&str> {
        self.0.iter().map(|(name, _)| *name).collect()
    }
}

/// A span of a request. It ends when it is told to, or with its last clone.
#[derive(Clone, Debug)]
pub struct RequestSpan {
    traces: Arc<Traces>,
    context: Context,
}

impl RequestSpan {
    /// The span of a request that came now, within the client's trace, if that has one.
    pub fn begin(traces: &Arc<Traces>, name: String, parent: Option<TraceParent>) -> RequestSpan {
        let parent = parent.map_or_else(Context::new, |parent| parent.0);
        let tracer = traces.tracer();
        let span = tracer.span_builder(name).with_kind(SpanKind::Server);
        let span = tracer.build_with_context(span, &parent);
        RequestSpan { traces: Arc::clone(traces), context: parent.with_span(span) }
    }

    /// The trace's id, in 32 hexadecimal digits.
    pub fn trace_id(&self) -> String {
        self.context.span().span_context().trace_id().to_string()
    }

    /// Whether it will be sent: what it is told is of no use otherwise.
    pub fn is_sampled(&self) -> bool {
        self.context.span().span_context().is_sampled()
    }

    /// Says more of it.
    pub fn set(&self, attributes: Vec<KeyValue>) {
        self.context.span().set_attributes(attributes);
    }

    /// It failed.
    pub fn fail(&self, why: String) {
        self.context.span().set_status(Status::error(why));
    }

    /// It ends now.
    pub fn end(&self) {
        self.context.span().end();
    }

    /// A span within it, which is over.
    #[must_use = "spans within that one have it as their parent"]
    pub fn within(
        &self,
        name: &'static str,
        (begin, end): (SystemTime, SystemTime),
        attributes: Vec<KeyValue>,
    ) -> RequestSpan {
        let tracer = self.traces.tracer();
        let span = tracer.span_builder(name).with_kind(SpanKind::Internal);
        let span = span.with_start_time(begin).with_attributes(attributes);
        let context = self.context.with_span(tracer.build_with_context(span, &self.context));
        context.span().end_with_timestamp(end.max(begin));
        RequestSpan { traces: Arc::clone(&self.traces), context }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traceparent_is_taken_as_the_standard_has_it() {
        let of = |text: &'static str| TraceParent::of(|name| (name == "traceparent").then_some(text));
        let id = "0af7651916cd43dd8448eb211c80319c";
        for (text, sampled) in [
            ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", true),
            ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00", false),
        ] {
            let parent = of(text).expect(text);
            assert_eq!(
                (parent.trace_id().as_str(), parent.0.span().span_context().is_sampled()),
                (id, sampled)
            );
        }
        for text in [
            "",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319x-b7ad6b7169203331-01",
        ] {
            assert!(of(text).is_none(), "{text}");
        }
        assert!(TraceParent::of(|_| None).is_none());
    }
}
