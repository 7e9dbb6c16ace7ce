//! Policies compared in the simulator: the same loads, the same texts, the same device, one policy after the other.

mod bounds;
mod figures;
mod plot;
mod table;
mod trace_file;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use faser_engine::cost::PartitionCosts;
use faser_engine::sim::{
    Acceptance, Arrivals, Deviation, DeviceCosts, Faults, Hardware, Lengths, Pair, Report, Roofline,
    Simulation, Trace, Workload,
};
use faser_engine::{
    DraftSource, EngineConfig, K_LIMIT, Learned, Mechanisms, Policy, ProposedBlock, SpeculationBounds,
    SpeculationMode, Tuning,
};
use serde::{Serialize, Serializer};

pub use bounds::Bound;
pub use figures::{Figures, Moment};
pub use trace_file::read_trace;

use crate::{BenchError, Targets};

/// Tokens of a KV block.
const BLOCK_TOKENS: usize = 16;
/// Speculative lengths that are tried.
const LENGTHS: [usize; 9] = [0, 1, 2, 3, 4, 5, 6, 8, 10];
/// Batches that are tried; each is the largest of its step.
const BATCHES: [usize; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];
/// Larger than any batch.
const ANY: usize = 1_000_000;

/// A policy to simulate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contender {
    /// This one.
    Policy(Policy),
    /// Of all fixed lengths the one with the lowest mean latency, under each load anew.
    BestFixed,
    /// `faser` with some of its mechanisms.
    Ablation(Ablation),
    /// A batch table made from runs of all fixed lengths with the very same texts, at every size of batch.
    TunedTable,
    /// No policy, but a bound of what any could reach, found under each load anew.
    Bound(Bound),
}

/// `faser` with some of its mechanisms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ablation {
    /// What it is called on a command line.
    pub name: &'static str,
    /// What it may use.
    pub mechanisms: Mechanisms,
    /// Whether it may choose among all partitions, or has the middle one alone.
    pub all_partitions: bool,
}

impl Ablation {
    /// A speculative length per request, then one mechanism more each; at the end pruning where nothing is trimmed.
    pub const ALL: [Ablation; 7] = [
        Ablation::of("length", false, false, false, false),
        Ablation::of("+trim", true, false, false, false),
        Ablation::of("+overlap", true, true, false, false),
        Ablation::of("+partition", true, true, true, false),
        Ablation::of("+prune", true, true, true, true),
        Ablation::of("+lookup", true, true, true, true).and_lookup(),
        Ablation::of("length+prune", false, false, false, true),
    ];

    const fn of(
        name: &'static str,
        trim: bool,
        overlap: bool,
        all_partitions: bool,
        prune: bool,
    ) -> Ablation {
        let mechanisms = Mechanisms { trim, overlap, prune, lookup: false, sizing: true };
        Ablation { name, mechanisms, all_partitions }
    }

    const fn and_lookup(mut self) -> Ablation {
        self.mechanisms.lookup = true;
        self
    }

    /// Of the ways to split a device between the lanes, those it may choose among.
    pub fn splits<T: Clone>(&self, all: &[T]) -> Vec<T> {
        match all.get(all.len() / 2) {
            Some(middle) if !self.all_partitions => vec![middle.clone()],
            _ => all.to_vec(),
        }
    }
}

impl FromStr for Ablation {
    type Err = String;

    fn from_str(text: &str) -> Result<Ablation, String> {
        Ablation::ALL.into_iter().find(|ablation| ablation.name == text).ok_or_else(|| {
            let names: Vec<String> =
                Ablation::ALL.iter().map(|ablation| format!("`{}`", ablation.name)).collect();
            format!("unknown ablation `{text}`: write one of {}", names.join(", "))
        })
    }
}

impl FromStr for Contender {
    type Err = String;

    fn from_str(text: &str) -> Result<Contender, String> {
        match text {
            "best-fixed" => Ok(Contender::BestFixed),
            "batch-table" => Ok(Contender::TunedTable),
            other => match other.parse() {
                Ok(ablation) => Ok(Contender::Ablation(ablation)),
                Err(_) => other.parse().map(Contender::Policy).map_err(|unknown: String| {
                    format!(
                        "{unknown}; for the simulator also `best-fixed`, `batch-table` to have it tuned, or \
                     an ablation: `length`, `+trim`, `+overlap`, `+partition`, `+prune`, `+lookup`, `length+prune`"
                    )
                }),
            },
        }
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Contender::Policy(policy) => policy.fmt(f),
            Contender::BestFixed => f.write_str("best-fixed"),
            Contender::Ablation(ablation) => f.write_str(ablation.name),
            Contender::TunedTable => f.write_str("batch-table"),
            Contender::Bound(bound) => bound.fmt(f),
        }
    }
}

