//! Models on a GPU: the weights there, and passes as sequences of launches on a lane.

mod buffers;
mod group;
mod hidden;
mod layer;
mod model;
mod pass;
mod penalties;
mod pruning;
mod sampler;
mod staged;
mod steps;

pub use buffers::{CudaSizes, PenaltySlot};
pub use hidden::CudaHiddenStates;
pub use model::CudaModel;
pub use pass::{CudaPasses, PassInput};
pub use penalties::{Bias, HistoryChange};
pub use pruning::PruneCheckpoint;
pub use sampler::{DrawInput, Drawn};
pub use steps::{DraftChunk, DraftInput, DraftedChunk};
