//! Lengths of prompts and outputs.
//!
//! The Azure and Mooncake traces are given by their quantiles, between which lengths are interpolated in log space: no
//! parametric family fits them. Of ShareGPT, LongBench, HumanEval and of reasoning (ServeGen) only the means are known
//! here; their spread, a log-normal around those means, is assumed.

use super::random::Random;

/// A distribution of (prompt, output) lengths, independent of each other: the traces show no correlation either.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lengths {
    /// What it is called on a command line.
    pub name: &'static str,
    prompt: Spread,
    output: Spread,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Spread {
    /// Always the same.
    Exactly(f64),
    /// Mean, and deviation of the logarithm.
    LogNormal { mean: f64, deviation: f64 },
    /// Lengths at the shares of [`SHARES`].
    Quantiles([f64; SHARES.len()]),
}

/// The traces' p10, p25, ... and maximum; what is below p10 is taken to go down to a third of it.
const SHARES: [f64; 9] = [0.0, 0.10, 0.25, 0.50, 0.75, 0.90, 0.95, 0.99, 1.0];

const fn log_normal(mean: f64, deviation: f64) -> Spread {
    Spread::LogNormal { mean, deviation }
}

const fn quantiles(q: [f64; 8]) -> Spread {
    Spread::Quantiles([q[0] / 3.0, q[0], q[1], q[2], q[3], q[4], q[5], q[6], q[7]])
}

impl Lengths {
    /// The presets.
    pub const ALL: [Lengths; 7] = [
        Lengths { name: "sharegpt", prompt: log_normal(755.0, 0.9), output: log_normal(200.0, 0.8) },
        Lengths { name: "longbench", prompt: log_normal(1738.0, 0.6), output: log_normal(90.0, 0.7) },
        Lengths { name: "humaneval", prompt: log_normal(171.0, 0.4), output: log_normal(98.0, 0.6) },
        Lengths { name: "reasoning", prompt: log_normal(1596.0, 0.8), output: log_normal(1690.0, 0.7) },
        Lengths {
            name: "azure-code",
            prompt: quantiles([147.0, 578.0, 1469.0, 2744.0, 5188.0, 7303.0, 7436.0, 7437.0]),
            output: quantiles([7.0, 9.0, 13.0, 24.0, 55.0, 90.0, 251.0, 1899.0]),
        },
        Lengths {
            name: "azure-conversation",
            prompt: quantiles([207.0, 396.0, 1020.0, 1189.0, 2734.0, 4083.0, 4142.0, 14050.0]),
            output: quantiles([54.0, 85.0, 129.0, 395.0, 424.0, 451.0, 601.0, 1000.0]),
        },
        Lengths {
            name: "mooncake-conversation",
            prompt: quantiles([964.0, 2306.0, 6909.0, 15367.0, 27367.0, 39550.0, 85400.0, 126_195.0]),
            output: quantiles([24.0, 156.0, 350.0, 472.0, 597.0, 698.0, 1119.0, 2000.0]),
        },
    ];

    /// Always these lengths.
    pub const fn exactly(prompt: usize, output: usize) -> Lengths {
        Lengths {
            name: "exact",
            prompt: Spread::Exactly(prompt as f64),
            output: Spread::Exactly(output as f64),
        }
    }

    /// The preset of this name; or `512:128`, always those.
    pub fn named(name: &str) -> Option<Lengths> {
        let exactly = || {
            let (prompt, output) = name.split_once(':')?;
            let length = |text: &str| text.parse().ok().filter(|length| (1..=1_000_000).contains(length));
            Some(Lengths::exactly(length(prompt)?, length(output)?))
        };
        Lengths::ALL.into_iter().find(|lengths| lengths.name == name).or_else(exactly)
    }

    /// Prompt and output tokens of one request, at least one each, at most `max_context` together.
    pub(super) fn draw(&self, random: &mut Random, max_context: usize) -> (usize, usize) {
        let mut draw = |spread: &Spread| spread.draw(random).round().max(1.0) as usize;
        fitting(draw(&self.prompt), draw(&self.output), max_context)
    }
}

/// Lengths cut to what a sequence may have: the output to half of it at most, and the prompt to what that leaves.
pub(super) fn fitting(prompt: usize, output: usize, max_context: usize) -> (usize, usize) {
    let output = output.min(max_context / 2).max(1);
    (prompt.min(max_context.saturating_sub(output)).max(1), output)
}

impl Spread {
    fn draw(&self, random: &mut Random) -> f64 {
        match self {
            Spread::Exactly(length) => *length,
            Spread::LogNormal { mean, deviation } => {
                (mean.ln() - deviation * deviation / 2.0 + deviation * random.normal()).exp()
            }
            Spread::Quantiles(lengths) => {
                let share = random.uniform();
                let above = SHARES.iter().position(|&s| s >= share).unwrap_or(SHARES.len() - 1).max(1);
                let within = (share - SHARES[above - 1]) / (SHARES[above] - SHARES[above - 1]);
                (lengths[above - 1].ln() * (1.0 - within) + lengths[above].ln() * within).exp()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn means(name: &str, max_context: usize) -> (f64, f64) {
        let lengths = Lengths::named(name).expect("a preset");
        let mut random = Random::new(1);
        let n = 40_000;
        let draws: Vec<_> = (0..n).map(|_| lengths.draw(&mut random, max_context)).collect();
        let mean =
            |pick: fn(&(usize, usize)) -> usize| draws.iter().map(pick).sum::<usize>() as f64 / n as f64;
        (mean(|d| d.0), mean(|d| d.1))
    }

    #[test]
    fn means_are_those_of_the_traces() {
        for (name, prompt, output) in [
            ("sharegpt", 755.0, 200.0),
            ("longbench", 1738.0, 90.0),
            ("humaneval", 171.0, 98.0),
            ("reasoning", 1596.0, 1690.0),
            ("azure-code", 2048.0, 27.9),
            ("azure-conversation", 1155.0, 211.0),
            ("mooncake-conversation", 12_035.0, 343.0),
        ] {
            let means = means(name, 1_000_000);
            // Interpolation makes the last hundredth a little too long.
            assert!((means.0 / prompt - 1.0).abs() < 0.18, "{name}: prompt {}", means.0);
            assert!((means.1 / output - 1.0).abs() < 0.18, "{name}: output {}", means.1);
        }
    }

    #[test]
    fn the_context_holds_both() {
        let lengths = Lengths::named("mooncake-conversation").expect("a preset");
        let mut random = Random::new(2);
        for _ in 0..1000 {
            let (prompt, output) = lengths.draw(&mut random, 4096);
            assert!(prompt >= 1 && output >= 1 && prompt + output <= 4096);
        }
    }
}
