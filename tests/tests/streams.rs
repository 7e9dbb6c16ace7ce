//! Many streams at once, some of them cut off at random: the others are what they would be alone, and no block leaks.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use faser_tests::{
    Server,
    client::Client,
    metrics::{Metrics, wait_until_idle},
};
use serde_json::{Value, json};

const STREAMS: usize = 64;
/// Fewer places than streams, and blocks for about half of what runs: sequences wait and are preempted.
const CROWDED: &str = "\
model:
  synthetic: {preset: tiny, max_context: 256}
kv: {memory: 1MiB}
scheduler: {max_running: 24, max_waiting: 64, max_pass_rows: 96}
log: {level: warn}
";

/// SplitMix64, so that every run of the test does the same.
fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

struct Plan {
    body: Value,
    /// Hang up after so many events.
    cut_after: Option<usize>,
    delay: Duration,
}

fn plans() -> Vec<Plan> {
    let mut state = 2024;
    let mut below = |limit: u64| draw(&mut state) % limit;
    (0..STREAMS)
        .map(|index| {
            let prompt: Vec<u64> = (0..1 + below(120)).map(|_| below(2048)).collect();
            let temperature = [0.0, 0.7, 1.0, 1.3][below(4) as usize];
            let mut body = json!({
                "prompt": prompt, "max_tokens": 20 + below(100), "temperature": temperature, "seed": index,
                "stream": true, "stream_options": {"include_usage": true},
            });
            if below(3) > 0 {
                let k_max = [0, 1, 2, 4, 8][below(5) as usize];
                body["speculation"] = json!({"k_max": k_max});
            }
            if below(3) == 0 {
                body["frequency_penalty"] = json!(0.6);
                body["top_p"] = json!(0.9);
            }
            let cut_after = (below(3) == 0).then(|| below(12) as usize);
            Plan { body, cut_after, delay: Duration::from_millis(below(50)) }
        })
        .collect()
}

#[test]
fn streams_survive_their_neighbours() {
    let server = Server::start(CROWDED);
    let client = server.client();
    let plans = plans();
    let cut = plans.iter().filter(|plan| plan.cut_after.is_some()).count();
    assert!((10..40).contains(&cut), "{cut} of {STREAMS} are to be cut");
    let solo: Vec<String> = plans.iter().map(|plan| whole(client, &plan.body)).collect();
    let before = Metrics::scrape(client);
    let hung_up = AtomicUsize::new(0);
    let survivors: usize = std::thread::scope(|scope| {
        let streams: Vec<_> = plans
            .iter()
            .zip(&solo)
            .enumerate()
            .map(|(index, (plan, alone))| {
                let hung_up = &hung_up;
                scope.spawn(move || {
                    std::thread::sleep(plan.delay);
                    match plan.cut_after {
                        Some(events) => {
                            let mut stream = client.stream("/v1/completions", &plan.body);
                            let _seen = stream.by_ref().take(events).count();
                            hung_up.fetch_add(usize::from(!stream.done()), Ordering::Relaxed);
                            0
                        }
                        None => {
                            assert_eq!(
                                &whole(client, &plan.body),
                                alone,
                                "stream {index} differs from its solo run"
                            );
                            1
                        }
                    }
                })
            })
            .collect();
        streams.into_iter().map(|stream| stream.join().expect("a stream ends as it should")).sum()
    });
    assert_eq!(survivors, STREAMS - cut);
    let after = wait_until_idle(client);
    let grown = |name: &str| after.value(name) - before.value(name);
    println!(
        "{survivors} of {STREAMS} streams complete and equal to their solo runs, {} hung up",
        hung_up.into_inner()
    );
    print!(
        "{}",
        after.show(&[
            "faser_kv_blocks",
            "faser_requests",
            "faser_preemptions_total",
            "faser_spec_decode_num_drafts_total"
        ])
    );
    let ended = grown("faser_requests_finished_total") + grown("faser_requests_cancelled_total");
    assert_eq!(ended, STREAMS as f64, "every request has an end");
    assert!(grown("faser_requests_cancelled_total") > 0.0, "no disconnect was noticed");
    assert!(
        grown("faser_preemptions_total") > 0.0,
        "the pools were never short: the test tests less than it says"
    );
    assert_eq!(client.get("/ready").status, 200);
}

/// The text of a stream that has to be complete, with as many tokens as its usage says.
fn whole(client: &Client, body: &Value) -> String {
    let transcript = client.stream("/v1/completions", body).transcript();
    assert!(transcript.complete(), "{body}: {transcript:?}");
    let usage = transcript.usage.expect("usage was asked for");
    assert_eq!(usage["completion_tokens"], body["max_tokens"], "{body}");
    transcript.text
}
