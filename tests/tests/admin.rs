//! The admin socket and `faser ctl` from outside: changes under load, drain and resume, who may what, exit statuses.

use std::{
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::{
        Arc, Barrier,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use faser_operators::ctl::socket_client::Client as Admin;
use faser_tests::{Server, client::Client, event_stream::Transcript, faser, metrics::wait_until, said};
use serde_json::{Value, json};

const STREAMS: usize = 32;
/// Two replicas, and costs that every policy can be had with.
const PAIR: &str = "\
model:
  synthetic: {preset: tiny}
device: {replicas: 2}
admin: {socket: admin.sock}
";

/// `faser ctl` at a socket.
fn ctl_at(socket: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(faser());
    command.arg("ctl").arg("--socket").arg(socket).args(args).output().expect("the binary can be started")
}

/// Waits until what the log has of operators' changes is as it should be.
fn wait_for_audit(server: &Server, wanted: impl Fn(&[&str]) -> bool) {
    server.wait_for("the audit", || {
        let output = server.output();
        wanted(&output.lines().filter(|line| line.contains("faser::audit")).collect::<Vec<_>>())
    });
}

fn status(server: &Server) -> Value {
    Admin::new(&server.socket()).get("/v1/status").and_then(|answer| answer.json()).expect("a status")
}

fn body(seed: usize, tokens: usize) -> Value {
    json!({"prompt": format!("stream {}", seed % 5), "max_tokens": tokens, "temperature": 0.9, "seed": seed, "stream": true})
}

/// All streams at once, and `meanwhile` beside them, which is told how many have ended.
fn streams(client: &Client, tokens: usize, meanwhile: impl FnOnce(&AtomicUsize)) -> Vec<Transcript> {
    let ended = Arc::new(AtomicUsize::new(0));
    let running = Arc::new(Barrier::new(STREAMS + 1));
    let readers: Vec<_> = (0..STREAMS)
        .map(|seed| {
            let (client, running, ended) = (client.clone(), Arc::clone(&running), Arc::clone(&ended));
            std::thread::spawn(move || {
                let stream = client.stream("/v1/completions", &body(seed, tokens));
                running.wait();
                let transcript = stream.transcript();
                ended.fetch_add(1, Ordering::SeqCst);
                transcript
            })
        })
        .collect();
    running.wait();
    meanwhile(&ended);
    readers.into_iter().map(|reader| reader.join().expect("a reader")).collect()
}

#[test]
fn policies_and_limits_change_in_the_middle_of_streams_and_no_text_does() {
    const TOKENS: usize = 300;
    let server = Server::start(PAIR);
    let undisturbed = streams(server.client(), TOKENS, |_| ());
    assert!(undisturbed.iter().all(Transcript::complete));
    let changes = [
        "policy=off",
        "policy=fixed:4 max_running=2",
        "policy=faser k_max=2",
        "k_max=0 max_waiting=1 ttft_ms=5 tpot_ms=2",
        "policy=budget k_max=null trim=false max_running=64",
        "policy=batch-table:4=6,16=2 overlap=false prune=false",
        "policy=faser overlap=true prune=true trim=true partition=null",
    ];
    let mut made = 0;
    let disturbed = streams(server.client(), TOKENS, |ended| {
        // Every one once, and then again as long as there is anybody to disturb.
        while made < changes.len() || ended.load(Ordering::SeqCst) < STREAMS {
            let set: Vec<&str> =
                ["policy", "set"].into_iter().chain(changes[made % changes.len()].split(' ')).collect();
            let (code, text) = server.ctl(&set);
            assert_eq!(code, Some(0), "{set:?}: {text}");
            // The file says otherwise: a reload, by signal or by call, puts it back, and takes its own keys over.
            let yaml = format!("{PAIR}scheduler: {{max_running: {}}}\n", 3 + made % 4);
            server.rewrite_config(&yaml);
            if made % 2 == 0 {
                let (code, text) = server.ctl(&["reload"]);
                assert_eq!(code, Some(0), "{text}");
            } else {
                server.signal("HUP");
            }
            made += 1;
        }
    });
    assert_eq!(disturbed.len(), undisturbed.len());
    for (disturbed, undisturbed) in disturbed.iter().zip(&undisturbed) {
        assert!(disturbed.complete(), "{disturbed:?}");
        assert_eq!(
            (&disturbed.text, &disturbed.finish_reason),
            (&undisturbed.text, &undisturbed.finish_reason)
        );
    }
    // Both replicas decide by what was said last, also if a signal is still on its way.
    server.rewrite_config(&format!("{PAIR}speculation: {{policy: 'fixed:3'}}\n"));
    assert_eq!(server.ctl(&["reload"]).0, Some(0));
    let replicas = status(&server)["replicas"].clone();
    assert_eq!((&replicas[0]["policy"], &replicas[1]["policy"]), (&json!("fixed:3"), &json!("fixed:3")));
    wait_for_audit(&server, |lines| lines.len() > made);
}

#[test]
fn a_wrong_file_or_value_is_refused_and_changes_nothing() {
    let server = Server::start(
        "model:\n  synthetic: {preset: tiny}\nspeculation: {policy: 'fixed:2'}\nadmin: {socket: admin.sock}\n",
    );
    let tag = || {
        let answer = Admin::new(&server.socket()).get("/v1/config").expect("a config");
        let tag = answer.json().expect("JSON")["tag"].as_str().map(str::to_owned);
        assert_eq!(answer.tag, tag);
        tag.expect("a tag")
    };
    let before = tag();
    let valid = std::fs::read_to_string(server.config().path()).expect("the config file");
    for (yaml, words) in [
        (format!("{valid}log: {{colour: red}}\n"), "log.colour"),
        (valid.replace("fixed:2", "fixed:77") + "log: {level: debug}\n", "fixed:77"),
        ("log: [".to_owned(), "YAML"),
    ] {
        server.rewrite_config(&yaml);
        let (code, text) = server.ctl(&["reload"]);
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains("refused") && text.contains(words) && text.contains("faser.yaml"), "{text}");
        assert!(server.ctl(&["config"]).1.contains("a reload would be refused"));
        assert_eq!(tag(), before);
    }
    // No costs are known, and there are places for 64: these wait for a restart, and what can be applied is.
    let yaml =
        valid.replace("'fixed:2'", "budget, k_max: 3") + "scheduler: {max_running: 65}\nlog: {level: warn}\n";
    server.rewrite_config(&yaml);
    let (code, text) = server.ctl(&["reload"]);
    assert_eq!(code, Some(0), "{text}");
    let lines = |start: &str| text.lines().filter(|line| line.starts_with(start)).count();
    assert_eq!((lines("applied"), lines("needs a restart")), (2, 2), "{text}");
    assert!(text.contains("cost tables") && text.contains("at most 64"), "{text}");
    for (args, words) in [
        (&["policy", "set", "policy=fixed:99"][..], "fixed:K"),
        (&["policy", "set", "k_max=1", "max_running=65"], "at most 64"),
        (&["policy", "set", "kmax=1"], "did you mean `k_max`"),
        (&["policy", "set", "k_max=1", "--tag", "0"], "another by now"),
        (&["cancel", "0-999"], "no request 0-999"),
        (&["cancel", "x"], "REPLICA-NUMBER"),
        (&["trace", "--seconds", "99"], "1 to 60"),
        (&["log-level", "loud"], "error"),
    ] {
        let (code, text) = server.ctl(args);
        assert!(code == Some(1) && text.contains(words), "{args:?}: {code:?} {text}");
    }
    let policy = Admin::new(&server.socket()).get("/v1/policy").and_then(|answer| answer.json()).expect("it");
    assert_eq!(
        (&policy["policy"], &policy["k_max"], &policy["max_running"]),
        (&json!("fixed:2"), &json!(3), &json!(64))
    );
}

#[test]
fn a_drain_under_load_breaks_no_stream_and_ends_with_resume() {
    let server = Server::start(&format!("{PAIR}scheduler: {{max_running: 8}}\ndrain_timeout_s: 600\n"));
    let client = server.client();
    let (code, text) = server.ctl(&["ready"]);
    assert!(code == Some(0) && text.starts_with("serving"), "{text}");
    let transcripts = streams(client, 300, |_| {
        let (code, text) = server.ctl(&["drain"]);
        assert_eq!(code, Some(0), "{text}");
        let (code, text) = server.ctl(&["ready"]);
        assert!(code == Some(1) && text.starts_with("paused"), "{text}");
        let refused = client.post("/v1/completions", &json!({"prompt": "too late"}));
        assert_eq!((refused.status, refused.error()["code"].as_str()), (503, Some("drained")), "{refused:?}");
        assert_eq!((client.get("/ready").status, client.get("/health").status), (503, 200));
        assert_eq!(status(&server)["state"], "paused");
        let (code, text) = server.ctl(&["drain", "--wait", "600"]);
        assert!(code == Some(0) && text.contains("no requests are left"), "{text}");
    });
    assert!(transcripts.iter().all(Transcript::complete), "no stream is broken");
    assert_eq!(client.post("/v1/completions", &json!({"prompt": "still"})).status, 503);
    let (code, text) = server.ctl(&["profile"]);
    assert!(code == Some(0) && text.contains("measured now"), "{text}");
    assert_eq!(server.ctl(&["resume"]).0, Some(0));
    assert_eq!(server.ctl(&["ready", "--wait", "60"]).0, Some(0));
    assert_eq!(client.get("/ready").status, 200);
    assert_eq!(client.post("/v1/completions", &json!({"prompt": "again", "max_tokens": 3})).status, 200);
    // And for good.
    let transcripts = streams(client, 300, |_| server.terminate());
    assert!(transcripts.iter().all(Transcript::complete), "no stream is broken");
    server.ends_well();
    assert!(!server.socket().exists(), "the socket goes with the daemon");
    assert_eq!(server.ctl(&["ready", "--wait", "1"]).0, Some(3), "and nobody is ready");
}

#[test]
fn a_cancelled_request_tells_its_client_so() {
    let server = Server::start("model:\n  synthetic: {preset: tiny}\nadmin: {socket: admin.sock}\n");
    let mut stream = server.client().stream("/v1/completions", &body(1, 4000));
    assert!(stream.next().is_some());
    let slowest = status(&server)["slowest"].clone();
    let id = slowest[0]["id"].as_str().expect("a request").to_owned();
    assert!(server.ctl(&["requests"]).1.contains(&id));
    assert_eq!(server.ctl(&["cancel", &id]).0, Some(0));
    let transcript = stream.transcript();
    assert_eq!(transcript.error.expect("an error event")["code"], "cancelled");
    assert!(!transcript.done);
    wait_until(server.client(), "it is gone", |metrics| metrics.value("faser_requests_running") == 0.0);
}

#[test]
fn events_show_what_the_lanes_do_as_they_do_it() {
    // The draft lane works whatever a pass costs here.
    let server = Server::start(&format!("{PAIR}speculation: {{policy: 'fixed:2'}}\n"));
    let admin = Admin::new(&server.socket());
    let stream = server.client().stream("/v1/completions", &body(1, 4000));
    let events = admin.events("/v1/events?every_ms=100").expect("a stream");
    let mut seen = std::collections::HashSet::new();
    let started = Instant::now();
    for event in events {
        let event = event.expect("a snapshot");
        for pass in event["replicas"]
            .as_array()
            .into_iter()
            .flatten()
            .flat_map(|replica| replica["timeline"]["passes"].as_array().cloned().unwrap_or_default())
        {
            seen.insert(pass["lane"].as_str().unwrap_or_default().to_owned());
        }
        if seen.len() == 2 {
            break;
        }
        assert!(started.elapsed() < faser_tests::PATIENCE, "{seen:?}");
    }
    drop(stream);
    let refused = admin.events("/v1/events?every_ms=1").err().expect("a refusal");
    assert!(refused.to_string().contains("100 to 60000"), "{refused}");
}

#[test]
fn exit_statuses_and_errors_say_what_is_wrong() {
    let nowhere = Path::new("/nowhere/admin.sock");
    let (code, text) = said(&ctl_at(nowhere, &["status"]));
    assert!(code == Some(3) && text.contains("/nowhere/admin.sock") && text.contains("--socket"), "{text}");
    let (code, text) = said(&ctl_at(nowhere, &["polish"]));
    assert_eq!(code, Some(2), "{text}");
    let (code, text) = said(&ctl_at(nowhere, &["policy", "set", "k_max"]));
    assert!(code == Some(2) && text.contains("KEY=VALUE"), "{text}");
    let server = Server::start("model:\n  synthetic: {preset: tiny}\nadmin: {socket: admin.sock}\n");
    for args in [
        &["status"][..],
        &["config"],
        &["policy"],
        &["requests"],
        &["log-level"],
        &["plan"],
        &["metrics"],
        &["openapi"],
    ] {
        let (code, text) = server.ctl(args);
        assert!(code == Some(0) && !text.trim().is_empty(), "{args:?}: {text}");
        if args != ["metrics"] {
            let (code, text) = server.ctl(&[&["--json"], args].concat());
            assert!(code == Some(0) && serde_json::from_str::<Value>(&text).is_ok(), "{args:?}: {text}");
        }
    }
    let file = server.config().folder().join("trace.json");
    let (code, text) = server.ctl(&["trace", "--seconds", "1", "-o", file.to_str().expect("a path")]);
    assert_eq!(code, Some(0), "{text}");
    let trace: Value = serde_json::from_slice(&std::fs::read(&file).expect("a trace")).expect("JSON");
    assert!(trace["traceEvents"].is_array(), "{trace}");
    // A second daemon does not take the socket away.
    let output = server.config().serve().output().expect("the binary can be started");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && text.contains("another daemon"), "{text}");
    assert_eq!(server.ctl(&["status"]).0, Some(0));
}

