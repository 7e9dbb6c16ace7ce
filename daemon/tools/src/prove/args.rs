//! The command line of `faser prove`.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use faser_config::Config;
use faser_engine::{K_LIMIT, Policy};

use crate::pair_args::PairArgs;

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
        if !(1..=K_LIMIT).contains(&self.k) {
            bail!("--k must be from 1 to {K_LIMIT}");
        }
        if !(0.0..=2.0).contains(&self.temperature) {
            bail!("--temperature must be from 0 to 2");
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
