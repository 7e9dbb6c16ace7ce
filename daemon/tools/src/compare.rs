//! `faser compare`: policies against each other on this machine, in one process and in turns, so that its drift favours none.

use std::cell::Cell;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant};

use actix_web::rt::time::sleep;
use anyhow::Result;
use clap::Args;
use faser_actors::{LaneSizes, Sampling, Service, ServiceSpec, Submission, Update, WatchdogConfig};
use faser_bench::compare::{Comparison, Load, PassFigures, Run};
use faser_bench::sim::Ablation;
use faser_bench::{Answered, BenchError, MaxTokens, Prompt, Prompts, Quantiles};
use faser_config::raw::{ConfigSource, Document};
use faser_config::{Config, ConfigError, ModelSource};
use faser_engine::sim::Arrivals;
use faser_engine::{EngineConfig, FinishReason, Handling, Learned, Policy, Slo, TokenId, Tuning};
use faser_loading::load_pairs::{Loaded, load};
use faser_openai::text_sequence::SequenceError;
use faser_terminal::{Display, println, writable, write_json};
use futures_util::future::try_join_all;

use crate::target_args::TargetArgs;

/// `faser compare`.
#[derive(Args, Debug)]
#[command(after_help = "\
Models are loaded and costs measured once. Then for every repeat, load and policy a fresh service is started over them,
warmed up and driven in this process; every second repeat takes the policies in reverse order. What a service has learned of
the draft, the next one of the same policy begins with, as a daemon does that is started again. Each policy is set against
the first one within each repeat. All get the same requests, greedy and without stop tokens. Policies are those of a config;
ablations of `faser` are policies too: length, +trim, +overlap, +partition, +prune, +lookup, each with what those before it have, and
length+prune. A policy named twice shows how much two runs of the same thing differ. The tables go to standard output.

Examples:
  faser compare -c my.yaml --streams 1,4,16
  faser compare -c my.yaml --policy off --policy fixed:2 --policy fixed:4 --policy budget --policy off
  faser compare -c my.yaml --policy off --policy length --policy +trim --policy +overlap --policy +partition --policy +prune
  faser compare -c my.yaml --bursts 20 --burst-seconds 12 --repeats 3 --json run.json")]
pub struct CompareArgs {
    /// Config file (YAML); without it the demo pair is used. Its policy does not count.
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// A policy; repeat it for several. The first is what others are set against.
    #[arg(long = "policy", value_name = "POLICY", default_values = ["off", "fixed:4", "budget", "faser"])]
    pub policies: Vec<Entrant>,
    /// Numbers of requests kept in flight; without it and without --bursts: 1,4,16.
    #[arg(long, value_name = "N,..", value_delimiter = ',')]
    pub streams: Vec<usize>,
    /// Requests per second while a burst lasts, 2 s in the mean, with 4 s in the mean between two; each repeat has other times.
    #[arg(long, value_name = "R,..", value_delimiter = ',')]
    pub bursts: Vec<f64>,
    /// Seconds over which requests come in bursts.
    #[arg(long, value_name = "S", default_value_t = 10)]
    pub burst_seconds: u64,
    /// Runs of each policy under each load.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub repeats: usize,
    /// Requests of a run with streams; two for each stream at least.
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub requests: usize,
    /// Tokens each request gets; 32..96 gives each a number of its own between two, the same in every run: requests of one length keep in step.
    #[arg(long, value_name = "N", default_value_t = MaxTokens::exactly(64))]
    pub max_tokens: MaxTokens,
    /// Prompts of so many random tokens. Without it: 32 for a synthetic pair, else openings of Rust documentation.
    #[arg(long, value_name = "N", conflicts_with = "prompts")]
    pub prompt_tokens: Option<usize>,
    /// Prompts from a JSON file: a list of strings, token ids, or objects with a `prompt`.
    #[arg(long, value_name = "FILE")]
    pub prompts: Option<PathBuf>,
    /// The same seed gives the same prompts, and the same times of bursts.
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub seed: u64,
    /// Latency targets of every request.
    #[command(flatten)]
    pub targets: TargetArgs,
    /// Write every run as JSON too.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Measure what passes cost anew, also if an earlier start has cached it.
    #[arg(long)]
    pub profile: bool,
    /// Which of the config's pairs; without it the first.
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
}

/// Runs the comparison, and writes what it found. Needs a running actix System.
///
/// # Errors
/// As [`comparison`]; or a file cannot be written.
pub async fn compare(args: &CompareArgs, config: &Config) -> Result<()> {
    writable(&args.json)?;
    let comparison = comparison(args, config).await?;
    println(&comparison.to_string())?;
    if let Some(file) = &args.json {
        write_json(file, &comparison)?;
    }
    Ok(())
}

