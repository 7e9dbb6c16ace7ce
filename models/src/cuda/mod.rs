//! Models on a GPU: the weights there, and passes as sequences of launches on a lane.

pub mod check;
mod gate;
mod graphs;
mod group;
mod hidden;
mod layer;
mod model;
mod pass;
mod penalties;
mod sampler;
mod sizes;
mod staged;
mod steps;

pub use gate::Gate;
pub use hidden::CudaHiddenStates;
pub use model::CudaModel;
pub use pass::{CudaPasses, PassInput};
pub use penalties::{Bias, HistoryChange, PenaltySlot};
pub use sampler::{DrawInput, Drawn};
pub use sizes::CudaSizes;
pub use steps::{DraftChunk, DraftInput, DraftedChunk};
