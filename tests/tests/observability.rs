//! Metrics, dashboard and alerts: docs/metrics.md is what the real binary exports, and nothing is drawn or watched that is not in it.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
};

use faser_tests::{
    Server,
    rules::{read, root},
};
use serde_json::{Value, json};

/// What is in the table of one metric.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    kind: String,
    labels: BTreeSet<String>,
    /// Whether several replicas have the label `replica` too.
    by_replica: bool,
    unit: String,
    meaning: String,
    /// There from the moment on that requests are taken.
    always: bool,
}

/// What is exported of one metric.
#[derive(Debug, Default)]
struct Exported {
    kind: String,
    help: String,
    labels: BTreeSet<String>,
    samples: usize,
}

fn table() -> BTreeMap<String, Row> {
    let document = read("docs/metrics.md");
    let mut rows = BTreeMap::new();
    let names = ["| `faser_", "| `process_", "| `vllm:"];
    for line in document.lines().filter(|line| names.iter().any(|name| line.starts_with(name))) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [name, kind, labels, unit, meaning, there] = cells[..] else { panic!("six cells: {line}") };
        let all: BTreeSet<&str> = labels.split(", ").filter(|label| *label != "—").collect();
        let row = Row {
            kind: kind.to_owned(),
            labels: all.iter().filter(|label| **label != "(replica)").map(ToString::to_string).collect(),
            by_replica: all.contains("(replica)"),
            unit: unit.to_owned(),
            meaning: meaning.to_owned(),
            always: there == "always",
        };
        assert!(!there.is_empty() && !unit.is_empty(), "{line}");
        assert!(rows.insert(name.trim_matches('`').to_owned(), row).is_none(), "twice: {line}");
    }
    assert!(!rows.is_empty(), "docs/metrics.md has a table");
    rows
}

/// The metric that a sample belongs to: a histogram's samples have endings.
fn family(sample: &str, is_histogram: impl Fn(&str) -> bool) -> &str {
    let stripped = ["_bucket", "_sum", "_count"].iter().find_map(|ending| sample.strip_suffix(ending));
    stripped.filter(|name| is_histogram(name)).unwrap_or(sample)
}

/// The names of the labels in `lane="draft",le="+Inf"`.
fn label_names(labels: &str) -> BTreeSet<String> {
    let names = labels.split("\",").filter_map(|label| label.split_once("=\"")).map(|(name, _)| name);
    names.map(str::to_owned).collect()
}

fn exported(scrape: &str) -> BTreeMap<String, Exported> {
    let mut all: BTreeMap<String, Exported> = BTreeMap::new();
    for line in scrape.lines().filter(|line| !line.is_empty()) {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            help.clone_into(&mut all.entry(name.to_owned()).or_default().help);
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            kind.clone_into(&mut all.entry(name.to_owned()).or_default().kind);
        } else {
            let (key, _) = line.rsplit_once(' ').unwrap_or_else(|| panic!("not a sample: {line}"));
            let (sample, labels) = key.split_once('{').unwrap_or((key, ""));
            let is_histogram = |name: &str| all.get(name).is_some_and(|metric| metric.kind == "histogram");
            let metric = all.entry(family(sample, is_histogram).to_owned()).or_default();
            metric.samples += 1;
            metric.labels.extend(label_names(labels));
        }
    }
    all
}

/// What a daemon has several of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Several {
    Nothing,
    Replicas,
    Pairs,
}

/// Where the table and a scrape differ, one line per fault.
fn differences(
    table: &BTreeMap<String, Row>,
    scraped: &BTreeMap<String, Exported>,
    several: Several,
) -> Vec<String> {
    let mut faults = Vec::new();
    for (name, row) in table {
        let Some(found) = scraped.get(name).filter(|found| found.samples > 0) else {
            if row.always {
                faults.push(format!("{name} is in the table, but not exported"));
            }
            continue;
        };
        let mut labels = row.labels.clone();
        labels.extend((several == Several::Replicas && row.by_replica).then(|| "replica".to_owned()));
        let by_pair = several == Several::Pairs
            && name != "faser_http_requests_total"
            && !["vllm:", "process_"].iter().any(|of| name.starts_with(of));
        labels.extend(by_pair.then(|| "pair".to_owned()));
        labels.extend((row.kind == "histogram").then(|| "le".to_owned()));
        if found.kind != row.kind {
            faults.push(format!("{name} is a {}, the table says {}", found.kind, row.kind));
        }
        if found.labels != labels {
            faults.push(format!("{name} has labels {:?}, the table says {labels:?}", found.labels));
        }
        if found.help != row.meaning {
            faults.push(format!("{name} means: {}; the table says: {}", found.help, row.meaning));
        }
    }
    let unknown = scraped.keys().filter(|name| !table.contains_key(*name));
    faults.extend(unknown.map(|name| format!("{name} is exported, but not in the table")));
    faults
}

