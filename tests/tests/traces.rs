//! Traces through the real daemon: to a collector of the test's own, read by OpenTelemetry's own definitions in Python
//! (tests/traces/decode.py). And one that takes nothing: nobody waits for it.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use faser_tests::{Config, Server, metrics::wait_until, rules::root};
use serde_json::{Value, json};

const PAIR: &str = "model: {synthetic: {preset: tiny, max_context: 512}}\nspeculation: {policy: 'fixed:3'}\nlog: {level: debug, format: json}\n";
const PATH: &str = "/v1/completions";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

/// What came, as head and body.
type Came = Arc<Mutex<Vec<(String, Vec<u8>)>>>;

/// A collector on loopback; one that does not answer keeps who asks waiting.
fn collector(answers: bool) -> (String, Came) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("it has one"));
    let came = Came::default();
    let all = Arc::clone(&came);
    std::thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            let all = Arc::clone(&all);
            std::thread::spawn(move || take(connection, &all, answers));
        }
    });
    (address, came)
}

fn take(mut connection: TcpStream, came: &Came, answers: bool) -> Option<()> {
    let mut reader = BufReader::new(connection.try_clone().ok()?);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head).ok()? == 0 {
                return None;
            }
        }
        let head = head.to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "))?;
        let mut body = vec![0; length.parse().ok()?];
        reader.read_exact(&mut body).ok()?;
        came.lock().ok()?.push((head, body));
        if answers {
            connection.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").ok()?;
        }
    }
}

