//! Shares of a GPU's SMs: green contexts, each pair of one split and its remainder, on top of the primary context.

use super::error::{CudaError, Named};
use super::gpu::Gpu;
use cudarc::driver::sys;
use std::mem::MaybeUninit;
use std::sync::Arc;

/// Some SMs of a GPU, or all of them. Streams that are made of a share run on its SMs alone.
pub struct Share {
    gpu: Arc<Gpu>,
    /// None: the whole GPU.
    green: Option<sys::CUgreenCtx>,
    sms: u32,
}

// SAFETY: a handle of the driver, which locks; it does not change.
unsafe impl Send for Share {}
// SAFETY: as above.
unsafe impl Sync for Share {}

/// The shares of both lanes on one partition.
#[derive(Clone)]
pub struct SharePair {
    /// The draft lane's.
    pub draft: Arc<Share>,
    /// The verify lane's.
    pub verify: Arc<Share>,
}

/// A driver that is newer than the bindings may know more of a resource than they do: room for what it writes.
#[repr(C)]
struct Resource {
    known: sys::CUdevResource,
    beyond: [u64; 16],
}

impl Resource {
    fn empty() -> Resource {
        // SAFETY: plain numbers and pointers, for which zero is a value.
        unsafe { MaybeUninit::zeroed().assume_init() }
    }

    fn sms(&self) -> u32 {
        // SAFETY: the driver has filled it in as a resource of SMs.
        unsafe { self.known.__bindgen_anon_1.sm.smCount }
    }
}

/// `cuGreenCtxStreamCreate` came with this driver.
const STREAMS_SINCE: u32 = 12_050;

const SMS: sys::CUdevResourceType = sys::CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM;

impl Share {
    /// All SMs.
    #[must_use]
    pub fn whole(gpu: &Arc<Gpu>) -> Arc<Share> {
        Arc::new(Share { gpu: gpu.clone(), green: None, sms: gpu.info().sms })
    }

    /// At least `sms` of the SMs, and the rest. The driver rounds up: to whole groups of 8 on compute capability 9.
    ///
    /// # Errors
    /// Nothing would be left on one side, or the driver refuses.
    pub fn split(gpu: &Arc<Gpu>, sms: u32) -> Result<SharePair, CudaError> {
        let all_sms = gpu.info().sms;
        let problem = |text: String| Err(CudaError::Split { problem: text });
        if sms == 0 || sms >= all_sms {
            return problem(format!("{sms} for drafting of {all_sms} leaves nothing on one side"));
        }
        let version = gpu.info().cuda_version;
        if version < STREAMS_SINCE {
            return problem(format!(
                "the driver speaks CUDA {}.{}, and streams on a part of the SMs came with 12.5 (NVIDIA's driver 555)",
                version / 1000,
                version % 1000 / 10
            ));
        }
        gpu.bind()?;
        let (mut all, mut first, mut rest) = (Resource::empty(), Resource::empty(), Resource::empty());
        let mut groups = 1;
        let refused = |error: CudaError| CudaError::Split {
            problem: format!("{sms} for drafting of {all_sms}: {error}"),
        };
        // SAFETY: places for three resources, each with room to spare; the split reads the first, which has been filled in.
        unsafe {
            sys::cuDeviceGetDevResource(gpu.device, &raw mut all.known, SMS)
                .named("cuDeviceGetDevResource")
                .map_err(refused)?;
            let (to, from, left) = (&raw mut first.known, &raw const all.known, &raw mut rest.known);
            sys::cuDevSmResourceSplitByCount(to, &raw mut groups, from, left, 0, sms)
                .named("cuDevSmResourceSplitByCount")
                .map_err(refused)?;
        }
        if groups != 1 || rest.sms() == 0 {
            return problem(format!(
                "{sms} for drafting of {all_sms} become {}, and nothing is left",
                first.sms()
            ));
        }
        let draft = Share::green(gpu, &mut first).map_err(refused)?;
        Ok(SharePair { draft, verify: Share::green(gpu, &mut rest).map_err(refused)? })
    }

    fn green(gpu: &Arc<Gpu>, resource: &mut Resource) -> Result<Arc<Share>, CudaError> {
        let sms = resource.sms();
        let mut description: sys::CUdevResourceDesc = std::ptr::null_mut();
        let mut green: sys::CUgreenCtx = std::ptr::null_mut();
        let flags = sys::CUgreenCtxCreate_flags::CU_GREEN_CTX_DEFAULT_STREAM as u32;
        // SAFETY: places for handles; the resource came from the driver; the context is destroyed when the share is dropped.
        unsafe {
            sys::cuDevResourceGenerateDesc(&raw mut description, &raw mut resource.known, 1)
                .named("cuDevResourceGenerateDesc")?;
            sys::cuGreenCtxCreate(&raw mut green, description, gpu.device, flags)
                .named("cuGreenCtxCreate")?;
        }
        Ok(Arc::new(Share { gpu: gpu.clone(), green: Some(green), sms }))
    }

    /// How many SMs.
    #[must_use]
    pub fn sms(&self) -> u32 {
        self.sms
    }

    pub(super) fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// A stream on these SMs. Streams of `urgent` lanes go before others where SMs are shared.
    pub(super) fn stream(self: &Arc<Share>, urgent: bool) -> Result<Stream, CudaError> {
        self.gpu.bind()?;
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        let priority = if urgent { -1 } else { 0 };
        let mut stream: sys::CUstream = std::ptr::null_mut();
        // SAFETY: a place for a handle; the green context lives as long as the share, which the stream keeps.
        unsafe {
            match self.green {
                Some(green) => sys::cuGreenCtxStreamCreate(&raw mut stream, green, flags, priority)
                    .named("cuGreenCtxStreamCreate")?,
                None => sys::cuStreamCreateWithPriority(&raw mut stream, flags, priority)
                    .named("cuStreamCreateWithPriority")?,
            }
        }
        Ok(Stream { share: self.clone(), raw: stream })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if let (Some(green), Ok(())) = (self.green, self.gpu.bind()) {
            // SAFETY: its streams kept it; there are none any more.
            let _ = unsafe { sys::cuGreenCtxDestroy(green) };
        }
    }
}

/// An ordered stream of work on a share of the SMs.
pub(super) struct Stream {
    pub(super) share: Arc<Share>,
    pub(super) raw: sys::CUstream,
}

// SAFETY: a handle of the driver, which locks.
unsafe impl Send for Stream {}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.share.gpu.bind().is_ok() {
            // SAFETY: made above, not destroyed yet. What runs on it is finished by the driver.
            let _ = unsafe { cudarc::driver::result::stream::destroy(self.raw) };
        }
    }
}
