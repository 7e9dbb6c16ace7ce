//! The device's true costs, which need not be those the engine was told.

use super::random::normal;
use super::roofline::{Load, Roofline, Work};
use crate::cost::{PartitionCosts, Reach};
use crate::plan::{DraftChunk, DraftPlan, VerifyPlan};

/// Where a simulated device's times come from.
#[derive(Clone, Debug, PartialEq)]
pub enum DeviceCosts {
    /// Measured tables.
    Tables {
        /// Of each way to share the device, the whole device first. They include what the lanes of a partition cost each other.
        partitions: Vec<PartitionCosts>,
        /// Layers of the target, at which pruning checkpoints divide a pass.
        target_layers: usize,
    },
    /// A model of the device; its lanes share one memory.
    Roofline(Box<Roofline>),
}

impl From<Vec<PartitionCosts>> for DeviceCosts {
    /// Of a target of 32 layers.
    fn from(partitions: Vec<PartitionCosts>) -> DeviceCosts {
        DeviceCosts::Tables { partitions, target_layers: LAYERS }
    }
}

impl From<Roofline> for DeviceCosts {
    fn from(roofline: Roofline) -> DeviceCosts {
        DeviceCosts::Roofline(Box::new(roofline))
    }
}

/// How a device's times deviate from its costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Deviation {
    /// Factor on every draft pass.
    pub draft: f64,
    /// Factor on every verify pass.
    pub verify: f64,
    /// Deviation of the logarithm of a pass's time.
    pub noise: f64,
}

impl Default for Deviation {
    /// None.
    fn default() -> Deviation {
        Deviation { draft: 1.0, verify: 1.0, noise: 0.0 }
    }
}

impl Deviation {
    /// A pass's factor on top of its lane's.
    pub(super) fn noise(&self, seed: u64, step: u64) -> f64 {
        if self.noise == 0.0 { 1.0 } else { (self.noise * normal(seed ^ (step << 8))).exp() }
    }
}

/// Layers of a target of whose costs there are tables alone.
const LAYERS: usize = 32;

impl DeviceCosts {
    /// What an engine is told of them: of each way to share the device, the whole device first.
    pub fn tables(&self) -> Vec<PartitionCosts> {
        match self {
            DeviceCosts::Tables { partitions, .. } => partitions.clone(),
            DeviceCosts::Roofline(roofline) => roofline.tables(),
        }
    }

    /// Layers of the target, at which pruning checkpoints divide a pass.
    pub fn target_layers(&self) -> usize {
        match self {
            DeviceCosts::Tables { target_layers, .. } => *target_layers,
            DeviceCosts::Roofline(roofline) => roofline.target_layers(),
        }
    }

    /// The work of a plan that was drafted, of those chunks that are wanted. One that was to propose and did not was never begun: see
    /// [`SimDevice::with_oracle`](super::SimDevice::with_oracle).
    ///
    /// Where several ranks have the draft, each has a part: the longest is how long it takes.
    pub(super) fn draft_plan(&self, plan: &DraftPlan, wanted: &dyn Fn(usize) -> bool) -> Work {
        let ranks = plan.chunks.iter().map(|chunk| chunk.rank + 1).max().unwrap_or(1);
        let parts = (0..ranks)
            .map(|rank| self.draft_part(plan, &|place| wanted(place) && plan.chunks[place].rank == rank));
        parts.max_by(|a, b| a.seconds.total_cmp(&b.seconds)).unwrap_or_default()
    }

