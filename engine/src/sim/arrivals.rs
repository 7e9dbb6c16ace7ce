//! When requests come.

use std::time::Duration;

use super::random::Random;

/// A process of arrivals.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// Everyone is there at the start: with a bound on running sequences, a server at constant batch.
    Backlog {
        /// Requests.
        requests: usize,
    },
    /// When those of a trace came; without one, nobody.
    Replayed,
    /// Independent clients at a constant rate.
    Poisson {
        /// Requests per second.
        per_s: f64,
    },
    /// Independent clients whose rate swings slowly: near-Poisson within seconds, overdispersed within minutes. The Azure
    /// conversation trace of 2023 is this with a swing of 1.9 over an hour; FASER's has a swing of 35.
    Swinging {
        /// Requests per second in the mean.
        per_s: f64,
        /// Highest over lowest rate.
        swing: f64,
        /// One swing up and down.
        period: Duration,
    },
    /// On for a while, off for longer, as agents and batch jobs come: the Azure code trace of 2023.
    Bursts {
        /// Requests per second in the mean.
        per_s: f64,
        /// Mean time on.
        on: Duration,
        /// Mean time off.
        off: Duration,
    },
}

impl Arrivals {
    /// Arrival times before `duration`, ascending.
    pub fn times(&self, duration: Duration, seed: u64) -> Vec<Duration> {
        let mut random = Random::new(seed);
        match *self {
            Arrivals::Backlog { requests } => vec![Duration::ZERO; requests],
            Arrivals::Replayed => Vec::new(),
            Arrivals::Poisson { per_s } => thinned(duration, per_s, &mut random, |_| 1.0),
            Arrivals::Swinging { per_s, swing, period } => {
                let half = swing.max(1.0).ln() / 2.0;
                // The mean of exp(h sin x) over a swing is the Bessel function I0(h); its series.
                let mean = 1.0
                    + (1..20)
                        .scan(1.0, |term, n| {
                            *term *= (half / 2.0 / f64::from(n)).powi(2);
                            Some(*term)
                        })
                        .sum::<f64>();
                let peak = per_s * half.exp() / mean;
                // A trace begins at its trough.
                let phase =
                    |at: f64| std::f64::consts::TAU * at / period.as_secs_f64() - std::f64::consts::FRAC_PI_2;
                thinned(duration, peak, &mut random, |at| (half * (phase(at).sin() - 1.0)).exp())
            }
            Arrivals::Bursts { per_s, on, off } => {
                let (on, off) = (on.as_secs_f64(), off.as_secs_f64());
                let mut times = Vec::new();
                let mut at = if random.uniform() < on / (on + off) { 0.0 } else { random.exponential(off) };
                while at < duration.as_secs_f64() {
                    let end = at + random.exponential(on);
                    let gap = on / (on + off) / per_s;
                    at += random.exponential(gap);
                    while at < end.min(duration.as_secs_f64()) {
                        times.push(Duration::from_secs_f64(at));
                        at += random.exponential(gap);
                    }
                    at = end + random.exponential(off);
                }
                times
            }
        }
    }
}

/// A Poisson process of rate `peak * share(t)` (Lewis and Shedler 1979).
fn thinned(duration: Duration, peak: f64, random: &mut Random, share: impl Fn(f64) -> f64) -> Vec<Duration> {
    let mut times = Vec::new();
    let mut at = random.exponential(1.0 / peak);
    while at < duration.as_secs_f64() {
        if random.uniform() < share(at) {
            times.push(Duration::from_secs_f64(at));
        }
        at += random.exponential(1.0 / peak);
    }
    times
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOURS: u64 = 4;

    /// Requests per second, and variance over mean of the counts in windows of 1, 10 and 60 seconds.
    fn dispersion(arrivals: Arrivals) -> (f64, [f64; 3]) {
        let duration = Duration::from_secs(HOURS * 3600);
        let times = arrivals.times(duration, 11);
        assert!(times.is_sorted());
        let of = |window: u64| {
            let mut counts = vec![0.0; (duration.as_secs() / window) as usize];
            times.iter().for_each(|at| counts[(at.as_secs() / window) as usize] += 1.0);
            let n = counts.len() as f64;
            let mean = counts.iter().sum::<f64>() / n;
            counts.iter().map(|count| (count - mean).powi(2)).sum::<f64>() / n / mean
        };
        (times.len() as f64 / duration.as_secs_f64(), [of(1), of(10), of(60)])
    }

    fn close(arrivals: Arrivals, rate: f64, expected: [f64; 3], within: f64) {
        let (per_s, found) = dispersion(arrivals);
        assert!((per_s / rate - 1.0).abs() < 0.1, "{arrivals:?}: {per_s} a second");
        for (found, expected) in found.into_iter().zip(expected) {
            assert!(
                (found / expected).ln().abs() < within.ln(),
                "{arrivals:?}: {found}, expected {expected}"
            );
        }
    }

    #[test]
    fn dispersion_is_that_of_the_traces() {
        close(Arrivals::Poisson { per_s: 5.0 }, 5.0, [1.0; 3], 1.2);
        // Azure conversation 2023.
        let hour = Duration::from_secs(3600);
        close(Arrivals::Swinging { per_s: 5.53, swing: 1.9, period: hour }, 5.53, [1.4, 3.9, 16.0], 1.35);
        // Azure code 2023.
        let (on, off) = (Duration::from_secs_f64(7.8), Duration::from_secs(38));
        close(Arrivals::Bursts { per_s: 2.57, on, off }, 2.57, [13.0, 72.0, 164.0], 1.35);
    }

    #[test]
    fn a_swing_has_its_peak_and_its_trough() {
        let period = Duration::from_secs(3600);
        let times = Arrivals::Swinging { per_s: 20.0, swing: 35.0, period }.times(period, 3);
        let around = |at: u64| times.iter().filter(|t| t.as_secs().abs_diff(at) < 120).count() as f64;
        let trough = times.iter().filter(|t| t.as_secs() < 120).count() as f64 * 2.0;
        assert!((25.0..46.0).contains(&(around(1800) / trough)), "{} over {trough}", around(1800));
    }
}
