//! `faser bench`: measures a running server and prints the table.

use faser_bench::{BenchSpec, Progress, Prompts};
use faser_topology::CpuDevice;

use crate::cli::BenchArgs;
use crate::error::DaemonError;
use crate::output;

/// Runs the benchmark. Needs a running actix System.
///
/// # Errors
/// The server does not answer, the prompts cannot be read, or the report cannot be written.
pub async fn bench(args: &BenchArgs) -> Result<(), DaemonError> {
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
        machine,
        api_key: std::env::var("OPENAI_API_KEY").ok().filter(|key| !key.is_empty()),
        ..BenchSpec::new(&args.url)
    };
    let report = faser_bench::run(&spec, &mut |progress| show(&progress)).await?;
    output::line(&report.to_string())?;
    if let Some(file) = &args.json {
        let written =
            std::fs::File::create(file).and_then(|out| Ok(serde_json::to_writer_pretty(out, &report)?));
        written.map_err(|source| DaemonError::Write { path: file.clone(), source })?;
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

fn this_machine() -> Result<String, DaemonError> {
    let device = CpuDevice::discover()?;
    Ok(format!("{}, {} cores", device.name, device.cores.len()))
}
