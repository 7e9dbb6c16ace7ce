//! From a config to a running pair: weights, tokenizer, placement, service.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use faser_actors::{
    DeviceSpec, Drill, ProfileSpec, Replicas, Sampling, Service, ServiceSpec, Submission, Update,
    WatchdogConfig,
};
use faser_engine::{EngineConfig, FinishReason, K_LIMIT, SpeculationBounds, TokenId};
use faser_models::{CallFormat, ChatTemplate, ModelError, Progress, Tokenizer};
use faser_topology::{DraftPlace, KvPools};
use tokio::sync::Semaphore;

use crate::app::Served;
use crate::config::{Config, ModelSource};
use crate::costs::{CostSource, tables};
use crate::device::{Machine, choose};
use crate::error::DaemonError;
use crate::grammars::Grammars;
use crate::pair::{Pair, pair};
use crate::place::{Placed, place};
use crate::sequence::SequenceError;

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
    /// How the target writes calls of functions, if it does.
    pub calls: Option<CallFormat>,
    /// The sizes of the KV pools of each replica.
    pub pools: KvPools,
    /// The faults made on purpose.
    pub drills: Vec<Drill>,
    /// The bounds of each replica's engine, and its cost tables if its policy needs any.
    pub engine: EngineConfig,
    /// Where those tables are from.
    pub cost_source: Option<CostSource>,
    /// What all of it was asked for by.
    pub config: Config,
}

/// How far loading is: which model, and its weights.
pub type Watch<'w> = &'w mut dyn FnMut(&'static str, Progress);

/// The engine's bounds, its pools and costs yet to be known.
pub(crate) fn bounds(config: &Config, max_context: usize, target_layers: usize) -> EngineConfig {
    EngineConfig {
        block_size: config.kv.block_size,
        target_blocks: 0,
        draft_blocks: 0,
        max_running: config.scheduler.max_running,
        max_waiting: config.scheduler.max_waiting,
        max_pass_rows: config.scheduler.max_pass_rows,
        max_context,
        policy: config.speculation.policy.clone(),
        partitions: Vec::new(),
        target_layers,
        mechanisms: config.speculation.mechanisms,
        speculation: SpeculationBounds {
            // Where nothing is drafted and nothing copied, lanes need no room for it.
            room: if config.model.source.has_draft() || config.speculation.policy.needs_costs() {
                K_LIMIT
            } else {
                0
            },
            k_max: config.speculation.k_max.unwrap_or(K_LIMIT),
            partition: config.speculation.partition,
        },
        slo: config.speculation.slo,
        prefix_cache: config.kv.prefix_cache,
    }
}

/// What can be planned, and not be served yet.
fn refuse_plans_only(config: &Config) -> Result<(), DaemonError> {
    let device = &config.device;
    let only = [
        ("topology", config.topology.is_some()),
        ("model.shape", matches!(config.model.source, ModelSource::Shape { .. })),
        ("device.draft_placement", device.draft_placement != DraftPlace::First),
    ];
    let found = only.into_iter().find_map(|(key, given)| given.then_some(key));
    found.map_or(Ok(()), |key| Err(DaemonError::PlanOnly { key }))
}

/// Loads a pair and plans its place; a GPU has the weights then.
///
/// # Errors
/// A file that is missing or wrong, models that do not go together, or a device that cannot be used or is too small for them.
pub fn load(config: &Config, watch: Watch<'_>) -> Result<Loaded, DaemonError> {
    refuse_plans_only(config)?;
    let chosen = choose(config)?;
    let pair = pair(config)?;
    let bounds = bounds(config, pair.max_context(config)?, pair.target.layers);
    let Pair { name, target, draft, weights, tokenizer, template, calls } = pair;
    let name = config.model.name.clone().unwrap_or(name);
    if config.model.aliases.contains(&name) {
        return Err(DaemonError::Alias { name });
    }
    let Placed { device, more, machine, pools } =
        place(config, chosen, (target, draft), &weights, &bounds, watch)?;
    let engine =
        EngineConfig { target_blocks: pools.target_blocks, draft_blocks: pools.draft_blocks, ..bounds };
    let (partitions, cost_source) = if engine.policy.needs_costs() {
        let spec = ProfileSpec {
            device: &device,
            block_size: engine.block_size,
            max_rows: engine.max_pass_rows,
            max_context: engine.max_context,
        };
        let tables = tables(config, &machine, &spec, &mut |done, all| {
            watch("cost tables", Progress { done_bytes: done as u64, total_bytes: all as u64 });
        })?;
        (tables.partitions, Some(tables.source))
    } else {
        (Vec::new(), None)
    };
    let engine = EngineConfig { partitions, ..engine };
    engine.validate()?;
    Ok(Loaded {
        name,
        device,
        more,
        drills: config.device.drills.clone(),
        machine,
        tokenizer: Arc::new(tokenizer),
        template,
        calls,
        pools,
        engine,
        cost_source,
        config: config.clone(),
    })
}

impl Loaded {
    /// Starts the replicas and runs one short sequence through each, so that the first client does not wait for cold memory.
    /// Needs a running actix System.
    ///
    /// # Errors
    /// The device cannot be built, or fails at its first sequence.
    pub async fn start(self) -> Result<Served, DaemonError> {
        let target = self.device.target().config;
        let (vocab, max_context) = (target.vocab, self.engine.max_context);
        let eos: Vec<TokenId> = target.eos;
        let spec =
            |device| ServiceSpec { device, engine: self.engine.clone(), watchdog: WatchdogConfig::default() };
        let device = self.device.clone();
        let specs = std::iter::once(self.device).chain(self.more).map(spec).collect();
        let service = Replicas::start(specs, &self.drills).await?;
        for replica in (0..service.count()).filter_map(|number| service.replica(number)) {
            warm_up(replica, max_context).await?;
        }
        let created = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let grammars = Grammars::new(&self.tokenizer, vocab, &eos);
        Ok(Served {
            name: self.name,
            created,
            service,
            tokenizer: self.tokenizer,
            template: self.template,
            calls: self.calls,
            eos,
            grammars,
            vocab,
            max_context,
            encoding: Semaphore::new(LONG_TEXTS_AT_ONCE),
            config: self.config,
            machine: self.machine,
            device,
            bounds: self.engine,
        })
    }
}

async fn warm_up(service: &Service, max_context: usize) -> Result<(), DaemonError> {
    let submission = Submission {
        prompt: vec![0],
        sampling: Sampling { temperature: 0.0, ..Sampling::default() },
        max_new_tokens: 8.min(max_context - 1).max(1),
        stop_tokens: Vec::new(),
        prediction: Vec::new(),
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
