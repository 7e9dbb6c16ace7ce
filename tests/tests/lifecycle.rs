//! A daemon's life from outside: a full queue, a drain on SIGTERM, a client that goes away.

use faser_tests::{
    Server,
    metrics::{wait_until, wait_until_idle},
};
use serde_json::{Value, json};

/// One sequence runs and one waits.
const NARROW: &str = "\
model:
  synthetic: {preset: tiny}
scheduler: {max_running: 1, max_waiting: 1}
log: {level: info}
";

fn long_stream(tokens: usize) -> Value {
    json!({"prompt": "a long stream", "max_tokens": tokens, "temperature": 0.9, "seed": 1, "stream": true})
}

#[test]
fn a_full_queue_answers_429_and_a_disconnect_makes_room() {
    let server = Server::start(NARROW);
    let client = server.client();
    let mut running = client.stream("/v1/completions", &long_stream(4000));
    assert!(running.next().is_some());
    let waiting = std::thread::spawn({
        let client = client.clone();
        move || client.stream("/v1/completions", &long_stream(20)).transcript()
    });
    wait_until(client, "one request waits", |metrics| metrics.value("faser_requests_waiting") == 1.0);
    let refused = client.post("/v1/completions", &json!({"prompt": "x"}));
    assert_eq!(refused.status, 429, "{refused:?}");
    let seconds = refused.header("retry-after").and_then(|seconds| seconds.parse::<u32>().ok());
    assert!(seconds.is_some_and(|seconds| seconds >= 1), "{refused:?}");
    assert_eq!(refused.error()["type"], "rate_limit_error");
    assert_eq!(client.get("/ready").status, 200, "a full queue is no fault");
    // The client of the running stream goes away: the one that waits gets its place.
    drop(running);
    assert!(waiting.join().expect("the waiting stream is read").complete());
    let metrics = wait_until_idle(client);
    assert_eq!(metrics.value("faser_requests_cancelled_total"), 1.0);
}

#[test]
fn sigterm_drains() {
    let server = Server::start(NARROW);
    let client = server.client();
    let alone = client.stream("/v1/completions", &long_stream(2000)).transcript();
    assert!(alone.complete());
    let mut stream = client.stream("/v1/completions", &long_stream(2000));
    let first = stream.next().expect("a first event");
    server.terminate();
    server.wait_for("it is not ready after SIGTERM", || client.get("/ready").status == 503);
    let refused = client.post("/v1/completions", &json!({"prompt": "too late"}));
    assert_eq!(refused.status, 503, "{refused:?}");
    assert!(refused.error()["message"].as_str().is_some_and(|message| message.contains("shutting down")));
    assert_eq!(client.get("/health").status, 200, "a draining daemon lives");
    let rest = stream.transcript();
    assert!(rest.complete(), "the stream in flight is finished: {:?}", rest.finish_reason);
    let first = first["choices"][0]["text"].as_str().unwrap_or_default();
    assert_eq!(format!("{first}{}", rest.text), alone.text);
    server.ends_well();
}

#[test]
fn a_drain_that_takes_too_long_ends_its_streams_cleanly() {
    let server = Server::start(&format!("{NARROW}drain_timeout_s: 0\n"));
    let mut stream = server.client().stream("/v1/completions", &long_stream(4000));
    assert!(stream.next().is_some());
    server.terminate();
    let rest = stream.transcript();
    assert!(rest.error.is_some() && !rest.done, "an error event ends it: {:?} {}", rest.error, rest.done);
    server.ends_well();
}

#[test]
fn a_request_without_a_stream_that_drain_breaks_off_gets_an_error_too() {
    let server = Server::start(&format!("{NARROW}drain_timeout_s: 0\n"));
    let client = server.client().clone();
    let asked = std::thread::spawn({
        let client = client.clone();
        move || {
            client.post("/v1/completions", &json!({"prompt": "x", "max_tokens": 4000, "temperature": 0.9}))
        }
    });
    wait_until(&client, "it runs", |metrics| metrics.value("faser_requests_running") == 1.0);
    server.terminate();
    let broken = asked.join().expect("it is answered");
    assert_eq!((broken.status, broken.error()["code"].as_str()), (503, Some("shutting_down")), "{broken:?}");
    server.ends_well();
}

#[test]
fn a_second_sigterm_ends_at_once() {
    let server = Server::start(&format!("{NARROW}drain_timeout_s: 3600\n"));
    let client = server.client();
    let mut stream = client.stream("/v1/completions", &long_stream(4000));
    assert!(stream.next().is_some());
    server.terminate();
    server.wait_for("it is not ready after SIGTERM", || client.get("/ready").status == 503);
    assert!(stream.next().is_some(), "the stream goes on while the daemon drains");
    server.terminate();
    let status = server.wait();
    assert_eq!(status.code(), Some(143), "{status}\n{}", server.output());
    assert!(server.output().contains("ended at once, with sequences in flight"));
}

#[test]
fn a_drain_under_load_breaks_no_stream() {
    const STREAMS: u64 = 32;
    let server = Server::start("model:\n  synthetic: {preset: tiny}\nscheduler: {max_running: 8}\n");
    let client = server.client();
    let readers: Vec<_> = (0..STREAMS)
        .map(|seed| {
            let mut body = long_stream(200);
            body["seed"] = seed.into();
            let client = client.clone();
            std::thread::spawn(move || client.stream("/v1/completions", &body).transcript())
        })
        .collect();
    wait_until(client, "all are taken", |metrics| {
        let finished = metrics.get("faser_requests_finished_total").unwrap_or(0.0);
        let here = metrics.value("faser_requests_running") + metrics.value("faser_requests_waiting");
        // The first of all was the daemon's own, to warm up.
        finished + here == STREAMS as f64 + 1.0
    });
    server.terminate();
    for reader in readers {
        assert!(reader.join().expect("a reader").complete());
    }
    server.ends_well();
}
