//! One target over several nodes: processes on loopback here. The same texts as by one, whichever of them is killed or frozen, and when.

mod fake_gpu;

use std::ffi::OsString;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use faser_tests::{Config, PATIENCE, Server};
use serde_json::{Value, json};

const PATH: &str = "/v1/completions";
/// The demo pair, in f32: the same bits wherever a sum is split alike.
const PAIR: &str = "model: {dtype: f32}\nspeculation: {policy: 'fixed:3'}\nscheduler: {max_running: 16}\nlog: {level: info}\n";

/// Requests of every kind that ranks have to be told of: greedy, drawn, penalised, with a grammar, with log-probabilities.
fn bodies() -> Vec<Value> {
    let schema = json!({
        "type": "object", "additionalProperties": false, "required": ["name", "count"],
        "properties": {"name": {"type": "string", "maxLength": 12}, "count": {"type": "integer"}},
    });
    let body = |number: usize| {
        let prompt = format!("Returns the number of elements in chunk {number} of the");
        let mut body = json!({"prompt": prompt, "max_tokens": 40, "temperature": 0.9, "seed": number});
        match number % 6 {
            0 => body["temperature"] = json!(0),
            1 => body["top_p"] = json!(0.8),
            2 => body["frequency_penalty"] = json!(0.7),
            3 => {
                body["response_format"] =
                    json!({"type": "json_schema", "json_schema": {"name": "found", "schema": schema}});
            }
            4 => body["logprobs"] = json!(3),
            _ => (body["echo"], body["logprobs"]) = (json!(true), json!(1)),
        }
        body
    };
    (0..12).map(body).collect()
}

/// Nodes behind the first, on a port of their own; they end with this.
struct Nodes {
    configs: Vec<Config>,
    running: Vec<Child>,
    port: u16,
    split: String,
    /// Of the environment.
    variables: Vec<(&'static str, OsString)>,
}

impl Nodes {
    /// Nodes 1, 2, .. of so many; `device` is what the config says of ranks.
    fn start(of: usize, device: &str) -> Nodes {
        let device = format!("kind: cpu, threads: 1, rank_deadline_s: 5, {device}");
        Nodes::start_with(of, &format!("device: {{{device}}}\n{PAIR}"), Vec::new())
    }

