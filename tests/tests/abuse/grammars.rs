//! Grammars made to hurt: chains of references, ambiguity, repetition, long lists. Each comes in four copies at once, beside eight streams.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use faser_tests::Server;
use serde_json::{Value, json};

use crate::CONFIG;

/// Streams that go on beside, and copies of each attack.
const STREAMS: u64 = 8;
const COPIES: usize = 4;
/// What the daemon and its processes may take beyond what they had: all grammars, and what is being tried (docs/security.md).
const GROWTH_BYTES: u64 = (1024 + 8 * 64 + 256) << 20;
/// Processor time of the second after the last attack, in hundredths.
const IDLE_TICKS: u64 = 30;
/// The byte that the streams of the ambiguous ones are to write: tokens of synthetic models are bytes.
const FORCED: &str = "97";

/// A schema of so many definitions, each of which refers to the next one.
fn definitions(links: usize, link: impl Fn(Value) -> Value) -> Value {
    let of = |number: usize| json!({"$ref": format!("#/$defs/d{number}")});
    let mut all: serde_json::Map<_, _> =
        (0..links).map(|number| (format!("d{number}"), link(of(number + 1)))).collect();
    all.insert(format!("d{links}"), json!({"type": "integer"}));
    json!({"guided_json": {"$ref": "#/$defs/d0", "$defs": all}})
}

/// A Lark grammar of so many rules or terminals, each of which refers to the next one.
fn lark(links: usize, name: &str, link: impl Fn(String) -> String) -> Value {
    let mut lines = vec![format!("start: {name}0")];
    lines.extend((0..links).map(|i| format!("{name}{i}: {}", link(format!("{name}{}", i + 1)))));
    lines.push(format!("{name}{links}: \"b\""));
    json!({"guided_grammar": lines.join("\n")})
}

/// What is sent, beside a prompt.
fn attacks() -> Vec<(String, Value)> {
    let mut all = Vec::new();
    for links in [10, 300, 1_000, 10_000, 100_000] {
        let mut add = |name: &str, attack: Value| all.push((format!("{name}, {links} links"), attack));
        add("$ref", definitions(links, |next| next));
        add("allOf", definitions(links, |next| json!({"allOf": [next]})));
        add("anyOf", definitions(links, |next| json!({"anyOf": [next, {"type": "null"}]})));
        add("items", definitions(links, |next| json!({"type": "array", "items": next})));
        add("properties", definitions(links, |next| json!({"type": "object", "properties": {"a": next}})));
        add("additionalProperties", definitions(links, |next| json!({"additionalProperties": next})));
        add("Lark rules", lark(links, "r", |next| format!("\"a\" {next}")));
        add("Lark rules alone", lark(links, "r", |next| next));
        add("optional Lark rules", lark(links, "r", |next| format!("{next}? {next}")));
        add("Lark terminals", lark(links, "T", |next| format!("\"a\" {next}")));
        add("Lark terminals alone", lark(links, "T", |next| next));
        add("optional atoms", json!({"guided_regex": "a?".repeat(links)}));
        add("groups", json!({"guided_regex": format!("{}a{}", "(".repeat(links), ")".repeat(links))}));
        add("alternatives", json!({"guided_regex": vec!["a"; links].join("|")}));
        add(
            "values",
            json!({"guided_json": {"enum": (0..links).map(|i| i.to_string()).collect::<Vec<_>>()}}),
        );
    }
    let regexes = [
        "((a{1000}){1000}){1000}",
        "(((a?){100}){100}){100}",
        "((a*)*)*b",
        "(a|aa|aaa|aaaa)*c",
        "(x+x+)+y",
        "(a|b)*a(a|b){30000}",
        "(.*a){25}",
    ];
    all.extend(regexes.map(|regex| (format!("regex {regex}"), json!({"guided_regex": regex}))));
    let ambiguous = [
        "start: e\ne: e e e e | \"a\"* | (\"a\"*)*",
        "start: e\ne: e e | \"a\"",
        "start: e\ne: e e e | \"a\" | \"aa\" | \"aaa\" |",
        "start: a a a a a a a a a a\na: \"a\"? b\nb: \"a\"* a?",
        "start: (A | B | C)*\nA: /a+/\nB: /[a-z]+/\nC: /[a-z0-9]+/",
    ];
    all.extend(ambiguous.map(|grammar| {
        (format!("ambiguous {grammar:?}"), json!({"guided_grammar": grammar, "logit_bias": {FORCED: 100}}))
    }));
    all
}