/// How a draft proposes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Drafts {
    /// A pass for each proposal.
    Steps,
    /// All in one pass, each place of which is right so many times as often as the one before.
    OnePass(f64),
    /// A pass for each proposal of a head on the target's hidden states: from the last token that is verified on alone.
    Head,
    /// One pass of such a head: a block of so many rows, whatever is wanted of it, or as many rows as there are proposals; places as in
    /// [`Drafts::OnePass`].
    OnePassHead {
        /// Rows of a block; none where each proposal after the first has a row.
        block: Option<usize>,
        /// How many times as often a place is right as the one before.
        fade: f64,
    },
}

impl Drafts {
    /// A head on the target's hidden states.
    pub fn is_head(&self) -> bool {
        matches!(self, Drafts::Head | Drafts::OnePassHead { .. })
    }

    fn fade(&self) -> f64 {
        match *self {
            Drafts::OnePass(fade) | Drafts::OnePassHead { fade, .. } => fade,
            Drafts::Steps | Drafts::Head => 1.0,
        }
    }

    fn source(&self, blocks: usize) -> DraftSource {
        match *self {
            Drafts::Steps => DraftSource::model(blocks),
            Drafts::OnePass(_) => DraftSource::one_pass(blocks),
            Drafts::Head => DraftSource::head(blocks),
            Drafts::OnePassHead { block: None, .. } => DraftSource::one_pass_head(blocks),
            Drafts::OnePassHead { block: Some(rows), .. } => {
                DraftSource::block_head(blocks, ProposedBlock { rows, proposals: rows })
            }
        }
    }
}

/// Costs of passes that a machine has measured.
#[derive(Clone, Debug)]
pub struct MeasuredCosts {
    /// What they are called.
    pub name: String,
    /// Of each way to share the device between the lanes, the whole device first.
    pub tables: Vec<PartitionCosts>,
    /// Layers of the target, at which pruning checkpoints divide a pass.
    pub target_layers: usize,
}

/// What to simulate.
#[derive(Clone, Debug)]
pub struct SimSpec {
    /// What it is called, if it has a name.
    pub preset: Option<String>,
    /// What passes take as it was measured, in place of a model of a GPU and of a pair: those are not looked at then.
    pub measured: Option<MeasuredCosts>,
    /// The GPU.
    pub hardware: Hardware,
    /// The models on it.
    pub pair: Pair,
    /// How the draft proposes.
    pub drafts: Drafts,
    /// SMs of the draft lane in each partition.
    pub draft_sms: Vec<usize>,
    /// The draft is on a GPU of its own, and there are no partitions.
    pub draft_apart: bool,
    /// GPUs that each have the draft whole, and divide the sequences: 1, or those of the target.
    pub draft_copies: usize,
    /// What policies that predict may use.
    pub mechanisms: Mechanisms,
    /// Tokens whose KV fits.
    pub kv_tokens: usize,
    /// Sequences that may run at once; a backlog fills it.
    pub max_running: usize,
    /// Rows of a pass.
    pub max_pass_rows: usize,
    /// Tokens of a sequence.
    pub max_context: usize,
    /// Lengths of prompts and outputs, without a trace.
    pub lengths: Lengths,
    /// Recorded requests that are replayed.
    pub trace: Option<Arc<Trace>>,
    /// When the draft is right.
    pub acceptance: Acceptance,
    /// Where proposals come from.
    pub mode: SpeculationMode,
    /// Memory for past outputs.
    pub suffix_bytes: usize,
    /// Share of the requests whose prompt was seen before, all but its end.
    pub cached_prompts: f64,
    /// Latency targets of every request.
    pub targets: Targets,
    /// How the device's times deviate from the tables the engine is given.
    pub deviation: Deviation,
    /// What goes wrong.
    pub faults: Faults,
    /// How long requests come.
    pub duration: Duration,
    /// The same seed gives the same figures.
    pub seed: u64,
}

/// A load to run under: arrivals, by a name and the number that plots have on their axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// When requests come.
    pub arrivals: Arrivals,
    /// Requests per second, or of a backlog the batch.
    pub level: f64,
}

