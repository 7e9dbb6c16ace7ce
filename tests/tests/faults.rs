//! Faults on purpose under concurrent streaming clients, through the real daemon: every client gets its whole text or a clear error, no KV is
//! left behind, nothing hangs. What there is beyond that is printed by `cargo test -p faser-tests --test faults -- --ignored --nocapture`.
#![cfg(debug_assertions)]

mod fake_gpu;

use std::net::TcpStream;
use std::time::{Duration, Instant};

use faser_tests::{
    Server,
    client::Client,
    metrics::{Metrics, wait_until, wait_until_idle},
};
use serde_json::{Value, json};

/// How often a client asks again that was told to come back later.
const TRIES: u32 = 12;
const PAIR: &str = "\
model:
  dtype: f32
  synthetic: {preset: tiny, layers: 2, hidden: 64, intermediate: 64, heads: 8, kv_heads: 2, vocab: 300, max_context: 128, residual_scale: 0.2}
kv: {memory: 8MiB}
scheduler: {max_running: 4, max_pass_rows: 16}
speculation: {policy: 'fixed:3'}
";
/// Two ranks, which wait for each other as long as a busy machine makes them.
const GROUP: &str = "kind: cpu, threads: 2, tensor_parallel: 2";

/// The same numbers from the same seed (splitmix64).
struct Seeded(u64);

impl Seeded {
    fn between(&mut self, least: u64, most: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        least + (bits ^ (bits >> 31)) % (most - least + 1)
    }
}

/// Clients that ask at the same time.
#[derive(Clone, Copy)]
struct Clients {
    count: u32,
    tokens: u32,
}

const CLIENTS: Clients = Clients { count: 8, tokens: 60 };

/// What one client saw.
#[derive(Clone, Debug, Default)]
struct Seen {
    text: String,
    /// None if the text is whole.
    error: Option<Value>,
    /// Times it was told to come back later.
    refusals: u32,
    /// Longest wait between two events.
    silence: Duration,
}

impl Clients {
    fn body(self, index: u32) -> Value {
        json!({
            "prompt": (0..5 + 4 * (index % 3)).map(|i| (i * 37 + index) % 256).collect::<Vec<u32>>(),
            "max_tokens": self.tokens, "seed": index, "temperature": if index % 4 == 1 { 0.0 } else { 0.8 },
            "frequency_penalty": if index % 4 == 2 { 0.6 } else { 0.0 }, "stream": true, "ignore_eos": true,
        })
    }

    /// All at once; `meanwhile` runs beside them.
    fn ask(self, client: &Client, meanwhile: impl FnOnce()) -> Vec<Seen> {
        std::thread::scope(|scope| {
            let ask = |index| move || one(client, &self.body(index));
            let asked: Vec<_> = (0..self.count).map(|index| scope.spawn(ask(index))).collect();
            meanwhile();
            asked.into_iter().map(|seen| seen.join().expect("a client")).collect()
        })
    }
}

fn one(client: &Client, body: &Value) -> Seen {
    let mut seen = Seen::default();
    loop {
        match client.try_stream("/v1/completions", body) {
            Ok(events) => {
                let mut last = Instant::now();
                let transcript = events.follow(|_| {
                    let now = Instant::now();
                    seen.silence = seen.silence.max(now - last);
                    last = now;
                });
                let whole = transcript.complete();
                assert!(whole || transcript.error.is_some(), "it broke off without a word: {transcript:?}");
                return Seen { text: transcript.text, error: transcript.error, ..seen };
            }
            Err(refusal) => {
                assert_eq!((refusal.status, refusal.header("retry-after")), (503, Some("1")), "{refusal:?}");
                seen.refusals += 1;
                std::thread::sleep(Duration::from_millis(500));
                if seen.refusals == TRIES || TcpStream::connect(&client.address).is_err() {
                    return Seen { error: Some(refusal.error()), ..seen };
                }
            }
        }
    }
}

fn expected(clients: Clients) -> Vec<String> {
    let server = Server::start(&format!("{PAIR}device: {{kind: cpu, threads: 1}}\n"));
    let seen = clients.ask(server.client(), || ());
    assert!(seen.iter().all(|seen| seen.error.is_none()), "{seen:?}");
    seen.into_iter().map(|seen| seen.text).collect()
}

/// What came of a fault.
struct Outcome {
    seen: Vec<Seen>,
    metrics: Metrics,
    output: String,
}

impl Outcome {
    fn whole(&self) -> usize {
        self.seen.iter().filter(|seen| seen.error.is_none()).count()
    }

    fn recoveries(&self) -> (f64, f64) {
        let of = |what: &str| self.metrics.sum(&format!("faser_device_recovery_seconds_{what}"));
        (of("count"), of("sum"))
    }

    fn check(&self, expected: &[String]) {
        right_or_told(&self.seen, expected);
    }

