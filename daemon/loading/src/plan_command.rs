//! `faser plan`: where the models of a config would go on the machine it describes, or on this one. Loads no weights.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt::{self, Display, Formatter};
use std::path::Path;

use faser_actors::{Dtype, PassLimits};
use faser_config::sizes::written;
use faser_config::{Config, DeviceKind, ModelSource, NamedShape};
use faser_engine::EngineConfig;
use faser_hub::Extent;
use faser_models::cuda::{CudaFeaturePages, CudaModel};
use faser_models::{Features, ModelConfig, Scratch, Shard, fitted, weight_files};
use faser_topology::{
    CpuDevice, DeviceId, DeviceLoad, Divisible, GpuDevice, Joined, KvRequest, Lanes, LinkKind, Plan,
    PlanDevices, PlanModel, PlanRefusal, PlanRequest, Rank, Replica, Share, ShareBytes, Topology,
    plan as planned,
};
use serde::Serialize;

use crate::config_pair::{Watch, all_target_shards, model_name, target_config};
use crate::error::LoadError;
use crate::fetch::fetched;
use crate::held_dtype::{Stored, draft_dtype, target_dtype};
use crate::locate;
use crate::plan_nodes::{ModelOnNodes, NodeMachine, NodesPlan, over_nodes};
use crate::shares::{beside_past_outputs, of_past_outputs};

#[cfg(test)]
mod tests;

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
    /// The same over several nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<NodesPlan>,
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

/// Plans every pair of the config. Of models on the hub the shapes are downloaded, no weights.
///
/// # Errors
/// As [`plan`], of several with the name of the pair.
pub fn plan_all(config: &Config, watch: Watch<'_>) -> Result<Vec<PlanReport>, LoadError> {
    let config = fetched(config, Extent::Shape, watch)?;
    let [_, _, ..] = config.each() else { return Ok(vec![plan(&config.each()[0])?]) };
    let of_pair = |config: &Config| {
        let name = config.model.name.clone().unwrap_or_default();
        plan(config).map_err(|source| LoadError::Pair { name, source: Box::new(source) })
    };
    config.each().iter().map(of_pair).collect()
}

