//! The repository's rules, checked on the repository: dependency edges, where `unsafe` may stand, banned calls, who tells kinds of devices and drafts apart,
//! and that the architecture page names files that exist. The rules are in tests/src/rules, each tested on a bad example.

use std::process::Command;

use faser_tests::rules::{crate_picture, cycles, docs, edges, file_rules, files, read, root};

const CRATES: &[&str] = &[
    "topology",
    "kernels",
    "models",
    "engine",
    "actors",
    "kernels/gpu-check",
    "bench",
    "daemon/hub",
    "daemon/config",
    "daemon/kv-events",
    "daemon/telemetry",
    "daemon/terminal",
    "daemon/openai",
    "daemon/loading",
    "daemon/operators",
    "daemon/tools",
    "daemon",
    "fuzz/entries",
    "tests/skipped",
    "tests",
];

fn assert_none(faults: &[String]) {
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

fn rust_files() -> Vec<(String, String)> {
    let mut all = Vec::new();
    // Those in another's folder are found with it.
    let inside = |folder: &&&str| CRATES.iter().any(|other| folder.starts_with(&format!("{other}/")));
    for folder in CRATES.iter().filter(|folder| !inside(folder)) {
        let found = files(&root(), folder, "rs").unwrap_or_else(|error| panic!("{folder}: {error}"));
        assert!(!found.is_empty(), "{folder} has no Rust file");
        all.extend(found.into_iter().map(|path| (path.clone(), read(&path))));
    }
    all
}

fn metadata(manifest: &str) -> serde_json::Value {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline", "--manifest-path", manifest])
        .current_dir(root())
        .output()
        .expect("cargo can be started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("cargo writes JSON")
}

#[test]
fn crates_use_only_whom_they_may() {
    let metadata = metadata("Cargo.toml");
    let packages = metadata["packages"].as_array().map_or(0, Vec::len);
    assert_eq!(packages, CRATES.len(), "tests/tests/layering.rs names every crate");
    assert_none(&edges::faults(&metadata));
}

#[test]
fn source_files_keep_the_rules() {
    let faults: Vec<String> =
        rust_files().iter().flat_map(|(path, source)| file_rules::faults(path, source)).collect();
    assert_none(&faults);
}

#[test]
fn yaml_is_read_in_one_file() {
    assert_none(&file_rules::yaml_in_one_file(&rust_files()));
}

#[test]
fn every_crate_takes_the_workspace_lints() {
    let manifests = CRATES.iter().map(|folder| format!("{folder}/Cargo.toml"));
    let faults: Vec<String> =
        manifests.flat_map(|path| file_rules::manifest_faults(&path, &read(&path))).collect();
    assert_none(&faults);
}

#[test]
fn documents_name_files_that_exist() {
    let pages = files(&root(), "docs", "md").expect("docs");
    let pages = pages.iter().map(String::as_str);
    // What was found on a day names the files of that day, and a list of pages has links.
    let pages = pages.filter(|page| !page.contains("results/") && *page != "docs/SUMMARY.md");
    for document in pages.chain(["README.md", "CONTRIBUTING.md"]) {
        assert_none(&docs::faults(&root(), document, &read(document)));
    }
}

/// `FASER_DRAW=1 cargo test --test layering` draws it anew.
#[test]
fn the_picture_of_the_crates_is_what_cargo_says() {
    let metadata = metadata("Cargo.toml");
    let about = |name: &str| {
        let found =
            metadata["packages"].as_array().into_iter().flatten().find(|package| package["name"] == name);
        found.and_then(|package| package["description"].as_str()).unwrap_or_default().to_owned()
    };
    let (drawn, path) = (crate_picture::picture(&metadata, about), root().join("docs/crates.svg"));
    if std::env::var_os("FASER_DRAW").is_some() {
        std::fs::write(&path, &drawn).expect("docs/crates.svg");
    }
    assert!(
        read("docs/crates.svg") == drawn,
        "docs/crates.svg is of other crates: FASER_DRAW=1 draws it anew"
    );
}

#[test]
fn no_modules_use_each_other_in_a_cycle() {
    assert_none(&cycles::faults(&rust_files()));
}

#[test]
fn the_workspace_of_the_fuzz_targets_loads() {
    let metadata = metadata("fuzz/Cargo.toml");
    assert_eq!(metadata["packages"][0]["name"], "faser-fuzz");
}
