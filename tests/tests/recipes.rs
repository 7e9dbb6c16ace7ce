//! The recipes in configs/recipes: each is planned for the machine that it names, with the shapes of its models from a hub on loopback.

use faser_tests::planned::{hub_of_shapes, planned};
use faser_tests::rules::{files, read, root};

/// GGUF files, which have their shapes within, and models that have the same.
const STANDING_IN: [(&str, &str); 2] = [
    ("hf://Qwen/Qwen3-4B-GGUF:Q4_K_M", "hf://Qwen/Qwen3-4B"),
    ("hf://Qwen/Qwen3-0.6B-GGUF:Q8_0", "hf://Qwen/Qwen3-0.6B"),
];

#[test]
fn every_recipe_fits_the_machine_that_it_names() {
    let hub = hub_of_shapes();
    let recipes = files(&root(), "configs/recipes", "yaml").expect("recipes can be listed");
    let recipes: Vec<String> = recipes.into_iter().filter(|path| !path.contains("/machines/")).collect();
    assert!(recipes.len() >= 6, "{recipes:?}");
    for path in recipes {
        let text = read(&path);
        let machine =
            text.split("# Machine: ").nth(1).and_then(|rest| rest.split(". ").next()).expect("a machine");
        let mut config = format!("{text}\ntopology: {}\n", root().join(machine).display());
        for (file, shape) in STANDING_IN {
            config = config.replace(file, shape);
        }
        let report = planned(&hub, &config, &path);
        let sequences = &report["plan"]["replicas"][0]["sequences"];
        let promise = format!("Planned: KV for {sequences} x {} tokens", report["max_context"]);
        assert!(text.contains(&promise), "{path} should say {promise:?}");
    }
}