/// Plans what the config of one pair names.
///
/// # Errors
/// Models that are not there or do not go together, a device that is not there. That the models do not fit is no error: the report
/// says so.
pub fn plan(config: &Config) -> Result<PlanReport, LoadError> {
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
    let bounds = crate::load_pairs::bounds(
        config,
        &models.target.config,
        models.draft.as_ref().map(|draft| &draft.config),
    )?;
    notes.extend(crate::config_pair::shorter_draft(&bounds));
    let on_gpu = matches!(devices, PlanDevices::Gpus { .. });
    let of_draft = models.draft.as_ref().map(|draft| &draft.config);
    if on_gpu {
        let mut both = std::iter::once(&models.target.config).chain(of_draft);
        let has_kernels =
            |model| CudaModel::has_kernels(model).map_err(|why| LoadError::PlanUnfit(why.to_string()));
        both.try_for_each(has_kernels)?;
    }
    crate::config_pair::refuse_unfit_head(of_draft, config)?;
    notes.extend(of_draft.and_then(crate::config_pair::kind_of_draft));
    let head = of_draft.filter(|draft| draft.head.is_some());
    let kv = config.kv.cache_dtype;
    let target = Planned { head, kv, ..Planned::new(&models.target, &bounds, on_gpu, true) };
    let of_draft_alone = |draft| Planned { kv, ..Planned::new(draft, &bounds, on_gpu, false) };
    let draft = models.draft.as_ref().map(of_draft_alone);
    let (target_bytes, draft_bytes);
    target_bytes = |share: &_, dtype: &_| target.bytes(share, dtype);
    fn stored(shape: &NamedShape) -> Stored<'_> {
        (&shape.config, shape.file.as_deref())
    }
    let target_held = target_dtype(config, stored(&models.target), on_gpu)?;
    let draft_held = draft_dtype(config, target_held, models.draft.as_ref().map(stored), on_gpu)?;
    notes.extend(of_past_outputs(config));
    let held = draft_held.to_string();
    draft_bytes = |share: &_, dtype: &_| match &draft {
        // What is held apart stays as it is where the target is held in less.
        Some(draft) if draft_held != target_held => draft.bytes(share, &held),
        Some(draft) => draft.bytes(share, dtype),
        // Nobody asks.
        None => target.bytes(share, dtype),
    };
    let dtype = target_held.to_string();
    let others: Vec<String> = smaller(target_held, on_gpu).iter().map(ToString::to_string).collect();
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
    let (target_facts, draft_facts) = (
        target.facts(&request.target, &dtype, request.target_ranks),
        request
            .draft
            .zip(draft.as_ref())
            .map(|(model, draft)| draft.facts(&model, &held, request.draft_ranks)),
    );
    let memory_bytes = beside_past_outputs(config, topology.host.memory_bytes)?;
    let left = CpuDevice { memory_bytes, ..topology.host.clone() };
    let mut nodes = None;
    let shards = all_target_shards(config);
    if config.node.is_some() || shards[0].stages > 1 {
        let count = config.node.as_ref().map_or(1, |node| node.place.of);
        shards[0].check(&models.target.config)?;
        let of_target = |shard| target.computed(shard, target_held);
        let target = ModelOnNodes { shape: &models.target.config, bytes: &of_target };
        // Nobody asks where there is none.
        let of_draft = |shard| match &draft {
            Some(draft) => draft.computed(shard, draft_held),
            None => of_target(shard),
        };
        let draft = models.draft.as_ref();
        let draft = draft.map(|draft| ModelOnNodes { shape: &draft.config, bytes: &of_draft });
        let each = shards.len() / count;
        let machine = match &request.devices {
            PlanDevices::Cpu { .. } => Ok(NodeMachine::Cpu(&left)),
            PlanDevices::Gpus { usable, .. } if usable.len() < each => {
                Err(format!("a node has {each} ranks, and this machine {} GPUs", usable.len()))
            }
            PlanDevices::Gpus { usable, utilization, draft_sms } => {
                let own = || usable[..each].iter().map(|gpu| &topology.gpus[*gpu]);
                let memory_bytes = own().map(|gpu| gpu.memory_bytes).min().unwrap_or(0);
                let sms = own().map(|gpu| gpu.sms).min().unwrap_or(0);
                let gpu = GpuDevice { sms, memory_bytes, utilization: *utilization };
                Ok(NodeMachine::Gpus(gpu, draft_sms.as_deref()))
            }
        };
        let planned = machine
            .and_then(|machine| over_nodes(&machine, (count, &shards), &target, draft.as_ref(), &request.kv));
        nodes = Some(planned);
    }
    let (plan, nodes, refusal) = match nodes {
        Some(Ok(nodes)) => (None, Some(nodes), None),
        Some(Err(problem)) => (None, None, Some(Refusal { problem, would_fit: Vec::new() })),
        None => match planned(&Topology { host: left, ..topology.clone() }, &request) {
            Ok(mut plan) => {
                let hosts = plan.devices.iter_mut().filter(|load| load.device == DeviceId::Cpu);
                hosts.for_each(|load| load.memory_bytes = topology.host.memory_bytes);
                (Some(plan), None, None)
            }
            Err(PlanRefusal { problem, would_fit }) => {
                (None, None, Some(Refusal { problem: problem.to_string(), would_fit }))
            }
        },
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
        nodes,
        refusal,
    })
}