/// What a daemon exports after a request that it answered, one that it refused, and a stream.
fn scrape_after_requests(yaml: &str) -> String {
    let server = Server::start(yaml);
    let client = server.client();
    let body = json!({"prompt": "a table of metrics", "max_tokens": 24, "temperature": 0});
    assert_eq!(client.post("/v1/completions", &body).status, 200);
    assert_eq!(client.post("/v1/completions", &json!({"prompt": 3})).status, 400);
    assert!(
        client.stream("/v1/completions", &json!({"prompt": "x", "stream": true})).transcript().complete()
    );
    let response = client.get("/metrics");
    assert_eq!(response.status, 200);
    response.body
}

#[test]
fn the_table_is_what_is_exported() {
    let table = table();
    let alone = exported(&scrape_after_requests("model:\n  synthetic: {preset: tiny}\n"));
    let faults = differences(&table, &alone, Several::Nothing);
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
    assert!(alone.contains_key("faser_http_requests_total"));
    let yaml = "model:\n  synthetic: {preset: tiny}\ndevice: {kind: cpu, replicas: 2}\n";
    let faults = differences(&table, &exported(&scrape_after_requests(yaml)), Several::Replicas);
    assert!(faults.is_empty(), "with replicas:\n{}\n", faults.join("\n"));
    // What is there if it is asked for.
    let asked = "model:\n  synthetic: {preset: tiny}\nkv_events: {endpoint: 'tcp://127.0.0.1:0'}\ntelemetry: {otlp_endpoint: 'http://127.0.0.1:1'}\n";
    let asked = exported(&scrape_after_requests(asked));
    let faults = differences(&table, &asked, Several::Nothing);
    assert!(faults.is_empty(), "with all that can be asked for:\n{}\n", faults.join("\n"));
    let missing = table.keys().filter(|name| !asked.contains_key(*name)).collect::<Vec<_>>();
    assert_eq!(missing, Vec::<&String>::new());
    let pair = |name| format!("- {{name: {name}, model: {{synthetic: {{preset: tiny}}}}}}\n");
    let yaml = format!("device: {{kind: cpu}}\npairs:\n{}{}", pair("a"), pair("b"));
    let faults = differences(&table, &exported(&scrape_after_requests(&yaml)), Several::Pairs);
    assert!(faults.is_empty(), "with pairs:\n{}\n", faults.join("\n"));
}

/// What vLLM's example dashboards query of what faser has: examples/observability/{dashboards/grafana,prometheus_grafana} of vllm-project/vllm.
const VLLM_DASHBOARDS: [&str; 26] = [
    "vllm:cache_config_info",
    "vllm:e2e_request_latency_seconds",
    "vllm:generation_tokens_total",
    "vllm:inter_token_latency_seconds",
    "vllm:iteration_tokens_total",
    "vllm:kv_cache_usage_perc",
    "vllm:num_preemptions_total",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:num_requests_waiting_by_reason",
    "vllm:prefix_cache_hits_total",
    "vllm:prefix_cache_queries_total",
    "vllm:prompt_tokens_by_source_total",
    "vllm:prompt_tokens_total",
    "vllm:request_decode_time_seconds",
    "vllm:request_generation_tokens",
    "vllm:request_max_num_generation_tokens",
    "vllm:request_prefill_time_seconds",
    "vllm:request_prompt_tokens",
    "vllm:request_queue_time_seconds",
    "vllm:request_success_total",
    "vllm:request_time_per_output_token_seconds",
    "vllm:spec_decode_num_accepted_tokens_per_pos_total",
    "vllm:spec_decode_num_accepted_tokens_total",
    "vllm:spec_decode_num_draft_tokens_total",
    "vllm:time_to_first_token_seconds",
];

