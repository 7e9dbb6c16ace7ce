//! Streams that outlive their daemon: killed or drained, another goes on with them by `resume`, and no byte is another one.

use std::{
    io::Write,
    process::{Command, Stdio},
};

use faser_tests::{Server, metrics::wait_until, rules::root};
use serde_json::{Value, json};

const STREAMS: usize = 24;
const PAIR: &str = "model: {synthetic: {preset: tiny, max_context: 512}}\nscheduler: {max_running: 16}\nlog: {level: warn}\n";
const PATH: &str = "/v1/completions";

fn body(number: usize) -> Value {
    let mut body = json!({"prompt": [number, 5, 9], "max_tokens": 300, "seed": number, "temperature": 0.9});
    if number.is_multiple_of(3) {
        body["frequency_penalty"] = json!(0.7);
    }
    body
}

/// The client of docs/scale-out.md, as it stands there.
fn client_of_the_page() -> String {
    let page = std::fs::read_to_string(root().join("docs/scale-out.md")).expect("the page");
    let block = page.split("```python\n").nth(1).and_then(|rest| rest.split("```").next());
    block.expect("a client in Python").to_owned()
}

#[test]
fn the_client_of_the_page_loses_nothing_when_a_daemon_is_killed() {
    if Command::new("python3").arg("--version").output().is_err() {
        let test = "the_client_of_the_page_loses_nothing_when_a_daemon_is_killed";
        faser_skipped::skip(test, "there is no python3");
        return;
    }
    let servers = [Server::start(PAIR), Server::start(PAIR)];
    let bodies: Vec<Value> = (0..STREAMS).map(body).collect();
    let whole = |body: &Value| servers[0].client().post(PATH, body).json()["choices"][0]["text"].clone();
    let undisturbed: Vec<Value> = bodies.iter().map(whole).collect();
    let many = "
import concurrent.futures, sys
bodies = json.load(sys.stdin)
def one(number): return complete(sys.argv[1 + number % 2:] + sys.argv[1:], bodies[number])
with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool: print(json.dumps(list(pool.map(one, range(len(bodies))))))
";
    let mut python = Command::new("python3");
    python.args(["-c", &format!("{}{many}", client_of_the_page())]);
    python.args(servers.iter().map(|server| server.client().address.clone()));
    let piped = python.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut python = piped.spawn().expect("python3 can be started");
    let mut stdin = python.stdin.take().expect("it is piped");
    stdin.write_all(json!(bodies).to_string().as_bytes()).expect("it reads");
    drop(stdin);
    let doomed = &servers[1];
    wait_until(doomed.client(), "streams that run", |metrics| {
        metrics.value("faser_requests_running") >= 4.0 && metrics.value("faser_output_tokens_total") > 300.0
    });
    doomed.signal("KILL");
    let output = python.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let texts: Vec<Value> = serde_json::from_slice(&output.stdout).expect("texts");
    for (number, (text, undisturbed)) in texts.iter().zip(&undisturbed).enumerate() {
        assert_eq!(text, undisturbed, "stream {number}");
    }
    assert_eq!(texts.len(), STREAMS);
    doomed.wait();
}

#[test]
fn a_drain_hands_streams_over() {
    let at_once = format!("{PAIR}drain_timeout_s: 0\n");
    let (drained, other) = (Server::start(&at_once), Server::start(PAIR));
    let body = body(1);
    let undisturbed = other.client().post(PATH, &body).json();
    let mut asked = body.clone();
    (asked["stream"], asked["return_token_ids"]) = (json!(true), json!(true));
    let (mut ids, mut events) = (Vec::new(), 0);
    let transcript = drained.client().stream(PATH, &asked).follow(|event| {
        ids.extend(event["choices"][0]["token_ids"].as_array().cloned().unwrap_or_default());
        events += 1;
        if events == 5 {
            drained.terminate();
        }
    });
    let code = transcript.error.as_ref().map(|error| &error["code"]);
    assert_eq!((code, transcript.done), (Some(&json!("shutting_down")), false), "{transcript:?}");
    assert!(!ids.is_empty() && ids.len() < 300);
    let mut rest = body;
    rest["resume"] = json!({"token_ids": ids});
    let rest = other.client().post(PATH, &rest).json();
    let text = |answer: &Value| answer["choices"][0]["text"].as_str().expect("a text").to_owned();
    assert_eq!(transcript.text + &text(&rest), text(&undisturbed));
    assert_eq!(rest["usage"]["completion_tokens"], undisturbed["usage"]["completion_tokens"]);
    drained.ends_well();
}