/// Which devices of the machine, as `device.kind` asks for them.
fn devices(config: &Config, topology: &Topology) -> Result<(PlanDevices, Vec<String>), LoadError> {
    let count = topology.gpus.len();
    let gpus = |usable: Vec<usize>| PlanDevices::Gpus {
        usable,
        utilization: config.device.gpu_memory_utilization,
        draft_sms: config.draft_sms().map(<[u32]>::to_vec),
    };
    let cpu = || PlanDevices::Cpu { threads: config.device.threads };
    let unfit = config.fits_gpus().err().map(|error| error.to_string());
    // One pair of several has GPUs that are its own; alone it may have the best.
    let own = config.device.others_gpus.as_ref().map(|_| config.device.gpus());
    let found = match &config.device.kind {
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
                    return Err(LoadError::PlanGpu { first, count, note: topology.note.clone() });
                }
                (None, None) if own.is_some() || listed.len() > 1 => (gpus(config.device.gpus()), Vec::new()),
                (None, None) => (gpus((listed[0]..count).collect()), Vec::new()),
                (None, Some(why)) => return Err(LoadError::PlanUnfit(why)),
            }
        }
    };
    if let PlanDevices::Cpu { .. } = found.0 {
        config.fits_cpu(found.1.first().map(String::as_str))?;
    }
    Ok(found)
}

/// What takes less memory than this.
fn smaller(dtype: Dtype, on_gpu: bool) -> &'static [Dtype] {
    match (dtype, on_gpu) {
        (Dtype::F32, true) => &[Dtype::Bf16, Dtype::Int8, Dtype::Fp8, Dtype::Int4],
        (Dtype::Bf16, true) => &[Dtype::Int8, Dtype::Fp8, Dtype::Int4],
        (Dtype::Int8 | Dtype::Fp8, true) => &[Dtype::Int4],
        (Dtype::F32, false) => &[Dtype::Bf16, Dtype::Int8, Dtype::Int4],
        (Dtype::Bf16, false) => &[Dtype::Int8, Dtype::Int4],
        (Dtype::Int8, false) => &[Dtype::Int4],
        _ => &[],
    }
}

/// A pair, by its shapes.
pub(super) struct Models {
    pub(super) target: NamedShape,
    pub(super) draft: Option<NamedShape>,
    pub(super) notes: Vec<String>,
}

impl Models {
    /// The pair that the config names.
    pub(super) fn of(config: &Config) -> Result<Models, LoadError> {
        let mut notes = Vec::new();
        let mut folder = |dir: &Path| named(dir, &mut notes);
        let (target, draft) = match &config.model.source {
            ModelSource::Demo { draft } => {
                let pair = locate::demo_pair()?;
                let draft = draft.then(|| folder(&pair.join("draft"))).transpose()?;
                (folder(&pair.join("target"))?, draft)
            }
            ModelSource::Directories { target, draft } => {
                target_config(target)?;
                (folder(target)?, draft.as_deref().map(&mut folder).transpose()?)
            }
            ModelSource::Synthetic { spec, draft } => {
                let (target, draft_shape) = spec.configs()?;
                let of = |name: &str, config| NamedShape { name: name.to_owned(), config, file: None };
                (of("synthetic target", target), draft.then(|| of("synthetic draft", draft_shape)))
            }
            ModelSource::Named { .. } => return Err(LoadError::NotFetched),
            ModelSource::Shape { target, draft } => ((**target).clone(), draft.as_deref().cloned()),
        };
        // Whether tokenizers are the same is seen where they are read.
        let tokens = matches!(config.model.source, ModelSource::Directories { .. }).then_some(0);
        let fit = |draft: NamedShape| -> Result<NamedShape, LoadError> {
            Ok(NamedShape { config: fitted(&target.config, draft.config, tokens)?, ..draft })
        };
        let draft = draft.map(fit).transpose()?;
        Ok(Models { target, draft, notes })
    }
}

