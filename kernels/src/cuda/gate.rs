//! Launches of the test of proposals inside a pass.

use super::launch::{Launch, Ptr};
use crate::sampling::TOP_TOKENS;

/// A proposal to be tested inside a pass, in device memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Test {
    /// Its chunk.
    pub chunk: u32,
    /// The row that predicts it, counted in the chunk.
    pub offset: u32,
    /// The proposal's position.
    pub position: u32,
    /// The proposal.
    pub proposal: u32,
}

/// The test of proposals: first their rows, then, with the scores of their rivals, the verdict.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GateArgs {
    /// [`Test`]s.
    pub tests: Ptr,
    /// u32 `[test][TOP_TOKENS + 1]`: rivals, the proposal itself where there are fewer, then the proposal.
    pub tokens: Ptr,
    /// f32 `[test][TOP_TOKENS + 1]`: their logits.
    pub scores: Ptr,
    /// f32 per test: the largest gap that stays.
    pub most: Ptr,
    /// [`super::Chunk`]s.
    pub chunks: Ptr,
    /// [`super::Sampler`] of each chunk.
    pub samplers: Ptr,
    /// u32 per test: its row, or [`super::NOTHING`].
    pub rows: Ptr,
    /// f32 per test; NaN where there is no row.
    pub gaps: Ptr,
    /// u32 per chunk: rows that are wanted, lowered where a proposal fails.
    pub live: Ptr,
    /// u32: how many tests there are.
    pub count: Ptr,
}

impl GateArgs {
    /// Tokens scored for a test.
    pub const SCORED: usize = TOP_TOKENS + 1;

    /// Finds the rows.
    #[must_use]
    pub fn rows(self, most: u32) -> Launch<GateArgs> {
        Launch::new("gate_rows", [most.div_ceil(128), 1, 1], 128, self)
    }

    /// Tests.
    #[must_use]
    pub fn test(self, most: u32) -> Launch<GateArgs> {
        Launch::new("gate_test", [most.div_ceil(128), 1, 1], 128, self)
    }
}
