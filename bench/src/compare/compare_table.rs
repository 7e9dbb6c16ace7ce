//! The comparison as tables for people: one per load.

use std::fmt;

use super::{Cell, Comparison, Ratio};

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.title)?;
        let first = self.policies.first().map_or("", String::as_str);
        for &load in &self.loads {
            writeln!(f, "\n{load}, {}", self.requests(load))?;
            writeln!(
                f,
                "{:<14} {:>8} {:>18} {:>8} {:>18} {:>8} {:>18} {:>5} {:>6} {:>6} {:>7} {:>6} {:>8} {:>9} {:>13}{}",
                "policy",
                "tokens/s",
                format!("vs {first}"),
                "mean ms",
                format!("vs {first}"),
                "p99 ms",
                format!("vs {first}"),
                "k",
                "accept",
                "pruned",
                "overlap",
                "rows",
                "pass ms",
                "predicted",
                "off by %",
                if self.cells.iter().any(|cell| cell.attained.is_some()) { "   met  met/s" } else { "" }
            )?;
            for cell in self.cells.iter().filter(|cell| cell.load == load) {
                let name = self.policies.get(cell.policy).map_or("", String::as_str);
                line(f, name, cell)?;
            }
        }
        let repeats = self.runs.iter().map(|run| run.repeat + 1).max().unwrap_or(0);
        writeln!(
            f,
            "\nMedians of {repeats} repeat(s). Ratios are taken within a repeat: the median of them, and the least and the greatest. \
             `mean ms` and `p99 ms` are latencies of requests; `off by %` is how far predicted times of verify passes were off \
             the measured ones: median over passes, and mean."
        )?;
        let requests = self.runs.iter().map(|run| run.texts.len()).max().unwrap_or(0);
        match self.differing_texts {
            0 => write!(f, "Every request got the same tokens in all runs."),
            some => write!(f, "{some} of {requests} requests got different tokens in different runs."),
        }
    }
}

impl Comparison {
    /// Requests and tokens of the runs under a load; traces of bursts differ from repeat to repeat.
    fn requests(&self, load: super::Load) -> String {
        let runs = || self.runs.iter().filter(|run| run.load == load);
        let span = |of: fn(&super::Run) -> usize| match (runs().map(of).min(), runs().map(of).max()) {
            (Some(least), Some(most)) if least < most => format!("{least} to {most}"),
            (_, most) => most.unwrap_or(0).to_string(),
        };
        format!("{} requests, {} tokens", span(|run| run.requests), span(|run| run.output_tokens))
    }
}

fn line(f: &mut fmt::Formatter<'_>, name: &str, cell: &Cell) -> fmt::Result {
    let passes = &cell.passes;
    writeln!(
        f,
        "{name:<14} {:>8.1} {:>18} {:>8.1} {:>18} {:>8.1} {:>18} {:>5.2} {:>6} {:>6.3} {:>7.2} {:>6.1} {:>8.2} {:>9} {:>13}{}",
        cell.tokens_per_s,
        spread(&cell.throughput),
        cell.latency_mean_ms,
        spread(&cell.latency),
        cell.latency_p99_ms,
        spread(&cell.latency_p99),
        passes.k_mean,
        known(passes.acceptance, 1.0, 2),
        passes.pruned,
        passes.overlapped,
        passes.rows_mean,
        passes.verify_ms,
        known(passes.predicted_ms, 1.0, 2),
        format!("{} / {}", known(passes.error_median, 100.0, 1), known(passes.error_mean, 100.0, 1)),
        cell.attained.map_or_else(String::new, |attained| attained.to_string())
    )
}

fn spread(ratio: &Ratio) -> String {
    format!("{:.2} ({:.2}..{:.2})", ratio.median, ratio.least, ratio.greatest)
}

fn known(value: Option<f64>, times: f64, decimals: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{:.decimals$}", value * times))
}
