//! Folders of drafts in the layouts of those who publish them, from outside: `faser check` says what each is, it proposes, and it changes no text.

use std::{fs, path::Path};

use faser_tests::{Config, rules::root};
use serde_json::{Value, json};

/// A config of this draft beside the target of the golden heads, which gets a tokenizer of words.
fn config(draft: &str) -> Config {
    let config = Config::new(&format!(
        "model: {{target: target, draft: \"{draft}\", dtype: f32}}\ndevice: {{kind: cpu}}\nspeculation: {{policy: fixed:3, lookup: false}}\n"
    ));
    let target = config.folder().join("target");
    copy(&root().join("models/tests/golden/heads/target"), &target);
    let vocab: serde_json::Map<String, Value> = (0..96).map(|id| (format!("t{id}"), id.into())).collect();
    let tokenizer = json!({
        "version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "t0"},
    });
    fs::write(target.join("tokenizer.json"), tokenizer.to_string()).expect("a tokenizer can be written");
    config
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder can be made");
    for name in ["config.json", "model.safetensors"] {
        fs::copy(from.join(name), to.join(name)).expect("a golden file can be copied");
    }
}

/// Continuations of some prompts at a fixed length, 0 for none.
fn generate(config: &Config, k: &str) -> Value {
    let prompts = config.folder().join("prompts.json");
    fs::write(&prompts, json!(["t5 t9 t33 t12 t7", "t90 t1", "t40"]).to_string())
        .expect("a file can be written");
    let file = prompts.to_str().expect("a path of UTF-8");
    let arguments = ["generate", "--json", "--max-tokens", "60", "--k", k, "--prompts", file];
    let output = config.command(&arguments).output().expect("the binary can be started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON on stdout")
}

fn tokens(runs: &Value) -> Vec<&Value> {
    runs["runs"].as_array().expect("runs").iter().map(|run| &run["tokens"]).collect()
}

fn proposed(runs: &Value) -> u64 {
    runs["runs"].as_array().expect("runs").iter().filter_map(|run| run["proposed"].as_u64()).sum()
}

/// The draft is what `says` says, proposes, and changes no text.
fn serves(config: &Config, name: &str, says: &str) {
    let check = config.command(&["check"]).output().expect("the binary can be started");
    let said = String::from_utf8_lossy(&check.stdout) + String::from_utf8_lossy(&check.stderr);
    assert!(check.status.success() && said.contains(says), "{name}: {said}");
    let (drafted, plain) = (generate(config, "3"), generate(config, "0"));
    assert_eq!(tokens(&drafted), tokens(&plain), "{name} changed a text");
    assert!(proposed(&drafted) > 30 && proposed(&plain) == 0, "{name}: {drafted}");
}

#[test]
fn heads_of_every_layout_are_told_apart_and_served() {
    let heads = root().join("models/tests/golden/heads");
    let eagle = "target's hidden states (EAGLE-3), ";
    let kinds = [
        ("eagle3-original", "(the usual ones: its files do not say which"),
        ("eagle3-own-embedding", eagle),
        ("eagle3-1", eagle),
        ("eagle3-wider-target", eagle),
        ("eagle3-speculators", "(EAGLE-3, in the layout of speculators)"),
        ("p-eagle", "(P-EAGLE, in the layout of speculators)"),
        ("dflash", "(DFlash, in the layout of z-lab)"),
        ("dflash-causal", "(DFlash, in the layout of z-lab)"),
        ("dflash-speculators", "(DFlash, in the layout of speculators)"),
        ("dspark-vanilla", "(DSpark, in the layout of DeepSpec)"),
        ("dspark-gated", "(DSpark, in the layout of DeepSpec)"),
        ("dspark-rnn", "(DSpark, in the layout of DeepSpec)"),
    ];
    let folders = fs::read_dir(&heads).expect("the golden heads can be listed").flatten();
    let others = folders.filter(|folder| folder.file_name() != "target");
    assert_eq!(others.count(), kinds.len(), "a head is not in this list");
    for (name, says) in kinds {
        serves(&config(&heads.join(name).display().to_string()), name, says);
    }
}

#[test]
fn a_model_with_a_mask_token_is_a_draft_of_one_pass() {
    let config = config("pard");
    let draft = config.folder().join("pard");
    copy(&root().join("models/tests/golden/heads/target"), &draft);
    // As in amd/PARD-*: an ordinary model, whose config names the first of its mask tokens.
    let path = draft.join("config.json");
    let text = fs::read_to_string(&path).expect("the golden config can be read");
    let mut keys: Value = serde_json::from_str(&text).expect("JSON");
    keys["pard_token"] = 90.into();
    fs::write(&path, keys.to_string()).expect("a config can be written");
    serves(&config, "PARD", "proposes all of a round in one pass (PARD), by mask token 90");
}
