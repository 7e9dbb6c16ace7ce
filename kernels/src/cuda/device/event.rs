//! Events: what one lane is asked for waits for what another was asked for before, and no host waits.

use super::error::{CudaError, Named};
use super::gpu::Gpu;
use super::lane::CudaLane;
use cudarc::driver::{result, sys};
use std::sync::Arc;

/// A place in what a lane was asked for, once it is recorded there.
pub struct Event {
    gpu: Arc<Gpu>,
    raw: sys::CUevent,
}

// SAFETY: a handle of the driver, which locks.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// An event that nobody has recorded: it is waited for in no time.
    ///
    /// # Errors
    /// The driver has none.
    pub fn new(gpu: &Arc<Gpu>) -> Result<Event, CudaError> {
        gpu.bind()?;
        let raw = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING);
        Ok(Event { gpu: gpu.clone(), raw: raw.named("cuEventCreate")? })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.gpu.bind().is_ok() {
            // SAFETY: created above, destroyed once. Whoever waits for it still does.
            let _ = unsafe { result::event::destroy(self.raw) };
        }
    }
}

impl CudaLane {
    /// Records an event behind all that the lane was asked for; where it was recorded before is forgotten, but by those who wait for it already.
    ///
    /// # Errors
    /// The driver refuses, such as in a capture or for another GPU's event.
    pub fn record(&mut self, event: &Event) -> Result<(), CudaError> {
        self.begin_work();
        // SAFETY: both live.
        unsafe { result::event::record(event.raw, self.stream()) }.named("cuEventRecord")
    }

    /// What the lane is asked for from here on begins when what stands before the event, where it is recorded now, is done.
    ///
    /// # Errors
    /// The driver refuses, such as in a capture.
    pub fn wait_for(&mut self, event: &Event) -> Result<(), CudaError> {
        self.begin_work();
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both live, and the driver keeps what it needs of the event.
        unsafe { result::stream::wait_event(self.stream(), event.raw, flags) }.named("cuStreamWaitEvent")
    }
}