    /// The same of this config, where those variables are set.
    fn start_with(of: usize, split: &str, variables: Vec<(&'static str, OsString)>) -> Nodes {
        let free = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = free.local_addr().expect("its address").port();
        drop(free);
        let split = split.to_owned();
        let mut nodes = Nodes { configs: Vec::new(), running: Vec::new(), port, split, variables };
        nodes.configs = (1..of).map(|rank| Config::new(&nodes.yaml(rank, of))).collect();
        nodes.running = nodes.configs.iter().map(|config| nodes.node(config)).collect();
        nodes
    }

    fn yaml(&self, rank: usize, of: usize) -> String {
        let Nodes { port, split, .. } = self;
        format!(
            "node: {{rank: {rank}, of: {of}, rendezvous: '127.0.0.1:{port}', join_timeout_s: 60}}\n{split}"
        )
    }

    /// The first node, once all have come.
    fn leader(&self) -> Server {
        Server::start_with(&self.yaml(0, self.configs.len() + 1), &self.variables)
    }

    fn node(&self, config: &Config) -> Child {
        let mut command = config.serve();
        command.envs(self.variables.iter().cloned()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().expect("a node")
    }

    /// As a service manager would have it again.
    fn start_again(&mut self, node: usize) {
        let _ = self.running[node - 1].kill();
        let _ = self.running[node - 1].wait();
        self.running[node - 1] = self.node(&self.configs[node - 1]);
    }

    fn signal(&self, node: usize, signal: &str) {
        let number = self.running[node - 1].id().to_string();
        let status = Command::new("kill").args([&format!("-{signal}"), &number]).status();
        assert!(status.expect("kill can be started").success());
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for child in &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// What is told of a choice, of each request, all sent at once. Who comes while a node is missing is told to come again.
fn answers(server: &Server, bodies: &[Value]) -> Vec<Value> {
    let answer = |body: &Value| {
        let begin = Instant::now();
        loop {
            let answer = server.client().post(PATH, body);
            if answer.status != 503 || begin.elapsed() > PATIENCE {
                assert_eq!(answer.status, 200, "{body}: {}", answer.body);
                return answer.json()["choices"][0].clone();
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    std::thread::scope(|scope| {
        let asked: Vec<_> = bodies.iter().map(|body| scope.spawn(move || answer(body))).collect();
        asked.into_iter().map(|answer| answer.join().expect("an answer")).collect()
    })
}

/// Texts and ends alone: a sum that is split otherwise is rounded otherwise, and log-probabilities show that.
fn texts(answers: &[Value]) -> Vec<[&Value; 2]> {
    answers.iter().map(|answer| [&answer["text"], &answer["finish_reason"]]).collect()
}

#[test]
fn four_nodes_give_the_texts_of_one() {
    let whole = Server::start(PAIR);
    let bodies = bodies();
    let expected = answers(&whole, &bodies);
    assert!(expected.iter().all(|answer| answer["text"].as_str().is_some_and(|text| !text.is_empty())));
    drop(whole);
    for (one_process, over_nodes) in [
        ("tensor_parallel: 4", "tensor_parallel: 4"),
        ("tensor_parallel: 2", "tensor_parallel: 2, pipeline_parallel: 2"),
    ] {
        let ranks = Server::start(&format!("device: {{kind: cpu, {one_process}}}\n{PAIR}"));
        let of_ranks = answers(&ranks, &bodies);
        assert_eq!(texts(&of_ranks), texts(&expected), "{one_process}");
        drop(ranks);
        let nodes = Nodes::start(4, over_nodes);
        let leader = nodes.leader();
        // Bit by bit: log-probabilities are written with all their digits.
        assert_eq!(answers(&leader, &bodies), of_ranks, "{over_nodes}");
        leader.terminate();
        leader.ends_well();
    }
}

#[test]
fn a_node_that_is_killed_or_frozen_at_any_moment_changes_no_text() {
    let mut nodes = Nodes::start(4, "tensor_parallel: 2, pipeline_parallel: 2");
    let leader = nodes.leader();
    // One of each kind.
    let bodies = &bodies()[..6];
    let expected = answers(&leader, bodies);
    let began = Instant::now();
    let undisturbed = answers(&leader, bodies);
    let lasts = began.elapsed();
    assert_eq!(undisturbed, expected);
    let mut state = 0x9e37_79b9_u64;
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for round in 0..20 {
        let (node, moment) =
            (1 + random(3) as usize, Duration::from_millis(random(1 + lasts.as_millis() as u64)));
        // One of them does not die, but says nothing any more.
        let signal = if round == 13 { "STOP" } else { "KILL" };
        let found = std::thread::scope(|scope| {
            let found = scope.spawn(|| answers(&leader, bodies));
            std::thread::sleep(moment);
            nodes.signal(node, signal);
            if signal == "STOP" {
                // Longer than the deadline of a rank.
                std::thread::sleep(Duration::from_secs(6));
            }
            nodes.start_again(node);
            found.join().expect("answers")
        });
        assert_eq!(found, expected, "round {round}: node {node} after {moment:?}\n{}", leader.output());
    }
    // Nobody works, and a node is lost: the first one knows.
    nodes.signal(2, "KILL");
    let ready = || leader.client().get("/ready");
    until(|| ready().status == 503);
    let words = ready().body;
    assert!(words.contains("node 2 of 4"), "{words}");
    nodes.start_again(2);
    until(|| ready().status == 200);
    assert_eq!(answers(&leader, bodies), expected);
    leader.terminate();
    leader.ends_well();
}

#[test]
fn nodes_outlive_the_first_and_come_to_the_next() {
    let mut nodes = Nodes::start(2, "tensor_parallel: 2");
    let bodies = bodies();
    let first = nodes.leader();
    let expected = answers(&first, &bodies);
    first.signal("KILL");
    first.wait();
    let second = nodes.leader();
    assert_eq!(answers(&second, &bodies), expected);
    assert!(nodes.running[0].try_wait().expect("its state").is_none(), "the node is the same process");
    second.terminate();
    second.ends_well();
}

/// Ranks on GPUs of several nodes, over the fake driver and the fake NCCL: the CPU's texts, also where a node dies.
#[test]
fn nodes_with_gpus_give_the_texts_of_the_cpu() {
    const TINY: &str = "\
model:
  dtype: f32
  synthetic: {preset: tiny, layers: 2, hidden: 64, intermediate: 32, heads: 4, kv_heads: 2, vocab: 300, max_context: 64, residual_scale: 0.2}
kv: {memory: 1MiB}
scheduler: {max_running: 3, max_pass_rows: 8}
speculation: {policy: 'fixed:2'}
";
    let folder = std::env::temp_dir().join(format!("fake-nccl-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let more = [("FASER_FAKE_GPUS", "2"), ("FASER_FAKE_NCCL_DIR", folder.to_str().expect("a name"))];
    let Some(variables) = fake_gpu::variables("nodes_with_gpus_give_the_texts_of_the_cpu", &more) else {
        return;
    };
    let bodies: Vec<Value> = (0..3)
        .map(|number: u32| {
            let prompt: Vec<u32> = (0..5 + 4 * number).map(|i| (i * 37 + number) % 256).collect();
            let temperature = if number == 1 { 0.0 } else { 0.8 };
            json!({"prompt": prompt, "max_tokens": 10, "seed": number, "temperature": temperature})
        })
        .collect();
    let cpu = Server::start(&format!("device: {{kind: cpu, threads: 1}}\n{TINY}"));
    let expected = answers(&cpu, &bodies);
    drop(cpu);
    for (of, split) in [(2, "kind: 'cuda:0', tensor_parallel: 2"), (2, "kind: 'cuda:0', tensor_parallel: 4")]
    {
        let device = format!("device: {{{split}, rank_deadline_s: 20, partitions: []}}\n{TINY}");
        let mut nodes = Nodes::start_with(of, &device, variables.clone());
        let leader = nodes.leader();
        assert_eq!(texts(&answers(&leader, &bodies)), texts(&expected), "{split}");
        let found = std::thread::scope(|scope| {
            let found = scope.spawn(|| answers(&leader, &bodies));
            std::thread::sleep(Duration::from_millis(300));
            nodes.start_again(1);
            found.join().expect("answers")
        });
        assert_eq!(texts(&found), texts(&expected), "{split}: a node was killed\n{}", leader.output());
        leader.terminate();
        leader.ends_well();
    }
    let _ = std::fs::remove_dir_all(&folder);
}

/// As LeaderWorkerSet and Slurm do it: a stream that runs then ends whole.
#[test]
fn all_nodes_may_be_stopped_at_once() {
    let nodes = Nodes::start(2, "tensor_parallel: 2");
    let leader = nodes.leader();
    let body = json!({"prompt": "Returns the number of", "max_tokens": 200, "temperature": 0, "ignore_eos": true, "stream": true});
    let expected = leader.client().stream(PATH, &body).transcript();
    assert!(expected.complete(), "{expected:?}");
    let mut events = 0;
    let transcript = leader.client().stream(PATH, &body).follow(|_| {
        events += 1;
        if events == 5 {
            nodes.signal(1, "TERM");
            leader.terminate();
        }
    });
    assert!(transcript.complete(), "{transcript:?}");
    assert_eq!(transcript.text, expected.text);
    leader.ends_well();
}

fn until(holds: impl Fn() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < Duration::from_secs(60), "it never comes true");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn what_nodes_cannot_be_is_said() {
    let refusal = |yaml: &str| {
        let config = Config::new(yaml);
        let output = config.serve().stdin(Stdio::null()).output().expect("faser runs");
        assert!(!output.status.success(), "{yaml}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    for (yaml, words) in [
        ("node: {of: 2}\n", "`node.rank` is missing"),
        ("node: {rank: 0}\n", "`node.of` is missing"),
        ("node: {rank: 0, of: 2}\n", "`node.rendezvous` is missing"),
        ("node: {rank: 2, of: 2, rendezvous: a}\n", "`node.rank` is 2, but there are 2 nodes"),
        ("node: {rank: 0, of: 2, rendezvous: a}\n", "`node.of` is 2, but the target has 1 ranks"),
        ("node: {rank: auto}\n", "neither LeaderWorkerSet"),
        (
            "node: {rank: 0, of: 2, rendezvous: 'no.such.host.invalid:1'}\ndevice: {kind: cpu, tensor_parallel: 2}\n",
            "cannot listen for the other nodes at `node.rendezvous` no.such.host.invalid:1",
        ),
        (
            "node: {rank: 0, of: 2, rendezvous: a}\ndevice: {tensor_parallel: 2, replicas: 2}\n",
            "`device.replicas` must be 1",
        ),
        (
            "node: {rank: 0, of: 2, rendezvous: '127.0.0.1:1'}\ndevice: {kind: cuda, pipeline_parallel: 2}\n",
            "`device.pipeline_parallel` is for the CPU alone so far",
        ),
        ("device: {kind: cpu, pipeline_parallel: 64}\n", "layers are fewer than 64 stages"),
    ] {
        let found = refusal(yaml);
        assert!(found.contains(words), "{yaml}: {found}");
    }
    // A node that does not come, by its number.
    let nodes = Nodes::start(1, "tensor_parallel: 2");
    let alone = nodes.yaml(0, 2).replace("join_timeout_s: 60", "join_timeout_s: 1");
    let found = refusal(&alone);
    assert!(found.contains("node 1 of 2 (from 0) has not come to 127.0.0.1"), "{found}");
}

/// Who looks at a config alone waits for nobody, and neither listens.
#[test]
fn plans_and_checks_are_of_each_node_and_wait_for_nobody() {
    let nodes = Nodes::start(1, "tensor_parallel: 2, pipeline_parallel: 2");
    // Node 0 of it is there, too.
    let listens = TcpListener::bind(("127.0.0.1", nodes.port)).expect("the port");
    for rank in 0..4 {
        let config = Config::new(&nodes.yaml(rank, 4).replace("fixed:3", "faser"));
        let said = |arguments: &[&str]| {
            let output = config.command(arguments).output().expect("faser runs");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let checked = said(&["check"]);
        assert!(checked.contains(&format!("node     {rank} of 4, 127.0.0.1")), "{checked}");
        assert_eq!(checked.contains("draft    none"), rank > 0, "{checked}");
        let report: Value = serde_json::from_str(&said(&["plan", "--json"])).expect("JSON");
        let plan = &report["nodes"];
        assert_eq!((&plan["ranks"], &plan["stages"]), (&json!(4), &json!(2)), "{report}");
        let own = &plan["nodes"][rank];
        let (first, layers) = (rank / 2 * 3, json!({"start": rank / 2 * 3, "end": rank / 2 * 3 + 3}));
        assert_eq!((&own["ranks"]["start"], &own["layers"]), (&json!(rank), &layers), "{first}: {plan}");
        assert_eq!(own["draft_weight_bytes"] != json!(0), rank == 0, "{plan}");
    }
    drop(listens);
}
