//! The HTTP API of a running daemon, on a tiny synthetic pair: whole answers, streams, prompts in all forms, speculation.

use std::sync::{Arc, Mutex, Weak};

use faser_tests::{Server, metrics::Metrics};
use serde_json::{Value, json};

/// Tiny models whose draft is right often, but not always; and drafts whatever a pass costs here.
const TINY: &str = "\
model: {name: tiny, synthetic: {preset: tiny}}
speculation: {policy: 'fixed:4'}
log: {level: warn}
";

fn server() -> Arc<Server> {
    static SHARED: Mutex<Weak<Server>> = Mutex::new(Weak::new());
    Server::shared(&SHARED, TINY)
}

/// The answer to a completion that has to succeed.
fn complete(server: &Server, body: &Value) -> Value {
    let response = server.client().post("/v1/completions", body);
    assert_eq!(response.status, 200, "{body}: {response:?}");
    response.json()
}

fn text(server: &Server, body: &Value) -> String {
    complete(server, body)["choices"][0]["text"].as_str().expect("a text").to_owned()
}

/// `base` with the fields of `more` put over it.
fn with(base: &Value, more: &Value) -> Value {
    let mut both = base.clone();
    if let (Value::Object(both), Value::Object(more)) = (&mut both, more) {
        both.extend(more.clone());
    }
    both
}

#[test]
fn a_ready_daemon_says_so_and_names_its_model() {
    let server = server();
    let client = server.client();
    assert_eq!(client.get("/health").status, 200);
    let ready = client.get("/ready");
    assert_eq!((ready.status, ready.json()["status"].as_str()), (200, Some("ready")));
    assert!(server.output().contains("curl"), "the ready line is followed by a curl:\n{}", server.output());
    let models = client.get("/v1/models").json();
    assert_eq!((&models["object"], &models["data"][0]["id"]), (&json!("list"), &json!("tiny")));
    assert_eq!(client.get("/v1/models/tiny").json()["id"], "tiny");
    let echoed = client.send("GET", "/health", &[("x-request-id", "abc-123")], "");
    assert_eq!(echoed.header("x-request-id"), Some("abc-123"));
    assert!(client.get("/health").header("x-request-id").is_some_and(|id| !id.is_empty()));
}

#[test]
fn a_completion_has_text_usage_and_finish_reason() {
    let server = server();
    let answer =
        complete(&server, &json!({"model": "tiny", "prompt": "hello", "max_tokens": 7, "temperature": 0}));
    assert_eq!(answer["object"], "text_completion");
    assert_eq!(answer["model"], "tiny");
    assert!(answer["id"].as_str().is_some_and(|id| id.starts_with("cmpl-")));
    let choice = &answer["choices"][0];
    assert_eq!((&choice["index"], &choice["finish_reason"]), (&json!(0), &json!("length")));
    assert!(choice["text"].as_str().is_some_and(|text| !text.is_empty()));
    let usage = &answer["usage"];
    assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(5), &json!(7)));
    assert_eq!(usage["total_tokens"], 12);
}

#[test]
fn a_stream_brings_the_same_text_piece_by_piece() {
    let server = server();
    let body = json!({"prompt": "stream me", "max_tokens": 40, "temperature": 0.9, "seed": 11});
    let whole = complete(&server, &body);
    let streaming = with(&body, &json!({"stream": true, "stream_options": {"include_usage": true}}));
    let mut ids = Vec::new();
    let stream = server.client().stream("/v1/completions", &streaming);
    let transcript = stream.follow(|event| ids.push(event["id"].clone()));
    assert!(transcript.complete(), "{transcript:?}");
    assert_eq!(transcript.text, whole["choices"][0]["text"]);
    assert_eq!(transcript.finish_reason.as_deref(), whole["choices"][0]["finish_reason"].as_str());
    assert_eq!(transcript.usage.expect("usage was asked for")["completion_tokens"], 40);
    // At most four proposals and the next token arrive at once: 40 tokens cannot come in fewer than 8 pieces.
    assert!(transcript.arrivals >= 8, "{} arrivals", transcript.arrivals);
    assert!(ids.windows(2).all(|pair| pair[0] == pair[1]), "one answer, one id: {ids:?}");
    let without =
        server.client().stream("/v1/completions", &with(&body, &json!({"stream": true}))).transcript();
    assert!(without.complete() && without.usage.is_none());
}

#[test]
fn seeds_and_parameters_decide_the_text() {
    let server = server();
    let body = json!({"prompt": "a seed", "max_tokens": 24, "temperature": 1.0, "seed": 5});
    let first = text(&server, &body);
    assert_eq!(first, text(&server, &body));
    assert_ne!(first, text(&server, &with(&body, &json!({"seed": 6}))));
    assert_ne!(first, text(&server, &with(&body, &json!({"temperature": 0}))));
    let forced = with(&body, &json!({"logit_bias": {"65": 100}, "temperature": 0, "max_tokens": 3}));
    assert_eq!(text(&server, &forced), "AAA");
}

