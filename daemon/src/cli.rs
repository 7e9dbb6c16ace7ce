//! The command line: what can be asked, and what `--help` teaches.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use faser_bench::KMax;
use faser_engine::Policy;
use serde_json::Value;

use crate::compare::CompareArgs;
use crate::config::raw::Document;
use crate::config::{Config, ConfigError};
use crate::ctl::CtlArgs;
use crate::gpu_check::GpuCheckArgs;
use crate::manual::{CompletionsArgs, ManArgs};
use crate::sim::SimArgs;
use crate::top::TopArgs;

const EXAMPLES: &str = "\
Examples:
  faser serve                                     the demo pair on http://127.0.0.1:8000
  faser serve -c configs/laptop.yaml --listen 127.0.0.1:0
  faser ctl status                                what does the running daemon do?
  faser top                                       the same, live
  faser check -c my.yaml                          is this config right, and does it fit this machine?
  faser plan -c configs/plans/h100x8.yaml         which GPUs would hold what, and would it fit?
  faser generate \"Returns the number of\"          see which tokens the draft model got right
  faser bench --concurrency 1,4,16 --k 0,4        what speculation brings on this machine
  faser compare --policy off --policy budget      what policies bring against each other
  faser sim --rates 0.5,2,8                       what it would bring on an H100";

/// Serves large language models with speculative decoding: a draft model proposes, the target model verifies.
///
/// The text of a request depends on its prompt, parameters and seed alone; speculation changes nothing but speed.
#[derive(Debug, Parser)]
#[command(name = "faser", version, after_help = EXAMPLES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What the binary does.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Answer the OpenAI HTTP API until SIGTERM.
    Serve(ServeArgs),
    /// Check a config: its keys, the models it names, and how they fit this machine.
    Check(CheckArgs),
    /// Plan where models would go: on this machine, or on one that the config describes. Loads no weights.
    Plan(PlanArgs),
    /// Continue a prompt in this terminal; tokens that the draft model proposed are green.
    Generate(GenerateArgs),
    /// Measure a running server, faser or any other that speaks the OpenAI API.
    Bench(BenchArgs),
    /// Compare policies on this machine, in turns: one pair, the same requests, ratios within each repeat.
    Compare(Box<CompareArgs>),
    /// Compare policies in the simulator: the real engine on a model of a device.
    Sim(Box<SimArgs>),
    /// Ask a running daemon something, or change how it works, by its admin socket.
    Ctl(CtlArgs),
    /// Watch a running daemon in this terminal: throughput, lanes, queue, KV, acceptance, requests.
    Top(TopArgs),
    /// Check a GPU: kernels against the CPU, splits of its SMs, and how fast it is.
    GpuCheck(GpuCheckArgs),
    /// Print completions for a shell.
    Completions(CompletionsArgs),
    /// Write man pages of faser and its commands into a folder.
    Man(ManArgs),
}

/// `faser serve`.
#[derive(Args, Debug)]
#[command(after_help = "\
Without -c the demo pair is served. configs/laptop.yaml has every key with its default.

Examples:
  faser serve
  faser serve --policy off                        plain decoding, to compare
  faser serve -c my.yaml --listen 0.0.0.0:8000    reachable from other machines; needs API keys")]
pub struct ServeArgs {
    /// Config file (YAML).
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Address and port instead of server.listen; port 0 takes a free one.
    #[arg(long, value_name = "ADDR:PORT")]
    pub listen: Option<String>,
    /// How speculative lengths are chosen, instead of speculation.policy.
    #[arg(long, long_help = format!("How speculative lengths are chosen, instead of speculation.policy: {}", Policy::FORMS))]
    pub policy: Option<String>,
    /// Measure what passes cost anew, also if an earlier start has kept it; for policies that need to know it.
    #[arg(long)]
    pub profile: bool,
}

/// `faser check`.
#[derive(Args, Debug)]
#[command(after_help = "\
It loads the models, so a file that is missing, cut off or of the wrong shape is found here.

Example:
  faser check -c configs/laptop.yaml")]
pub struct CheckArgs {
    /// Config file (YAML); without it every default is checked.
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Measure what passes cost anew, also if an earlier start has kept it; for policies that need to know it.
    #[arg(long)]
    pub profile: bool,
}

/// `faser plan`.
#[derive(Args, Debug)]
#[command(after_help = "\
It reads config.json and the headers of weight files, no weights. Machines and models that are not at hand are written in the config:

  topology:
    name: 8 x H100
    host: {cores: 112, memory: 2TiB, numa_nodes: 2}
    gpus: [{count: 4, name: H100, sms: 132, memory: 80GiB, numa: 0}, {count: 4, name: H100, sms: 132, memory: 80GiB, numa: 1}]
    links: [{among: all, kind: nvlink, gb_per_s: 450}]   # kinds: nvlink, pcie-switch, pcie, pcie-numa
  model:
    shape: {target: {KEYS OF ITS config.json}, draft: {..}}
  device: {tensor_parallel: 4, draft_tensor_parallel: 1, draft_placement: first, replicas: 2}

