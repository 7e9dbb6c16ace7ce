//! Installs the recorder that /metrics is rendered from.

use std::sync::Mutex;
use std::sync::PoisonError;

use faser_actors::{LANE_BUCKETS, LATENCY_BUCKETS};
use metrics::Label;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use crate::device::Machine;
use crate::error::DaemonError;

/// Installs the recorder of this process, at the first call; later calls return the same.
///
/// # Errors
/// Another recorder is there already.
pub fn install() -> Result<PrometheusHandle, DaemonError> {
    static INSTALLED: Mutex<Option<PrometheusHandle>> = Mutex::new(None);
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(handle) = &*installed {
        return Ok(handle.clone());
    }
    let lane = ["faser_lane_gap_seconds", "faser_pass_seconds"].map(|name| Matcher::Full(name.to_owned()));
    let builder = lane
        .into_iter()
        .try_fold(PrometheusBuilder::new(), |builder, matcher| {
            builder.set_buckets_for_metric(matcher, LANE_BUCKETS)
        })
        .and_then(|builder| {
            builder.set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), LATENCY_BUCKETS)
        })
        .map_err(|err| DaemonError::Metrics(err.to_string()))?;
    let handle = builder.install_recorder().map_err(|err| DaemonError::Metrics(err.to_string()))?;
    metrics::describe_counter!("faser_http_requests", "HTTP requests answered, by route and status code");
    metrics::describe_gauge!("faser_device_info", "1, for the device that serves: its kind and its name");
    *installed = Some(handle.clone());
    Ok(handle)
}

/// Says which device serves, and which pair of several.
pub fn tell_device(machine: &Machine, pair: Option<&str>) {
    let pair = pair.map(|pair| Label::new("pair", pair.to_owned()));
    let device = [Label::new("device", machine.kind()), Label::new("name", machine.name().to_owned())];
    let labels: Vec<Label> = pair.into_iter().chain(device).collect();
    metrics::gauge!("faser_device_info", labels).set(1.0);
}
