//! Who may depend on whom, read from `cargo metadata`.

use serde_json::Value;

/// The workspace's dependency edges; every other is a fault, in whatever kind of dependency.
const ALLOWED: &[(&str, &[&str])] = &[
    // The kernels' sources make the GPU that is none.
    ("faser-tests", &["faser", "faser-fuzz-entries", "faser-kernels", "faser-operators", "faser-skipped"]),
    ("faser-fuzz-entries", &["faser-actors", "faser-config", "faser-models", "faser-openai"]),
    (
        "faser",
        &[
            "faser-actors",
            "faser-config",
            "faser-engine",
            "faser-kv-events",
            "faser-loading",
            "faser-models",
            "faser-openai",
            "faser-operators",
            "faser-telemetry",
            "faser-terminal",
            "faser-tools",
        ],
    ),
    (
        "faser-tools",
        &[
            "faser-actors",
            "faser-bench",
            "faser-config",
            "faser-engine",
            "faser-gpu-check",
            "faser-hub",
            "faser-loading",
            "faser-models",
            "faser-openai",
            "faser-terminal",
            "faser-topology",
        ],
    ),
    (
        "faser-operators",
        &[
            "faser-actors",
            "faser-config",
            "faser-engine",
            "faser-loading",
            "faser-models",
            "faser-openai",
            "faser-terminal",
        ],
    ),
    (
        "faser-loading",
        &[
            "faser-actors",
            "faser-config",
            "faser-engine",
            "faser-hub",
            "faser-models",
            "faser-openai",
            "faser-topology",
        ],
    ),
    (
        "faser-openai",
        &["faser-actors", "faser-bench", "faser-config", "faser-engine", "faser-models", "faser-telemetry"],
    ),
    ("faser-kv-events", &["faser-actors", "faser-config", "faser-engine"]),
    // A key may name a model on the hub.
    ("faser-config", &["faser-actors", "faser-engine", "faser-hub", "faser-models", "faser-topology"]),
    ("faser-hub", &[]),
    ("faser-terminal", &["faser-models"]),
    ("faser-telemetry", &[]),
    (
        "faser-gpu-check",
        &["faser-actors", "faser-engine", "faser-kernels", "faser-models", "faser-skipped", "faser-topology"],
    ),
    ("faser-actors", &["faser-engine", "faser-models", "faser-kernels", "faser-topology", "faser-skipped"]),
    ("faser-bench", &["faser-engine"]),
    ("faser-engine", &["faser-topology"]),
    ("faser-models", &["faser-kernels", "faser-skipped"]),
    ("faser-kernels", &["faser-topology", "faser-skipped"]),
    ("faser-topology", &[]),
    ("faser-skipped", &[]),
];

/// Outside crates that only some of ours may use: names by prefix, users, and whether tests of others count.
const CONFINED: &[Confined] = &[
    Confined { prefix: "candle", users: &["faser-models"], in_tests_of: &["faser-kernels"] },
    Confined { prefix: "serde_yaml", users: &["faser-config"], in_tests_of: &[] },
    Confined { prefix: "cudarc", users: &["faser-kernels", "faser-topology"], in_tests_of: &[] },
    Confined {
        prefix: "libc",
        users: &["faser-kernels", "faser-topology"],
        in_tests_of: &["faser-gpu-check"],
    },
    Confined { prefix: "nix", users: &["faser-kernels", "faser-topology"], in_tests_of: &[] },
    Confined {
        prefix: "actix",
        users: &[
            "faser-actors",
            "faser-gpu-check",
            "faser-openai",
            "faser-operators",
            "faser-tools",
            "faser",
            "faser-fuzz-entries",
        ],
        in_tests_of: &["faser-bench"],
    },
    Confined { prefix: "tokenizers", users: &["faser-models"], in_tests_of: &[] },
];

struct Confined {
    prefix: &'static str,
    users: &'static [&'static str],
    in_tests_of: &'static [&'static str],
}

/// Faults in the dependencies of `cargo metadata --no-deps`; also a fault: a workspace crate this list does not know.
pub fn faults(metadata: &Value) -> Vec<String> {
    let packages = metadata["packages"].as_array().map_or(&[][..], Vec::as_slice);
    let ours: Vec<&str> = packages.iter().filter_map(|package| package["name"].as_str()).collect();
    let mut faults = Vec::new();
    if ours.is_empty() {
        faults.push("cargo metadata lists no package".to_owned());
    }
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        let Some((_, allowed)) = ALLOWED.iter().find(|(known, _)| *known == name) else {
            faults.push(format!(
                "{name} is a new crate: say in tests/src/rules/edges.rs who may use it and whom it may use"
            ));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let on = dependency["name"].as_str().unwrap_or_default();
            let kind = dependency["kind"].as_str().unwrap_or("normal");
            if ours.contains(&on) && !allowed.contains(&on) {
                faults.push(format!("{name} -> {on} ({kind}): not an edge of the design"));
            }
            let confined = CONFINED.iter().find(|confined| on.starts_with(confined.prefix));
            if confined.is_some_and(|confined| !confined.allows(name, kind)) {
                faults.push(format!("{name} -> {on} ({kind}): this crate may not use it"));
            }
        }
    }
    faults
}

impl Confined {
    fn allows(&self, user: &str, kind: &str) -> bool {
        self.users.contains(&user) || (kind == "dev" && self.in_tests_of.contains(&user))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn workspace(user: &str, on: &str, kind: Option<&str>) -> Value {
        let known = ALLOWED.iter().map(|(name, _)| {
            let dependencies = if *name == user { json!([{"name": on, "kind": kind}]) } else { json!([]) };
            json!({"name": name, "dependencies": dependencies})
        });
        json!({"packages": known.collect::<Vec<_>>()})
    }

    #[test]
    fn edges_of_the_design_pass() {
        for (user, on, kind) in [
            ("faser", "faser-actors", None),
            ("faser-kernels", "candle-core", Some("dev")),
            ("faser-kernels", "libc", None),
            ("faser-engine", "thiserror", None),
            ("faser-config", "serde_yaml", None),
        ] {
            assert_eq!(faults(&workspace(user, on, kind)), Vec::<String>::new(), "{user} -> {on}");
        }
    }

    #[test]
    fn every_other_edge_is_a_fault() {
        for (user, on, kind) in [
            ("faser-engine", "faser-models", None),
            ("faser-engine", "faser-models", Some("dev")),
            ("faser-models", "faser-topology", Some("build")),
            ("faser-bench", "faser-actors", None),
            ("faser-kernels", "faser-models", None),
            ("faser-kernels", "candle-core", None),
            ("faser-actors", "candle-nn", Some("dev")),
            ("faser-models", "serde_yaml", None),
            ("faser", "cudarc", None),
            ("faser-actors", "libc", None),
            ("faser-engine", "actix", None),
            ("faser-bench", "actix-web", None),
        ] {
            let faults = faults(&workspace(user, on, kind));
            assert_eq!(faults.len(), 1, "{user} -> {on}: {faults:?}");
            assert!(faults[0].contains(user) && faults[0].contains(on));
        }
    }

    #[test]
    fn an_unknown_crate_and_an_empty_listing_are_faults() {
        let faults_of = |names: &[&str]| {
            let packages: Vec<Value> =
                names.iter().map(|name| json!({"name": name, "dependencies": []})).collect();
            faults(&json!({"packages": packages}))
        };
        assert!(faults_of(&["faser-utils"])[0].contains("new crate"));
        assert_eq!(faults_of(&[]).len(), 1);
    }
}
