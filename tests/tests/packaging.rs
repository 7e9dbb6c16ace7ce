//! Packages: what .ci/deb and .ci/pack pack is there, and its parts name one another rightly. The Debian package itself is built by hand; .ci/run
//! makes the tarball and the CPU's image, and tries them.

use std::{collections::BTreeMap, process::Command};

use faser_tests::faser;
use faser_tests::rules::{read, root};

/// Where .ci/deb has .ci/made write before it packs.
const MADE: &str = "../target/debian/made/";

/// `[package.metadata.deb]` of the daemon.
fn metadata() -> serde_json::Value {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo can be started");
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("cargo writes JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    let daemon = packages.iter().find(|package| package["name"] == "faser").expect("the daemon");
    daemon["metadata"]["deb"].clone()
}

/// Where each source goes.
fn assets() -> BTreeMap<String, String> {
    let metadata = metadata();
    let assets = metadata["assets"].as_array().expect("assets").iter().map(|asset| {
        let word = |i: usize| asset[i].as_str().expect("source, destination and mode").to_owned();
        assert!(["644", "755"].contains(&word(2).as_str()), "{asset}");
        (word(0), word(1))
    });
    assets.collect()
}

/// Files of the repository that a source with `*` in its last part stands for.
fn matches(source: &str) -> usize {
    let (folder, pattern) = source.rsplit_once('/').expect("a folder");
    let (start, end) = pattern.split_once('*').unwrap_or((pattern, ""));
    let fits = |name: &str| {
        if pattern.contains('*') { name.starts_with(start) && name.ends_with(end) } else { name == pattern }
    };
    let entries = std::fs::read_dir(root().join("daemon").join(folder)).map(Iterator::flatten);
    entries.map_or(0, |entries| entries.filter(|entry| fits(&entry.file_name().to_string_lossy())).count())
}

#[test]
fn what_is_packed_is_there_or_is_made() {
    assert!(read(".ci/deb").contains(&format!(".ci/made \"$binary\" {}", MADE[3..].trim_end_matches('/'))));
    let script = read(".ci/made");
    let assets = assets();
    for source in assets.keys().filter(|source| *source != "target/release/faser") {
        match source.strip_prefix(MADE) {
            Some(made) => {
                let name = made.split(['/', '.']).next().unwrap_or_default();
                assert!(script.contains(&format!("$made/{name}")), ".ci/made does not make {source}");
            }
            None => assert!(matches(source) > 0, "{source} is not there"),
        }
    }
    assert_eq!(matches("../configs/*.nothing"), 0);
    assert_eq!(matches("../configs/faser.socket"), 1);
    assert!(assets.contains_key("target/release/faser"));
}

#[test]
fn the_parts_name_one_another() {
    let assets = assets();
    let installed = |path: &str| {
        let path = path.trim_start_matches('/');
        assets.iter().any(|(source, to)| {
            let name = source.rsplit('/').next().unwrap_or_default();
            to == path || to.strip_suffix('/').is_some_and(|folder| path == format!("{folder}/{name}"))
        })
    };
    let unit = read("configs/faser.service");
    let value = |key: &str| {
        let line = unit.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        line.unwrap_or_else(|| panic!("{key}")).to_owned()
    };
    let start = value("ExecStart");
    let words: Vec<&str> = start.split(' ').collect();
    assert!(installed(words[0]) && installed(words[3]), "{start}");
    let documentation = value("Documentation");
    assert!(installed(documentation.strip_prefix("file://").expect("a file")), "{documentation}");
    let user = format!("u {} ", value("User"));
    assert!(read("configs/debian/faser.sysusers").lines().any(|line| line.starts_with(&user)), "{user}");
    // The units are found by cargo-deb, which fills in what to do about them.
    let metadata = metadata();
    assert_eq!(metadata["systemd-units"]["unit-scripts"], "../configs");
    assert_eq!(metadata["maintainer-scripts"], "../configs/debian");
    assert!(read("configs/debian/postrm").contains("\n#DEBHELPER#\n"));
    // Where the daemon looks for the demo pair, beside an installed binary.
    assert!(assets.values().any(|to| to == "usr/share/faser/models/rustdoc/target/"));
    let config = read("configs/debian/faser.yaml");
    for path in
        config.split_whitespace().filter(|word| word.starts_with("/usr/") || word.starts_with("/etc/"))
    {
        assert!(installed(path), "configs/debian/faser.yaml names {path}");
    }
}

#[test]
fn the_changelog_is_of_this_version() {
    let first = read("configs/debian/changelog").lines().next().map(str::to_owned).unwrap_or_default();
    let wanted = format!("faser ({}-1) ", env!("CARGO_PKG_VERSION"));
    assert!(first.starts_with(&wanted), "{first}, but the version is {wanted}");
}

#[test]
fn the_images_config_is_valid_and_names_what_is_in_it() {
    let path = root().join("configs/image/faser.yaml");
    let output =
        Command::new(faser()).args(["check", "-c"]).arg(&path).output().expect("the binary can be started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (config, script) = (read("configs/image/faser.yaml"), read(".ci/pack"));
    // The credential `api-keys` in the folder that the image says.
    assert!(
        config.contains("/run/secrets/api-keys")
            && script.contains("\"CREDENTIALS_DIRECTORY\": \"/run/secrets\"")
    );
    assert!(
        config.contains("listen: 0.0.0.0:8000") && script.contains("\"ExposedPorts\": {\"8000/tcp\": {}}")
    );
    assert!(
        config.contains("/var/cache/faser") && script.contains("\"Volumes\": {\"/var/cache/faser\": {}, ")
    );
    assert!(assets().values().any(|to| to == "usr/share/doc/faser/examples/"), "where its config points to");
}

#[test]
fn images_have_the_libraries_that_are_looked_for() {
    let script = read(".ci/pack");
    let libraries = read("kernels/src/cuda/libraries.rs");
    for name in ["libnvrtc.so.", "libcublasLt.so.", "libnccl.so."] {
        assert!(libraries.contains(&format!("\"{name}")), "{name} is not looked for any more");
        assert!(script.contains(&format!("\"{name}*\"")), ".ci/pack packs no {name}");
    }
    // Wheels that the errors name too.
    for package in libraries.split('"').filter(|word| word.starts_with("nvidia-")) {
        assert!(script.contains(&format!("\"{package}==")), ".ci/pack takes no {package}");
    }
}
