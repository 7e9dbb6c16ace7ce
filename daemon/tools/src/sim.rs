//! `faser sim`: compares policies in the simulator and prints the table.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use faser_bench::BenchError;
use faser_bench::sim::{
    Bound, Contender, Drafts, Load, MeasuredCosts, SimReport, SimRun, SimSpec, read_trace,
};
use faser_bench::trace::{picture, telling_window, write_chrome_trace};
use faser_engine::sim::{
    Acceptance, Arrivals, Deviation, Faults, Hardware, Lengths, Links, Pair, PassParts, Preset, Roofline,
    Trace,
};
use faser_engine::{Mechanisms, SpeculationMode};
use faser_loading::costs::{EarlierCosts, earlier};
use faser_terminal::{SystemError, println, writable};
use faser_topology::{Link, LinkKind};

use crate::target_args::TargetArgs;

/// `faser sim`.
#[derive(Args, Debug)]
#[command(after_help = "\
The engine is the real one, and the clock and the device are models: no GPU is needed. The same seed gives the same figures.
Policies are those of a config, and `best-fixed` (the fixed k of lowest mean latency, found for each load), and
`batch-table` (k by batch size, tuned on the very load). Ablations of `faser` are policies too: length, +trim, +overlap,
+partition, +prune, +lookup, each with what those before it have, and length+prune. The table goes to standard output.

Presets set --pair, --fp8, --kv-tokens and --draft-step together, and the title says which:
  default        what one H100 holds: bf16, KV for 14,032 tokens, draft steps of 2.4 ms
  ample-kv       bf16, KV for 262,144 tokens, draft steps of 1.2 ms, as results had it up to 2026-11-22: no such machine can exist
  eager-drafts   the target in FP8, draft steps of 5 ms, launched one by one: what figures of the FASER paper suggest

With --bounds each load has three more rows: how low the mean latency could be of any policy that verifies one chain of proposals.
  oracle-lengths   the draft ends each chunk before its first wrong token
  free-drafts      draft passes take no time
  oracle-free      both
Each is the best of `faser` and of the fixed lengths on such a device, at passes of 256, 512 and 1024 rows and of --max-pass-rows: a
bound by search, not by proof. The column `left` is a row's mean latency over that of oracle-free.

Examples:
  faser sim --rates 0.5,1,2,4,8                             the paper's Qwen3 pair on an H100, ShareGPT lengths
  faser sim --arrivals swing --rates 4 --swing 35 --duration 600 --plot swing.svg
  faser sim --batches 1,8,64 --policy fixed:6 --policy faser    constant batches instead of arrivals
  faser sim --arrivals swing --rates 3 --policy fixed:6 --policy faser --bounds    how much is left for any policy to gain
  faser sim --rates 4 --policy fixed:6 --policy length --policy +trim --policy +overlap --policy +partition --policy +prune
  faser sim --pair llama3 --tp 4 --draft-placement own --batches 1,8,32 --policy budget --policy faser    a GPU more for the draft
  faser sim --pair llama3 --tp 4 --passes nvlink,pcie                 where the time of passes over four GPUs goes
  faser sim --lengths longbench --cached-prompts 0.8 --rates 2 --preset eager-drafts      prompts that mostly begin alike
  faser sim --preset eager-drafts --replay conversation_trace.jsonl --replay-speed 0.5 --duration 600     Mooncake's trace
  faser sim --costs ~/.cache/faser/cost-0123456789abcdef.json --batches 1,4,16    what policies would do on this machine
  faser sim --device a100 --pair llama3 --rates 2 --trace trace.json
  faser sim --batches 1 --acceptance 0.96 --policy faser --trace-picture lanes.svg      what both lanes did, as a picture")]
