//! What a comparison of policies on this machine found: every run, and their figures set against each other repeat by repeat.

mod compare_table;
mod pass_figures;

use std::fmt;

use serde::{Serialize, Serializer};

use crate::stats::{differ, median};
use crate::{Attained, Quantiles};

pub use pass_figures::PassFigures;

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
    /// How the latency targets were met, if there are any.
    pub attained: Option<Attained>,
    /// What the engine counted.
    pub passes: PassFigures,
    /// A hash of each request's tokens, to compare runs; not part of the JSON.
    #[serde(skip)]
    pub texts: Vec<u64>,
}

/// A figure of one policy over the same figure of the first, taken within each repeat: what the machine does between
/// repeats cancels out.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// The median over repeats.
    pub median: f64,
    /// The least.
    pub least: f64,
    /// The greatest.
    pub greatest: f64,
}

impl Ratio {
    /// Of pairs (figure, figure of the first policy), one for each repeat; `None` if there are none.
    pub fn of(pairs: &[(f64, f64)]) -> Option<Ratio> {
        let mut ratios: Vec<f64> = pairs.iter().map(|(own, first)| own / first).collect();
        ratios.sort_by(f64::total_cmp);
        let (&least, &greatest) = (ratios.first()?, ratios.last()?);
        Some(Ratio { median: median(ratios), least, greatest })
    }
}

/// Medians over the repeats of one policy under one load.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// The load.
    pub load: Load,
    /// The policy, by its place in [`Comparison::policies`].
    pub policy: usize,
    /// Tokens per second.
    pub tokens_per_s: f64,
    /// Tokens per second against the first policy.
    pub throughput: Ratio,
    /// Mean latency, in milliseconds.
    pub latency_mean_ms: f64,
    /// Mean latency against the first policy: less is better.
    pub latency: Ratio,
    /// 99th percentile of latency, in milliseconds.
    pub latency_p99_ms: f64,
    /// That against the first policy.
    pub latency_p99: Ratio,
    /// Medians of how the latency targets were met, if there are any.
    pub attained: Option<Attained>,
    /// What the engine counted, each figure's median.
    pub passes: PassFigures,
}

impl Cell {
    /// Puts the runs of one policy under one load together; `None` if in no repeat both it and the first policy ran.
    fn of(runs: &[Run], load: Load, policy: usize) -> Option<Cell> {
        let of = |policy| runs.iter().filter(move |run| run.load == load && run.policy == policy);
        let own: Vec<&Run> = of(policy).collect();
        let ratio = |figure: fn(&Run) -> f64| {
            let pair =
                |run: &&Run| Some((figure(run), figure(of(0).find(|first| first.repeat == run.repeat)?)));
            Ratio::of(&own.iter().filter_map(pair).collect::<Vec<_>>())
        };
        let over = |figure: fn(&Run) -> f64| median(own.iter().map(|run| figure(run)));
        Some(Cell {
            load,
            policy,
            tokens_per_s: over(|run| run.tokens_per_s),
            throughput: ratio(|run| run.tokens_per_s)?,
            latency_mean_ms: over(|run| run.latency_mean_ms),
            latency: ratio(|run| run.latency_mean_ms)?,
            latency_p99_ms: over(|run| run.latency.p99_ms),
            latency_p99: ratio(|run| run.latency.p99_ms)?,
            attained: Attained::median_of(own.iter().map(|run| run.attained)),
            passes: medians(&own),
        })
    }
}

