//! From a config to a running pair: weights, tokenizer, placement, service.

use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use faser_actors::{
    CudaError, Dtype, Isa, PassLimits, ProfileSpec, Sampling, Service, ServiceSpec, Submission, Update,
    WatchdogConfig,
};
use faser_engine::{EngineConfig, FinishReason, TokenId};
use faser_models::{
    ChatTemplate, Model, ModelError, Progress, Scratch, Tokenizer, check_pair, on_nodes, synthetic,
};
use faser_topology::{CpuDevice, KvRequest, ModelFootprint, Placement, place};

use crate::app::Served;
use crate::config::{Config, DeviceKind, ModelSource};
use crate::costs::{CostSource, tables};
use crate::device::{Chosen, choose};
use crate::error::DaemonError;
use crate::locate;
use crate::sequence::SequenceError;

/// A pair with its weights in memory and its place on the device; nothing runs yet.
pub struct Loaded {
    /// What clients call it.
    pub name: String,
    /// The target model.
    pub target: Arc<Model>,
    /// The draft model.
    pub draft: Option<Arc<Model>>,
    /// The tokenizer of both.
    pub tokenizer: Arc<Tokenizer>,
    /// The chat template, or why there is none.
    pub template: Result<ChatTemplate, ModelError>,
    /// The device.
    pub device: CpuDevice,
    /// Why that is not a GPU, if it was left open.
    pub why_cpu: Option<String>,
    /// Where everything goes.
    pub placement: Placement,
    /// The instruction set.
    pub isa: Isa,
    /// The engine's bounds, and its cost tables if its policy needs any.
    pub engine: EngineConfig,
    /// Where those tables are from.
    pub cost_source: Option<CostSource>,
}

