//! The pair that ships with faser: text, chat, and what its draft is worth.

use std::process::Command;

use faser_tests::{Server, faser, rules::root};
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

#[test]
fn generate_reports_two_tokens_per_target_pass_on_held_out_prompts() {
    let run = |k: &str| -> Value {
        let output = Command::new(faser())
            .args(["generate", "--json", "--temperature", "0", "--max-tokens", "48", "--k", k, "--prompts"])
            .arg(root().join("models/rustdoc/heldout_prompts.json"))
            .current_dir(root())
            .output()
            .expect("the binary can be started");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("JSON on stdout")
    };
    let drafted = run("4");
    let average = &drafted["average"];
    println!("{average}");
    assert!(average["tokens_per_pass"].as_f64().is_some_and(|tokens| tokens >= 2.0), "{average}");
    let plain = run("0");
    assert_eq!(plain["average"]["tokens_per_pass"], 1.0);
    let texts = |runs: &Value| {
        let runs = runs["runs"].as_array().expect("runs").iter();
        runs.map(|run| (run["tokens"].clone(), run["finish_reason"].clone())).collect::<Vec<_>>()
    };
    assert!(texts(&drafted).len() >= 50);
    assert_eq!(texts(&drafted), texts(&plain), "speculation changed a text");
}
