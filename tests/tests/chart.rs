//! The Helm chart: what it renders is in the repository and valid, faser takes the configs in it, and it names what there is.

use std::process::Command;

use faser_tests::planned::{hub_of_shapes, planned};
use faser_tests::rules::{files, read, root};

/// Rendered examples, each with the machine of one pod.
const EXAMPLES: [(&str, &str); 3] = [("cpu", "cpu-server"), ("gpu", "h100"), ("nodes", "h100x8")];
/// Models on a volume, and the names by which the hub has their shapes.
const STANDING_IN: [(&str, &str); 2] = [
    ("/models/Llama-3.3-70B-Instruct", "hf://meta-llama/Llama-3.3-70B-Instruct"),
    ("/models/Llama-3.2-1B-Instruct", "hf://meta-llama/Llama-3.2-1B-Instruct"),
];

/// The text of a block `KEY: |`, without its indentation.
fn block(yaml: &str, key: &str) -> String {
    let head = format!("  {key}: |");
    let lines = yaml.lines().skip_while(|line| *line != head).skip(1);
    let within = lines.take_while(|line| line.starts_with("    "));
    within.map(|line| format!("{}\n", &line[4..])).collect()
}

#[test]
fn rendered_configs_are_faser_s() {
    let hub = hub_of_shapes();
    let there = files(&root(), "configs/helm/rendered", "yaml").expect("examples can be listed");
    assert_eq!(there.len(), EXAMPLES.len(), "{there:?}");
    for (name, machine) in EXAMPLES {
        let path = format!("configs/helm/rendered/{name}.yaml");
        let mut config = block(&read(&path), "faser.yaml");
        assert!(config.contains("listen: 0.0.0.0:8000"), "{path} has no config: {config}");
        for (folder, shape) in STANDING_IN {
            config = config.replace(folder, shape);
        }
        let machine = root().join(format!("configs/recipes/machines/{machine}.yaml"));
        planned(&hub, &format!("{config}topology: {}\n", machine.display()), &path);
    }
}

#[test]
fn the_chart_renders_to_these_files_and_they_are_valid() {
    let python = |arguments: &[&str]| Command::new("python3").args(arguments).current_dir(root()).output();
    let there = python(&["-c", "import helm_python, kubernetes_validate"]);
    if !there.is_ok_and(|output| output.status.success()) {
        let reason = "python3 has not the packages of tests/helm/requirements.txt";
        return faser_skipped::skip("the_chart_renders_to_these_files_and_they_are_valid", reason);
    }
    let output = python(&["tests/helm/render.py"]).expect("python3 can be started");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}{said}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn the_chart_is_of_this_version_and_of_the_image() {
    let chart = read("configs/helm/faser/Chart.yaml");
    for key in ["version", "appVersion"] {
        assert!(chart.contains(&format!("\n{key}: {}\n", env!("CARGO_PKG_VERSION"))), "{key}: {chart}");
    }
    let (pod, pack) = (read("configs/helm/faser/templates/_helpers.tpl"), read(".ci/pack"));
    assert!(pack.contains("USER = 65532\n") && pod.contains("runAsUser: 65532\n"));
    for folder in ["/var/cache/faser", "/run/faser", "/run/secrets"] {
        assert!(pack.contains(&format!("\"{folder}\"")), "{folder} is none of the image's");
        assert!(pod.contains(&format!("mountPath: {folder}\n")), "nothing is mounted at {folder}");
    }
    assert!(pod.contains("mountPath: /etc/faser\n") && pack.contains("\"-c\", \"/etc/faser/faser.yaml\""));
}

#[test]
fn pods_are_counted_by_metrics_that_there_are() {
    let metrics = read("docs/metrics.md");
    let scaled = read("configs/helm/faser/templates/autoscaler.yaml");
    let names: Vec<&str> =
        scaled.lines().filter_map(|line| line.trim().strip_prefix("name: faser_")).collect();
    assert_eq!(names, ["requests_waiting", "kv_usage_ratio"]);
    for name in names {
        assert!(metrics.contains(&format!("| `faser_{name}` |")), "docs/metrics.md has no faser_{name}");
    }
}
