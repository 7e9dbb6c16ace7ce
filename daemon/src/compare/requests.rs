//! The requests of a comparison: the same for every policy, drawn from a seed.

use std::time::Duration;

use faser_actors::{Sampling, Submission};
use faser_bench::compare::Load;
use faser_bench::{BenchError, Prompt, Prompts};
use faser_engine::TokenId;
use faser_engine::sim::Arrivals;

use super::CompareArgs;
use crate::config::{Config, ModelSource};
use crate::error::DaemonError;
use crate::load::Loaded;

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
    max_tokens: usize,
    /// What the prompts are, in words.
    pub(super) spoken: String,
}

impl Requests {
    /// Prompts for all requests of all loads.
    pub(super) fn new(args: &CompareArgs, config: &Config, pair: &Loaded) -> Result<Requests, DaemonError> {
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
        if longest + args.max_tokens > holds {
            return Err(BenchError::Spec(format!(
                "a prompt of {longest} tokens and --max-tokens {} are more than the {holds} that a sequence may have \
                 (`scheduler.max_context`): lower --max-tokens, or shorten prompts by --prompt-tokens",
                args.max_tokens
            ))
            .into());
        }
        Ok(Requests { prompts, max_tokens: args.max_tokens, spoken })
    }

    /// A request: greedy, and as long as it may be.
    pub(super) fn submission(&self, request: usize) -> Submission {
        Submission {
            prompt: self.prompts[request % self.prompts.len()].clone(),
            sampling: Sampling { temperature: 0.0, ..Sampling::default() },
            max_new_tokens: self.max_tokens,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_begin_at_once_and_are_their_seed() {
        let lasting = Duration::from_secs(30);
        let times = arrivals(20.0, lasting, 7);
        assert_eq!(times[0], Duration::ZERO);
        assert!(times.is_sorted() && times.iter().all(|at| *at < lasting));
        assert_eq!(times, arrivals(20.0, lasting, 7));
        assert_ne!(times, arrivals(20.0, lasting, 8));
        // On average a third of the time is on.
        let many: usize = (0..200).map(|seed| arrivals(20.0, lasting, seed).len()).sum();
        let per_s = many as f64 / 200.0 / 30.0;
        assert!((5.0..10.0).contains(&per_s), "{per_s}");
        assert_eq!(arrivals(1e-9, lasting, 1), [Duration::ZERO]);
    }

    #[test]
    fn every_stream_has_two_requests_and_is_warm() {
        assert_eq!((closed_requests(16, 4), closed_requests(16, 16)), (16, 32));
        assert_eq!((warm_up(Load::Streams(1)), warm_up(Load::Streams(16))), ((4, 1), (16, 16)));
    }
}
