//! API keys from outside: the file, the reload, the refusal to be public without, and that no key is ever written down.

use std::{
    io::{Read, Write},
    net::TcpStream,
    process::Command,
};

use faser_tests::{Config, PATIENCE, Server, client::Client, faser};
use serde_json::json;

const OLD: &str = "sk-old-0123456789abcdef";
const NEW: &str = "sk-new-0123456789abcdef";

fn config(more: &str) -> String {
    format!(
        "server: {{api_keys_file: keys{more}}}\nmodel: {{synthetic: {{preset: tiny}}}}\nlog: {{level: debug}}\n"
    )
}

/// A daemon whose keys are in a file beside its config.
fn guarded(keys: &str) -> Server {
    let config = Config::new(&config(", max_concurrent_per_key: 1"));
    std::fs::write(config.folder().join("keys"), keys).expect("a temporary file can be written");
    let command = config.serve();
    Server::run(config, command)
}

fn status(client: &Client) -> u16 {
    client.get("/v1/models").status
}

#[test]
fn keys_are_read_again_by_sighup_while_streams_go_on() {
    let server = guarded(&format!("# ours\nold:{OLD}\n"));
    let (old, new) = (server.client().with_key(OLD), server.client().with_key(NEW));
    assert_eq!((status(&old), status(&new), status(server.client())), (200, 401, 401));
    assert_eq!(server.client().get("/ready").status, 200);
    let refused = server.client().get("/v1/models");
    assert_eq!(refused.header("www-authenticate"), Some("Bearer realm=\"faser\""));
    assert_eq!(refused.error()["type"], "invalid_request_error");
    let body = json!({"prompt": "go on", "max_tokens": 1500, "temperature": 0.9, "seed": 4, "stream": true});
    let mut stream = old.stream("/v1/completions", &body);
    assert!(stream.next().is_some());
    assert_eq!(status(&old), 429, "one request in flight is all a key may have");

    // What is no list of keys is refused, and those in force stay.
    server.write("keys", "short\n");
    server.signal("HUP");
    server.wait_for("the refusal", || server.output().contains("reload refused, nothing is changed"));
    assert_eq!((status(&old), status(&new)), (429, 401));
    server.write("keys", &format!("{NEW}\n"));
    server.signal("HUP");
    server.wait_for("the new key", || status(&new) == 200);
    assert_eq!(status(&old), 401);
    assert!(server.output().contains("applied: server.api_keys_file"));
    assert!(stream.transcript().done, "a stream that was let in goes on");
    // As many as one likes.
    server.rewrite_config(&config(""));
    server.signal("HUP");
    server.wait_for("the limit is gone", || server.output().contains("server.max_concurrent_per_key"));
    let mut stream = new.stream("/v1/completions", &body);
    assert!(stream.next().is_some());
    assert_eq!(status(&new), 200);
    drop(stream);

    let output = server.output();
    assert!(output.contains("DEBUG"), "answers are logged");
    for secret in [OLD, NEW, "0123456789abcdef"] {
        assert!(!output.contains(secret), "a key is in the log");
    }
}

/// Sends a request that would keep its connection, and returns all that comes up to the end of it.
fn all_of(server: &Server, path: &str) -> String {
    let mut stream = TcpStream::connect(&server.client().address).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").expect("a request can be sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("the connection is closed");
    answer
}

#[test]
fn who_has_no_key_gets_one_answer_a_connection() {
    let server = guarded(&format!("{OLD}\n"));
    for (path, status) in [("/health", 200), ("/ready", 200), ("/v1/models", 401), ("/nothing", 401)] {
        let answer = all_of(&server, path);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {answer}");
        assert!(answer.to_lowercase().contains("connection: close"), "{path}: {answer}");
    }
}

#[test]
fn a_port_for_other_machines_needs_keys_or_a_word() {
    let refused = |command: &str, listen: &str, more: &str| {
        let config = Config::new(&format!(
            "server: {{listen: '{listen}'{more}}}\nmodel: {{synthetic: {{preset: tiny}}}}\n"
        ));
        let output = config.command(&[command]).output().expect("the binary can be started");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for command in ["serve", "check"] {
        let (code, said) = refused(command, "0.0.0.0:0", "");
        assert_eq!(code, Some(1), "{said}");
        for way in ["error: ", "server.api_keys_file", "server.allow_public_without_keys: true", "0.0.0.0:0"]
        {
            assert!(said.contains(way), "{way}: {said}");
        }
    }
    let (code, said) = refused("check", "0.0.0.0:0", ", allow_public_without_keys: true");
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = refused("check", "127.0.0.1:0", ", api_keys_file: nowhere");
    assert_eq!(code, Some(1));
    assert!(said.contains("nowhere: cannot be read"), "{said}");
}

#[test]
fn keys_come_as_a_credential_of_the_service_manager() {
    let folder = Config::new("");
    std::fs::write(folder.folder().join("api-keys"), format!("{NEW}\n")).expect("a file can be written");
    let pair = "model: {synthetic: {preset: tiny}}\nlog: {level: trace}\n";
    let server =
        Server::start_with(pair, &[("CREDENTIALS_DIRECTORY", folder.folder().as_os_str().to_owned())]);
    assert_eq!((status(server.client()), status(&server.client().with_key(NEW))), (401, 200));
    let output = server.output();
    assert!(output.contains("TRACE") && !output.contains(NEW), "everything is logged but the key");
}

#[test]
fn bench_brings_the_key_of_its_environment() {
    let server = guarded(&format!("old:{OLD}\n"));
    let bench = |key: &str| {
        let url = format!("http://{}", server.client().address);
        let mut command = Command::new(faser());
        command.args(["bench", "--url", &url, "--concurrency", "1", "--requests", "2", "--max-tokens", "4"]);
        command.env("OPENAI_API_KEY", key).output().expect("it can be started")
    };
    let (without, with) = (bench(""), bench(OLD));
    let said = String::from_utf8_lossy(&without.stderr).into_owned();
    assert!(!without.status.success() && said.contains("401"), "{said}");
    assert!(with.status.success(), "{}", String::from_utf8_lossy(&with.stderr));
}
