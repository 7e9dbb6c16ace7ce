//! Traces of requests by OpenTelemetry: spans with a client's `traceparent` as their parent, sent by OTLP. Nothing waits for them.
//!
//! ```text
//!   spans of a request --bounded queue, full: dropped and counted--> the SDK's thread --OTLP/HTTP, protobuf--> collector
//! ```
//! Absent here: what a request is. Which spans there are, whoever serves requests decides.

#![forbid(unsafe_code)]

mod bounded;
mod client;
mod request_span;
mod traces;

pub use opentelemetry::KeyValue;
pub use request_span::{RequestSpan, TraceParent};
pub use traces::{TelemetryError, Traces};
