//! `faser compare` on a tiny pair: tables, JSON, and the same tokens under every policy.

use std::process::{Command, Output};

use faser_tests::{Config, faser};
use serde_json::Value;

const YAML: &str = "\
model:
  synthetic: {preset: tiny, layers: 2, hidden: 64, intermediate: 64, heads: 2, kv_heads: 1, vocab: 512, max_context: 128}
scheduler: {max_running: 8, max_pass_rows: 32}
speculation: {cost_cache: none}
";

fn compare(config: &Config, flags: &[&str]) -> Output {
    let command = ["compare", "-c"].map(Into::into).into_iter().chain([config.path().into_os_string()]);
    Command::new(faser()).args(command).args(flags).output().expect("the binary can be started")
}

#[test]
fn policies_take_turns_and_every_figure_is_there() {
    let config = Config::new(YAML);
    let json = config.folder().join("comparison.json");
    let file = json.to_str().expect("a path in UTF-8");
    let policies = ["off", "fixed:3", "+prune", "off"];
    let mut flags: Vec<&str> = policies.iter().flat_map(|policy| ["--policy", policy]).collect();
    flags.extend(["--streams", "1,3", "--bursts", "30", "--burst-seconds", "1", "--repeats", "2"]);
    flags.extend(["--requests", "4", "--max-tokens", "12", "--prompt-tokens", "9", "--json", file]);
    let run = compare(&config, &flags);
    let (table, progress) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success(), "{table}{progress}");
    println!("{table}");
    for part in ["\n1 stream, 4 requests, 48 tokens", "\n3 streams, 6 requests, 72 tokens", "\nbursts of 30"]
    {
        assert!(table.contains(part), "no {part:?} in\n{table}");
    }
    assert!(table.contains("Every request got the same tokens in all runs."), "{table}");
    assert_eq!(progress.matches(" tokens/s").count(), 3 * 4 * 2, "{progress}");

    let report: Value =
        serde_json::from_str(&std::fs::read_to_string(json).expect("a report")).expect("JSON");
    assert_eq!(report["policies"], serde_json::json!(policies));
    let runs = report["runs"].as_array().expect("runs");
    let order: Vec<_> = runs.iter().map(|run| run["policy"].as_u64().expect("a policy")).collect();
    assert_eq!(order, [[0, 1, 2, 3].repeat(3), [3, 2, 1, 0].repeat(3)].concat());
    for run in runs {
        assert!(run["tokens_per_s"].as_f64().is_some_and(|rate| rate > 0.0), "{run}");
        assert!(run["passes"]["error_median"].as_f64().is_some(), "costs are known to all: {run}");
    }
    let requests = |repeat, policy| {
        let run = runs.iter().find(|run| {
            run["load"] == "bursts of 30 requests/s" && run["repeat"] == repeat && run["policy"] == policy
        });
        run.and_then(|run| run["requests"].as_u64()).expect("a run")
    };
    assert_eq!(requests(0, 0), requests(0, 1), "policies have the same trace");
    let cells = report["cells"].as_array().expect("cells");
    assert_eq!(cells.len(), 3 * policies.len());
    for cell in cells {
        let proposals = cell["passes"]["k_mean"].as_f64().expect("a mean");
        match cell["policy"].as_u64() {
            Some(0) => {
                assert_eq!(cell["throughput"]["greatest"], 1.0);
                assert!(proposals == 0.0 && cell["passes"]["acceptance"].is_null(), "{cell}");
            }
            Some(1) => assert!(proposals > 1.0 && proposals <= 3.0, "{cell}"),
            _ => {}
        }
    }
}

#[test]
fn what_does_not_fit_the_pair_is_refused_by_its_flag() {
    let config = Config::new(YAML);
    let run = compare(&config, &["--policy", "off", "--streams", "1", "--max-tokens", "100"]);
    let refusal = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.status.code(), Some(1), "{refusal}");
    assert!(refusal.contains("lower --max-tokens"), "{refusal}");
}
