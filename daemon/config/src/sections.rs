//! The sections that each pair may have of its own, and the log's: defaults, ranges, and what must fit together.

use std::path::Path;
use std::time::Duration;

use faser_actors::{Drill, DrillFault, Isa, KV_BLOCK_MULTIPLE};
use faser_engine::Tuning;
use faser_hub::{ModelName, NameError};
use faser_models::synthetic::SyntheticSpec;
use faser_models::{CallFormat, ModelError, ReasoningFormat, Verifier, verifier};
use faser_topology::{ALL_SMS, DraftPlace};
use serde_json::Value;

use super::draft_key::{self, DraftKey};
use super::kv_events_section::{KvEventsConfig, kv_events};
use super::sizes::{self, MIB};
use super::{
    CostCache, DeviceConfig, DeviceKind, KvConfig, LogConfig, LogFormat, MOST_PARTITIONS, ModelPlace,
    ModelSection, ModelSource, NamedDraft, NamedShape, Reasoning, SchedulerConfig, ToolCalls, tunables,
};
use crate::fields::{Fault, FieldError, Fields, at_most, each, required, whole, wrong_type, wrong_value};

/// Memory for past outputs: below the least hardly one fits.
const LEAST_SUFFIX_BYTES: u64 = 64 << 10;
const MOST_SUFFIX_BYTES: u64 = 64 << 30;

/// What pairs may have each of their own.
pub(super) struct Sections {
    pub(super) model: ModelSection,
    pub(super) device: DeviceConfig,
    pub(super) kv: KvConfig,
    pub(super) kv_events: Option<KvEventsConfig>,
    pub(super) scheduler: SchedulerConfig,
    pub(super) tuning: Tuning,
    pub(super) cost_cache: CostCache,
    pub(super) suffix_bytes: u64,
}

pub(super) fn sections<'v>(
    mut section: impl FnMut(&'static str) -> Result<Fields<'v>, FieldError>,
    folder: &Path,
    nodes: usize,
) -> Result<Sections, FieldError> {
    let (model, sources) = model(section("model")?, folder)?;
    let device = device(section("device")?, &model, nodes)?;
    let kv = kv(section("kv")?)?;
    let kv_events = kv_events(section("kv_events")?, &kv, device.replicas)?;
    let mut tuning = Tuning::default();
    let scheduler = scheduler(section("scheduler")?, &mut tuning)?;
    let fields = section("speculation")?;
    let (cost_cache, suffix_bytes) = speculation(fields, &model, sources.as_deref(), folder, &mut tuning)?;
    Ok(Sections { model, device, kv, kv_events, scheduler, tuning, cost_cache, suffix_bytes })
}

