//! Where traces go: from the config and from OpenTelemetry's own variables.

use std::time::Duration;

use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{
    OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_PROTOCOL, OTEL_EXPORTER_OTLP_TIMEOUT,
    OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, OTEL_EXPORTER_OTLP_TRACES_TIMEOUT, Protocol, SpanExporter,
    WithExportConfig, WithHttpConfig,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};

use crate::bounded::Bounded;
use crate::client::Client;

const SERVICE: &str = "faser";
const SERVICE_NAME: &str = "OTEL_SERVICE_NAME";
const RESOURCE_ATTRIBUTES: &str = "OTEL_RESOURCE_ATTRIBUTES";
const DISABLED: &str = "OTEL_SDK_DISABLED";
const TRACES_PROTOCOL: &str = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL";
/// OTLP's default.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The daemon's end waits so long for the last spans.
const LAST_TIMEOUT: Duration = Duration::from_secs(5);

/// Why no traces can be sent.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// Another protocol is asked for.
    #[error(
        "{variable} is `{value}`, but traces are sent by http/protobuf alone: leave it out, and give the collector's port for that, which is 4318 most often"
    )]
    Protocol {
        /// The variable.
        variable: &'static str,
        /// What it says.
        value: String,
    },
    /// The endpoint is none.
    #[error(
        "traces cannot be sent: {0}. Look at `telemetry.otlp_endpoint` and at the variables OTEL_EXPORTER_OTLP_*"
    )]
    Exporter(String),
}

/// Sends spans.
#[derive(Debug)]
pub struct Traces {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

impl Traces {
    /// Sends them to this collector, such as `http://localhost:4318`; without one to where `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` or
    /// `OTEL_EXPORTER_OTLP_ENDPOINT` says. None if nobody says anything, or `OTEL_SDK_DISABLED` is `true`.
    ///
    /// # Errors
    /// What is said cannot be had.
    pub fn start(endpoint: Option<&str>) -> Result<Option<Traces>, TelemetryError> {
        let named = [OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, OTEL_EXPORTER_OTLP_ENDPOINT];
        let off = variable(DISABLED).is_some_and(|value| value.eq_ignore_ascii_case("true"));
        if off || endpoint.is_none() && !named.iter().any(|name| variable(name).is_some()) {
            return Ok(None);
        }
        for name in [TRACES_PROTOCOL, OTEL_EXPORTER_OTLP_PROTOCOL] {
            let Some(value) = variable(name) else { continue };
            if value != "http/protobuf" {
                return Err(TelemetryError::Protocol { variable: name, value });
            }
            break;
        }
        let exporter = SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_http_client(Client::new(timeout()));
        let exporter = match endpoint {
            Some(endpoint) => exporter.with_endpoint(format!("{}/v1/traces", endpoint.trim_end_matches('/'))),
            None => exporter,
        };
        let exporter = exporter.build().map_err(|error| TelemetryError::Exporter(error.to_string()))?;
        let resource = Resource::builder();
        let named = variable(SERVICE_NAME).is_some()
            || variable(RESOURCE_ATTRIBUTES).is_some_and(|all| all.contains("service.name="));
        let resource = if named { resource } else { resource.with_service_name(SERVICE) };
        let provider = SdkTracerProvider::builder()
            .with_span_processor(Bounded::new(exporter))
            .with_resource(resource.build())
            .build();
        Ok(Some(Traces { tracer: provider.tracer(SERVICE), provider }))
    }

    /// Sends what waits, for a while. It blocks.
    pub fn stop(&self) {
        // What is not taken by then is lost, as is said where traces are explained.
        let _ = self.provider.shutdown_with_timeout(LAST_TIMEOUT);
    }

    pub(crate) fn tracer(&self) -> &SdkTracer {
        &self.tracer
    }
}

fn timeout() -> Duration {
    let named = [OTEL_EXPORTER_OTLP_TRACES_TIMEOUT, OTEL_EXPORTER_OTLP_TIMEOUT];
    let said = named.iter().find_map(|name| variable(name)?.parse().ok());
    said.map_or(TIMEOUT, Duration::from_millis)
}

/// A variable of the environment; an empty one is none, as OpenTelemetry has it.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
