//! `faser gpu-check`: what only a real GPU can show, each check in a process of its own, with a deadline.

use std::fmt::Write;
use std::io::{BufRead, BufReader};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use faser_bench::{BenchError, MaxTokens};
use faser_config::raw::Document;
use faser_gpu_check as checks;
use faser_gpu_check::{Bound, Check, CheckResult, Figure, Report, Setting, Verdict};
use faser_terminal::{SystemError, print, println, writable, write_json};
use serde_json::{Value, json};

use crate::compare::{CompareArgs, comparison};
use crate::target_args::TargetArgs;

/// `faser gpu-check`.
#[derive(Args, Debug)]
#[command(after_help = "\
Each check is a process of its own: one that fails, hangs or loses the GPU is a line of the table, and the others go on.
Needs NVIDIA's driver, cublasLt, and NVRTC where kernels are not in the binary, as serving does. The table goes to standard output; the status is 1 if a check failed.

Examples:
  faser gpu-check --json gpu.json
  faser gpu-check --only ops,split,illegal-address --device 1")]
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
pub fn gpu_check(args: &GpuCheckArgs) -> Result<bool> {
    let chosen = chosen(&args.only)?;
    writable(&args.json)?;
    println(&head())?;
    let mut all = Vec::with_capacity(chosen.len());
    for (number, entry) in chosen.iter().enumerate() {
        let place = format!("{}/{}", number + 1, chosen.len());
        eprintln!("gpu-check {place} {}: {} (at most {} s)", entry.name, entry.about, entry.limit_s);
        let report = run(entry, args)?;
        eprintln!(
            "gpu-check {place} {}: {} after {:.1} s",
            entry.name,
            report.outcome.words(),
            report.seconds
        );
        print(&report.rows(entry))?;
        all.push((*entry, report));
        if let Some(file) = &args.json {
            write_json(file, &json_of(args, &all))?;
        }
    }
    let count = |outcome| all.iter().filter(|(_, report)| report.outcome == outcome).count();
    let (failed, none) = (count(Outcome::Failed), count(Outcome::NoMeaning));
    println(&format!("{} checks: {failed} failed, {none} without meaning here", all.len()))?;
    Ok(failed == 0)
}

/// The checks of these names, in the order of the table; all, if there are no names.
fn chosen(names: &[String]) -> Result<Vec<&'static Entry>> {
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
fn run(entry: &Entry, args: &GpuCheckArgs) -> Result<CheckReport> {
    let program = std::env::current_exe();
    let program = program.map_err(|source| SystemError::Call { what: "find this program", source })?;
    let mut command = Command::new(program);
    command.args(["gpu-check", "--child", entry.name, "--device", &args.device.to_string()]);
    if args.small {
        command.arg("--small");
    }
    if entry.name == "nccl" {
        // Where there is one GPU both ranks are on it.
        command.env("NCCL_MULTI_RANK_GPU_ENABLE", "1");
    }
    let report = listen(command, Duration::from_secs(entry.limit_s));
    Ok(report.map_err(|source| SystemError::Call { what: "run a check in a process of its own", source })?)
}

