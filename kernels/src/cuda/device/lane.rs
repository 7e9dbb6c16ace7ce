//! A lane on a GPU: launches, copies and products, in their order, on the SMs of the partition in use.

use super::blaslt::{Blas, Product};
use super::error::{CudaError, Named};
use super::gpu::Gpu;
use super::memory::Arena;
use super::sms::{Share, Stream};
use crate::cuda::{Launch, Ptr};
use cudarc::driver::{result, sys};
use std::ffi::c_void;
use std::sync::Arc;

/// Waiting begins with looking all the time, this many times, before it lets other threads of the host go first.
const EAGER_LOOKS: u32 = 2000;

/// An ordered stream of work on a GPU, used by one thread. It has a stream for each partition; what one began is finished before
/// another goes on, by [`CudaLane::wait`].
pub struct CudaLane {
    gpu: Arc<Gpu>,
    streams: Vec<Stream>,
    current: usize,
    blas: Blas,
    /// Whether something was asked for since the last wait.
    busy: bool,
}

impl CudaLane {
    /// A lane on its shares of the partitions, all of one GPU. Where lanes share SMs, an `urgent` one goes first.
    ///
    /// # Errors
    /// The driver or cublasLt gives no stream, handle or workspace.
    pub fn new(shares: &[Arc<Share>], urgent: bool) -> Result<CudaLane, CudaError> {
        let Some(first) = shares.first() else {
            return Err(CudaError::Split { problem: "a lane needs at least one share".to_owned() });
        };
        let gpu = first.gpu().clone();
        let streams = shares.iter().map(|share| share.stream(urgent)).collect::<Result<Vec<_>, _>>()?;
        Ok(CudaLane { blas: Blas::new(&gpu)?, gpu, streams, current: 0, busy: false })
    }

    /// Its GPU.
    #[must_use]
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// SMs of the partition in use.
    #[must_use]
    pub fn sms(&self) -> u32 {
        self.streams[self.current].share.sms()
    }

    /// What follows runs on this partition.
    ///
    /// # Errors
    /// What runs on the one before fails.
    ///
    /// # Panics
    /// If there is none of that number.
    pub fn work_on(&mut self, partition: usize) -> Result<(), CudaError> {
        assert!(partition < self.streams.len(), "partition {partition} of {}", self.streams.len());
        if partition != self.current {
            self.wait(&mut || {})?;
            self.current = partition;
        }
        Ok(())
    }

    /// Binds the calling thread, which from now on is the lane's.
    ///
    /// # Errors
    /// The GPU's context is gone.
    pub fn bind(&self) -> Result<(), CudaError> {
        self.gpu.bind()
    }

    /// Asks for a launch. An empty grid is nothing to do. Pointers in its arguments are of memory that lives until the lane was waited for.
    ///
    /// # Errors
    /// The driver refuses it. What goes wrong inside comes out at a later call.
    pub fn launch<A>(&mut self, launch: &Launch<A>) -> Result<(), CudaError> {
        if launch.grid.contains(&0) {
            return Ok(());
        }
        self.busy = true;
        let [x, y, z] = launch.grid;
        let mut parameters = [(&raw const launch.args).cast_mut().cast::<c_void>()];
        // SAFETY: the kernel's one parameter is this struct, byte for byte, and the driver copies it. Kernels touch device memory
        // alone (and flags of the host, which are atomic): one that goes astray ends in a failure of the device.
        unsafe {
            result::launch_kernel(
                self.gpu.function(launch.kernel),
                (x, y, z),
                (launch.block, 1, 1),
                launch.shared_bytes,
                self.stream(),
                &mut parameters,
            )
        }
        .named(launch.kernel)
    }

    /// Asks for a product of matrices by cublasLt.
    ///
    /// # Errors
    /// cublasLt has no algorithm for it, or fails.
    pub fn multiply(&mut self, product: &Product) -> Result<(), CudaError> {
        self.busy = true;
        let (stream, sms) = (self.stream(), self.sms());
        self.blas.multiply(product, stream, (self.current, sms))
    }

    /// Asks for zeros.
    ///
    /// # Errors
    /// The driver refuses it.
    pub fn clear(&mut self, ptr: Ptr, bytes: usize) -> Result<(), CudaError> {
        self.busy = true;
        // SAFETY: device memory of the caller's.
        unsafe { result::memset_d8_async(ptr.0, 0, bytes, self.stream()) }.named("cuMemsetD8Async")
    }

    /// Asks for a copy on the device.
    ///
    /// # Errors
    /// The driver refuses it.
    pub fn copy(&mut self, from: Ptr, to: Ptr, bytes: usize) -> Result<(), CudaError> {
        self.busy = true;
        // SAFETY: device memory of the caller's.
        unsafe { result::memcpy_dtod_async(to.0, from.0, bytes, self.stream()) }.named("cuMemcpyDtoDAsync")
    }

    /// Sends what was put into an arena.
    ///
    /// # Errors
    /// The driver refuses it.
    pub fn send(&mut self, arena: &mut Arena) -> Result<(), CudaError> {
        self.busy = true;
        let (to, used) = (arena.device.ptr(), arena.used);
        let from: &[u8] = arena.host.bytes_of(used);
        // SAFETY: both are as long; the arena may not be written before `wait`, which its owner sees to.
        unsafe { result::memcpy_htod_async(to.0, from, self.stream()) }.named("cuMemcpyHtoDAsync")
    }

    /// Fetches an arena's content; it is there after `wait`.
    ///
    /// # Errors
    /// The driver refuses it.
    pub fn fetch(&mut self, arena: &mut Arena) -> Result<(), CudaError> {
        self.busy = true;
        let (from, used, stream) = (arena.device.ptr(), arena.used, self.stream());
        let to = arena.host.bytes_of_mut(used);
        // SAFETY: both are as long; the arena may not be read before `wait`, which its owner sees to.
        unsafe { result::memcpy_dtoh_async(to, from.0, stream) }.named("cuMemcpyDtoHAsync")
    }

    /// Waits for everything that was asked for; `meanwhile` is called again and again.
    ///
    /// # Errors
    /// Something of it failed: the device is lost to this lane.
    pub fn wait(&mut self, meanwhile: &mut dyn FnMut()) -> Result<(), CudaError> {
        if !self.busy {
            return Ok(());
        }
        let mut looks = 0u32;
        loop {
            // SAFETY: the stream lives.
            let code = unsafe { sys::cuStreamQuery(self.stream()) };
            if code != sys::CUresult::CUDA_ERROR_NOT_READY {
                self.busy = false;
                return code.named("cuStreamQuery");
            }
            meanwhile();
            looks = looks.saturating_add(1);
            if looks > EAGER_LOOKS {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// Asks how far the device is, once: true if it has done everything, and what it wrote for the host is seen.
    ///
    /// # Errors
    /// Something that was asked for failed.
    pub fn look(&mut self) -> Result<bool, CudaError> {
        // SAFETY: the stream lives.
        match unsafe { sys::cuStreamQuery(self.stream()) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            code => code.named("cuStreamQuery").map(|()| true),
        }
    }

    pub(super) fn stream(&self) -> sys::CUstream {
        self.streams[self.current].raw
    }

    /// The number of the partition in use.
    #[must_use]
    pub fn partition(&self) -> usize {
        self.current
    }

    pub(super) fn begin_work(&mut self) {
        self.busy = true;
    }
}

impl Drop for CudaLane {
    fn drop(&mut self) {
        // What is still under way may use memory that goes with the lane's owner.
        if self.gpu.bind().is_ok() {
            let _ = self.wait(&mut || {});
        }
    }
}