pub struct SimArgs {
    /// What passes take on a machine of yours, in place of a model of a GPU and of models: a file that `faser check` or a start has cached,
    /// and named. Rows of a pass are those of that start, and KV is for 262,144 tokens, unless --max-pass-rows and --kv-tokens say otherwise.
    #[arg(long, value_name = "FILE", conflicts_with_all = MODELLED, conflicts_with = "bounds")]
    pub costs: Option<PathBuf>,
    /// The GPU: h100, h200 or a100.
    #[arg(long, default_value = "h100", value_parser = device)]
    pub device: Hardware,
    /// Models, precision, KV and draft step together: default, ample-kv or eager-drafts. Options that are given win over it.
    #[arg(long, value_name = "NAME", value_parser = preset)]
    pub preset: Option<Preset>,
    /// The models: qwen3 (0.6B for 32B, one GPU) or llama3 (1B for 70B, two); without it the preset's, which is qwen3.
    #[arg(long, value_parser = pair)]
    pub pair: Option<Pair>,
    /// GPUs the target is split over, with a draft on each; without it what the pair has.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    pub tp: Option<u8>,
    /// What joins them: nvlink, pcie-switch, pcie or pcie-numa, and how fast: KIND:GB/s each way. Without it the GPU's NVLink.
    #[arg(long, value_name = "KIND", value_parser = link)]
    pub link: Option<Links>,
    /// Sum one half of a pass's rows over the GPUs while the other half computes, where that is faster.
    #[arg(long)]
    pub overlap_all_reduce: bool,
    /// Show where the time of verify passes goes instead, by rows, for each of these links: passes alone, no requests.
    #[arg(long, value_name = "KIND,..", value_delimiter = ',', value_parser = link, conflicts_with_all = ["link", "overlap_all_reduce"])]
    pub passes: Vec<Links>,
    /// Costs of launches, in those of captured graphs: about 6 for kernels that are launched one by one.
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    pub launches: f64,
    /// Milliseconds of a draft step of one sequence at least; without it the preset's, or what serving systems were seen to need: 2.4 for
    /// qwen3, 2.0 for llama3. 0 is what the model of the device says, 5 about what launching kernels one by one takes.
    #[arg(long, value_name = "MS")]
    pub draft_step: Option<f64>,
    /// Weights of the target in FP8; `--fp8=false` takes it from a preset.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub fp8: Option<bool>,
    /// Draft all proposals of a round in one pass, as PARD does: it takes the time of a draft step, and as many more rows. Each place is right
    /// SHARE times as often as the one before it.
    #[arg(long, value_name = "SHARE", num_args = 0..=1, require_equals = true, default_missing_value = "0.95", conflicts_with = "passes")]
    pub one_pass: Option<f64>,
    /// Draft by a head on the target's hidden states in place of a model: one layer, right as often as the draft model would be. A step takes
    /// what the device model says, or --draft-step. Alone it has a step for each proposal, as EAGLE-3; with --one-pass it proposes as P-EAGLE.
    #[arg(long, conflicts_with = "passes")]
    pub head: bool,
    /// With --head: it proposes a block of so many rows, which it computes whole in one pass, as DFlash and DSpark do.
    #[arg(long, value_name = "ROWS", requires = "head", value_parser = clap::value_parser!(u64).range(2..=16))]
    pub block: Option<u64>,
    /// SMs of the draft lane in each partition.
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "8,16,32")]
    pub draft_sms: Vec<usize>,
    /// Where the draft is: on the target's first GPU, on each of them with its part of the sequences, or alone on one more, which has no partitions.
    #[arg(long, value_name = "WHERE", value_parser = ["first", "replicated", "own"], default_value = "first")]
    pub draft_placement: String,
    /// Tokens whose KV fits; without it the preset's, or what the device has beside the weights.
    #[arg(long, value_name = "N")]
    pub kv_tokens: Option<usize>,
    /// Sequences that may run at once.
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub max_running: usize,
    /// Rows of a pass; without it 2048, or those of --costs.
    #[arg(long, value_name = "N")]
    pub max_pass_rows: Option<usize>,
    /// Fill passes up to that also while sequences decode, whatever the policy would take.
    #[arg(long)]
    pub full_passes: bool,
    /// Tokens of a sequence; without it 8192, or what the KV holds.
    #[arg(long, value_name = "N")]
    pub max_context: Option<usize>,
    /// Lengths: sharegpt, longbench, humaneval, reasoning, azure-code, azure-conversation, mooncake-conversation, or always the same, such as
    /// 512:128.
    #[arg(long, default_value = "sharegpt", value_parser = lengths)]
    pub lengths: Lengths,
    /// Probability that the draft is right, the same for all; without it a mix of classes.
    #[arg(long, value_name = "P")]
    pub acceptance: Option<f64>,
    /// What texts are made of: classes, whose tokens are all new; novel, of which the draft knows most; quotes, of passages of their prompts;
    /// recurring, of what all say again; or all of these three, a third each.
    #[arg(long, value_name = "KIND", default_value = "classes", value_parser = ["classes", "novel", "quotes", "recurring", "all"])]
    pub texts: String,
    /// Where proposals of every request come from: auto, draft, lookup or suffix (past outputs).
    #[arg(long, value_name = "MODE", default_value = "auto", value_parser = ["auto", "draft", "lookup", "suffix"])]
    pub mode: String,
    /// Memory for past outputs, in MiB; 0: none are kept.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub suffix_mib: usize,
    /// What the draft believes of itself: modelled, a measure of how right it is, or inverted, high where it is mostly wrong and low where
    /// it is mostly right.
    #[arg(long, value_name = "KIND", default_value = "modelled", value_parser = ["modelled", "inverted"], conflicts_with = "passes")]
    pub confidence: String,
    /// Share of the requests whose prompt was seen before, all but its last 16 tokens; those of a class begin alike. The prefix cache is on.
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    pub cached_prompts: f64,
    /// Latency targets of every request.
    #[command(flatten)]
    pub targets: TargetArgs,
    /// How requests come: poisson, swing or bursts.
    #[arg(long, default_value = "poisson", value_parser = ["poisson", "swing", "bursts"])]
    pub arrivals: String,
    /// Requests per second, one load each.
    #[arg(long, value_name = "R,..", value_delimiter = ',', default_value = "0.5,1,2,4,8")]
    pub rates: Vec<f64>,
    /// Constant batches instead of arrivals, one load each.
    #[arg(long, value_name = "N,..", value_delimiter = ',', conflicts_with_all = ["rates", "arrivals"])]
    pub batches: Vec<usize>,
    /// Highest over lowest rate of `--arrivals swing`, one swing over the duration.
    #[arg(long, value_name = "X", default_value_t = 35.0)]
    pub swing: f64,
    /// Seconds over which requests come; without it 120, or all of a replay.
    #[arg(long, value_name = "S")]
    pub duration: Option<u64>,
    /// Replay recorded requests instead: Mooncake's JSON lines, whose `hash_ids` say what prompts share, or Azure's CSV. Requests that are
    /// longer than --max-context are cut to it.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rates", "arrivals", "lengths", "batches", "swing", "cached_prompts"])]
    pub replay: Option<PathBuf>,
    /// Divide the times of a replay by this.
    #[arg(long, value_name = "X", default_value_t = 1.0, requires = "replay")]
    pub replay_speed: f64,
    /// A policy; repeat it for several.
    #[arg(long = "policy", value_name = "POLICY", default_values = ["off", "fixed:6", "best-fixed", "batch-table", "budget", "faser"])]
    pub policies: Vec<Contender>,
    /// Show bounds of what any policy could reach too; about 140 runs for each load.
    #[arg(long)]
    pub bounds: bool,
    /// The same seed gives the same figures.
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub seed: u64,
    /// The device takes so many times what the engine's tables say.
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    pub error: f64,
    /// Deviation of a pass's time, as a share of it.
    #[arg(long, value_name = "X", default_value_t = 0.02)]
    pub noise: f64,
    /// Share of the clients that leave early.
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    pub cancelled: f64,
    /// Mean seconds between losses of the device.
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..))]
    pub device_lost_every: Option<u64>,
    /// Mean seconds between slow spells of a lane.
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..))]
    pub slow_lane_every: Option<u64>,
    /// Write every run as JSON too.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write a picture of the comparison (SVG).
    #[arg(long, value_name = "FILE", value_parser = picture_file)]
    pub plot: Option<PathBuf>,
    /// Write a Chrome trace of the last policy under the last load, for ui.perfetto.dev.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Write a picture (SVG) of a stretch of it: what each lane did when.
    #[arg(long, value_name = "FILE", value_parser = picture_file)]
    pub trace_picture: Option<PathBuf>,
    /// Second from which trace and picture are; without it 0, and for the picture around the rejection that cancelled the most.
    #[arg(long, value_name = "S")]
    pub trace_from: Option<f64>,
    /// Seconds they hold; without it 5, and 0.16 for the picture.
    #[arg(long, value_name = "S")]
    pub trace_for: Option<f64>,
}

