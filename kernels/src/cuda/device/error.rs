//! What can go wrong with a GPU, in words that say what to do.

use crate::cuda::NvrtcError;
use crate::{CollectiveError, Dtype};
use cudarc::driver::sys::CUresult;

/// Why there is no GPU to work with, or why it stopped working.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// The driver's library is not there.
    #[error(
        "there is no CUDA driver on this machine: libcuda.so.1 is not found (install NVIDIA's driver, 580 or later; in a container \
         start it with the GPUs passed through, such as `--gpus all`)"
    )]
    NoDriver,
    /// The driver is too old for the library calls made here.
    #[error("the CUDA driver is too old: it speaks CUDA {}.{}, and 13.0 is needed (update NVIDIA's driver to 580 or later)", version / 1000, version % 1000 / 10)]
    OldDriver {
        /// As the driver counts: 12040 is 12.4.
        version: i32,
    },
    /// There is a driver, and no GPU.
    #[error(
        "the CUDA driver sees no GPU (is one in this machine, visible by CUDA_VISIBLE_DEVICES, and does `nvidia-smi` show it?)"
    )]
    NoGpu,
    /// That GPU is not there.
    #[error("there is no GPU {ordinal}: the driver sees {}", seen.join(", "))]
    NoSuchGpu {
        /// The number asked for.
        ordinal: usize,
        /// Those that are there.
        seen: Vec<String>,
    },
    /// The kernels do not run on it.
    #[error("GPU {ordinal} ({name}) has compute capability {}.{}, and 8.0 or later is needed: choose another GPU or `cpu`", capability.0, capability.1)]
    Capability {
        /// Which GPU.
        ordinal: usize,
        /// What it calls itself.
        name: String,
        /// Major and minor.
        capability: (u32, u32),
    },
    /// A library that passes need is not there.
    #[error(
        "{library} is not found: install the CUDA 13 toolkit or `pip install {package}`, and put its folder into LD_LIBRARY_PATH"
    )]
    NoLibrary {
        /// Its name.
        library: &'static str,
        /// The wheel it is in.
        package: &'static str,
    },
    /// Models cannot be split over GPUs.
    #[error(
        "libnccl.so is not found, by which models are split over GPUs: install NCCL (`pip install nvidia-nccl-cu13`) and put its folder \
         into LD_LIBRARY_PATH; where it has libnccl.so.2 alone, as the wheel, make the link there: `ln -s libnccl.so.2 libnccl.so`"
    )]
    NoNccl,
    /// NCCL is too old for the calls made here.
    #[error("NCCL {} is too old: 2.18 or later is needed (`pip install -U nvidia-nccl-cu13`)", nccl_words(*version))]
    OldNccl {
        /// As NCCL counts: 21003 is 2.10.3.
        version: u32,
    },
    /// The lane's group is lost: others on the other GPUs, or the way to them.
    #[error(transparent)]
    Group(#[from] CollectiveError),
    /// The kernels do not compile here.
    #[error(transparent)]
    Compile(#[from] NvrtcError),
    /// Device memory ran out.
    #[error(
        "GPU memory ran out: {what} takes {wanted_bytes} bytes and {free_bytes} of {total_bytes} are free. Lower \
         scheduler.max_running, scheduler.max_pass_rows, kv.memory or device.gpu_memory_utilization, or end what else runs on this GPU"
    )]
    OutOfMemory {
        /// For what it was wanted.
        what: &'static str,
        /// How much.
        wanted_bytes: usize,
        /// What was left.
        free_bytes: usize,
        /// What the GPU has.
        total_bytes: usize,
    },
    /// The weights do not fit, which is known before any of them is copied.
    #[error(
        "the weights take {needed_bytes} bytes of GPU memory in {dtype}, and {free_bytes} of {total_bytes} are free. Choose a smaller \
         model, or bf16, or end what else runs on this GPU"
    )]
    Weights {
        /// How much they take.
        needed_bytes: u64,
        /// In what they would be held.
        dtype: Dtype,
        /// What is left.
        free_bytes: usize,
        /// What the GPU has.
        total_bytes: usize,
    },
    /// The SMs cannot be partitioned so.
    #[error("the SMs cannot be split: {problem}")]
    Split {
        /// Why, and what can be had.
        problem: String,
    },
    /// This GPU cannot run this model.
    #[error("{0}")]
    Unfit(String),
    /// A call of the driver failed.
    #[error("the CUDA driver failed in {call}: {code:?}")]
    Driver {
        /// Which call, or which kernel.
        call: &'static str,
        /// What it returned. An error of a kernel may come out at a later call.
        code: CUresult,
    },
    /// A call of cublasLt failed.
    #[error("cublasLt failed in {call}: {code}")]
    Blas {
        /// Which call.
        call: &'static str,
        /// What it returned.
        code: String,
    },
    /// A library is damaged or of another version than its name says.
    #[error("the CUDA libraries cannot be used: {0}")]
    Broken(String),
}

/// A version of NCCL as people write it.
fn nccl_words(version: u32) -> String {
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}

/// Names the call of a driver's result.
pub(crate) trait Named<T> {
    fn named(self, call: &'static str) -> Result<T, CudaError>;
}

impl<T> Named<T> for Result<T, cudarc::driver::DriverError> {
    fn named(self, call: &'static str) -> Result<T, CudaError> {
        self.map_err(|error| CudaError::Driver { call, code: error.0 })
    }
}

impl Named<()> for CUresult {
    fn named(self, call: &'static str) -> Result<(), CudaError> {
        self.result().named(call)
    }
}