#[test]
fn speculation_changes_speed_and_never_text() {
    let server = server();
    let drafted = || Metrics::scrape(server.client()).value("faser_spec_decode_num_draft_tokens_total");
    for sampling in [
        json!({"temperature": 0}),
        json!({"temperature": 0.8, "seed": 1, "top_p": 0.9}),
        json!({"temperature": 1.0, "seed": 2, "top_k": 40, "frequency_penalty": 0.5, "repetition_penalty": 1.1}),
        json!({"temperature": 1.2, "seed": 3, "min_p": 0.02, "presence_penalty": 0.7}),
    ] {
        let body = with(&json!({"prompt": "the same tokens", "max_tokens": 64}), &sampling);
        let off = text(&server, &with(&body, &json!({"speculation": {"k_max": 0}})));
        let before = drafted();
        for k in [1, 2, 4, 16] {
            let on = text(&server, &with(&body, &json!({"speculation": {"k_max": k}})));
            assert_eq!(on, off, "k {k}, {sampling}");
        }
        assert!(drafted() > before, "nothing was drafted");
    }
}

#[test]
fn a_stop_string_ends_the_text_before_it() {
    let server = server();
    let body = json!({"prompt": "stop", "max_tokens": 60, "temperature": 0.7, "seed": 4});
    let whole = text(&server, &body);
    // The longest words stand in one place, most likely; whichever comes first counts.
    let words: Vec<&str> = whole.split_whitespace().filter(|word| word.chars().count() > 2).collect();
    let stop = *words.get(words.len() / 2).expect("a text with several words");
    let expected = &whole[..whole.find(stop).expect("a word of the text")];
    let stopping = with(&body, &json!({"stop": ["not in the text", stop]}));
    let answer = complete(&server, &stopping);
    assert_eq!(answer["choices"][0]["text"], expected);
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    let one = with(&body, &json!({"stop": stop, "stream": true}));
    let transcript = server.client().stream("/v1/completions", &one).transcript();
    assert_eq!((transcript.text.as_str(), transcript.finish_reason.as_deref()), (expected, Some("stop")));
    let tokens = complete(&server, &with(&body, &json!({"stop_token_ids": [65], "logit_bias": {"65": 100}})));
    assert_eq!(
        (&tokens["choices"][0]["text"], &tokens["choices"][0]["finish_reason"]),
        (&json!(""), &json!("stop"))
    );
}

#[test]
fn prompts_come_as_text_as_ids_and_in_lists() {
    let server = server();
    let ask = |prompt: Value| {
        let body = json!({"prompt": prompt, "max_tokens": 12, "temperature": 0});
        let answer = complete(&server, &body);
        let choices = answer["choices"].as_array().expect("choices").clone();
        let places: Vec<&Value> = choices.iter().map(|choice| &choice["index"]).collect();
        assert!(places.iter().enumerate().all(|(at, place)| **place == json!(at)), "{places:?}");
        choices.iter().map(|choice| choice["text"].as_str().expect("a text").to_owned()).collect::<Vec<_>>()
    };
    let ids = server.client().post("/tokenize", &json!({"prompt": "one"})).json()["tokens"].clone();
    let one = ask(json!("one"));
    let two = ask(json!("two and more"));
    assert_ne!(one, two);
    assert_eq!(ask(ids.clone()), one);
    assert_eq!(ask(json!(["one", "two and more", "one"])), [one.clone(), two.clone(), one.clone()].concat());
    assert_eq!(ask(json!([ids, [9, 8, 7]]))[0], one[0]);
    let listed =
        json!({"prompt": ["one", "two and more"], "max_tokens": 12, "temperature": 0, "stream": true});
    let mut texts = [String::new(), String::new()];
    let transcript = server.client().stream("/v1/completions", &listed).follow(|event| {
        for choice in event["choices"].as_array().into_iter().flatten() {
            let at = choice["index"].as_u64().expect("an index") as usize;
            texts[at].push_str(choice["text"].as_str().unwrap_or_default());
        }
    });
    assert!(transcript.done);
    assert_eq!(texts, [one[0].clone(), two[0].clone()]);
}

#[test]
fn tokens_and_text_go_round() {
    let server = server();
    let client = server.client();
    for prompt in ["plain", "été → 日本 🦀", "", " spaces  and\nlines\t"] {
        let tokens = client.post("/tokenize", &json!({"prompt": prompt})).json();
        assert_eq!(tokens["count"], tokens["tokens"].as_array().expect("tokens").len());
        assert_eq!(tokens["max_model_len"], 4096);
        let back = client.post("/detokenize", &json!({"tokens": tokens["tokens"]})).json();
        assert_eq!(back["prompt"], prompt);
    }
}

#[test]
fn metrics_have_the_standard_names() {
    let server = server();
    text(&server, &json!({"prompt": "count me", "max_tokens": 30}));
    let metrics = Metrics::scrape(server.client());
    for family in [
        "faser_requests_running",
        "faser_requests_waiting",
        "faser_requests_finished_total",
        "faser_output_tokens_total",
        "faser_kv_blocks_total",
        "faser_kv_blocks_free",
        "faser_time_to_first_token_seconds_bucket",
        "faser_inter_token_latency_seconds_bucket",
        "faser_request_latency_seconds_bucket",
        "faser_spec_decode_num_drafts_total",
        "faser_spec_decode_num_draft_tokens_total",
        "faser_spec_decode_num_accepted_tokens_total",
        "faser_spec_decode_num_accepted_tokens_per_pos_total",
    ] {
        assert!(metrics.has(family), "no {family} in\n{}", metrics.show(&["faser_"]));
    }
    let accepted = metrics.value("faser_spec_decode_num_accepted_tokens_total");
    assert!(accepted <= metrics.value("faser_spec_decode_num_draft_tokens_total"));
    let first = metrics.value("faser_spec_decode_num_accepted_tokens_per_pos_total{position=\"0\"}");
    assert!(first > 0.0 && first <= metrics.value("faser_spec_decode_num_drafts_total"));
}