/// Options of the model of a GPU and of models.
const MODELLED: [&str; 12] = [
    "device",
    "preset",
    "pair",
    "tp",
    "link",
    "overlap_all_reduce",
    "passes",
    "launches",
    "draft_step",
    "fp8",
    "draft_sms",
    "draft_placement",
];
/// Tokens whose KV fits beside measured costs unless one says otherwise.
const AMPLE_KV: usize = 262_144;
/// Rows of a pass of the modelled device, likewise.
const MAX_PASS_ROWS: usize = 2048;

/// How much less often a place of one pass is right than the one before, unless one says otherwise.
const FADE: f64 = 0.95;
/// Seconds that a trace and a picture hold unless one says otherwise: a picture holds some passes of a large model.
const TRACE_S: f64 = 5.0;
const PICTURE_S: f64 = 0.16;

/// Seconds over which requests come unless one says otherwise.
const DURATION_S: u64 = 120;
/// Tokens of the prompts of a replay that are held in memory, four bytes each.
const MOST_PROMPT_TOKENS: usize = 500_000_000;
/// Bounds of what is simulated, so that it ends, and fits into memory: requests, seconds, sequences at once, and tokens of KV.
const MOST_REQUESTS: f64 = 1e6;
const MOST_SECONDS: u64 = 10_000_000;
const MOST_RUNNING: usize = 100_000;
const MOST_KV_TOKENS: usize = 100_000_000;

/// A picture's name, if it can be one.
fn picture_file(name: &str) -> Result<PathBuf, String> {
    let file = PathBuf::from(name);
    let other = ["png", "jpg", "jpeg", "gif", "webp", "pdf"];
    match file.extension().and_then(|end| end.to_str()) {
        Some(end) if other.iter().any(|other| end.eq_ignore_ascii_case(other)) => {
            Err(format!("pictures are SVG, not {end}: give a name that ends in .svg"))
        }
        _ => Ok(file),
    }
}

/// Runs the comparison.
///
/// # Errors
/// The figures asked for do not go together, or a file cannot be written.
pub fn sim(args: &SimArgs) -> Result<()> {
    let spec = args.spec()?;
    if !args.passes.is_empty() {
        return Ok(println(table(&spec, &args.passes).trim_end())?);
    }
    writable([&args.json, &args.plot, &args.trace, &args.trace_picture].into_iter().flatten())?;
    let loads = args.loads(&spec);
    let report = spec.compare(&args.contenders(), &loads, &mut show)?;
    println(report.to_string().trim_end())?;
    if let Some(file) = &args.json {
        write(file, serde_json::to_vec_pretty(&report).map_err(std::io::Error::from))?;
    }
    if let Some(file) = &args.plot {
        write(file, Ok(report.svg()?.into_bytes()))?;
    }
    if args.trace.is_some() || args.trace_picture.is_some() {
        args.trace(&spec, &report, &loads)?;
    }
    Ok(())
}

impl SimArgs {
    /// The last run once more, in detail: as a trace, as a picture, or both.
    fn trace(&self, spec: &SimSpec, report: &SimReport, loads: &[Load]) -> Result<()> {
        // The devices of bounds are no devices.
        let last = report.runs.iter().rfind(|run| !matches!(run.contender, Contender::Bound(_)));
        let (Some(last), Some(load)) = (last, loads.last()) else { return Ok(()) };
        let record = spec.simulate(last.policy.clone(), load, true)?.into_record();
        let from = self.trace_from.map(Duration::from_secs_f64);
        let length = |default| Duration::from_secs_f64(self.trace_for.unwrap_or(default));
        if let Some(file) = &self.trace {
            let from = from.unwrap_or_default();
            let mut trace = Vec::new();
            let written = write_chrome_trace(&record, from..from + length(TRACE_S), &mut trace);
            write(file, written.map(|()| trace))?;
        }
        if let Some(file) = &self.trace_picture {
            let length = length(PICTURE_S);
            let window = from.map_or_else(|| telling_window(&record, length), |from| from..from + length);
            let title =
                format!("simulated: {}, policy {}, {} {}", spec, last.contender, self.axis(), last.level);
            write(file, Ok(picture(&record, window, &title).into_bytes()))?;
        }
        Ok(())
    }

