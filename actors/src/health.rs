//! What the service says of its device: written by the watchdog, read by `Service::ready` and `Service::status`.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use metrics::{Gauge, Unit};

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
    /// It failed too often; a person has to look.
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
            DeviceStatus::GivenUp { reason } => write!(f, "given up after repeated failures: {reason}"),
        }
    }
}

/// The latest status.
pub(crate) struct Health {
    status: Mutex<DeviceStatus>,
    ready: Gauge,
    given_up: Gauge,
}

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
                "1 once the device has failed too often: a person has to look, and restart the daemon",
            ),
        }
    }

    pub(crate) fn set(&self, status: DeviceStatus) {
        self.ready.set(f64::from(u8::from(status == DeviceStatus::Serving)));
        self.given_up.set(f64::from(u8::from(matches!(status, DeviceStatus::GivenUp { .. }))));
        *self.lock() = status;
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

    fn lock(&self) -> MutexGuard<'_, DeviceStatus> {
        // Replaced as a whole: nothing can be half written.
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
