//! Configuration: one YAML file, read once into one validated `Config`. Every key has a default.

mod admin_section;
pub mod changes;
pub mod device;
mod draft_key;
pub mod fields;
mod kv_events_section;
mod node_section;
pub mod raw;
mod read_config;
mod sections;
mod server_section;
pub mod sizes;
mod telemetry_section;
mod topology;
pub mod tunables;

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::Duration;

use faser_actors::{CudaError, Drill, Dtype, Isa};
use faser_engine::Tuning;
use faser_hub::ModelName;
use faser_models::synthetic::SyntheticSpec;
use faser_models::{CallFormat, ReasoningFormat};
use faser_topology::{DraftPlace, Topology};

pub use self::admin_section::{AdminConfig, AdminSocket};
pub use self::kv_events_section::{KvEncoding, KvEventsConfig};
pub use self::node_section::NodeConfig;
pub use self::server_section::{ServerConfig, TlsConfig};
pub use self::telemetry_section::TelemetryConfig;

/// Why a configuration cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{message}", .place.as_ref().map_or_else(String::new, |place| format!("{place}: ")))]
pub struct ConfigError {
    /// `FILE:LINE`, or the flag of the command line; nothing for a default.
    pub place: Option<String>,
    /// What is wrong and what to write instead.
    pub message: String,
}

/// Everything the daemon was told. What of it can change while it runs, `faser_operators::reload` says.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The HTTP side.
    pub server: ServerConfig,
    /// The operators' side.
    pub admin: AdminConfig,
    /// The model pair.
    pub model: ModelSection,
    /// Where it runs.
    pub device: DeviceConfig,
    /// Which of several nodes this is, if the target is split over some.
    pub node: Option<NodeConfig>,
    /// A machine that is planned for, in place of this one.
    pub topology: Option<Topology>,
    /// KV memory.
    pub kv: KvConfig,
    /// Where it is published what of the KV is cached, if anywhere.
    pub kv_events: Option<KvEventsConfig>,
    /// Bounds of the batch and the queue.
    pub scheduler: SchedulerConfig,
    /// How engines decide, and those of their bounds that can change: see [`tunables`].
    pub tuning: Tuning,
    /// Where cost tables are cached between two starts.
    pub cost_cache: CostCache,
    /// Memory of each replica for past outputs, which are proposed from; 0: none are kept.
    pub suffix_bytes: u64,
    /// Whether costs are measured even if they are cached. No key of the file says so, only `--profile`.
    pub profile: bool,
    /// What is logged.
    pub log: LogConfig,
    /// Where traces go.
    pub telemetry: TelemetryConfig,
    /// Whether metrics have vLLM's names too.
    pub vllm_names: bool,
    /// How long SIGTERM waits for sequences in flight.
    pub drain_timeout: Duration,
    /// The pairs, if there are to be several: each is this config with its own sections laid over it.
    pub pairs: Vec<Config>,
}

/// Partitions beside the whole device.
const MOST_PARTITIONS: usize = 8;

impl Config {
    /// What each pair is served by, in order: `pairs`, or this config alone.
    pub fn each(&self) -> &[Config] {
        if self.pairs.is_empty() { std::slice::from_ref(self) } else { &self.pairs }
    }

