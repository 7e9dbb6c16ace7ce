//! From a config to a running pair: weights, tokenizer, placement, service.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use faser_actors::{
    DeviceSpec, Drill, KvSender, NodeSpec, ProfileSpec, Replicas, Sampling, Service, ServiceSpec, Submission,
    Update, WatchdogConfig,
};
use faser_config::device::{Chosen, Machine, choose};
use faser_config::{Config, ModelSource};
use faser_engine::{
    DraftSource, EngineConfig, FinishReason, K_LIMIT, Learned, ProposedBlock, SpeculationBounds, TokenId,
};
use faser_hub::Extent;
use faser_models::{
    CallFormat, ChatTemplate, GenerationDefaults, HeadKind, ModelConfig, ModelError, Progress,
    ReasoningFormat, Tokenizer,
};
use faser_openai::grammars::Grammars;
use faser_openai::pairs::Served;
use faser_openai::text_sequence::SequenceError;
use faser_topology::{CpuDevice, KvPools};
use tokio::sync::Semaphore;

use crate::config_pair::{Pair, Watch, pair, refuse_unfit_head, shorter_draft, target_shards};
use crate::costs::{CostSource, LearnedFile, tables, target_digest};
use crate::error::LoadError;
use crate::fetch::fetched;
use crate::place_pair::{Placed, Staged, of_node, place, stage};
use crate::shares::{beside_past_outputs, memory_of_pairs, of_past_outputs};

/// Rows that a draft pass has beside a block at least: those of the two tokens that a round brings. In smaller passes it would never propose.
const BESIDE_A_BLOCK: usize = 2;

/// Long texts that are tokenized at once; the lanes need the cores too.
const LONG_TEXTS_AT_ONCE: usize = 2;

/// A pair with its weights in memory and its place on the device; nothing runs yet.
pub struct Loaded {
    /// What clients call it.
    pub name: String,
    /// The models, and the device with its partitions: the first replica's.
    pub device: DeviceSpec,
    /// The same of the other replicas.
    pub more: Vec<DeviceSpec>,
    /// What that device is.
    pub machine: Machine,
    /// The tokenizer of both.
    pub tokenizer: Arc<Tokenizer>,
    /// The chat template, or why there is none.
    pub template: Result<ChatTemplate, ModelError>,
    /// How the target writes tool calls, if it does.
    pub calls: Option<CallFormat>,
    /// How the target writes its reasoning, if that is told from the rest.
    pub reasoning: Option<ReasoningFormat>,
    /// What requests sample by where they say nothing themselves.
    pub defaults: GenerationDefaults,
    /// What is not as one might think.
    pub notes: Vec<String>,
    /// The sizes of the KV pools of each replica.
    pub pools: KvPools,
    /// The faults made on purpose.
    pub drills: Vec<Drill>,
    /// The bounds of each replica's engine, and its cost tables if its policy needs any.
    pub engine: EngineConfig,
    /// Where those tables are from.
    pub cost_source: Option<CostSource>,
    /// Where what its engines learn is kept for the next start, if anything is.
    pub learned: Option<LearnedFile>,
    /// What all of it was asked for by.
    pub config: Config,
    /// By what its metrics are told from those of other pairs, if there are any.
    pub label: Option<String>,
    /// Where the replicas tell what of their KV is cached, one after the other; none if nobody is to know.
    pub kv_events: Vec<KvSender>,
}

/// A pair whose weights are in the host's memory, if they are to be there.
struct Begun {
    config: Config,
    pair: Pair,
    bounds: EngineConfig,
    staged: Staged,
}

