//! What the dispatcher is told by clients, operators and the watchdog: its whole mailbox, but for what lanes send, [`LaneDone`](crate::lane::LaneDone).

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use faser_engine::cost::PartitionCosts;
use faser_engine::{EngineError, Learned, LoadView, Request, RequestView, SeqId, TokenId, Tuning};

use crate::error::SubmitError;
use crate::failures::Part;
use crate::gpu_actor::Device;
use crate::recording::{Recent, RecordAnswer, Seen};

/// Everything the dispatcher is told.
pub(crate) enum Message {
    /// A client wants tokens; its stream is among the open requests already.
    Submit(Box<Submit>),
    /// A client is gone: its id is in the `CancelSet`.
    CancelsWaiting,
    /// The device is gone, because this part of it failed: from now on its results are late.
    DeviceLost(Part),
    /// The draft's device will not come back: the next one has no draft lane.
    DraftRetired,
    /// A fresh device is there.
    DeviceReady(Device),
    /// There will be no device any more.
    DeviceGivenUp { reason: String },
    /// The router wants to know how many tokens of a prompt are cached under a salt.
    Probe { tokens: Arc<[TokenId]>, salt: u128, answer: oneshot::Sender<usize> },
    /// Somebody wants to know what the lanes do for so long, from now on.
    Record { length: Duration, answer: RecordAnswer },
    /// An operator asks for something.
    Control(Box<Control>),
    /// Somebody wants to know that messages are still handled; that this one was is the answer.
    Heartbeat,
    /// The service ends.
    Stop,
    /// For tests: the dispatcher hangs until the other end is dropped.
    #[cfg(test)]
    Hang(std::sync::mpsc::Receiver<()>),
}

impl actix::Message for Message {
    type Result = ();
}

/// A request on its way to the engine.
pub(crate) struct Submit {
    pub(crate) request: Request,
    pub(crate) submitted: Instant,
    pub(crate) verdict: oneshot::Sender<Result<(), SubmitError>>,
}

/// What an operator asks, with the way back.
pub(crate) enum Control {
    Look { requests: usize, seen: Option<Seen>, answer: oneshot::Sender<Look> },
    Cancel { seq: SeqId, answer: oneshot::Sender<bool> },
    Tunable { tuning: Tuning, answer: oneshot::Sender<Result<(), EngineError>> },
    Tune { tuning: Tuning, answer: oneshot::Sender<Result<(), EngineError>> },
    Profiled { partitions: Vec<PartitionCosts>, answer: oneshot::Sender<()> },
    Learned { answer: oneshot::Sender<Learned> },
    ForgetOutputs { answer: oneshot::Sender<usize> },
}

/// A service at one moment.
#[derive(Clone, Debug)]
pub struct Look {
    /// The moment, as time since the service started.
    pub now: Duration,
    /// Gauges and totals.
    pub view: LoadView,
    /// How it decides.
    pub tuning: Tuning,
    /// The oldest requests, the oldest first.
    pub requests: Vec<RequestView>,
    /// What the lanes did lately, if that was asked for.
    pub recent: Option<Recent>,
}
