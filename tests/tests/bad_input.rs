//! Bad requests against a running daemon: each gets its own status and a message that names the field; nothing else is disturbed.

use std::sync::{Arc, Mutex, Weak};

use faser_tests::{Server, metrics::wait_until_idle};
use serde_json::{Value, json};

const SMALL_LIMITS: &str = "\
server: {max_body_bytes: 64KiB, max_prompts_per_request: 4}
model:
  name: tiny
  synthetic: {preset: tiny, max_context: 512}
log: {level: warn}
";

fn server() -> Arc<Server> {
    static SHARED: Mutex<Weak<Server>> = Mutex::new(Weak::new());
    Server::shared(&SHARED, SMALL_LIMITS)
}

/// Sends `body` and checks status, `param` and that the message has `part`.
fn refused(server: &Server, path: &str, body: &Value, status: u16, param: Option<&str>, part: &str) {
    let response = server.client().post(path, body);
    assert_eq!(response.status, status, "{path} {body}: {response:?}");
    let error = response.error();
    assert_eq!(error["param"].as_str(), param, "{path} {body}: {error}");
    let message = error["message"].as_str().unwrap_or_default();
    assert!(message.contains(part), "{path} {body}: {message:?} should say {part:?}");
}

#[test]
fn each_bad_field_of_a_completion_is_named() {
    let server = server();
    let long = vec![7; 600];
    let cases = [
        (json!({"temperature": 2.5}), "temperature", "2.5"),
        (json!({"temperature": -0.1}), "temperature", "0"),
        (json!({"temperature": "hot"}), "temperature", "hot"),
        (json!({"top_p": 0}), "top_p", "above 0"),
        (json!({"top_p": 1.5}), "top_p", "1.5"),
        (json!({"top_k": -2}), "top_k", "-2"),
        (json!({"min_p": 2}), "min_p", "2"),
        (json!({"repetition_penalty": 0}), "repetition_penalty", "0"),
        (json!({"presence_penalty": 3}), "presence_penalty", "3"),
        (json!({"frequency_penalty": -3}), "frequency_penalty", "-3"),
        (json!({"max_tokens": 0}), "max_tokens", "1"),
        (json!({"max_tokens": -1}), "max_tokens", "-1"),
        (json!({"max_tokens": 1.5}), "max_tokens", "1.5"),
        (json!({"max_tokens": "many"}), "max_tokens", "many"),
        (json!({"n": 0}), "n", "1 to 16"),
        (json!({"n": 17}), "n", "1 to 16"),
        (json!({"best_of": 3}), "best_of", "ask for `n` choices"),
        (json!({"echo": "yes"}), "echo", "true or false"),
        (json!({"min_tokens": 9, "max_tokens": 8}), "min_tokens", "more than"),
        (json!({"suffix": "end"}), "suffix", "not supported"),
        (json!({"logprobs": 21}), "logprobs", "0 to 20"),
        (json!({"seed": 1.5}), "seed", "whole number"),
        (json!({"stop": 7}), "stop", "string"),
        (json!({"stop": [""]}), "stop", "string"),
        (json!({"stop": vec!["x"; 17]}), "stop", "16"),
        (json!({"stop_token_ids": [2048]}), "stop_token_ids[0]", "2047"),
        (json!({"logit_bias": {"65": 101}}), "logit_bias.65", "100"),
        (json!({"logit_bias": {"a": 1}}), "logit_bias", "2047"),
        (json!({"logit_bias": [1]}), "logit_bias", "object"),
        (json!({"stream": "yes"}), "stream", "true or false"),
        (json!({"stream_options": {"include_usage": true}}), "stream_options", "stream"),
        (json!({"speculation": {"k_max": 17}}), "speculation.k_max", "16"),
        (json!({"speculation": {"k_max": -1}}), "speculation.k_max", "-1"),
        (json!({"speculation": {"k": 4}}), "speculation.k", "k_max"),
        (json!({"prompt": 5}), "prompt", "token ids"),
        (json!({"prompt": []}), "prompt", "empty"),
        (json!({"prompt": null}), "prompt", "missing"),
        (json!({"prompt": ""}), "prompt", ""),
        (json!({"prompt": [1, "two"]}), "prompt[1]", "two"),
        (json!({"prompt": [[1], {"a": 1}]}), "prompt[1]", "string"),
        (json!({"prompt": [2048]}), "prompt[0]", "2047"),
        (json!({"prompt": [-1]}), "prompt[0]", "-1"),
        (json!({"prompt": ["a", "b", "c", "d", "e"]}), "prompt", "max_prompts_per_request"),
        (json!({"prompt": "x".repeat(600)}), "prompt", "512"),
        (json!({"prompt": [long]}), "prompt[0]", "512"),
        (json!({"prompt": "x", "max_tokens": 512}), "prompt", "512"),
        (json!({"max_token": 5}), "max_token", "max_tokens"),
        (json!({"nonsense": true}), "nonsense", "nonsense"),
    ];
    for (field, param, part) in cases {
        let mut body = json!({"prompt": "x"});
        if let (Value::Object(body), Value::Object(field)) = (&mut body, field) {
            body.extend(field);
        }
        refused(&server, "/v1/completions", &body, 400, Some(param), part);
    }
    refused(&server, "/v1/completions", &json!([1]), 400, None, "object");
    undisturbed(&server);
}

