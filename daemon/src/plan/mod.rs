//! `faser plan`: where the models of a config would go on the machine it describes, or on this one. Loads no weights.

mod models;
mod show;

#[cfg(test)]
mod tests;

use faser_actors::Dtype;
use faser_topology::{
    KvRequest, Plan, PlanDevices, PlanModel, PlanRefusal, PlanRequest, Topology, plan as planned,
};
use serde::Serialize;

use self::models::{Models, Planned};
use crate::config::{Config, DeviceKind};
use crate::device::fits_gpus;
use crate::error::DaemonError;

/// What `faser plan` found.
#[derive(Debug, Serialize)]
pub struct PlanReport {
    /// The name of the pair, if it is one of several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pair: Option<String>,
    /// The machine.
    pub topology: Topology,
    /// Whether it was written in the config.
    pub written: bool,
    /// The target.
    pub target: Facts,
    /// The draft, if there is one.
    pub draft: Option<Facts>,
    /// Tokens of the longest sequence.
    pub max_context: usize,
    /// Tokens per KV block.
    pub block_size: usize,
    /// What is worth a word about what was looked at.
    pub notes: Vec<String>,
    /// The plan, if there is one.
    pub plan: Option<Plan>,
    /// Why there is none, if there is none.
    pub refusal: Option<Refusal>,
}

/// One model of a plan.
#[derive(Debug, Serialize)]
pub struct Facts {
    /// What it is called.
    pub name: String,
    /// In what its weights are held.
    pub dtype: String,
    /// Layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// Ranks that it is split over.
    pub ranks: usize,
    /// All of its weights, if it were not split.
    pub weight_bytes: u64,
    /// KV of a token, if it were not split.
    pub kv_bytes_per_token: u64,
}

/// Why there is no plan.
#[derive(Debug, Serialize)]
pub struct Refusal {
    /// Why.
    pub problem: String,
    /// Changes, each of which alone would do.
    pub would_fit: Vec<String>,
}

/// Plans every pair of the config.
///
/// # Errors
/// As [`plan`], of several with the name of the pair.
pub fn plan_all(config: &Config) -> Result<Vec<PlanReport>, DaemonError> {
    let [_, _, ..] = config.each() else { return Ok(vec![plan(&config.each()[0])?]) };
    let of_pair = |config: &Config| {
        let name = config.model.name.clone().unwrap_or_default();
        plan(config).map_err(|source| DaemonError::Pair { name, source: Box::new(source) })
    };
    config.each().iter().map(of_pair).collect()
}