/// Runs the comparison. Needs a running actix System.
///
/// # Errors
/// The flags do not go together or with the config, the pair cannot be loaded, or a request fails.
pub async fn comparison(args: &CompareArgs, config: &Config) -> Result<Comparison> {
    args.check(config)?;
    let mut display = Display::new();
    let pair = load(config, &mut |what, progress| display.show(what, progress))?;
    display.finish();
    let requests = Requests::new(args, config, &pair)?;
    let loads = args.loads();
    let mut runs = Vec::new();
    // What the last service of each policy has learned.
    let mut learned = vec![Learned::default(); args.policies.len()];
    for repeat in 0..args.repeats {
        for &load in &loads {
            let mut order: Vec<usize> = (0..args.policies.len()).collect();
            if repeat % 2 == 1 {
                order.reverse();
            }
            for policy in order {
                let run = args.run(&pair, &requests, (repeat, load, policy), &mut learned[policy]).await?;
                let (of, name) = (args.repeats, &args.policies[policy]);
                eprintln!("repeat {} of {of}, {load}, {name}: {:.1} tokens/s", repeat + 1, run.tokens_per_s);
                runs.push(run);
            }
        }
    }
    let names = args.policies.iter().map(ToString::to_string).collect();
    Ok(Comparison::new(args.title(&pair, &requests), names, loads, runs))
}

impl CompareArgs {
    /// The config for loading: with a policy for which costs are measured, whoever takes part, so that the times of all passes
    /// can be set against what was predicted.
    ///
    /// # Errors
    /// The file is wrong.
    pub fn load_config(&self) -> Result<Config, ConfigError> {
        self.config_of(&ConfigSource { file: self.config.clone(), flags: Vec::new() }.document()?)
    }

    /// The same, of a document instead of the file.
    ///
    /// # Errors
    /// It is wrong.
    pub fn config_of(&self, document: &Document) -> Result<Config, ConfigError> {
        let mut config = Config::from_document(document)?.one(self.model.as_deref())?;
        config.tuning.policy = Policy::Faser;
        Ok(Config { profile: self.profile, ..config })
    }

    /// The loads, in the order they are run.
    fn loads(&self) -> Vec<Load> {
        let standard: &[usize] =
            if self.streams.is_empty() && self.bursts.is_empty() { &[1, 4, 16] } else { &self.streams };
        let streams = standard.iter().map(|&streams| Load::Streams(streams));
        streams.chain(self.bursts.iter().map(|&per_s| Load::Bursts(per_s))).collect()
    }

    /// What can be known to be wrong before anything is loaded.
    fn check(&self, config: &Config) -> Result<()> {
        self.targets.targets()?;
        let refuse = |why: String| Err(BenchError::Spec(why).into());
        let at_least_one = [
            ("--repeats", self.repeats),
            ("--requests", self.requests),
            ("--prompt-tokens", self.prompt_tokens.unwrap_or(1)),
            ("--burst-seconds", self.burst_seconds as usize),
            ("--streams", self.streams.iter().copied().min().unwrap_or(1)),
        ];
        if let Some((flag, _)) = at_least_one.iter().find(|(_, value)| *value == 0) {
            return refuse(format!("{flag} must be at least 1"));
        }
        if !self.bursts.iter().all(|&per_s| per_s.is_finite() && per_s > 0.0) {
            return refuse("--bursts must be above 0".to_owned());
        }
        if config.device.replicas > 1 {
            return refuse("one replica is compared at a time: leave `device.replicas` out".to_owned());
        }
        let most = config.tuning.max_running;
        if let Some(streams) = self.streams.iter().find(|streams| **streams > most) {
            return refuse(format!(
                "--streams {streams} is more than the {most} sequences that may run at once: raise `scheduler.max_running`"
            ));
        }
        if let Some(entrant) = self
            .policies
            .iter()
            .find(|entrant| entrant.policy != Policy::Off && !entrant.policy.traits().predicts)
            && !config.model.source.has_draft()
        {
            return refuse(format!(
                "--policy {entrant} needs a draft model, and the config has none (`model.draft: none`)"
            ));
        }
        Ok(())
    }

    fn arrivals(&self, per_s: f64, repeat: usize) -> Vec<Duration> {
        arrivals(per_s, Duration::from_secs(self.burst_seconds), self.seed.wrapping_add(repeat as u64))
    }

