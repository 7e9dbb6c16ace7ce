//! The crate's error: every message names the file, and the key, tensor or field to change.

use std::path::{Path, PathBuf};

use faser_kernels::KernelError;
use faser_kernels::cuda::CudaError;

/// Why a model, a tokenizer or a chat template could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A file is missing or cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// A file is not the JSON it should be.
    #[error("{} is not valid: {problem}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong and what was expected.
        problem: String,
    },
    /// What is there is not a model's folder.
    #[error("{} {problem}", path.display())]
    NoModel {
        /// What was given.
        path: PathBuf,
        /// What it is, and what to do.
        problem: String,
    },
    /// A key of a JSON file has a value that is wrong or cannot be honoured.
    #[error("{}: `{key}` {problem}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// The key, with dots for nesting.
        key: String,
        /// What is wrong and what is supported.
        problem: String,
    },
    /// A tensor that config.json asks for is not in the checkpoint.
    #[error("{}: there is no tensor `{tensor}`, which config.json asks for ({reason})", path.display())]
    MissingTensor {
        /// The safetensors file or, of a sharded checkpoint, its index.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The keys of config.json that make it necessary.
        reason: String,
    },
    /// A tensor's shape does not fit config.json.
    #[error("{}: tensor `{tensor}` has shape {found:?}, but config.json gives {expected:?} ({reason})", path.display())]
    Shape {
        /// The safetensors file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its shape in the file.
        found: Vec<usize>,
        /// The shape that follows from config.json.
        expected: Vec<usize>,
        /// The keys of config.json the shape follows from.
        reason: String,
    },
    /// A tensor is stored in a number format that is not supported.
    #[error("{}: tensor `{tensor}` is stored as {dtype}; supported are BF16, F16 and F32", path.display())]
    TensorDtype {
        /// The safetensors file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its format in the file.
        dtype: String,
    },
    /// The checkpoint has a tensor that config.json gives no place.
    #[error(
        "{}: tensor `{}` has no place in the model that config.json describes{hint}",
        path.display(), tensor.escape_debug()
    )]
    UnexpectedTensor {
        /// The safetensors file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The key to look at, or nothing.
        hint: String,
    },
    /// Target and draft model do not speak the same tokens.
    #[error("target and draft model do not fit together: {0}")]
    Pair(String),
    /// A model cannot be split over so many ranks.
    #[error("the model cannot be split over {ranks} ranks: {problem}")]
    Shard {
        /// Ranks of the group.
        ranks: usize,
        /// What does not divide.
        problem: String,
    },
    /// A field of a synthetic pair's shape is impossible.
    #[error("synthetic pair: `{field}` {problem}")]
    Synthetic {
        /// The field.
        field: &'static str,
        /// What is wrong and what to write instead.
        problem: String,
    },
    /// The tokenizer refused a text.
    #[error("cannot tokenize: {0}")]
    Tokenize(String),
    /// The model directory has no chat template.
    #[error(
        "{} has no chat template: give `chat_template` in tokenizer_config.json or a file chat_template.jinja, or use /v1/completions",
        path.display()
    )]
    NoChatTemplate {
        /// The model directory.
        path: PathBuf,
    },
    /// The chat template cannot be compiled, or refused the messages.
    #[error("chat template of {}: {problem}", path.display())]
    ChatTemplate {
        /// The file the template stands in.
        path: PathBuf,
        /// The template's own words, or the line that is wrong.
        problem: String,
    },
    /// A weight is no number, or infinite.
    #[error(
        "`{tensor}` has {value} at place {place}: a damaged checkpoint, or one whose training went wrong; download it again"
    )]
    NotFinite {
        /// The tensor.
        tensor: String,
        /// Which of its numbers, row by row.
        place: usize,
        /// What stands there.
        value: f32,
    },
    /// A matrix cannot be packed.
    #[error("cannot pack `{tensor}`: {source}")]
    Pack {
        /// The tensor, or the first of those that are fused.
        tensor: String,
        /// Why.
        source: KernelError,
    },
    /// The device refused.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The GPU refused.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

impl ModelError {
    pub(crate) fn read(path: &Path, source: std::io::Error) -> Self {
        Self::Read { path: path.to_owned(), source }
    }

    pub(crate) fn format(path: &Path, problem: &impl ToString) -> Self {
        Self::Format { path: path.to_owned(), problem: problem.to_string() }
    }

    pub(crate) fn key(path: &Path, key: &str, problem: impl Into<String>) -> Self {
        Self::Key { path: path.to_owned(), key: key.to_owned(), problem: problem.into() }
    }
}
