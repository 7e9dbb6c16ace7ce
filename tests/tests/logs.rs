//! The log from outside: what systemd's journal would get, and the id that ties a request to its lines.

use std::{
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use faser_tests::{Config, Server, faser};
use serde_json::{Value, json};

fn yaml(format: &str) -> String {
    format!("model:\n  synthetic: {{preset: tiny}}\nlog: {{level: debug, format: {format}}}\n")
}

/// A command line in an environment that says of standard error: this is the journal.
fn in_journal(arguments: &[&str]) -> Command {
    let mut command = Command::new("sh");
    let script = "export JOURNAL_STREAM=$(stat -L -c %d:%i /proc/self/fd/2); exec \"$0\" \"$@\"";
    command.args(["-c", script]).arg(faser()).args(arguments).stdin(Stdio::null());
    command
}

fn serve_in_journal(format: &str) -> Server {
    let config = Config::new(&yaml(format));
    let mut command = in_journal(&["serve", "--listen", "127.0.0.1:0", "-c"]);
    command.arg(config.path());
    Server::run(config, command)
}

/// The lines of the log with `part` in them, once there are that many.
fn lines(server: &Server, part: &str, count: usize) -> Vec<String> {
    let started = Instant::now();
    loop {
        let output = server.output();
        let found: Vec<_> = output.lines().filter(|line| line.contains(part)).map(str::to_owned).collect();
        if found.len() >= count {
            return found;
        }
        assert!(started.elapsed() < faser_tests::PATIENCE, "not {count} lines with {part}: {found:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A stream, a refusal, and a stream whose client goes away, each with an id of its own.
fn three_requests(server: &Server) {
    let post = |id: &str, body: &Value| {
        let response =
            server.client().send("POST", "/v1/completions", &[("x-request-id", id)], &body.to_string());
        assert_eq!(response.header("x-request-id"), Some(id));
        response.status
    };
    assert_eq!(post("served.1", &json!({"prompt": "x", "max_tokens": 4, "stream": true})), 200);
    assert_eq!(post("refused.2", &json!({"prompt": "a secret", "temperature": "hot"})), 400);
    let long = json!({"prompt": "x", "max_tokens": 4000, "temperature": 0.9, "stream": true});
    drop(server.client().stream("/v1/completions", &long));
}

#[test]
fn the_journal_gets_priorities_and_no_time_and_every_line_of_a_request_its_id() {
    let server = serve_in_journal("auto");
    three_requests(&server);
    let served = lines(&server, "request_id=served.1}", 2);
    assert!(served.iter().all(|line| line.starts_with("<7>request{request_id=served.1}: ")), "{served:?}");
    assert!(served[0].contains("request answered") && served[0].contains("status=200"), "{served:?}");
    assert!(served[1].contains("request ended") && served[1].contains("complete=true"), "{served:?}");
    let refused = lines(&server, "request_id=refused.2}", 3);
    assert!(refused[0].starts_with("<6>") && refused[0].contains("request refused"), "{refused:?}");
    assert!(refused[0].contains("code=\"invalid_type\"") && refused[0].contains("param=\"temperature\""));
    assert!(!server.output().contains("a secret"), "prompts are not in the log");
    // Its id was made by the daemon.
    lines(&server, "complete=false", 1);
    let log: Vec<String> = lines(&server, "faser", 1);
    let plain = |line: &String| {
        let priority = line.strip_prefix('<').and_then(|line| line.split_once('>'));
        // Standard output goes to the same place here, and has no priority.
        let result = ["device: ", "ready: ", "try: "].iter().any(|start| line.starts_with(start));
        result
            || priority.is_some_and(|(number, rest)| {
                ["3", "4", "6", "7"].contains(&number) && !rest.starts_with("20") && !rest.contains(" INFO ")
            })
    };
    assert!(log.iter().all(plain), "{log:#?}");
}

#[test]
fn json_lines_have_the_id_too() {
    let server = serve_in_journal("json");
    three_requests(&server);
    let refused = lines(&server, "request refused", 1);
    let (priority, object) = refused[0].split_once('>').expect("a priority");
    assert_eq!(priority, "<6");
    let object: Value = serde_json::from_str(object).expect("one JSON object");
    assert_eq!(object["span"]["request_id"], "refused.2");
    assert_eq!(object["fields"]["code"], "invalid_type");
    assert!(object["timestamp"].is_string() && object["level"] == "INFO");
}

#[test]
fn elsewhere_lines_have_time_and_level() {
    // An inherited name is not the journal.
    let server = Server::start_with(&yaml("auto"), &[("JOURNAL_STREAM", "8:12345".into())]);
    three_requests(&server);
    let refused = lines(&server, "request_id=refused.2}", 3);
    assert!(refused[0].contains(" INFO request{request_id=refused.2}: "), "{refused:?}");
    assert!(refused[0].starts_with("20"), "a time: {refused:?}");
}

#[test]
fn the_journal_gets_the_last_words_as_an_error() {
    let output =
        in_journal(&["serve", "-c", "/nowhere/faser.yaml"]).output().expect("the binary can be started");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.starts_with("<3>error: ") && said.contains("/nowhere/faser.yaml"), "{said}");
}
