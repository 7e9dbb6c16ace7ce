//! What the dispatcher is told, by clients, lanes and the watchdog: its whole mailbox.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use faser_engine::{DraftPlan, Request, TokenId, VerifyPlan};

use crate::control::Control;
use crate::error::SubmitError;
use crate::gpu_actor::Device;
use crate::lane::Work;
use crate::recording::RecordAnswer;
use crate::runner::{DraftWork, VerifyWork};

/// Everything the dispatcher is told.
pub(crate) enum Message {
    /// A client wants tokens; its stream is among the open requests already.
    Submit(Box<Submit>),
    /// A client is gone: its id is in the `CancelSet`.
    CancelsWaiting,
    /// The draft lane of this generation finished a plan.
    DraftDone { generation: u64, plan: DraftPlan, ended: Instant },
    /// The verify lane of this generation finished a plan.
    VerifyDone { generation: u64, plan: VerifyPlan, ended: Instant },
    /// The device is gone: from now on its results are late.
    DeviceLost,
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

impl Work for DraftWork {
    const LANE: &'static str = "draft";
    const THREAD: &'static str = "faser-draft";
    type Outcome = DraftPlan;

    fn done(generation: u64, plan: DraftPlan, ended: Instant) -> Option<Message> {
        Some(Message::DraftDone { generation, plan, ended })
    }
}

impl Work for VerifyWork {
    const LANE: &'static str = "verify";
    const THREAD: &'static str = "faser-verify";
    type Outcome = VerifyPlan;

    fn done(generation: u64, plan: VerifyPlan, ended: Instant) -> Option<Message> {
        Some(Message::VerifyDone { generation, plan, ended })
    }
}
