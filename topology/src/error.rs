//! The errors of this crate.

use std::fmt;

/// Why a device could not be read, or a plan could not be made.
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// A file of the operating system could not be read.
    #[error("cannot read {path}: {source} (faser needs Linux with /proc mounted)")]
    Read {
        /// The file.
        path: &'static str,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// A file of the operating system does not say what is expected.
    #[error("cannot understand {path}: no usable `{field}`")]
    Parse {
        /// The file.
        path: &'static str,
        /// The line that is missing or malformed.
        field: &'static str,
    },
    /// More threads were asked for than there are cores, or none.
    #[error("{asked} threads do not fit this device: choose 1 to {available}")]
    Threads {
        /// Threads asked for.
        asked: usize,
        /// Cores this process may use.
        available: usize,
    },
    /// A size that must be positive is zero: this field of [`KvRequest`](crate::KvRequest) or [`ModelFootprint`](crate::ModelFootprint).
    #[error("`{0}` must be at least 1")]
    Zero(&'static str),
    /// The context asked for is longer than a model was made for.
    #[error(
        "a context of {asked} tokens is longer than the target model's {limit}: set max_context to at most {limit}"
    )]
    Context {
        /// Tokens asked for.
        asked: usize,
        /// Tokens the model takes.
        limit: usize,
    },
    /// Weights and workspaces alone are larger than the memory.
    #[error(
        "the models' weights and workspaces need {} of the {} there are: {}take a smaller model or leave out the draft",
        Bytes(*needed_bytes), Bytes(*memory_bytes), raised(*utilization).map_or_else(String::new, |advice| advice + ", or ")
    )]
    WeightsDoNotFit {
        /// Weights and workspaces of target and draft.
        needed_bytes: u64,
        /// Memory of the device; of a GPU what may be used.
        memory_bytes: u64,
        /// On a GPU: the least utilization that lets them fit, if one does.
        utilization: Option<f64>,
    },
    /// Somebody else has the GPU's memory.
    #[error(
        "device.gpu_memory_utilization asks for {} of this GPU, and {} are free: {}end what else runs on it",
        Bytes(*asked_bytes), Bytes(*free_bytes), lowered(*free_bytes, *gpu_bytes)
    )]
    GpuTaken {
        /// Memory that may be used.
        asked_bytes: u64,
        /// Memory that nobody has.
        free_bytes: u64,
        /// All of the GPU's.
        gpu_bytes: u64,
    },
    /// The SMs cannot be partitioned so.
    #[error("device.partitions has {asked}, but drafting on a GPU of {sms} SMs can have {fitting}")]
    Split {
        /// SMs asked for.
        asked: u32,
        /// SMs of the GPU.
        sms: u32,
        /// What can be had.
        fitting: String,
    },
    /// The KV memory asked for is more than what is left beside the weights.
    #[error(
        "kv.memory of {} is more than the {} left beside weights and workspaces: set it to at most {}",
        Bytes(*asked_bytes), Bytes(*left_bytes), Bytes(*left_bytes)
    )]
    KvMemory {
        /// KV memory asked for.
        asked_bytes: u64,
        /// Memory left.
        left_bytes: u64,
    },
    /// Not even one sequence of the longest context fits.
    #[error(
        "one sequence of {max_context} tokens needs {} of KV memory, there are {}: {}",
        Bytes(*needed_bytes), Bytes(*kv_bytes), would_fit(*fitting_context, *needed_bytes, *left_bytes, *utilization)
    )]
    DoesNotFit {
        /// Tokens of the sequence.
        max_context: usize,
        /// KV memory such a sequence needs.
        needed_bytes: u64,
        /// KV memory the plan would give.
        kv_bytes: u64,
        /// Memory left beside weights and workspaces: the most that `kv.memory` may be.
        left_bytes: u64,
        /// The longest context that fits in `kv_bytes`; 0 if none does.
        fitting_context: usize,
        /// On a GPU: the least utilization that lets it fit, if one does.
        utilization: Option<f64>,
    },
}

fn raised(utilization: Option<f64>) -> Option<String> {
    utilization.map(|least| format!("set device.gpu_memory_utilization to at least {least:.2}"))
}

fn lowered(free_bytes: u64, gpu_bytes: u64) -> String {
    let share = (100.0 * free_bytes as f64 / gpu_bytes as f64).floor() / 100.0;
    // Less than the key takes.
    if share < 0.05 { String::new() } else { format!("set it to at most {share:.2}, or ") }
}

fn would_fit(context: usize, needed_bytes: u64, left_bytes: u64, utilization: Option<f64>) -> String {
    let mut advice = Vec::new();
    if context > 0 {
        advice.push(format!("set max_context to at most {context}"));
    }
    if needed_bytes <= left_bytes {
        advice.push(format!("set kv.memory to {needed_bytes} bytes or more"));
    }
    advice.extend(raised(utilization));
    if advice.is_empty() {
        advice.push("take a smaller model or more memory".to_owned());
    }
    advice.join(", or ")
}

/// Bytes for people: in GiB or MiB, two decimals.
pub(crate) struct Bytes(pub(crate) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0 as f64;
        if bytes >= f64::from(1 << 30) {
            write!(f, "{:.2} GiB", bytes / f64::from(1 << 30))
        } else {
            write!(f, "{:.2} MiB", bytes / f64::from(1 << 20))
        }
    }
}
