//! `faser gpu-check`: what only a real GPU can show, each check in a process of its own, with a deadline.

mod child;
mod policies;
mod table;
mod told;

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use clap::Args;
use faser_bench::BenchError;
use serde_json::Value;

use crate::error::DaemonError;
use crate::output;
pub use child::child;
use table::{CHECKS, Entry};
use told::{Outcome, Told};

/// `faser gpu-check`.
#[derive(Args, Debug)]
#[command(after_help = "\
Each check is a process of its own: one that fails, hangs or loses the GPU is a line of the table, and the others go on.
Needs NVIDIA's driver, NVRTC and cublasLt, as serving does. The table goes to standard output; the status is 1 if a check failed.

Examples:
  faser gpu-check --json gpu.json
  faser gpu-check --only ops,split,astray --device 1")]
pub struct GpuCheckArgs {
    /// Checks to run, in the order of the table; without it, all.
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    pub only: Vec<String>,
    /// The GPU's number at the driver.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub device: usize,
    /// Shapes for a GPU that is emulated: nothing is timed in earnest.
    #[arg(long)]
    pub small: bool,
    /// Write all figures as JSON too, anew after each check.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Run this check alone, in this process, and tell its figures as lines of JSON.
    #[arg(long, value_name = "NAME", hide = true)]
    pub child: Option<String>,
}

/// Runs the checks. True if none failed.
///
/// # Errors
/// There is no check of a name, or the table or the file cannot be written.
pub fn gpu_check(args: &GpuCheckArgs) -> Result<bool, DaemonError> {
    let chosen = chosen(&args.only)?;
    output::line(&told::head())?;
    let mut all = Vec::with_capacity(chosen.len());
    for (number, entry) in chosen.iter().enumerate() {
        let place = format!("{}/{}", number + 1, chosen.len());
        eprintln!("gpu-check {place} {}: {} (at most {} s)", entry.name, entry.about, entry.limit_s);
        let told = run(entry, args)?;
        eprintln!("gpu-check {place} {}: {} after {:.1} s", entry.name, told.outcome.words(), told.seconds);
        output::piece(&told.rows(entry))?;
        all.push((*entry, told));
        if let Some(file) = &args.json {
            let json = told::json(args, &all);
            let written = std::fs::write(file, format!("{json:#}\n"));
            written.map_err(|source| DaemonError::Write { path: file.clone(), source })?;
        }
    }
    let count = |outcome| all.iter().filter(|(_, told)| told.outcome == outcome).count();
    let (failed, none) = (count(Outcome::Failed), count(Outcome::NoMeaning));
    output::line(&format!("{} checks: {failed} failed, {none} without meaning here", all.len()))?;
    Ok(failed == 0)
}

/// The checks of these names, in the order of the table; all, if there are no names.
fn chosen(names: &[String]) -> Result<Vec<&'static Entry>, DaemonError> {
    if let Some(unknown) = names.iter().find(|name| CHECKS.iter().all(|entry| entry.name != **name)) {
        let known: Vec<&str> = CHECKS.iter().map(|entry| entry.name).collect();
        return Err(
            BenchError::Spec(format!("--only: there is no check `{unknown}`: {}", known.join(", "))).into()
        );
    }
    let wanted = |entry: &&Entry| names.is_empty() || names.iter().any(|name| name == entry.name);
    Ok(CHECKS.iter().filter(wanted).collect())
}

/// Runs a check in a process of its own.
fn run(entry: &Entry, args: &GpuCheckArgs) -> Result<Told, DaemonError> {
    let program = std::env::current_exe();
    let program = program.map_err(|source| DaemonError::System { what: "find this program", source })?;
    let mut command = Command::new(program);
    command.args(["gpu-check", "--child", entry.name, "--device", &args.device.to_string()]);
    if args.small {
        command.arg("--small");
    }
    if entry.name == "nccl" {
        // Where there is one GPU both ranks are on it.
        command.env("NCCL_MULTI_RANK_GPU_ENABLE", "1");
    }
    listen(command, Duration::from_secs(entry.limit_s))
        .map_err(|source| DaemonError::System { what: "run a check in a process of its own", source })
}

/// Starts a process, takes the figures that it tells, and ends it when its time is over.
fn listen(mut command: Command, limit: Duration) -> std::io::Result<Told> {
    let started = Instant::now();
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let (lines, told) = channel();
    let reader = child.stdout.take().map(|out| std::thread::spawn(move || read(out, &lines)));
    let (mut figures, mut end) = (Vec::new(), None);
    let in_time = loop {
        match told.recv_timeout((started + limit).saturating_duration_since(Instant::now())) {
            Ok(line) if line.get("end").is_some() => end = Some(line),
            Ok(line) => figures.push(line),
            Err(RecvTimeoutError::Disconnected) => break true,
            Err(RecvTimeoutError::Timeout) => break false,
        }
    };
    let status = finish(&mut child, in_time)?;
    if let Some(reader) = reader.filter(|_| in_time) {
        let _ = reader.join();
    }
    let error = match (&end, in_time) {
        (_, false) => Some(format!("it did not end within {} s", limit.as_secs_f32())),
        (Some(end), true) => end["end"].as_str().map(ToOwned::to_owned),
        (None, true) => Some(format!("its process ended: {status}")),
    };
    Ok(Told::new(figures, error, started.elapsed().as_secs_f64()))
}

fn read(out: impl std::io::Read, lines: &Sender<Value>) {
    for line in BufReader::new(out).lines().map_while(Result::ok) {
        // Whatever a library writes is not ours.
        let Ok(json @ Value::Object(_)) = serde_json::from_str(&line) else { continue };
        if lines.send(json).is_err() {
            return;
        }
    }
}

/// The end of the process, which is forced if it had not ended in time.
fn finish(child: &mut Child, in_time: bool) -> std::io::Result<std::process::ExitStatus> {
    if !in_time {
        child.kill()?;
    }
    child.wait()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_choose_in_the_order_of_the_table_and_unknown_ones_are_refused() {
        let names = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(ToString::to_string).collect();
            chosen(&names).map(|chosen| chosen.iter().map(|entry| entry.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&["split", "ops"]).unwrap(), ["ops", "split"]);
        assert_eq!(names(&[]).unwrap().len(), CHECKS.len());
        let refusal = names(&["ops", "speed"]).unwrap_err().to_string();
        assert!(refusal.contains("`speed`") && refusal.contains("astray"), "{refusal}");
    }

    /// What a shell script tells as a check.
    fn told(script: &str, limit_s: u64) -> String {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]);
        let entry = &CHECKS[0];
        listen(shell, Duration::from_secs(limit_s)).expect("a shell").rows(entry)
    }

    #[test]
    fn a_check_that_hangs_or_crashes_is_a_failure_with_what_it_told_before() {
        const FIGURE: &str =
            "echo '{\"what\": \"a figure\", \"verdict\": \"right\", \"judged\": \"right\"}'; echo noise";
        let well = told(&format!("{FIGURE}; echo '{{\"end\": null}}'"), 60);
        assert!(well.contains("a figure") && well.contains("passed") && !well.contains("noise"), "{well}");
        for (end, words) in [
            ("exec sleep 1000", "it did not end within 5 s"),
            ("kill -9 $$", "signal: 9"),
            ("echo '{\"end\": \"no GPU\"}'", "no GPU"),
        ] {
            let rows = told(&format!("{FIGURE}; {end}"), if end.contains("sleep") { 5 } else { 60 });
            assert!(rows.contains("a figure") && rows.contains(words) && rows.contains("FAILED"), "{rows}");
        }
    }
}
