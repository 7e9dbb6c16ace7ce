//! Texts that are far too long for the model, several at once.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use faser_tests::{Server, rules::root};
use serde_json::{Value, json};

use crate::undisturbed;

/// Sent of each kind, and how many at a time.
const PROMPTS: usize = 10;
const AT_ONCE: usize = 4;
/// What they may leave behind.
const LEFT_BYTES: u64 = 150 << 20;
/// After which time they may leave it.
const LATER: Duration = Duration::from_secs(5);

/// Two megabytes of words, of one word, and of words without spaces in between.
fn texts() -> [(&'static str, String); 3] {
    let words = std::fs::read_to_string(root().join("docs/ARCHITECTURE.md")).expect("a page of words");
    let of = |part: &str| part.repeat((2 << 20) / part.len());
    [("words", of(&words)), ("one word", of("x")), ("ideographs", of("所有权规则"))]
}

/// Sends the body so often, several at once, and looks at the status and body of each answer.
fn flood(server: &Server, count: usize, path: &str, body: &Value, look: impl Fn(u16, &str) + Sync) {
    let sent = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while sent.fetch_add(1, Ordering::Relaxed) < count {
                    let answer = server.client().post(path, body);
                    look(answer.status, &answer.body);
                }
            });
        }
    });
}

/// Memory a while after `what` is within bounds of what it was before.
fn leaves_nothing(server: &Server, name: &str, what: impl FnOnce()) {
    let before = server.resident_bytes();
    undisturbed(server, what);
    std::thread::sleep(LATER);
    let after = server.resident_bytes();
    println!("{name}: resident {} MiB before, {} MiB {LATER:?} after", before >> 20, after >> 20);
    assert!(after <= before + LEFT_BYTES, "{name}: {before} bytes before, {after} after");
}

#[test]
fn prompts_far_beyond_the_context_are_refused_and_leave_nothing() {
    let server = Server::start("log: {level: info}\n");
    for (name, text) in &texts() {
        let messages = json!([{"role": "user", "content": text}]);
        leaves_nothing(&server, name, || {
            for (path, body) in [
                ("/v1/completions", json!({"prompt": text, "max_tokens": 4})),
                ("/v1/completions", json!({"prompt": ["x", text], "max_tokens": 4})),
                ("/v1/chat/completions", json!({"messages": messages})),
                ("/v1/responses", json!({"input": text})),
            ] {
                flood(&server, PROMPTS, path, &body, |status, answer| {
                    let answer: Value = serde_json::from_str(answer).expect("JSON");
                    let error = &answer["error"];
                    let said =
                        (status, error["code"].as_str(), error["message"].as_str().unwrap_or_default());
                    assert_eq!((said.0, said.1), (400, Some("context_length_exceeded")), "{path}: {answer}");
                    for words in ["maximum context length is 1024 tokens", "shorten the prompt"] {
                        assert!(said.2.contains(words), "{path}: {answer}");
                    }
                });
            }
        });
    }
}

#[test]
fn long_texts_are_tokenized_whatever_their_length_and_leave_nothing() {
    let server = Server::start("log: {level: info}\n");
    for (name, text) in &texts() {
        leaves_nothing(&server, name, || {
            flood(&server, AT_ONCE, "/tokenize", &json!({"prompt": text}), |status, answer| {
                let rest = answer.strip_prefix("{\"count\":").unwrap_or_default();
                let count = rest.split(',').next().and_then(|count| count.parse().ok());
                // As many commas as there are ids and other fields, less one.
                assert_eq!(
                    (status, Some(answer.matches(',').count())),
                    (200, count.map(|count: usize| count + 1))
                );
                assert!(count > Some(100_000), "{name}: {count:?} tokens");
            });
        });
    }
}

#[test]
fn of_a_prediction_only_what_an_output_could_have_is_looked_at() {
    let server = Server::start("log: {level: info}\n");
    let ask = |more: Value| {
        let mut body = json!({"prompt": "Returns the number of", "max_tokens": 40, "temperature": 0});
        if let (Value::Object(body), Value::Object(more)) = (&mut body, more) {
            body.extend(more);
        }
        let answer = server.client().post("/v1/completions", &body);
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()["choices"][0]["text"].as_str().map(str::to_owned)
    };
    let plain = ask(json!({}));
    for (name, text) in &texts() {
        leaves_nothing(&server, name, || {
            let prediction = json!({"type": "content", "content": text});
            assert_eq!(ask(json!({"prediction": prediction})), plain, "{name}");
        });
    }
}
