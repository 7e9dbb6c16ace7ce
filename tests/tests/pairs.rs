//! Several pairs in one daemon, from outside: each answers as it does alone, is measured, changed and lost apart from the others.

use std::process::Command;

use faser_tests::{
    Server,
    client::Client,
    event_stream::Transcript,
    faser,
    metrics::{Metrics, wait_until},
};
use serde_json::{Value, json};

const DEMO: &str = "speculation: {policy: 'fixed:3'}\n";
const TINY: &str = "{preset: tiny, layers: 2, hidden: 64, intermediate: 64, heads: 8, kv_heads: 2, vocab: 300, max_context: 8192, residual_scale: 0.2}";

/// The demo pair and a small one, with these keys of their own.
fn both(demo: &str, tiny: &str) -> String {
    format!(
        "{DEMO}admin: {{socket: admin.sock}}\npairs:\n- name: rustdoc\n  scheduler: {{max_context: 512}}\n  {demo}\n\
         - name: Tiny/one\n  model: {{dtype: f32, synthetic: {TINY}}}\n  kv: {{memory: 8MiB}}\n  {tiny}\n"
    )
}

fn body(model: Option<&str>, seed: usize) -> Value {
    let mut body = json!({
        "prompt": format!("Returns the number {}", seed % 3), "max_tokens": 60, "seed": seed, "stream": true, "ignore_eos": true,
        "temperature": if seed.is_multiple_of(2) { 0.0 } else { 0.9 },
    });
    if let Some(model) = model {
        body["model"] = model.into();
    }
    body
}

/// Texts of requests for these models, all at once.
fn ask(client: &Client, models: &[Option<&str>]) -> Vec<Transcript> {
    std::thread::scope(|scope| {
        let ask = |(seed, model)| {
            move || client.stream("/v1/completions", &body(model, seed / models.len())).transcript()
        };
        let requests = models.iter().cycle().take(6 * models.len()).copied().enumerate();
        let readers: Vec<_> = requests.map(|request| scope.spawn(ask(request))).collect();
        readers.into_iter().map(|reader| reader.join().expect("a reader")).collect()
    })
}

fn texts(transcripts: &[Transcript]) -> Vec<&str> {
    assert!(transcripts.iter().all(Transcript::complete), "{transcripts:?}");
    transcripts.iter().map(|transcript| transcript.text.as_str()).collect()
}

fn policies(server: &Server) -> [String; 2] {
    ["rustdoc", "Tiny/one"].map(|pair| {
        let (code, text) = server.ctl(&["--json", "--pair", pair, "policy"]);
        assert_eq!(code, Some(0), "{text}");
        let policy: Value = serde_json::from_str(&text).expect("JSON");
        policy["policy"].as_str().unwrap_or_default().to_owned()
    })
}

#[test]
fn each_pair_writes_what_it_writes_alone_and_is_found_by_its_name() {
    let alone: Vec<Vec<String>> = [
        format!("{DEMO}scheduler: {{max_context: 512}}\n"),
        format!("{DEMO}model: {{dtype: f32, synthetic: {TINY}}}\nkv: {{memory: 8MiB}}\n"),
    ]
    .iter()
    .map(|yaml| {
        let server = Server::start(yaml);
        texts(&ask(server.client(), &[None])).into_iter().map(str::to_owned).collect()
    })
    .collect();
    let server = Server::start(&both("", "speculation: {policy: 'fixed:2'}"));
    let client = server.client();
    let together = ask(client, &[Some("rustdoc"), Some("Tiny/one"), None]);
    let together = texts(&together);
    for (place, wanted) in [&alone[0], &alone[1], &alone[0]].into_iter().enumerate() {
        let found: Vec<&str> = together.iter().skip(place).step_by(3).copied().collect();
        assert_eq!(found, *wanted, "of pair {place}");
    }
    assert_ne!(alone[0], alone[1]);
    // Whoever asks for another is told which there are.
    for (path, more) in
        [("/v1/completions", "prompt"), ("/tokenize", "prompt"), ("/v1/chat/completions", "x")]
    {
        let refused = client.post(path, &json!({"model": "other", more: "x"}));
        assert_eq!(
            (refused.status, &refused.error()["code"]),
            (404, &json!("model_not_found")),
            "{refused:?}"
        );
        assert!(refused.body.contains("`rustdoc`, `Tiny/one`"), "{refused:?}");
    }
    let broken = client.post("/v1/completions", &json!({"model": 3, "prompt": "x"}));
    assert!(broken.status == 400 && broken.body.contains("`model` must be a string"), "{broken:?}");
    let models = client.get("/v1/models").json();
    assert_eq!((&models["data"][0]["id"], &models["data"][1]["id"]), (&json!("rustdoc"), &json!("Tiny/one")));
    assert_eq!(client.get("/v1/models/Tiny/one").json()["id"], "Tiny/one");
    assert_eq!(client.get("/v1/models/tiny").status, 404);
    let tokens = |model: &str| client.post("/tokenize", &json!({"model": model, "prompt": "fn main"})).json();
    assert_ne!(tokens("rustdoc")["count"], tokens("Tiny/one")["count"], "each has its own tokenizer");
    let info = |query: &str| client.get(&format!("/model_info{query}")).json()["served_model_name"].clone();
    assert_eq!((info(""), info("?model=Tiny%2Fone")), (json!("rustdoc"), json!("Tiny/one")));
    assert_eq!(client.get("/health_generate?model=Tiny/one").status, 200);
    assert_eq!(client.get("/server_info?model=other").status, 404);
    let ready = client.get("/ready").json();
    assert_eq!((&ready["status"], &ready["pairs"][1]["pair"]), (&json!("ready"), &json!("Tiny/one")));
    // Each is counted apart: as many as were asked for, one to warm up, and one for its health.
    let metrics = Metrics::scrape(client);
    let finished = |pair: &str| metrics.value(&format!("faser_requests_finished_total{{pair=\"{pair}\"}}"));
    assert_eq!((finished("rustdoc"), finished("Tiny/one")), (13.0, 8.0));
    assert_eq!(metrics.value("faser_replicas_ready{pair=\"Tiny/one\"}"), 1.0);
    assert!(metrics.get("faser_requests_finished_total").is_none());
}

