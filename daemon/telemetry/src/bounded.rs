//! The bound of spans that wait to be sent, and what came of them. The SDK's own queue drops too, and tells nobody how many.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use metrics::{Counter, Unit, counter, describe_counter};
use opentelemetry::Context;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Span, SpanData, SpanExporter, SpanProcessor,
};

/// Spans that wait, those that are being sent included.
const MOST_WAITING: usize = 4096;

/// Spans that have ended and are neither sent nor lost.
#[derive(Clone, Debug, Default)]
struct Waiting(Arc<AtomicUsize>);

/// A batch processor that never has more than [`MOST_WAITING`] spans.
#[derive(Debug)]
pub(crate) struct Bounded {
    inner: BatchSpanProcessor,
    waiting: Waiting,
    dropped: Counter,
}

impl Bounded {
    /// What ends goes to this exporter, on a thread of its own. Metrics go to the recorder that is installed by now.
    pub(crate) fn new(exporter: impl SpanExporter + 'static) -> Bounded {
        let counts = |name, text| {
            describe_counter!(name, Unit::Count, text);
            counter!(name)
        };
        let waiting = Waiting::default();
        let exporter = Counted {
            exporter,
            failing: AtomicBool::new(false),
            waiting: waiting.clone(),
            exported: counts("faser_spans_exported_total", "spans of traces that the collector took"),
            failed: counts("faser_spans_failed_total", "spans of traces that the collector did not take"),
        };
        // Of the SDK's variables those of times count; its own queue never fills.
        let config = BatchConfigBuilder::default().with_max_queue_size(2 * MOST_WAITING).build();
        Bounded {
            inner: BatchSpanProcessor::builder(exporter).with_batch_config(config).build(),
            waiting,
            dropped: counts(
                "faser_spans_dropped_total",
                "spans of traces that were dropped, because too many waited to be sent",
            ),
        }
    }
}

impl SpanProcessor for Bounded {
    fn on_start(&self, span: &mut Span, context: &Context) {
        self.inner.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        if self.waiting.0.fetch_add(1, Ordering::Relaxed) >= MOST_WAITING {
            self.waiting.0.fetch_sub(1, Ordering::Relaxed);
            self.dropped.increment(1);
            return;
        }
        self.inner.on_end(span);
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}

/// An exporter that counts.
#[derive(Debug)]
struct Counted<E> {
    exporter: E,
    /// The last batch was not taken.
    failing: AtomicBool,
    waiting: Waiting,
    exported: Counter,
    failed: Counter,
}

impl<E: SpanExporter> SpanExporter for Counted<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        let result = self.exporter.export(batch).await;
        self.waiting.0.fetch_sub(spans, Ordering::Relaxed);
        let failing = self.failing.swap(result.is_err(), Ordering::Relaxed);
        let count = if result.is_ok() { &self.exported } else { &self.failed };
        count.increment(spans as u64);
        // Once, not for each batch.
        match &result {
            Ok(()) if failing => tracing::info!("traces are taken again"),
            Err(error) if !failing => {
                tracing::warn!(%error, "the collector does not take traces, and those are lost until it does");
            }
            _ => {}
        }
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}
