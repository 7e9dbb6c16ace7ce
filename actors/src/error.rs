//! What can go wrong: when the service starts, and when a request is handed in.

use faser_engine::{EngineError, Refusal};
use faser_kernels::KernelError;
use faser_kernels::cuda::CudaError;
use faser_models::ModelError;
use faser_topology::TopologyError;

use crate::failures::Part;

/// Why a service, or one of its lanes, cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// The engine refuses its bounds.
    #[error("the engine cannot be built: {0}")]
    Engine(#[from] EngineError),
    /// A lane or its KV memory cannot be had.
    #[error("the device cannot be built: {0}")]
    Kernel(#[from] KernelError),
    /// The GPU does not give what a lane needs.
    #[error("the device cannot be built: {0}")]
    Cuda(#[from] CudaError),
    /// The weights cannot be brought to the GPU.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The GPU has not what was planned with.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The parts of the specification contradict each other.
    #[error("the service specification contradicts itself: {0}")]
    Contradiction(String),
    /// A lane could not be brought up.
    #[error("the {lane} lane did not come up: {reason}")]
    Lane {
        /// `draft` or `verify`.
        lane: &'static str,
        /// What it died of.
        reason: String,
    },
    /// The draft's device, which has it alone.
    #[error("the draft's own device: {0}")]
    DraftDevice(#[source] Box<ServiceError>),
    /// Another node does not come, or is lost.
    #[error("{0}")]
    Node(String),
    /// The operating system gave no thread.
    #[error("no thread for {name}: {source}; raise the limit on threads (ulimit -u)")]
    Thread {
        /// What the thread was for.
        name: &'static str,
        /// The system's word.
        source: std::io::Error,
    },
    /// There is no actix System on this thread, or it is stopping.
    #[error("the service needs a running actix System on the calling thread; start it inside one")]
    NoSystem,
}

impl ServiceError {
    /// Whether the next try in this process would fail too.
    pub(crate) fn lasts(&self) -> bool {
        match self {
            ServiceError::DraftDevice(error) => error.lasts(),
            error => matches!(error, ServiceError::Cuda(CudaError::Lost { .. })),
        }
    }

    /// What of the device has failed.
    pub(crate) fn part(&self) -> Part {
        match self {
            ServiceError::DraftDevice(_) => Part::Draft,
            _ => Part::Target,
        }
    }
}

/// Why a request was not taken. Nothing is left behind by a request that was not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The waiting queue, or the dispatcher's mailbox before it, is at its bound.
    #[error("the queue is full ({capacity} requests): try again later")]
    Full {
        /// The bound that was hit.
        capacity: usize,
    },
    /// The engine refuses the request as it stands.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A value of the request is out of range; the text says which and what would be in range.
    #[error("{0}")]
    Invalid(String),
    /// The device is being rebuilt or was given up.
    #[error("the device is not ready: {0}")]
    NotReady(String),
    /// The service is finishing what it has and takes nothing new.
    #[error("the service is draining and takes no new requests: send it elsewhere")]
    Draining,
    /// The service has stopped.
    #[error("the service has stopped")]
    Stopped,
}

/// Why a service does not decide otherwise.
#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    /// It cannot.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// It has stopped, or hangs.
    #[error("the service has stopped or hangs")]
    Stopped,
}
