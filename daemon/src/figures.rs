//! The figures of `faser generate`: tokens per second, tokens per target pass, acceptance.

use std::fmt;
use std::time::Duration;

use faser_engine::{Totals, Usage};
use serde_json::{Value, json};

use crate::sequence::{Ending, Finish};

/// One prompt that has been continued.
#[derive(Debug)]
pub struct Run {
    /// The prompt.
    pub prompt: String,
    /// What was generated.
    pub text: String,
    /// How it ended.
    pub ending: Ending,
    /// From the request to its end.
    pub took: Duration,
}

impl Run {
    /// As `--json` prints it.
    pub fn to_json(&self) -> Value {
        let usage = self.ending.usage.unwrap_or_default();
        json!({
            "prompt": self.prompt,
            "text": self.text,
            "tokens": self.ending.output,
            "finish_reason": self.ending.finish.name(),
            "output_tokens": self.ending.output.len(),
            "target_passes": usage.target_passes,
            "proposed": usage.proposed,
            "accepted": usage.accepted,
            "tokens_per_pass": ratio(self.decided_tokens(), usage.target_passes),
            "acceptance": ratio(usage.accepted, usage.proposed),
            "seconds": self.took.as_secs_f64(),
        })
    }

    /// Tokens that target passes decided on: the output, and the stop token if one ended it.
    fn decided_tokens(&self) -> usize {
        let usage = self.ending.usage.unwrap_or_default();
        usage.output_tokens + usize::from(self.ending.finish == Finish::Stop)
    }
}

/// Figures over several runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Figures {
    output_tokens: usize,
    decided_tokens: usize,
    took: Duration,
    target_passes: usize,
    proposed: usize,
    accepted: usize,
    /// Share of the proposals at each place in a chunk that were accepted.
    per_position: Vec<f64>,
}

impl Figures {
    /// Sums up; `before` and `after` are the engine's totals around the runs.
    pub fn new(runs: &[Run], before: &Totals, after: &Totals) -> Figures {
        let sum =
            |of: fn(&Usage) -> usize| runs.iter().filter_map(|run| run.ending.usage.as_ref()).map(of).sum();
        let gained = |after: &[u64], before: &[u64]| -> Vec<u64> {
            after.iter().zip(before).map(|(after, before)| after.saturating_sub(*before)).collect()
        };
        let accepted = gained(&after.accepted_per_position, &before.accepted_per_position);
        let proposed = gained(&after.proposed_per_position, &before.proposed_per_position);
        let positions = accepted.iter().zip(&proposed).take_while(|(_, proposed)| **proposed > 0);
        Figures {
            output_tokens: sum(|usage| usage.output_tokens),
            decided_tokens: runs.iter().map(Run::decided_tokens).sum(),
            took: runs.iter().map(|run| run.took).sum(),
            target_passes: sum(|usage| usage.target_passes),
            proposed: sum(|usage| usage.proposed),
            accepted: sum(|usage| usage.accepted),
            per_position: positions.map(|(accepted, proposed)| *accepted as f64 / *proposed as f64).collect(),
        }
    }

    /// As `--json` prints it.
    pub fn to_json(&self) -> Value {
        json!({
            "output_tokens": self.output_tokens,
            "target_passes": self.target_passes,
            "tokens_per_s": self.tokens_per_s(),
            "tokens_per_pass": ratio(self.decided_tokens, self.target_passes),
            "acceptance": ratio(self.accepted, self.proposed),
            "acceptance_per_position": self.per_position,
        })
    }

    fn tokens_per_s(&self) -> f64 {
        self.output_tokens as f64 / self.took.as_secs_f64().max(1e-9)
    }
}

/// The closing line.
impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} tokens in {:.2} s: {:.1} tokens/s, {:.2} tokens per target pass",
            self.output_tokens,
            self.took.as_secs_f64(),
            self.tokens_per_s(),
            ratio(self.decided_tokens, self.target_passes).unwrap_or(0.0),
        )?;
        let Some(acceptance) = ratio(self.accepted, self.proposed) else {
            return f.write_str(", no speculation");
        };
        write!(f, ", {:.0} % of proposals accepted", acceptance * 100.0)?;
        let places: Vec<String> =
            self.per_position.iter().map(|share| format!("{:.0}", share * 100.0)).collect();
        write!(f, " (by position: {} %)", places.join(" "))
    }
}

/// `None` when there is nothing to divide by.
fn ratio(of: usize, by: usize) -> Option<f64> {
    (by > 0).then(|| of as f64 / by as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(output: usize, passes: usize, proposed: usize, accepted: usize) -> Run {
        let usage =
            Usage { output_tokens: output, target_passes: passes, proposed, accepted, ..Usage::default() };
        let ending = Ending { finish: Finish::Length, output: vec![1; output], usage: Some(usage) };
        Run { prompt: "p".into(), text: "t".into(), ending, took: Duration::from_secs(1) }
    }

    #[test]
    fn the_closing_line_sums_up_all_runs() {
        let mut after = Totals::default();
        after.accepted_per_position[..2].copy_from_slice(&[9, 3]);
        after.proposed_per_position[..2].copy_from_slice(&[10, 10]);
        let figures = Figures::new(&[run(20, 5, 10, 8), run(10, 5, 10, 4)], &Totals::default(), &after);
        assert_eq!(
            figures.to_string(),
            "30 tokens in 2.00 s: 15.0 tokens/s, 3.00 tokens per target pass, 60 % of proposals accepted \
             (by position: 90 30 %)"
        );
        assert_eq!(figures.to_json()["acceptance_per_position"], json!([0.9, 0.3]));
    }

    #[test]
    fn the_stop_token_counts_for_the_pass_that_found_it() {
        let mut stopped = run(9, 5, 20, 5);
        stopped.ending.finish = Finish::Stop;
        assert_eq!(stopped.to_json()["tokens_per_pass"], json!(2.0));
        let figures = Figures::new(&[stopped], &Totals::default(), &Totals::default());
        assert_eq!(figures.to_json()["tokens_per_pass"], json!(2.0));
    }

    #[test]
    fn without_speculation_there_is_no_acceptance() {
        let figures = Figures::new(&[run(4, 4, 0, 0)], &Totals::default(), &Totals::default());
        assert!(figures.to_string().ends_with("1.00 tokens per target pass, no speculation"), "{figures}");
        assert_eq!(figures.to_json()["acceptance"], Value::Null);
    }
}
