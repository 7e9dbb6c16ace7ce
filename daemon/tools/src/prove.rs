//! `faser prove`: the same requests in every way that this pair can be run in, and whether each wrote the same bytes.

mod table;
mod two_daemons;

use std::cell::Cell;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, bail};
use clap::Args;
use faser_actors::{Sampling, Service, ServiceSpec, Submission, Update, WatchdogConfig};
use faser_bench::{Prompt, Prompts};
use faser_config::raw::ConfigSource;
use faser_config::{Config, ModelSource};
use faser_engine::survival::Source;
use faser_engine::{EngineConfig, FinishReason, Handling, Policy, SpeculationMode, TokenId, Tuning};
use faser_loading::load_pairs::{Loaded, load};
use faser_loading::locate::demo_drafts;
use faser_models::Detokenizer;
use faser_openai::text_sequence::SequenceError;
use faser_terminal::{Display, println};
use futures_util::future::try_join_all;

use crate::pair_args::{PairArgs, flags};
use table::{Proof, Way};

/// Tokens of a prompt of a synthetic pair.
const PROMPT_TOKENS: usize = 24;
/// Of a predicted output every token of this number is another one, so that it is left and found again.
const MISPREDICTED: usize = 9;
/// Memory for past outputs, if the config gives none.
const SUFFIX_BYTES: usize = 64 << 20;

/// `faser prove`.
#[derive(Args, Debug)]
#[command(after_help = "\
What a request gets depends on its prompt, its parameters and its seed alone. This runs the same seeded requests one after the other and
many at once, without speculation and with proposals of each kind: the draft model, prompt-lookup, a predicted output, past outputs.
Then two daemons serve them, and one is killed (SIGKILL) in the middle: its streams go on on the other by `resume`. Of each way it
prints a hash over the tokens and texts of all requests. The exit status is 1 where one differs. On the demo pair all of its draft
models take part.

Examples:
  faser prove                                     the demo pair: one or two minutes on two cores
  faser prove -c my.yaml --requests 50
  faser prove model.gguf --draft small.gguf --streams 1,16 --k 4")]
pub struct ProveArgs {
    /// Config file (YAML); without it and MODEL the demo pair is used.
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Models in its place.
    #[command(flatten)]
    pub pair: PairArgs,
    /// Requests, each with a seed of its own.
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub requests: usize,
    /// Tokens each request gets.
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub max_tokens: usize,
    /// Numbers of requests kept in flight. The first, without speculation, is what all else is held against.
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "1,64")]
    pub streams: Vec<usize>,
    /// Proposals of a request and pass at most.
    #[arg(long, value_name = "K", default_value_t = 8)]
    pub k: usize,
    /// 0 takes the likeliest token always.
    #[arg(long, value_name = "T", default_value_t = 0.8, allow_negative_numbers = true)]
    pub temperature: f32,
    /// Requests have this seed and those behind it.
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub seed: u64,
}

impl ProveArgs {
    /// The config, for which costs are measured, as prompt-lookup and others ask for them.
    ///
    /// # Errors
    /// The file is wrong, or a flag is.
    pub fn load_config(&self) -> Result<Config> {
        let mut config = self.pair.read(self.config.clone())?.one(None)?;
        config.tuning.policy = Policy::Faser;
        let at_least_one = [
            ("--requests", self.requests),
            ("--max-tokens", self.max_tokens),
            ("--streams", self.streams.iter().copied().min().unwrap_or(0)),
        ];
        if let Some((flag, _)) = at_least_one.iter().find(|(_, value)| *value == 0) {
            bail!("{flag} must be at least 1");
        }
        if !(1..=faser_engine::K_LIMIT).contains(&self.k) {
            bail!("--k must be from 1 to {}", faser_engine::K_LIMIT);
        }
        if !(0.0..=2.0).contains(&self.temperature) {
            bail!("--temperature must be from 0 to 2");
        }
        two_daemons::check(&config)?;
        Ok(config)
    }
}