fn named(dir: &Path, notes: &mut Vec<String>) -> Result<NamedShape, LoadError> {
    let config = ModelConfig::load(dir)?;
    if !config.check_headers(dir)? {
        notes.push(format!("{} has no weights: planned by its config.json alone", dir.display()));
    }
    // What files have quantised may stay as it is.
    let is_quantised = dir.is_file() || config.quantised.is_some() && weight_files(dir).is_ok();
    Ok(NamedShape { name: model_name(dir), config, file: is_quantised.then(|| dir.to_owned()) })
}

/// One model, ready to be asked what shards of it take.
pub(super) struct Planned<'a> {
    shape: &'a NamedShape,
    whole: Divisible,
    bounds: &'a EngineConfig,
    on_gpu: bool,
    is_target: bool,
    /// In what keys and values are held, if the config says so.
    kv: Option<Dtype>,
    /// The head that reads its hidden states, of a target that has one.
    head: Option<&'a ModelConfig>,
    /// A plan asks for the same shards again and again.
    known: RefCell<HashMap<(String, usize, usize), ShareBytes>>,
}

impl<'a> Planned<'a> {
    pub(super) fn new(
        shape: &'a NamedShape,
        bounds: &'a EngineConfig,
        on_gpu: bool,
        is_target: bool,
    ) -> Planned<'a> {
        let ModelConfig { heads, kv_heads, intermediate, vocab, .. } = shape.config;
        let layers = shape.config.layers.len();
        let whole = Divisible { layers, heads, kv_heads, columns: intermediate, tokens: vocab };
        Planned { shape, whole, bounds, on_gpu, is_target, kv: None, head: None, known: RefCell::default() }
    }

    pub(super) fn model<'m>(&'m self, bytes: &'m dyn Fn(&Share, &str) -> ShareBytes) -> PlanModel<'m> {
        PlanModel {
            name: &self.shape.name,
            whole: &self.whole,
            max_context: self.shape.config.max_context,
            bytes,
        }
    }

    pub(super) fn facts(&self, model: &PlanModel<'_>, dtype: &str, ranks: usize) -> Facts {
        let whole = (model.bytes)(&self.whole.share(0, 1), dtype);
        let ModelConfig { heads, kv_heads, hidden, vocab, .. } = self.shape.config;
        Facts {
            name: self.shape.name.clone(),
            dtype: dtype.to_owned(),
            layers: self.whole.layers,
            heads,
            kv_heads,
            hidden,
            vocab,
            ranks,
            weight_bytes: whole.weight_bytes,
            kv_bytes_per_token: whole.kv_bytes_per_token,
        }
    }

    /// What a share of it takes.
    pub(super) fn bytes(&self, share: &Share, dtype: &str) -> ShareBytes {
        let key = (dtype.to_owned(), share.rank, share.ranks);
        if let Some(known) = self.known.borrow().get(&key) {
            return *known;
        }
        let known = [Dtype::F32, Dtype::Int8, Dtype::Fp8, Dtype::Int4];
        let dtype = known.into_iter().find(|held| held.to_string() == dtype);
        let bytes = self.computed(Shard::of(share.rank, share.ranks), dtype.unwrap_or(Dtype::Bf16));
        self.known.borrow_mut().insert(key, bytes);
        bytes
    }

    /// The same of a shard, held so.
    fn computed(&self, shard: Shard, dtype: Dtype) -> ShareBytes {
        let whole = &self.shape.config;
        let own = shard.config(whole);
        // The planner asks for shards that it has checked; a model that cannot be held so fits nowhere.
        let weight_bytes = if self.on_gpu {
            let file = self.shape.file.as_deref();
            CudaModel::weight_bytes(whole, file, shard, dtype).unwrap_or(u64::MAX >> 16)
        } else {
            let bytes = match &self.shape.file {
                Some(file) if dtype == Dtype::Int4 => whole.stored_weight_bytes(file, shard, dtype),
                _ => whole.weight_bytes(shard, dtype),
            };
            bytes.unwrap_or(u64::MAX >> 16)
        };
        let limits = PassLimits::of(self.bounds);
        let (page, attached) = match self.head.filter(|_| shard.rank == 0) {
            None => (0, 0),
            Some(head) if self.on_gpu => (
                CudaFeaturePages::bytes_per_token(head, dtype),
                limits.cuda_verify(self.bounds).attached_bytes(head, dtype),
            ),
            Some(head) => {
                (Features::bytes_per_token(head.hidden), Scratch::attached_bytes(head, limits.rows))
            }
        };
        let held = self.kv.unwrap_or(dtype.beside());
        let kv = if self.on_gpu { own.kv_bytes_per_token(held) } else { own.host_kv_bytes_per_token(held) };
        let kv_bytes_per_token = kv + page;
        let workspace_bytes = self.workspace(&own, shard, dtype) + attached;
        ShareBytes { weight_bytes, kv_bytes_per_token, workspace_bytes }
    }

    fn workspace(&self, own: &ModelConfig, shard: Shard, dtype: Dtype) -> u64 {
        let limits = PassLimits::of(self.bounds);
        if !self.on_gpu {
            let logit_rows = if self.is_target { limits.verify_logit_rows } else { limits.draft_logit_rows };
            return Scratch::bytes(own, limits.rows, logit_rows);
        }
        let sizes =
            if self.is_target { limits.cuda_verify(self.bounds) } else { limits.cuda_draft(self.bounds) };
        sizes.workspace_bytes(&self.shape.config, shard, dtype)
    }
}