/// The engine's bounds, its pools and costs yet to be known.
///
/// # Errors
/// A context is asked for that the target cannot hold.
pub(crate) fn bounds(
    config: &Config,
    target: &ModelConfig,
    draft: Option<&ModelConfig>,
) -> Result<EngineConfig, LoadError> {
    let limit = target.max_context;
    let max_context = config.scheduler.max_context.unwrap_or(limit);
    if max_context > limit {
        return Err(LoadError::Context { asked: max_context, limit });
    }
    let asked = config.scheduler.max_pass_rows;
    if let Some(rows) = draft.and_then(ModelConfig::block).map(|block| block.rows)
        && asked < rows + BESIDE_A_BLOCK
    {
        return Err(LoadError::Block { rows, asked, least: rows + BESIDE_A_BLOCK });
    }
    Ok(EngineConfig {
        block_size: config.kv.block_size,
        target_blocks: 0,
        draft: draft_source(draft, 0),
        max_pass_rows: config.scheduler.max_pass_rows,
        max_context,
        partitions: Vec::new(),
        target_layers: target.layers.len(),
        deterministic: config.device.deterministic,
        speculation: SpeculationBounds {
            // Where there is neither a draft model nor prompt-lookup, lanes need no room for it.
            room: if config.model.source.has_draft() || config.tuning.policy.traits().lookup {
                K_LIMIT
            } else {
                0
            },
            draft_context: draft.map_or(usize::MAX, |draft| draft.max_context),
            suffix_bytes: usize::try_from(config.suffix_bytes).unwrap_or(usize::MAX),
            draft_copies: config.device.draft_copies(),
        },
        prefix_cache: config.kv.prefix_cache,
        learned: Learned::default(),
        tuning: config.tuning.clone(),
    })
}

/// What proposes, with a KV pool of so many blocks: a draft that has a mask token was made to propose in one pass.
fn draft_source(draft: Option<&ModelConfig>, blocks: usize) -> DraftSource {
    match draft {
        Some(ModelConfig { head: Some(head), .. }) => match head.kind {
            HeadKind::Steps => DraftSource::head(blocks),
            HeadKind::Masks => DraftSource::one_pass_head(blocks),
            HeadKind::Block(block) => {
                let (rows, proposals) = (block.rows, block.proposals().min(K_LIMIT));
                DraftSource::block_head(blocks, ProposedBlock { rows, proposals })
            }
        },
        Some(ModelConfig { mask_token: Some(_), .. }) => DraftSource::one_pass(blocks),
        _ => DraftSource::model(blocks),
    }
}

/// What can be planned, and not be served yet.
fn refuse_plans_only(config: &Config) -> Result<(), LoadError> {
    let only = [
        ("topology", config.topology.is_some()),
        ("model.shape", matches!(config.model.source, ModelSource::Shape { .. })),
    ];
    let found = only.into_iter().find_map(|(key, given)| given.then_some(key));
    found.map_or(Ok(()), |key| Err(LoadError::PlanOnly(key)))
}

/// Loads a pair and plans its place; a GPU has the weights then.
///
/// # Errors
/// A file that is missing or wrong, models that do not go together, or a device that cannot be used or is too small for them.
pub fn load(config: &Config, watch: Watch<'_>) -> Result<Loaded, LoadError> {
    first_node(config)?;
    let host = CpuDevice::discover()?;
    let begun = begin(config, &host, watch)?;
    finish(begun, host, watch)
}

/// Refuses what is another's than the first node's, unless it is looked at alone.
fn first_node(config: &Config) -> Result<(), LoadError> {
    match config.node.as_ref().filter(|node| node.joins && node.place.rank > 0) {
        Some(node) => Err(LoadError::OtherNode { rank: node.place.rank, of: node.place.of }),
        None => Ok(()),
    }
}

/// Loads every pair of the config. Memory is allocated once the weights of all are there.
///
/// # Errors
/// As [`load`], of several with the name of the pair.
pub fn load_all(config: &Config, watch: Watch<'_>) -> Result<Vec<Loaded>, LoadError> {
    first_node(config)?;
    let [_, _, ..] = config.each() else {
        return config.each().iter().map(|only| load(only, watch)).collect();
    };
    let host = CpuDevice::discover()?;
    let mut begun = Vec::with_capacity(config.pairs.len());
    for pair in config.each() {
        begun.push(named(pair, watch, |watch| begin(pair, &host, watch))?);
    }
    let needs: Vec<_> = begun.iter().map(|pair| pair.staged.need(&pair.config)).collect();
    let mut loaded = Vec::with_capacity(begun.len());
    for (begun, memory_bytes) in begun.into_iter().zip(memory_of_pairs(host.memory_bytes, &needs)) {
        let (pair, host) = (begun.config.clone(), CpuDevice { memory_bytes, ..host.clone() });
        let own = named(&pair, watch, |watch| finish(begun, host, watch))?;
        loaded.push(Loaded { label: Some(own.name.clone()), ..own });
    }
    Ok(loaded)
}

