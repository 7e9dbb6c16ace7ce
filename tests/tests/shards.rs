//! The daemon with its models split over ranks on the CPU: the same text as with whole ones, and refusals of what cannot be split.

use faser_tests::{Config, Server, metrics::wait_until_idle};
use serde_json::json;

const PAIR: &str = "\
model:
  dtype: f32
  synthetic: {preset: tiny, layers: 2, hidden: 64, intermediate: 64, heads: 8, kv_heads: 2, vocab: 300, max_context: 64, residual_scale: 0.2}
kv: {memory: 4MiB}
scheduler: {max_running: 3, max_pass_rows: 16}
speculation: {policy: 'fixed:3'}
";

fn texts(server: &Server) -> Vec<String> {
    let ask = |index: u32| {
        let body = json!({
            "prompt": (0..5 + 4 * index).map(|i| (i * 37 + index) % 256).collect::<Vec<u32>>(), "max_tokens": 20, "seed": index,
            "temperature": if index == 1 { 0.0 } else { 0.8 }, "top_p": if index == 2 { 0.9 } else { 1.0 }, "stream": true,
        });
        let transcript = server.client().stream("/v1/completions", &body).transcript();
        assert!(transcript.complete(), "{body}: {transcript:?}");
        transcript.text
    };
    std::thread::scope(|scope| {
        let asked: Vec<_> = (0..3).map(|index| scope.spawn(move || ask(index))).collect();
        asked.into_iter().map(|text| text.join().expect("a text")).collect()
    })
}

#[test]
fn split_models_stream_the_text_of_whole_ones() {
    let on = |device: &str| Server::start(&format!("{PAIR}device: {{kind: cpu{device}}}\n"));
    let expected = texts(&on(""));
    for device in [", tensor_parallel: 2", ", tensor_parallel: 4, draft_tensor_parallel: 2"] {
        let server = on(device);
        assert_eq!(texts(&server), expected, "{device}");
        wait_until_idle(server.client());
        server.stop();
    }
}

#[test]
fn a_draft_that_is_held_otherwise_than_its_target_changes_no_text() {
    for (target, others) in [("f32", ["int8", "bf16"]), ("bf16", ["int8", "f32"]), ("int8", ["bf16", "f32"])]
    {
        let on = |draft: &str, device: &str| {
            let pair = PAIR.replace("dtype: f32", &format!("dtype: {target}\n  draft_dtype: {draft}"));
            Server::start(&format!("{pair}device: {{kind: cpu{device}}}\n"))
        };
        let expected = texts(&on("auto", ""));
        for (draft, device) in
            [(others[0], ""), (others[0], ", tensor_parallel: 2, draft_tensor_parallel: 2"), (others[1], "")]
        {
            let server = on(draft, device);
            assert_eq!(texts(&server), expected, "{target}, a draft in {draft}{device}");
            let metrics = wait_until_idle(server.client());
            let accepted = metrics.value("faser_spec_decode_num_accepted_tokens_total");
            assert!(accepted > 0.0, "{target}, a draft in {draft}{device}: nothing was accepted");
            server.stop();
        }
    }
}

#[test]
fn replicas_of_split_models_stream_the_text_of_one_whole() {
    let on = |device: &str| Server::start(&format!("{PAIR}device: {{kind: cpu{device}}}\n"));
    let expected = texts(&on(""));
    let server = on(", tensor_parallel: 2, replicas: 2");
    let client = server.client();
    // Twice, so that some of them find what they begin with cached.
    for _ in 0..2 {
        assert_eq!(texts(&server), expected);
    }
    let ready = client.get("/ready").json();
    let serving = |number| json!({"replica": number, "status": "serving"});
    assert_eq!(ready, json!({"status": "ready", "replicas": [serving(0), serving(1)]}));
    let metrics = wait_until_idle(client);
    for replica in 0..2 {
        let finished = metrics.value(&format!("faser_requests_finished_total{{replica=\"{replica}\"}}"));
        // One of them is the warm-up's.
        assert!(finished > 1.0, "replica {replica} had {finished}");
    }
    assert_eq!(
        (metrics.value("faser_replicas_ready"), metrics.value("faser_requests_moved_total")),
        (2.0, 0.0)
    );
    server.stop();
}

#[test]
fn check_says_what_each_replica_has() {
    let config =
        Config::new(&format!("{PAIR}device: {{kind: cpu, threads: 1, tensor_parallel: 2, replicas: 2}}\n"));
    let output = config.command(&["check"]).output().expect("the binary can be started");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{err}");
    for line in ["replicas 2, each with", "of replica 0: draft on cores", "of replica 1: draft on cores"] {
        assert!(out.contains(line), "{line:?} in {out}");
    }
    assert!(err.contains("fewer cores than replicas"), "{err}");
}

#[test]
fn models_that_cannot_be_split_so_are_refused() {
    let refusal = |device: &str| {
        let config = Config::new(&format!("{PAIR}device: {{{device}}}\n"));
        let output = config.command(&["check"]).output().expect("the binary can be started");
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let words = refusal("kind: cpu, tensor_parallel: 3");
    assert!(words.contains("over 3 ranks: its 8 heads"), "{words}");
    let words = refusal("kind: cpu, tensor_parallel: 0");
    assert!(words.contains("device.tensor_parallel"), "{words}");
    // Before any GPU is asked for.
    let words = refusal("kind: 'cuda:0', draft_tensor_parallel: 2");
    assert!(words.contains("at most `device.tensor_parallel`"), "{words}");
    let words = refusal("kind: 'cuda:0,1'");
    assert!(words.contains("names 2 GPUs"), "{words}");
}
