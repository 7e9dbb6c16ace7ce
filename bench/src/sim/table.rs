//! The comparison as a table for people.

use std::fmt;

use super::{Contender, SimReport, SimRun};

/// A column of figures: its title, its width, and what it says of a run. One that says nothing of any run is not there.
struct Column(&'static str, usize, fn(&SimRun) -> Option<String>);

const COLUMNS: [Column; 18] = [
    Column("tokens/s", 8, |run| Some(format!("{:.1}", run.figures.tokens_per_s))),
    Column("latency s", 9, |run| Some(format!("{:.2}", run.figures.latency_mean_s))),
    Column("left", 6, |run| run.left.map(|left| format!("{left:.2}x"))),
    Column("p99 s", 8, |run| Some(format!("{:.2}", run.figures.latency.p99_ms / 1e3))),
    Column("ttft ms", 8, |run| Some(format!("{:.0}", run.figures.ttft.median_ms))),
    Column("tpot ms", 8, |run| Some(format!("{:.2}", run.figures.tpot_mean_ms))),
    Column("p99 ms", 8, |run| Some(format!("{:.2}", run.figures.tpot.p99_ms))),
    Column("met", 5, |run| run.figures.attained.map(|attained| format!("{:.2}", attained.attainment))),
    Column("met/s", 6, |run| run.figures.attained.map(|attained| format!("{:.2}", attained.request_goodput))),
    Column("k", 5, |run| Some(format!("{:.2}", run.figures.k_mean))),
    Column("steps", 5, |run| Some(format!("{:.1}", run.figures.draft_steps))),
    Column("accept", 6, |run| Some(format!("{:.2}", run.figures.acceptance))),
    Column("wasted", 7, |run| Some(format!("{:.2}", run.figures.wasted_rows))),
    Column("pruned", 7, |run| Some(format!("{:.3}", run.figures.pruned))),
    Column("overlap", 7, |run| Some(format!("{:.2}", run.figures.overlap))),
    Column("cached", 6, |run| {
        let cached = run.figures.cached_prompt_tokens;
        (cached > 0.0).then(|| format!("{cached:.2}"))
    }),
    // Requests refused, cancelled or failed: of them no other column tells.
    Column("others", 6, |run| (run.figures.others > 0).then(|| run.figures.others.to_string())),
    Column("batch", 8, |run| Some(format!("{:.1}", run.figures.batch_mean))),
];

impl SimRun {
    /// What took part, and what it came down to if it was searched for.
    fn name(&self) -> String {
        match &self.contender {
            Contender::BestFixed => format!("best {}", self.policy),
            Contender::Bound(bound) => format!("{bound} {}@{}", self.policy, self.max_pass_rows),
            other => other.to_string(),
        }
    }
}

impl fmt::Display for SimReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", self.title)?;
        let columns =
            || COLUMNS.iter().filter(|Column(.., of)| self.runs.iter().any(|run| of(run).is_some()));
        let names = self.runs.iter().map(|run| run.name().len()).max().unwrap_or(0).max(14);
        write!(f, "{:>6}  {:<names$}", if self.backlog { "batch" } else { "req/s" }, "policy")?;
        for Column(title, width, _) in columns() {
            write!(f, " {title:>width$}")?;
        }
        writeln!(f, "  partitions")?;
        let mut level = None;
        for run in &self.runs {
            if level.replace(run.level).is_some_and(|before| before != run.level) {
                writeln!(f)?;
            }
            write!(f, "{:>6}  {:<names$}", run.level, run.name())?;
            for Column(_, width, of) in columns() {
                write!(f, " {:>width$}", of(run).unwrap_or_else(|| "-".to_owned()))?;
            }
            let partitions: Vec<String> =
                run.figures.partitions.iter().map(|share| format!("{share:.2}")).collect();
            writeln!(f, "  {}", partitions.join(" "))?;
        }
        if let Some(run) = self.runs.iter().find(|run| run.contender == Contender::TunedTable) {
            writeln!(f, "\nthe table, tuned: {}", run.policy)?;
        }
        if self.runs.iter().any(|run| run.left.is_some()) {
            writeln!(
                f,
                "\nleft: mean latency over that of `oracle-free`, the lowest that was found for any policy that verifies one chain, \
                 at the best number of rows of a pass (behind the @)"
            )?;
        }
        Ok(())
    }
}
