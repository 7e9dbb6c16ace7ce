//! The recipes in configs/recipes: each is planned for the machine that it names, with the shapes of its models from a hub on loopback.

use std::process::Command;

use faser_tests::hub::{Hub, Repository};
use faser_tests::rules::{files, read, root};
use faser_tests::{Config, faser};
use serde_json::{Map, Value};

/// GGUF files, which have their shapes within, and models that have the same.
const STANDING_IN: [(&str, &str); 2] = [
    ("hf://Qwen/Qwen3-4B-GGUF:Q4_K_M", "hf://Qwen/Qwen3-4B"),
    ("hf://Qwen/Qwen3-0.6B-GGUF:Q8_0", "hf://Qwen/Qwen3-0.6B"),
];

fn hub() -> Hub {
    let shapes: Map<String, Value> = serde_json::from_str(&read("tests/recipes/shapes.json")).expect("JSON");
    let hub = Hub::new();
    for (name, shape) in shapes.iter().filter(|(_, shape)| shape.is_object()) {
        hub.add(name, Repository::new([("config.json".to_owned(), shape.to_string().into_bytes())]));
    }
    hub
}

#[test]
fn every_recipe_fits_the_machine_that_it_names() {
    let hub = hub();
    let recipes = files(&root(), "configs/recipes", "yaml").expect("recipes can be listed");
    let recipes: Vec<String> = recipes.into_iter().filter(|path| !path.contains("/machines/")).collect();
    assert!(recipes.len() >= 6, "{recipes:?}");
    for path in recipes {
        let text = read(&path);
        let machine =
            text.split("# Machine: ").nth(1).and_then(|rest| rest.split(". ").next()).expect("a machine");
        let mut planned = format!("{text}\ntopology: {}\n", root().join(machine).display());
        for (file, shape) in STANDING_IN {
            planned = planned.replace(file, shape);
        }
        let config = Config::new(&planned);
        let mut command = Command::new(faser());
        command.args(["plan", "--json", "-c"]).arg(config.path()).env("HF_ENDPOINT", hub.endpoint());
        command
            .env("HF_HOME", config.folder().join("hf"))
            .env_remove("HF_HUB_CACHE")
            .env_remove("HF_HUB_OFFLINE");
        let output = command.output().expect("the binary can be started");
        let said = String::from_utf8_lossy(&output.stderr);
        let report: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{path}: {said}"));
        assert!(output.status.success(), "{path}: {}", report["refusal"]);
        let sequences = &report["plan"]["replicas"][0]["sequences"];
        let planned = format!("Planned: KV for {sequences} x {} tokens", report["max_context"]);
        assert!(text.contains(&planned), "{path} should say {planned:?}");
    }
}
