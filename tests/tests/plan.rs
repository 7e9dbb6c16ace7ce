//! `faser plan`: the pictures in docs/plans.md are what it prints, for every machine in configs/plans.

use std::process::{Command, Output};

use faser_tests::{
    Config, faser,
    rules::{files, root},
};
use serde_json::Value;

fn plan(arguments: &[&str]) -> Output {
    let mut command = Command::new(faser());
    command.arg("plan").args(arguments).current_dir(root());
    command.output().expect("the binary can be started")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

/// The fenced blocks of a document that begin with a command, and what follows it.
fn pictures(document: &str) -> Vec<(String, String)> {
    let blocks = document.split("```").skip(1).step_by(2);
    let commands =
        blocks.filter_map(|block| block.trim_start_matches("text").trim_start().strip_prefix("$ "));
    commands
        .filter_map(|block| block.split_once('\n'))
        .map(|(command, text)| (command.into(), text.into()))
        .collect()
}

#[test]
fn the_pictures_in_the_documents_are_what_is_printed() {
    let document = std::fs::read_to_string(root().join("docs/plans.md")).expect("docs/plans.md is there");
    let pictures = pictures(&document);
    let mut shown: Vec<String> = Vec::new();
    for (command, picture) in &pictures {
        let config = command.strip_prefix("faser plan -c ").unwrap_or_else(|| panic!("{command}"));
        let output = plan(&["-c", config]);
        assert_eq!(stdout(&output), *picture, "{command}: {}", String::from_utf8_lossy(&output.stderr));
        let refused = picture.contains("\nno plan  ");
        assert_eq!(output.status.code(), Some(i32::from(refused)), "{command}");
        shown.push(config.to_owned());
    }
    shown.sort();
    assert_eq!(shown, files(&root(), "configs/plans", "yaml").expect("configs can be listed"));
}

#[test]
fn json_has_the_whole_plan_or_the_refusal() {
    let output = plan(&["-c", "configs/plans/h100x8.yaml", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(output.status.success() && report["refusal"].is_null());
    assert_eq!(report["topology"]["links"].as_array().expect("links").len(), 28);
    let replica = &report["plan"]["replicas"][1];
    assert_eq!(replica["ranks"][3]["device"], "cuda:7");
    assert_eq!(replica["ranks"][3]["target"]["share"]["heads"]["end"], 64);
    assert_eq!(replica["slowest_link"]["kind"], "nvlink");
    let device = &report["plan"]["devices"][0];
    let bytes = |key: &str| device[key].as_u64().unwrap_or_else(|| panic!("{key}"));
    let parts = ["target_weight_bytes", "draft_weight_bytes", "kv_bytes", "workspace_bytes"];
    assert!(parts.map(bytes).iter().sum::<u64>() <= bytes("budget_bytes"));

    let output = plan(&["-c", "configs/plans/two-24gb.yaml", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((output.status.code(), &report["plan"]), (Some(1), &Value::Null));
    assert_eq!(report["refusal"]["would_fit"][0], "device.tensor_parallel: 2");
    // Who looks at the exit status alone finds the reason beside it.
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.starts_with("error: weights and workspaces need "), "{said}");
}

#[test]
fn this_machine_has_a_plan_for_the_demo_pair() {
    let output = plan(&[]);
    let text = stdout(&output);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("as it was found") && text.trim_end().ends_with("\nok"), "{text}");
}

#[test]
fn a_machine_may_be_described_in_a_file_of_its_own() {
    let machine = Config::new("host: {cores: 2, memory: 1GiB}\ngpus: [{name: one, sms: 20, memory: 4GiB}]\n");
    let config = Config::new(&format!(
        "model: {{synthetic: {{preset: tiny}}}}\ntopology: {}\n",
        machine.path().display()
    ));
    let output = plan(&["-c", config.path().to_str().expect("a path in UTF-8")]);
    let text = stdout(&output);
    assert!(text.contains("cuda:0   one  20 SMs, 4GiB") && text.contains("20 + 20 SMs in turns"), "{text}");
}
