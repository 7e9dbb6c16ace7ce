//! What cost tables are true of: models, device, sizes, and the build that measured them. Written out in clear.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use faser_actors::{DeviceSpec, LaneSizes, ModelFacts, ProfileSpec};
use faser_engine::cost::ROW_GRID;
use faser_models::synthetic::SyntheticSpec;
use faser_models::{ModelError, weight_files};
use faser_topology::LanePair;
use serde::Serialize;

use crate::device::Machine;

/// A header longer than this is not read to its end: it is told apart by its beginning and its length.
const MOST_HEADER_BYTES: u64 = 1 << 20;

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
    /// The row counts of the tables.
    row_grid: [usize; ROW_GRID.len()],
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct ModelKey {
    architecture: String,
    layers: usize,
    hidden: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    intermediate: usize,
    vocab: usize,
    /// Runs of layers with the same window: how many, and the window in tokens.
    windows: Vec<(usize, Option<usize>)>,
    dtype: String,
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
                    draft: pair.draft.cores.clone(),
                    verify: pair.verify.cores.clone(),
                };
                let (target_ranks, draft_ranks) = device.ranks();
                DeviceKey::Cpu {
                    cpu: machine.name().to_owned(),
                    isa: spec.isa.to_string(),
                    target_ranks,
                    draft_ranks,
                    partitions: spec.partitions.iter().map(cores).collect(),
                }
            }
            (DeviceSpec::Cuda(spec), machine) => {
                let info = &spec.device.source().info;
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
            row_grid: ROW_GRID,
        }
    }
}