/// Runs every way; true if all wrote the same. Needs a running actix System.
///
/// # Errors
/// A pair cannot be loaded, or a request fails.
pub async fn prove(args: &ProveArgs, config: &Config) -> Result<bool> {
    let pair = loaded(config)?;
    let requests = Requests::new(args, config, &pair)?;
    let mut proof = Proof::new(requests.title(&pair));
    let mut reference: Vec<Answer> = Vec::new();
    for &streams in &args.streams {
        let answers = in_process(&pair, &requests, SpeculationMode::Off, streams, &[], &mut proof).await?;
        if reference.is_empty() {
            reference = answers;
        }
    }
    let predicted: Vec<Vec<TokenId>> = reference.iter().map(Answer::nearly).collect();
    let mut modes = vec![(SpeculationMode::Lookup, false), (SpeculationMode::Lookup, true)];
    modes.push((SpeculationMode::Suffix, false));
    if config.model.source.has_draft() {
        modes.extend([(SpeculationMode::Draft, false), (SpeculationMode::Auto, false)]);
    }
    for (mode, predicts) in modes {
        for &streams in &args.streams {
            let predicted = if predicts { &predicted[..] } else { &[] };
            in_process(&pair, &requests, mode, streams, predicted, &mut proof).await?;
        }
    }
    // Before others take the memory.
    drop(pair);
    if args.config.is_none() && matches!(config.model.source, ModelSource::Demo { draft: true }) {
        for (name, target, draft) in demo_drafts()? {
            let source = ConfigSource { file: None, flags: flags(Some(&target), Some(&draft), "MODEL") };
            let mut config = Config::from_document(&source.document()?)?;
            config.tuning.policy = Policy::Faser;
            let pair = loaded(&config)?;
            for &streams in &args.streams {
                proof.draft = Some(name.clone());
                in_process(&pair, &requests, SpeculationMode::Draft, streams, &[], &mut proof).await?;
            }
        }
        proof.draft = None;
    }
    let most = args.streams.iter().copied().max().unwrap_or(1);
    two_daemons::run(args, &requests, most, &mut proof).await?;
    println(&proof.to_string())?;
    Ok(proof.same())
}

fn loaded(config: &Config) -> Result<Loaded> {
    let mut display = Display::new();
    let pair = load(config, &mut |what, progress| display.show(what, progress))?;
    display.finish();
    Ok(pair)
}

/// All requests on a service of its own in this process, so many at once; what came is added to the proof.
async fn in_process(
    pair: &Loaded,
    requests: &Requests,
    mode: SpeculationMode,
    streams: usize,
    predicted: &[Vec<TokenId>],
    proof: &mut Proof,
) -> Result<Vec<Answer>> {
    let started = Instant::now();
    let service = Service::start(requests.service(pair, mode)).await?;
    let next = Cell::new(0);
    let stream = async || {
        let mut answers = Vec::new();
        while next.get() < requests.count {
            let number = next.replace(next.get() + 1);
            let submission = Submission {
                prediction: predicted.get(number).cloned().unwrap_or_default(),
                ..requests.submission(number, mode)
            };
            answers.push((number, ask(&service, submission, pair).await?));
        }
        Ok::<_, anyhow::Error>(answers)
    };
    let answered = try_join_all((0..streams.min(requests.count)).map(|_| stream())).await;
    service.stop().await;
    let mut answers: Vec<(usize, Answer)> = answered?.into_iter().flatten().collect();
    answers.sort_by_key(|(number, _)| *number);
    let answers: Vec<Answer> = answers.into_iter().map(|(_, answer)| answer).collect();
    let source = match mode {
        SpeculationMode::Off => "no speculation",
        SpeculationMode::Draft => "draft model",
        SpeculationMode::Lookup if predicted.is_empty() => "prompt-lookup",
        SpeculationMode::Lookup => "predicted output",
        SpeculationMode::Suffix => "past outputs",
        SpeculationMode::Auto => "the policy's choice",
    };
    proof.add(Way::new(source, requests.k_of(mode), streams, started.elapsed(), &answers));
    Ok(answers)
}

async fn ask(service: &Service, submission: Submission, pair: &Loaded) -> Result<Answer> {
    let mut detokenizer = Detokenizer::new(std::sync::Arc::clone(&pair.tokenizer)).behind(&submission.prompt);
    let mut updates = service.submit(submission).await?;
    let mut answer = Answer::default();
    loop {
        match updates.next().await {
            Some(Update::Tokens(emitted)) => {
                for token in emitted.iter().map(|emitted| emitted.token) {
                    answer.tokens.push(token);
                    answer.text.push_str(&detokenizer.push(token).unwrap_or_default());
                }
            }
            Some(Update::Finished { reason: FinishReason::Length, usage }) => {
                answer.text.push_str(&detokenizer.finish());
                for source in Source::ALL {
                    answer.proposed += usage.by_source[source].proposed;
                    answer.accepted += usage.by_source[source].accepted;
                }
                return Ok(answer);
            }
            Some(Update::Finished { .. }) => return Err(SequenceError::DeviceFailed.into()),
            None => return Err(SequenceError::Ended.into()),
        }
    }
}

/// What a request got.
#[derive(Clone, Debug, Default)]
struct Answer {
    tokens: Vec<TokenId>,
    text: String,
    proposed: usize,
    accepted: usize,
}

impl Answer {
    /// A prediction of it that is wrong here and there.
    fn nearly(&self) -> Vec<TokenId> {
        let wrong = |(at, &token): (usize, &TokenId)| {
            if at % MISPREDICTED == MISPREDICTED - 1 { token ^ 1 } else { token }
        };
        self.tokens.iter().enumerate().map(wrong).collect()
    }
}

