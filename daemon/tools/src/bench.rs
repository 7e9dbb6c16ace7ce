//! `faser bench`: measures a running server and prints the table.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use faser_bench::{BenchSpec, KMax, MaxTokens, Progress, Prompts};
use faser_terminal::{println, writable, write_json};
use faser_topology::CpuDevice;

use crate::target_args::TargetArgs;

/// `faser bench`.
#[derive(Args, Debug)]
#[command(after_help = "\
Every concurrency with every k, interleaved, so that ratios come from one session of the machine. The table goes to standard output.
A server that wants an API key gets the one in the environment variable OPENAI_API_KEY.

Examples:
  faser bench --concurrency 1,4,16 --k 0,4 --repeats 3
  faser bench --url http://127.0.0.1:8001 --prompts my.json --json run.json")]
pub struct BenchArgs {
    /// Where the server listens; `/v1` behind it may be left out.
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
    /// Tokens asked for per request; 32..96 gives each a number of its own between two, the same in every run.
    #[arg(long, value_name = "N", default_value_t = MaxTokens::exactly(64))]
    pub max_tokens: MaxTokens,
    /// 0 takes the likeliest token always.
    #[arg(long, value_name = "T", default_value_t = 0.0, allow_negative_numbers = true)]
    pub temperature: f32,
    /// Runs of each combination; the table shows medians.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub repeats: usize,
    /// Prompts from a JSON file: a list of strings, token ids, or objects with a `prompt`. Without it, openings of Rust documentation.
    #[arg(long, value_name = "FILE")]
    pub prompts: Option<PathBuf>,
    /// Latency targets; the server is not told of them.
    #[command(flatten)]
    pub targets: TargetArgs,
    /// Write every run as JSON too.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// What the report says of the machine; without it, this one's processor.
    #[arg(long, value_name = "TEXT")]
    pub machine: Option<String>,
}

/// Runs the benchmark. Needs a running actix System.
///
/// # Errors
/// The server does not answer, the prompts cannot be read, or the report cannot be written.
pub async fn bench(args: &BenchArgs) -> Result<()> {
    writable(&args.json)?;
    let machine = match &args.machine {
        Some(machine) => machine.clone(),
        None => this_machine()?,
    };
    let spec = BenchSpec {
        model: args.model.clone(),
        concurrency: args.concurrency.clone(),
        k: args.k.clone(),
        requests: args.requests,
        max_tokens: args.max_tokens,
        temperature: args.temperature,
        repeats: args.repeats,
        prompts: args.prompts.clone().map_or(Prompts::BuiltIn, Prompts::File),
        targets: args.targets.targets()?,
        machine,
        api_key: std::env::var("OPENAI_API_KEY").ok().filter(|key| !key.is_empty()),
        ..BenchSpec::new(&args.url)
    };
    let report = faser_bench::run(&spec, &mut |progress| show(&progress)).await?;
    println(&report.to_string())?;
    if let Some(file) = &args.json {
        write_json(file, &report)?;
    }
    Ok(())
}

fn show(progress: &Progress<'_>) {
    match progress {
        Progress::WarmUp { prompts } => eprintln!("warming up with {prompts} prompts"),
        Progress::RunStarted { index, of, concurrency, k } => {
            eprintln!("run {} of {of}: concurrency {concurrency}, k {k}", index + 1);
        }
        Progress::RequestDone { .. } => {}
        Progress::RunFinished(run) => {
            eprintln!("  {:.1} tokens/s, {} of {} failed", run.output_tokens_per_s, run.failed, run.requests);
        }
    }
}

fn this_machine() -> Result<String> {
    let device = CpuDevice::discover()?;
    Ok(format!("{}, {} cores", device.name, device.cores.len()))
}