/// Runs `faser ctl` as another user, which only root can.
#[test]
fn other_users_may_look_members_of_the_group_may_change_things() {
    const OTHER: &str = "--reuid=54321";
    let may = Command::new("setpriv").args([OTHER, "--regid=1", "--clear-groups", "true"]).output();
    if !may.is_ok_and(|output| output.status.success()) {
        let reason = "other users are played by setpriv, as root";
        faser_skipped::skip("other_users_may_look_members_of_the_group_may_change_things", reason);
        return;
    }
    let server =
        Server::start("model:\n  synthetic: {preset: tiny}\nadmin: {socket: admin.sock, group: daemon}\n");
    let socket = server.socket();
    let file = std::fs::metadata(&socket).expect("the socket");
    assert_eq!((file.mode() & 0o777, file.gid()), (0o660, 1), "the group `daemon` of every system");
    let folder = server.config().folder().to_owned();
    let open = |mode: &str, path: &Path| {
        assert!(Command::new("chmod").arg(mode).arg(path).status().expect("chmod").success());
    };
    open("o+x", &folder);
    let as_user = |gid: &str, args: &[&str]| {
        let mut command = Command::new("setpriv");
        command
            .args([OTHER, gid, "--clear-groups"])
            .arg(copied_binary(&folder))
            .arg("ctl")
            .arg("--socket")
            .arg(&socket);
        said(&command.args(args).output().expect("setpriv"))
    };
    let (code, text) = as_user("--regid=54321", &["status"]);
    assert!(code == Some(3) && text.contains("`daemon`"), "the kernel keeps others out: {text}");
    assert_eq!(as_user("--regid=1", &["policy", "set", "k_max=3"]).0, Some(0));
    wait_for_audit(&server, |lines| lines.iter().any(|line| line.contains("uid=54321")));
    // As behind a socket of the service manager's, whose mode its unit says.
    open("0666", &socket);
    assert_eq!(as_user("--regid=54321", &["status"]).0, Some(0));
    let (code, text) = as_user("--regid=54321", &["policy", "set", "k_max=4"]);
    assert!(code == Some(1) && text.contains("usermod -aG daemon"), "{text}");
    assert_eq!(status(&server)["policy"]["k_max"], 3);
}

/// The binary where every user may run it.
fn copied_binary(folder: &Path) -> PathBuf {
    let copy = folder.join("faser");
    if !copy.exists() {
        std::fs::copy(faser(), &copy).expect("the binary can be copied");
    }
    copy
}
