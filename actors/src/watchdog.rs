//! The watchdog: builds the device, notices when it fails, and builds it again.
//!
//! ```text
//!              built                     fault (panic in a lane, plan not taken)
//!   [building] -----> [serving] <--> [stalled] ------------------------+
//!       ^                                                              v
//!       +---- back-off <---- [lost] <----------------------------------+
//!                               |  \ the same of the draft's own device alone: it is retired, and the next device is built without
//!                               | more than max_failures in failure_window, or lost for as long as this process lives
//!                               v
//!                           [given up]
//! ```
//! Every device is a new generation; what a lost one still sends is told apart by that and dropped. A lane that merely
//! brings no result is reported and makes the service unready, but is not replaced: a thread cannot be killed safely,
//! and a second device beside it would want the same cores and as much memory again. If it comes back, all goes on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::{Actor, Addr};
use metrics::Unit;
use tokio::sync::{mpsc, oneshot};

use crate::dispatcher::FrontierDispatcher;
use crate::error::ServiceError;
use crate::failures::{Failures, Fault, Faults, Part, WatchdogConfig};
use crate::gpu_actor::{Attach, Device, DeviceFactory, GpuActor, Release};
use crate::health::{DeviceStatus, Health};
use crate::lane::Pulse;
use crate::message::Message;
use crate::meter::Meter;
use crate::requests::Requests;

/// How often the lanes' pulses are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How long a failed device may take to end its other lane's pass before the next device is built beside it.
const RELEASE_WITHIN: Duration = Duration::from_secs(10);

/// A built device, or group of them, and its actors.
struct Charge {
    generation: u64,
    /// One per rank, with its thread.
    ranks: Vec<Addr<GpuActor>>,
    pulses: Vec<(&'static str, Arc<Pulse>)>,
}

/// Why a watch over a device ended.
enum Ended {
    Fault(Part, String),
    DispatcherGone,
    Stop,
}

/// All the watchdog needs.
pub(crate) struct Watchdog {
    pub(crate) config: WatchdogConfig,
    pub(crate) factory: DeviceFactory,
    /// The draft is not retired.
    pub(crate) drafts: bool,
    pub(crate) dispatcher: Addr<FrontierDispatcher>,
    pub(crate) health: Arc<Health>,
    pub(crate) requests: Arc<Requests>,
    pub(crate) meter: Meter,
    pub(crate) faults: Faults,
    pub(crate) reported: mpsc::Receiver<Fault>,
    pub(crate) stop: oneshot::Receiver<()>,
}

impl Watchdog {
    /// Runs until the service stops or the device is given up. The outcome of the first build goes to `started`; if it
    /// failed, that was all.
    pub(crate) async fn run(mut self, started: oneshot::Sender<Result<(), ServiceError>>) {
        // Known from the start: 0.
        let _ = self.failures_counted();
        let recovery = self.meter.times(
            "faser_device_recovery_seconds",
            "from the notice that a device has failed to the moment that another one serves",
        );
        let mut failures = [Part::Target, Part::Draft].map(|_| Failures::new(self.config.clone()));
        let mut charge = match self.raise(0).await {
            Ok(charge) => {
                // Nobody waits for it only if the start was abandoned; then `stop` ends the watch.
                let _ = started.send(Ok(()));
                charge
            }
            Err(error) => {
                let _ = started.send(Err(error));
                return;
            }
        };
        loop {
            let (part, reason) = match self.watch(&charge).await {
                Ended::Fault(part, reason) => (part, reason),
                Ended::DispatcherGone => {
                    let reason = "the dispatcher has stopped; restart the daemon".to_owned();
                    tracing::error!(reason);
                    self.health.set(DeviceStatus::GivenUp { reason });
                    self.requests.close_all();
                    return;
                }
                Ended::Stop => return release(charge).await,
            };
            let failed = Instant::now();
            self.health.set(DeviceStatus::Rebuilding { reason: reason.clone() });
            self.tell(Message::DeviceLost(part)).await;
            let generation = charge.generation;
            release(charge).await;
            let Some(next) = self.replace(generation, (part, reason), &mut failures).await else { return };
            charge = next;
            let took = failed.elapsed();
            recovery.record(took);
            tracing::info!(took_ms = took.as_millis() as u64, "the device has recovered");
        }
    }

    fn failures_counted(&self) -> metrics::Counter {
        self.meter.counts(
            "faser_device_failures_total",
            Unit::Count,
            "devices that failed, builds included, and were replaced or given up",
        )
    }

