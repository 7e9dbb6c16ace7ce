//! `faser top` from outside: one frame as text, and in a terminal of its own, which it leaves as it found it.

use std::{
    io::{Read, Write},
    path::Path,
    process::{Child, Command, Output, Stdio},
};

use faser_tests::{Server, faser, metrics::wait_until};
use serde_json::json;

const PAIR: &str = "\
model: {name: pair, synthetic: {preset: tiny}}
speculation: {policy: 'fixed:2'}
device: {replicas: 2}
admin: {socket: admin.sock}
";
/// What has a terminal show another screen, and the first one again.
const OTHER_SCREEN: &str = "\x1b[?1049h";
const FIRST_SCREEN: &str = "\x1b[?1049l";

fn once(socket: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(faser());
    command.args(["top", "--interval", "0.1"]).args(args).arg("--socket").arg(socket);
    command.output().expect("the binary can be started")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn one_frame_as_text() {
    let server = Server::start(PAIR);
    let client = server.client().clone();
    let body =
        json!({"prompt": "a long stream", "max_tokens": 2000, "temperature": 0.9, "seed": 1, "stream": true});
    let stream = std::thread::spawn({
        let client = client.clone();
        move || client.stream("/v1/completions", &body).transcript()
    });
    wait_until(&client, "tokens came", |metrics| metrics.sum("faser_output_tokens_total") > 0.0);
    let output = once(&server.socket(), &["--once", "--size", "90x36"]);
    let frame = text(&output.stdout);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
    for words in [
        "serving",
        "pair on cpu",
        "policy fixed:2",
        "tokens/s",
        "lanes of replica 0",
        "target KV",
        "oldest requests",
        "q quit",
    ] {
        assert!(frame.contains(words), "{words} is missing in\n{frame}");
    }
    assert!(frame.lines().count() == 36 && frame.lines().all(|line| line.chars().count() <= 90), "{frame}");
    assert!(!frame.contains('\x1b'), "{frame}");
    assert!(stream.join().expect("the stream is read").complete());
}

#[test]
fn what_cannot_be_shown_is_said() {
    let server = Server::start(PAIR);
    let output = once(&server.socket(), &[]);
    assert!(output.status.code() == Some(1) && text(&output.stderr).contains("--once"), "{output:?}");
    for args in [&[][..], &["--once"]] {
        let output = once(Path::new("/nowhere/admin.sock"), args);
        assert!(output.status.code() == Some(3) && text(&output.stderr).contains("--socket"), "{output:?}");
    }
    assert_eq!(once(&server.socket(), &["--interval", "0"]).status.code(), Some(2));
}

/// `faser top` in a terminal made by `script`; ended on drop.
struct Terminal {
    child: Child,
    shown: String,
}

impl Terminal {
    /// None if there is no `script`, and the test is skipped, which is said past the harness.
    fn start(test: &str, socket: &Path) -> Option<Terminal> {
        // The number of its process first.
        let line = format!(
            "stty rows 36 cols 100; echo \"pid $$ .\"; exec {} top --socket {}",
            faser().display(),
            socket.display()
        );
        let mut command = Command::new("script");
        command.args(["-qefc", &line, "/dev/null"]).env("TERM", "xterm-256color").env("SHELL", "/bin/sh");
        match command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn() {
            Ok(child) => Some(Terminal { child, shown: String::new() }),
            Err(_) => {
                faser_skipped::skip(test, "there is no `script` (Debian's package bsdutils has it)");
                None
            }
        }
    }

    /// Reads on until these words have come since the beginning.
    fn wait_for(&mut self, words: &str) {
        let output = self.child.stdout.as_mut().expect("a pipe");
        let mut bytes = [0; 4096];
        while !self.shown.contains(words) {
            let read = output.read(&mut bytes).expect("it can be read");
            assert!(read > 0, "it has ended without {words:?}: {:?}", self.shown);
            self.shown.push_str(&text(&bytes[..read]));
        }
    }

    /// Its exit status, when all is read.
    fn end(&mut self) -> Option<i32> {
        let mut rest = Vec::new();
        self.child.stdout.as_mut().expect("a pipe").read_to_end(&mut rest).expect("it can be read");
        self.shown.push_str(&text(&rest));
        self.child.wait().expect("a child can be waited for").code()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It may have ended by itself; either way nothing is left to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_terminal_is_left_as_it_was() {
    let server = Server::start(PAIR);
    for how in ["q", "\x03", "TERM"] {
        let Some(mut terminal) = Terminal::start("the_terminal_is_left_as_it_was", &server.socket()) else {
            return;
        };
        terminal.wait_for("serving");
        assert!(terminal.shown.contains(OTHER_SCREEN) && !terminal.shown.contains(FIRST_SCREEN));
        if how == "TERM" {
            let pid = terminal
                .shown
                .split_once("pid ")
                .and_then(|(_, rest)| rest.split_once(' '))
                .expect("a number")
                .0;
            let killed = Command::new("kill").args(["-TERM", pid]).status().expect("kill can be run");
            assert!(killed.success(), "{killed}");
        } else {
            let input = terminal.child.stdin.as_mut().expect("a pipe");
            input.write_all(how.as_bytes()).and_then(|()| input.flush()).expect("it takes keys");
        }
        assert_eq!(terminal.end(), Some(0), "{how:?}");
        let (_, behind) = terminal.shown.rsplit_once(FIRST_SCREEN).expect("the first screen again");
        assert!(!behind.contains("serving"), "{behind:?}");
    }
}

#[test]
fn a_daemon_that_goes_away_is_waited_for() {
    let server = Server::start(PAIR);
    let Some(mut terminal) = Terminal::start("a_daemon_that_goes_away_is_waited_for", &server.socket())
    else {
        return;
    };
    terminal.wait_for("serving");
    drop(server);
    terminal.wait_for("waiting");
    let input = terminal.child.stdin.as_mut().expect("a pipe");
    input.write_all(b"q").expect("it takes keys");
    assert_eq!(terminal.end(), Some(0));
}
