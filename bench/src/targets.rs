//! Latency targets: which share of the requests met them, and how many a second.

use std::fmt;
use std::time::Duration;

use faser_engine::Slo;
use serde::Serialize;

use crate::BenchError;
use crate::stats::median;

/// Latency targets that requests are held to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Targets {
    /// From a request to its first token, in milliseconds; none: any time will do.
    pub ttft_ms: Option<f64>,
    /// From the first token to the last, over the tokens but one, in milliseconds; none: any time will do.
    pub tpot_ms: Option<f64>,
}

/// What a request that was answered took.
#[derive(Clone, Copy, Debug)]
pub struct Answered {
    /// To its first token.
    pub ttft: Duration,
    /// For each token after that; none for an answer of one token, which meets any target.
    pub tpot: Option<Duration>,
}

/// How targets were met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Attained {
    /// Share of the requests that met both targets. Those that failed or were refused did not.
    pub attainment: f64,
    /// Requests that met both, per second from the first request to the end of the last.
    pub request_goodput: f64,
}

impl Attained {
    /// The median of each figure over several runs; none if no run has them.
    pub(crate) fn median_of(runs: impl Iterator<Item = Option<Attained>>) -> Option<Attained> {
        let runs: Vec<Attained> = runs.flatten().collect();
        let over = |figure: fn(&Attained) -> f64| median(runs.iter().map(figure));
        (!runs.is_empty()).then(|| Attained {
            attainment: over(|run| run.attainment),
            request_goodput: over(|run| run.request_goodput),
        })
    }
}

impl fmt::Display for Attained {
    /// As two columns of a table, `met` and `met/s`, 6 and 7 wide.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>6.2}{:>7.2}", self.attainment, self.request_goodput)
    }
}

impl Targets {
    /// A year, in milliseconds: no target is further away.
    const MOST_MS: f64 = 3.2e10;

    /// Checks the figures.
    ///
    /// # Errors
    /// [`BenchError::Spec`] naming the target.
    pub fn validate(&self) -> Result<(), BenchError> {
        for (name, target) in [("TTFT", self.ttft_ms), ("TPOT", self.tpot_ms)] {
            if !target.is_none_or(|ms| ms > 0.0 && ms <= Targets::MOST_MS) {
                return Err(BenchError::Spec(format!("the {name} target must be milliseconds above 0")));
            }
        }
        Ok(())
    }

    /// As requests tell an engine of them.
    pub fn slo(&self) -> Slo {
        let duration = |ms: Option<f64>| ms.map(|ms| Duration::from_secs_f64(1e-3 * ms));
        Slo { ttft: duration(self.ttft_ms), tpot: duration(self.tpot_ms) }
    }

    /// How requests met them, each with what it took if it was answered, over so much time; none without a target or a request.
    pub fn attained(
        &self,
        requests: impl IntoIterator<Item = Option<Answered>>,
        over: Duration,
    ) -> Option<Attained> {
        let Slo { ttft, tpot } = self.slo();
        ttft.or(tpot)?;
        let within = |took: Duration, target: Option<Duration>| target.is_none_or(|target| took <= target);
        let (mut met, mut all) = (0.0, 0.0);
        for answered in requests {
            let meets = |a: Answered| within(a.ttft, ttft) && a.tpot.is_none_or(|took| within(took, tpot));
            met += f64::from(u8::from(answered.is_some_and(meets)));
            all += 1.0;
        }
        let request_goodput = if over.is_zero() { 0.0 } else { met / over.as_secs_f64() };
        (all > 0.0).then(|| Attained { attainment: met / all, request_goodput })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(ttft_ms: u64, tpot_ms: Option<u64>) -> Option<Answered> {
        Some(Answered { ttft: Duration::from_millis(ttft_ms), tpot: tpot_ms.map(Duration::from_millis) })
    }

    #[test]
    fn both_targets_count_and_what_failed_missed_them() {
        let requests = [
            answered(100, Some(10)),
            answered(101, Some(10)),
            answered(99, Some(11)),
            answered(5, None),
            None,
        ];
        let attained = |ttft_ms, tpot_ms| {
            let found = Targets { ttft_ms, tpot_ms }.attained(requests, Duration::from_secs(2));
            found.map(|Attained { attainment, request_goodput }| (attainment, request_goodput))
        };
        assert_eq!(attained(Some(100.0), Some(10.0)), Some((0.4, 1.0)));
        assert_eq!(attained(Some(100.0), None), Some((0.6, 1.5)));
        assert_eq!(attained(None, Some(10.0)), Some((0.6, 1.5)));
        assert_eq!(attained(None, None), None);
        assert_eq!(Targets { ttft_ms: Some(1.0), tpot_ms: None }.attained([], Duration::ZERO), None);
    }

    #[test]
    fn targets_are_times() {
        for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let targets = Targets { tpot_ms: Some(wrong), ..Targets::default() };
            assert!(targets.validate().is_err_and(|why| why.to_string().contains("TPOT")), "{wrong}");
        }
        let targets = Targets { ttft_ms: Some(250.0), tpot_ms: None };
        assert!(targets.validate().is_ok());
        assert_eq!(targets.slo(), Slo { ttft: Some(Duration::from_millis(250)), tpot: None });
    }
}
