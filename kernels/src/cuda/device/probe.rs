//! Which GPUs there are: asked without ever panicking, on machines with and without CUDA.

use super::error::{CudaError, Named};
use crate::cuda::libraries::cuda_of_driver;
use cudarc::driver::{result, sys};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The oldest driver that knows every call made here but those that partition SMs.
const LEAST_VERSION: i32 = 12_040;

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

/// Has CUDA give every stream a hardware queue of its own, as far as there are some, lest lanes on SMs of their own wait for each other in a
/// queue that they share. CUDA reads it when it is initialised; who has set it himself is not overruled. Nothing happens in a process that
/// has other threads: they might read the environment meanwhile.
pub fn prepare_environment() {
    const CONNECTIONS: &str = "CUDA_DEVICE_MAX_CONNECTIONS";
    let alone = std::fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() == 1);
    if alone && std::env::var_os(CONNECTIONS).is_none() {
        // SAFETY: no other thread is there. 32 is the most that CUDA has.
        unsafe { std::env::set_var(CONNECTIONS, "32") };
    }
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

fn list() -> Result<Vec<GpuInfo>, CudaError> {
    let version = cuda_of_driver()
        .ok_or_else(|| CudaError::Broken("libcuda.so.1 does not tell its version".to_owned()))?;
    if version < LEAST_VERSION {
        return Err(CudaError::OldDriver { version });
    }
    match result::init() {
        Err(error) if error.0 == sys::CUresult::CUDA_ERROR_NO_DEVICE => return Err(CudaError::NoGpu),
        initialised => initialised.map_err(|error| CudaError::Init { code: error.0 })?,
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
