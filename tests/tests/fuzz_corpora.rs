//! What fuzzers have found worth keeping, read by the same functions: nothing of it may fail, whatever it is.

use std::path::PathBuf;

use faser_tests::rules::root;

/// The files of one folder, sorted.
fn files(folder: &str) -> Vec<PathBuf> {
    let folder = root().join(folder);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|err| panic!("{}: {err}", folder.display()));
    let mut files: Vec<PathBuf> =
        entries.map(|entry| entry.expect("a folder can be listed").path()).collect();
    files.sort();
    files
}

#[test]
fn every_corpus_is_read_without_a_fault() {
    for (name, read) in faser_fuzz_entries::ENTRIES {
        let files = files(&format!("fuzz/corpus/{name}"));
        assert!(files.len() >= 8, "{name}: {} files", files.len());
        for file in files {
            let bytes = std::fs::read(&file).expect("a file of the repository");
            println!("{}", file.display());
            read(&bytes);
        }
    }
}

#[test]
fn every_target_has_a_corpus_and_is_built() {
    let manifest = std::fs::read_to_string(root().join("fuzz/Cargo.toml")).expect("a manifest");
    for (name, _) in faser_fuzz_entries::ENTRIES {
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{name} is not in fuzz/Cargo.toml");
        assert!(root().join(format!("fuzz/targets/{name}.rs")).is_file(), "fuzz/targets/{name}.rs");
    }
    assert_eq!(files("fuzz/corpus").len(), faser_fuzz_entries::ENTRIES.len());
    assert_eq!(manifest.matches("[[bin]]").count(), faser_fuzz_entries::ENTRIES.len());
}
