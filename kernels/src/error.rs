//! The errors of this crate.

/// Why a lane, memory or weights could not be made, or parameters are refused.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// The instruction set is not on this machine.
    #[error("this machine has no {isa}: choose one of {available}")]
    IsaUnavailable {
        /// The one asked for.
        isa: String,
        /// Those that are there.
        available: String,
    },
    /// No such instruction set.
    #[error("unknown instruction set `{name}`: choose one of {known}")]
    UnknownIsa {
        /// The name given.
        name: String,
        /// All there are.
        known: String,
    },
    /// The environment asks for an instruction set that is not there.
    #[error(
        "{variable} in the environment is `{name}`, which this machine has not got: make it one of {available}, or unset it"
    )]
    ForcedIsa {
        /// The variable.
        variable: &'static str,
        /// What it says.
        name: String,
        /// The sets that are there.
        available: String,
    },
    /// No such weight type.
    #[error("unknown dtype `{name}`: choose bf16, f32, int8, fp8 or int4")]
    UnknownDtype {
        /// The name given.
        name: String,
    },
    /// Numbers of few bits where they cannot be.
    #[error("{what} cannot be held in {dtype}, weight matrices alone can: choose bf16 or f32 for it")]
    MatricesAlone {
        /// What was to be held.
        what: &'static str,
        /// In what.
        dtype: &'static str,
    },
    /// Weights in FP8 on a CPU.
    #[error("fp8 weights run on GPUs alone: choose int8, int4 or bf16")]
    Fp8OnCpu,
    /// A weight that numbers of few bits cannot stand for.
    #[error(
        "a weight is {value}, which {dtype} cannot hold (at most {most}, and finite): choose bf16 or f32"
    )]
    Weight {
        /// The weight.
        value: f32,
        /// In what it was to be held.
        dtype: &'static str,
        /// The largest that can be.
        most: &'static str,
    },
    /// A partition with no core.
    #[error("a lane needs at least one core")]
    EmptyPartition,
    /// A helper thread could not be started.
    #[error("cannot start a lane's worker thread: {source} (raise the limit on threads, or use fewer)")]
    Thread {
        /// What the operating system said.
        source: std::io::Error,
    },
    /// Elements that do not make whole rows.
    #[error("{elements} elements do not make whole rows of {columns}")]
    NotWholeRows {
        /// Elements given.
        elements: usize,
        /// Elements of a row.
        columns: usize,
    },
    /// A size that cannot be.
    #[error("{what} cannot be {value}: it must be {must}")]
    Size {
        /// Which size.
        what: &'static str,
        /// Its value.
        value: usize,
        /// What it must be.
        must: &'static str,
    },
    /// A sampling parameter out of range.
    #[error("`{field}` cannot be {value}: it must be {must}")]
    Sampling {
        /// Which parameter.
        field: &'static str,
        /// Its value.
        value: f32,
        /// What it must be.
        must: &'static str,
    },
    /// No memory.
    #[error("cannot get {bytes} bytes of memory for {what}: use fewer KV blocks or a smaller model")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: usize,
        /// For what.
        what: &'static str,
    },
}
