//! What `/metrics` says, read as Prometheus would.

use std::time::{Duration, Instant};

use crate::PATIENCE;
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

    /// The sum of all samples of a family that has to be there, whatever their labels: over replicas, for example.
    ///
    /// # Panics
    /// There is none.
    pub fn sum(&self, family: &str) -> f64 {
        let samples = self.lines.iter().filter(|(name, _)| name.split('{').next() == Some(family));
        let values: Vec<f64> = samples.map(|(_, value)| *value).collect();
        assert!(!values.is_empty(), "/metrics has no {family} among {:?}", self.names());
        values.iter().sum()
    }

    /// Blocks that are not free, of the pools of target and draft and of all replicas.
    pub fn blocks_in_use(&self) -> f64 {
        self.sum("faser_kv_blocks_total") - self.sum("faser_kv_blocks_free")
    }

    fn names(&self) -> Vec<&str> {
        self.lines.iter().map(|(name, _)| name.as_str()).collect()
    }
}

/// Scrapes until `wanted` holds.
///
/// # Panics
/// It does not within [`PATIENCE`].
pub fn wait_until(client: &Client, what: &str, wanted: impl Fn(&Metrics) -> bool) -> Metrics {
    let started = Instant::now();
    loop {
        let metrics = Metrics::scrape(client);
        if wanted(&metrics) {
            return metrics;
        }
        let shown = || metrics.show(&["faser_"]);
        assert!(started.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}\n{}", shown());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Scrapes until nothing runs, nothing waits, and no KV is held.
///
/// # Panics
/// As [`wait_until`].
pub fn wait_until_idle(client: &Client) -> Metrics {
    wait_until(client, "no request is there and all pools are whole", |metrics| {
        metrics.sum("faser_requests_running") + metrics.sum("faser_requests_waiting") == 0.0
            && metrics.blocks_in_use() == 0.0
    })
}
