//! What a comparison of policies on this machine found: every run, and their figures set against each other repeat by repeat.

mod cell;
mod figures;
mod table;

use std::fmt;

use serde::{Serialize, Serializer};

use crate::Quantiles;
use crate::stats::differ;

pub use cell::{Cell, Ratio};
pub use figures::PassFigures;

/// What all policies run under.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    /// So many requests are kept in flight.
    Streams(usize),
    /// Requests come on their own, so many per second while a burst lasts, and none between bursts.
    Bursts(f64),
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Load::Streams(1) => f.write_str("1 stream"),
            Load::Streams(streams) => write!(f, "{streams} streams"),
            Load::Bursts(per_s) => write!(f, "bursts of {per_s} requests/s"),
        }
    }
}

impl Serialize for Load {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// One run: one policy under one load, on a service of its own.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// Which repeat, from 0.
    pub repeat: usize,
    /// The load.
    pub load: Load,
    /// The policy, by its place in [`Comparison::policies`].
    pub policy: usize,
    /// Requests, all answered.
    pub requests: usize,
    /// Tokens they got.
    pub output_tokens: usize,
    /// From the first request to the last answer, in seconds.
    pub wall_s: f64,
    /// `output_tokens` over `wall_s`.
    pub tokens_per_s: f64,
    /// Mean time from a request's arrival to its last token, in milliseconds.
    pub latency_mean_ms: f64,
    /// A request's arrival to its last token.
    pub latency: Quantiles,
    /// A request's arrival to its first token.
    pub ttft: Quantiles,
    /// What the engine counted.
    pub passes: PassFigures,
    /// A hash of each request's tokens, to compare runs; not part of the JSON.
    #[serde(skip)]
    pub texts: Vec<u64>,
}

/// A whole comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// What was compared and on what, in words.
    pub title: String,
    /// The policies; the first is what others are set against.
    pub policies: Vec<String>,
    /// The loads.
    pub loads: Vec<Load>,
    /// Policy after policy, load after load.
    pub cells: Vec<Cell>,
    /// Requests whose tokens are not the same in all runs.
    pub differing_texts: usize,
    /// Every run in the order they ran.
    pub runs: Vec<Run>,
}

impl Comparison {
    /// Puts the runs together.
    pub fn new(title: String, policies: Vec<String>, loads: Vec<Load>, runs: Vec<Run>) -> Comparison {
        let cell = |load, policy| Cell::of(&runs, load, policy);
        let cells = loads.iter().flat_map(|&load| (0..policies.len()).filter_map(move |p| cell(load, p)));
        let cells = cells.collect();
        let requests = runs.iter().map(|run| run.texts.len()).max().unwrap_or(0);
        let texts = |request: usize| runs.iter().filter_map(move |run| run.texts.get(request));
        let differing_texts = (0..requests).filter(|&request| differ(texts(request))).count();
        Comparison { title, policies, loads, cells, differing_texts, runs }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn run(load: Load, policy: usize, repeat: usize, tokens_per_s: f64) -> Run {
        Run {
            repeat,
            load,
            policy,
            requests: 2,
            output_tokens: 10,
            wall_s: 10.0 / tokens_per_s,
            tokens_per_s,
            latency_mean_ms: 1e4 / tokens_per_s,
            latency: Quantiles { p99_ms: 2e4 / tokens_per_s, ..Quantiles::default() },
            ttft: Quantiles::default(),
            passes: PassFigures::default(),
            texts: vec![1, 2],
        }
    }

    #[test]
    fn the_table_has_every_load_and_every_policy_and_json_names_loads() {
        let (streams, bursts) = (Load::Streams(4), Load::Bursts(2.5));
        let mut runs: Vec<Run> = [streams, bursts]
            .into_iter()
            .flat_map(|load| [run(load, 0, 0, 100.0), run(load, 1, 0, 150.0)])
            .collect();
        runs[3].texts[1] = 3;
        let names = vec!["off".to_owned(), "+trim".to_owned()];
        let comparison = Comparison::new("a pair".into(), names, vec![streams, bursts], runs);
        assert_eq!((comparison.cells.len(), comparison.differing_texts), (4, 1));
        let table = comparison.to_string();
        for part in [
            "a pair",
            "4 streams",
            "bursts of 2.5 requests/s",
            "1.50 (1.50..1.50)",
            "1 of 2 requests got different",
        ] {
            assert!(table.contains(part), "no {part:?} in\n{table}");
        }
        let json = serde_json::to_value(&comparison).unwrap();
        assert_eq!(json["cells"][3]["load"], "bursts of 2.5 requests/s");
        assert_eq!(json["cells"][3]["policy"], 1);
        assert_eq!(json["runs"][0]["passes"]["error_median"], serde_json::Value::Null);
    }
}