#[test]
fn vllms_dashboards_find_data() {
    let yaml = "model:\n  synthetic: {preset: tiny}\ndevice: {kind: cpu}\nspeculation: {policy: 'fixed:3'}\n";
    let scrape = scrape_after_requests(yaml);
    let all = exported(&scrape);
    // Of what is at rest, or was never short: 0 is data too.
    let quiet = ["kv_cache_usage", "num_preemptions", "num_requests", "prefix_cache_hits"];
    for name in VLLM_DASHBOARDS {
        assert!(all.get(name).is_some_and(|found| found.samples > 0), "{name}");
        let counted =
            scrape.lines().filter(|line| line.starts_with(name) && line.contains("model_name=\"synthetic\""));
        let counted = counted.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        let quiet = quiet.iter().any(|quiet| name.contains(quiet));
        assert!(counted.sum::<f64>() > 0.0 || quiet, "{name} has counted nothing");
    }
    // The bounds that the dashboards' targets name.
    for bound in [
        "time_to_first_token_seconds_bucket{model_name=\"synthetic\",engine=\"0\",le=\"1.0\"}",
        "le=\"0.1\"}",
    ] {
        assert!(scrape.contains(bound), "{bound}");
    }
    let without =
        scrape_after_requests("metrics: {vllm_names: false}\nmodel:\n  synthetic: {preset: tiny}\n");
    assert!(!without.contains("vllm:"));
}

#[test]
fn differences_are_found() {
    let row = |kind: &str, always| Row {
        kind: kind.to_owned(),
        labels: BTreeSet::new(),
        by_replica: true,
        unit: "seconds".to_owned(),
        meaning: "m".to_owned(),
        always,
    };
    let table: BTreeMap<String, Row> = [("faser_a", true), ("faser_b", true), ("faser_c", false)]
        .map(|(name, always)| (name.to_owned(), row("histogram", always)))
        .into();
    let scrape = "# HELP faser_a m\n# TYPE faser_a histogram\nfaser_a_bucket{le=\"1\"} 1\nfaser_a_sum 1\n\
                  # HELP faser_d m\n# TYPE faser_d gauge\nfaser_d 1\n";
    let faults = differences(&table, &exported(scrape), Several::Nothing);
    assert_eq!(
        faults,
        ["faser_b is in the table, but not exported", "faser_d is exported, but not in the table"]
    );
    assert_eq!(
        differences(&table, &exported(scrape), Several::Replicas).len(),
        3,
        "the label replica is missing"
    );
    let other = scrape.replace("HELP faser_a m", "HELP faser_a n").replace("le=", "x=\"y\",le=");
    assert_eq!(differences(&table, &exported(&other), Several::Nothing).len(), 4);
}

#[test]
fn units_are_those_of_the_names() {
    for (name, row) in table() {
        let base = name.trim_end_matches("_total");
        for (ending, unit) in
            [("_seconds", "seconds"), ("_ratio", "ratio"), ("_tokens", "tokens"), ("_blocks", "blocks")]
        {
            assert!(!base.ends_with(ending) || row.unit == unit, "{name} is not in {}", row.unit);
        }
    }
}

/// Faults of an expression: metrics that are not in the table, samples that their type does not have, labels that they do not have.
fn expression_faults(table: &BTreeMap<String, Row>, expression: &str) -> Vec<String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut faults = Vec::new();
    let mut rest = expression;
    while let Some(at) = rest.find("faser_") {
        let length = rest[at..].find(|c| !is_name(c)).unwrap_or(rest.len() - at);
        let sample = &rest[at..at + length];
        rest = &rest[at + length..];
        let name = family(sample, |name| table.get(name).is_some_and(|row| row.kind == "histogram"));
        let Some(row) = table.get(name) else {
            faults.push(format!("{sample} is not in the table"));
            continue;
        };
        if row.kind == "histogram" && name == sample {
            faults.push(format!("{name} is a histogram: it has no value of its own"));
        }
        let selector =
            rest.strip_prefix('{').and_then(|rest| rest.split_once('}')).map_or("", |(inner, _)| inner);
        for label in
            selector.split("\",").filter_map(|matcher| matcher.split(['=', '!']).next()).map(str::trim)
        {
            let known =
                row.labels.contains(label) || ["", "replica", "pair", "instance", "job"].contains(&label);
            if !known {
                faults.push(format!("{name} has no label {label}"));
            }
        }
    }
    faults
}