    /// The config of one pair: of the one that `--model` names, or of the first.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn one(&self, name: Option<&str>) -> Result<Config, ConfigError> {
        let named = |config: &&Config| name.is_none() || config.model.name.as_deref() == name;
        self.each().iter().find(named).cloned().ok_or_else(|| {
            let known = self.each().iter().filter_map(|config| config.model.name.as_deref());
            let known: Vec<&str> = known.collect();
            let message = format!(
                "the config has no pair of this name{}{}",
                if known.is_empty() { ", and no `pairs`: leave it out" } else { "; it has " },
                known.join(", ")
            );
            ConfigError { place: Some("--model".to_owned()), message }
        })
    }

    /// SMs for drafting on each partition behind the first, as the config names them; `None`: those that are sensible for the GPU. Where
    /// the draft is split too there are none: its lane takes turns with the target's.
    pub fn draft_sms(&self) -> Option<&[u32]> {
        if self.device.draft_tensor_parallel > 1 { Some(&[]) } else { self.device.partitions.as_deref() }
    }

    /// In what the keys and values of a model are held whose matrices are held in `dtype`.
    pub fn kv_dtype(&self, dtype: Dtype) -> Dtype {
        self.kv.cache_dtype.unwrap_or(dtype.beside())
    }

    /// Whether a pair can be held by the CPU as the config says; `why` it is not on GPUs is told with what is wrong.
    ///
    /// # Errors
    /// Weights or KV are of a kind that has no kernels there.
    pub fn fits_cpu(&self, why: Option<&str>) -> Result<(), ConfigError> {
        let weights = "int8, int4 or bf16";
        let keys = [
            ("model.dtype", self.model.dtype, weights),
            ("model.draft_dtype", self.model.draft_dtype, weights),
            ("kv.cache_dtype", self.kv.cache_dtype, "auto or int8"),
        ];
        match keys.into_iter().find(|(_, dtype, _)| *dtype == Some(Dtype::Fp8)) {
            None => Ok(()),
            Some((key, _, others)) => {
                let there = why.map_or_else(String::new, |why| format!(", and none is used here: {why}"));
                let message = format!("`{key}: fp8` runs on GPUs alone{there}. On the CPU choose {others}");
                Err(ConfigError { place: None, message })
            }
        }
    }

    /// Whether a pair can be held on GPUs as the config says, whichever they are.
    pub fn fits_gpus(&self) -> Result<(), CudaError> {
        let unfit = |problem: &str| Err(CudaError::Unfit(problem.to_owned()));
        let dtype = self.model.dtype.unwrap_or(Dtype::Bf16);
        // Both lanes' kernels are of one element.
        let fits = |draft: Dtype| draft.beside() == dtype.beside();
        if !self.model.draft_dtype.is_none_or(fits) {
            let problem = "on GPUs a draft is in f32 if its target is, and else is not: leave `model.draft_dtype` out, \
                           or set `device.kind: cpu`";
            return unfit(problem);
        }
        if let Some(dtype) = self.kv.cache_dtype.filter(|dtype| *dtype != Dtype::Fp8) {
            return unfit(&format!("`kv.cache_dtype: {dtype}` is for the CPU alone: choose fp8 or auto"));
        }
        if self.device.pipeline_parallel > 1 {
            return unfit("`device.pipeline_parallel` is for the CPU alone so far: leave it at 1");
        }
        if self.kv.block_size != 16 {
            return unfit("`kv.block_size` must be 16 on a GPU");
        }
        if self.device.draft_tensor_parallel > self.device.tensor_parallel {
            return unfit(
                "on GPUs the draft's ranks are among the target's: set `device.draft_tensor_parallel` to at most `device.tensor_parallel`",
            );
        }
        if self.device.draft_placement == DraftPlace::Own {
            if self.device.draft_tensor_parallel > 1 {
                return unfit(
                    "a draft on a GPU of its own is whole: leave `device.draft_tensor_parallel` at 1",
                );
            }
            if self.device.partitions.is_some() {
                return unfit(
                    "where the draft has a GPU of its own (`device.draft_placement: own`) no SMs are shared: leave `device.partitions` out",
                );
            }
        }
        if self.device.draft_tensor_parallel > 1
            && self.device.partitions.as_ref().is_some_and(|list| !list.is_empty())
        {
            return unfit(
                "`device.partitions` lets draft and target run at the same time, and two groups of NCCL at once on the same GPUs may wait \
                 for each other for ever: write `device.partitions: []`, or leave `device.draft_tensor_parallel` at 1",
            );
        }
        Ok(())
    }
}

