//! The command line: what can be asked, and what `--help` teaches.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use faser_config::raw::{ConfigSource, Document};
use faser_config::{Config, ConfigError};
use faser_engine::Policy;
use faser_operators::ctl::CtlArgs;
use faser_operators::top::TopArgs;
use faser_tools::bench::BenchArgs;
use faser_tools::check::CheckArgs;
use faser_tools::compare::CompareArgs;
use faser_tools::generate::GenerateArgs;
#[cfg(feature = "gpu-check")]
use faser_tools::gpu_check::GpuCheckArgs;
use faser_tools::pair_args::PairArgs;
use faser_tools::prove::ProveArgs;
use faser_tools::pull::{ModelsArgs, PullArgs};
use faser_tools::sim::SimArgs;
use serde_json::Value;

const EXAMPLES: &str = "\
Examples:
  faser serve                                     the demo pair on http://127.0.0.1:8000
  faser serve Qwen/Qwen3-8B --draft Qwen/Qwen3-0.6B    models by their names, which are downloaded
  faser serve -c configs/laptop.yaml --listen 127.0.0.1:0
  faser ctl status                                what does the running daemon do?
  faser ctl ready --wait 300                      until it takes requests: a container's health check
  faser top                                       the same, live
  faser check -c my.yaml                          is this config right, and does it fit this machine?
  faser serve model.gguf                          a GGUF file, or a model's folder, without a config
  faser plan -c configs/plans/h100x8.yaml         which GPUs would hold what, and would it fit?
  faser generate \"Returns the number of\"          see which tokens the draft model got right
  faser bench --concurrency 1,4,16 --k 0,4        what speculation brings on this machine
  faser compare --policy off --policy budget      what policies bring against each other
  faser prove                                     the same bytes, however a pair is run
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
    /// Prove that texts depend on nothing but prompt, parameters and seed: one hash in every way to run a pair, a killed daemon included.
    Prove(ProveArgs),
    /// Compare policies in the simulator: the real engine on a model of a device.
    Sim(Box<SimArgs>),
    /// Download models by their names, without loading them.
    Pull(PullArgs),
    /// List the models that are downloaded.
    Models(ModelsArgs),
    /// Ask a running daemon something, or change how it works, by its admin socket.
    Ctl(CtlArgs),
    /// Watch a running daemon in this terminal: throughput, lanes, queue, KV, acceptance, requests.
    Top(TopArgs),
    /// Check a GPU: kernels against the CPU, splits of its SMs, and how fast it is.
    #[cfg(feature = "gpu-check")]
    GpuCheck(GpuCheckArgs),
    /// Print completions for a shell.
    Completions(CompletionsArgs),
    /// Write man pages of faser and its commands into a folder.
    Man(ManArgs),
}

/// `faser serve`.
#[derive(Args, Debug)]
#[command(after_help = "\
Without -c and MODEL the demo pair is served. configs/laptop.yaml has every key with its default.
ORG/NAME, ORG/NAME@REVISION and ORG/NAME:Q4_K_M are downloaded from the hub, as `faser pull` does it, unless there is such a path, or a folder ORG.

Examples:
  faser serve
  faser serve Qwen/Qwen3-8B --draft Qwen/Qwen3-0.6B
  faser serve model.gguf --draft small.gguf       a pair without a config file
  faser serve --policy off                        plain decoding, to compare
  faser serve -c my.yaml --listen 0.0.0.0:8000    reachable from other machines; needs API keys")]
pub struct ServeArgs {
    /// Config file (YAML).
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Models in its place.
    #[command(flatten)]
    pub pair: PairArgs,
    /// Address and port instead of server.listen; port 0 takes a free one.
    #[arg(long, value_name = "ADDR:PORT")]
    pub listen: Option<String>,
    /// How speculative lengths are chosen, instead of speculation.policy.
    #[arg(long, long_help = format!("How speculative lengths are chosen, instead of speculation.policy: {}", Policy::FORMS))]
    pub policy: Option<String>,
    /// Share of a GPU's memory for weights, KV and buffers together, 0.05 to 1, instead of device.gpu_memory_utilization.
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub gpu_memory_utilization: Option<f64>,
    /// Measure what passes cost anew, also if an earlier start has cached it; for policies that need to know it.
    #[arg(long)]
    pub profile: bool,
}

/// A number; the config says which are right. Infinity and what is no number would be null there.
fn share(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|share: &f64| share.is_finite()).ok_or_else(|| "it is no number".to_owned())
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
  faser plan model.gguf
  faser plan Qwen/Qwen3-8B                        of a model on the hub config.json alone is downloaded
  faser plan -c my.yaml --json | jq '.plan.devices'")]
pub struct PlanArgs {
    /// Config file (YAML); without it the demo pair is planned for.
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Models in its place.
    #[command(flatten)]
    pub pair: PairArgs,
    /// Print one JSON object: topology, models, plan or refusal.
    #[arg(long)]
    pub json: bool,
}

/// `faser completions`.
#[derive(Args, Debug)]
#[command(after_help = "\
Debian's package has them where bash, zsh and fish look.

