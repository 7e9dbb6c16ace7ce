//! Checks of a GPU that need a model: its logits against the CPU's; and models of any shape whose weights nobody has to bring.

mod filled;
mod logits;

pub use logits::logits;
