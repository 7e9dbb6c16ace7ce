//! Cost tables between two starts: measured once, cached, read, and measured again when they cannot be used or it is asked for.

use std::{fs, path::PathBuf, process::Output, time::SystemTime};

use faser_tests::metrics::Metrics;
use faser_tests::{Config, Server};
use serde_json::{Value, json};

const PAIR: &str = "\
model:
  synthetic: {preset: tiny, layers: 2, hidden: 64, intermediate: 64, heads: 2, kv_heads: 1, vocab: 512, max_context: 256}
scheduler: {max_running: 8, max_pass_rows: 32}
";

fn yaml(speculation: &str) -> String {
    format!("{PAIR}speculation: {{policy: budget{speculation}}}\n")
}

/// `faser check` with a config; costs are cached in `cache` below its folder unless the config says otherwise.
fn check(config: &Config, flags: &[&str]) -> (String, String) {
    let output = config
        .command(&[&["check"], flags].concat())
        .env("CACHE_DIRECTORY", config.folder().join("cache"))
        .output()
        .expect("the binary can be started");
    let Output { status, stdout, stderr } = output;
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{stdout}{stderr}");
    let tables = stdout.lines().find(|line| line.starts_with("tables "));
    (tables.unwrap_or_else(|| panic!("no tables in {stdout}")).to_owned(), stderr.into_owned())
}

/// The log of a server that answered requests, until something was proposed, and ended cleanly.
fn serves_and_ends(yaml: &str, flags: &[&str]) -> String {
    let config = Config::new(yaml);
    let mut command = config.serve();
    command.args(flags);
    let server = Server::run(config, command);
    // There may be nothing to learn from the first of them: a text ends where it likes, and where another process had the cores while
    // costs were measured, drafts do not pay by them.
    let proposed = || Metrics::scrape(server.client()).value("faser_spec_decode_num_draft_tokens_total");
    let before = proposed();
    for _ in 0..100 {
        let answer = server.client().post("/v1/completions", &json!({"prompt": "learned", "max_tokens": 60}));
        assert_eq!(answer.status, 200, "{answer:?}");
        if proposed() > before {
            break;
        }
    }
    assert!(proposed() > before, "{}", server.output());
    server.terminate();
    assert!(server.wait().success(), "{}", server.output());
    server.output()
}

/// The files in a folder, which may be absent.
fn files(folder: PathBuf) -> Vec<PathBuf> {
    fs::read_dir(folder)
        .map(|entries| entries.map(|entry| entry.expect("an entry").path()).collect())
        .unwrap_or_default()
}

fn costs(file: &PathBuf) -> Value {
    let text = fs::read_to_string(file).expect("the file is there");
    serde_json::from_str(&text).expect("the file is JSON")
}

#[test]
fn a_second_start_reads_what_the_first_measured() {
    let config = Config::new("");
    let folder = config.folder().join("costs");
    let yaml = yaml(&format!(", cost_cache: \"{}\"", folder.display()));
    let first = Server::start(&yaml);
    first.wait_for("cost tables measured now, cached in", || {
        first.output().contains("cost tables measured now, cached in")
    });
    assert!(first.output().contains("preparing cost tables"), "{}", first.output());
    drop(first);
    let [file] = &files(folder.clone())[..] else { panic!("one file is expected in {folder:?}") };
    let cached = costs(file);
    assert_eq!(cached["key"]["target"]["hidden"], 64);
    assert_eq!(cached["key"]["max_rows"], 32);
    let second = Server::start(&yaml);
    let read = format!(" ago, read from {}", file.display());
    second.wait_for(&read, || second.output().contains(&read));
    assert!(!second.output().contains("preparing cost tables"), "{}", second.output());
    assert_eq!(costs(file), cached);
    let answer = second.client().post("/v1/completions", &json!({"prompt": "kept", "max_tokens": 20}));
    assert_eq!(answer.status, 200, "{answer:?}");
}

