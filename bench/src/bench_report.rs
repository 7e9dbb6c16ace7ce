//! What a benchmark found: every run, the medians over repeats, a table for people and JSON for scripts.

use std::fmt;

use serde::Serialize;

use crate::stats::{differ, median};
use crate::{Attained, BenchSpec, KMax, Quantiles};

/// One run: one concurrency and one k, `requests` requests.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// Requests kept in flight.
    pub concurrency: usize,
    /// Speculative length asked for.
    pub k: KMax,
    /// Which repeat, from 0.
    pub repeat: usize,
    /// Requests sent.
    pub requests: usize,
    /// Requests refused or broken off.
    pub failed: usize,
    /// What the first of those said.
    pub first_failure: Option<String>,
    /// From the first request sent to the last answered, in seconds.
    pub wall_s: f64,
    /// Prompt tokens of the answered requests, by the server's usage.
    pub prompt_tokens: usize,
    /// Output tokens of the answered requests, by the server's usage.
    pub output_tokens: usize,
    /// `output_tokens` over `wall_s`.
    pub output_tokens_per_s: f64,
    /// Request sent to first text.
    pub ttft: Quantiles,
    /// Time between arrivals of text at the client; one arrival may carry several tokens.
    pub itl: Quantiles,
    /// Per request: first to last text, over its output tokens but one.
    pub tpot: Quantiles,
    /// How the latency targets were met, if there are any; a request that failed missed them.
    pub attained: Option<Attained>,
    /// The texts by request, to compare runs; not part of the JSON.
    #[serde(skip)]
    pub texts: Vec<Option<String>>,
}

/// The medians over all repeats of one concurrency and one k.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// Requests kept in flight.
    pub concurrency: usize,
    /// Speculative length asked for.
    pub k: KMax,
    /// Failed requests of all repeats together.
    pub failed: usize,
    /// Median output tokens per second.
    pub output_tokens_per_s: f64,
    /// Median over repeats of the throughput against that of the first k in the same repeat.
    pub ratio: f64,
    /// Medians of the quantiles of TTFT.
    pub ttft: Quantiles,
    /// Medians of the quantiles of ITL.
    pub itl: Quantiles,
    /// Medians of the quantiles of TPOT.
    pub tpot: Quantiles,
    /// Medians of how the latency targets were met, if there are any.
    pub attained: Option<Attained>,
}

/// A whole benchmark.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What was asked for.
    pub spec: BenchSpec,
    /// The model that answered.
    pub model: String,
    /// Medians, in the order of concurrency and k.
    pub cells: Vec<Cell>,
    /// Requests whose text is not the same in all runs that answered them.
    pub differing_texts: usize,
    /// Every run in the order they ran.
    pub runs: Vec<Run>,
}

impl Report {
    /// Puts the runs together.
    pub fn new(spec: BenchSpec, model: String, runs: Vec<Run>) -> Report {
        let mut cells = Vec::new();
        for &concurrency in &spec.concurrency {
            cells.extend(spec.k.iter().filter_map(|&k| cell(&runs, concurrency, k, spec.k[0])));
        }
        let texts = |request: usize| runs.iter().filter_map(move |run| run.texts.get(request)?.as_ref());
        let differing_texts = (0..spec.requests).filter(|&request| differ(texts(request))).count();
        Report { spec, model, cells, differing_texts, runs }
    }
}

fn cell(runs: &[Run], concurrency: usize, k: KMax, first_k: KMax) -> Option<Cell> {
    let of = |k| runs.iter().filter(move |run| run.concurrency == concurrency && run.k == k);
    let own: Vec<&Run> = of(k).collect();
    let quantiles = |figure: fn(&Run) -> Quantiles| {
        Quantiles::median_of(&own.iter().map(|run| figure(run)).collect::<Vec<_>>())
    };
    let ratios = own.iter().filter_map(|run| {
        let base = of(first_k).find(|base| base.repeat == run.repeat)?;
        Some(run.output_tokens_per_s / base.output_tokens_per_s)
    });
    (!own.is_empty()).then(|| Cell {
        concurrency,
        k,
        failed: own.iter().map(|run| run.failed).sum(),
        output_tokens_per_s: median(own.iter().map(|run| run.output_tokens_per_s)),
        ratio: median(ratios),
        ttft: quantiles(|run| run.ttft),
        itl: quantiles(|run| run.itl),
        tpot: quantiles(|run| run.tpot),
        attained: Attained::median_of(own.iter().map(|run| run.attained)),
    })
}