/// Plans what the config of one pair names.
///
/// # Errors
/// Models that are not there or do not go together, a device that is not there. That the models do not fit is no error: the report
/// says so.
pub fn plan(config: &Config) -> Result<PlanReport, DaemonError> {
    let topology = match &config.topology {
        Some(topology) => topology.clone(),
        None => Topology::discover()?,
    };
    let models = Models::of(config)?;
    let (devices, mut notes) = devices(config, &topology)?;
    notes.extend(models.notes.iter().cloned());
    let several = config.device.others_gpus.is_some();
    if several && matches!(devices, PlanDevices::Cpu { .. }) {
        notes.push(
            "planned as though this pair were alone in the memory; `faser check` counts the other pairs too"
                .to_owned(),
        );
    }
    let bounds =
        crate::load::bounds(config, &models.target.config, models.draft.as_ref().map(|draft| &draft.config))?;
    notes.extend(crate::pair::shorter_draft(&bounds));
    let on_gpu = matches!(devices, PlanDevices::Gpus { .. });
    let target = Planned::new(&models.target, &bounds, on_gpu, true);
    let draft = models.draft.as_ref().map(|draft| Planned::new(draft, &bounds, on_gpu, false));
    let (target_bytes, draft_bytes);
    target_bytes = |share: &_, dtype: &_| target.bytes(share, dtype);
    draft_bytes = |share: &_, dtype: &_| match &draft {
        Some(draft) => draft.bytes(share, dtype),
        // Nobody asks.
        None => target.bytes(share, dtype),
    };
    let dtype = config.model.dtype.to_string();
    let others: Vec<String> = smaller(config.model.dtype, on_gpu).iter().map(ToString::to_string).collect();
    let others: Vec<&str> = others.iter().map(String::as_str).collect();
    let request = PlanRequest {
        target: target.model(&target_bytes),
        draft: draft.as_ref().map(|draft| draft.model(&draft_bytes)),
        dtype: &dtype,
        other_dtypes: &others,
        target_ranks: config.device.tensor_parallel,
        draft_ranks: config.device.draft_tensor_parallel,
        draft_place: config.device.draft_placement,
        replicas: config.device.replicas,
        devices,
        kv: KvRequest {
            block_size: bounds.block_size,
            memory_bytes: config.kv.memory_bytes,
            max_running: bounds.tuning.max_running,
            max_context: bounds.max_context,
        },
    };
    let facts = |model: &PlanModel<'_>, planned: &Planned<'_>, ranks| planned.facts(model, &dtype, ranks);
    let (target_facts, draft_facts) = (
        facts(&request.target, &target, request.target_ranks),
        request.draft.zip(draft.as_ref()).map(|(model, draft)| facts(&model, draft, request.draft_ranks)),
    );
    let (plan, refusal) = match planned(&topology, &request) {
        Ok(plan) => (Some(plan), None),
        Err(PlanRefusal { problem, would_fit }) => {
            (None, Some(Refusal { problem: problem.to_string(), would_fit }))
        }
    };
    Ok(PlanReport {
        pair: config.model.name.clone().filter(|_| several),
        written: config.topology.is_some(),
        topology,
        target: target_facts,
        draft: draft_facts,
        max_context: bounds.max_context,
        block_size: bounds.block_size,
        notes,
        plan,
        refusal,
    })
}

/// Which devices of the machine, as `device.kind` asks for them.
fn devices(config: &Config, topology: &Topology) -> Result<(PlanDevices, Vec<String>), DaemonError> {
    let count = topology.gpus.len();
    let gpus = |usable: Vec<usize>| PlanDevices::Gpus {
        usable,
        utilization: config.device.gpu_memory_utilization,
        draft_sms: config.device.partitions.clone(),
    };
    let cpu = || PlanDevices::Cpu { threads: config.device.threads };
    let unfit = fits_gpus(config).err().map(|error| error.to_string());
    // One pair of several has GPUs that are its own; alone it may have the best.
    let own = config.device.others_gpus.as_ref().map(|_| config.device.gpus());
    Ok(match &config.device.kind {
        DeviceKind::Cpu => (cpu(), Vec::new()),
        DeviceKind::Auto if count == 0 => (cpu(), topology.note.iter().cloned().collect()),
        DeviceKind::Auto => match (unfit, own) {
            (None, Some(own)) if own.iter().any(|gpu| *gpu >= count) => {
                (cpu(), vec!["the GPUs are those of the other pairs".to_owned()])
            }
            (None, own) => (gpus(own.unwrap_or_else(|| (0..count).collect())), Vec::new()),
            (Some(why), _) => (cpu(), vec![format!("the GPUs cannot be used: {why}")]),
        },
        DeviceKind::Cuda(listed) => {
            match (own.as_ref().unwrap_or(listed).iter().find(|gpu| **gpu >= count), unfit) {
                (Some(&first), _) => {
                    return Err(DaemonError::PlanGpu { first, count, note: topology.note.clone() });
                }
                (None, None) if own.is_some() || listed.len() > 1 => (gpus(config.device.gpus()), Vec::new()),
                (None, None) => (gpus((listed[0]..count).collect()), Vec::new()),
                (None, Some(why)) => return Err(DaemonError::PlanUnfit(why)),
            }
        }
    })
}

/// What takes less memory than this.
fn smaller(dtype: Dtype, on_gpu: bool) -> &'static [Dtype] {
    match (dtype, on_gpu) {
        (Dtype::F32, true) => &[Dtype::Bf16],
        (Dtype::F32, false) => &[Dtype::Bf16, Dtype::Int8],
        (Dtype::Bf16, false) => &[Dtype::Int8],
        _ => &[],
    }
}