/// The model pair.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSection {
    /// What clients call it; `None` names it after its source.
    pub name: Option<String>,
    /// What else they may call it.
    pub aliases: Vec<String>,
    /// Where the weights come from.
    pub source: ModelSource,
    /// In which type weight matrices are held, and KV too unless it is int8 or int4; `None` leaves it to what the checkpoint has and the device computes with.
    pub dtype: Option<Dtype>,
    /// The same of a draft; `None` leaves it to what is measured to gain.
    pub draft_dtype: Option<Dtype>,
    /// How the model writes tool calls.
    pub tool_calls: ToolCalls,
    /// How the model writes its reasoning.
    pub reasoning: Reasoning,
    /// Whether requests begin with what generation_config.json says of sampling.
    pub generation_config: bool,
}

/// How a model writes tool calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolCalls {
    /// As its chat template does.
    Auto,
    /// In this format.
    Format(CallFormat),
    /// Not at all.
    None,
}

/// How a model writes its reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reasoning {
    /// As its chat template does.
    Auto,
    /// In this format.
    Format(ReasoningFormat),
    /// It is not told from the rest.
    None,
}

/// Where weights come from.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelSource {
    /// The pair that ships with faser.
    Demo {
        /// Whether the draft model is used.
        draft: bool,
    },
    /// Directories in Hugging Face's format.
    Directories {
        /// The target model's.
        target: PathBuf,
        /// The draft model's, if there is one.
        draft: Option<PathBuf>,
    },
    /// Models of which at least one is to be downloaded first: what is loaded are [`ModelSource::Directories`] that `faser_loading` makes of them.
    Named {
        /// The target model.
        target: ModelPlace,
        /// The draft model.
        draft: NamedDraft,
    },
    /// A pair made up in memory from a seed.
    Synthetic {
        /// Its shape.
        spec: SyntheticSpec,
        /// Whether the draft model is used.
        draft: bool,
    },
    /// Models that are not there, by their shapes: to plan with.
    Shape {
        /// The target model's.
        target: Box<NamedShape>,
        /// The draft model's, if there is one.
        draft: Option<Box<NamedShape>>,
    },
}

/// Where a model is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelPlace {
    /// In a folder, or a GGUF file.
    Folder(PathBuf),
    /// On the hub.
    Hub(ModelName),
}

/// The draft beside a target that is to be downloaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamedDraft {
    /// There is none.
    None,
    /// This one.
    At(ModelPlace),
    /// What is given as the target is a draft if it names one, in the layout of `speculators`; only its files can tell.
    OfTarget {
        /// Whether it has to be; else a target goes without a draft.
        required: bool,
    },
}

/// The shape of a model, and what it is called.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedShape {
    /// `_name_or_path`, or its place in the config.
    pub name: String,
    /// The shape.
    pub config: faser_models::ModelConfig,
    /// The GGUF file that it is of.
    pub file: Option<PathBuf>,
}

impl ModelSource {
    /// Whether there is a draft model, as far as the config can tell.
    pub fn has_draft(&self) -> bool {
        match self {
            ModelSource::Demo { draft } | ModelSource::Synthetic { draft, .. } => *draft,
            ModelSource::Directories { draft, .. } => draft.is_some(),
            ModelSource::Named { draft, .. } => *draft != NamedDraft::None,
            ModelSource::Shape { draft, .. } => draft.is_some(),
        }
    }
}

/// Which device is to be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// The first GPUs if they can be used, else the CPU.
    Auto,
    /// The CPU.
    Cpu,
    /// The GPUs of these numbers, or nothing. Of one number alone, that GPU and as many behind it as ranks and replicas take.
    Cuda(Vec<usize>),
}