fn stream(server: &Server, number: u64) -> String {
    let body =
        json!({"prompt": "steady", "max_tokens": 200, "temperature": 0.8, "seed": number, "stream": true});
    let transcript = server.client().stream("/v1/completions", &body).transcript();
    assert!(transcript.complete(), "{transcript:?}");
    transcript.text
}

/// Tries of a request while other grammars are compiled.
const MOST_TRIES: usize = 5;

/// Sends an attack, and looks at what it gets: a text, or an error that says something to whoever sent it.
fn send(server: &Server, name: &str, attack: &Value) {
    let mut body = json!({"prompt": "x", "max_tokens": 40, "temperature": 0});
    if let (Value::Object(body), Value::Object(attack)) = (&mut body, attack.clone()) {
        body.extend(attack);
    }
    // Where the machine is slow others may be compiled for as long as a request waits: it says so, and is sent again.
    let mut answer = server.client().post("/v1/completions", &body);
    for _ in 0..MOST_TRIES {
        if answer.status != 503 || answer.json()["error"]["code"] != "grammars_busy" {
            break;
        }
        println!("{name}: busy");
        answer = server.client().post("/v1/completions", &body);
    }
    if answer.status == 200 {
        return;
    }
    let error = &answer.json()["error"];
    assert!(matches!(answer.status, 400 | 413), "{name}: {} {error}", answer.status);
    let message = error["message"].as_str().unwrap_or_default();
    assert!(message.len() > 20, "{name}: {error}");
    for internal in ["verbose", "panic", "Bias", "backtrace"] {
        assert!(!message.contains(internal), "{name}: {error}");
    }
}

#[test]
fn grammars_made_to_hurt_hurt_nobody_else() {
    let server = Server::start(CONFIG);
    let texts: Vec<String> = (0..STREAMS).map(|number| stream(&server, number)).collect();
    let before = server.family_bytes();
    let (over, most, streams) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for (number, text) in (0..).zip(&texts) {
            let (server, over, streams) = (&server, &over, &streams);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    assert_eq!(&stream(server, number), text, "a stream beside the attacks");
                    streams.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                most.fetch_max(server.family_bytes(), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        let attacked = std::panic::catch_unwind(|| {
            for (name, attack) in attacks() {
                let begun = std::time::Instant::now();
                std::thread::scope(|scope| {
                    for _ in 0..COPIES {
                        scope.spawn(|| send(&server, &name, &attack));
                    }
                });
                if begun.elapsed() > Duration::from_secs(2) {
                    println!("{name}: {:.1} s", begun.elapsed().as_secs_f64());
                }
            }
        });
        // Also when it fails, or the others would never end.
        over.store(true, Ordering::Relaxed);
        attacked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    let most = most.into_inner();
    println!(
        "{} streams beside them were right; memory of all processes: {} MiB before, {} at most, {} after",
        streams.into_inner(),
        before >> 20,
        most >> 20,
        server.family_bytes() >> 20
    );
    assert!(most <= before + GROWTH_BYTES, "memory grew from {before} to {most} bytes");
    server.wait_for("nothing of them goes on", || {
        let begun = server.family_ticks();
        std::thread::sleep(Duration::from_secs(1));
        server.family_ticks().saturating_sub(begun) <= IDLE_TICKS
    });
    assert_eq!(server.client().get("/ready").status, 200);
    assert_eq!(stream(&server, 0), texts[0]);
    assert!(!server.output().contains("ERROR"), "strangers fill the log");
}

/// Whoever sends a simple grammar does not wait for those who send expensive ones.
#[test]
fn simple_grammars_have_a_way_past_expensive_ones() {
    let server = Server::start(CONFIG);
    let simple = json!({"prompt": "x", "max_tokens": 8, "guided_choice": ["yes", "no"]});
    std::thread::scope(|scope| {
        for copy in 0..COPIES {
            let server = &server;
            scope.spawn(move || {
                // Each is another one, so that none is known.
                let body = json!({"prompt": "x", "max_tokens": 8, "guided_regex": format!("{copy}{}", "a?".repeat(30_000))});
                let answer = server.client().post("/v1/completions", &body);
                assert!(matches!(answer.status, 200 | 400 | 503), "{}", answer.body);
            });
        }
        for _ in 0..20 {
            let answer = server.client().post("/v1/completions", &simple);
            assert_eq!(answer.status, 200, "{}", answer.body);
        }
    });
}