fn medians(runs: &[&Run]) -> PassFigures {
    let over = |figure: fn(&PassFigures) -> f64| median(runs.iter().map(|run| figure(&run.passes)));
    let some = |figure: fn(&PassFigures) -> Option<f64>| {
        let known: Vec<f64> = runs.iter().filter_map(|run| figure(&run.passes)).collect();
        (!known.is_empty()).then(|| median(known))
    };
    PassFigures {
        k_mean: over(|p| p.k_mean),
        acceptance: some(|p| p.acceptance),
        rows_pruned: over(|p| p.rows_pruned as f64) as u64,
        pruned: over(|p| p.pruned),
        overlapped: over(|p| p.overlapped),
        verify_passes: over(|p| p.verify_passes as f64) as u64,
        rows_mean: over(|p| p.rows_mean),
        verify_ms: over(|p| p.verify_ms),
        predicted_ms: some(|p| p.predicted_ms),
        error_median: some(|p| p.error_median),
        error_mean: some(|p| p.error_mean),
        draft_passes: over(|p| p.draft_passes as f64) as u64,
        draft_ms: over(|p| p.draft_ms),
    }
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

    fn run(load: Load, policy: usize, repeat: usize, tokens_per_s: f64) -> Run {
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
            attained: None,
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
        assert!(!table.contains("met"), "{table}");
        let json = serde_json::to_value(&comparison).unwrap();
        assert_eq!(json["cells"][3]["load"], "bursts of 2.5 requests/s");
        assert_eq!(json["cells"][3]["policy"], 1);
        assert_eq!(json["runs"][0]["passes"]["error_median"], serde_json::Value::Null);
    }

    #[test]
    fn targets_have_columns_of_medians() {
        let attained = |attainment| Some(Attained { attainment, request_goodput: 3.0 * attainment });
        let runs = [(0, 0, 0.25), (1, 0, 0.5), (0, 1, 0.75), (1, 1, 1.0)];
        let runs = runs.map(|(policy, repeat, share)| Run {
            attained: attained(share),
            ..run(LOAD, policy, repeat, 100.0)
        });
        let names = vec!["off".to_owned(), "faser".to_owned()];
        let comparison = Comparison::new("a pair".into(), names, vec![LOAD], runs.to_vec());
        assert_eq!(comparison.cells[1].attained, attained(0.75));
        let table = comparison.to_string();
        assert!(table.contains(" met  met/s\n") && table.contains("  0.75   2.25\n"), "{table}");
    }

    const LOAD: Load = Load::Streams(4);

    #[test]
    fn ratios_pair_the_runs_of_one_repeat() {
        // The machine halves its speed in the second repeat, and the order is turned round in it.
        let runs = [
            run(LOAD, 0, 0, 100.0),
            run(LOAD, 1, 0, 210.0),
            run(LOAD, 1, 1, 100.0),
            run(LOAD, 0, 1, 50.0),
            run(LOAD, 0, 2, 100.0),
            run(LOAD, 1, 2, 160.0),
            run(Load::Streams(1), 1, 0, 900.0),
        ];
        let cell = Cell::of(&runs, LOAD, 1).unwrap();
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a}, expected {b}");
        close(cell.tokens_per_s, 160.0);
        close(cell.throughput.median, 2.0);
        close(cell.throughput.least, 1.6);
        close(cell.throughput.greatest, 2.1);
        close(cell.latency.median, 0.5);
        close(cell.latency.greatest, 1.0 / 1.6);
        close(cell.latency_p99_ms, 2e4 / 160.0);
        let first = Cell::of(&runs, LOAD, 0).unwrap();
        assert_eq!(first.throughput, Ratio { median: 1.0, least: 1.0, greatest: 1.0 });
        assert!(Cell::of(&runs, Load::Bursts(1.0), 0).is_none());
    }

    #[test]
    fn a_repeat_without_the_first_policy_has_no_ratio() {
        let runs = [run(LOAD, 0, 0, 100.0), run(LOAD, 1, 0, 150.0), run(LOAD, 1, 1, 900.0)];
        let cell = Cell::of(&runs, LOAD, 1).unwrap();
        assert!((cell.throughput.greatest - 1.5).abs() < 1e-12, "{:?}", cell.throughput);
    }

    #[test]
    fn figures_that_some_runs_lack_are_medians_of_the_others() {
        let mut runs = [run(LOAD, 0, 0, 1.0), run(LOAD, 0, 1, 1.0)];
        assert_eq!(Cell::of(&runs, LOAD, 0).unwrap().passes.error_median, None);
        runs[1].passes.error_median = Some(0.25);
        assert_eq!(Cell::of(&runs, LOAD, 0).unwrap().passes.error_median, Some(0.25));
    }
}