/// The model section, and which sources beside a draft model it names, if it lists them.
fn model(
    mut fields: Fields<'_>,
    folder: &Path,
) -> Result<(ModelSection, Option<Vec<&'static str>>), FieldError> {
    let (name, aliases) = names(&mut fields)?;
    let spec = fields.object("synthetic")?.map(synthetic).transpose()?;
    let target = fields.text("target")?;
    let DraftKey { name: draft, dtype: own_dtype, others: sources } = DraftKey::read(&mut fields)?;
    let shape = fields.object("shape")?.map(shapes).transpose()?;
    let others = [("synthetic", spec.is_some()), ("target", target.is_some()), ("draft", draft.is_some())];
    if let Some(other) = first_given(&others).filter(|_| shape.is_some()) {
        return Err(fields.wrong(other, "stands beside `model.shape`: keep one of the two"));
    }
    let named = match (spec, target, draft) {
        (Some(_), Some(_), _) => {
            return Err(fields.wrong("target", "stands beside `model.synthetic`: keep one of the two"));
        }
        (Some(spec), None, None) => ModelSource::Synthetic { spec, draft: true },
        (Some(spec), None, Some("none")) => ModelSource::Synthetic { spec, draft: false },
        (Some(_), None, Some(other)) => {
            let wanted = "left out, or `none`, beside `model.synthetic`";
            return Err(fields.wrong_value("draft", wanted, &other.into()));
        }
        (None, None | Some("demo"), None | Some("demo")) => ModelSource::Demo { draft: true },
        (None, None | Some("demo"), Some("none")) => ModelSource::Demo { draft: false },
        (None, None | Some("demo"), Some(other)) => {
            let wanted = "`demo` or `none` beside the demo target; give a directory as `model.target` too";
            return Err(fields.wrong_value("draft", wanted, &other.into()));
        }
        (None, Some(target), None | Some("auto")) => {
            of_target(&fields, place(&fields, folder, "target", target)?, draft.is_none())?
        }
        (None, Some(target), Some("none")) => match place(&fields, folder, "target", target)? {
            ModelPlace::Folder(target) => ModelSource::Directories { target, draft: None },
            target => ModelSource::Named { target, draft: NamedDraft::None },
        },
        (None, Some(target), Some(draft)) => {
            let places = (place(&fields, folder, "target", target)?, place(&fields, folder, "draft", draft)?);
            match places {
                (ModelPlace::Folder(target), ModelPlace::Folder(draft)) => {
                    ModelSource::Directories { target, draft: Some(draft) }
                }
                (target, draft) => ModelSource::Named { target, draft: NamedDraft::At(draft) },
            }
        }
    };
    let source = match shape {
        Some((target, draft)) => ModelSource::Shape { target: Box::new(target), draft: draft.map(Box::new) },
        None => named,
    };
    let dtype = draft_key::dtype(&mut fields, "dtype")?;
    let draft_dtype = draft_key::dtype(&mut fields, "draft_dtype")?;
    if draft_dtype.is_some() && own_dtype.is_some() {
        return Err(
            fields.wrong("draft_dtype", "stands beside `dtype` of `model.draft`: keep one of the two")
        );
    }
    let draft_dtype = draft_dtype.or(own_dtype);
    if draft_dtype.is_some() && !source.has_draft() {
        let problem = "is for a draft model, and there is none (`model.draft: none`): leave it out";
        return Err(fields.wrong("draft_dtype", problem));
    }
    let tool_calls = match fields.word("tool_calls", &["auto", "hermes", "llama3", "none"])? {
        Some("hermes") => ToolCalls::Format(CallFormat::Hermes),
        Some("llama3") => ToolCalls::Format(CallFormat::Llama3),
        Some("none") => ToolCalls::None,
        _ => ToolCalls::Auto,
    };
    let reasoning = match fields.word("reasoning", &["auto", "think", "harmony", "none"])? {
        Some("think") => Reasoning::Format(ReasoningFormat::Think),
        Some("harmony") => Reasoning::Format(ReasoningFormat::Harmony),
        Some("none") => Reasoning::None,
        _ => Reasoning::Auto,
    };
    let generation_config = fields.word("generation_config", &["auto", "none"])? != Some("none");
    fields.finish()?;
    let model =
        ModelSection { name, aliases, source, dtype, draft_dtype, tool_calls, reasoning, generation_config };
    Ok((model, sources))
}

/// Where the model is that `key` names.
fn place(
    fields: &Fields<'_>,
    folder: &Path,
    key: &'static str,
    text: &str,
) -> Result<ModelPlace, FieldError> {
    if !ModelName::is_meant(text) {
        return Ok(ModelPlace::Folder(folder.join(text)));
    }
    let name = text.parse();
    name.map(ModelPlace::Hub)
        .map_err(|error: NameError| fields.wrong(key, format!("cannot be used: {error}")))
}

