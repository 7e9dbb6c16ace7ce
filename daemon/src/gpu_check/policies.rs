//! Policies against each other on a GPU, through the service: throughput and latency.

use std::path::Path;

use faser_actors::gpu_check::{CheckResult, Report, Setting};

use crate::compare::{CompareArgs, comparison};
use crate::config::raw::Document;

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
    let partitions = setting.size("16, 32, 64", "16");
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
        max_tokens: setting.size(128, 4),
        prompt_tokens: Some(setting.size(64, 5)),
        prompts: None,
        seed: 1,
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