fn variables(more: &[(&'static str, &str)]) -> Vec<(&'static str, OsString)> {
    let soon = ("OTEL_BSP_SCHEDULE_DELAY", "50");
    more.iter().chain([&soon]).map(|(name, value)| (*name, OsString::from(value))).collect()
}

/// All spans that came; none, which is said, where Python cannot read them.
fn spans(test: &str, came: &Came) -> Option<Vec<Value>> {
    let mut bodies = String::new();
    for (_, body) in came.lock().expect("the collector").iter() {
        body.iter().for_each(|byte| write!(bodies, "{byte:02x}").expect("text"));
        bodies.push('\n');
    }
    let mut python = Command::new("python3");
    python.arg(root().join("tests/traces/decode.py")).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut python = python.stderr(Stdio::piped()).spawn().ok()?;
    // It may have ended for want of a package.
    let _ = python.stdin.take().expect("it is piped").write_all(bodies.as_bytes());
    let output = python.wait_with_output().expect("it ends");
    let errors = String::from_utf8_lossy(&output.stderr);
    if errors.contains("ModuleNotFoundError") {
        let why =
            "there is no python3 with opentelemetry-proto (pip install -r tests/traces/requirements.txt)";
        faser_skipped::skip(test, why);
        return None;
    }
    assert!(output.status.success(), "{errors}");
    Some(serde_json::from_slice(&output.stdout).expect("JSON"))
}

/// The spans of a trace by their names, those of one name in their order.
fn of_trace<'s>(spans: &'s [Value], trace: &str) -> HashMap<&'s str, Vec<&'s Value>> {
    let mut by_name: HashMap<&str, Vec<&Value>> = HashMap::new();
    for span in spans.iter().filter(|span| span["trace"] == trace) {
        by_name.entry(span["name"].as_str().expect("a name")).or_default().push(span);
    }
    by_name
}

fn seconds(span: &Value, key: &str) -> f64 {
    span[key].as_f64().unwrap_or_else(|| panic!("{key} of {span}"))
}

fn ask(server: &Server, trace: &str, flags: &str, body: &Value) -> String {
    let parent = format!("00-{trace}-{PARENT}-{flags}");
    let headers = [("traceparent", parent.as_str()), ("x-request-id", "mine")];
    let answer = server.client().send("POST", PATH, &headers, &body.to_string());
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.body
}

fn sent(server: &Server, spans: f64) {
    wait_until(server.client(), "spans are sent", |metrics| {
        metrics.value("faser_spans_exported_total") >= spans
    });
}

#[test]
fn a_request_is_a_trace_of_its_phases() {
    let test = "a_request_is_a_trace_of_its_phases";
    let (address, came) = collector(true);
    let server = Server::start_with(
        PAIR,
        &variables(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", &address),
            ("OTEL_EXPORTER_OTLP_HEADERS", "x-token=secret"),
            ("OTEL_SERVICE_NAME", "mine"),
        ]),
    );
    let body = |more: Value| {
        let mut body = json!({"prompt": [5, 7, 9, 11, 13], "max_tokens": 40, "seed": 1, "ignore_eos": true});
        body.as_object_mut().expect("one").extend(more.as_object().expect("one").clone());
        body
    };
    let begun = std::time::UNIX_EPOCH.elapsed().expect("a clock").as_secs_f64();
    ask(&server, TRACE, "01", &body(json!({"stream": true})));
    // A client that does not want to be traced, and one that says nothing.
    ask(&server, "11111111111111111111111111111111", "00", &body(json!({})));
    assert_eq!(server.client().post(PATH, &body(json!({"n": 2}))).status, 200);
    // Ended by a stop string: the device has run ahead.
    let whole = server.client().post(PATH, &body(json!({}))).json()["choices"][0]["text"].clone();
    let middle: String = whole.as_str().expect("a text").chars().skip(8).take(3).collect();
    let stopped = "22222222222222222222222222222222";
    ask(&server, stopped, "01", &body(json!({"stop": [middle]})));
    let refused = "33333333333333333333333333333333";
    let parent = format!("00-{refused}-{PARENT}-01");
    let answer = server.client().send("POST", PATH, &[("traceparent", &parent)], "{");
    assert_eq!(answer.status, 400);
    // 6 of the streamed one, 9 of two choices, 5 and 5, and 1.
    sent(&server, 26.0);
    let ended = std::time::UNIX_EPOCH.elapsed().expect("a clock").as_secs_f64();
    server.stop();
    let log = server.output();
    for trace in [TRACE, "11111111111111111111111111111111"] {
        let of_both = |line: &&str| line.contains("mine") && line.contains(trace);
        assert!(log.lines().any(|line| of_both(&line)), "no line of the log has the ids\n{log}");
    }
    {
        let came = came.lock().expect("the collector");
        let head = &came[0].0;
        assert!(head.starts_with("post /v1/traces http/1.1\r\n"), "{head}");
        assert!(head.contains("x-token: secret") && head.contains("application/x-protobuf"), "{head}");
    }
    let Some(spans) = spans(test, &came) else { return };
    assert_eq!(spans.len(), 26, "{spans:#?}");
    assert!(spans.iter().all(|span| span["resource"]["service.name"] == "mine"));
    let within = |span: &Value, outer: &Value| {
        assert_eq!(span["parent"], outer["id"], "{span}");
        assert!(seconds(span, "begin") >= seconds(outer, "begin") - 1e-3, "{span} {outer}");
        assert!(seconds(span, "begin") <= seconds(span, "end"), "{span}");
        assert!(seconds(span, "end") <= seconds(outer, "end") + 1e-3, "{span} {outer}");
    };
    let streamed = of_trace(&spans, TRACE);
    let one = |name: &str| {
        let found = streamed.get(name).unwrap_or_else(|| panic!("no {name} among {streamed:?}"));
        assert_eq!(found.len(), 1);
        found[0]
    };
    let names = ["POST /v1/completions", "llm_request", "queue", "prefill", "decode", "stream"];
    let [request, llm, queue, prefill, decode, stream] = names.map(one);
    assert_eq!((&request["parent"], &request["kind"]), (&json!(PARENT), &json!(2)));
    assert!(seconds(request, "begin") > begun - 1e-3 && seconds(request, "end") < ended + 1e-3);
    within(llm, request);
    within(stream, request);
    [queue, prefill, decode].iter().for_each(|phase| within(phase, llm));
    assert!((seconds(queue, "end") - seconds(prefill, "begin")).abs() < 1e-5);
    assert!((seconds(prefill, "end") - seconds(decode, "begin")).abs() < 1e-5);
    let said = &llm["attributes"];
    for (name, value) in [
        ("gen_ai.request.id", json!("mine")),
        ("gen_ai.request.model", json!("synthetic")),
        ("gen_ai.request.max_tokens", json!(40)),
        ("gen_ai.usage.prompt_tokens", json!(5)),
        ("gen_ai.usage.completion_tokens", json!(40)),
        ("gen_ai.response.finish_reasons", json!("length")),
    ] {
        assert_eq!(said[name], value, "{name} of {said}");
    }
    let latency = |name: &str| said[format!("gen_ai.latency.{name}")].as_f64().expect(name);
    let ttft = latency("time_in_queue") + latency("time_in_model_prefill");
    assert!((latency("time_to_first_token") - ttft).abs() < 1e-6);
    assert!(latency("e2e") >= latency("time_to_first_token") + latency("time_in_model_decode"));
    let rounds = |name: &str| decode["attributes"][name].as_f64().expect(name);
    assert!(rounds("faser.accepted_tokens") <= rounds("faser.proposed_tokens"));
    assert_eq!(rounds("faser.verify_passes") + rounds("faser.accepted_tokens"), 40.0);
    let ended_by_string = of_trace(&spans, stopped);
    assert_eq!(ended_by_string["llm_request"][0]["attributes"]["gen_ai.response.finish_reasons"], "stop");
    assert_eq!(ended_by_string["decode"].len(), 1);
    let of_refused = of_trace(&spans, refused);
    assert_eq!(of_refused.len(), 1);
    let code = &of_refused["POST /v1/completions"][0]["attributes"]["http.response.status_code"];
    assert_eq!(code, &json!(400));
    assert!(of_trace(&spans, "11111111111111111111111111111111").is_empty());
    let choices = spans.iter().filter(|span| span["attributes"]["gen_ai.request.n"] == 2);
    assert_eq!(choices.count(), 2);
}

