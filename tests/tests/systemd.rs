//! systemd's protocol, played with the real binary: readiness, status, watchdog, reload, sockets that are handed over.

use std::{
    net::{TcpListener, TcpStream},
    os::fd::OwnedFd,
    os::unix::net::UnixListener,
    process::{Command, Stdio},
    sync::{Arc, Barrier},
};

use faser_tests::{Config, Server, ServiceManager, faser};
use serde_json::{Value, json};

const PAIR: &str = "model:\n  synthetic: {preset: tiny}\n";

fn stream_of(tokens: usize, seed: usize) -> Value {
    json!({"prompt": "a stream", "max_tokens": tokens, "temperature": 0.9, "seed": seed, "stream": true})
}

fn has(lines: &[String], line: &str) -> bool {
    lines.iter().any(|found| found == line)
}

fn status(lines: &[String]) -> &str {
    lines.iter().find_map(|line| line.strip_prefix("STATUS=")).unwrap_or_default()
}

#[test]
fn readiness_status_beats_and_the_end_are_told() {
    let manager = ServiceManager::listen();
    let variables = [manager.variable(), ("WATCHDOG_USEC", "100000".into())];
    // One after the other: so many that the status line, which is looked at every few seconds, meets some.
    let server = Server::start_with(&format!("{PAIR}scheduler: {{max_running: 1}}\n"), &variables);
    let (ready, lines) = manager.wait_for("ready", 0, |lines| has(lines, "READY=1"));
    assert_eq!(server.client().get("/ready").status, 200);
    let serving = format!("serving synthetic on http://{}, requests: 0", server.client().address);
    assert_eq!(status(&lines), serving);
    let before = &manager.told()[..ready];
    let loading = |lines: &&Vec<String>| {
        status(lines).starts_with("loading ") && has(lines, "EXTEND_TIMEOUT_USEC=60000000")
    };
    assert!(before.iter().any(|lines| loading(&lines)), "{before:?}");
    assert!(before.iter().all(|lines| !has(lines, "WATCHDOG=1") && !has(lines, "STOPPING=1")), "{before:?}");
    // Idle, and at work: the dispatcher answers.
    let beats = |more: usize| {
        let now = manager.count("WATCHDOG=1");
        let enough = |_: &[String]| manager.count("WATCHDOG=1") >= now + more;
        manager.wait_for("beats", 0, enough);
    };
    beats(3);
    let streams: Vec<_> =
        (0..32).map(|seed| server.client().stream("/v1/completions", &stream_of(4000, seed))).collect();
    beats(3);
    manager.wait_for("a status with requests", ready + 1, |lines| {
        let status = status(lines);
        status.starts_with("serving") && !status.ends_with("requests: 0")
    });
    drop(streams);
    server.terminate();
    let (_, lines) = manager.wait_for("stopping", ready, |lines| has(lines, "STOPPING=1"));
    assert!(status(&lines).starts_with("draining"), "{lines:?}");
    // The 30 s of `drain_timeout_s`, and some for the end itself.
    assert!(has(&lines, "EXTEND_TIMEOUT_USEC=51000000"), "{lines:?}");
    server.ends_well();
    assert_eq!(manager.count("READY=1"), 1);
}

/// Whether its log has a line with all of these in it.
fn has_line(server: &Server, parts: &[&str]) -> bool {
    server.output().lines().any(|line| parts.iter().all(|part| line.contains(part)))
}

/// SIGHUP, and the status that the manager is told when the reload is over.
fn reload(server: &Server, manager: &ServiceManager) -> String {
    let from = manager.told().len();
    server.signal("HUP");
    let (begun, lines) = manager.wait_for("reloading", from, |lines| has(lines, "RELOADING=1"));
    let micros = lines.iter().find_map(|line| line.strip_prefix("MONOTONIC_USEC="));
    assert!(micros.is_some_and(|micros| micros.parse::<u64>().is_ok_and(|micros| micros > 0)), "{lines:?}");
    let (_, lines) = manager.wait_for("ready again", begun, |lines| has(lines, "READY=1"));
    status(&lines).to_owned()
}

#[test]
fn a_reload_under_load_applies_what_is_live_and_a_bad_file_changes_nothing() {
    const STREAMS: usize = 32;
    let manager = ServiceManager::listen();
    let server = Server::start_with(PAIR, &[manager.variable()]);
    let running = Arc::new(Barrier::new(STREAMS + 1));
    let readers: Vec<_> = (0..STREAMS)
        .map(|seed| {
            let (client, running) = (server.client().clone(), Arc::clone(&running));
            std::thread::spawn(move || {
                let mut stream = client.stream("/v1/completions", &stream_of(400, seed));
                assert!(stream.next().is_some());
                running.wait();
                stream.transcript()
            })
        })
        .collect();
    running.wait();
    assert!(!server.output().contains("DEBUG"), "the level is info");
    server.rewrite_config(&format!("{PAIR}log: {{level: debug}}\nserver: {{workers: 3}}\n"));
    let outcome = reload(&server, &manager);
    let wanted = "last reload: applied: log.level; needs a restart: server.workers";
    assert!(outcome.starts_with("serving") && outcome.ends_with(wanted), "{outcome}");
    // Answers are logged at debug.
    assert_eq!(server.client().get("/ready").status, 200);
    server.wait_for("a line of the log", || has_line(&server, &["DEBUG", "request answered"]));
    server
        .wait_for("a line of the log", || has_line(&server, &["WARN", "needs a restart", "server.workers"]));
    server.rewrite_config(&format!("{PAIR}log: {{level: trace, colour: red}}\n"));
    let outcome = reload(&server, &manager);
    assert!(outcome.starts_with("serving") && outcome.contains("refused, nothing is changed"), "{outcome}");
    assert!(outcome.contains("faser.yaml:3") && outcome.contains("log.colour"), "{outcome}");
    for reader in readers {
        assert!(reader.join().expect("a reader").complete(), "no stream is broken");
    }
    server.wait_for("a line of the log", || {
        has_line(&server, &["ERROR", "reload refused, nothing is changed", "log.colour"])
    });
    server.rewrite_config(PAIR);
    assert!(reload(&server, &manager).ends_with("last reload: applied: log.level"));
    assert_eq!(server.client().get("/ready").status, 200);
}