    /// The policies, and the bounds behind them.
    fn contenders(&self) -> Vec<Contender> {
        let bounds = Bound::ALL.into_iter().filter(|_| self.bounds).map(Contender::Bound);
        self.policies.iter().cloned().chain(bounds).collect()
    }

    /// What a load is measured in.
    fn axis(&self) -> &'static str {
        if self.batches.is_empty() { "requests per second" } else { "batch" }
    }

    pub(crate) fn spec(&self) -> Result<SimSpec> {
        let wrong = |why: &str| Err(BenchError::Spec(why.to_owned()).into());
        // Far beyond what there is, and nothing overflows.
        let ratio = |x: f64| (1e-3..=1e3).contains(&x);
        if !self.rates.iter().all(|rate| *rate > 0.0 && *rate <= 1e6) {
            return wrong("--rates must be above 0, and 1000000 at most");
        }
        if !self.batches.iter().all(|batch| (1..=MOST_RUNNING).contains(batch)) {
            return wrong(&format!("--batches must be 1 to {MOST_RUNNING}"));
        }
        if !(ratio(self.error) && (0.0..=1.0).contains(&self.noise)) {
            return wrong("--error must be 0.001 to 1000, and --noise 0 to 1");
        }
        if self.head && self.draft_placement != "first" {
            return wrong(
                "--draft-placement replicated and own are for draft models: a head reads what one GPU has of the target",
            );
        }
        if !ratio(self.launches) {
            return wrong("--launches must be 0.001 to 1000");
        }
        if !(1.0..=1e6).contains(&self.swing)
            || self.duration.is_some_and(|s| !(1..=MOST_SECONDS).contains(&s))
        {
            return wrong(&format!("--swing must be 1 to 1000000, and --duration 1 to {MOST_SECONDS}"));
        }
        if !(1e-6..=1e6).contains(&self.replay_speed) {
            return wrong("--replay-speed must be 0.000001 to 1000000, such as 2");
        }
        let zero = |share: Option<f64>| share.unwrap_or(0.0);
        let shares = [self.cancelled, zero(self.acceptance), self.cached_prompts, zero(self.one_pass)];
        if !shares.iter().all(|p| (0.0..=1.0).contains(p)) {
            return wrong("--cancelled, --acceptance, --cached-prompts and --one-pass are shares, 0 to 1");
        }
        let inverted = self.confidence == "inverted";
        let acceptance = match self.texts.as_str() {
            "novel" => Acceptance::repeating(1.0, 0.0, 0.0),
            "quotes" => Acceptance::repeating(0.0, 1.0, 0.0),
            "recurring" => Acceptance::repeating(0.0, 0.0, 1.0),
            "all" => Acceptance::repeating(1.0, 1.0, 1.0),
            _ => self.acceptance.map_or_else(Acceptance::mixed, Acceptance::from),
        };
        // Years are enough, and fit.
        let seconds = |s: Option<f64>| s.is_none_or(|s| (0.0..=1e9).contains(&s));
        if !seconds(self.trace_from) || !seconds(self.trace_for) || self.trace_for == Some(0.0) {
            return wrong("--trace-from and --trace-for are seconds, and --trace-for is above 0");
        }
        if self.draft_sms.iter().any(|&sms| sms == 0 || sms >= self.device.sms) {
            return wrong(&format!("--draft-sms must be above 0 and below the device's {}", self.device.sms));
        }
        let preset = self.preset.unwrap_or(Preset::DEFAULT);
        let pair = self.pair.unwrap_or(preset.pair);
        let pair = if self.head { pair.with_head() } else { pair };
        let preset_step_ms =
            if self.head { 0.0 } else { 1e3 * preset.draft_step_s.unwrap_or(pair.draft_step_s) };
        let draft_step_ms = self.draft_step.unwrap_or(preset_step_ms);
        if !(0.0..=1e6).contains(&draft_step_ms) {
            return wrong("--draft-step must be milliseconds, 0 to 1000000");
        }
        let pair = self.tp.map_or(pair, |tp| pair.split_over(usize::from(tp)));
        let pair = Pair { draft_step_s: 1e-3 * draft_step_ms, ..pair };
        let fp8 = self.fp8.unwrap_or(preset.fp8);
        if fp8 && self.device.name == Hardware::A100.name {
            return wrong("--fp8 needs a device that multiplies FP8: h100 or h200");
        }
        let pair = if fp8 { pair.in_fp8() } else { pair };
        if !pair.target.heads.is_multiple_of(pair.target.tp) {
            return wrong(&format!("--tp must divide the target's {} heads", pair.target.heads));
        }
        let (measured, measured_rows) = self.costs.as_ref().map(|file| measured(file)).transpose()?.unzip();
        let kv_tokens = self.kv_tokens.or(measured.as_ref().map(|_| AMPLE_KV)).or(preset.kv_tokens);
        let kv_tokens = kv_tokens.unwrap_or_else(|| pair.kv_tokens(self.device.memory_bytes));
        if self.kv_tokens.is_some_and(|tokens| !(1024..=MOST_KV_TOKENS).contains(&tokens)) {
            return wrong(&format!("--kv-tokens must be 1024 to {MOST_KV_TOKENS}"));
        }
        if kv_tokens < 1024 {
            return wrong(&format!(
                "{} on {} leaves KV for {kv_tokens} tokens: choose another --device, or say --kv-tokens",
                pair.name, self.device.name
            ));
        }
        let max_context = self.max_context.unwrap_or(kv_tokens.next_multiple_of(16).min(8192));
        let trace = self.replay.as_ref().map(|file| read_trace(file, self.replay_speed)).transpose()?;
        let whole = trace.as_ref().map_or(Duration::from_secs(DURATION_S), Trace::duration);
        let duration = self.duration.map_or(whole, Duration::from_secs);
        let most_rate = if trace.is_some() { 0.0 } else { self.rates.iter().copied().fold(0.0, f64::max) };
        if most_rate * duration.as_secs_f64() > MOST_REQUESTS {
            return wrong(&format!(
                "{most_rate} requests a second for {} s are more than the {MOST_REQUESTS} that are simulated: lower --rates or --duration",
                duration.as_secs()
            ));
        }
        if let Some(tokens) = trace.as_ref().map(|trace| trace.prompt_tokens(duration, max_context))
            && tokens > MOST_PROMPT_TOKENS
        {
            return wrong(&format!(
                "the prompts of the replay have {tokens} tokens, and at most {MOST_PROMPT_TOKENS} are simulated: give a --duration"
            ));
        }
        let changed = self.pair.is_some_and(|pair| pair != preset.pair)
            || fp8 != preset.fp8
            || self.kv_tokens.is_some_and(|tokens| preset.kv_tokens != Some(tokens))
            || draft_step_ms != preset_step_ms
            || self.head;
        let called = |preset: Preset| format!("{}{}", preset.name, if changed { ", changed" } else { "" });
        Ok(SimSpec {
            preset: self.preset.map(called),
            measured,
            hardware: Hardware {
                links: Links {
                    overlapped: self.overlap_all_reduce,
                    ..self.link.unwrap_or(self.device.links)
                },
                step_s: self.launches * self.device.step_s,
                layer_s: self.launches * self.device.layer_s,
                ..self.device
            },
            pair,
            drafts: match (self.head, self.one_pass, self.block) {
                (true, None, None) => Drafts::Head,
                (true, fade, block) => {
                    Drafts::OnePassHead { block: block.map(|rows| rows as usize), fade: fade.unwrap_or(FADE) }
                }
                (false, Some(fade), _) => Drafts::OnePass(fade),
                (false, None, _) => Drafts::Steps,
            },
            draft_sms: self.draft_sms.clone(),
            draft_apart: self.draft_placement == "own",
            draft_copies: if self.draft_placement == "replicated" { pair.gpus } else { 1 },
            mechanisms: Mechanisms { sizing: !self.full_passes, ..Mechanisms::default() },
            kv_tokens,
            max_running: self.max_running,
            max_pass_rows: self.max_pass_rows.or(measured_rows).unwrap_or(MAX_PASS_ROWS),
            max_context,
            lengths: self.lengths,
            trace: trace.map(Arc::new),
            acceptance: if inverted { acceptance.inverted() } else { acceptance },
            mode: match self.mode.as_str() {
                "draft" => SpeculationMode::Draft,
                "lookup" => SpeculationMode::Lookup,
                "suffix" => SpeculationMode::Suffix,
                _ => SpeculationMode::Auto,
            },
            suffix_bytes: self.suffix_mib << 20,
            cached_prompts: self.cached_prompts,
            targets: self.targets.targets()?,
            deviation: Deviation { draft: self.error, verify: self.error, noise: self.noise },
            faults: Faults {
                cancelled: self.cancelled,
                device_lost_every: self.device_lost_every.map(Duration::from_secs),
                slow_lane_every: self.slow_lane_every.map(Duration::from_secs),
            },
            duration,
            seed: self.seed,
        })
    }

    fn loads(&self, spec: &SimSpec) -> Vec<Load> {
        if let Some(trace) = &spec.trace {
            return vec![Load::replay(trace, spec.duration)];
        }
        if !self.batches.is_empty() {
            return self.batches.iter().map(|&batch| Load::backlog(batch)).collect();
        }
        let arrivals = |per_s: f64| match self.arrivals.as_str() {
            "swing" => Arrivals::Swinging { per_s, swing: self.swing, period: spec.duration },
            // As in the Azure code trace.
            "bursts" => {
                Arrivals::Bursts { per_s, on: Duration::from_millis(7800), off: Duration::from_secs(38) }
            }
            _ => Arrivals::Poisson { per_s },
        };
        self.rates.iter().map(|&rate| Load { arrivals: arrivals(rate), level: rate }).collect()
    }
}