    /// A row of the table.
    fn row(&self, fault: &str, seed: u64) -> String {
        let (recoveries, seconds) = self.recoveries();
        let mean = if recoveries > 0.0 { format!("{:.2}", seconds / recoveries) } else { "-".to_owned() };
        let silence = self.seen.iter().map(|seen| seen.silence).max().unwrap_or_default().as_secs_f64();
        let refusals: u32 = self.seen.iter().map(|seen| seen.refusals).sum();
        let (failures, moved) =
            (self.metrics.sum("faser_device_failures_total"), self.metrics.sum("faser_requests_moved_total"));
        format!(
            "| {fault} | {seed} | {failures} | {mean} | {silence:.2} | {} of {} | {} | {refusals} | {moved} |",
            self.whole(),
            self.seen.len(),
            self.seen.len() - self.whole(),
        )
    }
}

/// What is there of every text is right, and who has not all of it was told so.
fn right_or_told(seen: &[Seen], expected: &[String]) {
    for (seen, expected) in seen.iter().zip(expected) {
        match &seen.error {
            None => assert_eq!(&seen.text, expected),
            Some(error) => {
                assert!(expected.starts_with(&seen.text), "{:?} of {expected:?}", seen.text);
                assert!(error["message"].as_str().is_some_and(|words| words.len() > 20), "{error}");
            }
        }
    }
}

/// What came of a fault that leaves no device: the daemon has ended.
struct Ended {
    seen: Vec<Seen>,
    status: Option<i32>,
    output: String,
    took: Duration,
}

impl Ended {
    /// Everybody was told, and then it ended with the status for that.
    fn check(&self, expected: &[String]) {
        right_or_told(&self.seen, expected);
        let errors: Vec<&Value> = self.seen.iter().filter_map(|seen| seen.error.as_ref()).collect();
        assert!(!errors.is_empty(), "{}", self.output);
        let told = |error: &&Value| error["code"] == "device_failed" || error["code"] == "not_ready";
        assert!(errors.iter().all(told), "{errors:?}");
        assert_eq!(self.status, Some(75), "{}", self.output);
        for words in ["the device is given up", "no device is left: the daemon ends", "exit_status=75"] {
            assert!(self.output.contains(words), "{words}: {}", self.output);
        }
    }

    fn row(&self, fault: &str, seed: u64) -> String {
        let whole = self.seen.iter().filter(|seen| seen.error.is_none()).count();
        let (all, took) = (self.seen.len(), self.took.as_secs_f64());
        format!(
            "| {fault}, ended with status 75 after {took:.2} s | {seed} | | | | {whole} of {all} | {} | | |",
            all - whole
        )
    }
}

/// Clients on a daemon whose only device fails for good.
fn run_to_the_end(server: &Server, clients: Clients) -> Ended {
    let begun = Instant::now();
    let seen = clients.ask(server.client(), || ());
    let status = server.wait().code();
    Ended { seen, status, output: server.output(), took: begun.elapsed() }
}

/// Clients on a daemon with a fault; afterwards nothing is left of them, and the daemon ends when it is told to.
fn run(server: &Server, clients: Clients) -> Outcome {
    let seen = clients.ask(server.client(), || ());
    let metrics = wait_until_idle(server.client());
    server.stop();
    Outcome { seen, metrics, output: server.output() }
}

fn on(device: &str, drills: &str) -> Server {
    Server::start(&format!("{PAIR}device: {{{device}, drills: [{drills}]}}\n"))
}

/// Sums of a rank over its group: after the warm-up, and long before the clients have their texts.
fn moment(seeded: &mut Seeded) -> u64 {
    seeded.between(60, 85)
}

/// A rank panics in the middle of a pass.
fn panics(seed: u64) -> Outcome {
    let mut seeded = Seeded(seed);
    let (rank, at) = (seeded.between(0, 1), moment(&mut seeded));
    run(&on(GROUP, &format!("{{what: panic, rank: {rank}, at: {at}}}")), CLIENTS)
}

/// A rank hangs for longer than the others wait.
fn hangs(seed: u64, ms: u64) -> Outcome {
    let mut seeded = Seeded(seed);
    let (rank, at) = (seeded.between(0, 1), moment(&mut seeded));
    let group = format!("{GROUP}, rank_deadline_s: 2");
    run(&on(&group, &format!("{{what: hang, rank: {rank}, at: {at}, ms: {ms}}}")), CLIENTS)
}

/// A panic, and then so many builds that fail.
fn builds_fail(seed: u64, device: &str, builds: u64) -> Outcome {
    run(&on(device, &falls_for(seed, builds)), CLIENTS)
}

