//! Where a pair goes on the device that was chosen; a GPU is opened here, and gets the weights.

use std::sync::Arc;

use faser_actors::{
    CpuSpec, CudaDevice, CudaError, CudaSource, CudaSpec, DeviceSpec, Dtype, GpuInfo, GroupTerms, Isa,
    ModelFacts, NodeFacts, NodeTarget, Nodes, NodesSpec, PassLimits, libraries, nccl_library,
};
use faser_config::device::{Chosen, Machine};
use faser_config::{Config, NodeConfig};
use faser_engine::EngineConfig;
use faser_models::cuda::{CudaFeaturePages, CudaModel, CudaSizes};
use faser_models::{Features, Model, ModelConfig, Scratch, Shard, WeightSource, on_nodes};
use faser_topology::{
    CpuDevice, DraftPlace, GpuDevice, KvPools, KvRequest, ModelFootprint, Placement, place_on_gpu,
};

use crate::config_pair::{OnHost, Watch, Weights, target_shards};
use crate::costs;
use crate::error::LoadError;
use crate::shares::{Need, past_outputs_bytes, shares};

/// A pair in its place.
pub(crate) struct Placed {
    /// The first replica's.
    pub(crate) device: DeviceSpec,
    /// The other replicas'.
    pub(crate) more: Vec<DeviceSpec>,
    pub(crate) machine: Machine,
    pub(crate) pools: KvPools,
}

/// A pair on its way: what it needs of the host is known.
pub(crate) enum Staged {
    /// Its weights are in the host's memory.
    Cpu(OnCpu),
    /// The GPUs that will read them from their files, not by way of the host's memory.
    Gpus(Vec<GpuInfo>),
}

/// A pair in the host's memory, and how large it is.
pub(crate) struct OnCpu {
    why: Option<String>,
    pair: OnHost,
    for_target: ModelFootprint,
    for_draft: Option<ModelFootprint>,
}

/// Loads what goes to the host's memory.
///
/// # Errors
/// Weights that are missing or wrong.
pub(crate) fn stage(
    config: &Config,
    host: &CpuDevice,
    chosen: Chosen,
    weights: &Weights,
    bounds: &EngineConfig,
    watch: Watch<'_>,
) -> Result<Staged, LoadError> {
    match chosen {
        Chosen::Cpu { why } => {
            if config.device.draft_placement == DraftPlace::Own {
                return Err(LoadError::ApartOnCpu(why.map_or_else(String::new, |why| format!(" ({why})"))));
            }
            if let Some(why) = &why {
                tracing::info!(%why, "running on the CPU");
            }
            // On a machine of several nodes the weights go where the lanes will be.
            let several = host.nodes.len() > 1;
            let nodes = if several { host.nodes_of(config.device.threads) } else { Vec::new() };
            let pair = on_nodes(&nodes, || weights.on_host(config, watch))?;
            Ok(Staged::Cpu(OnCpu::new(why, pair, bounds)))
        }
        Chosen::Gpus(gpus) => Ok(Staged::Gpus(gpus)),
    }
}

impl Staged {
    /// What the pair takes of the host's memory.
    pub(crate) fn need(&self, config: &Config) -> Need {
        match self {
            Staged::Cpu(pair) => pair.need(config),
            Staged::Gpus(_) => Need { fixed_bytes: past_outputs_bytes(config), kv_bytes: Some(0) },
        }
    }
}

/// Places a pair for an engine of these bounds. GPUs load its weights now.
///
/// # Errors
/// The device is too small, in numbers and with what would fit; weights that are missing or wrong; or a GPU cannot be opened or does not
/// take the pair.
pub(crate) fn place(
    config: &Config,
    host: CpuDevice,
    staged: Staged,
    shapes: (ModelConfig, Option<ModelConfig>),
    weights: &Weights,
    bounds: &EngineConfig,
    watch: Watch<'_>,
) -> Result<Placed, LoadError> {
    match staged {
        Staged::Cpu(pair) => on_cpu(config, host, pair, bounds),
        Staged::Gpus(gpus) => on_gpus(config, &host, &gpus, shapes, weights, bounds, watch),
    }
}

fn request(config: &Config, bounds: &EngineConfig) -> KvRequest {
    KvRequest {
        block_size: bounds.block_size,
        memory_bytes: config.kv.memory_bytes,
        max_running: bounds.tuning.max_running,
        max_context: bounds.max_context,
    }
}

fn footprint(model: &Model, workspace_bytes: u64) -> ModelFootprint {
    ModelFootprint {
        weight_bytes: model.weight_bytes(),
        kv_bytes_per_token: model.kv_bytes_per_token(),
        max_context: model.config().max_context,
        workspace_bytes,
        copies: 1,
    }
}

