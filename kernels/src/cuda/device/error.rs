//! What can go wrong with a GPU, in words that say what to do.

use crate::cuda::libraries::nccl_words;
use crate::cuda::{LibraryError, NvrtcError};
use crate::{CollectiveError, Dtype};
use cudarc::driver::sys::CUresult;

/// Why there is no GPU to work with, or why it stopped working.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// The driver's library is not there.
    #[error(
        "there is no CUDA driver on this machine: libcuda.so.1 is not found (install NVIDIA's driver, 550 or later; in a container \
         start it with the GPUs passed through, such as `--gpus all`)"
    )]
    NoDriver,
    /// The driver is too old for the library calls made here.
    #[error("the CUDA driver is too old: it speaks CUDA {}.{}, and 12.4 is needed (update NVIDIA's driver to 550 or later)", version / 1000, version % 1000 / 10)]
    OldDriver {
        /// As the driver counts: 12040 is 12.4.
        version: i32,
    },
    /// The driver is there and cannot be used as the machine is.
    #[error("the CUDA driver does not start ({code:?}): {}", advice(*code))]
    Init {
        /// What `cuInit` returned.
        code: CUresult,
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
    /// A library that passes need is not there, or does not fit the driver.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// NCCL is too old for the calls made here.
    #[error("NCCL {} is too old: 2.18 or later is needed (`pip install -U nvidia-nccl-cu13`)", nccl_words(*version))]
    OldNccl {
        /// As NCCL counts: 21003 is 2.10.3.
        version: u32,
    },
    /// GPUs whose sums are to be in the order of the ranks may not write each other's memory.
    #[error(
        "sums over {ranks} GPUs cannot be in one order, for not all of them may write each other's memory (by the driver: `nvidia-smi topo -p2p w`), or what they wrote did not come: write \
         `device.deterministic: false`, or split over 2 (`device.tensor_parallel`)"
    )]
    NoPeers {
        /// Ranks of the group.
        ranks: usize,
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
         model, or a model.dtype of fewer bits (bf16, int8, fp8, int4), or end what else runs on this GPU"
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
    /// An error of a kernel or of the hardware has ended the context, and CUDA gives this process no other one.
    #[error("GPU {ordinal} is lost to this process, a new one may open it again: {why}")]
    Lost {
        /// Which GPU.
        ordinal: usize,
        /// What its context says to every call.
        why: Box<CudaError>,
    },
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

/// What to do about an error of `cuInit`.
fn advice(code: CUresult) -> &'static str {
    match code {
        CUresult::CUDA_ERROR_SYSTEM_NOT_READY => {
            "the GPUs are joined by NVSwitch and wait for the fabric manager: install nvidia-fabricmanager of the driver's own version, \
             `systemctl enable --now nvidia-fabricmanager`, and see that `nvidia-smi -q` says Fabric: Completed"
        }
        CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH => {
            "libcuda and the kernel module are of different versions: reboot after an update of the driver; in a container take \
             libcuda from the host, not from the image"
        }
        CUresult::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE => {
            "a libcuda for forward compatibility is found first, which only data-centre GPUs take: take the folder of cuda-compat out of \
             LD_LIBRARY_PATH"
        }
        CUresult::CUDA_ERROR_STUB_LIBRARY => {
            "libcuda is the toolkit's, which is for linking alone: take its folder `stubs` out of LD_LIBRARY_PATH"
        }
        CUresult::CUDA_ERROR_MPS_CONNECTION_FAILED => {
            "the MPS daemon does not answer: start `nvidia-cuda-mps-control -d`, or unset CUDA_MPS_PIPE_DIRECTORY"
        }
        CUresult::CUDA_ERROR_UNKNOWN => {
            "most often /dev/nvidia-uvm is not there or may not be opened: load the module (`nvidia-modprobe -u -c 0`), in a container \
             pass all of /dev/nvidia*, under systemd start after nvidia-persistenced; also after a suspend, and when a GPU has fallen \
             off the bus (`dmesg | grep -i xid`)"
        }
        _ => "see whether `nvidia-smi` works here, and `dmesg | grep -i nvrm`",
    }
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