/// A target beside which no draft is named. A draft that names its target is the pair.
fn of_target(fields: &Fields<'_>, place: ModelPlace, required: bool) -> Result<ModelSource, FieldError> {
    let ModelPlace::Folder(given) = place else {
        return Ok(ModelSource::Named { target: place, draft: NamedDraft::OfTarget { required } });
    };
    let cannot = |error: ModelError| fields.wrong("target", format!("cannot be used: {error}"));
    match verifier(&given).map_err(cannot)? {
        Some(Verifier::Folder(target)) => Ok(ModelSource::Directories { target, draft: Some(given) }),
        Some(Verifier::Elsewhere { name, refusal }) => match ModelName::bare(&name) {
            Some(target) => Ok(ModelSource::Named {
                target: ModelPlace::Hub(target),
                draft: NamedDraft::At(ModelPlace::Folder(given)),
            }),
            None => Err(cannot(refusal)),
        },
        None if required => {
            Err(fields
                .missing("draft", "is missing: name the draft model's directory, or write `draft: none`"))
        }
        None => Ok(ModelSource::Directories { target: given, draft: None }),
    }
}

/// The first of these fields that is there.
fn first_given(fields: &[(&'static str, bool)]) -> Option<&'static str> {
    fields.iter().find_map(|(name, given)| given.then_some(*name))
}

/// Ranks of a group: more would only wait for each other.
const MOST_RANKS: usize = 64;
/// GPUs whose sums go over each other's memory, at most.
const MOST_PEERS: usize = 8;
/// Replicas of one daemon.
const MOST_REPLICAS: usize = 64;

fn device(mut fields: Fields<'_>, model: &ModelSection, nodes: usize) -> Result<DeviceConfig, FieldError> {
    let kind = match fields.text("kind")? {
        None | Some("auto") => DeviceKind::Auto,
        Some("cpu") => DeviceKind::Cpu,
        Some(text) => {
            let numbers = if text == "cuda" { Some("0") } else { text.strip_prefix("cuda:") };
            let apart = |gpus: &Vec<usize>| {
                (1..gpus.len()).all(|at| !gpus[..at].contains(&gpus[at]))
                    && gpus.iter().all(|gpu| *gpu < 1024)
            };
            let gpus = numbers.and_then(|list| list.split(',').map(|gpu| gpu.trim().parse().ok()).collect());
            let wanted = "`auto`, `cpu`, `cuda`, or `cuda:N` with the number of a GPU or several, such as `cuda:0` or `cuda:0,1`";
            let wrong = || fields.wrong_value("kind", wanted, &text.into());
            DeviceKind::Cuda(gpus.filter(apart).ok_or_else(wrong)?)
        }
    };
    let threads = fields.size("threads", 1..=4096)?;
    let isa = match fields.text("isa")? {
        None | Some("auto") => {
            let refused = |error| fields.wrong("isa", format!("is `auto`, but {error}"));
            Isa::auto().map_err(refused)?;
            None
        }
        Some(text) => {
            let isa = text.parse().ok().filter(|isa| Isa::available().contains(isa));
            Some(isa.ok_or_else(|| {
                let names = Isa::available().iter().map(|isa| format!(", `{isa}`")).collect::<String>();
                let wanted = format!("one of what this CPU has, `auto`{names}");
                fields.wrong_value("isa", &wanted, &text.into())
            })?)
        }
    };
    let partitions = partitions(&mut fields)?;
    let gpu_memory_utilization = fields.number("gpu_memory_utilization", 0.05..=1.0)?.unwrap_or(0.9);
    let tensor_parallel = fields.size("tensor_parallel", 1..=MOST_RANKS)?.unwrap_or(1);
    let pipeline_parallel = fields.size("pipeline_parallel", 1..=MOST_RANKS)?.unwrap_or(1);
    if tensor_parallel * pipeline_parallel > MOST_RANKS {
        let wanted =
            format!("at most {MOST_RANKS} ranks, times `device.tensor_parallel` ({tensor_parallel})");
        return Err(fields.wrong_value("pipeline_parallel", &wanted, &pipeline_parallel.into()));
    }
    let draft_tensor_parallel = fields.size("draft_tensor_parallel", 1..=MOST_RANKS)?;
    let draft_placement = fields.word("draft_placement", &["first", "replicated", "own"])?;
    if draft_placement == Some("replicated") && draft_tensor_parallel.is_some_and(|ranks| ranks > 1) {
        let problem = "does not go with `device.draft_placement: replicated`, a whole draft on every rank: leave this out";
        return Err(fields.wrong("draft_tensor_parallel", problem));
    }
    let deadline = fields.whole("rank_deadline_s", 1..=3600)?;
    let deterministic = fields.flag("deterministic")?.unwrap_or(false);
    let custom_all_reduce = fields.flag("custom_all_reduce")?;
    let without_peers = match () {
        () if nodes > 1 => Some("of several nodes"),
        () if tensor_parallel > MOST_PEERS => Some("that are more than 8"),
        () => None,
    };
    if let (Some(true), Some(why)) = (custom_all_reduce, without_peers)
        && kind != DeviceKind::Cpu
    {
        let problem = format!(
            "cannot be had over {tensor_parallel} GPUs (`device.tensor_parallel`) {why}: NCCL has every sum of the target there. Leave it out"
        );
        return Err(fields.wrong("custom_all_reduce", problem));
    }
    let turned_off = (custom_all_reduce == Some(false)).then_some("with `device.custom_all_reduce: false`");
    if let Some(why) = without_peers.or(turned_off)
        && deterministic
        && kind != DeviceKind::Cpu
        && tensor_parallel > 2
    {
        let remove = if without_peers.is_none() { "Remove that line, split" } else { "Split" };
        let problem = format!(
            "cannot be had over {tensor_parallel} GPUs (`device.tensor_parallel`) {why}: NCCL adds up in an order that depends on how much \
             there is to add. {remove} over 2 at most, leave it out, or set `device.kind: cpu`"
        );
        return Err(fields.wrong("deterministic", problem));
    }
    let replicas = fields.size("replicas", 1..=MOST_REPLICAS)?.unwrap_or(1);
    let drills = drills(&mut fields, replicas)?;
    // What the device named would not look at is refused.
    let idle = match &kind {
        DeviceKind::Auto => None,
        DeviceKind::Cpu => first_given(&[
            ("partitions", partitions.is_some()),
            ("custom_all_reduce", custom_all_reduce.is_some()),
        ]),
        DeviceKind::Cuda(_) => first_given(&[("threads", threads.is_some()), ("isa", isa.is_some())]),
    };
    // Over several nodes those of one.
    let ranks = tensor_parallel.div_ceil(nodes);
    let each = ranks + usize::from(draft_placement == Some("own"));
    if let DeviceKind::Cuda(gpus) = &kind
        && gpus.len() > 1
        && gpus.len() != each * replicas
    {
        let more = if each > ranks { ", and one more for the draft," } else { "" };
        let of_node = if nodes > 1 { ", a node's part of it," } else { "" };
        let problem = format!(
            "names {} GPUs, and `device.tensor_parallel`{of_node}{more} times `device.replicas` is {}: make them the same, or name the first GPU alone",
            gpus.len(),
            each * replicas
        );
        return Err(fields.wrong("kind", problem));
    }
    if let Some(idle) = idle {
        let other = if kind == DeviceKind::Cpu { "a GPU" } else { "the CPU" };
        let problem = format!("is for {other}: leave it out, or change `device.kind`");
        return Err(fields.wrong(idle, problem));
    }
    let of_drafts = first_given(&[
        ("partitions", partitions.is_some()),
        ("draft_tensor_parallel", draft_tensor_parallel.is_some()),
        ("draft_placement", draft_placement.is_some()),
    ]);
    if let Some(name) = of_drafts.filter(|_| !model.source.has_draft()) {
        let problem = "is for a draft model, and there is none (`model.draft: none`): leave it out";
        return Err(fields.wrong(name, problem));
    }
    fields.finish()?;
    Ok(DeviceConfig {
        kind,
        threads,
        isa,
        partitions,
        gpu_memory_utilization,
        tensor_parallel,
        pipeline_parallel,
        nodes,
        draft_tensor_parallel: draft_tensor_parallel.unwrap_or(1),
        draft_placement: match draft_placement {
            Some("replicated") => DraftPlace::Replicated,
            Some("own") => DraftPlace::Own,
            _ => DraftPlace::First,
        },
        deterministic,
        rank_deadline: Duration::from_secs(deadline.unwrap_or(60)),
        custom_all_reduce: custom_all_reduce.unwrap_or(true),
        replicas,
        drills,
        others_gpus: None,
    })
}

fn partitions(fields: &mut Fields<'_>) -> Result<Option<Vec<u32>>, FieldError> {
    let path = fields.path("partitions");
    let Some(items) = fields.list("partitions")? else { return Ok(None) };
    let sms = |item: &Value| match item.as_str() {
        Some("all") => Ok(ALL_SMS),
        _ => whole(&path, item, 1..=4096).map(|sms| sms as u32),
    };
    let partitions = items.iter().map(sms).collect::<Result<Vec<u32>, _>>()?;
    if partitions.len() > MOST_PARTITIONS || !partitions.is_sorted_by(|a, b| a < b) {
        let wanted = "up to 8 numbers of SMs for drafting, ascending, and `all`, such as [16, 32, 64, all]; [] for none";
        return Err(wrong_value(&path, wanted, &items.into()));
    }
    Ok(Some(partitions))
}

fn kv(mut fields: Fields<'_>) -> Result<KvConfig, FieldError> {
    let block_size = fields.size("block_size", 1..=256)?.unwrap_or(KV_BLOCK_MULTIPLE);
    if !block_size.is_multiple_of(KV_BLOCK_MULTIPLE) {
        let wanted = format!("a multiple of {KV_BLOCK_MULTIPLE} (on a GPU it is {KV_BLOCK_MULTIPLE})");
        return Err(fields.wrong_value("block_size", &wanted, &block_size.into()));
    }
    let memory_bytes = sizes::bytes(&mut fields, "memory", MIB, 1 << 50)?;
    let prefix_cache = fields.flag("prefix_cache")?.unwrap_or(true);
    let cache_dtype =
        fields.word("cache_dtype", &["auto", "int8", "fp8"])?.and_then(|word| word.parse().ok());
    fields.finish()?;
    Ok(KvConfig { block_size, memory_bytes, prefix_cache, cache_dtype })
}

fn scheduler(mut fields: Fields<'_>, tuning: &mut Tuning) -> Result<SchedulerConfig, FieldError> {
    tunables::read("scheduler", &mut fields, tuning)?;
    let max_running = tuning.max_running;
    let rows = fields.size("max_pass_rows", 1..=65_536)?;
    let max_pass_rows = rows.unwrap_or(max_running.max(512));
    if max_pass_rows < max_running {
        let wanted = format!("at least `scheduler.max_running` ({max_running}), a row per sequence");
        return Err(fields.wrong_value("max_pass_rows", &wanted, &max_pass_rows.into()));
    }
    let max_context = fields.size("max_context", 2..=(1 << 24))?;
    let priorities = fields.flag("priorities")?.unwrap_or(true);
    fields.finish()?;
    Ok(SchedulerConfig { max_pass_rows, max_context, priorities })
}

fn speculation(
    mut fields: Fields<'_>,
    model: &ModelSection,
    sources: Option<&[&'static str]>,
    folder: &Path,
    tuning: &mut Tuning,
) -> Result<(CostCache, u64), FieldError> {
    tunables::read("speculation", &mut fields, tuning)?;
    draft_key::switch(sources, &fields, tuning)?;
    if let Some(mut slo) = fields.object("slo")? {
        tunables::read("speculation.slo", &mut slo, tuning)?;
        slo.finish()?;
    }
    let traits = tuning.policy.traits();
    if traits.drafts && !traits.lookup && !model.source.has_draft() {
        let wanted = "`off`, `budget` or `faser` when there is no draft model (`model.draft: none`)";
        return Err(fields.wrong_value("policy", wanted, &tuning.policy.to_string().into()));
    }
    let cost_cache = match fields.text("cost_cache")? {
        None => CostCache::Standard,
        Some("none") => CostCache::Off,
        Some("") => return Err(fields.wrong_value("cost_cache", "a folder, or `none`", &"".into())),
        Some(path) => CostCache::Folder(folder.join(path)),
    };
    let suffix_bytes = sizes::bytes(&mut fields, "suffix_memory", LEAST_SUFFIX_BYTES, MOST_SUFFIX_BYTES)?;
    fields.finish()?;
    Ok((cost_cache, suffix_bytes.unwrap_or(0)))
}

pub(super) fn log(mut fields: Fields<'_>) -> Result<LogConfig, FieldError> {
    let level = match fields.word("level", &["error", "warn", "info", "debug", "trace"])? {
        Some("error") => tracing::Level::ERROR,
        Some("warn") => tracing::Level::WARN,
        Some("debug") => tracing::Level::DEBUG,
        Some("trace") => tracing::Level::TRACE,
        _ => tracing::Level::INFO,
    };
    let format = match fields.word("format", &["auto", "text", "json"])? {
        Some("json") => LogFormat::Json,
        Some("text") => LogFormat::Text,
        _ => LogFormat::Auto,
    };
    fields.finish()?;
    Ok(LogConfig { level, format })
}

/// Names beside the model's own.
const MOST_ALIASES: usize = 16;

/// Reads `model.name` and `model.aliases`.
fn names(fields: &mut Fields<'_>) -> Result<(Option<String>, Vec<String>), FieldError> {
    let name = name(fields)?;
    Ok((name.map(str::to_owned), aliases(fields, name)?))
}

/// Reads `name`: what clients may write as `model`.
pub(super) fn name<'v>(fields: &mut Fields<'v>) -> Result<Option<&'v str>, FieldError> {
    fields.value("name").map(|value| valid(&fields.path("name"), value)).transpose()
}

fn valid<'v>(path: &str, value: &'v Value) -> Result<&'v str, FieldError> {
    const WANTED: &str = "1 to 128 letters, digits and signs without spaces";
    let name = value.as_str().ok_or_else(|| wrong_type(path, "a string", value))?;
    if name.is_empty() || name.len() > 128 || !name.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(wrong_value(path, WANTED, value));
    }
    Ok(name)
}