/// Works on one pair of several: progress and errors have its name.
fn named<T>(
    pair: &Config,
    watch: Watch<'_>,
    work: impl FnOnce(Watch<'_>) -> Result<T, LoadError>,
) -> Result<T, LoadError> {
    let name = pair.model.name.clone().unwrap_or_default();
    let done = work(&mut |what, progress| watch(&format!("{what} of {name}"), progress));
    done.map_err(|source| LoadError::Pair { name, source: Box::new(source) })
}

/// Loads what this node, none of several's first, has of the target.
///
/// # Errors
/// As [`load`].
pub fn load_node(config: &Config, watch: Watch<'_>) -> Result<NodeSpec, LoadError> {
    let node = config.node.clone().ok_or(LoadError::NoNode)?;
    let host = CpuDevice::discover()?;
    let Begun { config, pair, bounds, staged } = begin(config, &host, watch)?;
    let digest = target_digest(&config.model.source)?;
    // The draft is the first node's.
    let shapes = (pair.target, None);
    let Placed { device, .. } = place(&config, host, staged, shapes, &pair.weights, &bounds, watch)?;
    let (facts, target) = of_node(device, target_shards(&config)[0], &digest);
    Ok(target.node(node.place, node.rendezvous, facts))
}

fn begin(config: &Config, host: &CpuDevice, watch: Watch<'_>) -> Result<Begun, LoadError> {
    refuse_plans_only(config)?;
    let chosen = choose(config)?;
    beside_past_outputs(config, host.memory_bytes)?;
    // Behind what can be known to be wrong without a download.
    let config = fetched(config, Extent::Whole, watch)?;
    let on_gpu = matches!(chosen, Chosen::Gpus(_));
    let pair = pair(&config, on_gpu)?;
    let bounds = bounds(&config, &pair.target, pair.draft.as_ref())?;
    refuse_unfit_head(pair.draft.as_ref(), &config)?;
    let staged = stage(&config, host, chosen, &pair.weights, &bounds, watch)?;
    Ok(Begun { config, pair, bounds, staged })
}

fn finish(begun: Begun, host: CpuDevice, watch: Watch<'_>) -> Result<Loaded, LoadError> {
    let Begun { config, pair, bounds, staged } = begun;
    let config = &config;
    let Pair { name, target, draft, weights, tokenizer, template, calls, reasoning, defaults, mut notes } =
        pair;
    notes.extend(shorter_draft(&bounds));
    notes.extend(of_past_outputs(config));
    let host = CpuDevice { memory_bytes: beside_past_outputs(config, host.memory_bytes)?, ..host };
    let drafts = draft.clone();
    let name = config.model.name.clone().unwrap_or(name);
    if config.model.aliases.contains(&name) {
        return Err(LoadError::Alias(name));
    }
    let Placed { device, more, machine, pools } =
        place(config, host, staged, (target, draft), &weights, &bounds, watch)?;
    let engine = EngineConfig {
        target_blocks: pools.target_blocks,
        draft: draft_source(drafts.as_ref(), pools.draft_blocks),
        ..bounds
    };
    // Over nodes costs are measured with all of them.
    let measures = config.node.as_ref().is_none_or(|node| node.joins);
    let (partitions, cost_source, learned) = if engine.tuning.policy.traits().predicts && measures {
        let spec = ProfileSpec {
            device: &device,
            block_size: engine.block_size,
            max_rows: engine.max_pass_rows,
            max_context: engine.max_context,
            deterministic: engine.deterministic,
        };
        let tables = tables(config, &machine, &spec, &mut |done, all| {
            watch("cost tables", Progress { done_bytes: done as u64, total_bytes: all as u64 });
        })?;
        (tables.partitions, Some(tables.source), tables.learned)
    } else {
        (Vec::new(), None, None)
    };
    let engine = EngineConfig { partitions, learned: begin_with(learned.as_ref(), config.profile), ..engine };
    if measures {
        engine.validate()?;
    }
    Ok(Loaded {
        name,
        device,
        more,
        drills: config.device.drills.clone(),
        machine,
        tokenizer: Arc::new(tokenizer),
        template,
        calls,
        reasoning,
        defaults,
        notes,
        pools,
        engine,
        cost_source,
        learned,
        config: config.clone(),
        label: None,
        kv_events: Vec::new(),
    })
}

/// What was learned before this start; whoever measures costs anew wants nothing of it.
fn begin_with(learned: Option<&LearnedFile>, anew: bool) -> Learned {
    match learned {
        Some(file) if anew => {
            file.forget();
            Learned::default()
        }
        Some(file) => file.read(),
        None => Learned::default(),
    }
}

impl Loaded {
    /// Starts the replicas and runs one short sequence through each, so that the first client does not wait for cold memory.
    /// Needs a running actix System.
    ///
    /// # Errors
    /// The device cannot be built, or fails at its first sequence.
    pub async fn start(self) -> Result<Served, LoadError> {
        let label = self.label.clone();
        self.start_alone().await.map_err(|source| match label {
            Some(name) => LoadError::Pair { name, source: Box::new(source) },
            None => source,
        })
    }

    async fn start_alone(self) -> Result<Served, LoadError> {
        let target = self.device.target().config;
        let (vocab, max_context) = (target.vocab, self.engine.max_context);
        let mut eos: Vec<TokenId> = target.eos;
        let ends = self.reasoning.map_or_else(Vec::new, |format| format.ends(&self.tokenizer));
        let new: Vec<TokenId> = ends.into_iter().filter(|end| !eos.contains(end)).collect();
        eos.extend(new);
        let mut kv_events = self.kv_events.into_iter();
        let spec = |device: DeviceSpec| {
            let watchdog = if device.nodes().is_some() {
                WatchdogConfig::over_nodes()
            } else {
                WatchdogConfig::default()
            };
            ServiceSpec { device, engine: self.engine.clone(), watchdog, kv_events: kv_events.next() }
        };
        let device = self.device.clone();
        let specs = std::iter::once(self.device).chain(self.more).map(spec).collect();
        let names = faser_actors::MetricNames {
            pair: self.label,
            vllm_model: self.config.vllm_names.then(|| self.name.clone()),
        };
        let service = Replicas::start_of(&names, specs, &self.drills).await?;
        for replica in (0..service.count()).filter_map(|number| service.replica(number)) {
            warm_up(replica, max_context).await?;
        }
        let created = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let grammars = Grammars::new(&self.tokenizer, vocab, &eos);
        Ok(Served {
            name: self.name,
            aliases: self.config.model.aliases.clone(),
            priorities: self.config.scheduler.priorities,
            created,
            service,
            tokenizer: self.tokenizer,
            template: self.template,
            calls: self.calls,
            reasoning: self.reasoning,
            defaults: self.defaults,
            eos,
            grammars,
            vocab,
            max_context,
            encoding: Arc::new(Semaphore::new(LONG_TEXTS_AT_ONCE)),
            config: self.config,
            machine: self.machine,
            device,
            bounds: self.engine,
        })
    }
}

async fn warm_up(service: &Service, max_context: usize) -> Result<(), LoadError> {
    let submission = Submission {
        prompt: vec![0],
        sampling: Sampling { temperature: 0.0, ..Sampling::default() },
        max_new_tokens: 8.min(max_context - 1).max(1),
        ..Submission::default()
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
