//! What may stand in which Rust file.

use super::code::{code_only, has_word};

/// Crates (folders) where `unsafe` may stand.
const UNSAFE: &[&str] = &["kernels", "topology"];
/// Calls and macros that are banned everywhere, with what to do instead.
const BANNED: &[(&str, &str)] = &[
    ("do_send", "it ignores a full mailbox: use try_send or send"),
    ("todo!", "finish it or leave it out"),
    ("unimplemented!", "finish it or leave it out"),
];
/// What the engine must not know: time other than it is told, IO, threads, actors.
const IMPURE: &[&str] =
    &["Instant", "SystemTime", "std::fs", "std::net", "std::io", "std::env", "std::thread", "tokio", "actix"];

/// What tells kinds of devices and of draft sources apart, and the files that may: those that declare them, make them, or write down which one was
/// measured. Everybody else asks what a device or a source can do and needs.
const KINDS: &[(&str, &[&str])] = &[
    (
        "DeviceSpec::Cpu(",
        &[
            "actors/src/device/",
            "kernels/gpu-check/src/",
            "actors/src/drill.rs",
            "daemon/loading/src/place_pair.rs",
            "daemon/loading/src/costs/key.rs",
        ],
    ),
    (
        "DeviceSpec::Cuda(",
        &[
            "actors/src/device/",
            "kernels/gpu-check/src/",
            "daemon/loading/src/place_pair.rs",
            "daemon/loading/src/costs/key.rs",
        ],
    ),
    ("DraftSource::Lookup", &["engine/src/source.rs"]),
    ("DraftSource::Model", &["engine/src/source.rs"]),
    ("DraftSource::OnePass", &["engine/src/source.rs"]),
    ("DraftSource::Head", &["engine/src/source.rs"]),
    ("DraftSource::BlockHead", &["engine/src/source.rs"]),
];

/// Faults of one file; `path` from the root, with `/`.
pub fn faults(path: &str, source: &str) -> Vec<String> {
    let code = code_only(source);
    let folder = path.split('/').next().unwrap_or_default();
    let mut faults = Vec::new();
    if !source.starts_with("//!") && path.contains("/src/") {
        faults.push(format!("{path}: its first line must say what it is for (`//! ...`)"));
    }
    for (number, line) in code.lines().enumerate() {
        let mut fault = |what: &str| faults.push(format!("{path}:{}: {what}", number + 1));
        if has_word(line, "unsafe") && !UNSAFE.contains(&folder) {
            fault("`unsafe` belongs in kernels and topology alone");
        }
        for (banned, instead) in BANNED {
            if line.contains(banned) && has_word(line, banned.trim_end_matches('!')) {
                fault(&format!("`{banned}`: {instead}"));
            }
        }
        // Tests name what they test.
        let tests = path.contains("tests") || number + 1 > tests_begin(source);
        for (kind, homes) in KINDS.iter().filter(|(kind, _)| !tests && line.contains(kind)) {
            if !homes.iter().any(|home| path.starts_with(home)) {
                fault(&format!(
                    "`{}` is told apart in {} alone: ask what it can do",
                    kind.trim_end_matches('('),
                    homes.join(", ")
                ));
            }
        }
        if path.starts_with("engine/src/") {
            for impure in IMPURE.iter().filter(|impure| has_word(line, impure)) {
                fault(&format!("`{impure}`: the engine is pure"));
            }
        }
    }
    faults
}

/// The line that a file's tests begin at.
fn tests_begin(source: &str) -> usize {
    source.lines().position(|line| line.trim() == "#[cfg(test)]").map_or(usize::MAX, |line| line + 1)
}

/// A fault when more than one of the files names `serde_yaml`; `files` are (path, source).
pub fn yaml_in_one_file(files: &[(String, String)]) -> Vec<String> {
    let named = |(_, source): &&(String, String)| has_word(&code_only(source), "serde_yaml");
    let users: Vec<&str> = files.iter().filter(named).map(|(path, _)| path.as_str()).collect();
    match users.as_slice() {
        [one] if one.starts_with("daemon/") => Vec::new(),
        users => vec![format!("serde_yaml is named in {users:?}: it belongs in one file of daemon")],
    }
}