impl OnCpu {
    fn new(why: Option<String>, pair: OnHost, bounds: &EngineConfig) -> OnCpu {
        let limits = PassLimits::of(bounds);
        // All ranks are in the same memory.
        let all = |shards: &[Arc<Model>], logit_rows| {
            let shards = shards
                .iter()
                .map(|model| footprint(model, Scratch::bytes(model.own(), limits.rows, logit_rows)));
            shards.reduce(|sum, own| ModelFootprint {
                weight_bytes: sum.weight_bytes + own.weight_bytes,
                kv_bytes_per_token: sum.kv_bytes_per_token + own.kv_bytes_per_token,
                workspace_bytes: sum.workspace_bytes + own.workspace_bytes,
                ..sum
            })
        };
        let mut for_target = all(&pair.target, limits.verify_logit_rows).expect("a target has a rank");
        if let Some(head) =
            pair.draft.first().map(|draft| draft.config()).filter(|draft| draft.head.is_some())
        {
            for_target.kv_bytes_per_token += Features::bytes_per_token(head.hidden);
            for_target.workspace_bytes += Scratch::attached_bytes(head, limits.rows);
        }
        let mut for_draft = all(&pair.draft, limits.draft_logit_rows);
        let copies = bounds.speculation.draft_copies;
        if let Some(for_draft) = for_draft.as_mut().filter(|_| copies > 1) {
            // Ranks that have it whole read the same weights.
            for_draft.weight_bytes = pair.draft[0].weight_bytes();
            for_draft.copies = copies;
        }
        OnCpu { why, pair, for_target, for_draft }
    }

    fn footprints(&self) -> impl Iterator<Item = &ModelFootprint> {
        std::iter::once(&self.for_target).chain(&self.for_draft)
    }

    fn weight_bytes(&self) -> u64 {
        self.footprints().map(|model| model.weight_bytes).sum()
    }

    /// Weights are there once, all else is each replica's.
    fn need(&self, config: &Config) -> Need {
        let replicas = config.device.replicas as u64;
        let workspace_bytes: u64 = self.footprints().map(|model| model.workspace_bytes).sum();
        Need {
            fixed_bytes: (self.weight_bytes() + replicas * workspace_bytes)
                .saturating_add(past_outputs_bytes(config)),
            kv_bytes: config.kv.memory_bytes.map(|kv_bytes| kv_bytes.saturating_mul(replicas)),
        }
    }
}

fn on_cpu(config: &Config, host: CpuDevice, pair: OnCpu, bounds: &EngineConfig) -> Result<Placed, LoadError> {
    let weight_bytes = pair.weight_bytes();
    let OnCpu { why, pair: OnHost { target, draft }, for_target, for_draft } = pair;
    let (threads, kv) = (config.device.threads, request(config, bounds));
    let hosts = shares(&host, threads, config.device.replicas, weight_bytes)?;
    // All have as many cores and as much memory: the pools are the same everywhere.
    let place = |host| faser_topology::place(host, None, &for_target, for_draft.as_ref(), &kv);
    let placements = hosts.iter().map(place).collect::<Result<Vec<Placement>, _>>()?;
    let isa = config.device.isa.unwrap_or_else(Isa::detect);
    let forced = config.device.isa.is_none() && matches!(Isa::forced(), Ok(Some(_)));
    let cores = hosts[0].cores.len();
    let ranks = target.len().max(draft.len());
    if cores < ranks {
        tracing::warn!(cores, ranks, "there are fewer cores than ranks: some share a core, which is slow");
    }
    let rank_deadline = config.device.rank_deadline;
    let pools = placements[0].pools;
    let nodes = joined(config, |digest| NodeFacts::of(&target[0], digest, isa))?;
    let on = |Placement { partitions, .. }| {
        let (target, draft) = (target.clone(), draft.clone());
        let nodes = nodes.clone();
        DeviceSpec::Cpu(CpuSpec { target, draft, partitions, isa, rank_deadline, nodes })
    };
    let mut devices: Vec<DeviceSpec> = placements.into_iter().map(on).collect();
    Ok(Placed {
        device: devices.remove(0),
        more: devices,
        machine: Machine::Cpu { device: host, isa, forced, why },
        pools,
    })
}

