//! A headless Chromium, spoken to by its DevTools protocol over two pipes.

use std::{
    io::{BufRead, BufReader, Write},
    path::PathBuf,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::PATIENCE;

/// Where Debian's package and others put it.
const NAMES: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// A browser with one page; ended on drop.
#[derive(Debug)]
pub struct Browser {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    folder: PathBuf,
    session: Option<String>,
    calls: u64,
    /// What the page has complained of.
    complaints: Vec<String>,
}

impl Browser {
    /// Starts one; none if there is no Chromium here, and the test is skipped, which is said past the harness.
    ///
    /// # Panics
    /// It cannot be spoken to.
    pub fn start(test: &str) -> Option<Browser> {
        let there = |name: &&&str| {
            Command::new(name)
                .arg("--version")
                .stderr(Stdio::null())
                .output()
                .is_ok_and(|output| output.status.success())
        };
        let Some(name) = NAMES.iter().find(there) else {
            let reason = "there is no Chromium (Debian's package chromium has it)";
            faser_skipped::skip(test, reason);
            return None;
        };
        let folder = std::env::temp_dir().join(format!("faser-browser-{}-{test}", std::process::id()));
        // It speaks on descriptors 3 and 4; what it has to say otherwise is of no interest. No sandbox: tests run as root in containers,
        // and its page is ours.
        let line = "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1";
        let mut child = Command::new("sh")
            .args([
                "-c",
                line,
                name,
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
            ])
            .args(["--hide-scrollbars", "--no-first-run", "--remote-debugging-pipe"])
            .arg(format!("--user-data-dir={}", folder.display()))
            .arg("about:blank")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("sh can be started");
        let input = child.stdin.take().expect("a pipe");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let (session, complaints) = (None, Vec::new());
        let mut browser = Browser { child, input, output, folder, session, calls: 0, complaints };
        let target = browser.call("Target.createTarget", &json!({"url": "about:blank"}))["targetId"].clone();
        let attached = browser.call("Target.attachToTarget", &json!({"targetId": target, "flatten": true}));
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log"] {
            browser.call(&format!("{domain}.enable"), &json!({}));
        }
        Some(browser)
    }

    /// One call of the protocol.
    ///
    /// # Panics
    /// It is refused, or the browser has ended.
    pub fn call(&mut self, method: &str, params: &Value) -> Value {
        self.calls += 1;
        let mut call = json!({"id": self.calls, "method": method, "params": params});
        if let Some(session) = &self.session {
            call["sessionId"] = session.as_str().into();
        }
        let sent = self.input.write_all(format!("{call}\0").as_bytes()).and_then(|()| self.input.flush());
        sent.expect("the browser listens");
        loop {
            let mut bytes = Vec::new();
            let read = self.output.read_until(0, &mut bytes).expect("the browser speaks");
            assert!(read > 0, "the browser has ended");
            let message: Value = serde_json::from_slice(&bytes[..bytes.len() - 1]).expect("JSON");
            if message["id"] == self.calls {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].clone();
            }
            if matches!(
                message["method"].as_str(),
                Some("Runtime.exceptionThrown" | "Runtime.consoleAPICalled" | "Log.entryAdded")
            ) {
                self.complaints.push(message["params"].to_string());
            }
        }
    }

    /// Goes there.
    ///
    /// # Panics
    /// Nothing answers.
    pub fn open(&mut self, url: &str) {
        let went = self.call("Page.navigate", &json!({"url": url}));
        assert!(went["errorText"].is_null(), "{url}: {went}");
    }

    /// The value of an expression on the page; a promise is waited for.
    ///
    /// # Panics
    /// It throws.
    pub fn value(&mut self, expression: &str) -> Value {
        let made = self.evaluate(expression);
        assert!(made["exceptionDetails"].is_null(), "{expression}: {made}");
        made["result"]["value"].clone()
    }

    fn evaluate(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        self.call("Runtime.evaluate", &params)
    }

    /// Waits until an expression is true on the page; where it throws it is not true, for what it asks for may not be there yet.
    ///
    /// # Panics
    /// It does not come true.
    pub fn wait_until(&mut self, expression: &str) {
        let started = Instant::now();
        while self.evaluate(expression)["result"]["value"] != true {
            let complaints = &self.complaints;
            assert!(started.elapsed() < PATIENCE, "never true: {expression}; the page said {complaints:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// What the page has written to its console, what it has thrown, and what the browser has refused it.
    pub fn complaints(&self) -> &[String] {
        &self.complaints
    }

    /// A picture of the page as it looks now: PNG, in base64.
    ///
    /// # Panics
    /// There is none.
    pub fn screenshot(&mut self) -> String {
        let shot = self.call("Page.captureScreenshot", &json!({"format": "png"}));
        shot["data"].as_str().expect("a picture").to_owned()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It may have ended by itself; either way nothing is left to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