/// How far loading is: which model, and its weights.
pub type Watch<'w> = &'w mut dyn FnMut(&'static str, Progress);

/// Weights and text side of a pair.
struct Pair {
    name: String,
    target: Model,
    draft: Option<Model>,
    tokenizer: Tokenizer,
    template: Result<ChatTemplate, ModelError>,
}

/// Loads a pair and plans its place.
///
/// # Errors
/// A file that is missing or wrong, models that do not go together, or a device too small for them.
pub fn load(config: &Config, watch: Watch<'_>) -> Result<Loaded, DaemonError> {
    let why_cpu = match choose(config)? {
        Chosen::Cpu { why } => why,
        Chosen::Gpu(gpu) => {
            let why = format!("this build does not serve on GPUs such as {}", gpu.name);
            if let DeviceKind::Cuda(ordinal) = config.device.kind {
                return Err(DaemonError::Gpu { ordinal, source: CudaError::Unfit(why) });
            }
            Some(why)
        }
    };
    if let Some(why) = &why_cpu {
        tracing::info!(%why, "running on the CPU");
    }
    let device = CpuDevice::discover()?;
    // On a machine of several nodes the weights go where the lanes will be.
    let nodes = if device.nodes.len() > 1 { device.nodes_of(config.device.threads) } else { Vec::new() };
    let pair = on_nodes(&nodes, || pair(config, watch))?;
    if let Some(draft) = &pair.draft {
        check_pair(pair.target.config(), draft.config())?;
    }
    let max_context = max_context(config, &pair)?;
    let bounds = EngineConfig {
        block_size: config.kv.block_size,
        target_blocks: 0,
        draft_blocks: 0,
        max_running: config.scheduler.max_running,
        max_waiting: config.scheduler.max_waiting,
        max_pass_rows: config.scheduler.max_pass_rows,
        max_context,
        policy: config.speculation.policy.clone(),
        partitions: Vec::new(),
        target_layers: pair.target.config().layers,
        mechanisms: config.speculation.mechanisms,
        slo: config.speculation.slo,
        prefix_cache: config.kv.prefix_cache,
    };
    let limits = PassLimits::of(&bounds);
    let target = footprint(&pair.target, limits.rows, limits.verify_logit_rows);
    let draft = pair.draft.as_ref().map(|draft| footprint(draft, limits.rows, limits.draft_logit_rows));
    let request = KvRequest {
        block_size: config.kv.block_size,
        memory_bytes: config.kv.memory_bytes,
        max_running: config.scheduler.max_running,
        max_context,
    };
    let placement = place(&device, config.device.threads, &target, draft.as_ref(), &request)?;
    let engine = EngineConfig {
        target_blocks: placement.target_blocks,
        draft_blocks: placement.draft_blocks,
        ..bounds
    };
    let isa = config.device.isa.unwrap_or_else(Isa::detect);
    let (target, draft) = (Arc::new(pair.target), pair.draft.map(Arc::new));
    let (partitions, cost_source) = match &draft {
        Some(draft) if engine.policy.needs_costs() => {
            let spec = ProfileSpec {
                target: &target,
                draft,
                partitions: &placement.partitions,
                isa,
                block_size: engine.block_size,
                max_rows: engine.max_pass_rows,
                max_context,
            };
            let tables = tables(config, &device.name, &spec, &mut |done, all| {
                watch("cost tables", Progress { done_bytes: done as u64, total_bytes: all as u64 });
            })?;
            (tables.partitions, Some(tables.source))
        }
        _ => (Vec::new(), None),
    };
    let engine = EngineConfig { partitions, ..engine };
    engine.validate()?;
    Ok(Loaded {
        name: config.model.name.clone().unwrap_or(pair.name),
        target,
        draft,
        tokenizer: Arc::new(pair.tokenizer),
        template: pair.template,
        device,
        why_cpu,
        placement,
        isa,
        engine,
        cost_source,
    })
}

fn pair(config: &Config, watch: Watch<'_>) -> Result<Pair, DaemonError> {
    let dtype = config.model.dtype;
    match &config.model.source {
        ModelSource::Demo { draft } => {
            let folder = locate::demo_pair()?;
            let draft = draft.then(|| folder.join("draft"));
            let pair = from_directories(&folder.join("target"), draft.as_deref(), dtype, watch)?;
            Ok(Pair { name: "rustdoc".to_owned(), ..pair })
        }
        ModelSource::Directories { target, draft } => {
            Ok(from_directories(target, draft.as_deref(), dtype, watch)?)
        }
        ModelSource::Synthetic { spec, draft } => {
            let (target, draft_model) =
                synthetic::pair(spec, dtype, &mut |progress| watch("synthetic pair", progress))?;
            Ok(Pair {
                name: "synthetic".to_owned(),
                tokenizer: Tokenizer::synthetic(spec.vocab)?,
                template: Err(ModelError::NoChatTemplate { path: "synthetic".into() }),
                target,
                draft: draft.then_some(draft_model),
            })
        }
    }
}

fn from_directories(
    target_dir: &Path,
    draft_dir: Option<&Path>,
    dtype: Dtype,
    watch: Watch<'_>,
) -> Result<Pair, ModelError> {
    let target = Model::load(target_dir, dtype, &mut |progress| watch("target model", progress))?;
    let tokenizer = Tokenizer::load(target_dir, target.config())?;
    let draft = match draft_dir {
        None => None,
        Some(dir) => {
            let draft = Model::load(dir, dtype, &mut |progress| watch("draft model", progress))?;
            if dir.join("tokenizer.json").is_file() {
                same_tokens(&tokenizer, &Tokenizer::load(dir, draft.config())?)?;
            }
            Some(draft)
        }
    };
    let name = target_dir.file_name().unwrap_or(target_dir.as_os_str()).to_string_lossy().into_owned();
    Ok(Pair { name, target, draft, tokenizer, template: ChatTemplate::load(target_dir) })
}

/// A draft model that reads other tokens than the target would be right by chance alone.
fn same_tokens(target: &Tokenizer, draft: &Tokenizer) -> Result<(), ModelError> {
    const PROBE: &str =
        "The quick brown fox, naïve in 1984: `fn main() { println!(\"{:?}\", x += 3.14); }`\n\t→ 你好 🦊";
    if target.encode(PROBE, false)? == draft.encode(PROBE, false)? {
        return Ok(());
    }
    let problem = "their tokenizer.json files turn the same text into different tokens";
    Err(ModelError::Pair(problem.to_owned()))
}

/// What both models hold, or less if the config says so.
fn max_context(config: &Config, pair: &Pair) -> Result<usize, DaemonError> {
    let target = ("target", pair.target.config().max_context);
    let draft = pair.draft.as_ref().map(|draft| ("draft", draft.config().max_context));
    let (model, limit) =
        draft.into_iter().fold(target, |least, draft| if draft.1 < least.1 { draft } else { least });
    match config.scheduler.max_context {
        Some(asked) if asked > limit => Err(DaemonError::Context { asked, model, limit }),
        asked => Ok(asked.unwrap_or(limit)),
    }
}

fn footprint(model: &Model, rows: usize, logit_rows: usize) -> ModelFootprint {
    ModelFootprint {
        weight_bytes: model.weight_bytes(),
        kv_bytes_per_token: model.kv_bytes_per_token(),
        max_context: model.config().max_context,
        workspace_bytes: Scratch::bytes(model.config(), rows, logit_rows),
    }
}

impl Loaded {
    /// Starts the service and runs one short sequence through it, so that the first client does not wait for cold memory.
    /// Needs a running actix System.
    ///
    /// # Errors
    /// The device cannot be built, or fails at its first sequence.
    pub async fn start(self) -> Result<Served, DaemonError> {
        let (vocab, max_context) = (self.target.config().vocab, self.engine.max_context);
        let eos: Vec<TokenId> = self.target.config().eos.clone();
        let service = Service::start(ServiceSpec {
            target: self.target,
            draft: self.draft,
            placement: self.placement,
            isa: self.isa,
            engine: self.engine,
            watchdog: WatchdogConfig::default(),
        })
        .await?;
        warm_up(&service, max_context).await?;
        let created = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        Ok(Served {
            name: self.name,
            created,
            service,
            tokenizer: self.tokenizer,
            template: self.template,
            eos,
            vocab,
            max_context,
        })
    }
}

async fn warm_up(service: &Service, max_context: usize) -> Result<(), DaemonError> {
    let submission = Submission {
        prompt: vec![0],
        sampling: Sampling { temperature: 0.0, ..Sampling::default() },
        max_new_tokens: 8.min(max_context - 1).max(1),
        stop_tokens: Vec::new(),
        k_max: None,
    };
    let mut tokens = service.submit(submission).await?;
    loop {
        match tokens.next().await {
            Some(Update::Tokens(_)) => {}
            Some(Update::Finished { reason: FinishReason::Length, .. }) => return Ok(()),
            Some(Update::Finished { .. }) => return Err(SequenceError::DeviceFailed.into()),
            None => return Err(SequenceError::Ended.into()),
        }
    }
}
