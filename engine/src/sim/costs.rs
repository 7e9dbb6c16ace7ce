//! The device's true costs, which need not be those the engine was told.

use super::random::normal;
use super::roofline::{Load, Roofline, Work};
use crate::cost::PartitionCosts;

/// Where a simulated device's times come from.
#[derive(Clone, Debug, PartialEq)]
pub enum DeviceCosts {
    /// Measured tables, the whole device first. They include what the lanes of a partition cost each other.
    Tables(Vec<PartitionCosts>),
    /// A model of the device; its lanes share one memory.
    Roofline(Box<Roofline>),
}

impl From<Vec<PartitionCosts>> for DeviceCosts {
    fn from(tables: Vec<PartitionCosts>) -> DeviceCosts {
        DeviceCosts::Tables(tables)
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

impl DeviceCosts {
    pub(super) fn draft(&self, partition: usize, load: Load) -> Work {
        match self {
            DeviceCosts::Tables(tables) => {
                alone(tables[partition].draft.seconds(load.rows, load.row_context))
            }
            DeviceCosts::Roofline(roofline) => roofline.draft(partition, load),
        }
    }

    pub(super) fn verify(&self, partition: usize, load: Load) -> Work {
        match self {
            DeviceCosts::Tables(tables) => {
                alone(tables[partition].verify.seconds(load.rows, load.row_context))
            }
            DeviceCosts::Roofline(roofline) => roofline.verify(partition, load),
        }
    }
}

/// A pass that nothing else slows down.
fn alone(seconds: f64) -> Work {
    Work { seconds, bandwidth: 0.0 }
}
