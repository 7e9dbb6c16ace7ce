//! The table: bytes that are sent on a connection of their own, and what has to come back.

use faser_tests::Server;
use serde_json::{Value, json};

use crate::wire::{exchange, post, request};
use crate::{server, undisturbed};

/// What has to come back.
enum Wanted {
    /// An error of the API with this status.
    Error(u16),
    /// A bare 4xx of the HTTP library, an error of the API, or the end of the connection.
    Refusal,
}
use Wanted::{Error, Refusal};

struct Case {
    name: String,
    bytes: Vec<u8>,
    /// Whether the client's side is closed then.
    half_close: bool,
    wanted: Wanted,
}

fn case(name: &str, bytes: Vec<u8>, wanted: Wanted) -> Case {
    Case { name: name.to_owned(), bytes, half_close: false, wanted }
}

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";

/// Bodies of completions that are refused with 400.
fn bodies() -> Vec<(&'static str, Vec<u8>)> {
    let text = |text: &str| text.as_bytes().to_vec();
    let utf16: Vec<u8> = r#"{"prompt": "x"}"#.encode_utf16().flat_map(u16::to_le_bytes).collect();
    vec![
        ("nothing", text("")),
        ("an open object", text("{")),
        ("half a word", text("nul")),
        ("something behind the object", text(r#"{"prompt": "x"} x"#)),
        ("two objects", text(r#"{"prompt": "x"}{"prompt": "x"}"#)),
        ("single quotes", text("{'prompt': 'x'}")),
        ("a comma too many", text(r#"{"prompt": "x",}"#)),
        ("NaN", text(r#"{"prompt": "x", "temperature": NaN}"#)),
        ("Infinity", text(r#"{"prompt": "x", "temperature": Infinity}"#)),
        ("a number without end", text(r#"{"prompt": "x", "temperature": 1e999}"#)),
        ("a negative number without end", text(r#"{"prompt": "x", "top_p": -1e999}"#)),
        ("a number of a megabyte", text(&format!("{{\"seed\": {}}}", "9".repeat(1 << 20)))),
        ("lists in lists", text(&"[".repeat(100_000))),
        ("objects in objects", text(&"{\"a\":".repeat(100_000))),
        (
            "a hundred levels, closed",
            text(&format!("{{\"prompt\": {}{}}}", "[".repeat(100), "]".repeat(100))),
        ),
        ("a million empty objects", text(&format!("{{\"prompt\": [{}{{}}]}}", "{},".repeat(1_000_000)))),
        ("a million lists", text(&format!("{{\"prompt\": [{}[0]]}}", "[0],".repeat(900_000)))),
        ("a million numbers", text(&format!("{{\"prompt\": [{}0]}}", "0,".repeat(1_000_000)))),
        ("half a surrogate pair", text(r#"{"prompt": "\ud800"}"#)),
        ("an unknown escape", text(r#"{"prompt": "\x"}"#)),
        ("bytes that are no UTF-8", b"{\"prompt\": \"\xff\xfe\xc0\"}".to_vec()),
        ("a control character", text("{\"prompt\": \"\u{1}\"}")),
        ("zero bytes", vec![0; 4096]),
        ("a byte order mark", text("\u{feff}{\"prompt\": \"x\"}")),
        ("UTF-16", utf16),
        ("a form", text("prompt=x&max_tokens=5")),
        ("XML", text("<?xml version='1.0'?><!DOCTYPE x [<!ENTITY a 'b'>]><x>&a;</x>")),
        ("a list at the top", text("[1]")),
        ("a string at the top", text("\"x\"")),
        ("null at the top", text("null")),
    ]
}

/// Fields of completions that are refused with 400.
fn fields() -> Vec<(&'static str, Value)> {
    let many: serde_json::Map<_, _> = (0..2000).map(|id| (id.to_string(), json!(1))).collect();
    let unknown: serde_json::Map<_, _> = (0..30_000).map(|i| (format!("field{i}"), json!(i))).collect();
    vec![
        ("negative tokens", json!({"max_tokens": -1})),
        ("no tokens", json!({"max_tokens": 0})),
        ("part of a token", json!({"max_tokens": 0.1})),
        ("more tokens than there are numbers", json!({"max_tokens": u64::MAX})),
        ("a wrong type", json!({"max_tokens": "5"})),
        ("a boolean temperature", json!({"temperature": true})),
        ("a huge temperature", json!({"temperature": 1e308})),
        ("top_p as text", json!({"top_p": "NaN"})),
        ("a fraction as top_k", json!({"top_k": 1e300})),
        ("a seed beyond 64 bits", json!({"seed": 1e20})),
        ("an object as prompt", json!({"prompt": {"a": 1}})),
        ("a mixed list", json!({"prompt": ["x", 1, null]})),
        ("ten thousand prompts", json!({"prompt": vec!["x"; 10_000]})),
        ("a negative id", json!({"prompt": [-1]})),
        ("an id of 64 bits", json!({"prompt": [u64::MAX]})),
        ("half an id", json!({"prompt": [0.5]})),
        ("a prompt of a megabyte", json!({"prompt": "x".repeat(1 << 20)})),
        ("a thousand stops", json!({"stop": vec!["x"; 1000]})),
        ("a stop of a megabyte", json!({"stop": "x".repeat(1 << 20)})),
        ("an empty stop", json!({"stop": ["a", ""]})),
        ("two thousand biases", json!({"logit_bias": many})),
        ("a bias for no token", json!({"logit_bias": {"99999999999999999999": 1}})),
        ("an infinite bias", json!({"logit_bias": {"1": "Infinity"}})),
        ("a billion choices", json!({"n": 1_000_000_000})),
        ("seventeen choices", json!({"n": 17})),
        ("more tokens at least than at most", json!({"min_tokens": 99, "max_tokens": 5})),
        ("a million candidates", json!({"best_of": 1_000_000})),
        ("too many log-probabilities", json!({"logprobs": 100_000})),
        ("top log-probabilities", json!({"top_logprobs": -5})),
        ("a word as flag", json!({"stream": "yes"})),
        ("options without a stream", json!({"stream_options": {"include_usage": true}})),
        ("an unknown field", json!({"__proto__": {"admin": true}})),
        ("thirty thousand unknown fields", Value::Object(unknown)),
        ("a name of a megabyte", json!({"x".repeat(1 << 20): 1})),
        ("control characters in a name", json!({"\u{0}\u{1b}[31m\r\n": 1})),
        ("a regex that is none", json!({"guided_regex": "((((["})),
        ("two forms at once", json!({"guided_regex": "a", "guided_choice": ["a"]})),
        ("a million words to choose from", json!({"guided_choice": vec!["ab"; 100_000]})),
        ("a text to be filled in", json!({"suffix": "\u{0}"})),
    ]
}

fn json_cases() -> Vec<Case> {
    let mut cases: Vec<Case> =
        bodies().into_iter().map(|(name, body)| case(name, post(COMPLETIONS, body), Error(400))).collect();
    for (name, field) in fields() {
        let mut body = json!({"prompt": "x"});
        if let (Value::Object(body), Value::Object(field)) = (&mut body, field) {
            body.extend(field);
        }
        cases.push(case(name, post(COMPLETIONS, body.to_string()), Error(400)));
    }
    let user = json!({"role": "user", "content": "x"});
    let part = json!({"type": "text", "text": "x"});
    let pairs: serde_json::Map<_, _> = (0..1000).map(|i| (i.to_string(), json!("x"))).collect();
    for (name, path, status, body) in [
        ("another model", COMPLETIONS, 404, json!({"model": "\u{0}\n\u{1b}[2J", "prompt": "x"})),
        ("a model of a megabyte", COMPLETIONS, 404, json!({"model": "x".repeat(1 << 20), "prompt": "x"})),
        ("no messages", CHAT, 400, json!({"messages": null})),
        ("five thousand items", RESPONSES, 400, json!({"input": vec![user.clone(); 5000]})),
        ("an item within an item", RESPONSES, 400, json!({"input": [{"role": "user", "content": [[user]]}]})),
        ("a thousand pairs", RESPONSES, 400, json!({"input": "x", "metadata": pairs})),
        (
            "arguments of lists",
            RESPONSES,
            400,
            json!({"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "[".repeat(100_000)}]}),
        ),
        ("five thousand messages", CHAT, 400, json!({"messages": vec![user.clone(); 5000]})),
        ("a role of control characters", CHAT, 400, json!({"messages": [{"role": "\u{7}", "content": "x"}]})),
        ("a number as content", CHAT, 400, json!({"messages": [{"role": "user", "content": 1e300}]})),
        (
            "a content of a picture",
            CHAT,
            400,
            json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
        ),
        (
            "a hundred thousand parts",
            CHAT,
            400,
            json!({"messages": [{"role": "user", "content": vec![part; 100_000]}]}),
        ),
        (
            "a template of the client's own",
            CHAT,
            400,
            json!({"messages": [user], "chat_template": "{% for a in range(9) %}{% endfor %}"}),
        ),
        ("a chat without a template", CHAT, 400, json!({"messages": [user]})),
        ("tokens of two things", "/tokenize", 400, json!({"prompt": "x", "messages": [user]})),
        ("tokens of nothing", "/tokenize", 400, json!({})),
        ("the text of no token", "/detokenize", 400, json!({"tokens": [1, 99_999_999]})),
    ] {
        cases.push(case(name, post(path, body.to_string()), Error(status)));
    }
    cases
}

/// Heads and framings that lie.
fn http_cases() -> Vec<Case> {
    let chunked = |chunks: &str| request("POST", COMPLETIONS, "transfer-encoding: chunked\r\n", chunks);
    let post_with = |headers: &str| request("POST", COMPLETIONS, headers, "{}");
    let get = |path: &str| request("GET", path, "", "");
    let raw = |text: &str| text.as_bytes().to_vec();
    let megabytes = "x".repeat(10 << 20);
    let chunk = format!("a00000\r\n{megabytes}\r\n0\r\n\r\n");
    let flood: String = (0..200).map(|i| format!("x-{i}: {i}\r\n")).collect();
    let hello = [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3].to_vec();
    let mut cases = vec![
        case("ten megabytes", post(COMPLETIONS, &megabytes), Error(413)),
        case("ten megabytes in a chunk", chunked(&chunk), Error(413)),
        case("a length without end", post_with("content-length: 99999999999999999999\r\n"), Refusal),
        case("the largest length", post_with("content-length: 18446744073709551615\r\n"), Error(413)),
        case("a negative length", post_with("content-length: -1\r\n"), Refusal),
        case("a length with a sign", post_with("content-length: +2\r\n"), Refusal),
        case("two lengths", post_with("content-length: 2\r\ncontent-length: 3\r\n"), Refusal),
        case(
            "a length beside chunks",
            post_with("content-length: 2\r\ntransfer-encoding: chunked\r\n"),
            Refusal,
        ),
        case("chunks of no size", chunked("zz\r\n{}\r\n0\r\n\r\n"), Refusal),
        case("a chunk without end", chunked("ffffffffffffffffff\r\n{}"), Refusal),
        case("a chunk longer than it says", chunked("1\r\n{}\r\n0\r\n\r\n"), Refusal),
        case("an unknown coding", post_with("transfer-encoding: gzip\r\n"), Refusal),
        case("a compressed body", post_with("content-length: 2\r\ncontent-encoding: gzip\r\n"), Error(415)),
        case(
            "more than it can decode",
            post_with("content-length: 2\r\ncontent-encoding: \u{1}\r\n"),
            Refusal,
        ),
        case("two hundred headers", request("GET", "/v1/models", &flood, ""), Refusal),
        case(
            "a header of a megabyte",
            request("GET", "/v1/models", &format!("x: {}\r\n", "y".repeat(1 << 20)), ""),
            Refusal,
        ),
        case("a path of a megabyte", get(&format!("/{}", "a".repeat(1 << 20))), Refusal),
        case("a header without a name", request("GET", "/v1/models", ": x\r\n", ""), Refusal),
        case("a header with a space", request("GET", "/v1/models", "x y: z\r\n", ""), Refusal),
        case("a header over two lines", request("GET", "/v1/models", "x: y\r\n z\r\n", ""), Refusal),
        case("a zero byte in a header", request("GET", "/v1/models", "x: \0\r\n", ""), Refusal),
        case("a zero in the path", get("/v1/models/%00"), Error(404)),
        case("no UTF-8 in the path", get("/v1/models/%ff%fe"), Refusal),
        case("a way out of the folder", get("/../../etc/passwd"), Error(404)),
        case("a coded way out", get("/v1/models/..%2f..%2fetc%2fpasswd"), Error(404)),
        case("a percent sign alone", get("/v1/models/%"), Error(404)),
        case("control characters in the path", raw("GET /\u{1b}[2J HTTP/1.1\r\nhost: x\r\n\r\n"), Refusal),
        case("no host", raw("GET /v1/models HTTP/1.1\r\n\r\n"), Refusal),
        case("HTTP of the future", raw("GET / HTTP/9.9\r\nhost: x\r\n\r\n"), Refusal),
        case("HTTP without a version", raw("GET /\r\n\r\n"), Refusal),
        case("the preface of HTTP/2", raw("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), Refusal),
        case("garbage", (0..=255).cycle().take(5000).collect(), Refusal),
        case("TLS", hello, Refusal),
        case("an unknown method", request("BREW", COMPLETIONS, "", ""), Error(405)),
        case("TRACE", request("TRACE", "/v1/models", "", ""), Error(405)),
        case(
            "CONNECT",
            raw("CONNECT example.org:443 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"),
            Refusal,
        ),
        case("a switched-off route", get("/debug/trace?seconds=999999999999"), Error(404)),
        case(
            "a body that is awaited and too large",
            post_with("expect: 100-continue\r\ncontent-length: 99999999\r\n"),
            Error(413),
        ),
        case(
            "another protocol",
            post_with("upgrade: websocket\r\nconnection: upgrade\r\ncontent-length: 2\r\n"),
            Refusal,
        ),
    ];
    for (name, bytes) in [
        ("half a body", request("POST", COMPLETIONS, "content-length: 100\r\n", "{\"prompt\": ")),
        ("half a chunk", chunked("5\r\n{}")),
        ("half a head", raw("POST /v1/completions HTTP/1.1\r\nhost: ")),
        ("nothing at all", Vec::new()),
    ] {
        cases.push(Case { name: format!("{name}, and closed"), bytes, half_close: true, wanted: Refusal });
    }
    cases
}

fn play(server: &Server, cases: &[Case]) -> Vec<String> {
    let mut faults = Vec::new();
    for Case { name, bytes, half_close, wanted } in cases {
        let answer = exchange(&server.client().address, bytes, *half_close);
        let verdict = match wanted {
            Error(status) => answer.is_error(*status),
            Refusal => answer.is_refusal(),
        };
        if let Err(fault) = verdict {
            faults.push(format!("{name}: {fault}"));
        }
    }
    faults
}

#[test]
fn every_bad_request_is_refused_in_the_right_shape() {
    let server = server();
    let cases: Vec<Case> = json_cases().into_iter().chain(http_cases()).collect();
    assert!(cases.len() >= 60, "{} cases", cases.len());
    let faults = undisturbed(&server, || play(&server, &cases));
    println!("{} bad requests", cases.len());
    assert!(faults.is_empty(), "{} of {}:\n{}", faults.len(), cases.len(), faults.join("\n"));
}
