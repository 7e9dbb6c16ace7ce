//! `faser bench` against a running daemon: the table, the JSON, and the same text at every speculative length.

use std::process::Command;

use faser_tests::{Config, Server, faser};
use serde_json::Value;

#[test]
fn bench_measures_a_running_daemon() {
    let server = Server::start("model:\n  synthetic: {preset: tiny}\nlog: {level: warn}\n");
    let output = Config::new("");
    let json = output.folder().join("report.json");
    let url = format!("http://{}", server.client().address);
    let run = Command::new(faser())
        .args(["bench", "--url", &url, "--concurrency", "1,4", "--k", "0,4", "--requests", "8"])
        .args(["--max-tokens", "24", "--repeats", "2", "--json"])
        .arg(&json)
        .output()
        .expect("the binary can be started");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let table = String::from_utf8(run.stdout).expect("a table in UTF-8");
    println!("{table}");
    assert!(
        table.contains("tokens/s") && table.contains("every request got the same text in all runs"),
        "{table}"
    );
    let report: Value =
        serde_json::from_str(&std::fs::read_to_string(json).expect("a report")).expect("JSON");
    let cells = report["cells"].as_array().expect("cells");
    let shape: Vec<_> = cells.iter().map(|cell| (cell["concurrency"].as_u64(), cell["k"].as_str())).collect();
    assert_eq!(
        shape,
        [(Some(1), Some("0")), (Some(1), Some("4")), (Some(4), Some("0")), (Some(4), Some("4"))]
    );
    assert_eq!(report["differing_texts"], 0);
    let runs = report["runs"].as_array().expect("runs");
    assert_eq!(runs.len(), 8);
    for run in runs {
        assert_eq!((&run["failed"], &run["output_tokens"]), (&0.into(), &(8 * 24).into()));
        assert!(run["output_tokens_per_s"].as_f64().is_some_and(|rate| rate > 0.0));
        assert!(run["ttft"]["median_ms"].as_f64().is_some_and(|time| time > 0.0));
    }
}

#[test]
fn bench_says_when_no_server_is_there() {
    let run = Command::new(faser())
        .args(["bench", "--url", "http://127.0.0.1:9"])
        .output()
        .expect("it can be started");
    let stderr = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("http://127.0.0.1:9") && stderr.contains("running"), "{stderr}");
}
