//! KV events through the real daemon, heard by a consumer in Python that is written from vLLM's format (tests/kv-events/consumer.py): what it
//! says is cached of a prompt is what the request's own usage says then, also after evictions and after a lost device.
#![cfg(debug_assertions)]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use faser_tests::{Server, metrics::Metrics, metrics::wait_until, rules::root};
use serde_json::{Value, json};

/// KV for few sequences, so that blocks are evicted.
const PAIR: &str = "\
model:
  dtype: f32
  synthetic: {preset: tiny, layers: 4, hidden: 64, intermediate: 64, heads: 8, kv_heads: 8, vocab: 300, max_context: 256}
kv: {memory: 1MiB}
scheduler: {max_running: 2, max_pass_rows: 64}
speculation: {policy: 'fixed:3'}
";
const EVENTS: &str =
    "endpoint: 'tcp://127.0.0.1:0', replay_endpoint: 'tcp://127.0.0.1:0', topic: kv@here@tiny";
const BLOCK: u64 = 16;

/// The consumer of one replica.
struct Consumer {
    child: Child,
    ask: ChildStdin,
    said: BufReader<ChildStdout>,
}

/// Whether the consumer can run; it is said if not.
fn there_is_python(test: &str) -> bool {
    let tried = Command::new("python3").args(["-c", "import zmq, msgpack"]).output();
    let there = tried.is_ok_and(|tried| tried.status.success());
    if !there {
        faser_skipped::skip(
            test,
            "there is no python3 with pyzmq and msgpack (pip install -r tests/kv-events/requirements.txt)",
        );
    }
    there
}

/// Where the replicas publish, or where they can be asked again, as the log says.
fn endpoints(server: &Server, key: &str) -> Vec<String> {
    let output = server.output();
    let lines = output.lines().filter(|line| line.contains(&format!("`kv_events.{key}` is tcp://")));
    let address = |line: &str| {
        let rest = line.split_once("tcp://").expect("an address").1;
        format!("tcp://{}", rest.split_whitespace().next().unwrap_or_default())
    };
    lines.map(address).collect()
}