    /// Requests of the largest run under a load, those before it included.
    fn most_requests(&self, load: Load) -> usize {
        let counted = match load {
            Load::Streams(streams) => closed_requests(self.requests, streams),
            Load::Bursts(per_s) => {
                (0..self.repeats).map(|repeat| self.arrivals(per_s, repeat).len()).max().unwrap_or(0)
            }
        };
        counted + warm_up(load).0
    }

    /// One policy under one load, on a service of its own, which begins with what the last one has learned, as a daemon does that is started again.
    async fn run(
        &self,
        pair: &Loaded,
        requests: &Requests,
        (repeat, load, policy): (usize, Load, usize),
        learned: &mut Learned,
    ) -> Result<Run> {
        let times = match load {
            Load::Streams(_) => Vec::new(),
            Load::Bursts(per_s) => self.arrivals(per_s, repeat),
        };
        let service = Service::start(self.policies[policy].service(pair, *learned, times.len())).await?;
        let answered = self.answers(&service, requests, load, &times).await;
        let after = service.view().totals;
        *learned = service.learned().await.unwrap_or(*learned);
        service.stop().await;
        let (before, wall, answers) = answered?;
        let latencies: Vec<Duration> = answers.iter().map(|answer| answer.latency).collect();
        let ttft: Vec<Duration> = answers.iter().map(|answer| answer.ttft).collect();
        let answered = answers.iter().map(|answer| Some(answer.answered()));
        let attained = self.targets.targets()?.attained(answered, wall);
        let output_tokens = answers.iter().map(|answer| answer.tokens.len()).sum();
        let mean = latencies.iter().sum::<Duration>().as_secs_f64() / latencies.len().max(1) as f64;
        Ok(Run {
            repeat,
            load,
            policy,
            requests: answers.len(),
            output_tokens,
            wall_s: wall.as_secs_f64(),
            tokens_per_s: output_tokens as f64 / wall.as_secs_f64().max(1e-9),
            latency_mean_ms: 1e3 * mean,
            latency: Quantiles::of(&latencies),
            ttft: Quantiles::of(&ttft),
            attained,
            passes: PassFigures::between(&before, &after),
            texts: answers.iter().map(|answer| hash(&answer.tokens)).collect(),
        })
    }

    /// Warms a service up, then drives it: the totals before what counts, how long that took, and the answers.
    async fn answers(
        &self,
        service: &Service,
        requests: &Requests,
        load: Load,
        times: &[Duration],
    ) -> Result<(faser_engine::Totals, Duration, Vec<Answer>)> {
        let (warming, at_once) = warm_up(load);
        closed(service, requests, self.most_requests(load) - warming, warming, at_once).await?;
        let before = service.view().totals;
        let started = Instant::now();
        let answers = match load {
            Load::Streams(streams) => {
                closed(service, requests, 0, closed_requests(self.requests, streams), streams).await?
            }
            Load::Bursts(_) => open(service, requests, times).await?,
        };
        Ok((before, started.elapsed(), answers))
    }

    fn title(&self, pair: &Loaded, requests: &Requests) -> String {
        let partitions = pair.device.partitions();
        let split = |lanes: &LaneSizes| format!("{} + {}", lanes.draft, lanes.verify);
        let splits: Vec<String> = partitions.iter().skip(1).map(split).collect();
        let all = partitions.first().map_or(0, |lanes| lanes.verify);
        let costs = pair.cost_source.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string);
        format!(
            "{} on {}, {all} {}, draft + verify on {}; cost tables: {costs}; {}, {} tokens each, greedy, seed {}",
            pair.name,
            pair.machine.name(),
            pair.device.unit(),
            if splits.is_empty() { "all of them".to_owned() } else { splits.join(", ") },
            requests.spoken,
            self.max_tokens,
            self.seed
        )
    }
}

fn hash(tokens: &[faser_engine::TokenId]) -> u64 {
    let mut hasher = DefaultHasher::new();
    tokens.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests;

/// One that takes part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entrant {
    /// How lengths are chosen.
    pub policy: Policy,
    /// Which mechanisms and partitions it may use; without one, all that the config allows.
    pub ablation: Option<Ablation>,
}

impl FromStr for Entrant {
    type Err = String;