fn show(run: &SimRun) {
    eprintln!("{} at {}: {:.1} tokens/s", run.contender, run.level, run.figures.tokens_per_s);
}

fn write(file: &Path, content: Result<Vec<u8>, std::io::Error>) -> Result<()> {
    let written = content.and_then(|content| fs::write(file, content));
    Ok(written.map_err(|source| SystemError::Write { path: file.to_owned(), source })?)
}

/// Costs in a file, and the rows of a pass that they go up to.
fn measured(file: &Path) -> Result<(MeasuredCosts, usize)> {
    let EarlierCosts { partitions: tables, max_rows, target_layers, debug } = earlier(file)?;
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let name = if debug { format!("{name} (a debug build)") } else { name.into_owned() };
    Ok((MeasuredCosts { name, tables, target_layers }, max_rows))
}

fn device(name: &str) -> Result<Hardware, String> {
    Hardware::named(name).ok_or_else(|| "choose h100, h200 or a100".to_owned())
}

fn pair(name: &str) -> Result<Pair, String> {
    Pair::named(name).ok_or_else(|| "choose qwen3 or llama3".to_owned())
}

fn preset(name: &str) -> Result<Preset, String> {
    Preset::named(name).ok_or_else(|| {
        let names = Preset::ALL.map(|preset| preset.name);
        format!("choose one of {}", names.join(", "))
    })
}

