//! How the watchdog learns that a device has failed.

use tokio::sync::mpsc;

/// Faults that may wait to be looked at: each of a generation's lanes can report one, those of a group all at once, and the dispatcher
/// one per plan it could not hand over. The first of a generation decides; what does not fit would only repeat it.
const FAULTS_CAPACITY: usize = 8;

/// A device has failed.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) generation: u64,
    pub(crate) reason: String,
}

/// The way to the watchdog for whoever notices a fault.
#[derive(Clone)]
pub(crate) struct Faults(mpsc::Sender<Fault>);

impl Faults {
    /// The way, and its other end.
    pub(crate) fn channel() -> (Faults, mpsc::Receiver<Fault>) {
        let (sender, receiver) = mpsc::channel(FAULTS_CAPACITY);
        (Faults(sender), receiver)
    }

    /// Never waits.
    pub(crate) fn report(&self, fault: Fault) {
        tracing::error!(generation = fault.generation, reason = fault.reason, "device fault");
        // Full: the watchdog has a fault of this device before it already. Closed: the service is stopping.
        let _ = self.0.try_send(fault);
    }
}