/// Starts a process, takes the figures that it tells, and ends it when its time is over.
fn listen(mut command: Command, limit: Duration) -> std::io::Result<CheckReport> {
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
    Ok(CheckReport::new(figures, error, started.elapsed().as_secs_f64()))
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

const POLICIES: [&str; 4] = ["off", "fixed:2", "fixed:4", "faser"];
/// Weights of 1.1 billion parameters, of a seed; costs are measured, not taken from an earlier start.
const LARGE: &str = "model: {synthetic: {preset: 1.1b}, dtype: bf16}\nscheduler: {max_running: 64}\n";
const SMALL: &str = "model: {dtype: f32, synthetic: {preset: tiny, layers: 2, hidden: 32, intermediate: 32, heads: 2, kv_heads: 1, \
                     vocab: 256, max_context: 64}}\nkv: {memory: 1MiB}\nscheduler: {max_running: 3, max_pass_rows: 8}\n";

/// `off`, `fixed:2`, `fixed:4` and `faser` over a synthetic pair, one stream up to 64.
///
/// # Errors
/// The pair does not load, or a request fails.
pub(super) fn policies(setting: &Setting, report: &mut Report<'_>) -> CheckResult {
    let partitions = setting.size("16, 32, 64, all", "16, all");
    let yaml = format!(
        "{}device: {{kind: 'cuda:{}', partitions: [{partitions}]}}\nspeculation: {{cost_cache: none}}\n",
        setting.size(LARGE, SMALL),
        setting.ordinal
    );
    let args = CompareArgs {
        model: None,
        config: None,
        policies: POLICIES.iter().map(|policy| policy.parse()).collect::<Result<_, String>>()?,
        streams: setting.size(vec![1, 8, 64], vec![2]),
        bursts: Vec::new(),
        burst_seconds: 1,
        repeats: setting.size(3, 1),
        requests: setting.size(16, 2),
        max_tokens: MaxTokens::exactly(setting.size(128, 4)),
        prompt_tokens: Some(setting.size(64, 5)),
        prompts: None,
        seed: 1,
        targets: TargetArgs::default(),
        json: None,
        profile: false,
    };
    let config = args.config_of(&Document::parse(Path::new("gpu-check"), yaml)?)?;
    let system = actix_web::rt::System::new();
    let found = system.block_on(comparison(&args, &config))?;
    for cell in &found.cells {
        let name = |what: &str| format!("{}, {}: {what}", found.policies[cell.policy], cell.load);
        report.timed(name("tokens"), cell.tokens_per_s, "/s", None);
        report.timed(name("tokens, of those of off"), cell.throughput.median, "x", None);
        report.timed(name("mean latency"), cell.latency_mean_ms, "ms", None);
        report.timed(name("latency, 99 of 100"), cell.latency_p99_ms, "ms", None);
    }
    report.number("requests whose tokens differ from run to run", found.differing_texts as f64, "");
    Ok(())
}

/// A check.
pub(super) struct Entry {
    /// Its name on the command line.
    pub(super) name: &'static str,
    /// What it shows, in words.
    pub(super) about: &'static str,
    /// Seconds after which it is ended.
    pub(super) limit_s: u64,
    /// Itself.
    pub(super) check: Check,
}

/// All of them.
pub(super) const CHECKS: &[Entry] = &[
    entry("device", "what the driver says of the GPU", 50, checks::device),
    entry("compile", "every kernel compiles for it, without spills", 50, checks::compile),
    entry("ops", "every kernel gives what the CPU's op does", 110, checks::ops),
    entry("logits", "a model's logits are the CPU's", 70, checks::logits),
    entry("split", "launches stay on their half of a split, streams are in order", 40, checks::split),
    entry("graph", "graphs keep the SMs of their half, and do what launches do", 40, checks::graph),
    entry("flags", "flags set while a pass runs are seen by the next compact_pass", 40, checks::flags),
    entry(
        "illegal-address",
        "an illegal memory access ends the lane with the driver's words",
        30,
        checks::illegal_address,
    ),
    entry("tokens", "requests get the CPU's tokens from a service in f32", 70, checks::tokens),
    entry("lost", "a service is told of a GPU that is lost, and gives it up", 70, checks::lost),
    entry("nccl", "two ranks sum and gather, and one that is lost is noticed", 60, checks::nccl),
    entry("rates", "copies, reads and bf16 products on some of the SMs", 60, checks::rates),
    entry("products", "products on a split: right, without TF32, and how fast", 120, checks::products),
    entry("attention", "how fast attention reads keys and values", 60, checks::attention),
    entry(
        "passes",
        "verify passes of a 7B model and draft steps, against reading the weights",
        170,
        checks::passes,
    ),
    entry("overlap", "drafting and verifying in turns, and at once on splits", 160, checks::overlap),
    entry("models", "passes of known models, beside what was predicted of them", 240, checks::models),
    entry("policies", "policies against each other through the service", 560, policies),
];

const fn entry(name: &'static str, about: &'static str, limit_s: u64, check: Check) -> Entry {
    Entry { name, about, limit_s, check }
}

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Nothing is wrong, and something was found.
    Passed,
    /// A figure is wrong, or the check broke off.
    Failed,
    /// Nothing that it tells means anything on this device.
    NoMeaning,
}

impl Outcome {
    pub(super) fn words(self) -> &'static str {
        match self {
            Outcome::Passed => "passed",
            Outcome::Failed => "FAILED",
            Outcome::NoMeaning => Verdict::NoMeaning.words(),
        }
    }
}

/// All that a check has told.
#[derive(Debug)]
pub(super) struct CheckReport {
    pub(super) outcome: Outcome,
    pub(super) seconds: f64,
    error: Option<String>,
    figures: Vec<Value>,
}

impl CheckReport {
    pub(super) fn new(figures: Vec<Value>, error: Option<String>, seconds: f64) -> CheckReport {
        let any = |verdict: Verdict| figures.iter().any(|figure| figure["verdict"] == verdict.words());
        let outcome = if error.is_some() || any(Verdict::Wrong) || figures.is_empty() {
            Outcome::Failed
        } else if any(Verdict::Right) || any(Verdict::Measured) {
            Outcome::Passed
        } else {
            Outcome::NoMeaning
        };
        CheckReport { outcome, seconds, error, figures }
    }

    /// Its rows of the table.
    pub(super) fn rows(&self, entry: &Entry) -> String {
        let mut rows = String::new();
        let text = |figure: &Value, key: &str| figure[key].as_str().unwrap_or_default().to_owned();
        for figure in self.figures.iter().filter(|figure| figure["detail"] != true) {
            let [what, number, floor, verdict] =
                ["what", "figure", "floor", "judged"].map(|key| text(figure, key));
            rows += &row([entry.name, &what, &number, &floor, &verdict]);
        }
        let seconds = format!("{:.1} s", self.seconds);
        let limit = format!("<= {} s", entry.limit_s);
        let result = self.error.as_deref().unwrap_or(entry.about);
        rows + &row([entry.name, result, &seconds, &limit, self.outcome.words()])
    }
}