/// `faser serve` with `socket` as the first one handed over; the process that gets LISTEN_PID is `pid` in shell.
fn handed_over(config: &Config, socket: OwnedFd, pid: &str) -> Command {
    let script = format!("exec 3<&0 </dev/null; export LISTEN_PID={pid} LISTEN_FDS=1; exec \"$0\" \"$@\"");
    let mut command = Command::new("sh");
    command.args(["-c", &script]).arg(faser()).args(["serve", "--listen", "127.0.0.1:0", "-c"]);
    command.arg(config.path()).env("LISTEN_FDNAMES", "faser.socket").stdin(Stdio::from(socket));
    command
}

#[test]
fn a_port_that_is_handed_over_is_served() {
    let port = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = port.local_addr().expect("its address").to_string();
    let config = Config::new(PAIR);
    let command = handed_over(&config, port.into(), "$$");
    let server = Server::run(config, command);
    assert_eq!(server.client().address, address);
    assert_eq!(server.client().get("/ready").status, 200);
    server.stop();
}

#[test]
fn a_port_for_another_process_is_left_alone() {
    let port = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = port.local_addr().expect("its address").to_string();
    let config = Config::new(PAIR);
    let command = handed_over(&config, port.into(), "1");
    let server = Server::run(config, command);
    assert_ne!(server.client().address, address, "server.listen counts");
    assert_eq!(server.client().get("/ready").status, 200);
}

#[test]
fn what_is_no_listening_tcp_socket_is_refused() {
    let config = Config::new(PAIR);
    let unix = UnixListener::bind(config.folder().join("socket")).expect("a unix socket");
    let port = TcpListener::bind("127.0.0.1:0").expect("a port");
    let connected = TcpStream::connect(port.local_addr().expect("its address")).expect("a connection");
    let file = std::fs::File::open(config.path()).expect("the config file");
    let refused: [(OwnedFd, &str); 3] = [
        (unix.into(), "fd 3 is not a valid tcp socket"),
        (connected.into(), "does not listen"),
        (file.into(), "fd 3 is not a socket"),
    ];
    for (socket, why) in refused {
        let output = handed_over(&config, socket, "$$").output().expect("the binary can be started");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(
            said.contains("LISTEN_FDS") && said.contains(why) && said.contains("ListenStream="),
            "{said}"
        );
    }
}

#[test]
fn sigterm_while_loading_is_told_as_an_end() {
    let manager = ServiceManager::listen();
    // Large enough to be met while it loads, on any machine.
    let config = Config::new("model:\n  synthetic: {preset: 110m}\n");
    let (name, socket) = manager.variable();
    let mut child = config.serve().env(name, socket).spawn().expect("the binary can be started");
    manager.wait_for("loading", 0, |lines| status(lines).starts_with("loading"));
    let id = child.id().to_string();
    let killed = Command::new("kill").args(["-TERM", &id]).status().expect("kill can be run");
    assert!(killed.success());
    manager.wait_for("stopping", 0, |lines| has(lines, "STOPPING=1"));
    assert!(child.wait().expect("it ends").success());
    assert_eq!(manager.count("READY=1"), 0);
}

#[test]
fn an_admin_socket_that_is_handed_over_is_served_beside_a_port_of_our_own() {
    let config = Config::new(PAIR);
    let path = config.folder().join("handed-over.sock");
    let socket = UnixListener::bind(&path).expect("a unix socket");
    let mut command = handed_over(&config, socket.into(), "$$");
    command.env("LISTEN_FDNAMES", "admin");
    let server = Server::run(config, command);
    assert_eq!(server.client().get("/ready").status, 200);
    let admin = faser_operators::ctl::socket_client::Client::new(&path);
    let status = admin.get("/v1/status").and_then(|answer| answer.json()).expect("a status");
    assert_eq!(status["state"], "serving");
    server.stop();
    assert!(path.exists(), "it is the service manager's");
}

#[test]
fn an_admin_socket_stands_in_the_folder_that_the_service_manager_made() {
    let folder = Config::new("");
    let server = Server::start_with(PAIR, &[("RUNTIME_DIRECTORY", folder.folder().into())]);
    let admin = faser_operators::ctl::socket_client::Client::new(&folder.folder().join("admin.sock"));
    assert!(admin.get("/v1/status").is_ok());
    drop(server);
    let off = Server::start_with(
        &format!("{PAIR}admin: {{socket: none}}\n"),
        &[("RUNTIME_DIRECTORY", Config::new("").folder().into())],
    );
    assert!(!off.output().contains("admin socket"));
}
