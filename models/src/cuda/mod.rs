//! Models on a GPU: the weights there, and passes as sequences of launches on a lane.

mod along;
mod buffers;
mod cuda_experts;
mod cuda_features;
mod cuda_group;
mod cuda_layer;
mod cuda_markov;
mod cuda_model;
mod cuda_pruning;
mod draft_steps;
mod expert_buffers;
mod feature_buffers;
mod pass;
mod penalties;
mod recently_used;
mod rows_packer;
mod sampler;
mod staged;

pub use buffers::{CudaSizes, PenaltySlot};
pub use cuda_model::CudaModel;
pub use cuda_pruning::PruneCheckpoint;
pub use draft_steps::{DraftChunkInput, DraftInput, DraftedChunk};
pub use feature_buffers::CudaFeaturePages;
pub use pass::{CudaPasses, PassInput};
pub use penalties::{Bias, HistoryChange};
pub use sampler::{DrawInput, Drawn};
pub use staged::Beside;