/// The expressions of all panels, by title.
fn dashboard() -> Vec<(String, String)> {
    let dashboard: Value = serde_json::from_str(&read("configs/grafana-dashboard.json")).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let mut expressions = Vec::new();
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        let title = panel["title"].as_str().expect("a title");
        assert!(
            panel["description"].as_str().is_some_and(|text| !text.is_empty()),
            "{title} says what it shows"
        );
        let targets = panel["targets"].as_array().expect("targets");
        assert!(!targets.is_empty(), "{title} shows nothing");
        expressions.extend(
            targets
                .iter()
                .map(|target| (title.to_owned(), target["expr"].as_str().expect("an expression").to_owned())),
        );
    }
    expressions
}

#[test]
fn what_is_drawn_and_watched_is_in_the_table() {
    let table = table();
    let mut faults = Vec::new();
    for (title, expression) in dashboard() {
        assert!(expression.contains("faser_"), "{title}: {expression}");
        faults.extend(expression_faults(&table, &expression).iter().map(|fault| format!("{title}: {fault}")));
    }
    for file in ["configs/alerts.yml", "configs/alerts.test.yml"] {
        let text: Vec<String> = read(file)
            .lines()
            .filter(|line| !line.trim_start().starts_with('#'))
            .map(str::to_owned)
            .collect();
        let text = text.join("\n").replace("alerts.test.yml", "");
        assert!(text.contains("faser_"), "{file}");
        faults.extend(expression_faults(&table, &text).iter().map(|fault| format!("{file}: {fault}")));
    }
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
    assert_eq!(expression_faults(&table, "rate(faser_nothing[1m]) + faser_pass_seconds").len(), 2);
    assert_eq!(expression_faults(&table, "faser_passes_total{lane=\"draft\",colour=\"red\"}").len(), 1);
}

#[test]
fn prometheus_takes_the_rules_and_they_fire_when_they_should() {
    let promtool = |arguments: &[&str]| {
        Command::new("promtool").args(arguments).current_dir(root()).output().ok().map(|output| {
            let said = [output.stdout, output.stderr].concat();
            (output.status.success(), String::from_utf8_lossy(&said).into_owned())
        })
    };
    let Some((good, said)) = promtool(&["check", "rules", "configs/alerts.yml"]) else {
        let why = "there is no promtool (Debian's package prometheus has it)";
        faser_skipped::skip("prometheus_takes_the_rules_and_they_fire_when_they_should", why);
        return;
    };
    assert!(good, "{said}");
    let (good, said) = promtool(&["test", "rules", "configs/alerts.test.yml"]).expect("promtool");
    assert!(good, "{said}");
    // Every rule is played.
    let played = read("configs/alerts.test.yml");
    for name in read("configs/alerts.yml").lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        assert!(played.contains(name), "{name} is not played in configs/alerts.test.yml");
    }
    // The dashboard's expressions as rules: Prometheus reads them.
    let rules = dashboard().iter().enumerate().fold(
        "groups:\n- name: x\n  rules:\n".to_owned(),
        |rules, (i, (_, expression))| {
            let expression = expression.replace("$__rate_interval", "1m").replace("$instance", ".*");
            rules + &format!("  - record: x:y{i}\n    expr: {}\n", json!(expression))
        },
    );
    let file = std::env::temp_dir().join(format!("faser-dashboard-{}.yml", std::process::id()));
    std::fs::write(&file, rules).expect("a temporary file can be written");
    let (good, said) = promtool(&["check", "rules", &file.to_string_lossy()]).expect("promtool");
    assert!(good, "{said}");
    std::fs::remove_file(file).expect("the file can be removed");
}