What does not fit is refused with what would, and exit status 1. docs/plans.md has pictures.

Examples:
  faser plan                                      the demo pair on this machine
  faser plan -c configs/plans/h100x8.yaml
  faser plan -c my.yaml --json | jq '.plan.devices'")]
pub struct PlanArgs {
    /// Config file (YAML); without it the demo pair is planned for.
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print one JSON object: topology, models, plan or refusal.
    #[arg(long)]
    pub json: bool,
}

/// `faser generate`.
#[derive(Args, Debug)]
#[command(after_help = "\
Text goes to standard output, figures to standard error (with --json everything to standard output).

Examples:
  faser generate \"impl Iterator for\" --max-tokens 200
  faser generate --chat \"What does Vec::drain do?\" --temperature 0.7 --seed 1
  faser generate --k 0 \"fn main() {\"               without speculation: the same text, slower
  faser generate --prompts models/rustdoc/heldout_prompts.json --json")]
pub struct GenerateArgs {
    /// The text to continue.
    #[arg(required_unless_present = "prompts", conflicts_with = "prompts")]
    pub prompt: Option<String>,
    /// Config file (YAML); without it the demo pair is used.
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Continue each prompt of a JSON file, one after the other: a list of strings, or of objects with a `prompt`.
    #[arg(long, value_name = "FILE")]
    pub prompts: Option<PathBuf>,
    /// Tokens to generate at most.
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub max_tokens: usize,
    /// 0 takes the likeliest token always.
    #[arg(long, value_name = "T", default_value_t = 0.0, allow_negative_numbers = true)]
    pub temperature: f32,
    /// Sample from the likeliest tokens that together have this probability.
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    pub top_p: f32,
    /// The same seed gives the same text; without one it is random.
    #[arg(long, value_name = "S")]
    pub seed: Option<u64>,
    /// Speculative length: fixed:K as policy, 0 for none. Without it the config decides.
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u64).range(0..=16))]
    pub k: Option<u64>,
    /// Treat the prompt as a user's message, through the model's chat template.
    #[arg(long)]
    pub chat: bool,
    /// No colours, also on a terminal.
    #[arg(long)]
    pub no_color: bool,
    /// Print one JSON object with every run and the averages.
    #[arg(long)]
    pub json: bool,
    /// Measure what passes cost anew, also if an earlier start has kept it; for policies that need to know it.
    #[arg(long)]
    pub profile: bool,
    /// Which of the config's pairs; without it the first.
    #[arg(long, value_name = "NAME")]
    pub model: Option<String>,
}

/// `faser bench`.
#[derive(Args, Debug)]
#[command(after_help = "\
Every concurrency with every k, interleaved, so that ratios come from one session of the machine. The table goes to standard output.
A server that wants an API key gets the one in the environment variable OPENAI_API_KEY.

Examples:
  faser bench --concurrency 1,4,16 --k 0,4 --repeats 3
  faser bench --url http://127.0.0.1:8001 --prompts my.json --json run.json")]
pub struct BenchArgs {
    /// Where the server listens, without a path.
    #[arg(long, default_value = "http://127.0.0.1:8000")]
    pub url: String,
    /// The model to ask for; without it the first of /v1/models.
    #[arg(long)]
    pub model: Option<String>,
    /// Numbers of requests kept in flight.
    #[arg(long, value_name = "N,..", value_delimiter = ',', default_value = "1,4,16")]
    pub concurrency: Vec<usize>,
    /// Speculative lengths to compare, the first is what others are set against: 0 to 16, or `default` for the server's own.
    #[arg(long, value_name = "K,..", value_delimiter = ',', default_value = "default")]
    pub k: Vec<KMax>,
    /// Requests per run.
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub requests: usize,
    /// Tokens asked for per request.
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub max_tokens: usize,
    /// 0 takes the likeliest token always.
    #[arg(long, value_name = "T", default_value_t = 0.0, allow_negative_numbers = true)]
    pub temperature: f32,
    /// Runs of each combination; the table shows medians.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub repeats: usize,
    /// Prompts from a JSON file: a list of strings, token ids, or objects with a `prompt`. Without it, openings of Rust documentation.
    #[arg(long, value_name = "FILE")]
    pub prompts: Option<PathBuf>,
    /// Write every run as JSON too.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// What the report says of the machine; without it, this one's processor.
    #[arg(long, value_name = "TEXT")]
    pub machine: Option<String>,
}