Examples:
  source <(faser completions bash)
  faser completions zsh > ~/.zfunc/_faser
  faser completions fish > ~/.config/fish/completions/faser.fish")]
pub struct CompletionsArgs {
    /// The shell.
    pub shell: Shell,
}

/// `faser man`.
#[derive(Args, Debug)]
#[command(after_help = "\
A page for faser, and one for each of its commands. Files of the same names are replaced.

Examples:
  faser man /usr/local/share/man/man1
  faser man . && man ./faser-serve.1")]
pub struct ManArgs {
    /// Where the pages are put; it is made if it is not there.
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
}

impl ServeArgs {
    /// Where the config comes from: the file, and this command's flags.
    pub fn source(&self) -> ConfigSource {
        let flag = |key, flag, value: &Option<String>| Some((key, flag, Value::from(value.as_deref()?)));
        let listen = flag("server.listen", "--listen", &self.listen);
        let policy = flag("speculation.policy", "--policy", &self.policy);
        let share = self
            .gpu_memory_utilization
            .map(|share| ("device.gpu_memory_utilization", "--gpu-memory-utilization", Value::from(share)));
        ConfigSource {
            file: self.config.clone(),
            flags: self.pair.flags().into_iter().chain(listen).chain(policy).chain(share).collect(),
        }
    }

    /// The config that `document` is.
    ///
    /// # Errors
    /// A value in the file, or a flag, is wrong.
    pub fn config_of(&self, document: &Document) -> Result<Config, ConfigError> {
        Config::from_document(document)?.profiled(self.profile)
    }
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
            parse("faser serve --listen 127.0.0.1:9 --policy fixed:2 --gpu-memory-utilization 0.4")
                .unwrap()
                .command
        else {
            panic!("another command");
        };
        let config = args.config_of(&args.source().document().unwrap()).unwrap();
        assert_eq!(config.server.listen.port(), 9);
        assert_eq!(config.tuning.policy.to_string(), "fixed:2");
        assert_eq!(config.device.gpu_memory_utilization, 0.4);
        for wrong in ["nan", "inf", "much"] {
            assert!(parse(&format!("faser serve --gpu-memory-utilization {wrong}")).is_err(), "{wrong}");
        }
        let Command::Serve(args) = parse("faser serve --policy fixed:99").unwrap().command else {
            panic!("another command");
        };
        assert_eq!(
            args.config_of(&args.source().document().unwrap()).unwrap_err().to_string(),
            format!(
                "--policy: `speculation.policy` must be {}, but it is the string \"fixed:99\"",
                Policy::FORMS
            )
        );
    }

    #[test]
    fn profile_measures_for_policies_that_need_it_and_is_refused_for_others() {
        let config = |line: &str| match parse(line).unwrap().command {
            Command::Serve(args) => args.config_of(&args.source().document().unwrap()),
            Command::Check(args) => args.load_config(),
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
            "faser serve x -c y.yaml",
            "faser serve --draft x",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    /// The calls of faser in lines of a shell.
    fn calls(lines: &str) -> Vec<String> {
        let parts = lines.lines().flat_map(|line| line.split(" | ")).flat_map(|part| part.split(" && "));
        let call = |part: &str| {
            let part = part.trim().trim_start_matches("sudo ").trim_start_matches("source <(");
            let arguments = part.strip_prefix("cargo run --release -- ").or(part.strip_prefix("faser "));
            let end = |text: &str| text.find("  ").or(text.find(" > ")).unwrap_or(text.len());
            arguments.map(|arguments| format!("faser {}", &arguments[..end(arguments)]))
        };
        parts.filter_map(call).collect()
    }

    #[test]
    fn every_command_on_a_page_or_in_help_is_one() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let pages = std::fs::read_dir(root.join("docs")).unwrap().map(|page| page.unwrap().path());
        let pages = pages
            .chain([root.join("README.md")])
            .filter(|page| page.extension().is_some_and(|end| end == "md"));
        let blocks = pages.map(|page| {
            let text = std::fs::read_to_string(&page).unwrap();
            let blocks: Vec<String> = text.split("```").skip(1).step_by(2).map(str::to_owned).collect();
            (page.display().to_string(), blocks.join("\n"))
        });
        let mut command = Cli::command();
        command.build();
        let help = |command: &clap::Command| {
            let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            (format!("faser {} --help", command.get_name()), text)
        };
        let helps: Vec<_> = std::iter::once(&command).chain(command.get_subcommands()).map(help).collect();
        let mut count = 0;
        for (place, text) in blocks.chain(helps) {
            for call in calls(&text) {
                let words =
                    shlex::split(call.trim_end_matches(')')).unwrap_or_else(|| panic!("{place}: {call}"));
                count += 1;
                if let Err(error) = Cli::try_parse_from(&words) {
                    use clap::error::ErrorKind::{
                        DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion,
                    };
                    let shown = [DisplayHelp, DisplayVersion, DisplayHelpOnMissingArgumentOrSubcommand];
                    assert!(shown.contains(&error.kind()), "{place}: {call}\n{error}");
                }
            }
        }
        assert!(count > 40, "{count} commands");
    }
}
