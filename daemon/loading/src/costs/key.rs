//! What cost tables are true of: models, device, sizes, and the build that measured them. Written out in clear.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use faser_actors::{DeviceSpec, LaneSizes, ModelFacts, ProfileSpec};
use faser_config::device::Machine;
use faser_engine::cost::ROW_GRID;
use faser_models::synthetic::SyntheticSpec;
use faser_models::{ModelError, weight_files};
use faser_topology::LanePair;
use serde::Serialize;

/// A header longer than this is not read to its end: it is told apart by its beginning and its length.
const MOST_HEADER_BYTES: u64 = 1 << 20;

/// Of each file of weights so many samples of so many bytes are looked at.
const SAMPLES: u64 = 64;
const SAMPLE_BYTES: u64 = 256;

/// Tables with equal keys may stand for each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Key {
    faser: &'static str,
    /// A debug build is slower.
    build: &'static str,
    target: ModelKey,
    draft: ModelKey,
    device: DeviceKey,
    block_size: usize,
    max_rows: usize,
    max_context: usize,
    deterministic: bool,
    /// The row counts that every table begins with.
    row_grid: [usize; ROW_GRID.len()],
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct ModelKey {
    architecture: String,
    layers: usize,
    /// Runs of equal layers: how many, and what they compute.
    kinds: Vec<(usize, String)>,
    hidden: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    intermediate: usize,
    vocab: usize,
    dtype: String,
    kv_dtype: String,
    weight_bytes: u64,
    weights: Weights,
}

/// Where a model's weights come from; the folder they lie in does not count.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Weights {
    /// Safetensors files: their size, and a hash of their headers.
    Checkpoint { bytes: u64, headers: String },
    /// Made from a seed; target and draft share what they have in common.
    Synthetic { draft_layers: usize, seed: u64, residual_scale: String },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
enum DeviceKey {
    Cpu {
        cpu: String,
        isa: String,
        /// Over how many target and draft are split.
        target_ranks: usize,
        draft_ranks: usize,
        /// Stages of the target's layers, and its ranks here.
        stages: usize,
        ranks_here: usize,
        partitions: Vec<PartitionKey<Vec<usize>>>,
    },
    Gpu {
        gpu: String,
        sms: u32,
        capability: (u32, u32),
        /// The CUDA that the driver speaks.
        cuda: u32,
        /// The processor, which launches.
        host: String,
        /// Over how many GPUs target and draft are split.
        target_ranks: usize,
        draft_ranks: usize,
        /// Small sums over GPUs may go over their memory.
        custom_all_reduce: bool,
        /// The draft has a GPU of its own.
        draft_apart: bool,
        partitions: Vec<PartitionKey<usize>>,
    },
}

/// Cores of both lanes, or how many SMs each has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct PartitionKey<T> {
    draft: T,
    verify: T,
}

impl DeviceKey {
    fn new(device: &DeviceSpec, machine: &Machine) -> DeviceKey {
        match (device, machine) {
            (DeviceSpec::Cpu(spec), machine) => {
                let cores = |pair: &LanePair| PartitionKey {
                    // A rank's, where each has the draft whole.
                    draft: pair.draft.split(spec.copies().unwrap_or(1))[0].cores.clone(),
                    verify: pair.verify.cores.clone(),
                };
                let (target_ranks, draft_ranks) = device.ranks();
                DeviceKey::Cpu {
                    cpu: machine.name().to_owned(),
                    isa: spec.isa.to_string(),
                    target_ranks,
                    draft_ranks,
                    stages: spec.target[0].shard().stages,
                    ranks_here: spec.target.len(),
                    partitions: spec.partitions.iter().map(cores).collect(),
                }
            }
            (DeviceSpec::Cuda(spec), machine) => {
                let info = &spec.ranks[0].source().info;
                let host =
                    if let Machine::Gpus { host, .. } = machine { host.clone() } else { String::new() };
                let (target_ranks, draft_ranks) = device.ranks();
                let sms = |sizes: &LaneSizes| PartitionKey { draft: sizes.draft, verify: sizes.verify };
                DeviceKey::Gpu {
                    gpu: info.name.clone(),
                    sms: info.sms,
                    capability: info.capability,
                    cuda: info.cuda_version,
                    host,
                    target_ranks,
                    draft_ranks,
                    custom_all_reduce: spec.group.custom_all_reduce && target_ranks.max(draft_ranks) > 1,
                    draft_apart: spec.apart.is_some(),
                    partitions: device.partitions().iter().map(sms).collect(),
                }
            }
        }
    }
}