fn lengths(name: &str) -> Result<Lengths, String> {
    Lengths::named(name).ok_or_else(|| {
        let names: Vec<&str> = Lengths::ALL.iter().map(|lengths| lengths.name).collect();
        format!("choose one of {}, or PROMPT:OUTPUT in tokens, such as 512:128", names.join(", "))
    })
}

/// Passes: so many sequences, rows of each, tokens before them. Decoding, then verification, then prefill.
const PASSES: [(usize, usize, usize); 10] = [
    (1, 1, 1024),
    (8, 1, 1024),
    (64, 1, 1024),
    (8, 5, 1024),
    (32, 5, 1024),
    (64, 5, 1024),
    (128, 5, 1024),
    (1, 512, 0),
    (2, 1024, 0),
    (4, 2048, 0),
];

/// A table for each of the links.
pub(crate) fn table(spec: &SimSpec, links: &[Links]) -> String {
    let mut text = String::new();
    for links in links {
        let hardware = Hardware { links: *links, ..spec.hardware };
        let roofline = Roofline::new(hardware, spec.pair, &[]);
        let (target, tp) = (spec.pair.target.name, spec.pair.target.tp);
        let rate = links.bandwidth / 1e9;
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{target} on {tp} x {}, all-reduce over {} at {rate:.0} GB/s\n\n{:>9} {:>6} {:>11} {:>13} {:>9} {:>9} {:>6}",
            hardware.name,
            links.kind,
            "sequences",
            "rows",
            "compute ms",
            "all-reduce ms",
            "serial ms",
            "halves ms",
            "gain"
        );
        for (chunks, rows, context) in PASSES {
            let parts = roofline.verify_parts(chunks, rows, context);
            let PassParts { compute_s, all_reduce_s, halves_s } = parts;
            let serial_s = compute_s + all_reduce_s;
            let gain = 100.0 * (serial_s / halves_s.min(serial_s) - 1.0);
            let [compute, all_reduce, serial, halves] =
                [compute_s, all_reduce_s, serial_s, halves_s].map(|seconds| seconds * 1e3);
            let _ = writeln!(
                text,
                "{chunks:>9} {:>6} {compute:>11.2} {all_reduce:>13.2} {serial:>9.2} {halves:>9.2} {gain:>5.1}%",
                chunks * rows
            );
        }
        text.push('\n');
    }
    text
}

