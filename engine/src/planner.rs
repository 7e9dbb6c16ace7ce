//! The planner: how many proposals everyone gets, which of them are verified, serial or overlapped, on which partition.
//!
//! One quantity decides: predicted goodput, committed tokens per second. A round of a batch of N sequences commits N tokens
//! and, of the proposals, the sum of their survivals; it costs its draft steps and its verify pass, both taken from the
//! cost tables. Proposals are added in the order of survival, over all sequences together, and the best sum over cost
//! met on the way is taken: cost is a staircase, so the first one that does not pay is not the end.

mod budget;
mod overlap;

use std::time::Duration;

use crate::api::{K_LIMIT, PartitionId};
use crate::cost::PartitionCosts;
use crate::policy::Policy;
use budget::Budget;

/// Overlapped and serial execution change places only for a gain above this share.
const HYSTERESIS: f64 = 0.05;

/// Rounds without a single proposal after which one is tried: what is not looked at is never found to have changed.
const PROBE_AFTER: u32 = 32;

/// What the planner knows of a sequence that decodes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    /// Proposals that could be used in all: bounded by the request's `k_max` and its tokens to come.
    pub(crate) useful: usize,
    /// Proposals there already, of those that are useful.
    pub(crate) ready: usize,
    /// Sum of their survivals: tokens they will bring.
    pub(crate) expected: f32,
    /// Survival of the last of them.
    pub(crate) survival: f32,
    /// Probability of acceptance of one not drafted yet.
    pub(crate) typical: f32,
    /// Tokens of its context.
    pub(crate) context: usize,
}

/// The sequences of a round, and what their verify pass has room for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batch<'a> {
    pub(crate) candidates: &'a [Candidate],
    /// Rows left for proposals.
    pub(crate) rows: usize,
    /// Rows that others fill.
    pub(crate) prefill_rows: usize,
}

/// A plan as far as its cost goes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PassShape {
    pub(crate) partition: PartitionId,
    /// Rows of the pass; of a draft plan, of its first step.
    pub(crate) rows: usize,
    /// Sum of the rows' positions.
    pub(crate) context: usize,
    /// Draft steps; a verify pass is one.
    pub(crate) steps: usize,
    /// Sequences that draft, in the mean of its steps.
    pub(crate) sequences: usize,
}

/// How both lanes work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Execution {
    /// In turns, each on the whole device.
    #[default]
    Serial,
    /// At the same time, on this partition.
    Overlapped(PartitionId),
}

impl Execution {
    /// Where plans run.
    pub fn partition(self) -> PartitionId {
        match self {
            Execution::Serial => PartitionId(0),
            Execution::Overlapped(partition) => partition,
        }
    }
}

/// Decides; holds the cost tables and the decision that stands.
#[derive(Debug)]
pub(crate) struct Planner {
    policy: Policy,
    /// The whole device first.
    pub(crate) partitions: Vec<PartitionCosts>,
    execution: Execution,
    /// What a second is worth, in tokens.
    worth: f64,
    /// Rounds since anyone was given a proposal.
    quiet_rounds: u32,
    /// This round's proposals are there to be learned from.
    probing: bool,
    budget: Budget,
}

impl Planner {
    pub(crate) fn new(policy: Policy, partitions: Vec<PartitionCosts>) -> Planner {
        Planner {
            policy,
            partitions,
            execution: Execution::Serial,
            worth: 0.0,
            quiet_rounds: 0,
            probing: false,
            budget: Budget::default(),
        }
    }

    pub(crate) fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The execution that the last `plan` decided on.
    pub(crate) fn execution(&self) -> Execution {
        self.execution
    }

    /// Decides on execution, and on how many proposals each candidate should have, those that are ready included.
    pub(crate) fn plan(&mut self, batch: &Batch<'_>, lengths: &mut Vec<usize>) {
        lengths.clear();
        match &self.policy {
            Policy::Off => lengths.extend(batch.candidates.iter().map(|_| 0)),
            Policy::Fixed { k } => share_out(*k, batch, lengths),
            Policy::BatchTable { steps } => {
                let sequences = batch.candidates.len();
                let step = steps.iter().find(|&&(largest, _)| sequences <= largest);
                share_out(step.map_or(0, |&(_, k)| k), batch, lengths);
            }
            Policy::Budget => {
                self.value_time(batch);
                self.budget.plan(batch, self.worth, &self.partitions[0], lengths);
            }
            Policy::Faser => self.choose_execution(batch, lengths),
        }
        self.probe(batch, lengths);
    }

