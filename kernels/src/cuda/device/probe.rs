//! Which GPUs there are: asked without ever panicking, on machines with and without CUDA.

use super::error::{CudaError, Named};
use cudarc::driver::{result, sys};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The oldest driver that knows every call made here, and the cubins that NVRTC 13 makes.
const LEAST_VERSION: i32 = 13_000;

/// A GPU, before anything was asked of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuInfo {
    /// Its number at the driver.
    pub ordinal: usize,
    /// What it calls itself.
    pub name: String,
    /// Streaming multiprocessors.
    pub sms: u32,
    /// All of its memory, in bytes.
    pub memory_bytes: u64,
    /// Compute capability, major and minor.
    pub capability: (u32, u32),
    /// Most shared memory of a block, in bytes.
    pub block_shared_bytes: u32,
    /// The CUDA that its driver speaks, as the driver counts: 13010 is 13.1.
    pub cuda_version: u32,
}

impl GpuInfo {
    /// The architecture that its kernels are compiled for.
    #[must_use]
    pub fn arch(&self) -> String {
        format!("sm_{}{}", self.capability.0, self.capability.1)
    }
}

/// All GPUs that the driver shows.
///
/// # Errors
/// No driver, one that is too old, or no GPU; says which, and what to do.
pub fn probe() -> Result<Vec<GpuInfo>, CudaError> {
    // SAFETY: loading the library runs nothing but its initialisers. Without this look the first call would panic.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaError::NoDriver);
    }
    // A symbol that is missing panics in cudarc.
    catch_unwind(AssertUnwindSafe(list)).unwrap_or_else(|panic| Err(CudaError::Broken(words_of(&*panic))))
}

/// The GPU of that number.
///
/// # Errors
/// As [`probe`]; there is no such GPU, or none that the kernels run on.
pub fn probe_one(ordinal: usize) -> Result<GpuInfo, CudaError> {
    let gpus = probe()?;
    let seen = gpus.iter().map(|gpu| format!("{} ({})", gpu.ordinal, gpu.name)).collect();
    let gpu = gpus.into_iter().nth(ordinal).ok_or(CudaError::NoSuchGpu { ordinal, seen })?;
    if gpu.capability < (8, 0) {
        return Err(CudaError::Capability { ordinal, name: gpu.name, capability: gpu.capability });
    }
    Ok(gpu)
}

/// Whether all libraries are there that passes need, beside the driver.
///
/// # Errors
/// Names the first that is not.
pub fn check_libraries() -> Result<(), CudaError> {
    // SAFETY: as in `probe`.
    if !unsafe { cudarc::nvrtc::sys::is_culib_present() } {
        return Err(CudaError::NoLibrary { library: "libnvrtc.so.13", package: "nvidia-cuda-nvrtc" });
    }
    // SAFETY: as in `probe`.
    if !unsafe { cudarc::cublaslt::sys::is_culib_present() } {
        return Err(CudaError::NoLibrary { library: "libcublasLt.so.13", package: "nvidia-cublas" });
    }
    Ok(())
}

fn list() -> Result<Vec<GpuInfo>, CudaError> {
    let mut version = 0;
    // SAFETY: a place for a number; this call needs no initialisation.
    unsafe { sys::cuDriverGetVersion(&raw mut version) }.named("cuDriverGetVersion")?;
    if version < LEAST_VERSION {
        return Err(CudaError::OldDriver { version });
    }
    match result::init() {
        Err(error) if error.0 == sys::CUresult::CUDA_ERROR_NO_DEVICE => return Err(CudaError::NoGpu),
        initialised => initialised.named("cuInit")?,
    }
    let count = usize::try_from(result::device::get_count().named("cuDeviceGetCount")?).unwrap_or(0);
    if count == 0 {
        return Err(CudaError::NoGpu);
    }
    let version = u32::try_from(version).unwrap_or(0);
    (0..count).map(|ordinal| describe(ordinal, version)).collect()
}

fn describe(ordinal: usize, cuda_version: u32) -> Result<GpuInfo, CudaError> {
    use sys::CUdevice_attribute as Attribute;
    let device = result::device::get(ordinal as i32).named("cuDeviceGet")?;
    let attribute = |which: Attribute| {
        // SAFETY: the device was just given out by the driver.
        let value = unsafe { result::device::get_attribute(device, which) };
        value.named("cuDeviceGetAttribute").map(|value| u32::try_from(value).unwrap_or(0))
    };
    Ok(GpuInfo {
        ordinal,
        name: result::device::get_name(device).named("cuDeviceGetName")?,
        sms: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        // SAFETY: as above.
        memory_bytes: unsafe { result::device::total_mem(device) }.named("cuDeviceTotalMem")? as u64,
        capability: (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        block_shared_bytes: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        cuda_version,
    })
}

fn words_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}