    fn from_str(text: &str) -> Result<Entrant, String> {
        if let Ok(ablation) = text.parse() {
            return Ok(Entrant { policy: Policy::Faser, ablation: Some(ablation) });
        }
        if ["best-fixed", "batch-table"].contains(&text) {
            return Err(format!(
                "`{text}` is found by the simulator alone (faser sim): name lengths, such as fixed:2"
            ));
        }
        let policy = text.parse().map_err(|unknown: String| {
            let ablations: Vec<&str> = Ablation::ALL.iter().map(|ablation| ablation.name).collect();
            format!("{unknown}; or an ablation of `faser`: {}", ablations.join(", "))
        })?;
        Ok(Entrant { policy, ablation: None })
    }
}

impl fmt::Display for Entrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.ablation {
            Some(ablation) => f.write_str(ablation.name),
            None => self.policy.fmt(f),
        }
    }
}

impl Entrant {
    /// A service of its own over the pair that all share, which begins with what was learned. Up to `waiting` requests may wait.
    pub(super) fn service(&self, pair: &Loaded, learned: Learned, waiting: usize) -> ServiceSpec {
        let engine = EngineConfig {
            partitions: self.partitions(&pair.engine.partitions),
            learned,
            tuning: Tuning {
                policy: self.policy.clone(),
                mechanisms: self
                    .ablation
                    .map_or(pair.engine.tuning.mechanisms, |ablation| ablation.mechanisms),
                // One of the config's choice may not be among those of an ablation.
                partition: pair.engine.tuning.partition.filter(|_| self.ablation.is_none()),
                max_waiting: pair.engine.tuning.max_waiting.max(waiting),
                ..pair.engine.tuning.clone()
            },
            ..pair.engine.clone()
        };
        let places: Vec<usize> = (0..pair.device.partitions().len()).collect();
        let device = pair.device.with_partitions(&self.partitions(&places));
        ServiceSpec { device, engine, watchdog: WatchdogConfig::default(), kv_events: None }
    }

    /// The whole device, and those splits of it that may be used.
    fn partitions<T: Clone>(&self, all: &[T]) -> Vec<T> {
        match (self.ablation, all) {
            (Some(ablation), [whole, splits @ ..]) => {
                [whole.clone()].into_iter().chain(ablation.splits(splits)).collect()
            }
            _ => all.to_vec(),
        }
    }
}

/// Random token ids of a prompt where no number is given.
const PROMPT_TOKENS: usize = 32;
/// Mean length of a burst, and of the time between two.
const ON: Duration = Duration::from_secs(2);
const OFF: Duration = Duration::from_secs(4);
/// Requests before a closed loop's, at least: they warm memory and teach the engine.
const WARM_UP: usize = 4;
/// Requests before a trace's.
const WARM_UP_OF_BURSTS: usize = 16;

/// Prompts by request, and what else a request says.
pub(super) struct Requests {
    prompts: Vec<Vec<TokenId>>,
    max_tokens: MaxTokens,
    slo: Slo,
    /// What the prompts are, in words.
    pub(super) spoken: String,
}

impl Requests {
    /// Prompts for all requests of all loads.
    pub(super) fn new(args: &CompareArgs, config: &Config, pair: &Loaded) -> Result<Requests> {
        let synthetic = matches!(config.model.source, ModelSource::Synthetic { .. });
        let random = |length| Prompts::Synthetic {
            count: args.loads().into_iter().map(|load| args.most_requests(load)).max().unwrap_or(1),
            length,
            first_id: 0,
            end_id: pair.device.target().config.vocab as u32,
            seed: args.seed,
        };
        let (source, spoken) = match (&args.prompts, args.prompt_tokens) {
            (Some(file), _) => (Prompts::File(file.clone()), format!("prompts of {}", file.display())),
            (None, None) if !synthetic => (Prompts::BuiltIn, "openings of Rust documentation".to_owned()),
            (None, length) => {
                let length = length.unwrap_or(PROMPT_TOKENS);
                (random(length), format!("prompts of {length} random tokens"))
            }
        };
        let ids = |prompt| match prompt {
            Prompt::Text(text) => pair.tokenizer.encode(&text, true),
            Prompt::Tokens(tokens) => Ok(tokens),
        };
        let prompts = source.load()?.into_iter().map(ids).collect::<Result<Vec<_>, _>>()?;
        let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
        let holds = pair.engine.max_context;
        if longest.saturating_add(args.max_tokens.most()) > holds {
            return Err(BenchError::Spec(format!(
                "a prompt of {longest} tokens and --max-tokens {} are more than the {holds} that a sequence may have \
                 (`scheduler.max_context`): lower --max-tokens, or shorten prompts by --prompt-tokens",
                args.max_tokens.most()
            ))
            .into());
        }
        let slo = args.targets.targets()?.slo();
        Ok(Requests { prompts, max_tokens: args.max_tokens, slo, spoken })
    }