/// Where the pair runs.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceConfig {
    /// On what.
    pub kind: DeviceKind,
    /// Threads of a lane; `None` takes every core this process may use.
    pub threads: Option<usize>,
    /// The instruction set; `None` takes the best one this CPU has, or the one that the environment forces.
    pub isa: Option<Isa>,
    /// SMs of the draft lane where both lanes work at a time, one number for each partition to be had, [`ALL_SMS`](faser_topology::ALL_SMS) where both have
    /// all; `None`: a few sensible for the GPU; empty: both lanes always have all of it, in turns.
    pub partitions: Option<Vec<u32>>,
    /// How much of a GPU's memory may be used, 0 to 1.
    pub gpu_memory_utilization: f64,
    /// Ranks that each layer of the target is split over.
    pub tensor_parallel: usize,
    /// Stages that its layers are split into, each of so many ranks.
    pub pipeline_parallel: usize,
    /// Nodes that have its ranks, each as many.
    pub nodes: usize,
    /// Ranks that the draft is split over.
    pub draft_tensor_parallel: usize,
    /// Where the draft is.
    pub draft_placement: DraftPlace,
    /// On GPUs a row has the same bits whatever is beside it in a pass, as it always has on the CPU.
    pub deterministic: bool,
    /// A rank that another has waited for longer is lost.
    pub rank_deadline: Duration,
    /// Small sums over the GPUs of a group go over each other's memory, where that may be written; else all are NCCL's.
    pub custom_all_reduce: bool,
    /// Services over the pair, each on its part of the cores, or on GPUs of its own.
    pub replicas: usize,
    /// Faults made on purpose; none in a release build.
    pub drills: Vec<Drill>,
    /// GPUs that other pairs have, if this is one of several.
    pub others_gpus: Option<Vec<usize>>,
}

impl DeviceConfig {
    /// Ranks of the target.
    pub fn target_ranks(&self) -> usize {
        self.tensor_parallel * self.pipeline_parallel
    }

    /// GPUs of a replica: one for each rank, and the draft's own behind them, if it has one.
    pub fn gpus_each(&self) -> usize {
        self.target_ranks() / self.nodes + usize::from(self.draft_placement == DraftPlace::Own)
    }

    /// Ranks that each have the draft whole.
    pub fn draft_copies(&self) -> usize {
        if self.draft_placement == DraftPlace::Replicated { self.tensor_parallel } else { 1 }
    }

    /// The GPUs that are asked for, if GPUs are: those of a replica's ranks stand together.
    pub fn gpus(&self) -> Vec<usize> {
        let count = self.gpus_each() * self.replicas;
        match &self.kind {
            DeviceKind::Cuda(listed) if listed.len() > 1 => listed.clone(),
            DeviceKind::Cuda(listed) => listed.iter().flat_map(|first| *first..first + count).collect(),
            _ => {
                let others = self.others_gpus.as_deref().unwrap_or_default();
                (0..).filter(|gpu| !others.contains(gpu)).take(count).collect()
            }
        }
    }
}

/// KV memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvConfig {
    /// Tokens per KV block.
    pub block_size: usize,
    /// Bytes for both pools together; `None` sizes them from the scheduler's bounds and the memory there is.
    pub memory_bytes: Option<u64>,
    /// Whether the KV of finished prompts is kept for later requests with the same beginning.
    pub prefix_cache: bool,
    /// In what keys and values are held; `None`: as `model.dtype`, bf16 beside 8 and 4 bits.
    pub cache_dtype: Option<Dtype>,
}

/// Bounds of the batch and the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// Rows of one pass: the token budget.
    pub max_pass_rows: usize,
    /// Tokens of a sequence, prompt and output together; `None` takes what the models can.
    pub max_context: Option<usize>,
    /// Whether priorities that requests bring count; if not, they are refused.
    pub priorities: bool,
}

/// Where cost tables are cached between two starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CostCache {
    /// Where the environment says.
    Standard,
    /// In this folder, which need not be there yet.
    Folder(PathBuf),
    /// Nowhere: every start measures.
    Off,
}

/// What is logged, to standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// The least important level that is written.
    pub level: tracing::Level,
    /// How a line looks.
    pub format: LogFormat,
}

/// How a line of the log looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Text; what goes to systemd's journal without time and level, for the journal has its own.
    Auto,
    /// For people: with time and level.
    Text,
    /// One JSON object per line.
    Json,
}