#[test]
fn a_pair_is_changed_under_load_without_the_other_and_a_drain_ends_both() {
    let server = Server::start(&both("", ""));
    let client = server.client();
    let models = [Some("rustdoc"), Some("Tiny/one")];
    let before = ask(client, &models);
    assert_eq!(policies(&server), ["fixed:3", "fixed:3"]);
    let meanwhile = std::thread::scope(|scope| {
        let asked = scope.spawn(|| ask(client, &models));
        for (args, wanted) in [
            (&["--pair", "Tiny/one", "policy", "set", "policy=fixed:1"][..], ["fixed:3", "fixed:1"]),
            (&["policy", "set", "policy=off"], ["off", "off"]),
            (&["--pair", "rustdoc", "policy", "set", "policy=fixed:5", "k_max=4"], ["fixed:5", "off"]),
            (&["reload"], ["fixed:3", "fixed:3"]),
        ] {
            let (code, text) = server.ctl(args);
            assert_eq!((code, policies(&server)), (Some(0), wanted.map(str::to_owned)), "{args:?}: {text}");
        }
        // The file changes one pair too, and names it.
        server.rewrite_config(&both("kv: {block_size: 32}", "speculation: {policy: 'fixed:2'}"));
        let (code, text) = server.ctl(&["reload"]);
        assert!(
            code == Some(0) && text.contains("pairs[1].speculation.policy  fixed:3 -> fixed:2"),
            "{text}"
        );
        assert!(text.contains("needs a restart") && text.contains("pairs[0].kv.block_size"), "{text}");
        asked.join().expect("the streams")
    });
    assert_eq!(policies(&server), ["fixed:3", "fixed:2"]);
    assert_eq!(texts(&before), texts(&meanwhile), "policies change no text");
    for (args, words) in [
        (&["--pair", "other", "policy"][..], "`rustdoc`, `Tiny/one`"),
        (&["--pair", "Tiny/one", "drain"], "`pair` is unknown"),
        (&["cancel", "7-0-1"], "of no pair"),
        (&["--pair", "Tiny/one", "policy", "set", "max_running=65"], "`pairs[1].scheduler.max_running`"),
    ] {
        let (code, text) = server.ctl(args);
        assert!(code == Some(1) && text.contains(words), "{args:?}: {text}");
    }
    let (_, status) = server.ctl(&["--pair", "Tiny/one", "status"]);
    assert!(status.contains("pair *") && status.contains("Tiny/one on"), "{status}");
    // So are a trace, a frame of `faser top`, and the dashboard, whose page asks for events with its own query.
    let trace = server.config().folder().join("trace.json");
    let (code, text) =
        server.ctl(&["--pair", "Tiny/one", "trace", "--seconds", "1", "-o", &trace.to_string_lossy()]);
    assert!(code == Some(0) && trace.is_file(), "{text}");
    let socket = server.socket();
    let mut top = Command::new(faser());
    let top = top
        .args(["top", "--once", "--pair", "Tiny/one", "--interval", "0.1", "--socket"])
        .arg(&socket)
        .output();
    let frame = String::from_utf8_lossy(&top.expect("the binary can be started").stdout).into_owned();
    assert!(frame.contains("Tiny/one on cpu"), "{frame}");
    let page =
        faser_operators::ctl::socket_client::Client::new(&socket).get("/?pair=Tiny%2Fone").expect("the page");
    assert!(String::from_utf8_lossy(&page.body).contains("<html"));
    // What runs is listed with the number of its pair, and is ended by that.
    let long = |model: &str, tokens: usize| {
        let body = json!({"model": model, "prompt": "x", "max_tokens": tokens, "seed": 1, "ignore_eos": true, "stream": true});
        let mut stream = client.stream("/v1/completions", &body);
        assert!(stream.next().is_some());
        stream
    };
    let cancelled = long("Tiny/one", 8000);
    let (_, requests) = server.ctl(&["requests"]);
    let id = requests.lines().find_map(|line| line.split(' ').next().filter(|id| id.starts_with("1-0-")));
    let (code, text) = server.ctl(&["cancel", id.unwrap_or_else(|| panic!("{requests}"))]);
    assert!(code == Some(0) && cancelled.transcript().error.is_some(), "{text}");
    let streams = ["rustdoc", "Tiny/one"].map(|model| long(model, 400));
    server.terminate();
    for stream in streams {
        assert!(stream.transcript().complete(), "a drain waits for both");
    }
    server.ends_well();
}

