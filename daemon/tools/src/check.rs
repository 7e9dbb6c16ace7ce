//! `faser check`: loads what the config names and says how it would be placed.

use std::fmt::Write;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use clap::Args;
use faser_actors::{DeviceSpec, LaneSizes, ModelFacts};
use faser_config::device::Machine;
use faser_config::{Config, ConfigError, NodeConfig, sizes};
use faser_engine::cost::{PassCost, Reach};
use faser_loading::load_pairs::{Loaded, load_all};
use faser_models::{CallFormat, Experts, ModelConfig, Quality, ReasoningFormat};
use faser_openai::access::Access;
use faser_terminal::Display;
use faser_topology::Node;

use crate::pair_args::PairArgs;

/// `faser check`.
#[derive(Args, Debug)]
#[command(after_help = "\
It loads the models, so a file that is missing, cut off or of the wrong shape is found here.

Examples:
  faser check -c configs/laptop.yaml
  faser check model.gguf                          what is in this file?
  faser check --quality text.txt model.gguf       what does its dtype cost?")]
pub struct CheckArgs {
    /// Config file (YAML); without it every default is checked.
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Models in its place.
    #[command(flatten)]
    pub pair: PairArgs,
    /// Measure what passes cost anew, also if an earlier start has cached it; for policies that need to know it.
    #[arg(long)]
    pub profile: bool,
    /// A text to read with the target in `model.dtype` and in f32, on the CPU: what is lost by the dtype, as perplexity and divergence.
    #[arg(long, value_name = "TEXT FILE")]
    pub quality: Option<PathBuf>,
    /// Tokens of it to read at most.
    #[arg(long, value_name = "N", default_value_t = 2048, requires = "quality")]
    pub quality_tokens: usize,
}

impl CheckArgs {
    /// The config to check.
    ///
    /// # Errors
    /// The file is wrong.
    pub fn load_config(&self) -> Result<Config, ConfigError> {
        self.pair.read(self.config.clone())?.profiled(self.profile)
    }
}

/// Bytes of a text that are read for each token, of which most have fewer.
const TOKEN_BYTES: u64 = 256;

/// What the target's dtype costs over a text.
///
/// # Errors
/// The text cannot be read, or the target cannot be loaded.
pub fn quality(config: &Config, text: &Path, most: usize) -> Result<String> {
    if most == 0 {
        bail!("--quality-tokens must be at least 1");
    }
    // No further than so many tokens are likely to reach.
    let (limit, mut words) = ((most as u64).saturating_mul(TOKEN_BYTES), Vec::new());
    let read = File::open(text).and_then(|file| file.take(limit).read_to_end(&mut words));
    read.map_err(|error| anyhow!("cannot read {}: {error}", text.display()))?;
    let mut display = Display::new();
    let watch = &mut |what: &str, progress| display.show(what, progress);
    let (quality, dtype) =
        faser_loading::quality::quality(config, &String::from_utf8_lossy(&words), most, watch)?;
    display.finish();
    let kv = config.kv.cache_dtype.map_or_else(String::new, |kv| format!(" with KV in {kv}"));
    let Quality { tokens, perplexity, perplexity_in_f32, divergence, divergence_p99, same_token } = quality;
    Ok(format!(
        "quality  {tokens} tokens of {}: perplexity {perplexity:.4} in {dtype}{kv}, {perplexity_in_f32:.4} in f32; divergence from f32 \
         {divergence:.2e} nats in the mean, {divergence_p99:.2e} at p99; the same likeliest token in {:.2} % of places",
        text.display(),
        1e2 * same_token
    ))
}

/// Loads everything `serve` would load and returns the summary; nothing is started.
///
/// # Errors
/// What `serve` would fail with.
pub fn check(config: &Config) -> Result<String> {
    // Keys that cannot be read, or an address that needs some, are faults of the config as any other.
    Access::load(&config.server)?.listen(config.server.listen, &config.server)?;
    let mut display = Display::new();
    let mut config = config.clone();
    // The others are not waited for.
    config.node.iter_mut().for_each(|node| node.joins = false);
    let loaded = load_all(&config, &mut |what, progress| display.show(what, progress))?;
    display.finish();
    let summaries: Vec<String> = loaded.iter().map(|loaded| summary(&loaded.config, loaded)).collect();
    Ok(format!("{}ok", summaries.join("\n")))
}