/// Reads `KIND` or `KIND:GB/s`.
pub(crate) fn link(text: &str) -> Result<Links, String> {
    let (name, rate) = text.split_once(':').map_or((text, None), |(name, rate)| (name, Some(rate)));
    let names = LinkKind::ALL.map(LinkKind::name).join(", ");
    let kind = LinkKind::named(name).ok_or_else(|| format!("choose one of {names}"))?;
    let Some(rate) = rate else { return Ok(Links::over(Link::usual(kind))) };
    let gb_per_s = rate.parse().ok().filter(|rate: &f64| (1e-3..=1e6).contains(rate));
    let gb_per_s =
        gb_per_s.ok_or("behind the colon stands a rate in GB/s, 0.001 to 1000000, such as pcie:50")?;
    Ok(Links::over(Link { kind, bytes_per_s: gb_per_s * 1e9 }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::SimArgs;

    fn args(line: &str) -> Result<SimArgs, clap::Error> {
        crate::arguments(line)
    }

    #[test]
    fn the_default_is_the_papers_setting() {
        let args = args("faser sim").unwrap();
        assert_eq!((args.device, args.policies.len()), (Hardware::H100, 6));
        let spec = args.spec().unwrap();
        assert_eq!((spec.pair, spec.duration), (Pair::QWEN3, Duration::from_secs(120)));
        let title = "Qwen3-0.6B for Qwen3-32B on 1 x h100, draft step 2.4 ms, sharegpt lengths";
        assert!(spec.to_string().starts_with(title), "{spec}");
        assert_eq!(args.loads(&spec).len(), 5);
    }

    #[test]
    fn measured_costs_take_the_place_of_the_modelled_device() {
        let file = std::env::temp_dir().join(format!("faser-sim-costs-{}.json", std::process::id()));
        let lane =
            |ns: u64| serde_json::json!({"passes": [[1, ns], [64, 2 * ns]], "per_kv_fs": 1, "per_row_fs": 1});
        let table = |ns| serde_json::json!({"draft": lane(ns / 10), "verify": lane(ns)});
        let key = serde_json::json!({"build": "debug", "max_rows": 96, "target": {"layers": 7}});
        let content = |tables: &[serde_json::Value]| {
            serde_json::json!({"format": 8, "key": key, "measured_unix_s": 1, "tables": tables}).to_string()
        };
        let spec = |content: &str, more: &str| {
            std::fs::write(&file, content).unwrap();
            args(&format!("faser sim --costs {} {more}", file.display())).unwrap().spec()
        };
        let sound = content(&[table(1000), table(2000)]);
        let read = spec(&sound, "").unwrap();
        let name = file.file_name().unwrap().to_string_lossy();
        assert!(
            read.to_string().starts_with(&format!("costs as measured in {name} (a debug build), ")),
            "{read}"
        );
        let measured = read.measured.unwrap();
        assert_eq!((measured.tables.len(), measured.target_layers), (2, 7));
        assert_eq!((read.kv_tokens, read.max_pass_rows), (AMPLE_KV, 96));
        let asked = spec(&sound, "--kv-tokens 2048 --max-pass-rows 512 --head --one-pass").unwrap();
        assert_eq!((asked.kv_tokens, asked.max_pass_rows), (2048, 512));
        assert!(asked.drafts.is_head());
        let mut none = table(1000);
        none["draft"] = serde_json::json!({"passes": [[1, 1], [2, 1]], "per_kv_fs": 0, "per_row_fs": 0});
        for (text, more, part) in [
            (content(&[]), "", "it has 0 tables, not 1 to 64"),
            (content(&vec![table(1000); 65]), "", "it has 65 tables"),
            (content(&[table(0)]), "", "takes no time"),
            (content(&[none]), "", "without a draft model"),
            (content(&[table(1000)]).replace("max_rows", "rows"), "", "it is damaged"),
            ("{".to_owned(), "", "it is damaged"),
            (sound.clone(), "--kv-tokens 5", "must be 1024 to"),
        ] {
            let problem = spec(&text, more).unwrap_err().to_string();
            assert!(problem.contains(part), "{problem}");
        }
        std::fs::remove_file(&file).unwrap();
        let none = args(&format!("faser sim --costs {}", file.display())).unwrap().spec().unwrap_err();
        assert!(none.to_string().contains("no such file; `faser check`"), "{none}");
        for more in ["--device h200", "--bounds", "--draft-step 1"] {
            assert!(args(&format!("faser sim --costs x.json {more}")).is_err(), "{more}");
        }
    }

    #[test]
    fn a_draft_may_be_upside_down() {
        let spec = |line: &str| args(&format!("faser sim {line}")).unwrap().spec().unwrap();
        let inverted = spec("--acceptance 0.5 --confidence inverted");
        assert_eq!(inverted.acceptance, Acceptance::from(0.5).inverted());
        assert!(inverted.to_string().ends_with(", confidence inverted"), "{inverted}");
        assert_eq!(spec("--confidence modelled").acceptance, Acceptance::mixed());
    }

    #[test]
    fn policies_may_have_commas_and_batches_replace_rates() {
        let args =
            args("faser sim --policy batch-table:4=6,16=2 --policy best-fixed --batches 1,64").unwrap();
        let policies: Vec<String> = args.policies.iter().map(ToString::to_string).collect();
        assert_eq!(policies, ["batch-table:4=6,16=2", "best-fixed"]);
        let loads = args.loads(&args.spec().unwrap());
        assert!(loads.iter().all(|load| matches!(load.arrivals, Arrivals::Backlog { .. })));
    }

    #[test]
    fn presets_set_four_options_and_the_options_win() {
        let spec = |line: &str| args(&format!("faser sim {line}")).unwrap().spec().unwrap();
        let setting = |line: &str| {
            let SimSpec { preset, pair, kv_tokens, .. } = spec(line);
            let step_us = (1e6 * pair.draft_step_s).round() as usize;
            (preset.unwrap_or_default(), pair.name, pair.target.weight_bytes as usize, kv_tokens, step_us)
        };
        let default = setting("");
        assert_eq!(default, (String::new(), "qwen3", 2, 14_032, 2400));
        assert_eq!(setting("--preset default"), ("default".to_owned(), "qwen3", 2, 14_032, 2400));
        assert_eq!(setting("--preset ample-kv"), ("ample-kv".to_owned(), "qwen3", 2, 262_144, 1200));
        let eager = setting("--preset eager-drafts");
        assert_eq!((eager.0.as_str(), eager.2, eager.4), ("eager-drafts", 1, 5000));
        assert_eq!(eager.3, Pair::QWEN3.in_fp8().kv_tokens(Hardware::H100.memory_bytes));
        let changed =
            setting("--preset eager-drafts --pair llama3 --fp8=false --kv-tokens 9000 --draft-step 3");
        assert_eq!(changed, ("eager-drafts, changed".to_owned(), "llama3", 2, 9000, 3000));
        assert_eq!(setting("--preset ample-kv --fp8").2, 1);
        assert_eq!(setting("--preset ample-kv --kv-tokens 262144").0, "ample-kv", "that is what it says");
        assert_eq!(setting("--preset default --pair llama3 --device h200").4, 2000, "the pair's own step");
        assert!(spec("--preset ample-kv").to_string().starts_with("preset ample-kv: Qwen3-0.6B for"));
        assert!(args("faser sim --preset paper").is_err());
    }

    #[test]
    fn a_replay_has_its_own_time_and_one_load() {
        let file = std::env::temp_dir().join(format!("faser-sim-replay-{}.csv", std::process::id()));
        let lines = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.5,374,44\n2023-11-16 18:15:56.5,9000,109\n";
        std::fs::write(&file, lines).unwrap();
        let read = |line: &str| {
            let args = args(&format!("faser sim --replay {} {line}", file.display())).unwrap();
            let spec = args.spec().unwrap();
            let loads = args.loads(&spec);
            (spec.duration.as_secs(), loads, spec.to_string())
        };
        let [whole, fast, first] = ["", "--replay-speed 2", "--duration 4"].map(read);
        let (title, bad) = (whole.2.clone(), format!("{lines}2023-11-16,1,1\n"));
        std::fs::write(&file, bad).unwrap();
        let refused = args(&format!("faser sim --replay {}", file.display())).unwrap().spec();
        std::fs::remove_file(&file).unwrap();
        assert!(title.contains("2 requests of faser-sim-replay-") && title.contains("1 of them cut to 8192"));
        assert_eq!((whole.0, fast.0, first.0), (11, 6, 4));
        assert_eq!((whole.1.len(), whole.1[0].level, first.1[0].level), (1, 0.182, 0.25));
        assert!(fast.2.contains("at 2 times its speed") && first.2.contains("1 requests of"));
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains(".csv: line 4: `2023-11-16` is no time"), "{refused}");
    }

    #[test]
    fn bounds_come_behind_the_policies() {
        let contenders = |line: &str| {
            let contenders = args(line).unwrap().contenders();
            contenders.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(contenders("faser sim --policy off"), ["off"]);
        let bounds = ["off", "oracle-lengths", "free-drafts", "oracle-free"];
        assert_eq!(contenders("faser sim --policy off --bounds"), bounds);
        assert!(args("faser sim --policy oracle-free").is_err(), "a bound is no policy");
    }

    #[test]
    fn a_trace_and_a_picture_are_written_of_the_last_run() {
        let folder = std::env::temp_dir().join(format!("faser-sim-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let line = format!(
            "faser sim --batches 1 --lengths humaneval --acceptance 0.97 --policy off --policy faser \
             --trace-for 0.5 --trace {0}/lanes.json --trace-picture {0}/lanes.svg",
            folder.display()
        );
        sim(&args(&line).unwrap()).unwrap();
        let trace: serde_json::Value =
            serde_json::from_slice(&std::fs::read(folder.join("lanes.json")).unwrap()).unwrap();
        let picture = std::fs::read(folder.join("lanes.svg")).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        // Of `faser`, which drafts: half a second from the beginning on.
        let drafts = trace["traceEvents"].as_array().unwrap().iter().filter(|event| {
            event["name"].as_str().is_some_and(|name| name.starts_with("draft 1 x"))
                && event["ts"].as_f64().is_some_and(|ts| ts < 5e5)
        });
        assert!(drafts.count() > 0);
        assert!(picture.starts_with(b"<svg"));
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_advice() {
        for line in [
            "--link string",
            "--link pcie:fast",
            "--link pcie:-1",
            "--tp 0",
            "--passes nvlink --link pcie",
            "--device b900",
            "--policy fixed:99",
            "--lengths x",
            "--batches 1 --rates 2",
            "--replay a.csv --rates 2",
            "--replay a.csv --arrivals swing",
            "--replay a.csv --lengths sharegpt",
            "--replay a.csv --batches 2",
            "--replay-speed 2",
            "--plot rates.png",
            "--draft-placement here",
            "--one-pass --passes nvlink",
            "--block 8",
            "--head --block 1",
            "--head --block 17",
            "--confidence upright",
            "--confidence inverted --passes nvlink",
        ] {
            assert!(args(&format!("faser sim {line}")).is_err(), "{line}");
        }
        for (line, advice) in [
            ("--rates 0", "--rates"),
            ("--swing 0.5", "--swing"),
            ("--noise NaN", "--noise"),
            ("--trace-for 0", "--trace-for"),
            ("--trace-from NaN", "--trace-from"),
            ("--launches 0", "--launches"),
            ("--draft-step NaN", "--draft-step"),
            ("--device a100 --pair llama3 --fp8", "--fp8"),
            ("--acceptance 2", "--acceptance"),
            ("--replay nowhere.jsonl", "nowhere.jsonl: "),
            ("--replay nowhere.jsonl --replay-speed 0", "--replay-speed"),
            ("--ttft-target 0", "TTFT target"),
            ("--tpot-target NaN", "TPOT target"),
            ("--cached-prompts 1.1", "--cached-prompts"),
            ("--one-pass=1.5", "--one-pass"),
            ("--draft-sms 132", "132"),
            ("--pair qwen3 --kv-tokens 10", "--kv-tokens"),
            ("--pair llama3 --tp 3", "--tp"),
        ] {
            let refused = args(&format!("faser sim {line}")).unwrap().spec();
            assert!(refused.is_err_and(|why| why.to_string().contains(advice)), "{line}");
        }
    }

    #[test]
    fn links_and_ranks_are_laid_over_the_pair() {
        let spec = args("faser sim --pair llama3 --tp 4 --link pcie:50 --overlap-all-reduce")
            .unwrap()
            .spec()
            .unwrap();
        assert_eq!((spec.pair.gpus, spec.pair.target.tp, spec.pair.draft.tp), (4, 4, 1));
        let Links { kind, bandwidth, overlapped, .. } = spec.hardware.links;
        assert_eq!((kind, bandwidth.round() as u64, overlapped), (LinkKind::Pcie, 40_000_000_000, true));
        assert!(spec.to_string().contains("4 x h100 joined by PCIe through the host"), "{spec}");
        let line = "faser sim --pair llama3 --tp 4 --passes nvlink,pcie";
        let args = args(line).unwrap();
        let table = table(&args.spec().unwrap(), &args.passes);
        assert!(
            table.contains("over NVLink at 250 GB/s")
                && table.contains("over PCIe through the host at 20 GB/s"),
            "{table}"
        );
    }
}
