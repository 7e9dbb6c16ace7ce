//! The `openai` Python package against a running daemon (tests/openai/client.py).

use std::process::Command;

use faser_tests::{Server, rules::root};

const DEMO: &str = "scheduler: {max_running: 1, max_waiting: 1}\nlog: {level: warn}\n";

#[test]
#[ignore = "needs python3 with tests/openai/requirements.txt; .ci/run makes a venv and runs it"]
fn the_openai_package_is_served() {
    let server = Server::start(DEMO);
    let output = Command::new("python3")
        .arg(root().join("tests/openai/client.py"))
        .arg(format!("http://{}", server.client().address))
        .output()
        .expect("python3 can be started");
    println!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