/// Where the other nodes come to, if this is the first of several.
fn joined(config: &Config, facts: impl FnOnce(&str) -> NodeFacts) -> Result<Option<Nodes>, LoadError> {
    let first = |node: &&NodeConfig| node.joins && node.place.rank == 0;
    let Some(node) = config.node.as_ref().filter(first) else { return Ok(None) };
    let digest = costs::target_digest(&config.model.source)?;
    let refused = |source| LoadError::Rendezvous { rendezvous: node.rendezvous.clone(), source };
    let spec = NodesSpec {
        of: node.place.of,
        rendezvous: node.listens().map_err(refused)?,
        facts: facts(&digest),
        rank_deadline: config.device.rank_deadline,
        join_timeout: node.join_timeout,
    };
    let nodes = Nodes::listen(spec).map_err(refused)?;
    tracing::info!(nodes = node.place.of, rendezvous = %nodes.address(), "waiting for the other nodes");
    Ok(Some(nodes))
}

/// What a node behind the first has of the target, its first rank that shard, and what it must have alike with the others.
pub(crate) fn of_node(device: DeviceSpec, shard: Shard, digest: &str) -> (NodeFacts, NodeTarget) {
    match device {
        DeviceSpec::Cpu(CpuSpec { target: shards, mut partitions, isa, .. }) => {
            let facts = NodeFacts::of(&shards[0], digest, isa);
            (facts, NodeTarget::Cpu { shards, cores: partitions.swap_remove(0).verify, isa })
        }
        DeviceSpec::Cuda(CudaSpec { ranks: devices, .. }) => {
            let CudaSource { target, info, .. } = devices[0].source();
            let held = (&target.config, target.dtype, target.kv_dtype);
            let facts = NodeFacts::on_gpu(held, shard, digest, info);
            (facts, NodeTarget::Cuda { devices, shard })
        }
    }
}

