//! An opened GPU: its primary context, and every kernel of the table loaded into it.

use super::error::{CudaError, Named};
use super::probe::{GpuInfo, probe_one};
use crate::cuda::cubins::{Cubins, libraries};
use crate::cuda::{File, files};
use cudarc::driver::{result, sys};
use std::collections::HashMap;
use std::ffi::CString;
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// A GPU with its kernels. Everything that lives on it keeps it open.
pub struct Gpu {
    info: GpuInfo,
    pub(super) device: sys::CUdevice,
    context: sys::CUcontext,
    loaded: Loaded,
    kernels_from: String,
    /// Kernels that are not in the table, once they were asked for.
    others: OnceLock<Loaded>,
}

/// Modules, and what is in them by name.
#[derive(Default)]
struct Loaded {
    modules: Vec<sys::CUmodule>,
    functions: HashMap<&'static str, sys::CUfunction>,
}

// SAFETY: the driver's handles may be used from any thread to which the context is bound; all that can be changed through them is
// behind the driver's own locks. The table does not change once the GPU is open.
unsafe impl Send for Gpu {}
// SAFETY: as above.
unsafe impl Sync for Gpu {}

impl Gpu {
    /// Opens the GPU of that number and loads the kernels: those in this binary, or else compiled, or taken from the folder `cache`. The
    /// calling thread is bound to it.
    ///
    /// # Errors
    /// There is no such GPU, a library is missing, or the kernels do not compile or load.
    pub fn open(ordinal: usize, cache: Option<&Path>) -> Result<Arc<Gpu>, CudaError> {
        let info = probe_one(ordinal)?;
        libraries(&info.arch())?;
        let mut cubins = Cubins::new(&info.arch(), cache);
        let device = result::device::get(info.ordinal as i32).named("cuDeviceGet")?;
        // SAFETY: the device is there; what is retained is released when this is dropped.
        let context = unsafe { result::primary_ctx::retain(device) }.named("cuDevicePrimaryCtxRetain")?;
        let (loaded, others) = (Loaded::default(), OnceLock::new());
        let mut gpu = Gpu { info, device, context, loaded, kernels_from: String::new(), others };
        gpu.bind()?;
        let mut loaded = Loaded::default();
        let all = gpu.load(&mut cubins, files(), &mut loaded);
        gpu.kernels_from = cubins.to_string();
        // What is loaded is unloaded with the GPU, also if not all of it could be.
        gpu.loaded = loaded;
        all?;
        Ok(Arc::new(gpu))
    }

    /// Loads the kernels of files that are not in the table; only once, whoever asks again. The calling thread is bound to the GPU.
    ///
    /// # Errors
    /// They do not compile or load.
    pub fn load_also(&self, files: &[File]) -> Result<(), CudaError> {
        self.bind()?;
        if self.others.get().is_some() {
            return Ok(());
        }
        let mut cubins = Cubins::new(&self.info.arch(), None);
        let mut loaded = Loaded::default();
        let all = self.load(&mut cubins, files, &mut loaded);
        if let Err(twice) = self.others.set(loaded) {
            twice.unload();
        }
        all
    }

    fn load(&self, cubins: &mut Cubins, files: &[File], to: &mut Loaded) -> Result<(), CudaError> {
        for file in files {
            let cubin = cubins.cubin(file)?;
            // SAFETY: a whole cubin; the driver copies it.
            let load = |cubin: &[u8]| unsafe { result::module::load_data(cubin.as_ptr().cast()) };
            let module =
                load(&cubin).or_else(|error| cubins.instead(file).map_or(Err(error), |other| load(&other)));
            let module = module.named("cuModuleLoadData")?;
            to.modules.push(module);
            for kernel in file.kernels() {
                let name = CString::new(kernel.name).expect("names have no NUL");
                // SAFETY: the module stays loaded as long as the function is in the table.
                let function = unsafe { result::module::get_function(module, name) };
                let function = function.named("cuModuleGetFunction")?;
                if file.name == "attention_mma" {
                    self.take_all_shared_memory(function)?;
                }
                // Not at its first launch, in the middle of serving, which would wait for both lanes.
                // SAFETY: as above.
                unsafe { sys::cuFuncLoad(function) }.named("cuFuncLoad")?;
                to.functions.insert(kernel.name, function);
            }
        }
        Ok(())
    }