#[test]
fn nobody_waits_for_a_collector_that_does_not_answer() {
    let (address, came) = collector(false);
    let yaml = format!("{PAIR}telemetry: {{otlp_endpoint: '{address}/'}}\ndrain_timeout_s: 5\n");
    let yaml = yaml.replace("debug", "warn");
    // Whoever waited for it would do so for the whole test.
    let server = Server::start_with(&yaml, &variables(&[("OTEL_EXPORTER_OTLP_TIMEOUT", "600000")]));
    // 66 spans each.
    let body = json!({"prompt": [3, 4], "max_tokens": 2, "n": 16, "seed": 1, "ignore_eos": true});
    for _ in 0..70 {
        assert_eq!(server.client().post(PATH, &body).status, 200);
    }
    let metrics = wait_until(server.client(), "spans are dropped", |metrics| {
        metrics.value("faser_spans_dropped_total") > 100.0
    });
    assert_eq!(metrics.value("faser_spans_exported_total"), 0.0);
    assert!(!came.lock().expect("the collector").is_empty(), "nothing was sent");
    server.stop();
}

#[test]
fn a_collector_that_is_away_is_told_of_once() {
    let yaml = format!("{PAIR}telemetry: {{otlp_endpoint: 'http://127.0.0.1:1'}}\n").replace("debug", "warn");
    let server = Server::start_with(&yaml, &variables(&[]));
    let body = json!({"prompt": [3, 4], "max_tokens": 2, "seed": 1});
    for failed in [5.0, 10.0] {
        assert_eq!(server.client().post(PATH, &body).status, 200);
        wait_until(server.client(), "spans that were not taken", |metrics| {
            metrics.value("faser_spans_failed_total") >= failed
        });
    }
    server.stop();
    let said = server.output();
    assert_eq!(said.matches("the collector does not take traces").count(), 1, "{said}");
}

#[test]
fn another_protocol_is_refused_at_the_start() {
    let config = Config::new(PAIR);
    let mut command = config.serve();
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317");
    command.env("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc");
    let output = command.output().expect("the binary can be started");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("OTEL_EXPORTER_OTLP_PROTOCOL is `grpc`"), "{said}");
    assert!(said.contains("4318"), "{said}");
}
