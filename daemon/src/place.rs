//! Where a pair goes on the device that was chosen; a GPU is opened here, and gets the weights.

use std::sync::Arc;

use faser_actors::{
    CpuGroup, CpuSpec, CudaDevice, CudaSource, CudaSpec, DeviceSpec, GpuInfo, Isa, ModelFacts, PassLimits,
};
use faser_engine::EngineConfig;
use faser_models::cuda::{CudaModel, CudaSizes};
use faser_models::{Model, ModelConfig, Scratch, on_nodes};
use faser_topology::{CpuDevice, GpuDevice, KvPools, KvRequest, ModelFootprint, Placement, place_on_gpu};

use crate::config::Config;
use crate::costs;
use crate::device::{Chosen, Machine};
use crate::error::DaemonError;
use crate::load::Watch;
use crate::pair::{OnHost, Weights};

/// A pair in its place.
pub(crate) struct Placed {
    pub(crate) device: DeviceSpec,
    pub(crate) machine: Machine,
    pub(crate) pools: KvPools,
}

/// Places a pair for an engine of these bounds, and loads its weights there. A GPU reads them from their files, not by way of the host's memory.
///
/// # Errors
/// The device is too small, in numbers and with what would fit; weights that are missing or wrong; or a GPU cannot be opened or does not
/// take the pair.
pub(crate) fn place(
    config: &Config,
    chosen: Chosen,
    shapes: (ModelConfig, Option<ModelConfig>),
    weights: Weights,
    bounds: &EngineConfig,
    watch: Watch<'_>,
) -> Result<Placed, DaemonError> {
    let host = CpuDevice::discover()?;
    match chosen {
        Chosen::Cpu { why } => {
            if let Some(why) = &why {
                tracing::info!(%why, "running on the CPU");
            }
            // On a machine of several nodes the weights go where the lanes will be.
            let several = host.nodes.len() > 1;
            let nodes = if several { host.nodes_of(config.device.threads) } else { Vec::new() };
            let pair = on_nodes(&nodes, || weights.on_host(config, watch))?;
            on_cpu(config, host, why, pair, bounds)
        }
        Chosen::Gpu(info) => on_gpu(config, &host, &info, shapes, weights, bounds, watch),
    }
}

fn request(config: &Config, bounds: &EngineConfig) -> KvRequest {
    KvRequest {
        block_size: bounds.block_size,
        memory_bytes: config.kv.memory_bytes,
        max_running: bounds.max_running,
        max_context: bounds.max_context,
    }
}

fn footprint(model: &Model, workspace_bytes: u64) -> ModelFootprint {
    ModelFootprint {
        weight_bytes: model.weight_bytes(),
        kv_bytes_per_token: model.kv_bytes_per_token(),
        max_context: model.config().max_context,
        workspace_bytes,
    }
}

fn on_cpu(
    config: &Config,
    host: CpuDevice,
    why: Option<String>,
    pair: OnHost,
    bounds: &EngineConfig,
) -> Result<Placed, DaemonError> {
    let limits = PassLimits::of(bounds);
    let OnHost { target, draft, others } = pair;
    let (target, draft) = (Arc::new(target), draft.map(Arc::new));
    let [others_of_target, others_of_draft] =
        [others.target, others.draft].map(|shards| shards.into_iter().map(Arc::new).collect::<Vec<_>>());
    // All ranks are in the same memory.
    let all = |first: &Model, others: &[Arc<Model>], logit_rows| {
        let scratch = |model: &Model| footprint(model, Scratch::bytes(model.own(), limits.rows, logit_rows));
        others.iter().fold(scratch(first), |sum, shard| {
            let own = scratch(shard);
            ModelFootprint {
                weight_bytes: sum.weight_bytes + own.weight_bytes,
                kv_bytes_per_token: sum.kv_bytes_per_token + own.kv_bytes_per_token,
                workspace_bytes: sum.workspace_bytes + own.workspace_bytes,
                ..sum
            }
        })
    };
    let for_target = all(&target, &others_of_target, limits.verify_logit_rows);
    let for_draft = draft.as_deref().map(|draft| all(draft, &others_of_draft, limits.draft_logit_rows));
    let (threads, kv) = (config.device.threads, request(config, bounds));
    let placement = faser_topology::place(&host, threads, &for_target, for_draft.as_ref(), &kv)?;
    let Placement { target_blocks, draft_blocks, kv_bytes, partitions } = placement;
    let isa = config.device.isa.unwrap_or_else(Isa::detect);
    let cores = partitions.first().map_or(0, |pair| pair.verify.cores.len());
    let ranks = 1 + others_of_target.len().max(others_of_draft.len());
    if cores < ranks {
        tracing::warn!(cores, ranks, "there are fewer cores than ranks: some share a core, which is slow");
    }
    let group = CpuGroup { target: others_of_target, draft: others_of_draft, ..CpuGroup::default() };
    Ok(Placed {
        device: DeviceSpec::Cpu(CpuSpec { target, draft, partitions, isa, group }),
        machine: Machine::Cpu { device: host, isa, why },
        pools: KvPools { target_blocks, draft_blocks, kv_bytes },
    })
}

fn on_gpu(
    config: &Config,
    host: &CpuDevice,
    info: &GpuInfo,
    (target, draft): (ModelConfig, Option<ModelConfig>),
    weights: Weights,
    bounds: &EngineConfig,
    watch: Watch<'_>,
) -> Result<Placed, DaemonError> {
    let limits = PassLimits::of(bounds);
    let refused = |source| DaemonError::OpenGpu { ordinal: info.ordinal, source: Box::new(source) };
    let facts = |config: ModelConfig| -> Result<ModelFacts, DaemonError> {
        let weight_bytes =
            CudaModel::weight_bytes(&config, weights.dtype).map_err(|error| refused(error.into()))?;
        Ok(ModelFacts { config, dtype: weights.dtype, weight_bytes })
    };
    let (target, draft) = (facts(target)?, draft.map(facts).transpose()?);
    let footprint = |model: &ModelFacts, sizes: CudaSizes| ModelFootprint {
        weight_bytes: model.weight_bytes,
        kv_bytes_per_token: model.config.kv_bytes_per_token(model.dtype),
        max_context: model.config.max_context,
        workspace_bytes: sizes.workspace_bytes(&model.config, model.dtype),
    };
    let for_target = footprint(&target, limits.cuda_verify(bounds));
    let for_draft = draft.as_ref().map(|draft| footprint(draft, limits.cuda_draft(bounds)));
    let device = GpuDevice {
        sms: info.sms,
        memory_bytes: info.memory_bytes,
        utilization: config.device.gpu_memory_utilization,
    };
    let (asked, kv) = (config.device.partitions.as_deref(), request(config, bounds));
    let placement = place_on_gpu(&device, asked, &for_target, for_draft.as_ref(), &kv)?;
    let machine = Machine::Gpu { info: info.clone(), host: host.name.clone() };
    let source = CudaSource {
        info: info.clone(),
        device,
        kernel_cache: costs::folder(config).map(|folder| folder.join("kernels")),
        target,
        draft,
        weights: weights.on_gpu(),
    };
    let spec = CudaSpec { device: CudaDevice::new(source), draft_sms: placement.draft_sms };
    spec.open(&mut |progress| watch("weights", progress)).map_err(refused)?;
    Ok(Placed { device: DeviceSpec::Cuda(spec), machine, pools: placement.pools })
}
