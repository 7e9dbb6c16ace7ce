//! What the engine knows of a lane: the plan it works on, and which sequences it has been told of.

use rustc_hash::FxHashSet;

use crate::plan::Admission;
use crate::request::SeqId;

#[derive(Debug, Default)]
pub(crate) struct LaneBook {
    steps: u64,
    outstanding: Option<u64>,
    known: FxHashSet<SeqId>,
    admit: Vec<Admission>,
    retire: Vec<SeqId>,
}

impl LaneBook {
    pub(crate) fn busy(&self) -> bool {
        self.outstanding.is_some()
    }

    /// Tells the lane of a sequence with its next plan, unless it knows it.
    pub(crate) fn admit(&mut self, seq: SeqId, admission: impl FnOnce() -> Admission) {
        if self.known.insert(seq) {
            self.admit.push(admission());
        }
    }

    /// Has the lane forget a sequence with its next plan, if it was ever told of it.
    pub(crate) fn retire(&mut self, seq: SeqId) {
        if !self.known.remove(&seq) {
            return;
        }
        let told = self.admit.len();
        self.admit.retain(|admission| admission.seq != seq);
        // Known since an earlier plan, unless the news had not left yet; a sequence preempted and admitted again
        // before any plan left is in both lists and must be retired first.
        if self.admit.len() == told {
            self.retire.push(seq);
        }
    }

    /// Opens the next plan: puts the news for the lane into it, and returns its number.
    pub(crate) fn begin(&mut self, admit: &mut Vec<Admission>, retire: &mut Vec<SeqId>) -> u64 {
        self.steps += 1;
        self.outstanding = Some(self.steps);
        admit.append(&mut self.admit);
        retire.append(&mut self.retire);
        self.steps
    }

    /// The number that the next plan will have.
    pub(crate) fn next_step(&self) -> u64 {
        self.steps + 1
    }

    /// The plan that is out.
    pub(crate) fn outstanding(&self) -> Option<u64> {
        self.outstanding
    }

    /// Closes plan `step`. False if that is not the plan the lane works on: the result is from a lost device.
    #[must_use]
    pub(crate) fn finish(&mut self, step: u64) -> bool {
        let awaited = self.outstanding == Some(step);
        if awaited {
            self.outstanding = None;
        }
        awaited
    }

    /// The device is gone, and with it all the lane knew. Plan numbers go on, so that late results are told apart.
    pub(crate) fn forget(&mut self) {
        *self = LaneBook { steps: self.steps, ..LaneBook::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn news(seq: u64) -> Admission {
        Admission { seq: SeqId(seq), prompt_len: 1, tokens: [0].into() }
    }

    /// What the next plan brings.
    fn begin(lane: &mut LaneBook) -> (Vec<u64>, Vec<u64>) {
        let (mut admit, mut retire) = (Vec::new(), Vec::new());
        lane.begin(&mut admit, &mut retire);
        (admit.iter().map(|a| a.seq.0).collect(), retire.iter().map(|s| s.0).collect())
    }

    #[test]
    fn news_leaves_with_the_next_plan_and_once() {
        let mut lane = LaneBook::default();
        lane.admit(SeqId(1), || news(1));
        lane.admit(SeqId(1), || news(1));
        assert_eq!(begin(&mut lane), (vec![1], vec![]));
        assert_eq!(begin(&mut lane), (vec![], vec![]));
    }

    #[test]
    fn a_sequence_that_ends_before_the_lane_heard_of_it_is_never_mentioned() {
        let mut lane = LaneBook::default();
        lane.admit(SeqId(1), || news(1));
        lane.retire(SeqId(1));
        lane.retire(SeqId(2));
        assert_eq!(begin(&mut lane), (vec![], vec![]));
    }

    #[test]
    fn a_preempted_sequence_is_retired_and_admitted_again() {
        let mut lane = LaneBook::default();
        lane.admit(SeqId(1), || news(1));
        begin(&mut lane);
        lane.retire(SeqId(1));
        lane.admit(SeqId(1), || news(1));
        lane.retire(SeqId(1));
        lane.admit(SeqId(1), || news(1));
        assert_eq!(begin(&mut lane), (vec![1], vec![1]));
    }

    #[test]
    fn results_of_a_lost_device_are_late() {
        let mut lane = LaneBook::default();
        begin(&mut lane);
        let lost = lane.outstanding().expect("a plan is out");
        lane.forget();
        assert!(!lane.finish(lost));
        begin(&mut lane);
        let step = lane.outstanding().expect("a plan is out");
        assert!(!lane.finish(lost));
        assert!(lane.finish(step));
    }
}