impl ServeArgs {
    /// The config file as it is now, with this command's flags laid over it.
    ///
    /// # Errors
    /// The file cannot be read or is no YAML.
    pub fn document(&self) -> Result<Document, ConfigError> {
        let mut document = document(self.config.as_ref())?;
        if let Some(listen) = &self.listen {
            document.lay_over("server.listen", "--listen", Value::from(listen.as_str()));
        }
        if let Some(policy) = &self.policy {
            document.lay_over("speculation.policy", "--policy", Value::from(policy.as_str()));
        }
        Ok(document)
    }

    /// The config that `document` is.
    ///
    /// # Errors
    /// A value in the file, or a flag, is wrong.
    pub fn config_of(&self, document: &Document) -> Result<Config, ConfigError> {
        profiled(Config::from_document(document)?, self.profile)
    }
}

/// The config in a file, or every default; measured anew if `profile` says so.
///
/// # Errors
/// The file is wrong.
pub fn config(file: Option<&PathBuf>, profile: bool) -> Result<Config, ConfigError> {
    profiled(Config::from_document(&document(file)?)?, profile)
}

impl GenerateArgs {
    /// The config with this command's flags laid over it.
    ///
    /// # Errors
    /// The file or a flag is wrong.
    pub fn load_config(&self) -> Result<Config, ConfigError> {
        let mut document = document(self.config.as_ref())?;
        if let Some(k) = self.k {
            let policy = if k == 0 { "off".to_owned() } else { format!("fixed:{k}") };
            document.lay_over("speculation.policy", "--k", Value::from(policy));
        }
        profiled(Config::from_document(&document)?.one(self.model.as_deref())?, self.profile)
    }
}

/// The config file, or an empty one.
pub(crate) fn document(file: Option<&PathBuf>) -> Result<Document, ConfigError> {
    file.map_or_else(|| Ok(Document::empty()), |file| Document::read(file))
}

/// The config, with `--profile` if it was given.
fn profiled(mut config: Config, profile: bool) -> Result<Config, ConfigError> {
    if profile && !config.each().iter().any(|config| config.tuning.policy.traits().predicts) {
        let message = format!(
            "there is nothing to measure, for `speculation.policy` is `{}`: leave it out, or choose `budget` or `faser`",
            config.each()[0].tuning.policy
        );
        return Err(ConfigError { place: Some("--profile".to_owned()), message });
    }
    config.pairs.iter_mut().for_each(|pair| pair.profile = profile);
    Ok(Config { profile, ..config })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split_whitespace())
    }

    #[test]
    fn the_definition_holds_together_and_help_has_examples() {
        let mut command = Cli::command();
        command.clone().debug_assert();
        assert!(command.render_help().to_string().contains("faser serve -c configs/laptop.yaml"));
    }

    #[test]
    fn flags_are_laid_over_the_config_and_named_in_errors() {
        let Command::Serve(args) =
            parse("faser serve --listen 127.0.0.1:9 --policy fixed:2").unwrap().command
        else {
            panic!("another command");
        };
        let config = args.config_of(&args.document().unwrap()).unwrap();
        assert_eq!(config.server.listen.port(), 9);
        assert_eq!(config.tuning.policy.to_string(), "fixed:2");
        let Command::Serve(args) = parse("faser serve --policy fixed:99").unwrap().command else {
            panic!("another command");
        };
        assert_eq!(
            args.config_of(&args.document().unwrap()).unwrap_err().to_string(),
            format!(
                "--policy: `speculation.policy` must be {}, but it is the string \"fixed:99\"",
                Policy::FORMS
            )
        );
    }

    #[test]
    fn profile_measures_for_policies_that_need_it_and_is_refused_for_others() {
        let config = |line: &str| match parse(line).unwrap().command {
            Command::Serve(args) => args.config_of(&args.document().unwrap()),
            Command::Check(args) => super::config(args.config.as_ref(), args.profile),
            Command::Generate(args) => args.load_config(),
            other => panic!("{other:?}"),
        };
        assert!(config("faser serve --policy budget --profile").unwrap().profile);
        assert!(!config("faser serve --policy budget").unwrap().profile);
        for line in ["faser serve --policy off --profile", "faser generate --k 2 --profile x"] {
            let refusal = config(line).unwrap_err().to_string();
            assert!(refusal.starts_with("--profile: there is nothing to measure"), "{refusal}");
        }
    }

    #[test]
    fn impossible_command_lines_are_refused() {
        for line in [
            "faser",
            "faser generate",
            "faser generate --k 17 x",
            "faser generate --prompts a.json b",
            "faser serve x",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