fn summary(config: &Config, loaded: &Loaded) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:<8} {value}");
    };
    let scheme = if config.server.tls.is_some() { "https" } else { "http" };
    line("model", format!("{} on {scheme}://{}", loaded.name, config.server.listen));
    if !config.model.aliases.is_empty() {
        line("aliases", config.model.aliases.join(", "));
    }
    if let Some(NodeConfig { place, rendezvous, .. }) = &config.node {
        let ranks = place.ranks(config.device.target_ranks());
        let words = format!(
            "{} of {}, {rendezvous}; ranks {ranks:?} of the target; costs are measured where all are",
            place.rank, place.of
        );
        line("node", words);
    }
    let device = &loaded.device;
    line("target", described(&device.target()));
    line("draft", device.draft().map_or_else(|| "none".to_owned(), |draft| described(&draft)));
    let chat = match &loaded.template {
        Ok(_) => "yes".to_owned(),
        Err(err) => format!("no: {err}"),
    };
    line("chat", chat);
    let calls = match loaded.calls {
        Some(CallFormat::Hermes) => "calls as Hermes writes them",
        Some(CallFormat::Llama3) => "calls as Llama 3 writes them",
        Some(CallFormat::Json) => {
            "calls as JSON under a grammar: its chat template tells no way to write them"
        }
        Some(CallFormat::Harmony) => "calls as messages of Harmony",
        None => "none (model.tool_calls)",
    };
    line("tools", calls.to_owned());
    let reasoning = match loaded.reasoning {
        Some(ReasoningFormat::Think) => "told from the rest, by <think> and </think>",
        Some(ReasoningFormat::Harmony) => "told from the rest, by the channels of Harmony",
        None => "not told from the rest (model.reasoning)",
    };
    line("reasoning", reasoning.to_owned());
    line("sampling", format!("{} (model.generation_config)", loaded.defaults));
    for note in &loaded.notes {
        line("note", note.clone());
    }
    line("device", format!("{}, {}", loaded.machine, memory(config, &loaded.machine)));
    if let Machine::Cpu { device, .. } = &loaded.machine
        && device.nodes.len() > 1
    {
        line("nodes", nodes(&device.nodes, &device.nodes_of(config.device.threads)));
    }
    if let Machine::Cpu { why: Some(why), .. } = &loaded.machine {
        line("no gpu", why.clone());
    }
    let several = !loaded.more.is_empty();
    if several {
        let count = 1 + loaded.more.len();
        line(
            "replicas",
            format!(
                "{count}, each with an engine, KV and bounds as below{}",
                if device.unit() == "cores" { "; they share the weights" } else { ", on GPUs of its own" }
            ),
        );
    }
    for (number, device) in std::iter::once(device).chain(&loaded.more).enumerate() {
        for lanes in lanes(device) {
            line("lanes", if several { format!("of replica {number}: {lanes}") } else { lanes });
        }
    }
    let pools = &loaded.pools;
    let engine = &loaded.engine;
    line(
        "kv",
        format!(
            "{}{}: {} target and {} draft blocks{} of {} tokens, room for {} sequences of {} tokens",
            sizes::written(pools.kv_bytes),
            config.kv.cache_dtype.map_or_else(String::new, |dtype| format!(" in {dtype}")),
            pools.target_blocks,
            pools.draft_blocks,
            if engine.speculation.draft_copies > 1 { " (on each rank)" } else { "" },
            engine.block_size,
            pools.target_blocks / engine.max_context.div_ceil(engine.block_size).max(1),
            engine.max_context,
        ),
    );
    line(
        "bounds",
        format!(
            "{} running, {} waiting, {} rows per pass",
            engine.tuning.max_running, engine.tuning.max_waiting, engine.max_pass_rows
        ),
    );
    line("policy", engine.tuning.policy.to_string());
    if let Some(source) = &loaded.cost_source {
        line("tables", source.to_string());
    }
    for (lanes, costs) in device.partitions().iter().zip(&engine.partitions) {
        let ms = |cost: &PassCost, rows| format!("{:.2}", cost.seconds(rows, Reach::NONE) * 1e3);
        let [one, eight, many] = [1, 8, 64].map(|rows| ms(&costs.verify, rows));
        let (step, steps) = (ms(&costs.draft, 1), ms(&costs.draft, 16));
        let LaneSizes { draft, verify } = lanes;
        let unit = device.unit();
        line(
            "costs",
            format!(
                "on {verify} + {draft} {unit}: verify pass of 1, 8, 64 rows {one}, {eight}, {many} ms; draft step of 1, 16 sequences {step}, {steps} ms",
            ),
        );
    }
    text
}