/// On GPUs, replica after replica: each on as many as the target has ranks.
fn on_gpus(
    config: &Config,
    host: &CpuDevice,
    gpus: &[GpuInfo],
    (target, draft): (ModelConfig, Option<ModelConfig>),
    weights: &Weights,
    bounds: &EngineConfig,
    watch: Watch<'_>,
) -> Result<Placed, LoadError> {
    let limits = PassLimits::of(bounds);
    let first = &gpus[0];
    let refused = |source| LoadError::OpenGpu { ordinal: first.ordinal, source: Box::new(source) };
    let (shards, draft_ranks) = (target_shards(config), config.device.draft_tensor_parallel);
    let (ranks, first_shard) = (shards.len(), shards[0]);
    let kept = config.kv.cache_dtype;
    let facts = |config: &ModelConfig, path, shard: Shard, dtype: Dtype| -> Result<ModelFacts, LoadError> {
        shard.check(config)?;
        let weight_bytes = CudaModel::weight_bytes(config, path, shard, dtype)?;
        let kv_dtype = kept.unwrap_or(dtype.beside());
        Ok(ModelFacts { config: config.clone(), shard, dtype, kv_dtype, weight_bytes })
    };
    let facts_of_draft = |config: &ModelConfig, shard: Shard| {
        let path = weights.draft.as_ref().and_then(WeightSource::path);
        facts(config, path, shard, weights.draft_dtype)
    };
    // What a rank has of both models; the first has most.
    let apart = draft.as_ref().filter(|_| config.device.draft_placement == DraftPlace::Own);
    // The whole draft on each rank, or a shard of it on the first.
    let draft_shard = |rank: usize| match config.device.draft_copies() {
        1 => (rank < draft_ranks && apart.is_none()).then_some(Shard::of(rank, draft_ranks)),
        _ => Some(Shard::WHOLE),
    };
    let of_rank = |rank: usize| -> Result<(ModelFacts, Option<ModelFacts>), LoadError> {
        let draft = draft.as_ref().zip(draft_shard(rank));
        let draft = draft.map(|(draft, shard)| facts_of_draft(draft, shard)).transpose()?;
        Ok((facts(&target, weights.target.path(), shards[rank], weights.dtype)?, draft))
    };
    let footprint = |model: &ModelFacts, shard: Shard, sizes: CudaSizes| ModelFootprint {
        weight_bytes: model.weight_bytes,
        kv_bytes_per_token: shard.config(&model.config).kv_bytes_per_token(model.kv_dtype),
        max_context: model.config.max_context,
        workspace_bytes: sizes.workspace_bytes(&model.config, shard, model.dtype),
        copies: 1,
    };
    let (of_target, of_draft) = of_rank(0)?;
    let mut for_target = footprint(&of_target, first_shard, limits.cuda_verify(bounds));
    if let Some(head) = draft.as_ref().filter(|draft| draft.head.is_some()) {
        for_target.kv_bytes_per_token += CudaFeaturePages::bytes_per_token(head, weights.dtype);
        for_target.workspace_bytes += limits.cuda_verify(bounds).attached_bytes(head, weights.dtype);
    }
    let for_draft = of_draft.as_ref().map(|draft| ModelFootprint {
        copies: bounds.speculation.draft_copies,
        ..footprint(draft, Shard::of(0, draft_ranks), limits.cuda_draft(bounds))
    });
    let device = GpuDevice {
        sms: first.sms,
        memory_bytes: gpus.iter().map(|gpu| gpu.memory_bytes).min().unwrap_or(0),
        utilization: config.device.gpu_memory_utilization,
    };
    // Without a draft, as on nodes behind the first, no SMs are for one.
    let asked = config.draft_sms().filter(|_| draft.is_some() || config.node.is_none());
    let kv = request(config, bounds);
    let mut placement = place_on_gpu(&device, asked, &for_target, for_draft.as_ref(), &kv)?;
    let of_apart = apart.map(|draft| facts_of_draft(draft, Shard::WHOLE)).transpose()?;
    if let Some(draft) = &of_apart {
        let alone = footprint(draft, Shard::WHOLE, limits.cuda_draft(bounds));
        let KvPools { target_blocks, kv_bytes, .. } = place_on_gpu(&device, None, &alone, None, &kv)?.pools;
        placement.pools.draft_blocks = target_blocks;
        placement.pools.kv_bytes += kv_bytes;
        placement.draft_sms = vec![device.sms];
    }
    let kernel_cache = costs::folder(config).map(|folder| folder.join("kernels"));
    let source = |(rank, info): (usize, &GpuInfo)| -> Result<CudaDevice, LoadError> {
        let (target, draft) = of_rank(rank)?;
        let draft_shard = draft_shard(rank).filter(|_| draft.is_some());
        Ok(CudaDevice::new(CudaSource {
            info: info.clone(),
            device: device.clone(),
            kernel_cache: kernel_cache.clone(),
            target,
            draft,
            weights: weights.on_gpu(shards[rank], draft_shard),
        }))
    };
    let nccl = (first_shard.ranks > 1)
        .then(nccl_library)
        .transpose()
        .map_err(|error| refused(CudaError::from(error).into()))?;
    for library in libraries(&first.arch()).into_iter().flatten().chain(nccl) {
        tracing::info!("loaded {library}");
    }
    let mut draft_sms = placement.draft_sms;
    let mut devices = Vec::with_capacity(config.device.replicas);
    for own in gpus.chunks(config.device.gpus_each()) {
        let (of_ranks, of_draft) = own.split_at(ranks);
        let ranks = of_ranks.iter().enumerate().map(source).collect::<Result<Vec<_>, _>>()?;
        let apart = of_draft.first().zip(of_apart.clone()).map(|(info, draft)| {
            CudaDevice::new(CudaSource {
                info: info.clone(),
                device: device.clone(),
                kernel_cache: kernel_cache.clone(),
                target: draft,
                draft: None,
                weights: weights.draft_on_gpu(),
            })
        });
        let group = GroupTerms {
            deadline: config.device.rank_deadline,
            custom_all_reduce: config.device.custom_all_reduce,
        };
        let held = (&of_target.config, of_target.dtype, of_target.kv_dtype);
        let on_gpu = |digest: &str| NodeFacts::on_gpu(held, first_shard, digest, first);
        let nodes = joined(config, on_gpu)?;
        let own_ranks = config.node.as_ref().map(|node| node.place.ranks(first_shard.ranks));
        let mut spec = CudaSpec { ranks, apart, draft_sms: draft_sms.clone(), group, nodes, own_ranks };
        let progress = &mut |progress| watch("weights", progress);
        if asked.is_some() {
            spec.open(progress).map_err(refused)?;
        } else if let Some((splits, why)) =
            spec.open_without_what_cannot_be_split(progress).map_err(refused)?
        {
            tracing::warn!(?splits, why, "serving without these partitions of the SMs");
            draft_sms.clone_from(&spec.draft_sms);
        }
        devices.push(spec);
    }
    // All replicas have the partitions that each can have.
    devices.iter_mut().for_each(|spec| spec.draft_sms.clone_from(&draft_sms));
    let mut devices: Vec<DeviceSpec> = devices.into_iter().map(DeviceSpec::Cuda).collect();
    let ordinals = gpus.iter().map(|gpu| gpu.ordinal).collect();
    Ok(Placed {
        device: devices.remove(0),
        more: devices,
        machine: Machine::Gpus { first: first.clone(), ordinals, host: host.name.clone() },
        pools: placement.pools,
    })
}
