//! `faser gpu-check` on a GPU that is none: what a fake can answer is right, what it cannot is not called so, and no check stops another.

mod fake_gpu;

use std::{fs, path::PathBuf, process::Command};

use faser_tests::faser;
use serde_json::Value;

/// What came of a run.
struct Ran {
    code: Option<i32>,
    table: String,
    json: Value,
}

impl Ran {
    fn check(&self, name: &str) -> &Value {
        let checks = self.json["checks"].as_array().expect("checks");
        checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("{name}: {}", self.table))
    }

    fn outcome(&self, name: &str) -> &str {
        self.check(name)["outcome"].as_str().expect("an outcome")
    }
}

/// The checks of these names, small; nothing, which is said past the harness, where the fake cannot be built.
fn run(test: &str, only: &str, variables: &[(&'static str, &str)]) -> Option<Ran> {
    let variables = fake_gpu::variables(test, variables)?;
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{}.json", std::process::id()));
    let mut command = Command::new(faser());
    command.args(["gpu-check", "--small", "--json"]).arg(&file);
    if !only.is_empty() {
        command.args(["--only", only]);
    }
    let output = command.envs(variables).output().expect("the binary can be started");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{out}\n{err}");
    let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{error}: {out}\n{err}"));
    fs::remove_file(&file).expect("it was ours");
    let json = serde_json::from_str(&text).expect("JSON");
    Some(Ran { code: output.status.code(), table: out.into_owned(), json })
}

/// Checks in which something can be right without a GPU, and those that only time.
const ANSWERED: [&str; 14] = [
    "device",
    "compile",
    "ops",
    "logits",
    "split",
    "graph",
    "flags",
    "illegal-address",
    "tokens",
    "lost",
    "rates",
    "products",
    "policies",
    "nccl",
];
const TIMED: [&str; 4] = ["attention", "passes", "overlap", "models"];

#[test]
fn a_fake_gpu_answers_what_it_can_and_times_have_no_meaning() {
    let name = "a_fake_gpu_answers_what_it_can_and_times_have_no_meaning";
    let Some(ran) = run(name, "", &[]) else { return };
    assert_eq!(ran.code, Some(0));
    let checks = ran.json["checks"].as_array().expect("checks");
    assert_eq!(checks.len(), ANSWERED.len() + TIMED.len(), "every check is named here");
    for (names, outcome) in [(&ANSWERED[..], "passed"), (&TIMED[..], "no meaning here")] {
        for name in names {
            assert_eq!(ran.outcome(name), outcome, "{name}");
        }
    }
    for check in checks {
        for figure in check["figures"].as_array().expect("figures") {
            assert_ne!(figure["verdict"], "WRONG", "{figure}");
            let unit = figure["unit"].as_str().expect("a unit");
            if ["s", "ms", "us", "GB/s", "TFLOP/s", "/s"].contains(&unit) {
                assert_eq!(figure["verdict"], "no meaning here", "{figure}");
            }
        }
    }
    // Where blocks run cannot be said, and that is said.
    let split = ran.check("split")["figures"].to_string();
    assert!(split.contains("cannot say where they run") && split.contains("no meaning here"), "{split}");
    assert!(ran.table.contains("18 checks: 0 failed, 4 without meaning here"), "{}", ran.table);
}

#[test]
fn a_check_that_loses_the_gpu_fails_and_the_next_one_goes_on() {
    let name = "a_check_that_loses_the_gpu_fails_and_the_next_one_goes_on";
    let lose = [("FASER_FAKE_LOSE", "activate_f32:1")];
    let Some(ran) = run(name, "ops,split", &lose) else { return };
    assert_eq!(ran.code, Some(1));
    assert_eq!((ran.outcome("ops"), ran.outcome("split")), ("FAILED", "passed"));
    let error = ran.check("ops")["error"].as_str().expect("an error").to_owned();
    assert!(error.contains("CUDA_ERROR_LAUNCH_FAILED"), "{error}");
    let figures = ran.check("ops")["figures"].to_string();
    assert!(
        figures.contains("embed is the cpus") && figures.contains("activations are the cpus: "),
        "{figures}"
    );
}
