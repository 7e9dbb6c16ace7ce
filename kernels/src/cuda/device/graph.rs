//! Graphs: launches that were asked for once, in capture, and are asked for again all together.
//!
//! Nothing of a captured launch changes from one time to the next, neither where its arrays are nor its grid: what differs lies in those arrays.
//! A graph belongs to the partition on which it was captured, whose SMs its kernels keep.

use super::error::{CudaError, Named};
use super::gpu::Gpu;
use super::lane::CudaLane;
use cudarc::driver::{result, sys};
use std::sync::Arc;

/// Captured launches. It is dropped after the lane was waited for.
pub struct Graph {
    gpu: Arc<Gpu>,
    partition: usize,
    raw: sys::CUgraphExec,
}

// SAFETY: a handle of the driver, which locks.
unsafe impl Send for Graph {}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.gpu.bind().is_ok() {
            // SAFETY: instantiated below, destroyed once.
            let _ = unsafe { result::graph::exec_destroy(self.raw) };
        }
    }
}

impl CudaLane {
    /// From here on, what is asked for is not done but captured, up to [`CudaLane::end_capture`]: launches, products, zeros and copies on the
    /// device. Copies from and to the host are refused, and so is waiting.
    ///
    /// # Errors
    /// The driver refuses, such as while it captures already.
    pub fn begin_capture(&mut self) -> Result<(), CudaError> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives.
        unsafe { result::stream::begin_capture(self.stream(), mode) }.named("cuStreamBeginCapture")
    }

    /// What was captured. To be called after an error in between, too.
    ///
    /// # Errors
    /// Something was asked for that cannot be captured, or the driver has no memory for it.
    pub fn end_capture(&mut self) -> Result<Graph, CudaError> {
        // SAFETY: the stream lives; an instance does not need the graph that it is of.
        let raw = unsafe {
            let graph = result::stream::end_capture(self.stream()).named("cuStreamEndCapture")?;
            let instance = result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0));
            let _ = result::graph::destroy(graph);
            instance.named("cuGraphInstantiate")?
        };
        Ok(Graph { gpu: self.gpu().clone(), partition: self.partition(), raw })
    }

    /// Asks for all that a graph has. Pointers in it are of memory that lives until the lane was waited for.
    ///
    /// # Errors
    /// The driver refuses it.
    ///
    /// # Panics
    /// If it was captured on another partition.
    pub fn replay(&mut self, graph: &Graph) -> Result<(), CudaError> {
        assert_eq!(graph.partition, self.partition(), "a graph of another partition");
        self.begin_work();
        // SAFETY: both live. Its launches were checked when they were captured.
        unsafe { result::graph::launch(graph.raw, self.stream()) }.named("cuGraphLaunch")
    }
}
