//! The comparison as a table for people.

use std::fmt;

use super::{Contender, SimReport};

impl fmt::Display for SimReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}\n", self.title)?;
        writeln!(
            f,
            "{:>6}  {:<14} {:>8} {:>9} {:>8} {:>8} {:>8} {:>8} {:>5} {:>5} {:>6} {:>7} {:>7} {:>7} {:>8}  partitions",
            if self.backlog { "batch" } else { "req/s" },
            "policy",
            "tokens/s",
            "latency s",
            "p99 s",
            "ttft ms",
            "tpot ms",
            "p99 ms",
            "k",
            "steps",
            "accept",
            "wasted",
            "pruned",
            "overlap",
            "batch"
        )?;
        let mut level = None;
        for run in &self.runs {
            let figures = &run.figures;
            if level.replace(run.level).is_some_and(|before| before != run.level) {
                writeln!(f)?;
            }
            let named = run.contender.to_string();
            let policy = run.policy.to_string();
            let name = if named == "best-fixed" { format!("best {policy}") } else { named };
            let partitions: Vec<String> =
                figures.partitions.iter().map(|share| format!("{share:.2}")).collect();
            writeln!(
                f,
                "{:>6}  {name:<14} {:>8.1} {:>9.2} {:>8.2} {:>8.0} {:>8.2} {:>8.2} {:>5.2} {:>5.1} {:>6.2} {:>7.2} {:>7.3} {:>7.2} {:>8.1}  {}",
                run.level,
                figures.tokens_per_s,
                figures.latency_mean_s,
                figures.latency.p99_ms / 1e3,
                figures.ttft.median_ms,
                figures.tpot_mean_ms,
                figures.tpot.p99_ms,
                figures.k_mean,
                figures.draft_steps,
                figures.acceptance,
                figures.wasted_rows,
                figures.pruned,
                figures.overlap,
                figures.batch_mean,
                partitions.join(" ")
            )?;
        }
        if let Some(run) = self.runs.iter().find(|run| run.contender == Contender::TunedTable) {
            writeln!(f, "\nthe table, tuned: {}", run.policy)?;
        }
        Ok(())
    }
}