fn falls_for(seed: u64, builds: u64) -> String {
    let mut seeded = Seeded(seed);
    let fails: String = (1..=builds).map(|at| format!(", {{what: build, at: {at}}}")).collect();
    format!("{{what: panic, rank: {}, at: {}}}{fails}", seeded.between(0, 1), moment(&mut seeded))
}

/// Five devices in a row are lost, each soon after it was built.
fn rebuilt_five_times(seed: u64) -> Outcome {
    let mut seeded = Seeded(seed);
    let mut at = moment(&mut seeded);
    let mut drills = Vec::new();
    for _ in 0..5 {
        drills.push(format!("{{what: panic, rank: 1, at: {at}}}"));
        at += seeded.between(4, 12);
    }
    run(&on(GROUP, &drills.join(", ")), CLIENTS)
}

/// Replicas of two ranks each, of which the first is given up.
fn one_of_two_given_up(seed: u64) -> Outcome {
    builds_fail(seed, &format!("{GROUP}, replicas: 2"), 5)
}

/// Fewer on the fake GPU: fibers are slow.
const GPU_CLIENTS: Clients = Clients { count: 4, tokens: 24 };

/// A GPU is lost in the middle of a pass. None, which is said past the harness, where fake ones cannot be built.
fn with_a_lost_gpu(seed: u64, device: &str) -> Option<Server> {
    let lose = format!("pick_tokens:{}", Seeded(seed).between(20, 30));
    let variables = [("FASER_FAKE_LOSE", lose.as_str()), ("FASER_FAKE_GPUS", "2")];
    let variables = fake_gpu::variables("with_a_lost_gpu", &variables)?;
    Some(Server::start_with(&format!("{PAIR}device: {{{device}, partitions: []}}\n"), &variables))
}

fn the_gpu_is_lost(seed: u64) -> Option<Ended> {
    Some(run_to_the_end(&with_a_lost_gpu(seed, "kind: 'cuda:0'")?, GPU_CLIENTS))
}

fn one_of_two_gpus_is_lost(seed: u64) -> Option<Outcome> {
    Some(run(&with_a_lost_gpu(seed, "kind: cuda, replicas: 2")?, GPU_CLIENTS))
}

fn the_only_device_is_given_up(seed: u64) -> Ended {
    run_to_the_end(&on(GROUP, &falls_for(seed, 5)), CLIENTS)
}

/// SIGTERM while the device is being rebuilt: what the clients saw, and what the daemon did.
fn terminated_in_a_rebuild(seed: u64, drain_timeout_s: u32) -> (Vec<Seen>, Duration, String) {
    let device = format!("{GROUP}, drills: [{}]", falls_for(seed, 3));
    let server = Server::start(&format!("{PAIR}device: {{{device}}}\ndrain_timeout_s: {drain_timeout_s}\n"));
    let mut terminated = Instant::now();
    let seen = CLIENTS.ask(server.client(), || {
        let rebuilding = |metrics: &Metrics| metrics.sum("faser_ready") == 0.0;
        wait_until(server.client(), "the device is being rebuilt", rebuilding);
        server.terminate();
        terminated = Instant::now();
    });
    server.ends_well();
    (seen, terminated.elapsed(), server.output())
}

#[test]
fn a_rank_that_panics_or_hangs_costs_time_and_no_text() {
    let expected = expected(CLIENTS);
    for (outcome, words) in [(panics(1), "drill: rank"), (hangs(2, 4000), "has not come within 2000 ms")] {
        outcome.check(&expected);
        assert_eq!(outcome.whole(), 8, "{}", outcome.output);
        assert!(outcome.recoveries().0 >= 1.0);
        assert!(outcome.output.contains(words), "{}", outcome.output);
    }
}

#[test]
fn five_rebuilds_in_a_row_end_well_or_with_a_word() {
    let expected = expected(CLIENTS);
    // Builds that fail take nothing with them.
    let outcome = builds_fail(3, GROUP, 4);
    outcome.check(&expected);
    assert_eq!(outcome.whole(), 8, "{}", outcome.output);
    assert!(outcome.metrics.sum("faser_device_failures_total") >= 5.0);
    // Devices that are lost take with them who was on three of them, lest one request fell every device.
    let outcome = rebuilt_five_times(4);
    outcome.check(&expected);
    assert_eq!(outcome.recoveries().0, 5.0, "{}", outcome.output);
    let failed = outcome.seen.iter().filter_map(|seen| seen.error.as_ref());
    assert!(failed.clone().all(|error| error["code"] == "device_failed"), "{:?}", outcome.seen);
    assert_eq!(outcome.metrics.sum("faser_requests_failed_total"), failed.count() as f64);
}

#[test]
fn a_lost_gpu_ends_the_daemon_when_everybody_was_told() {
    let Some(ended) = the_gpu_is_lost(5) else { return };
    ended.check(&expected(GPU_CLIENTS));
    for words in ["GPU 0 is lost to this process", "LAUNCH_FAILED"] {
        assert!(ended.output.contains(words), "{words}: {}", ended.output);
    }
    assert_eq!(ended.output.matches("the device is being rebuilt").count(), 1, "{}", ended.output);
}