impl ModelKey {
    fn new(model: &ModelFacts, weights: Weights) -> ModelKey {
        let config = &model.config;
        let runs = config.windows.chunk_by(|a, b| a == b);
        ModelKey {
            architecture: format!("{:?}", config.architecture),
            layers: config.layers,
            hidden: config.hidden,
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            intermediate: config.intermediate,
            vocab: config.vocab,
            windows: runs.map(|run| (run.len(), run[0])).collect(),
            dtype: model.dtype.to_string(),
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
mod tests {
    use std::fs;
    use std::sync::Arc;

    use faser_actors::{CpuGroup, CpuSpec, CudaDevice, CudaGroup, CudaSource, CudaSpec, Dtype, GpuInfo, Isa};
    use faser_models::{Model, synthetic};
    use faser_topology::{CpuDevice, GpuDevice, Partition};
    use serde_json::Value;

    use super::super::tests::Folder;
    use super::*;

    #[test]
    fn the_hash_is_fnv_1a() {
        for (text, hex) in
            [("", "cbf29ce484222325"), ("a", "af63dc4c8601ec8c"), ("foobar", "85944171f73967e8")]
        {
            let mut hash = Fnv::default();
            hash.update(text.as_bytes());
            assert_eq!(hash.hex(), hex);
        }
    }

    #[test]
    fn weights_are_told_by_size_and_header_wherever_they_lie() {
        let of = |name: &str, header: &str, weights: usize| {
            let folder = Folder::new(name);
            let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
            bytes.extend(header.as_bytes());
            bytes.resize(bytes.len() + weights, 7);
            fs::create_dir_all(&folder.0).unwrap();
            fs::write(folder.0.join("model.safetensors"), bytes).unwrap();
            Weights::of_folder(&folder.0).unwrap()
        };
        let here = of("here", "{\"a\": 1}", 100);
        assert_eq!(here, of("there", "{\"a\": 1}", 100));
        assert_ne!(here, of("longer", "{\"a\": 1}", 101));
        assert_ne!(here, of("other", "{\"b\": 1}", 100));
        assert!(matches!(here, Weights::Checkpoint { bytes: 116, .. }), "{here:?}");
        let missing = Weights::of_folder(Path::new("nowhere")).unwrap_err().to_string();
        assert!(missing.contains("nowhere"), "{missing}");
    }

    #[test]
    fn whatever_changes_a_cost_changes_the_key() {
        let shape = SyntheticSpec {
            layers: 2,
            draft_layers: 1,
            hidden: 32,
            intermediate: 32,
            heads: 2,
            kv_heads: 1,
            vocab: 256,
            max_context: 64,
            seed: 1,
            residual_scale: 0.1,
        };
        let (target, draft) = synthetic::pair(&shape, Dtype::F32, &mut |_| {}).unwrap();
        let (target, draft) = (Arc::new(target), Arc::new(draft));
        let device = |draft: &Arc<Model>, cores: &[usize], isa| {
            let lane = Partition { cores: cores.to_vec() };
            let partitions = vec![LanePair { draft: lane.clone(), verify: lane }];
            DeviceSpec::Cpu(CpuSpec {
                target: target.clone(),
                draft: Some(draft.clone()),
                partitions,
                isa,
                group: CpuGroup::default(),
            })
        };
        let one = device(&draft, &[0], Isa::Portable);
        let machine = |name: &str| {
            let device =
                CpuDevice { name: name.to_owned(), nodes: Vec::new(), cores: vec![0], memory_bytes: 1 };
            Machine::Cpu { device, isa: Isa::Portable, why: None }
        };
        let weights = || [Weights::of_synthetic(&shape), Weights::of_synthetic(&shape)];
        let of = |device: &DeviceSpec, [block_size, max_rows, max_context]: [usize; 3]| {
            let spec = ProfileSpec { device, block_size, max_rows, max_context };
            Key::new(&spec, &machine("a cpu"), weights())
        };
        let sizes = [16, 64, 64];
        let spec = ProfileSpec { device: &one, block_size: 16, max_rows: 64, max_context: 64 };
        let other = Weights::of_synthetic(&SyntheticSpec { seed: 2, ..shape.clone() });
        let key = of(&one, sizes);
        assert_eq!(key, of(&one, sizes));
        for changed in [
            of(&device(&draft, &[0, 1], Isa::Portable), sizes),
            of(&device(&draft, &[0], Isa::Avx2), sizes),
            of(&device(&target, &[0], Isa::Portable), sizes),
            of(&one, [16, 65, 64]),
            of(&one, [8, 64, 64]),
            of(&one, [16, 64, 32]),
            Key::new(&spec, &machine("another cpu"), weights()),
            Key::new(&spec, &machine("a cpu"), [other, Weights::of_synthetic(&shape)]),
        ] {
            assert_ne!(key, changed);
        }
        // What a person looks for stands there in clear.
        let written = serde_json::to_value(&key).unwrap();
        assert_eq!(written["device"]["cpu"], "a cpu");
        assert_eq!(written["device"]["partitions"][0]["verify"], Value::from(vec![0]));
        assert_eq!((&written["target"]["layers"], &written["target"]["dtype"]), (&2.into(), &"f32".into()));
        assert_eq!(written["target"]["weights"]["synthetic"]["residual_scale"], "0.1");
        assert_eq!(written["faser"], env!("CARGO_PKG_VERSION"));
    }

    #[test]
    fn a_gpus_key_has_what_changes_its_costs() {
        let shape = SyntheticSpec::preset("tiny").unwrap();
        let (target, draft) = synthetic::pair(&shape, Dtype::F32, &mut |_| {}).unwrap();
        let facts = [ModelFacts::of(&target), ModelFacts::of(&draft)];
        let over = |ranks: usize, change: &dyn Fn(&mut GpuInfo), draft_sms: &[u32], host: &str| {
            let mut info = GpuInfo {
                ordinal: 0,
                name: "a GPU".to_owned(),
                sms: 132,
                memory_bytes: 80 << 30,
                capability: (9, 0),
                block_shared_bytes: 232_448,
                cuda_version: 13_000,
            };
            change(&mut info);
            let (first, ordinals) = (info.clone(), vec![0]);
            let machine = Machine::Gpus { first, ordinals, host: host.to_owned() };
            let [target, draft] = facts.clone();
            // Never opened.
            let device = || {
                CudaDevice::new(CudaSource {
                    device: GpuDevice { sms: info.sms, memory_bytes: info.memory_bytes, utilization: 0.9 },
                    info: info.clone(),
                    kernel_cache: None,
                    target: target.clone(),
                    draft: Some(draft.clone()),
                    weights: Arc::new(|_, _| Ok(Vec::new())),
                })
            };
            let others = (1..ranks).map(|_| device()).collect();
            let group = CudaGroup { others, ..CudaGroup::default() };
            let device =
                DeviceSpec::Cuda(CudaSpec { device: device(), draft_sms: draft_sms.to_vec(), group });
            let spec = ProfileSpec { device: &device, block_size: 16, max_rows: 64, max_context: 64 };
            Key::new(&spec, &machine, [Weights::of_synthetic(&shape), Weights::of_synthetic(&shape)])
        };
        let of =
            |change: &dyn Fn(&mut GpuInfo), draft_sms: &[u32], host: &str| over(1, change, draft_sms, host);
        let key = of(&|_| {}, &[16], "a cpu");
        assert_eq!(key, of(&|info| info.memory_bytes = 1 << 30, &[16], "a cpu"));
        for changed in [
            of(&|info| info.name = "another".to_owned(), &[16], "a cpu"),
            of(&|info| info.sms = 78, &[16], "a cpu"),
            of(&|info| info.cuda_version = 13_010, &[16], "a cpu"),
            of(&|_| {}, &[16, 32], "a cpu"),
            of(&|_| {}, &[16], "another cpu"),
            over(2, &|_| {}, &[16], "a cpu"),
        ] {
            assert_ne!(key, changed);
        }
        let written = serde_json::to_value(&key).unwrap();
        assert_eq!(written["device"]["gpu"], "a GPU");
        assert_eq!(written["device"]["partitions"][1], serde_json::json!({"draft": 16, "verify": 116}));
    }
}