/// One policy under one load.
#[derive(Clone, Debug, Serialize)]
pub struct SimRun {
    /// Requests per second, or of a backlog the batch.
    pub level: f64,
    /// What was asked for.
    #[serde(serialize_with = "as_text")]
    pub contender: Contender,
    /// What it came down to.
    #[serde(serialize_with = "as_text")]
    pub policy: Policy,
    /// Rows of a pass.
    pub max_pass_rows: usize,
    /// Its mean latency over that of the bound `oracle-free`, where that was looked for.
    pub left: Option<f64>,
    /// What it brought.
    pub figures: Figures,
}

/// A whole comparison.
#[derive(Clone, Debug, Serialize)]
pub struct SimReport {
    /// What was simulated, in words.
    pub title: String,
    /// Whether loads are batches, not rates.
    pub backlog: bool,
    /// Every run, load after load.
    pub runs: Vec<SimRun>,
}

fn as_text<S: Serializer>(value: &impl fmt::Display, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

impl SimSpec {
    /// Simulates every contender under every load; `done` hears of each run as it ends.
    ///
    /// # Errors
    /// Bounds that do not go together.
    pub fn compare(
        &self,
        contenders: &[Contender],
        loads: &[Load],
        done: &mut dyn FnMut(&SimRun),
    ) -> Result<SimReport, BenchError> {
        let mut report = SimReport {
            title: self.to_string(),
            backlog: loads.iter().any(|load| matches!(load.arrivals, Arrivals::Backlog { .. })),
            runs: Vec::new(),
        };
        let table = contenders.contains(&Contender::TunedTable).then(|| self.batch_table()).transpose()?;
        for load in loads {
            let best_fixed = contenders.contains(&Contender::BestFixed);
            let lengths = if best_fixed { self.fixed_lengths(load)? } else { Vec::new() };
            let first = report.runs.len();
            for contender in contenders {
                let Some(run) = self.contend(contender, load, &lengths, table.as_ref())? else { continue };
                done(&run);
                report.runs.push(run);
            }
            let runs = &mut report.runs[first..];
            let lowest = runs.iter().find(|run| run.contender == Contender::Bound(Bound::OracleFree));
            if let Some(lowest) = lowest.map(|run| run.figures.latency_mean_s).filter(|&s| s > 0.0) {
                runs.iter_mut().for_each(|run| run.left = Some(run.figures.latency_mean_s / lowest));
            }
        }
        Ok(report)
    }

    /// One contender under one load, for which all fixed lengths were run; none if there is nothing to choose from.
    fn contend(
        &self,
        contender: &Contender,
        load: &Load,
        lengths: &[(usize, Report)],
        table: Option<&Policy>,
    ) -> Result<Option<SimRun>, BenchError> {
        let of = |report: &Report| self.figures(report, load);
        let simulate = |spec: &SimSpec, policy: &Policy| -> Result<_, BenchError> {
            Ok(Some((policy.clone(), of(&spec.simulate(policy.clone(), load, false)?))))
        };
        let mut max_pass_rows = self.max_pass_rows;
        let brought = match contender {
            Contender::Policy(policy) => simulate(self, policy)?,
            Contender::Ablation(ablation) => simulate(&self.with(ablation), &Policy::Faser)?,
            Contender::TunedTable => match table {
                Some(table) => simulate(self, table)?,
                None => None,
            },
            Contender::BestFixed => {
                let all = lengths.iter().map(|(k, report)| (fixed(*k), of(report)));
                all.min_by(|a, b| a.1.latency_mean_s.total_cmp(&b.1.latency_mean_s))
            }
            Contender::Bound(bound) => self.bound(*bound, load)?.map(|(policy, figures, rows)| {
                max_pass_rows = rows;
                (policy, figures)
            }),
        };
        Ok(brought.map(|(policy, figures)| SimRun {
            level: load.level,
            contender: contender.clone(),
            policy,
            max_pass_rows,
            left: None,
            figures,
        }))
    }

    /// Of all that is tried on a bound's device the policy of the lowest mean latency, what it brought, and the rows of its passes.
    fn bound(&self, bound: Bound, load: &Load) -> Result<Option<(Policy, Figures, usize)>, BenchError> {
        if self.measured.is_some() {
            return Err(BenchError::Spec("--bounds needs a modelled device: leave --costs out".to_owned()));
        }
        let mut best: Option<(Policy, Figures, usize)> = None;
        for max_pass_rows in Bound::sizes(self.max_running, self.max_pass_rows) {
            let spec = SimSpec { max_pass_rows, ..self.clone() };
            for policy in bound.lengths(&LENGTHS).map(fixed).chain([Policy::Faser]) {
                let figures = self.figures(&spec.run(Some(bound), policy.clone(), load, false)?, load);
                if best.as_ref().is_none_or(|(_, best, _)| figures.latency_mean_s < best.latency_mean_s) {
                    best = Some((policy, figures, max_pass_rows));
                }
            }
        }
        Ok(best)
    }

    /// The same, with some mechanisms alone.
    fn with(&self, ablation: &Ablation) -> SimSpec {
        SimSpec {
            draft_sms: ablation.splits(&self.draft_sms),
            measured: self.measured.clone().map(|measured| measured.with_splits(ablation)),
            mechanisms: Mechanisms { sizing: self.mechanisms.sizing, ..ablation.mechanisms },
            ..self.clone()
        }
    }

    fn fixed_lengths(&self, load: &Load) -> Result<Vec<(usize, Report)>, BenchError> {
        let run = |&k: &usize| Ok((k, self.simulate(fixed(k), load, false)?));
        LENGTHS.iter().map(run).collect()
    }

    /// For every size of batch the length that commits the most tokens per second at that batch, of the same texts: better
    /// than anyone could tune it online.
    fn batch_table(&self) -> Result<Policy, BenchError> {
        let mut steps = Vec::new();
        for batch in BATCHES.into_iter().filter(|&batch| batch <= self.max_running) {
            let backlog = Load::backlog(batch);
            let mut best = (0.0, 0);
            for k in LENGTHS {
                let report = self.simulate(fixed(k), &backlog, false)?;
                let rate = self.figures(&report, &backlog).tokens_per_s;
                if rate > best.0 {
                    best = (rate, k);
                }
            }
            steps.push((batch, best.1));
        }
        if let Some(last) = steps.last_mut() {
            last.0 = ANY;
        }
        Ok(Policy::BatchTable { steps })
    }

    fn figures(&self, report: &Report, load: &Load) -> Figures {
        Figures::of(report, load.until(self), &self.targets)
    }

    /// One policy under one load; in detail for a trace.
    ///
    /// # Errors
    /// Bounds that do not go together.
    pub fn simulate(&self, policy: Policy, load: &Load, in_detail: bool) -> Result<Report, BenchError> {
        self.run(None, policy, load, in_detail)
    }

    /// The same, on the device of a bound if there is one.
    fn run(
        &self,
        bound: Option<Bound>,
        policy: Policy,
        load: &Load,
        in_detail: bool,
    ) -> Result<Report, BenchError> {
        let workload = Workload {
            arrivals: load.arrivals,
            duration: self.duration,
            lengths: self.lengths,
            trace: self.trace.clone(),
            acceptance: self.acceptance.clone(),
            max_context: self.max_context,
            cached_prompts: self.cached_prompts,
            slo: self.targets.slo(),
            mode: self.mode,
            faults: self.faults,
            seed: self.seed,
        };
        let costs = self.costs(bound);
        let config =
            EngineConfig { prefix_cache: workload.shares_prompts(), ..self.config(policy, load, &costs) };
        let device = workload.device(BLOCK_TOKENS, costs).deviating(self.deviation);
        let device = device.fading(self.drafts.fade());
        let device = if bound.is_some_and(Bound::is_oracle) { device.with_oracle() } else { device };
        let simulation = Simulation::new(config, device)?.counting_until(self.duration);
        let simulation = if in_detail { simulation.in_detail() } else { simulation };
        Ok(simulation.run(workload.happenings()))
    }

    /// The modelled device and pair, in words.
    fn modelled(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SimSpec { hardware, pair, .. } = self;
        let precision = if pair.target.weight_bytes < 2.0 { " in FP8" } else { "" };
        // To the microsecond.
        let step_ms = (1e6 * pair.draft_step_s).round() / 1e3;
        let step = if step_ms > 0.0 { format!("{step_ms} ms") } else { "as modelled".to_owned() };
        let step = match self.drafts {
            Drafts::OnePass(fade) | Drafts::OnePassHead { fade, .. } => {
                let all = match self.drafts {
                    Drafts::OnePassHead { block: Some(rows), .. } => format!("a block of {rows} rows"),
                    _ => "all proposals".to_owned(),
                };
                format!("{step} for {all}, each place right {fade} times as often as the one before")
            }
            Drafts::Steps | Drafts::Head => step,
        };
        let joined = if pair.gpus > 1 {
            let overlapped = if hardware.links.overlapped { ", all-reduces in halves" } else { "" };
            format!(" joined by {}{overlapped}", hardware.links.kind)
        } else {
            String::new()
        };
        let joined = if self.draft_copies > 1 {
            format!("{joined}, sequences divided among the drafts of all")
        } else {
            joined
        };
        let joined = if self.draft_apart { format!("{joined}, the draft on one more") } else { joined };
        write!(
            f,
            "{} for {}{precision} on {} x {}{joined}, draft step {step}",
            pair.draft.name, pair.target.name, pair.gpus, hardware.name
        )
    }

    /// What passes take, on the device of a bound if there is one.
    fn costs(&self, bound: Option<Bound>) -> DeviceCosts {
        if let Some(MeasuredCosts { tables, target_layers, .. }) = &self.measured {
            return DeviceCosts::Tables { partitions: tables.clone(), target_layers: *target_layers };
        }
        let roofline = Roofline::new(self.hardware, self.pair, &self.draft_sms);
        let roofline = if self.draft_apart { roofline.with_draft_apart() } else { roofline };
        let free = bound.is_some_and(Bound::drafts_for_nothing);
        if free { roofline.with_free_drafts().into() } else { roofline.into() }
    }

    fn config(&self, policy: Policy, load: &Load, costs: &DeviceCosts) -> EngineConfig {
        let max_running = match load.arrivals {
            Arrivals::Backlog { .. } => (load.level as usize).min(self.max_running),
            _ => self.max_running,
        };
        let blocks = self.kv_tokens / BLOCK_TOKENS;
        EngineConfig {
            block_size: BLOCK_TOKENS,
            target_blocks: blocks,
            draft: self.drafts.source(blocks),
            max_pass_rows: self.max_pass_rows,
            max_context: self.max_context,
            partitions: costs.tables(),
            target_layers: costs.target_layers(),
            deterministic: false,
            speculation: SpeculationBounds {
                suffix_bytes: self.suffix_bytes,
                draft_copies: self.draft_copies,
                ..SpeculationBounds::default()
            },
            prefix_cache: false,
            learned: Learned::default(),
            tuning: Tuning {
                max_running,
                max_waiting: 1_000_000,
                policy,
                mechanisms: self.mechanisms,
                ..Tuning::default()
            },
        }
    }
}

impl MeasuredCosts {
    /// The whole device, and those splits of it that an ablation may use.
    fn with_splits(mut self, ablation: &Ablation) -> MeasuredCosts {
        if let [whole, splits @ ..] = self.tables.as_slice() {
            self.tables = [whole.clone()].into_iter().chain(ablation.splits(splits)).collect();
        }
        self
    }
}

impl fmt::Display for SimSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SimSpec { preset, lengths, kv_tokens, duration, seed, .. } = self;
        if let Some(preset) = preset {
            write!(f, "preset {preset}: ")?;
        }
        match &self.measured {
            Some(measured) => write!(f, "costs as measured in {}", measured.name)?,
            None => self.modelled(f)?,
        }
        let seen = 100.0 * self.cached_prompts;
        let seen = if seen > 0.0 { format!(", {seen:.0} % of prompts seen before") } else { String::new() };
        let requests = match &self.trace {
            Some(trace) => trace.spoken(self.duration, self.max_context).to_string(),
            None => format!("{} lengths{seen}", lengths.name),
        };
        write!(f, ", {requests}, KV for {kv_tokens} tokens, {} s, seed {seed}", duration.as_secs())?;
        if matches!(self.acceptance, Acceptance::Inverted(_)) {
            write!(f, ", confidence inverted")?;
        }
        let Targets { ttft_ms, tpot_ms } = self.targets;
        for (name, target) in [("TTFT", ttft_ms), ("TPOT", tpot_ms)] {
            if let Some(ms) = target {
                write!(f, ", {name} target {ms} ms")?;
            }
        }
        Ok(())
    }
}

impl Load {
    /// A server at a constant batch: enough requests that most of the run is at the full one.
    pub fn backlog(batch: usize) -> Load {
        Load { arrivals: Arrivals::Backlog { requests: 6 * batch + 4 }, level: batch as f64 }
    }

    /// The requests of a trace before `duration`, when they came.
    pub fn replay(trace: &Trace, duration: Duration) -> Load {
        let per_s = trace.before(duration).len() as f64 / duration.as_secs_f64();
        Load { arrivals: Arrivals::Replayed, level: (1e3 * per_s).round() / 1e3 }
    }

    /// When its arrivals end; a backlog has none.
    fn until(&self, spec: &SimSpec) -> Option<Duration> {
        match self.arrivals {
            Arrivals::Backlog { .. } => None,
            _ => Some(spec.duration),
        }
    }
}

/// The policy of a fixed length, 0 included.
fn fixed(k: usize) -> Policy {
    if k == 0 { Policy::Off } else { Policy::Fixed { k: k.min(K_LIMIT) } }
}