impl Consumer {
    fn start(server: &Server, replica: usize) -> Consumer {
        let [publish, replay] = ["endpoint", "replay_endpoint"].map(|key| endpoints(server, key));
        let mut child = Command::new("python3")
            .arg(root().join("tests/kv-events/consumer.py"))
            .args([&publish[replica], &replay[replica], "kv@here@tiny"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 can be started");
        let ask = child.stdin.take().expect("it is piped");
        let said = BufReader::new(child.stdout.take().expect("it is piped"));
        Consumer { child, ask, said }
    }

    /// What it knows once it has heard all that was published, of so many batches.
    fn knows(&mut self, batches: f64, prompts: &[&[u64]]) -> Value {
        let asked = json!({"until": batches as u64 - 1, "prompts": prompts});
        writeln!(self.ask, "{asked}").expect("it listens");
        let mut line = String::new();
        self.said.read_line(&mut line).expect("it answers");
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("the consumer ended: {line:?}"))
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One of a few families of prompts, which part in several places.
fn prompt(number: u64) -> Vec<u64> {
    let length = 40 + number * 13 % 60;
    let turn = |i: u64| number >> (i / 24) & 3;
    (0..length).map(|i| (i * 7 + turn(i) * 31 + 3) % 256).collect()
}

fn cached_blocks(server: &Server, body: &Value) -> u64 {
    let answer = server.client().post("/v1/completions", body);
    assert_eq!(answer.status, 200, "{answer:?}");
    let cached = &answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"];
    cached.as_u64().unwrap_or(0) / BLOCK
}

/// When nothing is under way: batches published, of the replica with this label.
fn batches(server: &Server, label: &str) -> f64 {
    let idle = |metrics: &Metrics| {
        metrics.sum("faser_requests_running") + metrics.sum("faser_requests_waiting") == 0.0
            && metrics.sum("faser_ready") > 0.0
    };
    let metrics = wait_until(server.client(), "nothing is under way", idle);
    assert_eq!(metrics.sum("faser_kv_event_batches_dropped_total"), 0.0);
    metrics.value(&format!("faser_kv_event_batches_total{label}"))
}

#[test]
fn a_router_predicts_what_usage_says_over_evictions_and_a_lost_device() {
    if !there_is_python("a_router_predicts_what_usage_says_over_evictions_and_a_lost_device") {
        return;
    }
    for encoding in ["map", "array"] {
        let server = Server::start(&format!(
            "{PAIR}kv_events: {{{EVENTS}, encoding: {encoding}}}\ndevice: {{kind: cpu, threads: 1, drills: [{{what: panic, at: 600}}]}}\n"
        ));
        let mut consumer = Consumer::start(&server, 0);
        let (mut hits, mut after_loss) = (0, 0);
        let mut known = Value::Null;
        for number in 0.. {
            let prompt = prompt(number * 5 % 64);
            let mut body =
                json!({"prompt": prompt, "max_tokens": 1 + number % 30, "seed": number, "ignore_eos": true});
            known = consumer.knows(batches(&server, ""), &[&prompt]);
            if number % 7 == 6 {
                // Nobody else hears of what a salt hides.
                body["cache_salt"] = json!("mine");
                cached_blocks(&server, &body);
                continue;
            }
            let cached = cached_blocks(&server, &body);
            assert_eq!(known["blocks"], json!([cached]), "{encoding}, request {number}: {known}");
            hits += cached;
            after_loss += u64::from(known["cleared"] == 2);
            if after_loss > 40 {
                break;
            }
            assert!(number < 2000, "no device was lost: {known}");
        }
        assert!(known["removed"].as_u64() > Some(50), "little was evicted: {known}");
        assert!(hits > 40, "{hits} blocks were found: {known}");
        assert_eq!((&known["kinds"], &known["rank"]), (&json!([encoding]), &json!(0)));
        // One that comes late hears of all that is past.
        let all = batches(&server, "");
        let mut late = Consumer::start(&server, 0);
        let prompts: Vec<Vec<u64>> = (0..64).map(prompt).collect();
        let prompts: Vec<&[u64]> = prompts.iter().map(Vec::as_slice).collect();
        let (known, late) = (consumer.knows(all, &prompts), late.knows(all, &prompts));
        assert_eq!((&known["blocks"], &known["stored"]), (&late["blocks"], &late["stored"]));
        assert!(late["replayed"].as_u64() > Some(20), "{late}");
        server.stop();
    }
}

#[test]
fn each_replica_tells_of_its_own_cache() {
    if !there_is_python("each_replica_tells_of_its_own_cache") {
        return;
    }
    let server = Server::start(&format!(
        "{PAIR}kv_events: {{{EVENTS}}}\ndevice: {{kind: cpu, threads: 1, replicas: 2}}\n"
    ));
    let mut consumers = [0, 1].map(|replica| Consumer::start(&server, replica));
    let mut known = |prompt: &[u64]| {
        [0, 1].map(|replica: usize| {
            let batches = batches(&server, &format!("{{replica=\"{replica}\"}}"));
            let known = consumers[replica].knows(batches, &[prompt]);
            assert_eq!(known["rank"], json!(replica));
            (known["blocks"][0].as_u64().expect("a number"), known["stored"].as_u64().expect("a number"))
        })
    };
    let ask = |number: u64| {
        let body = json!({"prompt": prompt(number), "max_tokens": 20, "seed": number, "ignore_eos": true});
        cached_blocks(&server, &body)
    };
    // Both have work, so both have something cached.
    std::thread::scope(|scope| (0..8).for_each(|number| drop(scope.spawn(move || ask(number)))));
    let stored = known(&prompt(1)).map(|(_, stored)| stored);
    assert!(stored.iter().all(|stored| *stored > 0), "{stored:?}");
    for number in 0..12 {
        let blocks = known(&prompt(number)).map(|(blocks, _)| blocks);
        let cached = ask(number);
        assert!(blocks.contains(&cached), "{number}: {cached} of {blocks:?}");
    }
    server.stop();
}