impl Key {
    /// The key of what `spec` measures; `weights` are the target's and the draft's.
    pub(crate) fn new(spec: &ProfileSpec<'_>, machine: &Machine, weights: [Weights; 2]) -> Key {
        let [target, draft] = weights;
        let facts = spec.device.target();
        // Nothing is measured without a draft.
        let draft_facts = spec.device.draft().unwrap_or_else(|| facts.clone());
        Key {
            faser: env!("CARGO_PKG_VERSION"),
            build: if cfg!(debug_assertions) { "debug" } else { "release" },
            target: ModelKey::new(&facts, target),
            draft: ModelKey::new(&draft_facts, draft),
            device: DeviceKey::new(spec.device, machine),
            block_size: spec.block_size,
            max_rows: spec.max_rows,
            max_context: spec.max_context,
            deterministic: spec.deterministic,
            row_grid: ROW_GRID,
        }
    }
}

impl ModelKey {
    fn new(model: &ModelFacts, weights: Weights) -> ModelKey {
        let config = &model.config;
        let runs = config.layers.chunk_by(|a, b| a == b);
        ModelKey {
            architecture: format!("{:?}", config.architecture),
            layers: config.layers.len(),
            kinds: runs.map(|run| (run.len(), format!("{:?}", run[0]))).collect(),
            hidden: config.hidden,
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            intermediate: config.intermediate,
            vocab: config.vocab,
            dtype: model.dtype.to_string(),
            kv_dtype: model.kv_dtype.to_string(),
            weight_bytes: model.weight_bytes,
            weights,
        }
    }
}

impl Weights {
    /// The weights of a model directory, told by sizes and headers alone: reading them all would take as long as measuring.
    ///
    /// # Errors
    /// There are none, or they cannot be read.
    pub(crate) fn of_folder(folder: &Path) -> Result<Weights, ModelError> {
        let mut bytes = 0;
        let mut hash = Fnv::default();
        for path in weight_files(folder)? {
            let header = header(&path).map_err(|source| ModelError::Read { path, source })?;
            bytes += header.file_bytes;
            hash.update(&header.file_bytes.to_le_bytes());
            hash.update(&header.text);
        }
        Ok(Weights::Checkpoint { bytes, headers: hash.hex() })
    }

    /// The weights of a synthetic pair. Of what else is in `spec` the models' shapes tell.
    pub(crate) fn of_synthetic(spec: &SyntheticSpec) -> Weights {
        Weights::Synthetic {
            draft_layers: spec.draft_layers,
            seed: spec.seed,
            residual_scale: spec.residual_scale.to_string(),
        }
    }
}

/// Bytes here and there of a model directory's weights, hashed: models that differ in nothing but their training differ in it.
///
/// # Errors
/// The weights are not there, or cannot be read.
pub(super) fn sample(folder: &Path) -> Result<String, ModelError> {
    let mut hash = Fnv::default();
    for path in weight_files(folder)? {
        let sampled = sample_file(&path, &mut hash);
        sampled.map_err(|source| ModelError::Read { path, source })?;
    }
    Ok(hash.hex())
}

fn sample_file(path: &Path, hash: &mut Fnv) -> io::Result<()> {
    let mut file = File::open(path)?;
    let bytes = file.metadata()?.len();
    for place in 1..=SAMPLES {
        file.seek(SeekFrom::Start(bytes / (SAMPLES + 1) * place))?;
        let mut some = Vec::with_capacity(SAMPLE_BYTES as usize);
        (&mut file).take(SAMPLE_BYTES).read_to_end(&mut some)?;
        hash.update(&some);
    }
    Ok(())
}

struct Header {
    file_bytes: u64,
    text: Vec<u8>,
}

/// A safetensors file begins with the length of its header, eight bytes, and the header.
fn header(path: &Path) -> io::Result<Header> {
    let mut file = File::open(path)?;
    let file_bytes = file.metadata()?.len();
    let mut length = [0; 8];
    file.read_exact(&mut length)?;
    let mut text = length.to_vec();
    file.take(u64::from_le_bytes(length).min(MOST_HEADER_BYTES)).read_to_end(&mut text)?;
    Ok(Header { file_bytes, text })
}

/// FNV-1a of 64 bits: the same in every build, which the standard library's hash does not promise.
pub(super) struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Fnv {
        Fnv(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    pub(super) fn update(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    /// 16 hexadecimal digits.
    pub(super) fn hex(&self) -> String {
        format!("{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests;