/// A fault when a crate's manifest does not take the workspace's lints.
pub fn manifest_faults(path: &str, manifest: &str) -> Vec<String> {
    let mut lines = manifest.lines().map(str::trim).skip_while(|line| *line != "[lints]");
    let takes = lines.next().is_some() && lines.next() == Some("workspace = true");
    if takes { Vec::new() } else { vec![format!("{path}: add `[lints]` with `workspace = true`")] }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one_fault(path: &str, body: &str, part: &str) {
        let faults = faults(path, &format!("//! A module.\n{body}"));
        assert_eq!(faults.len(), 1, "{path} {body:?}: {faults:?}");
        assert!(faults[0].contains(part) && faults[0].contains(path), "{faults:?}");
    }

    #[test]
    fn each_rule_finds_its_bad_example() {
        one_fault("models/src/a.rs", "fn f() { unsafe { g() } }", "unsafe");
        one_fault("actors/src/a.rs", "fn f() { addr.do_send(x); }", "do_send");
        one_fault("daemon/src/a.rs", "fn f() { todo!() }", "todo!");
        one_fault("daemon/tests/a.rs", "fn f() { unimplemented!(\"x\") }", "unimplemented!");
        one_fault("engine/src/a.rs", "let now = Instant::now();", "pure");
        one_fault("engine/src/a.rs", "use std::thread;", "pure");
        one_fault("daemon/src/a.rs", "match device { DeviceSpec::Cuda(_) => 1 }", "actors/src/device/");
        one_fault("actors/src/runner/a.rs", "if let DeviceSpec::Cpu(spec) = device {}", "ask what it can do");
        one_fault("engine/src/a.rs", "if source == DraftSource::Lookup {}", "engine/src/source.rs");
        assert!(faults("bench/src/a.rs", "fn f() {}\n")[0].contains("first line"));
    }

    #[test]
    fn what_is_allowed_passes() {
        for (path, body) in [
            ("kernels/src/a.rs", "fn f() { unsafe { g() } }"),
            ("topology/src/a.rs", "unsafe fn g() {}"),
            ("models/src/a.rs", "// unsafe, todo!() and do_send( in a comment\nlet s = \"unsafe todo!()\";"),
            ("actors/src/a.rs", "let undo_send = 1; let now = Instant::now();"),
            ("engine/tests/a.rs", "use std::fs;"),
            ("engine/tests/a.rs", "let source = DraftSource::Lookup;"),
            ("actors/src/device/a.rs", "match device { DeviceSpec::Cuda(_) => 1 }"),
            ("actors/src/a.rs", "#[cfg(test)]\nmod tests { fn f() { DeviceSpec::Cpu(spec) } }"),
        ] {
            assert_eq!(faults(path, &format!("//! A module.\n{body}")), Vec::<String>::new());
        }
    }

    #[test]
    fn yaml_has_one_home() {
        let file = |path: &str, source: &str| (path.to_owned(), source.to_owned());
        let home = file("daemon/config/src/raw.rs", "use serde_yaml::Value;");
        assert!(yaml_in_one_file(&[home.clone(), file("models/src/a.rs", "// serde_yaml")]).is_empty());
        let second = file("daemon/src/other.rs", "serde_yaml::from_str(x)");
        assert!(yaml_in_one_file(&[home, second])[0].contains("daemon/src/other.rs"));
        assert!(!yaml_in_one_file(&[file("models/src/a.rs", "use serde_yaml;")]).is_empty());
    }

    #[test]
    fn manifests_take_the_workspace_lints() {
        assert!(manifest_faults("a/Cargo.toml", "[package]\n\n[lints]\nworkspace = true\n").is_empty());
        assert_eq!(manifest_faults("a/Cargo.toml", "[package]\nworkspace = true\n").len(), 1);
    }
}
