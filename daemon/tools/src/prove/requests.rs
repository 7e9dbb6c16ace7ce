//! The requests of all ways, and the service that takes them in each.

use anyhow::{Result, bail};
use faser_actors::{Sampling, ServiceSpec, Submission, WatchdogConfig};
use faser_bench::{Prompt, Prompts};
use faser_config::{Config, ModelSource};
use faser_engine::{EngineConfig, Handling, Policy, SpeculationMode, TokenId, Tuning};
use faser_loading::load_pairs::Loaded;

use super::args::ProveArgs;

/// Tokens of a prompt of a synthetic pair.
const PROMPT_TOKENS: usize = 24;
/// All answers are kept until they are compared.
const MOST_REQUESTS: usize = 1_000_000;
/// Memory for past outputs, if the config gives none.
const SUFFIX_BYTES: usize = 64 << 20;

/// The requests of all ways.
pub(super) struct Requests {
    prompts: Vec<Vec<TokenId>>,
    pub(super) count: usize,
    pub(super) max_tokens: usize,
    pub(super) temperature: f32,
    seed: u64,
    pub(super) k: usize,
}

impl Requests {
    pub(super) fn new(args: &ProveArgs, config: &Config, pair: &Loaded) -> Result<Requests> {
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
        if args.requests > MOST_REQUESTS {
            bail!("--requests is {}, at most {MOST_REQUESTS} can be compared", args.requests);
        }
        if args.max_tokens > holds.saturating_sub(longest) {
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

    pub(super) fn prompt(&self, number: usize) -> &[TokenId] {
        &self.prompts[number % self.prompts.len()]
    }

    pub(super) fn seed(&self, number: usize) -> u64 {
        self.seed.wrapping_add(number as u64)
    }

    pub(super) fn k_of(&self, mode: SpeculationMode) -> usize {
        if mode == SpeculationMode::Off { 0 } else { self.k }
    }

    /// It ends at its length alone.
    pub(super) fn submission(&self, number: usize, mode: SpeculationMode) -> Submission {
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
    pub(super) fn service(&self, pair: &Loaded, mode: SpeculationMode) -> ServiceSpec {
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
        ServiceSpec {
            device: pair.device.clone(),
            engine,
            watchdog: WatchdogConfig::default(),
            kv_events: None,
        }
    }

    pub(super) fn title(&self, pair: &Loaded) -> String {
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