/// Columns of a bar.
const BAR: usize = 48;

impl Display for PlanReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.pair.iter().try_for_each(|name| writeln!(f, "pair     {name}"))?;
        machine(f, &self.topology, self.written)?;
        model(f, "target", &self.target)?;
        match &self.draft {
            Some(draft) => model(f, "draft", draft)?,
            None => writeln!(f, "draft    none")?,
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "note     {note}"))?;
        if let Some(plan) = &self.plan {
            for (number, one) in plan.replicas.iter().enumerate() {
                replica(f, number, one, self.max_context, self.block_size)?;
            }
            write_devices(f, plan)?;
            plan.warnings.iter().try_for_each(|warning| writeln!(f, "warning  {warning}"))?;
            f.write_str("ok")?;
        }
        if let Some(nodes) = &self.nodes {
            write!(f, "{nodes}ok")?;
        }
        if let Some(refusal) = &self.refusal {
            write!(f, "\nno plan  {}", refusal.problem)?;
            for (number, change) in refusal.would_fit.iter().enumerate() {
                let head = if number == 0 { "fits    " } else { "or      " };
                write!(f, "\n{head} {change}")?;
            }
        }
        Ok(())
    }
}

fn machine(f: &mut Formatter<'_>, topology: &Topology, is_written: bool) -> fmt::Result {
    let host = &topology.host;
    let origin = if is_written { "as the config says" } else { "as it was found" };
    writeln!(f, "machine  {}, {origin}", topology.name)?;
    let nodes =
        if host.nodes.len() > 1 { format!(" on {} NUMA nodes", host.nodes.len()) } else { String::new() };
    writeln!(f, "host     {}: {} cores{nodes}, {}", host.name, host.cores.len(), written(host.memory_bytes))?;
    let width = topology.gpus.iter().map(|gpu| gpu.name.len()).max().unwrap_or(0);
    for (number, gpu) in topology.gpus.iter().enumerate() {
        let numa = gpu.numa.map_or_else(String::new, |numa| format!(", NUMA node {numa}"));
        let memory = written(gpu.memory_bytes);
        writeln!(f, "cuda:{number:<3} {:width$}  {} SMs, {memory}{numa}", gpu.name, gpu.sms)?;
    }
    links(f, topology)
}