#[cfg(debug_assertions)]
#[test]
fn a_pair_whose_device_is_given_up_leaves_the_other_serving() {
    let builds = (1..=5).map(|at| format!("{{what: build, at: {at}}}")).collect::<Vec<_>>().join(", ");
    let drills = format!("device: {{kind: cpu, drills: [{{what: panic, at: 12}}, {builds}]}}");
    let healthy = Server::start(&both("", ""));
    let wanted = ask(healthy.client(), &[Some("rustdoc")]);
    let server = Server::start(&both("", &drills));
    let client = server.client();
    let (lost, kept) = std::thread::scope(|scope| {
        let kept = scope.spawn(|| ask(client, &[Some("rustdoc")]));
        let lost = client
            .try_stream("/v1/completions", &body(Some("Tiny/one"), 0))
            .map(faser_tests::event_stream::Events::transcript);
        (lost, kept.join().expect("the streams"))
    });
    assert!(lost.is_err() || lost.is_ok_and(|lost| lost.error.is_some()));
    assert_eq!(texts(&kept), texts(&wanted), "the fault of the other pair costs no text");
    let given_up = |metrics: &Metrics| metrics.value("faser_device_given_up{pair=\"Tiny/one\"}") == 1.0;
    let metrics = wait_until(client, "the device is given up", given_up);
    assert_eq!(metrics.value("faser_device_failures_total{pair=\"rustdoc\"}"), 0.0);
    assert_eq!(texts(&ask(client, &[Some("rustdoc")])), texts(&wanted));
    let refused = client.post("/v1/completions", &json!({"model": "Tiny/one", "prompt": "x"}));
    assert_eq!((refused.status, &refused.error()["code"]), (503, &json!("not_ready")), "{refused:?}");
    let ready = client.get("/ready");
    let words = ready.json()["status"].as_str().unwrap_or_default().to_owned();
    assert!(
        ready.status == 503 && words.starts_with("Tiny/one: ") && words.contains("given up"),
        "{ready:?}"
    );
    assert_eq!(client.get("/ready?model=rustdoc").status, 200);
    assert_eq!(client.get("/ready?model=Tiny/one").status, 503);
    assert_eq!(client.get("/health").status, 200);
    server.stop();
}

#[test]
fn one_shot_commands_take_a_pair_and_check_takes_all() {
    let config = faser_tests::Config::new(&both("", ""));
    let run = |args: &[&str]| {
        let output = config.command(args).output().expect("the binary can be started");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, checked, errors) = run(&["check"]);
    assert_eq!((code, checked.matches("\npolicy   fixed:3").count()), (Some(0), 2), "{checked}{errors}");
    assert!(
        checked.starts_with("model    rustdoc on") && checked.contains("\nmodel    Tiny/one on"),
        "{checked}"
    );
    assert!(checked.contains("kv       8.0MiB") && checked.ends_with("ok\n"), "{checked}");
    let (code, planned, errors) = run(&["plan"]);
    assert!(code == Some(0) && planned.contains("pair     Tiny/one"), "{planned}{errors}");
    for (args, name) in [
        (&["generate", "x", "--json", "--max-tokens", "4"][..], "rustdoc"),
        (&["generate", "x", "--json", "--max-tokens", "4", "--model", "Tiny/one"], "Tiny/one"),
    ] {
        let (code, text, errors) = run(args);
        assert_eq!(code, Some(0), "{errors}");
        assert_eq!(serde_json::from_str::<Value>(&text).expect("JSON")["model"], name);
    }
    let (code, _, errors) = run(&["generate", "x", "--model", "other"]);
    assert!(
        code == Some(1)
            && errors.contains("--model: the config has no pair of this name; it has rustdoc, Tiny/one"),
        "{errors}"
    );
    let broken = faser_tests::Config::new(&both("", "speculation: {policy: 'fixed:99'}"));
    let output = broken.command(&["check"]).output().expect("the binary can be started");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("faser.yaml:10: `pairs[1].speculation.policy` must be"), "{errors}");
}