    /// Is speculation going on, so that draft KV is worth keeping up?
    pub(crate) fn speculating(&self) -> bool {
        self.quiet_rounds == 0
    }

    fn probe(&mut self, batch: &Batch<'_>, lengths: &mut [usize]) {
        self.probing = false;
        let Some(able) = batch.candidates.iter().position(|candidate| candidate.useful > 0) else { return };
        self.quiet_rounds = if lengths.iter().any(|&k| k > 0) { 0 } else { self.quiet_rounds + 1 };
        if self.policy.needs_costs() && self.quiet_rounds >= PROBE_AFTER {
            lengths[able] = 1;
            self.quiet_rounds = 0;
            self.probing = true;
        }
    }

    fn choose_execution(&mut self, batch: &Batch<'_>, lengths: &mut Vec<usize>) {
        let serial = self.value_time(batch);
        self.budget.plan(batch, self.worth, &self.partitions[0], lengths);
        let bar = match self.execution {
            Execution::Serial => serial * (1.0 + HYSTERESIS),
            Execution::Overlapped(_) => serial * (1.0 - HYSTERESIS),
        };
        match overlap::best(batch, &self.partitions[1..]).filter(|&(_, goodput)| goodput > bar) {
            Some((place, _)) => {
                self.execution = Execution::Overlapped(PartitionId(place + 1));
                // Drafting goes on as long as it is worthwhile; its own stop rule ends it.
                lengths.clear();
                lengths.extend(batch.candidates.iter().map(|candidate| candidate.useful));
            }
            None => {
                self.execution = Execution::Serial;
            }
        }
    }

    /// Of the proposals that are ready, how many of each sequence to verify. `acceptances` are theirs, sequence after
    /// sequence.
    pub(crate) fn trim(&mut self, batch: &Batch<'_>, acceptances: &[f32], lengths: &mut Vec<usize>) {
        if !self.policy.needs_costs() || self.probing {
            let mut left = batch.rows;
            lengths.clear();
            lengths.extend(batch.candidates.iter().map(|candidate| {
                let k = candidate.ready.min(left);
                left -= k;
                k
            }));
            return;
        }
        let costs = &self.partitions[self.execution.partition().0];
        self.budget.trim(batch, acceptances, self.worth, costs, lengths);
    }

    /// A verify pass was timed: the tables learn. What they said before, if there are any.
    pub(crate) fn timed_verify(&mut self, shape: &PassShape, took: Duration) -> Option<Duration> {
        let costs = self.partitions.get_mut(shape.partition.0)?;
        let predicted = Duration::from_secs_f64(costs.verify.seconds(shape.rows, shape.context));
        costs.verify.observe(shape.rows, shape.context, took);
        Some(predicted)
    }

    /// A draft plan was timed: the tables learn, unless catching up dominated it.
    pub(crate) fn timed_draft(&mut self, shape: &PassShape, took: Duration) {
        let PassShape { rows, sequences, steps, .. } = *shape;
        if let Some(costs) = self.partitions.get_mut(shape.partition.0).filter(|_| rows <= 3 * sequences) {
            costs.draft.observe(sequences, shape.context, took / steps as u32);
        }
    }

    /// Survival below which a further proposal does not pay its row of a verify pass of about `rows` rows.
    pub(crate) fn worthwhile(&self, rows: usize) -> f32 {
        if !self.policy.needs_costs() {
            return 0.0;
        }
        budget::worthwhile(rows, self.worth, &self.partitions[self.execution.partition().0])
    }

    /// Sets what a second is worth: the highest goodput this round can have. What maximises tokens less that price of
    /// their time also maximises tokens per second (Dinkelbach 1967). Returns the goodput.
    fn value_time(&mut self, batch: &Batch<'_>) -> f64 {
        self.worth = self.budget.goodput(batch, &self.partitions[0]);
        self.worth
    }
}

/// The same length for everyone, as far as it is useful and rows last.
fn share_out(k: usize, batch: &Batch<'_>, lengths: &mut Vec<usize>) {
    let mut left = batch.rows;
    lengths.extend(batch.candidates.iter().map(|candidate| {
        let k = k.min(candidate.useful).min(left).min(K_LIMIT);
        left -= k;
        k
    }));
}
