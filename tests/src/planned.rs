//! `faser plan` of configs whose models are told by their shapes alone, from a hub on loopback.

use std::process::Command;

use serde_json::{Map, Value};

use crate::hub::{Hub, Repository};
use crate::rules::read;
use crate::{Config, faser};

/// A hub that has the shapes of the models in tests/recipes/shapes.json.
///
/// # Panics
/// The file is none.
pub fn hub_of_shapes() -> Hub {
    let shapes: Map<String, Value> = serde_json::from_str(&read("tests/recipes/shapes.json")).expect("JSON");
    let hub = Hub::new();
    for (name, shape) in shapes.iter().filter(|(_, shape)| shape.is_object()) {
        hub.add(name, Repository::new([("config.json".to_owned(), shape.to_string().into_bytes())]));
    }
    hub
}

/// What `faser plan` says of a config; `what` is for the words of a failure.
///
/// # Panics
/// It is refused, or does not fit.
pub fn planned(hub: &Hub, config: &str, what: &str) -> Value {
    let config = Config::new(config);
    let mut command = Command::new(faser());
    command.args(["plan", "--json", "-c"]).arg(config.path()).env("HF_ENDPOINT", hub.endpoint());
    command
        .env("HF_HOME", config.folder().join("hf"))
        .env_remove("HF_HUB_CACHE")
        .env_remove("HF_HUB_OFFLINE");
    // As LeaderWorkerSet starts the first of two nodes, for configs that ask.
    command.envs([("LWS_LEADER_ADDRESS", "127.0.0.1"), ("LWS_GROUP_SIZE", "2"), ("LWS_WORKER_INDEX", "0")]);
    let output = command.output().expect("the binary can be started");
    let said = String::from_utf8_lossy(&output.stderr);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{what}: {said}"));
    assert!(output.status.success(), "{what}: {}", report["refusal"]);
    report
}
