//! The pair that ships with faser: text, chat, and what its draft is worth.

use std::process::Command;

use faser_tests::{Config, Server, faser, rules::root};
use serde_json::{Value, json};

#[test]
fn the_default_config_completes_and_chats() {
    let server = Server::start("");
    let client = server.client();
    assert_eq!(client.get("/v1/models").json()["data"][0]["id"], "rustdoc");
    let body = json!({"prompt": "Returns the number of elements in the", "max_tokens": 48, "temperature": 0});
    let answer = client.post("/v1/completions", &body).json();
    let text = answer["choices"][0]["text"].as_str().expect("a text");
    let words: Vec<&str> =
        text.split(|c: char| !c.is_ascii_alphabetic()).filter(|word| !word.is_empty()).collect();
    assert!(words.len() >= 5, "{text:?} is hardly text");
    let messages = json!([{"role": "user", "content": "What is a slice?"}]);
    let asked = json!({"messages": messages, "max_tokens": 24, "temperature": 0.7, "seed": 1});
    let chat = client.post("/v1/chat/completions", &asked);
    assert_eq!(chat.status, 200, "{chat:?}");
    let chat = chat.json();
    assert_eq!(chat["object"], "chat.completion");
    assert_eq!(chat["choices"][0]["message"]["role"], "assistant");
    let mut streaming = asked.clone();
    streaming["stream"] = json!(true);
    let mut roles = Vec::new();
    let transcript = client.stream("/v1/chat/completions", &streaming).follow(|event| {
        roles.extend(event["choices"][0]["delta"]["role"].as_str().map(str::to_owned));
    });
    assert_eq!(roles, ["assistant"]);
    assert_eq!(transcript.text, chat["choices"][0]["message"]["content"]);
    let tokens = client.post("/tokenize", &json!({"messages": messages})).json();
    assert_eq!(tokens["count"], chat["usage"]["prompt_tokens"]);
}

/// What the held-out prompts bring at a fixed length, 0 for none, greedily.
fn generate(config: &[&str], tokens: &str, k: &str) -> Value {
    let output = Command::new(faser())
        .args(["generate", "--json", "--temperature", "0", "--max-tokens", tokens, "--k", k])
        .args(config)
        .arg("--prompts")
        .arg(root().join("models/rustdoc/heldout_prompts.json"))
        .current_dir(root())
        .output()
        .expect("the binary can be started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON on stdout")
}

/// Tokens of each answer, and why it ended.
fn texts(runs: &Value) -> Vec<(Value, Value)> {
    let runs = runs["runs"].as_array().expect("runs").iter();
    runs.map(|run| (run["tokens"].clone(), run["finish_reason"].clone())).collect()
}

/// Serves the demo's target with another of its drafts: what `faser check` says of it, and what the held-out prompts bring, whose texts must be
/// those without any.
fn another_draft(draft: &str, k: &str, says: &str, least_tokens_per_pass: f64) {
    let models = root().join("models/rustdoc");
    let (target, draft) = (models.join("target"), models.join(draft));
    let yaml = format!(
        "model: {{target: \"{}\", draft: \"{}\"}}\ndevice: {{kind: cpu}}\n",
        target.display(),
        draft.display()
    );
    let config = Config::new(&yaml);
    let path = config.path();
    let name = path.to_str().expect("a path of UTF-8");
    let check =
        Command::new(faser()).args(["check", "-c", name]).output().expect("the binary can be started");
    let said = String::from_utf8_lossy(&check.stdout) + String::from_utf8_lossy(&check.stderr);
    assert!(said.contains(says), "{said}");
    let (drafted, plain) = (generate(&["-c", name], "16", k), generate(&[], "16", "0"));
    let average = &drafted["average"];
    println!("{average}");
    let enough = average["tokens_per_pass"].as_f64().is_some_and(|tokens| tokens > least_tokens_per_pass);
    assert!(enough, "{average}");
    assert_eq!(texts(&drafted), texts(&plain), "a draft changed a text");
}

#[test]
fn the_draft_with_a_mask_token_proposes_in_one_pass_and_changes_no_text() {
    another_draft("pard", "8", "in one pass (PARD), by mask token 7427", 1.6);
}

#[test]
fn the_head_on_hidden_states_proposes_and_changes_no_text() {
    another_draft("eagle3", "4", "a head on the target's hidden states (EAGLE-3)", 1.8);
}

#[test]
fn the_head_of_blocks_proposes_and_changes_no_text() {
    let says = "(DSpark, in the layout of DeepSpec)";
    another_draft("dspark", "5", says, 1.8);
}

#[test]
fn generate_reports_two_tokens_per_target_pass_on_held_out_prompts() {
    let drafted = generate(&[], "48", "4");
    let average = &drafted["average"];
    println!("{average}");
    assert!(average["tokens_per_pass"].as_f64().is_some_and(|tokens| tokens >= 2.0), "{average}");
    let plain = generate(&[], "48", "0");
    assert_eq!(plain["average"]["tokens_per_pass"], 1.0);
    assert!(texts(&drafted).len() >= 50);
    assert_eq!(texts(&drafted), texts(&plain), "speculation changed a text");
}