    /// Builds the device after `generation`, again and again; none if it is given up or the service stops.
    async fn replace(
        &mut self,
        mut generation: u64,
        (mut part, mut reason): (Part, String),
        failures: &mut [Failures; 2],
    ) -> Option<Charge> {
        let mut lasts = false;
        loop {
            self.failures_counted().increment(1);
            let noted = failures[part as usize].note(Instant::now()).filter(|_| !lasts);
            if let Some(back_off) = noted {
                tracing::warn!(
                    reason,
                    back_off_ms = back_off.as_millis() as u64,
                    "the device is being rebuilt"
                );
                tokio::select! {
                    () = tokio::time::sleep(back_off) => {}
                    _ = &mut self.stop => return None,
                }
            } else if part == Part::Draft {
                self.retire_draft(reason).await;
            } else {
                return self.give_up(reason).await;
            }
            generation += 1;
            match self.raise(generation).await {
                Ok(charge) => return Some(charge),
                Err(error) => (part, lasts, reason) = (error.part(), error.lasts(), error.to_string()),
            }
        }
    }

    /// From now on devices are built without a draft.
    async fn retire_draft(&mut self, reason: String) {
        tracing::error!(
            reason,
            "the draft is retired, because its own device is lost: all goes on without it, slower; restart the daemon to have it back"
        );
        self.health.retire_draft(reason);
        self.drafts = false;
        self.tell(Message::DraftRetired).await;
    }

    async fn give_up(&self, reason: String) -> Option<Charge> {
        tracing::error!(reason, "the device is given up");
        self.health.set(DeviceStatus::GivenUp { reason: reason.clone() });
        self.tell(Message::DeviceGivenUp { reason }).await;
        None
    }

    /// Builds a device and puts it to work.
    async fn raise(&self, generation: u64) -> Result<Charge, ServiceError> {
        let (factory, results) = (self.factory.clone(), self.dispatcher.clone().recipient());
        let (faults, meter, drafts) = (self.faults.clone(), self.meter.clone(), self.drafts);
        let built = tokio::task::spawn_blocking(move || {
            GpuActor::build(&factory, (generation, drafts), &results, &faults, &meter)
        });
        let device_died = |reason: String| ServiceError::Lane { lane: "device's", reason };
        let actors = built.await.map_err(|panic| device_died(panic.to_string()))??;
        let pulses = actors.iter().flat_map(GpuActor::pulses).collect();
        let ranks: Vec<Addr<GpuActor>> = actors.into_iter().map(Actor::start).collect();
        // The first rank's lanes are the way to all.
        let first = ranks.first().ok_or_else(|| device_died("it has no rank".to_owned()))?;
        let device: Option<Device> =
            first.send(Attach).await.map_err(|error| device_died(error.to_string()))?;
        let device = device.ok_or_else(|| device_died("its queues were taken".to_owned()))?;
        self.tell(Message::DeviceReady(device)).await;
        self.health.set(DeviceStatus::Serving);
        tracing::info!(generation, "the device serves");
        Ok(Charge { generation, ranks, pulses })
    }

    /// Watches over a device until something ends that.
    async fn watch(&mut self, charge: &Charge) -> Ended {
        let mut look = tokio::time::interval(LOOK_EVERY.min(self.config.lane_deadline));
        loop {
            tokio::select! {
                fault = self.reported.recv() => match fault {
                    Some(fault) if fault.generation == charge.generation => {
                        return Ended::Fault(fault.part, fault.reason);
                    }
                    Some(_) => {} // a late word on a device that is gone
                    None => return Ended::Stop,
                },
                _ = look.tick() => {
                    if !self.dispatcher.connected() {
                        // Whoever stops a service stops the dispatcher first.
                        let stopped = tokio::time::timeout(LOOK_EVERY, &mut self.stop).await;
                        return if stopped.is_ok() { Ended::Stop } else { Ended::DispatcherGone };
                    }
                    self.look_at(charge);
                }
                _ = &mut self.stop => return Ended::Stop,
            }
        }
    }

    fn look_at(&self, charge: &Charge) {
        let now = Instant::now();
        let stalled = charge.pulses.iter().find_map(|(lane, pulse)| {
            let silent = pulse.silent_for(now).filter(|silent| *silent > self.config.lane_deadline)?;
            Some(DeviceStatus::Stalled { lane, seconds: silent.as_secs() })
        });
        let was_serving = self.health.serving();
        match stalled {
            Some(status) => {
                if was_serving {
                    tracing::warn!(%status, "the device is unready until the lane moves again");
                }
                self.health.set(status);
            }
            None if !was_serving => {
                tracing::info!("the stalled lane moves again");
                self.health.set(DeviceStatus::Serving);
            }
            None => {}
        }
    }

    /// Waits for a place in the mailbox: these messages must not be lost. A dispatcher that is gone is noticed by
    /// `watch`.
    async fn tell(&self, message: Message) {
        let _ = self.dispatcher.send(message).await;
    }
}

/// Waits for a device's lanes to end and ends its actors: all at the same time.
async fn release(charge: Charge) {
    let asked = charge.ranks.iter().map(|actor| actor.send(Release { within: RELEASE_WITHIN }));
    for ended in asked.collect::<Vec<_>>() {
        match ended.await {
            Ok(true) => {}
            Ok(false) => tracing::warn!(
                generation = charge.generation,
                "a lane did not end: its thread and its KV memory are left behind"
            ),
            Err(error) => tracing::error!(%error, "the GpuActor ended before its lanes"),
        }
    }
}