#[test]
fn what_a_lost_gpu_had_goes_on_on_the_other() {
    let Some(outcome) = one_of_two_gpus_is_lost(5) else { return };
    outcome.check(&expected(GPU_CLIENTS));
    assert_eq!((outcome.whole(), outcome.recoveries().0), (4, 0.0), "{}", outcome.output);
    let metrics = &outcome.metrics;
    assert_eq!(
        (metrics.sum("faser_device_given_up"), metrics.value("faser_replicas_ready")),
        (1.0, 1.0),
        "{}",
        outcome.output
    );
    assert!(metrics.value("faser_requests_moved_total") > 0.0, "{}", outcome.output);
    assert!(outcome.output.contains("is lost to this process"), "{}", outcome.output);
}

#[test]
fn a_device_that_cannot_be_built_ends_the_daemon_when_everybody_was_told() {
    let ended = the_only_device_is_given_up(6);
    ended.check(&expected(CLIENTS));
    assert_eq!(ended.output.matches("the device is being rebuilt").count(), 5, "{}", ended.output);
}

#[test]
fn what_a_replica_had_when_it_was_given_up_goes_on_on_the_other() {
    let outcome = one_of_two_given_up(7);
    outcome.check(&expected(CLIENTS));
    assert_eq!(outcome.whole(), 8, "{}", outcome.output);
    let refusals: u32 = outcome.seen.iter().map(|seen| seen.refusals).sum();
    assert_eq!(refusals, 0, "there was one that served all along");
    let metrics = &outcome.metrics;
    assert!(metrics.value("faser_requests_moved_total") > 0.0);
    assert_eq!(metrics.value("faser_device_given_up{replica=\"0\"}"), 1.0);
    assert_eq!(
        (metrics.value("faser_ready{replica=\"1\"}"), metrics.value("faser_replicas_ready")),
        (1.0, 1.0)
    );
}

#[test]
fn sigterm_in_a_rebuild_waits_for_it_and_finishes_every_text() {
    let expected = expected(CLIENTS);
    let (seen, _, output) = terminated_in_a_rebuild(8, 30);
    for (seen, expected) in seen.iter().zip(&expected) {
        assert_eq!((&seen.text, &seen.error), (expected, &None), "{output}");
    }
    assert!(output.contains("draining") && output.contains("the device has recovered"), "{output}");
    // It need not wait so long.
    let (seen, _, output) = terminated_in_a_rebuild(9, 0);
    for (seen, expected) in seen.iter().zip(&expected) {
        assert!(expected.starts_with(&seen.text), "{seen:?}");
        assert_eq!(
            seen.error.as_ref().map(|error| &error["code"]),
            Some(&json!("shutting_down")),
            "{output}"
        );
    }
}

#[test]
#[ignore = "prints the table of docs/results; minutes"]
fn table() {
    println!(
        "\n| fault | seed | failures | recovery, s | longest silence, s | whole texts | errors | refusals | moved |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let all = expected(CLIENTS);
    let few = expected(GPU_CLIENTS);
    for seed in 1..=3 {
        let row = |fault: &str, outcome: &Outcome, expected: &[String]| {
            outcome.check(expected);
            println!("{}", outcome.row(fault, seed));
        };
        row("a rank panics mid-pass", &panics(seed), &all);
        row("a rank hangs for 5 s, deadline 2 s", &hangs(seed, 5000), &all);
        row("a rank hangs for 60 s, deadline 2 s", &hangs(seed, 60_000), &all);
        if let Some(ended) = the_gpu_is_lost(seed) {
            ended.check(&few);
            println!("{}", ended.row("the only (fake) GPU is lost", seed));
        }
        if let Some(outcome) = one_of_two_gpus_is_lost(seed) {
            row("1 of 2 (fake) GPUs is lost", &outcome, &few);
        }
        row("4 of 5 rebuilds fail", &builds_fail(seed, GROUP, 4), &all);
        row("5 devices in a row are lost", &rebuilt_five_times(seed), &all);
        let ended = the_only_device_is_given_up(seed);
        ended.check(&all);
        println!("{}", ended.row("the only device is given up", seed));
        row("1 of 2 replicas is given up", &one_of_two_given_up(seed), &all);
        let (seen, took, _) = terminated_in_a_rebuild(seed, 30);
        let whole = seen.iter().zip(&all).filter(|(seen, text)| seen.text == **text).count();
        let took = took.as_secs_f64();
        println!(
            "| SIGTERM in a rebuild, ended after {took:.2} s | {seed} | | | | {whole} of {} | | | |",
            seen.len()
        );
    }
}
