//! `faser prove` on a tiny pair: one hash in every way, a killed daemon among them.

use std::process::Command;

use faser_tests::{Config, faser};

#[test]
fn every_way_writes_the_same_bytes() {
    let config = Config::new(
        "model:\n  synthetic: {preset: tiny, max_context: 256}\nscheduler: {max_running: 8, max_pass_rows: 64}\n",
    );
    let run = Command::new(faser())
        .args(["prove", "-c"])
        .arg(config.path())
        .args(["--requests", "24", "--max-tokens", "200", "--streams", "1,8", "--k", "4"])
        .env("CACHE_DIRECTORY", faser_tests::cost_cache())
        .output()
        .expect("the binary can be started");
    let (table, progress) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert_eq!(run.status.code(), Some(0), "{table}{progress}");
    println!("{table}");
    assert!(table.ends_with("Every way wrote the same bytes.\n"), "{table}");
    let ways = [
        ("no speculation", 2),
        ("prompt-lookup", 2),
        ("predicted output", 2),
        ("past outputs", 2),
        ("draft model", 2),
        ("the policy's choice", 2),
        ("two daemons, one killed, ", 1),
    ];
    for (way, times) in ways {
        assert_eq!(table.lines().filter(|line| line.starts_with(way)).count(), times, "{way}: {table}");
    }
    assert_eq!(table.matches("  same\n").count(), 12, "{table}");
    // What is predicted and what is drafted was accepted now and then, and now and then not.
    for way in ["predicted output", "draft model"] {
        let line = table.lines().find(|line| line.starts_with(way)).expect("a line");
        let (before, after) = line.split_once(" of ").expect("proposals");
        let number = |word: Option<&str>| word.and_then(|word| word.parse::<usize>().ok()).expect("a number");
        let (accepted, proposed) =
            (number(before.split_whitespace().last()), number(after.split_whitespace().next()));
        assert!(0 < accepted && accepted < proposed, "{line}");
    }
}

#[test]
fn what_two_daemons_cannot_have_is_refused() {
    let config = Config::new("model: {synthetic: {preset: tiny}}\nadmin: {socket: admin.sock}\n");
    let run = config.command(&["prove"]).output().expect("the binary can be started");
    let said = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.status.code(), Some(1), "{said}");
    assert!(said.contains("`admin.socket`"), "{said}");
}
