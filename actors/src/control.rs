//! What operators can do with a running service, and see of it. All of it goes through the dispatcher's mailbox.

use std::time::Duration;

use faser_engine::cost::PartitionCosts;
use faser_engine::{EngineError, LoadView, RequestView, SeqId, Tuning};
use tokio::sync::oneshot;

use crate::message::Message;
use crate::replicas::Replicas;
use crate::service::Service;
use crate::watching::{Recent, Seen};

/// A dispatcher answers at once; one that has not by then hangs, and nobody waits for it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 10 });

/// What the dispatcher is asked, with the way back.
pub(crate) enum Control {
    Look { requests: usize, seen: Option<Seen>, answer: oneshot::Sender<Look> },
    Cancel { seq: SeqId, answer: oneshot::Sender<bool> },
    Tunable { tuning: Tuning, answer: oneshot::Sender<Result<(), EngineError>> },
    Tune { tuning: Tuning, answer: oneshot::Sender<Result<(), EngineError>> },
    Profiled { partitions: Vec<PartitionCosts>, answer: oneshot::Sender<()> },
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

impl Service {
    /// Looks at it: at its `requests` oldest requests, and, if `seen` is given, at what the lanes did beyond that. The first
    /// look with `seen` finds nothing; from then on that is kept, for a while behind the latest look. `None` if it has stopped or hangs.
    pub async fn look(&self, requests: usize, seen: Option<Seen>) -> Option<Look> {
        self.ask(|answer| Control::Look { requests, seen, answer }).await
    }

    /// Ends a request as if its client had gone, but that the client hears of it; `false` if there is none of that number. `None` if
    /// the service has stopped or hangs.
    pub async fn cancel(&self, seq: SeqId) -> Option<bool> {
        self.ask(|answer| Control::Cancel { seq, answer }).await
    }

    async fn tunable(&self, tuning: Tuning) -> Result<(), TuneError> {
        let asked = self.ask(|answer| Control::Tunable { tuning, answer }).await;
        Ok(asked.ok_or(TuneError::Stopped)??)
    }

    /// Has it decide otherwise from now on; streams go on.
    ///
    /// # Errors
    /// It cannot, and nothing has changed; or it has stopped or hangs: if it goes on, it does what it was told.
    pub async fn tune(&self, tuning: Tuning) -> Result<(), TuneError> {
        let asked = self.ask(|answer| Control::Tune { tuning, answer }).await;
        Ok(asked.ok_or(TuneError::Stopped)??)
    }

    async fn ask<A>(&self, control: impl FnOnce(oneshot::Sender<A>) -> Control) -> Option<A> {
        let (answer, answered) = oneshot::channel();
        let asked = async {
            self.dispatcher().send(Message::Control(Box::new(control(answer)))).await.ok()?;
            answered.await.ok()
        };
        tokio::time::timeout(ANSWER_TIMEOUT, asked).await.ok()?
    }
}

impl Replicas {
    /// Whether all of them can decide so.
    ///
    /// # Errors
    /// One cannot, has stopped, or hangs.
    pub async fn tunable(&self, tuning: &Tuning) -> Result<(), TuneError> {
        for service in self.services() {
            service.tunable(tuning.clone()).await?;
        }
        Ok(())
    }

    /// Has all of them decide otherwise from now on; streams go on.
    ///
    /// # Errors
    /// One cannot, and none has changed; or one has stopped or hangs.
    pub async fn tune(&self, tuning: &Tuning) -> Result<(), TuneError> {
        self.tunable(tuning).await?;
        for service in self.services() {
            service.tune(tuning.clone()).await?;
        }
        Ok(())
    }

    /// Waits, at most for `timeout`, until no stream is open. Returns how many are.
    pub async fn idle(&self, timeout: Duration) -> usize {
        let all = async {
            for service in self.services() {
                service.emptied().await;
            }
        };
        // Late: the count below says so.
        let _ = tokio::time::timeout(timeout, all).await;
        self.active()
    }

    /// Tells all of them what passes cost, measured anew on every partition.
    pub async fn profiled(&self, partitions: &[PartitionCosts]) {
        for service in self.services() {
            // One that has stopped needs no costs.
            let _ = service.ask(|answer| Control::Profiled { partitions: partitions.to_vec(), answer }).await;
        }
    }
}
