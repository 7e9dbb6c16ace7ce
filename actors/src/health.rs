//! What the service says of its device: written by the watchdog, read by `Service::ready` and `Service::status`.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use metrics::{Gauge, Unit};
use tokio::sync::watch;

use crate::meter::Meter;

/// The state of the device behind a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceStatus {
    /// Up and answering.
    Serving,
    /// Up, but a lane has owed a result for longer than `WatchdogConfig::lane_deadline`. It may still come back.
    Stalled {
        /// `draft` or `verify`.
        lane: &'static str,
        /// How long it has been silent.
        seconds: u64,
    },
    /// Being built: for the first time, or after a failure.
    Rebuilding {
        /// What felled the one before.
        reason: String,
    },
    /// It failed too often, or is lost for as long as this process lives.
    GivenUp {
        /// What felled it last.
        reason: String,
    },
}

impl fmt::Display for DeviceStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceStatus::Serving => f.write_str("serving"),
            DeviceStatus::Stalled { lane, seconds } => {
                write!(f, "stalled: the {lane} lane has brought no result for {seconds} s")
            }
            DeviceStatus::Rebuilding { reason } => write!(f, "being rebuilt: {reason}"),
            DeviceStatus::GivenUp { reason } => write!(f, "given up: {reason}"),
        }
    }
}

/// The latest status.
pub(crate) struct Health {
    status: Mutex<DeviceStatus>,
    ready: Gauge,
    given_up: Gauge,
    draft_retired: Gauge,
    /// Why, once it is.
    no_draft: Mutex<Option<String>>,
    /// Of each of `LANES`.
    stalled: [Gauge; LANES.len()],
    ended: watch::Sender<bool>,
}

const LANES: [&str; 2] = ["draft", "verify"];

impl Health {
    pub(crate) fn new(meter: &Meter) -> Health {
        Health {
            status: Mutex::new(DeviceStatus::Rebuilding { reason: "it has just been started".to_owned() }),
            ready: meter.shows(
                "faser_ready",
                Unit::Count,
                "1 while the device serves, 0 while it is stalled, being rebuilt or given up",
            ),
            given_up: meter.shows(
                "faser_device_given_up",
                Unit::Count,
                "1 once the device is given up: it has failed too often, or is lost to this process; the daemon ends with its last one",
            ),
            draft_retired: meter.shows(
                "faser_draft_retired",
                Unit::Count,
                "1 once the draft is retired: its own device has failed too often, or is lost to this process; the target serves on without",
            ),
            no_draft: Mutex::default(),
            stalled: LANES.map(|lane| {
                meter.with("lane", lane).shows(
                    "faser_lane_stalled",
                    Unit::Count,
                    "1 while the lane has owed a result for too long",
                )
            }),
            ended: watch::Sender::default(),
        }
    }

    pub(crate) fn set(&self, status: DeviceStatus) {
        self.ready.set(f64::from(u8::from(status == DeviceStatus::Serving)));
        self.given_up.set(f64::from(u8::from(matches!(status, DeviceStatus::GivenUp { .. }))));
        for (name, gauge) in LANES.iter().zip(&self.stalled) {
            let stalled = matches!(status, DeviceStatus::Stalled { lane, .. } if lane == *name);
            gauge.set(f64::from(u8::from(stalled)));
        }
        let ended = matches!(status, DeviceStatus::GivenUp { .. });
        *self.lock() = status;
        self.ended.send_replace(ended);
    }

    /// The draft's device will not come back.
    pub(crate) fn retire_draft(&self, reason: String) {
        *self.no_draft.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
        self.draft_retired.set(1.0);
    }

    /// Why there is no draft any more, if it is retired.
    pub(crate) fn draft_retired(&self) -> Option<String> {
        self.no_draft.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn get(&self) -> DeviceStatus {
        self.lock().clone()
    }

    pub(crate) fn serving(&self) -> bool {
        *self.lock() == DeviceStatus::Serving
    }

    pub(crate) fn given_up(&self) -> bool {
        matches!(*self.lock(), DeviceStatus::GivenUp { .. })
    }

    /// Waits until it is.
    pub(crate) async fn until_given_up(&self) {
        // It ends with the word: the sender is here.
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
    }

    fn lock(&self) -> MutexGuard<'_, DeviceStatus> {
        // Replaced as a whole: nothing can be half written.
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Ledger;

    #[test]
    fn the_gauges_say_what_the_status_says() {
        let ledger = Ledger::default();
        let health = metrics::with_local_recorder(&ledger, || Health::new(&Meter::default()));
        let said = |status| {
            health.set(status);
            [
                "faser_ready",
                "faser_device_given_up",
                "faser_draft_retired",
                "faser_lane_stalled{lane=draft}",
                "faser_lane_stalled{lane=verify}",
            ]
            .map(|name| ledger.gauged(name))
        };
        assert_eq!(said(DeviceStatus::Serving), [1.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(said(DeviceStatus::Stalled { lane: "verify", seconds: 31 }), [0.0, 0.0, 0.0, 0.0, 1.0]);
        assert_eq!(said(DeviceStatus::Stalled { lane: "draft", seconds: 31 }), [0.0, 0.0, 0.0, 1.0, 0.0]);
        assert_eq!(said(DeviceStatus::GivenUp { reason: "x".to_owned() }), [0.0, 1.0, 0.0, 0.0, 0.0]);
        assert_eq!(said(DeviceStatus::Serving), [1.0, 0.0, 0.0, 0.0, 0.0]);
        health.retire_draft("lost".to_owned());
        assert_eq!(said(DeviceStatus::Serving), [1.0, 0.0, 1.0, 0.0, 0.0]);
        assert_eq!(health.draft_retired().as_deref(), Some("lost"));
        assert_eq!(ledger.undescribed(), [""; 0]);
    }
}
