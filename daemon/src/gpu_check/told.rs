//! What checks have told: rows of a table, and JSON.

use std::fmt::Write;

use faser_actors::gpu_check::Verdict;
use serde_json::{Value, json};

use super::GpuCheckArgs;
use super::table::Entry;

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Nothing is wrong, and something was found.
    Passed,
    /// A figure is wrong, or the check broke off.
    Failed,
    /// Nothing that it tells means anything on this device.
    NoMeaning,
}

impl Outcome {
    pub(super) fn words(self) -> &'static str {
        match self {
            Outcome::Passed => "passed",
            Outcome::Failed => "FAILED",
            Outcome::NoMeaning => Verdict::NoMeaning.words(),
        }
    }
}

/// All that a check has told.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) outcome: Outcome,
    pub(super) seconds: f64,
    error: Option<String>,
    figures: Vec<Value>,
}

impl Told {
    pub(super) fn new(figures: Vec<Value>, error: Option<String>, seconds: f64) -> Told {
        let any = |verdict: Verdict| figures.iter().any(|figure| figure["verdict"] == verdict.words());
        let outcome = if error.is_some() || any(Verdict::Wrong) || figures.is_empty() {
            Outcome::Failed
        } else if any(Verdict::Right) || any(Verdict::Measured) {
            Outcome::Passed
        } else {
            Outcome::NoMeaning
        };
        Told { outcome, seconds, error, figures }
    }

    /// Its rows of the table.
    pub(super) fn rows(&self, entry: &Entry) -> String {
        let mut rows = String::new();
        let text = |figure: &Value, key: &str| figure[key].as_str().unwrap_or_default().to_owned();
        for figure in self.figures.iter().filter(|figure| figure["detail"] != true) {
            let [what, number, floor, verdict] =
                ["what", "figure", "floor", "judged"].map(|key| text(figure, key));
            rows += &row([entry.name, &what, &number, &floor, &verdict]);
        }
        let seconds = format!("{:.1} s", self.seconds);
        let limit = format!("<= {} s", entry.limit_s);
        let result = self.error.as_deref().unwrap_or(entry.about);
        rows + &row([entry.name, result, &seconds, &limit, self.outcome.words()])
    }
}

/// The head of the table.
pub(super) fn head() -> String {
    row(["check", "result", "figure", "floor or bound", "verdict"]).trim_end().to_owned()
        + "\n"
        + &"-".repeat(WIDTHS.iter().sum::<usize>() + 16)
}

const WIDTHS: [usize; 4] = [11, 72, 16, 16];

fn row(cells: [&str; 5]) -> String {
    let mut row = String::new();
    for (cell, width) in cells.iter().zip(WIDTHS) {
        write!(row, "{cell:width$} ").expect("memory");
    }
    row + cells[4] + "\n"
}

/// Everything, for a file.
pub(super) fn json(args: &GpuCheckArgs, all: &[(&Entry, Told)]) -> Value {
    let checks: Vec<Value> = all
        .iter()
        .map(|(entry, told)| {
            json!({
                "name": entry.name,
                "about": entry.about,
                "outcome": told.outcome.words(),
                "seconds": told.seconds,
                "error": told.error,
                "figures": told.figures,
            })
        })
        .collect();
    json!({"faser": env!("CARGO_PKG_VERSION"), "device": args.device, "small": args.small, "checks": checks})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(verdict: Verdict) -> Value {
        json!({"what": "x", "verdict": verdict.words(), "judged": verdict.words(), "figure": "3 ms", "detail": false})
    }

    #[test]
    fn a_wrong_figure_or_an_error_fails_and_nothing_told_is_no_success() {
        let of = |figures: &[Verdict], error: Option<&str>| {
            Told::new(figures.iter().map(|v| figure(*v)).collect(), error.map(ToOwned::to_owned), 1.0).outcome
        };
        use Verdict::{Measured, NoMeaning, Right, Wrong};
        assert_eq!(of(&[Right, NoMeaning], None), Outcome::Passed);
        assert_eq!(of(&[Measured], None), Outcome::Passed);
        assert_eq!(of(&[Right, Wrong], None), Outcome::Failed);
        assert_eq!(of(&[Right], Some("lost")), Outcome::Failed);
        assert_eq!(of(&[NoMeaning], None), Outcome::NoMeaning);
        assert_eq!(of(&[], None), Outcome::Failed);
    }
}
