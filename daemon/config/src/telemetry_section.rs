//! `telemetry`: where traces go.

use crate::fields::{FieldError, Fields};

/// Where traces go. OpenTelemetry's own variables count beside it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TelemetryConfig {
    /// The collector, such as `http://localhost:4318`.
    pub otlp_endpoint: Option<String>,
}

pub(super) fn telemetry(mut fields: Fields<'_>) -> Result<TelemetryConfig, FieldError> {
    let otlp_endpoint = fields.text("otlp_endpoint")?;
    let is_url = |text: &str| {
        let host = ["http://", "https://"].iter().find_map(|scheme| text.strip_prefix(scheme));
        host.is_some_and(|host| !host.is_empty() && !host.contains(char::is_whitespace))
    };
    if let Some(text) = otlp_endpoint.filter(|text| !is_url(text)) {
        let wanted = "the address of a collector that speaks OTLP over HTTP, such as http://localhost:4318";
        return Err(fields.wrong_value("otlp_endpoint", wanted, &text.into()));
    }
    let config = TelemetryConfig { otlp_endpoint: otlp_endpoint.map(str::to_owned) };
    fields.finish()?;
    Ok(config)
}