    /// What it is.
    #[must_use]
    pub fn info(&self) -> &GpuInfo {
        &self.info
    }

    /// Where its kernels came from, for people.
    #[must_use]
    pub fn kernels_from(&self) -> &str {
        &self.kernels_from
    }

    /// Binds the calling thread to it. Each thread that allocates or launches does so once; the rest of this module does it where it must.
    ///
    /// # Errors
    /// The context was destroyed.
    pub fn bind(&self) -> Result<(), CudaError> {
        // SAFETY: the context is retained as long as this lives.
        unsafe { result::ctx::set_current(self.context) }.named("cuCtxSetCurrent")
    }

    /// Bytes that are free, and all there are.
    ///
    /// # Errors
    /// The context does not answer, such as after a kernel's illegal memory access.
    pub fn memory(&self) -> Result<(usize, usize), CudaError> {
        self.bind()?;
        result::mem_get_info().named("cuMemGetInfo")
    }

    /// Waits until everything that was asked of this GPU is done.
    ///
    /// # Errors
    /// Something of it failed.
    pub fn finish(&self) -> Result<(), CudaError> {
        self.bind()?;
        result::ctx::synchronize().named("cuCtxSynchronize")
    }

    /// Whether its kernels may write memory of another GPU, or its own; from now on, if so. Whatever the driver has against it, there is a way without: what else
    /// is wrong shows at the next call.
    ///
    /// # Errors
    /// The context is gone.
    pub(super) fn may_write_to(&self, other: &Gpu) -> Result<bool, CudaError> {
        if self.device == other.device {
            return Ok(true);
        }
        let mut may = 0;
        // SAFETY: a place for a number; both devices are there.
        let asked = unsafe { sys::cuDeviceCanAccessPeer(&raw mut may, self.device, other.device) };
        if asked != sys::CUresult::CUDA_SUCCESS || may == 0 {
            return Ok(false);
        }
        self.bind()?;
        // SAFETY: both contexts are retained.
        let enabled = unsafe { sys::cuCtxEnablePeerAccess(other.context, 0) };
        // Another lane may have done it.
        let already = sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
        Ok(enabled == sys::CUresult::CUDA_SUCCESS || enabled == already)
    }

    /// The function of a kernel.
    pub(super) fn function(&self, kernel: &'static str) -> sys::CUfunction {
        let function = self.loaded.functions.get(kernel);
        let function = function.or_else(|| self.others.get()?.functions.get(kernel));
        *function.unwrap_or_else(|| panic!("no kernel {kernel} in the table"))
    }

    /// More than 48 KiB of dynamic shared memory has to be asked for, once for each function.
    fn take_all_shared_memory(&self, function: sys::CUfunction) -> Result<(), CudaError> {
        use sys::CUfunction_attribute as Attribute;
        // SAFETY: the function was just given out by the driver.
        let fixed = unsafe {
            result::function::get_function_attribute(function, Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)
        };
        let most = self.info.block_shared_bytes as i32 - fixed.named("cuFuncGetAttribute")?;
        let which = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: as above.
        unsafe { result::function::set_function_attribute(function, which, most) }.named("cuFuncSetAttribute")
    }
}

impl Loaded {
    fn unload(&self) {
        for module in &self.modules {
            // SAFETY: nothing of it runs any more. An error leaves it loaded until the process ends.
            let _ = unsafe { result::module::unload(*module) };
        }
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        if self.bind().is_err() {
            return;
        }
        // Whatever launches keeps the GPU open.
        [Some(&self.loaded), self.others.get()].into_iter().flatten().for_each(Loaded::unload);
        // SAFETY: retained once in `open`.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

impl std::fmt::Debug for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gpu").field("info", &self.info).finish_non_exhaustive()
    }
}
