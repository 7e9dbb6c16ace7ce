//! The two lanes of a simulated device over time: each works on one plan, and slows the other while both do.
//!
//! A plan is work to be done at a rate. The rate changes whenever the other lane starts or ends or a lane is slowed
//! down from outside, so that a plan's end is known for certain only when nothing happens before it.

use std::time::Duration;

use super::roofline::{Work, contention};
use crate::api::Event;
use crate::plan::{DraftPlan, LaneKind, VerifyPlan};

/// A plan that is out.
#[derive(Debug)]
struct Job {
    plan: PlanOut,
    started: Duration,
    /// Seconds it would still take alone.
    left_s: f64,
    bandwidth: f64,
}

/// A plan with its outcome, which nobody knows before its time.
#[derive(Debug)]
pub(super) enum PlanOut {
    Draft(DraftPlan),
    Verify(VerifyPlan),
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
    pub(super) fn start(&mut self, now: Duration, work: Work, plan: PlanOut) {
        self.advance(now);
        let lane = plan.lane() as usize;
        assert!(
            self.jobs[lane].is_none(),
            "the {:?} lane gets a plan while it works on another",
            plan.lane()
        );
        self.jobs[lane] = Some(Job { plan, started: now, left_s: work.seconds, bandwidth: work.bandwidth });
    }

    /// From now on the lane takes `factor` times as long.
    pub(super) fn slow(&mut self, now: Duration, lane: LaneKind, factor: f64) {
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
        Some((at, job.started, job.plan.after(at - job.started)))
    }

    /// Gives up on everything; what was out still comes, too late, when it would have come.
    pub(super) fn lose(&mut self, now: Duration) -> Vec<(Duration, Event)> {
        self.advance(now);
        let ends = [self.end(0), self.end(1)];
        let jobs = std::mem::take(&mut self.jobs).into_iter().zip(ends);
        jobs.filter_map(|(job, end)| Some((end?, job?)))
            .map(|(end, job)| {
                let took = end - job.started;
                (end, job.plan.after(took))
            })
            .collect()
    }

    /// The plan that is out on a lane.
    pub(super) fn out(&self, lane: LaneKind) -> Option<&PlanOut> {
        self.jobs[lane as usize].as_ref().map(|job| &job.plan)
    }

    /// From now on only this share of what is left has to be done.
    pub(super) fn shorten(&mut self, now: Duration, lane: LaneKind, share: f64) {
        self.advance(now);
        if let Some(job) = &mut self.jobs[lane as usize] {
            job.left_s *= share;
        }
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

impl PlanOut {
    fn lane(&self) -> LaneKind {
        match self {
            PlanOut::Draft(_) => LaneKind::Draft,
            PlanOut::Verify(_) => LaneKind::Verify,
        }
    }

    /// The plan's step.
    pub(super) fn step(&self) -> u64 {
        match self {
            PlanOut::Draft(plan) => plan.step,
            PlanOut::Verify(plan) => plan.step,
        }
    }

    fn after(self, took: Duration) -> Event {
        match self {
            PlanOut::Draft(mut plan) => {
                plan.outcome.took = took;
                Event::DraftDone(plan)
            }
            PlanOut::Verify(mut plan) => {
                plan.outcome.took = took;
                Event::VerifyDone(plan)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(lanes: &mut Lanes, at_s: f64, seconds: f64, bandwidth: f64, lane: LaneKind) {
        let plan = match lane {
            LaneKind::Draft => PlanOut::Draft(DraftPlan::default()),
            LaneKind::Verify => PlanOut::Verify(VerifyPlan::default()),
        };
        lanes.start(Duration::from_secs_f64(at_s), Work { seconds, bandwidth }, plan);
    }

    #[test]
    fn lanes_slow_each_other_only_while_both_work_and_by_what_memory_lacks() {
        let mut lanes = Lanes::default();
        start(&mut lanes, 0.0, 10.0, 0.9, LaneKind::Verify);
        start(&mut lanes, 2.0, 1.0, 0.5, LaneKind::Draft);
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
        start(&mut lanes, 0.0, 2.0, 0.5, LaneKind::Draft);
        lanes.slow(Duration::from_secs(1), LaneKind::Draft, 2.0);
        assert_eq!(lanes.next(), Some(Duration::from_secs(3)));
    }
}