    fn draft_part(&self, plan: &DraftPlan, wanted: &dyn Fn(usize) -> bool) -> Work {
        let begun = |(chunk, count): &(&DraftChunk, &usize)| chunk.steps == 0 || **count > 0;
        let chunks = || {
            let chunks = plan.chunks.iter().zip(&plan.outcome.counts).enumerate();
            chunks.filter(|(place, _)| wanted(*place)).map(|(_, chunk)| chunk).filter(begun)
        };
        let masked = plan.passes.is_one();
        let masks = |chunk: &DraftChunk| if masked { plan.rows_behind(chunk.steps) } else { 0 };
        let mut first = Load::default();
        chunks().for_each(|(chunk, _)| first.add(chunk.start, chunk.rows.len() + masks(chunk)));
        let mut work = self.draft(plan.partition.0, first);
        if masked {
            return work;
        }
        for step in 1..chunks().map(|(_, &count)| count).max().unwrap_or(0) {
            let mut load = Load::default();
            for (chunk, _) in chunks().filter(|(_, count)| **count > step) {
                load.add(chunk.start + chunk.rows.len() + step - 1, 1);
            }
            work = work.then(self.draft(plan.partition.0, load));
        }
        work
    }

    /// The work of a pass that was verified, of those chunks that are wanted: from checkpoint to checkpoint fewer rows.
    pub(super) fn verify_plan(&self, plan: &VerifyPlan, wanted: &dyn Fn(usize) -> bool) -> Work {
        let layers = self.target_layers();
        let mut work = Work::default();
        let mut begin = 0;
        for checkpoint in 0..=plan.prune_checkpoints.len() {
            let end = plan.prune_checkpoints.get(checkpoint).copied().unwrap_or(layers).min(layers);
            let mut load = Load::default();
            for (place, (chunk, verdict)) in plan.chunks.iter().zip(&plan.outcome.verdicts).enumerate() {
                let pruned = if verdict.pruned_at < checkpoint { verdict.pruned } else { 0 };
                if wanted(place) {
                    load.add(chunk.start, chunk.rows.len() - pruned);
                }
            }
            let share = (end - begin) as f64 / layers as f64;
            work = work.then(self.verify(plan.partition.0, load).part(share));
            begin = end;
        }
        match self {
            DeviceCosts::Roofline(roofline) => {
                work.then(alone(plan.prune_checkpoints.len() as f64 * roofline.checkpoint_s()))
            }
            DeviceCosts::Tables { .. } => work,
        }
    }
    pub(super) fn draft(&self, partition: usize, load: Load) -> Work {
        match self {
            DeviceCosts::Tables { partitions, .. } => {
                alone(partitions[partition].draft.seconds(load.rows, load.reach()))
            }
            DeviceCosts::Roofline(roofline) => roofline.draft(partition, load),
        }
    }

    pub(super) fn verify(&self, partition: usize, load: Load) -> Work {
        match self {
            DeviceCosts::Tables { partitions, .. } => {
                alone(partitions[partition].verify.seconds(load.rows, load.reach()))
            }
            DeviceCosts::Roofline(roofline) => roofline.verify(partition, load),
        }
    }
}

impl Load {
    fn reach(&self) -> Reach {
        Reach { kv: self.kv_tokens, rows: self.row_context }
    }

    /// Adds a chunk of `rows` rows from position `start`.
    fn add(&mut self, start: usize, rows: usize) {
        self.rows += rows;
        self.kv_tokens += start + rows;
        self.row_context += rows * (start + rows / 2);
    }
}

impl Work {
    /// This and then that, on the same lane.
    fn then(self, next: Work) -> Work {
        let seconds = self.seconds + next.seconds;
        let drawn = self.seconds * self.bandwidth + next.seconds * next.bandwidth;
        Work { seconds, bandwidth: if seconds > 0.0 { drawn / seconds } else { 0.0 } }
    }

    /// A share of it.
    fn part(self, share: f64) -> Work {
        Work { seconds: self.seconds * share, ..self }
    }

    /// The same bytes in more or less time.
    pub(super) fn times(self, factor: f64) -> Work {
        Work { seconds: self.seconds * factor, bandwidth: self.bandwidth / factor }
    }
}

/// A pass that nothing else slows down.
fn alone(seconds: f64) -> Work {
    Work { seconds, bandwidth: 0.0 }
}
