//! What all packed matrices have in common.

/// Outputs of a panel.
pub(crate) const PANEL: usize = 32;
/// Inputs that share a scale.
pub(crate) const BLOCK: usize = 32;
/// Blocks of a step.
pub(crate) const BLOCKS: usize = 2;