#[test]
fn check_keeps_costs_where_the_environment_says_and_profile_measures_them_anew() {
    let config = Config::new(&yaml(""));
    let cache = config.folder().join("cache");
    let (first, _) = check(&config, &[]);
    assert!(first.contains("measured now, cached in"), "{first}");
    let [file] = &files(cache)[..] else { panic!("one file is expected") };
    let (second, _) = check(&config, &[]);
    assert!(second.contains(" ago, read from"), "{second}");
    // A time nobody measured, to see whether it is replaced; not so long ago that passes are looked at again.
    let mut cached = costs(file);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a clock").as_secs();
    cached["measured_unix_s"] = json!(now - 300);
    fs::write(file, cached.to_string()).expect("the file can be written");
    let (old, _) = check(&config, &[]);
    assert!(old.contains("measured 5 min ago, read from"), "{old}");
    let (profiled, stderr) = check(&config, &["--profile"]);
    assert!(profiled.contains("measured now, cached in"), "{profiled}");
    assert!(!stderr.contains("WARN"), "{stderr}");
    assert_ne!(costs(file)["measured_unix_s"], now - 300);
}

#[test]
fn a_file_that_cannot_be_used_or_kept_is_a_warning() {
    let config = Config::new(&yaml(""));
    check(&config, &[]);
    let [file] = &files(config.folder().join("cache"))[..] else { panic!("one file is expected") };
    let whole = fs::read_to_string(file).expect("the file is there");
    let other_cpu = {
        let mut cached = costs(file);
        cached["key"]["device"]["cpu"] = json!("another");
        cached.to_string()
    };
    for (text, why) in [(&whole[..100], "it is damaged"), (&other_cpu, "its key differs in `key.device.cpu`")]
    {
        fs::write(file, text).expect("the file can be written");
        let (tables, stderr) = check(&config, &[]);
        assert!(tables.contains("measured now, cached in"), "{tables}");
        assert!(
            stderr.contains("cached cost tables cannot be used: measuring anew") && stderr.contains(why),
            "{stderr}"
        );
        let (tables, stderr) = check(&config, &[]);
        assert!(tables.contains("read from") && !stderr.contains("WARN"), "{tables}\n{stderr}");
    }
    // A file stands where the folder should be: nobody can write there, not even root.
    fs::remove_dir_all(config.folder().join("cache")).expect("the folder can be removed");
    fs::write(config.folder().join("cache"), "").expect("a file can be written");
    let (tables, stderr) = check(&config, &[]);
    assert!(tables.contains("measured now, not cached"), "{tables}");
    assert!(stderr.contains("measured costs cannot be cached"), "{stderr}");
}

#[test]
fn nothing_is_kept_if_the_config_says_so() {
    let config = Config::new(&yaml(", cost_cache: none"));
    for _ in 0..2 {
        let (tables, stderr) = check(&config, &[]);
        assert!(
            tables.contains("measured now, not cached") && !stderr.contains("WARN"),
            "{tables}\n{stderr}"
        );
    }
    assert!(files(config.folder().join("cache")).is_empty());
}

#[test]
fn what_was_learned_is_there_after_a_clean_end_until_costs_are_measured_anew() {
    let config = Config::new("");
    let folder = config.folder().join("learned");
    // A draft that is always right and costs next to nothing, so that it is used.
    let yaml = yaml(&format!(", cost_cache: \"{}\"", folder.display()))
        .replace("layers: 2,", "layers: 24, residual_scale: 0,");
    let found = || {
        let mut all = files(folder.clone());
        all.retain(|file| {
            file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("learned-"))
        });
        all
    };
    let begins = "begins with what was learned";
    let first = serves_and_ends(&yaml, &[]);
    assert!(!first.contains(begins) && !first.contains("WARN"), "{first}");
    let [file] = &found()[..] else { panic!("one file is expected in {folder:?}") };
    let learned = costs(file);
    assert_eq!(learned["key"]["costs"]["target"]["hidden"], 64);
    assert!(learned["learned"]["draft"]["all"][0].as_f64() > Some(0.0), "{learned}");
    let second = serves_and_ends(&yaml, &[]);
    assert!(second.contains(begins), "{second}");
    fs::write(file, "{").expect("the file can be written");
    let damaged = serves_and_ends(&yaml, &[]);
    assert!(!damaged.contains(begins) && damaged.contains("learning anew"), "{damaged}");
    let again = serves_and_ends(&yaml, &[]);
    assert!(again.contains(begins), "it was written again: {damaged}\n{again}");
    let anew = serves_and_ends(&yaml, &["--profile"]);
    assert!(!anew.contains(begins) && !anew.contains("WARN"), "{anew}");
}
