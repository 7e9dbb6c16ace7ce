//! What `/metrics` says, read as Prometheus would.

use std::time::{Duration, Instant};

use crate::client::Client;

/// One scrape.
#[derive(Clone, Debug)]
pub struct Metrics {
    lines: Vec<(String, f64)>,
}

impl Metrics {
    /// Scrapes.
    ///
    /// # Panics
    /// The answer is not Prometheus text.
    pub fn scrape(client: &Client) -> Metrics {
        let response = client.get("/metrics");
        assert_eq!(response.status, 200, "{response:?}");
        let sample = |line: &str| {
            let (name, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("not a sample: {line:?}"));
            (name.to_owned(), value.parse().unwrap_or_else(|_| panic!("not a number: {line:?}")))
        };
        let samples = response.body.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        Metrics { lines: samples.map(sample).collect() }
    }

    /// The value of a sample by its whole name with labels; none if it is not there.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.lines.iter().find(|(found, _)| found == name).map(|(_, value)| *value)
    }

    /// The value of a sample that has to be there.
    ///
    /// # Panics
    /// It is not.
    pub fn value(&self, name: &str) -> f64 {
        self.get(name).unwrap_or_else(|| panic!("/metrics has no {name} among {:?}", self.names()))
    }

    /// Whether a metric of that family is there, with whatever labels.
    pub fn has(&self, family: &str) -> bool {
        self.lines.iter().any(|(name, _)| name.split('{').next() == Some(family))
    }

    /// The samples whose name starts so, as lines to print.
    pub fn show(&self, prefixes: &[&str]) -> String {
        let wanted =
            self.lines.iter().filter(|(name, _)| prefixes.iter().any(|prefix| name.starts_with(prefix)));
        wanted.map(|(name, value)| format!("{name} {value}\n")).collect()
    }

    /// Blocks of both pools that are not free, by the gauges of `model` target and draft.
    pub fn blocks_in_use(&self) -> f64 {
        let in_use = |model: &str| {
            self.value(&format!("faser_kv_blocks_total{{model=\"{model}\"}}"))
                - self.value(&format!("faser_kv_blocks_free{{model=\"{model}\"}}"))
        };
        in_use("target") + in_use("draft")
    }

    fn names(&self) -> Vec<&str> {
        self.lines.iter().map(|(name, _)| name.as_str()).collect()
    }
}

/// Scrapes until `wanted` holds.
///
/// # Panics
/// It does not within `patience`.
pub fn wait_until(
    client: &Client,
    what: &str,
    patience: Duration,
    wanted: impl Fn(&Metrics) -> bool,
) -> Metrics {
    let started = Instant::now();
    loop {
        let metrics = Metrics::scrape(client);
        if wanted(&metrics) {
            return metrics;
        }
        assert!(
            started.elapsed() < patience,
            "not within {patience:?}: {what}\n{}",
            metrics.show(&["faser_"])
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}
