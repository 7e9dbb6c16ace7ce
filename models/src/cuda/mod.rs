//! Models on a GPU: the weights there, and passes as sequences of launches on a lane.

pub mod check;
mod gate;
mod layer;
mod model;
mod pass;
mod sampler;
mod sizes;

pub use gate::Gate;
pub use model::{CudaModel, upload};
pub use pass::{CudaPasses, PassInput};
pub use sampler::{Drawn, HistoryChange};
pub use sizes::CudaSizes;