/// Further names; `name` is the one that the config gives, if it does.
fn aliases(fields: &mut Fields<'_>, name: Option<&str>) -> Result<Vec<String>, FieldError> {
    let path = fields.path("aliases");
    let list = fields.list("aliases")?.unwrap_or_default();
    at_most(&path, list.len(), MOST_ALIASES, "names")?;
    let mut aliases: Vec<String> = Vec::with_capacity(list.len());
    for (i, value) in list.iter().enumerate() {
        let path = format!("{path}[{i}]");
        let alias = valid(&path, value)?;
        if name == Some(alias) || aliases.iter().any(|other| other == alias) {
            let problem = format!("is `{alias}`, which is a name of the model already: leave it out");
            return Err(FieldError::new(path, Fault::Value, problem));
        }
        aliases.push(alias.to_owned());
    }
    Ok(aliases)
}

/// Reads `model.synthetic`: a preset, and whatever of its shape is to differ. Whether the numbers make a model is checked when the pair is built.
fn synthetic(mut fields: Fields<'_>) -> Result<SyntheticSpec, FieldError> {
    let preset = fields.text("preset")?.unwrap_or("tiny");
    let mut spec = SyntheticSpec::preset(preset)
        .map_err(|err| fields.wrong("preset", format!("cannot be used: {err}")))?;
    let sizes: [(&'static str, &mut usize); 10] = [
        ("layers", &mut spec.layers),
        ("draft_layers", &mut spec.draft_layers),
        ("hidden", &mut spec.hidden),
        ("intermediate", &mut spec.intermediate),
        ("experts", &mut spec.experts),
        ("experts_per_token", &mut spec.experts_per_token),
        ("heads", &mut spec.heads),
        ("kv_heads", &mut spec.kv_heads),
        ("vocab", &mut spec.vocab),
        ("max_context", &mut spec.max_context),
    ];
    for (name, size) in sizes {
        if let Some(value) = fields.size(name, 1..=(1 << 24))? {
            *size = value;
        }
    }
    if let Some(seed) = fields.whole("seed", 0..=u64::MAX)? {
        spec.seed = seed;
    }
    if let Some(scale) = fields.number("residual_scale", 0.0..=100.0)? {
        spec.residual_scale = scale as f32;
    }
    fields.finish()?;
    Ok(spec)
}

/// Reads `model.shape`: models one does not have, by the keys of their config.json, so that `faser plan` can plan for them.
fn shapes(mut fields: Fields<'_>) -> Result<(NamedShape, Option<NamedShape>), FieldError> {
    let target = shape(&mut fields, "target")?;
    let draft = shape(&mut fields, "draft")?;
    let path = fields.path("target");
    fields.finish()?;
    let missing = || FieldError::new(path, Fault::Missing, "is missing: the keys of the model's config.json");
    Ok((target.ok_or_else(missing)?, draft))
}

fn shape(fields: &mut Fields<'_>, name: &'static str) -> Result<Option<NamedShape>, FieldError> {
    let path = fields.path(name);
    let Some(keys) = fields.value(name) else { return Ok(None) };
    let config = faser_models::ModelConfig::from_json(Path::new(&path), keys.clone());
    let config =
        config.map_err(|error| FieldError::new(path, Fault::Value, format!("cannot be used: {error}")))?;
    let called = keys.get("_name_or_path").and_then(|called| called.as_str()).unwrap_or(name);
    Ok(Some(NamedShape { name: called.to_owned(), config, file: None }))
}

/// More would be no drill.
const MOST_DRILLS: usize = 64;

/// Reads `device.drills`, faults made on purpose in debug builds: a list of objects such as `{what: panic, replica: 0, rank: 1, at: 40}`; see [`DrillFault`].
fn drills(fields: &mut Fields<'_>, replicas: usize) -> Result<Vec<Drill>, FieldError> {
    let path = fields.path("drills");
    let Some(items) = fields.list("drills")? else { return Ok(Vec::new()) };
    let refuse = |problem: &str| Err(FieldError::new(&path, Fault::Value, problem));
    if !cfg!(debug_assertions) {
        return refuse("is for debug builds, and this is none: leave it out");
    }
    if items.len() > MOST_DRILLS {
        return refuse("has more than 64 entries");
    }
    each(&path, items, |path, item| drill(path, item, replicas))
}

fn drill(path: String, item: &Value, replicas: usize) -> Result<Drill, FieldError> {
    let mut fields = Fields::new(path, item)?;
    let what = fields.word("what", &["panic", "hang", "build"])?;
    let replica = fields.size("replica", 0..=replicas - 1)?.unwrap_or(0);
    let at = required(fields.size("at", 0..=1_000_000)?, &fields, "at")?;
    let fault = match what {
        Some("panic") => DrillFault::Panic { rank: fields.size("rank", 0..=63)?.unwrap_or(0), at },
        Some("hang") => {
            let rank = fields.size("rank", 0..=63)?.unwrap_or(0);
            let lasting = required(fields.whole("ms", 1..=600_000)?, &fields, "ms")?;
            DrillFault::Hang { rank, at, lasting: Duration::from_millis(lasting) }
        }
        Some(_) => DrillFault::Build { at },
        None => return Err(fields.missing("what", "is missing")),
    };
    fields.finish()?;
    Ok(Drill { replica, fault })
}
