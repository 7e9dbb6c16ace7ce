//! The two lanes of a simulated device over time: each works on one plan, and slows the other while both do.
//!
//! A plan is work to be done at a rate. The rate changes whenever the other lane starts or ends or a lane is slowed
//! down from outside, so that a plan's end is known for certain only when nothing happens before it.

use std::time::Duration;

use super::roofline::{Work, contention};
use crate::api::{DraftResult, Event, VerifyResult};

/// One of the lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// The draft lane.
    Draft,
    /// The verify lane.
    Verify,
}

/// A plan that is out.
#[derive(Debug)]
struct Job {
    result: LaneResult,
    started: Duration,
    /// Seconds it would still take alone.
    left_s: f64,
    bandwidth: f64,
}

/// What a plan brings.
#[derive(Debug)]
pub(super) enum LaneResult {
    Draft(DraftResult),
    Verify(VerifyResult),
}

/// Both lanes.
#[derive(Debug)]
pub(super) struct Lanes {
    now: Duration,
    jobs: [Option<Job>; 2],
    /// Factor on each lane's times, from outside.
    slowed: [f64; 2],
    /// Time at least one lane worked, and time both did.
    pub(super) any_busy: Duration,
    pub(super) both_busy: Duration,
}

impl Default for Lanes {
    fn default() -> Lanes {
        Lanes {
            now: Duration::ZERO,
            jobs: [None, None],
            slowed: [1.0; 2],
            any_busy: Duration::ZERO,
            both_busy: Duration::ZERO,
        }
    }
}

impl Lanes {
    pub(super) fn start(&mut self, now: Duration, work: Work, result: LaneResult) {
        self.advance(now);
        let lane = result.lane() as usize;
        assert!(
            self.jobs[lane].is_none(),
            "the {:?} lane gets a plan while it works on another",
            result.lane()
        );
        self.jobs[lane] = Some(Job { result, started: now, left_s: work.seconds, bandwidth: work.bandwidth });
    }

    /// From now on the lane takes `factor` times as long.
    pub(super) fn slow(&mut self, now: Duration, lane: Lane, factor: f64) {
        self.advance(now);
        self.slowed[lane as usize] = factor;
    }

    /// When the next plan ends, if nothing happens before.
    pub(super) fn next(&self) -> Option<Duration> {
        (0..2).filter_map(|lane| self.end(lane)).min()
    }

    /// Ends the plan that ends next: the time, when it had started, and its result with the time it took.
    pub(super) fn finish(&mut self) -> Option<(Duration, Duration, Event)> {
        let at = self.next()?;
        let lane = (0..2).find(|&lane| self.end(lane) == Some(at))?;
        self.advance(at);
        let job = self.jobs[lane].take()?;
        Some((at, job.started, job.result.after(at - job.started)))
    }

    /// Gives up on everything; what was out still comes, too late, when it would have come.
    pub(super) fn lose(&mut self, now: Duration) -> Vec<(Duration, Event)> {
        self.advance(now);
        let ends = [self.end(0), self.end(1)];
        let jobs = std::mem::take(&mut self.jobs).into_iter().zip(ends);
        jobs.filter_map(|(job, end)| Some((end?, job?)))
            .map(|(end, job)| {
                let took = end - job.started;
                (end, job.result.after(took))
            })
            .collect()
    }

    fn slowdown(&self, lane: usize) -> f64 {
        let drawn = |lane: usize| self.jobs[lane].as_ref().map_or(0.0, |job| job.bandwidth);
        self.slowed[lane] * contention(drawn(lane), drawn(1 - lane))
    }

    fn end(&self, lane: usize) -> Option<Duration> {
        let job = self.jobs[lane].as_ref()?;
        Some(self.now + Duration::from_secs_f64((job.left_s * self.slowdown(lane)).max(0.0)))
    }

    /// Lets time pass until `now`.
    fn advance(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.now);
        let slowdowns = [self.slowdown(0), self.slowdown(1)];
        let busy = self.jobs.iter().filter(|job| job.is_some()).count();
        self.any_busy += if busy > 0 { passed } else { Duration::ZERO };
        self.both_busy += if busy > 1 { passed } else { Duration::ZERO };
        for (job, slowdown) in self.jobs.iter_mut().zip(slowdowns) {
            if let Some(job) = job {
                job.left_s -= passed.as_secs_f64() / slowdown;
            }
        }
        self.now = now;
    }
}

impl LaneResult {
    fn lane(&self) -> Lane {
        match self {
            LaneResult::Draft(_) => Lane::Draft,
            LaneResult::Verify(_) => Lane::Verify,
        }
    }

    fn after(self, took: Duration) -> Event {
        match self {
            LaneResult::Draft(result) => Event::DraftDone(DraftResult { took, ..result }),
            LaneResult::Verify(result) => Event::VerifyDone(VerifyResult { took, ..result }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(lanes: &mut Lanes, at_s: f64, seconds: f64, bandwidth: f64, lane: Lane) {
        let result = match lane {
            Lane::Draft => LaneResult::Draft(DraftResult::default()),
            Lane::Verify => LaneResult::Verify(VerifyResult::default()),
        };
        lanes.start(Duration::from_secs_f64(at_s), Work { seconds, bandwidth }, result);
    }

    #[test]
    fn lanes_slow_each_other_only_while_both_work_and_by_what_memory_lacks() {
        let mut lanes = Lanes::default();
        start(&mut lanes, 0.0, 10.0, 0.9, Lane::Verify);
        start(&mut lanes, 2.0, 1.0, 0.5, Lane::Draft);
        let slow = 1.4 * 1.03;
        let (at, started, event) = lanes.finish().expect("a draft is out");
        assert!(matches!(event, Event::DraftDone(_)) && started == Duration::from_secs(2));
        assert!((at.as_secs_f64() - (2.0 + slow)).abs() < 1e-6);
        let (at, ..) = lanes.finish().expect("a pass is out");
        assert!((at.as_secs_f64() - (10.0 - 1.0 + slow)).abs() < 1e-6);
        assert!((lanes.both_busy.as_secs_f64() - slow).abs() < 1e-6 && lanes.any_busy == at);
        assert!(lanes.finish().is_none());
    }

    #[test]
    fn a_lane_slowed_down_half_way_takes_half_as_long_again() {
        let mut lanes = Lanes::default();
        start(&mut lanes, 0.0, 2.0, 0.5, Lane::Draft);
        lanes.slow(Duration::from_secs(1), Lane::Draft, 2.0);
        assert_eq!(lanes.next(), Some(Duration::from_secs(3)));
    }
}