    /// A request: greedy, and as long as it may be.
    pub(super) fn submission(&self, request: usize) -> Submission {
        Submission {
            prompt: self.prompts[request % self.prompts.len()].clone(),
            sampling: Sampling { temperature: 0.0, ..Sampling::default() },
            max_new_tokens: self.max_tokens.of(request),
            handling: Handling { slo: self.slo, ..Handling::default() },
            ..Submission::default()
        }
    }
}

/// Requests that come before those that count: how many, and how many of them at once.
pub(super) fn warm_up(load: Load) -> (usize, usize) {
    match load {
        Load::Streams(streams) => (streams.max(WARM_UP), streams),
        Load::Bursts(_) => (WARM_UP_OF_BURSTS, WARM_UP_OF_BURSTS),
    }
}

/// Requests in a closed loop of `streams`: two for each stream at least, so that they do not all end at once.
pub(super) fn closed_requests(asked: usize, streams: usize) -> usize {
    asked.max(2 * streams)
}

/// When requests come in bursts of `per_s`: from the first one, at 0, for `lasting`. The same seed gives the same times.
pub(super) fn arrivals(per_s: f64, lasting: Duration, seed: u64) -> Vec<Duration> {
    let cycle = (ON + OFF).as_secs_f64();
    let bursts = Arrivals::Bursts { per_s: per_s * ON.as_secs_f64() / cycle, on: ON, off: OFF };
    let times = bursts.times((ON + OFF) * 100 + lasting, seed);
    // So few that none came at all: one.
    let Some(&first) = times.first() else { return vec![Duration::ZERO] };
    times.into_iter().map(|at| at - first).take_while(|at| *at < lasting).collect()
}

/// A request that was answered.
pub(super) struct Answer {
    /// From its arrival to its last token.
    pub(super) latency: Duration,
    /// From its arrival to its first token.
    pub(super) ttft: Duration,
    pub(super) tokens: Vec<TokenId>,
}

impl Answer {
    fn answered(&self) -> Answered {
        let later = u32::try_from(self.tokens.len().saturating_sub(1)).ok().filter(|&later| later > 0);
        Answered { ttft: self.ttft, tpot: later.map(|later| self.latency.saturating_sub(self.ttft) / later) }
    }
}

/// Keeps `streams` of the `count` requests from `first` on in flight. Answers come in the order of the requests.
pub(super) async fn closed(
    service: &Service,
    requests: &Requests,
    first: usize,
    count: usize,
    streams: usize,
) -> Result<Vec<Answer>> {
    let next = Cell::new(0);
    let stream = async || {
        let mut answers = Vec::new();
        while next.get() < count {
            let request = next.replace(next.get() + 1);
            answers.push((request, ask(service, requests, first + request, Instant::now()).await?));
        }
        Ok::<_, anyhow::Error>(answers)
    };
    let mut answers: Vec<_> =
        try_join_all((0..streams).map(|_| stream())).await?.into_iter().flatten().collect();
    answers.sort_by_key(|(request, _)| *request);
    Ok(answers.into_iter().map(|(_, answer)| answer).collect())
}

/// Sends the first requests at these times, whether or not those before are answered.
pub(super) async fn open(
    service: &Service,
    requests: &Requests,
    arrivals: &[Duration],
) -> Result<Vec<Answer>> {
    let start = Instant::now();
    let request = async |(request, at): (usize, &Duration)| {
        sleep((start + *at).saturating_duration_since(Instant::now())).await;
        ask(service, requests, request, start + *at).await
    };
    try_join_all(arrivals.iter().enumerate().map(request)).await
}

async fn ask(service: &Service, requests: &Requests, request: usize, arrived: Instant) -> Result<Answer> {
    let mut updates = service.submit(requests.submission(request)).await?;
    let mut tokens: Vec<TokenId> = Vec::new();
    let mut ttft = None;
    loop {
        match updates.next().await {
            Some(Update::Tokens(more)) => {
                ttft.get_or_insert_with(|| arrived.elapsed());
                tokens.extend(more.iter().map(|emitted| emitted.token));
            }
            Some(Update::Finished { reason: FinishReason::Length, .. }) => {
                let latency = arrived.elapsed();
                return Ok(Answer { latency, ttft: ttft.unwrap_or(latency), tokens });
            }
            Some(Update::Finished { .. }) => return Err(SequenceError::DeviceFailed.into()),
            None => return Err(SequenceError::Ended.into()),
        }
    }
}
