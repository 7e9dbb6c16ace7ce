//! The lanes' executors on a GPU: the same plans as the CPU's, and the same outcome.
//!
//! The host queues a pass and reads back a few integers for each chunk, gaps and confidences. Any error of the device is a panic here:
//! the lane's thread reports it, and the watchdog decides.

mod draft;
mod rows;
mod sequences;
mod verify;

use std::sync::Arc;

use faser_kernels::cuda::{CudaError, Share};
use faser_models::cuda::CudaSizes;

pub use draft::CudaDraftRunner;
pub use verify::CudaVerifyRunner;

/// What a runner on a GPU is made for, beside its model.
#[derive(Clone)]
pub struct CudaRunnerSpec {
    /// Its share of the SMs on each of the device's partitions, the whole GPU first.
    pub shares: Vec<Arc<Share>>,
    /// The bounds of its passes.
    pub sizes: CudaSizes,
}

/// The value, or the end of this device.
trait OrLost<T> {
    fn or_lost(self) -> T;
}

impl<T> OrLost<T> for Result<T, CudaError> {
    fn or_lost(self) -> T {
        self.unwrap_or_else(|error| match error {
            // It is named already, and may be another's.
            CudaError::Group(lost) => panic!("{lost}"),
            error => panic!("the GPU failed: {error}"),
        })
    }
}