/// What of the device's memory there is to be had.
fn memory(config: &Config, machine: &Machine) -> String {
    match machine {
        Machine::Cpu { device, .. } => format!("{} free", sizes::written(device.memory_bytes)),
        Machine::Gpus { first, .. } => {
            let (all, share) = (sizes::written(first.memory_bytes), config.device.gpu_memory_utilization);
            format!("{all}, {share} of it to be used")
        }
    }
}

fn lanes(device: &DeviceSpec) -> Vec<String> {
    let over = |ranks: usize| if ranks > 1 { format!(" over {ranks} ranks") } else { String::new() };
    let (target, draft) = device.ranks();
    let (draft_over, verify_over) = (over(draft), over(target));
    let words = |(draft, verify)| format!("draft on {draft}{draft_over}, verify on {verify}{verify_over}");
    device.lanes().into_iter().map(words).collect()
}

fn described(model: &ModelFacts) -> String {
    let config = &model.config;
    format!(
        "{:?}, {} layers, hidden {}, {} heads ({} kv){}, vocabulary {}, context {}, {} weights {}",
        config.architecture,
        config.layers.len(),
        config.hidden,
        config.heads,
        config.kv_heads,
        experts(config),
        config.vocab,
        config.max_context,
        model.dtype,
        sizes::written(model.weight_bytes),
    )
}

/// How many experts there are, and what of all parameters a token goes through.
fn experts(config: &ModelConfig) -> String {
    let Some(Experts { count, active, width, shared, .. }) = config.experts() else { return String::new() };
    let with = config.layers.iter().filter(|layer| layer.mlp.kind.experts().is_some()).count();
    let some = if with < config.layers.len() { format!(" in {with} layers") } else { String::new() };
    let shared = shared.map_or_else(String::new, |width| format!(" and a shared one of {width}"));
    let billions = |parameters| parameters as f64 / 1e9;
    let share = config.parameters().map_or_else(
        |_| String::new(),
        |(all, own)| format!(" ({:.3}B of {:.3}B parameters)", billions(own), billions(all)),
    );
    format!(", {count} experts of width {width}{some}, {active}{shared} per token{share}")
}

/// The NUMA nodes, and on which of them (by number) the weights are.
fn nodes(nodes: &[Node], weights: &[usize]) -> String {
    let cores = nodes.iter().map(|node| format!("{} with {} cores", node.number, node.cores.len()));
    let weights: Vec<String> = weights.iter().map(ToString::to_string).collect();
    format!("{}; weights on {}", cores.collect::<Vec<_>>().join(", "), weights.join(" and "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experts_are_told_with_what_a_token_goes_through() {
        let keys = |more: &[(&str, u64)]| {
            let mut keys = serde_json::json!({"architectures": ["Qwen2MoeForCausalLM"]});
            more.iter().for_each(|(key, value)| keys[key] = (*value).into());
            experts(&ModelConfig::from_json(std::path::Path::new("config.json"), keys).unwrap())
        };
        // Qwen1.5-MoE-A2.7B, which its card says to have 14.3 billion parameters, of which 2.7 billion are active.
        assert_eq!(
            keys(&[]),
            ", 60 experts of width 1408, 4 and a shared one of 5632 per token (2.689B of 14.316B parameters)"
        );
        assert!(keys(&[("decoder_sparse_step", 2)]).contains("of width 1408 in 12 layers, 4 and"));
    }

    #[test]
    fn nodes_are_told_with_their_cores_and_where_weights_are() {
        let node = |number: usize, cores: usize| Node { number, cores: (0..cores).collect() };
        let told = nodes(&[node(0, 8), node(2, 4)], &[0, 2]);
        assert_eq!(told, "0 with 8 cores, 2 with 4 cores; weights on 0 and 2");
    }
}