/// The head of the table.
pub(super) fn head() -> String {
    row(["check", "result", "figure", "floor or bound", "verdict"]).trim_end().to_owned()
        + "\n"
        + &"-".repeat(WIDTHS.iter().sum::<usize>() + 16)
}

const WIDTHS: [usize; 4] = [11, 72, 16, 16];

fn row(cells: [&str; 5]) -> String {
    let mut row = String::new();
    for (cell, width) in cells.iter().zip(WIDTHS) {
        write!(row, "{cell:width$} ").expect("memory");
    }
    row + cells[4] + "\n"
}

/// Everything, for a file.
fn json_of(args: &GpuCheckArgs, all: &[(&Entry, CheckReport)]) -> Value {
    let checks: Vec<Value> = all
        .iter()
        .map(|(entry, report)| {
            json!({
                "name": entry.name,
                "about": entry.about,
                "outcome": report.outcome.words(),
                "seconds": report.seconds,
                "error": report.error,
                "figures": report.figures,
            })
        })
        .collect();
    json!({"faser": env!("CARGO_PKG_VERSION"), "device": args.device, "small": args.small, "checks": checks})
}

/// Runs the check of that name.
pub fn child(name: &str, args: &GpuCheckArgs) {
    let tell = |line: &Value| {
        // Nobody reads: the one who asked has gone.
        let _ = println(&line.to_string());
    };
    let Some(entry) = CHECKS.iter().find(|entry| entry.name == name) else {
        return tell(&json!({"end": format!("there is no check `{name}`")}));
    };
    let setting = Setting { ordinal: args.device, small: args.small };
    let check = || {
        let mut figures = |figure: Figure| tell(&line(&figure));
        (entry.check)(&setting, &mut Report::new(setting.small, &mut figures))
    };
    // On a thread of its own: some checks start a system of actors, and this thread has one.
    let ended = std::thread::scope(|scope| {
        let check = scope.spawn(|| catch_unwind(AssertUnwindSafe(check)));
        check.join().and_then(|ended| ended)
    });
    let error = match ended {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(panic) => Some(format!("it panicked: {}", words_of(&*panic))),
    };
    tell(&json!({"end": error}));
}

fn words_of(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without words")
}

fn line(figure: &Figure) -> Value {
    let bound = figure.bound.map(|bound| match bound {
        Bound::AtMost(value) => json!({"at_most": value}),
        Bound::AtLeast(value) => json!({"at_least": value}),
        Bound::Floor(value) => json!({"floor": value}),
    });
    json!({
        "what": figure.what,
        "value": figure.value,
        "unit": figure.unit,
        "bound": bound,
        "verdict": figure.verdict.words(),
        "detail": figure.detail,
        // As they stand in the table.
        "figure": figure.number(),
        "of_floor": figure.of_floor(),
        "judged": figure.judged(),
        "floor": figure.bound.map(|bound| bound.to_string()),
    })
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
        assert!(refusal.contains("`speed`") && refusal.contains("illegal-address"), "{refusal}");
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

    #[test]
    fn names_are_apart() {
        let mut names: Vec<&str> = CHECKS.iter().map(|entry| entry.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CHECKS.len());
    }

    #[test]
    fn the_script_runs_every_check_once_in_pieces_of_less_than_ten_minutes() {
        let script = include_str!("../../../bench/gpu_checks.sh");
        let mut all = Vec::new();
        for piece in script.lines().filter_map(|line| line.split_once("only=")?.1.strip_suffix(" ;;")) {
            let of = |name: &str| CHECKS.iter().find(|entry| entry.name == name).expect(name).limit_s;
            let limit: u64 = piece.split(',').map(of).sum();
            assert!(limit < 580, "{piece}: {limit} s");
            all.extend(piece.split(','));
        }
        let known: Vec<&str> = CHECKS.iter().map(|entry| entry.name).collect();
        assert_eq!(all, known, "every check once, in the order of the table");
    }

    fn figure(verdict: Verdict) -> Value {
        json!({"what": "x", "verdict": verdict.words(), "judged": verdict.words(), "figure": "3 ms", "detail": false})
    }

    #[test]
    fn a_wrong_figure_or_an_error_fails_and_nothing_told_is_no_success() {
        let of = |figures: &[Verdict], error: Option<&str>| {
            CheckReport::new(figures.iter().map(|v| figure(*v)).collect(), error.map(ToOwned::to_owned), 1.0)
                .outcome
        };
        use Verdict::{Measured, NoMeaning, Right, Wrong};
        assert_eq!(of(&[Right, NoMeaning], None), Outcome::Passed);
        assert_eq!(of(&[Measured], None), Outcome::Passed);
        assert_eq!(of(&[Right, Wrong], None), Outcome::Failed);
        assert_eq!(of(&[Right], Some("lost")), Outcome::Failed);
        assert_eq!(of(&[NoMeaning], None), Outcome::NoMeaning);
        assert_eq!(of(&[], None), Outcome::Failed);
    }
}