/// The requests of all ways.
struct Requests {
    prompts: Vec<Vec<TokenId>>,
    count: usize,
    max_tokens: usize,
    temperature: f32,
    seed: u64,
    k: usize,
}

impl Requests {
    fn new(args: &ProveArgs, config: &Config, pair: &Loaded) -> Result<Requests> {
        let vocab = pair.device.target().config.vocab as u32;
        let source = match config.model.source {
            ModelSource::Synthetic { .. } => Prompts::Synthetic {
                count: args.requests,
                length: PROMPT_TOKENS,
                first_id: 0,
                end_id: vocab,
                seed: args.seed,
            },
            _ => Prompts::BuiltIn,
        };
        let ids = |prompt| match prompt {
            Prompt::Text(text) => pair.tokenizer.encode(&text, true),
            Prompt::Tokens(tokens) => Ok(tokens),
        };
        let prompts = source.load()?.into_iter().map(ids).collect::<Result<Vec<_>, _>>()?;
        let (longest, holds) = (prompts.iter().map(Vec::len).max().unwrap_or(0), pair.engine.max_context);
        if longest + args.max_tokens > holds {
            bail!(
                "a prompt of {longest} tokens and --max-tokens {} are more than the {holds} that a sequence may have \
                 (`scheduler.max_context`): lower --max-tokens",
                args.max_tokens
            );
        }
        Ok(Requests {
            prompts,
            count: args.requests,
            max_tokens: args.max_tokens,
            temperature: args.temperature,
            seed: args.seed,
            k: args.k,
        })
    }

    fn prompt(&self, number: usize) -> &[TokenId] {
        &self.prompts[number % self.prompts.len()]
    }

    fn seed(&self, number: usize) -> u64 {
        self.seed.wrapping_add(number as u64)
    }

    fn k_of(&self, mode: SpeculationMode) -> usize {
        if mode == SpeculationMode::Off { 0 } else { self.k }
    }

    /// It ends at its length alone.
    fn submission(&self, number: usize, mode: SpeculationMode) -> Submission {
        Submission {
            prompt: self.prompt(number).to_vec(),
            sampling: Sampling {
                temperature: self.temperature,
                seed: self.seed(number),
                ..Sampling::default()
            },
            max_new_tokens: self.max_tokens,
            handling: Handling { k_max: Some(self.k_of(mode)), mode, ..Handling::default() },
            ..Submission::default()
        }
    }

    /// A service that proposes in this way, as much as it may: what pays is no question here.
    fn service(&self, pair: &Loaded, mode: SpeculationMode) -> ServiceSpec {
        let mut mechanisms = pair.engine.tuning.mechanisms;
        let policy = match mode {
            SpeculationMode::Off => Policy::Off,
            SpeculationMode::Draft => Policy::Fixed { k: self.k },
            SpeculationMode::Auto => Policy::Faser,
            SpeculationMode::Lookup | SpeculationMode::Suffix => {
                (mechanisms.trim, mechanisms.lookup) = (false, true);
                Policy::Budget
            }
        };
        let mut engine = EngineConfig {
            tuning: Tuning {
                policy,
                mechanisms,
                max_waiting: pair.engine.tuning.max_waiting.max(self.count),
                ..pair.engine.tuning.clone()
            },
            ..pair.engine.clone()
        };
        let past = &mut engine.speculation.suffix_bytes;
        *past = if mode == SpeculationMode::Suffix { (*past).max(SUFFIX_BYTES) } else { 0 };
        ServiceSpec { device: pair.device.clone(), engine, watchdog: WatchdogConfig::default() }
    }

    fn title(&self, pair: &Loaded) -> String {
        format!(
            "{} on {}: {} requests of {} tokens, temperature {}, seeds {} to {}",
            pair.name,
            pair.machine.name(),
            self.count,
            self.max_tokens,
            self.temperature,
            self.seed,
            self.seed(self.count - 1)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prediction_is_wrong_here_and_there() {
        let answer = Answer { tokens: (0..20).collect(), ..Answer::default() };
        let nearly = answer.nearly();
        let wrong: Vec<usize> = (0..20).filter(|&at| nearly[at] != answer.tokens[at]).collect();
        assert_eq!(wrong, [8, 17]);
    }

    #[test]
    fn what_makes_no_sense_is_refused_before_anything_is_loaded() {
        for (line, words) in [
            ("faser prove --requests 0", "--requests must be at least 1"),
            ("faser prove --streams 1,0", "--streams must be at least 1"),
            ("faser prove --k 17", "--k must be from 1 to 16"),
            ("faser prove --k 0", "--k must be from 1 to 16"),
            ("faser prove --temperature 3", "--temperature must be from 0 to 2"),
        ] {
            let args: ProveArgs = crate::arguments(line).unwrap();
            assert_eq!(args.load_config().unwrap_err().to_string(), words, "{line}");
        }
    }
}