impl fmt::Display for Report {
    /// The table, and below it what it was measured on.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let base = self.spec.k.first().map_or_else(String::new, |k| format!("vs k={k}"));
        writeln!(
            f,
            "{:>11} {:>7} {:>9} {base:>10} {:>25} {:>25} {:>8} {:>6}{}",
            "concurrency",
            "k",
            "tokens/s",
            "TTFT ms p50/p90/p99",
            "ITL ms p50/p90/p99",
            "TPOT ms",
            "failed",
            if self.cells.iter().any(|cell| cell.attained.is_some()) { "   met  met/s" } else { "" }
        )?;
        for cell in &self.cells {
            writeln!(
                f,
                "{:>11} {:>7} {:>9.1} {:>9.2}x {:>25} {:>25} {:>8.2} {:>6}{}",
                cell.concurrency,
                cell.k,
                cell.output_tokens_per_s,
                cell.ratio,
                three(&cell.ttft),
                three(&cell.itl),
                cell.tpot.median_ms,
                cell.failed,
                cell.attained.map_or_else(String::new, |attained| attained.to_string())
            )?;
        }
        let spec = &self.spec;
        write!(
            f,
            "model {}, {} requests of {} tokens, temperature {}, medians of {} repeat(s)",
            self.model, spec.requests, spec.max_tokens, spec.temperature, spec.repeats
        )?;
        if !spec.machine.is_empty() {
            write!(f, ", on {}", spec.machine)?;
        }
        match self.differing_texts {
            0 => write!(f, "\nevery request got the same text in all runs"),
            some => write!(f, "\n{some} of {} requests got different texts in different runs", spec.requests),
        }
    }
}

fn three(q: &Quantiles) -> String {
    format!("{:.1}/{:.1}/{:.1}", q.median_ms, q.p90_ms, q.p99_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(k: usize, repeat: usize, tokens_per_s: f64, text: &str) -> Run {
        Run {
            concurrency: 4,
            k: KMax::AtMost(k),
            repeat,
            requests: 1,
            failed: 0,
            first_failure: None,
            wall_s: 1.0,
            prompt_tokens: 1,
            output_tokens: 10,
            output_tokens_per_s: tokens_per_s,
            ttft: Quantiles::default(),
            itl: Quantiles::default(),
            tpot: Quantiles::default(),
            attained: None,
            texts: vec![Some(text.to_owned())],
        }
    }

    fn report(runs: Vec<Run>) -> Report {
        let spec = BenchSpec {
            concurrency: vec![4],
            k: vec![KMax::AtMost(0), KMax::AtMost(4)],
            requests: 1,
            repeats: 3,
            ..BenchSpec::new("http://127.0.0.1:1")
        };
        Report::new(spec, "m".into(), runs)
    }

    #[test]
    fn ratios_pair_the_runs_of_one_repeat() {
        // The machine halves its speed in the second repeat: unpaired medians would hide the factor of two.
        let runs = vec![
            run(0, 0, 100.0, "a"),
            run(4, 0, 200.0, "a"),
            run(4, 1, 100.0, "a"),
            run(0, 1, 50.0, "a"),
            run(0, 2, 100.0, "a"),
            run(4, 2, 210.0, "a"),
        ];
        let report = report(runs);
        assert!((report.cells[1].ratio - 2.0).abs() < 1e-12, "{}", report.cells[1].ratio);
        assert!((report.cells[0].ratio - 1.0).abs() < 1e-12);
        assert!((report.cells[1].output_tokens_per_s - 200.0).abs() < 1e-12);
        assert!(report.to_string().contains("every request got the same text"));
    }

    #[test]
    fn targets_have_columns_of_medians_where_there_are_any() {
        let attained = |attainment| Some(Attained { attainment, request_goodput: 2.0 * attainment });
        let runs = [0.25, 0.75, 0.5].into_iter().enumerate();
        let runs = runs.map(|(repeat, share)| Run { attained: attained(share), ..run(0, repeat, 1.0, "a") });
        let held = report(runs.collect());
        assert_eq!(held.cells[0].attained, attained(0.5));
        assert!(
            held.to_string().contains(" met/s\n") && held.to_string().contains("  0.50   1.00\n"),
            "{held}"
        );
        let free = report(vec![run(0, 0, 1.0, "a")]);
        assert!(free.cells[0].attained.is_none() && !free.to_string().contains("met"), "{free}");
    }

    #[test]
    fn differing_texts_are_reported() {
        let report = report(vec![run(0, 0, 1.0, "a"), run(4, 0, 1.0, "b")]);
        assert_eq!(report.differing_texts, 1);
        assert!(report.to_string().contains("1 of 1 requests got different texts"));
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["cells"][1]["k"], "4");
        assert_eq!(json["differing_texts"], 1);
    }
}