/// In one line if all pairs are joined alike, else as a table.
fn links(f: &mut Formatter<'_>, topology: &Topology) -> fmt::Result {
    let Some(first) = topology.links.first() else { return Ok(()) };
    let rate = |joined: &Joined| format!("{:.0}", joined.link.bytes_per_s / 1e9);
    if topology.links.iter().all(|joined| joined.link == first.link) {
        let pairs = if topology.links.len() == 1 { "both" } else { "every two" };
        return writeln!(f, "links    {pairs}: {}, {} GB/s each way", first.link.kind, rate(first));
    }
    let letter = |kind: LinkKind| match kind {
        LinkKind::Nvlink => 'N',
        LinkKind::PcieSwitch => 'S',
        LinkKind::Pcie => 'P',
        LinkKind::PcieNuma => 'X',
    };
    let kinds = LinkKind::ALL
        .into_iter()
        .filter(|kind| topology.links.iter().any(|joined| joined.link.kind == *kind));
    let legend = kinds.map(|kind| format!("{} {kind}", letter(kind))).collect::<Vec<_>>().join(", ");
    writeln!(f, "links    GB/s each way; {legend}")?;
    let count = topology.gpus.len();
    let heads: String = (0..count).map(|gpu| format!("{gpu:>6}")).collect();
    writeln!(f, "         {:7}{heads}", "")?;
    for a in 0..count {
        let cell = |b| topology.link(a, b).map(|link| Joined { gpus: (a, b), link });
        let cells = (0..count).map(|b| match cell(b) {
            Some(joined) => format!("{:>6}", format!("{}{}", rate(&joined), letter(joined.link.kind))),
            None => format!("{:>6}", "-"),
        });
        writeln!(f, "         {:7}{}", DeviceId::Gpu(a).to_string(), cells.collect::<String>())?;
    }
    Ok(())
}

fn model(f: &mut Formatter<'_>, role: &str, model: &Facts) -> fmt::Result {
    let Facts { name, dtype, layers, heads, kv_heads, hidden, vocab, ranks, .. } = model;
    let (weights, kv) = (written(model.weight_bytes), written(model.kv_bytes_per_token));
    writeln!(
        f,
        "{role:<8} {name}: {layers} layers, hidden {hidden}, {heads} heads ({kv_heads} KV), vocabulary {vocab}; {dtype}, weights {weights}, KV of a token {kv}; TP {ranks}",
    )
}

fn replica(
    f: &mut Formatter<'_>,
    number: usize,
    replica: &Replica,
    max_context: usize,
    block_size: usize,
) -> fmt::Result {
    let Replica { kv_blocks, kv_tokens, sequences, .. } = replica;
    writeln!(
        f,
        "\nreplica {number}: KV for {kv_tokens} tokens ({kv_blocks} blocks of {block_size}), room for {sequences} x {max_context}"
    )?;
    if let Some(Joined { link, .. }) = &replica.slowest_link {
        writeln!(f, "  its group sums over {}, {:.0} GB/s", link.kind, link.bytes_per_s / 1e9)?;
    }
    for rank in &replica.ranks {
        shards(f, rank)?;
    }
    if let Some(alike) = replica.ranks.first().filter(|first| all_alike(first, &replica.ranks)) {
        return lanes(f, alike, "");
    }
    replica.ranks.iter().try_for_each(|rank| lanes(f, rank, &format!(" of {}", rank.device)))
}

fn all_alike(first: &Rank, ranks: &[Rank]) -> bool {
    ranks.iter().all(|rank| rank.partitions == first.partitions)
}

fn shards(f: &mut Formatter<'_>, rank: &Rank) -> fmt::Result {
    let models = [("target", &rank.target), ("draft", &rank.draft)];
    let mut device = rank.device.to_string();
    for (role, shard) in models.into_iter().filter_map(|(role, shard)| Some((role, shard.as_ref()?))) {
        let faser_topology::Shard { share, weight_bytes, kv_bytes, .. } = shard;
        let sizes = format!("weights {}, KV {}", written(*weight_bytes), written(*kv_bytes));
        writeln!(f, "  {device:<7} {role:<6} {}; {sizes}", slices(share))?;
        device.clear();
    }
    Ok(())
}

