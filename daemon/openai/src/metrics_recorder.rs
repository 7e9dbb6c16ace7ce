//! Installs the recorder that /metrics is rendered from.

use std::sync::Mutex;
use std::sync::PoisonError;

use faser_actors::{LANE_BUCKETS, LATENCY_BUCKETS};
use faser_config::device::Machine;
use faser_engine::EngineConfig;
use metrics::Label;
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

/// vLLM's buckets of what is told by its names (vllm/v1/metrics/buckets.py): its dashboards ask for some of them.
const VLLM_BUCKETS: [(&[&str], &[f64]); 4] = [
    (
        &["vllm:time_to_first_token_seconds"],
        &[
            0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
            40.0, 80.0, 160.0, 640.0, 2560.0,
        ],
    ),
    (
        &["vllm:inter_token_latency_seconds", "vllm:request_time_per_output_token_seconds"],
        &[
            0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
            40.0, 80.0,
        ],
    ),
    (
        &[
            "vllm:e2e_request_latency_seconds",
            "vllm:request_queue_time_seconds",
            "vllm:request_prefill_time_seconds",
            "vllm:request_decode_time_seconds",
            "vllm:request_inference_time_seconds",
        ],
        &[
            0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
            480.0, 960.0, 1920.0, 7680.0,
        ],
    ),
    (
        &["vllm:iteration_tokens_total"],
        &[1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0],
    ),
];
/// Of tokens of requests.
const TOKEN_BUCKETS: &[f64] =
    &[1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6];

/// A scrape, with what the process itself takes (`process_*`, as Prometheus' clients have it), and with bounds of vLLM's histograms written as vLLM writes them, with a point: who asks for `le="1.0"` finds it.
pub fn rendered(handle: &PrometheusHandle) -> String {
    metrics_process::Collector::default().collect();
    let text = handle.render();
    let mut out = String::with_capacity(text.len() + text.len() / 16);
    for line in text.lines() {
        match line.split_once("le=\"").filter(|_| line.starts_with("vllm:")) {
            Some((before, after)) => match after.split_once('"') {
                Some((bound, after)) if bound.bytes().all(|byte| byte.is_ascii_digit()) => {
                    out.extend([before, "le=\"", bound, ".0\"", after]);
                }
                _ => out.push_str(line),
            },
            None => out.push_str(line),
        }
        out.push('\n');
    }
    out
}

/// Installs the recorder of this process, at the first call; later calls return the same.
///
/// # Errors
/// Another recorder is there already.
pub fn install() -> Result<PrometheusHandle, BuildError> {
    static INSTALLED: Mutex<Option<PrometheusHandle>> = Mutex::new(None);
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(handle) = &*installed {
        return Ok(handle.clone());
    }
    let lane = ["faser_lane_gap_seconds", "faser_pass_seconds"].map(|name| Matcher::Full(name.to_owned()));
    let vllm = VLLM_BUCKETS.into_iter().flat_map(|(names, buckets)| {
        names.iter().map(move |name| (Matcher::Full((*name).to_owned()), buckets))
    });
    let builder = lane
        .into_iter()
        .map(|matcher| (matcher, LANE_BUCKETS))
        .chain(vllm)
        .chain([(Matcher::Suffix("_tokens".to_owned()), TOKEN_BUCKETS)])
        .try_fold(PrometheusBuilder::new(), |builder, (matcher, buckets)| {
            builder.set_buckets_for_metric(matcher, buckets)
        })
        .and_then(|builder| {
            builder.set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), LATENCY_BUCKETS)
        })?;
    let handle = builder.install_recorder()?;
    metrics::describe_counter!(
        "faser_http_requests_total",
        "HTTP requests answered, by route and status code"
    );
    metrics_process::Collector::default().describe();
    metrics::describe_gauge!(
        "vllm:cache_config_info",
        "1, for each engine: its KV cache, as vLLM's gateways read it"
    );
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

/// Says what KV cache each of so many engines of a model has, by vLLM's name.
pub fn tell_cache(model: &str, engines: usize, config: &EngineConfig) {
    for engine in 0..engines {
        let labels = [
            ("model_name", model.to_owned()),
            ("engine", engine.to_string()),
            ("block_size", config.block_size.to_string()),
            ("num_gpu_blocks", config.target_blocks.to_string()),
            ("enable_prefix_caching", config.prefix_cache.to_string()),
        ];
        metrics::gauge!("vllm:cache_config_info", &labels).set(1.0);
    }
}