#[test]
fn each_bad_field_of_a_chat_is_named() {
    let server = server();
    let hello = json!([{"role": "user", "content": "hello"}]);
    let cases = [
        (json!({}), "messages", "missing"),
        (json!({"messages": []}), "messages", "messages"),
        (json!({"messages": "hello"}), "messages", "list"),
        (json!({"messages": [{"content": "x"}]}), "messages[0].role", "missing"),
        (json!({"messages": [{"role": "wizard", "content": "x"}]}), "messages[0].role", "wizard"),
        (json!({"messages": [{"role": "user"}]}), "messages[0].content", "missing"),
        (json!({"messages": [{"role": "user", "content": 5}]}), "messages[0].content", "5"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
            "messages[0].content[0].type",
            "text",
        ),
        (json!({"messages": hello, "tools": ["f"]}), "tools[0]", "object"),
        (
            json!({"messages": hello, "response_format": {"type": "xml"}}),
            "response_format.type",
            "json_schema",
        ),
        (json!({"messages": hello, "top_logprobs": 3}), "top_logprobs", "logprobs"),
        (
            json!({"messages": hello, "max_tokens": 3, "max_completion_tokens": 4}),
            "max_completion_tokens",
            "differ",
        ),
        (json!({"messages": hello, "prompt": "x"}), "prompt", "prompt"),
    ];
    for (body, param, part) in cases {
        refused(&server, "/v1/chat/completions", &body, 400, Some(param), part);
    }
    undisturbed(&server);
}

#[test]
fn what_is_not_there_is_404_and_wrong_methods_are_405() {
    let server = server();
    let client = server.client();
    refused(
        &server,
        "/v1/completions",
        &json!({"model": "gpt-9", "prompt": "x"}),
        404,
        Some("model"),
        "tiny",
    );
    for (method, path, status) in [
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1/models/gpt-9", 404),
        ("GET", "/v1/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/health", 405),
    ] {
        let response = client.send(method, path, &[], "");
        assert_eq!(response.status, status, "{method} {path}: {response:?}");
        assert_eq!(response.error()["type"], "invalid_request_error");
    }
}

#[test]
fn bodies_that_are_no_json_or_too_large_are_refused() {
    let server = server();
    let client = server.client();
    for body in
        ["", "{", "{\"prompt\": \"x\"", "prompt=x", "{\"prompt\": \"\u{1}\"}", "{\"prompt\": NaN}", "[[[["]
    {
        let response = client.send("POST", "/v1/completions", &[], body);
        assert_eq!(response.status, 400, "{body:?}: {response:?}");
        let message = response.error()["message"].as_str().unwrap_or_default().to_owned();
        assert!(message.contains("JSON"), "{body:?}: {message}");
    }
    let deep = format!("{}{}", "[".repeat(30_000), "]".repeat(30_000));
    assert_eq!(client.send("POST", "/v1/completions", &[], &deep).status, 400);
    let large = json!({"prompt": "x".repeat(70_000)}).to_string();
    let response = client.send("POST", "/v1/completions", &[], &large);
    assert_eq!(response.status, 413, "{response:?}");
    assert!(response.error()["message"].as_str().is_some_and(|message| message.contains("max_body_bytes")));
    undisturbed(&server);
}

#[test]
fn tokenize_and_detokenize_name_their_fields() {
    let server = server();
    for (path, body, param) in [
        ("/tokenize", json!({}), "prompt"),
        ("/tokenize", json!({"prompt": 5}), "prompt"),
        ("/tokenize", json!({"prompt": "a", "color": "red"}), "color"),
        ("/detokenize", json!({}), "tokens"),
        ("/detokenize", json!({"tokens": "a"}), "tokens"),
        ("/detokenize", json!({"tokens": [1, 2048]}), "tokens[1]"),
    ] {
        refused(&server, path, &body, 400, Some(param), "");
    }
}

#[test]
fn refusals_in_a_crowd_leave_good_streams_alone() {
    let server = server();
    let body = json!({"prompt": "steady", "max_tokens": 200, "temperature": 0.8, "seed": 9, "stream": true});
    let alone = server.client().stream("/v1/completions", &body).transcript();
    assert!(alone.complete());
    let among_others = std::thread::scope(|scope| {
        let good = scope.spawn(|| server.client().stream("/v1/completions", &body).transcript());
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..10 {
                    let bad = json!({"prompt": "x".repeat(600), "temperature": 0.5});
                    assert_eq!(server.client().post("/v1/completions", &bad).status, 400);
                }
            });
        }
        good.join().expect("the good stream is read")
    });
    assert_eq!(among_others.text, alone.text);
}

/// A good request still works, and no block is held.
fn undisturbed(server: &Server) {
    let answer = server.client().post("/v1/completions", &json!({"prompt": "fine", "max_tokens": 4}));
    assert_eq!(answer.status, 200, "{answer:?}");
    wait_until_idle(server.client());
}