fn slices(share: &Share) -> String {
    if share.ranks == 1 {
        return "whole".to_owned();
    }
    let range = |range: &std::ops::Range<usize>| match range.len() {
        1 => range.start.to_string(),
        _ => format!("{}-{}", range.start, range.end.saturating_sub(1)),
    };
    format!(
        "rank {} of {}: heads {}, KV heads {}, MLP columns {}, tokens {}",
        share.rank,
        share.ranks,
        range(&share.heads),
        range(&share.kv_heads),
        range(&share.columns),
        range(&share.tokens),
    )
}

fn lanes(f: &mut Formatter<'_>, rank: &Rank, of: &str) -> fmt::Result {
    let cores = |cores: &[usize]| match cores {
        [] => "none".to_owned(),
        cores => cores.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
    };
    let words = |lanes: &Lanes| match lanes {
        Lanes::Sms { draft_sms: 0, verify_sms } => format!("verify on {verify_sms} SMs"),
        Lanes::Sms { draft_sms, verify_sms: 0 } => format!("draft on {draft_sms} SMs"),
        Lanes::Sms { draft_sms, verify_sms } => format!("{draft_sms} + {verify_sms} SMs"),
        Lanes::Cores(pair) if pair.draft.cores.is_empty() => {
            format!("verify on cores {}", cores(&pair.verify.cores))
        }
        Lanes::Cores(pair) => format!("cores {} + {}", cores(&pair.draft.cores), cores(&pair.verify.cores)),
    };
    let both = rank.target.is_some() && rank.draft.is_some();
    let list: Vec<String> = rank.partitions.iter().map(words).collect();
    let list = match list.split_first() {
        Some((first, rest)) if both && rest.is_empty() => format!("{first} in turns"),
        Some((first, rest)) if both => format!("{first} in turns, or at a time {}", rest.join(", ")),
        _ => {
            let mut list = list;
            list.dedup();
            list.join(", ")
        }
    };
    let head = if both { "lanes" } else { "lane" };
    let drafts = if both { " (draft + verify)" } else { "" };
    writeln!(f, "  {head}{of}{drafts}: {list}")
}

fn write_devices(f: &mut Formatter<'_>, plan: &Plan) -> fmt::Result {
    writeln!(
        f,
        "\nmemory   T target's weights, D draft's weights, W workspaces, K KV, . may be used, | the rest"
    )?;
    for load in &plan.devices {
        let free = load.budget_bytes - load.used_bytes();
        let DeviceLoad { target_weight_bytes, draft_weight_bytes, workspace_bytes, kv_bytes, .. } = load;
        writeln!(
            f,
            "{:<8} {}  T {}, D {}, W {}, K {}, {} left of {}",
            load.device.to_string(),
            bar(load),
            written(*target_weight_bytes),
            written(*draft_weight_bytes),
            written(*workspace_bytes),
            written(*kv_bytes),
            written(free),
            written(load.budget_bytes),
        )?;
    }
    Ok(())
}

/// A device's memory, a column for an equal part of it.
fn bar(load: &DeviceLoad) -> String {
    let parts = [
        ('T', load.target_weight_bytes),
        ('D', load.draft_weight_bytes),
        ('W', load.workspace_bytes),
        ('K', load.kv_bytes),
        ('.', load.budget_bytes - load.used_bytes()),
        ('|', load.memory_bytes - load.budget_bytes),
    ];
    let column = |bytes: u64| (bytes as f64 / load.memory_bytes.max(1) as f64 * BAR as f64).round() as usize;
    let (mut bar, mut sum) = (String::new(), 0);
    for (letter, bytes) in parts {
        sum += bytes;
        let more = column(sum).saturating_sub(bar.len());
        bar.extend(std::iter::repeat_n(letter, more));
    }
    bar
}
