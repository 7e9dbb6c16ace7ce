//! What of a snapshot `faser top` shows. A field that the daemon does not send, being older, is empty.

use serde::Deserialize;

/// The daemon at one moment; `daemon/src/admin/snapshot.rs` says what each field is.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Status {
    pub state: String,
    pub detail: String,
    pub version: String,
    pub uptime_s: f64,
    pub model: Option<Model>,
    pub policy: Option<Policy>,
    pub total: Figures,
    pub replicas: Vec<Replica>,
    pub slowest: Vec<Request>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Model {
    pub name: String,
    pub device_kind: String,
    pub device: String,
    pub unit: String,
    pub partitions: Vec<Partition>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Partition {
    pub draft: usize,
    pub verify: usize,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Policy {
    pub policy: String,
    pub max_running: usize,
    pub max_waiting: usize,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Replica {
    pub replica: usize,
    pub state: String,
    pub answers: bool,
    pub figures: Figures,
    pub timeline: Option<Timeline>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Figures {
    pub running: usize,
    pub waiting: usize,
    pub partition: usize,
    pub target_kv: Pool,
    pub draft_kv: Pool,
    pub draft_busy: f64,
    pub verify_busy: f64,
    pub output_tokens_per_s: f64,
    pub prompt_tokens_per_s: f64,
    pub requests_per_s: f64,
    pub passes_per_s: f64,
    pub rows_per_pass: Option<f64>,
    pub acceptance: Option<f64>,
    pub tokens_per_chunk: Option<f64>,
    pub k_histogram: Vec<u64>,
    pub acceptance_by_position: Vec<Option<f64>>,
    pub overlapped: Option<f64>,
    pub chunks_cancelled_per_s: f64,
    pub rows_pruned_per_s: f64,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Pool {
    pub total: usize,
    pub free: usize,
    pub cached: usize,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Request {
    pub id: String,
    pub state: String,
    pub k: usize,
    pub acceptance: Option<f64>,
    pub prompt_tokens: usize,
    pub output_tokens: usize,
    pub max_new_tokens: usize,
    pub tokens_per_pass: Option<f64>,
    pub age_s: f64,
    pub ttft_s: Option<f64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Timeline {
    pub now_us: u64,
    pub from_us: u64,
    pub passes: Vec<Pass>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Pass {
    pub lane: String,
    pub began_us: u64,
    pub ended_us: u64,
    pub cancelled: usize,
}
