//! The parts that live in time: mailboxes, threads, supervision. They decide nothing: the engine decides, the models
//! compute, and this crate carries plans, results and tokens between them and the clients.
//!
//! ```text
//!   Service::submit --mailbox--> FrontierDispatcher (owns the Engine) --queue--> lane threads of the GpuActor
//!   TokenStream <---requests----        |      ^                                    |  DraftRunner, VerifyRunner
//!                                       |      +------------- results --------------+
//!                       load board, LoadMonitor --> metrics          Watchdog <-- faults, pulses
//! ```
//! Absent here: tensors in messages, decisions, text, unbounded queues. Start reading at `dispatcher.rs`.

#![forbid(unsafe_code)]

mod awake;
mod cancellation;
mod device;
mod dispatcher;
mod drill;
mod error;
mod failures;
mod gpu_actor;
mod health;
mod kv_events;
mod lane;
mod latency;
mod load_metrics;
mod load_monitor;
mod message;
mod meter;
mod node_target;
mod nodes;
mod profile;
mod recording;
mod replicas;
mod requests;
mod runner;
mod service;
mod stream;
mod submission;
mod watchdog;

#[cfg(test)]
mod ledger;
#[cfg(test)]
mod service_tests;

pub use cancellation::CancelSource;
pub use device::{
    CpuSpec, CudaDevice, CudaSource, CudaSpec, CudaWeights, DeviceSpec, LaneSizes, ModelFacts, OnGpu,
    PassLimits,
};
pub use drill::{Drill, DrillFault};
pub use error::{ServiceError, SubmitError, TuneError};
pub use failures::WatchdogConfig;
pub use faser_kernels::cuda::{
    CudaError, GpuInfo, GroupTerms, libraries, nccl_library, nccl_version, prepare_environment, probe_one,
};
pub use faser_kernels::sampling::{Logprobs, MAX_TOP_LOGPROBS};
pub use faser_kernels::{Dtype, Isa, KV_BLOCK_MULTIPLE, Sampling};
pub use health::DeviceStatus;
pub use kv_events::{KvBatch, KvSender, kv_queue};
pub use lane::LANE_BUCKETS;
pub use latency::LATENCY_BUCKETS;
pub use message::Look;
pub use meter::MetricNames;
pub use node_target::NodeTarget;
pub use nodes::{
    NodeControl, NodeError, NodeFacts, NodePlace, NodeSpec, NodeState, Nodes, NodesSpec, follow,
};
pub use profile::{ProfileSpec, glance, profile};
pub use recording::{LONGEST_RECORDING, Recent, RecordingError, Seen};
pub use replicas::{ReplicaStream, Replicas};
pub use runner::{
    CopyRunner, CpuBackend, CpuFeatures, CpuLaneSpec, CudaBackend, CudaFeatures, CudaLaneSpec, DraftRunner,
    DraftWork, Gathering, LaneBackend, MASK_PATIENCE, VerifyRunner, VerifyWork,
};
pub use service::{Service, ServiceSpec};
pub use stream::{TokenStream, Update};
pub use submission::{Constraint, LaneRequest, LogprobCollector, Submission};
