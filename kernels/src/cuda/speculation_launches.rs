//! Launches of speculation: the test of proposals inside a pass, and what stands between two steps of drafting.

use super::launch::{Element, Launch, Ptr, strided};
use crate::sampling::TOP_TOKENS;

/// A proposal to be tested inside a pass, in device memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PruneTest {
    /// Its chunk.
    pub chunk: u32,
    /// The row that predicts it, counted in the chunk.
    pub offset: u32,
    /// The proposal's position.
    pub position: u32,
    /// The proposal.
    pub proposal: u32,
}

/// The test of proposals: first their rows, then, with the scores of their alternatives, the verdict.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PruneArgs {
    /// [`PruneTest`]s.
    pub tests: Ptr,
    /// u32 `[test][TOP_TOKENS + 1]`: alternatives, the proposal itself where there are fewer, then the proposal.
    pub tokens: Ptr,
    /// f32 `[test][TOP_TOKENS + 1]`: their logits.
    pub scores: Ptr,
    /// f32 per test: the largest margin that stays.
    pub most: Ptr,
    /// [`super::Chunk`]s.
    pub chunks: Ptr,
    /// [`super::Sampler`] of each chunk.
    pub samplers: Ptr,
    /// u32 per test: its row, or [`super::NOTHING`].
    pub rows: Ptr,
    /// f32 per test; NaN where there is no row.
    pub margins: Ptr,
    /// u32 per chunk: rows that are wanted, lowered where a proposal fails.
    pub live: Ptr,
    /// u32: how many tests there are.
    pub count: Ptr,
}

impl PruneArgs {
    /// Tokens scored for a test.
    pub const SCORED: usize = TOP_TOKENS + 1;

    /// Finds the rows.
    #[must_use]
    pub fn rows(self, most: u32) -> Launch<PruneArgs> {
        Launch::new("prune_rows", [most.div_ceil(128), 1, 1], 128, self)
    }

    /// Tests.
    #[must_use]
    pub fn test(self, most: u32) -> Launch<PruneArgs> {
        Launch::new("prune_test", [most.div_ceil(128), 1, 1], 128, self)
    }
}

/// What a head on hidden states reads of its target, in pages that are indexed as the target's KV is.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FeaturesArgs {
    /// The element's `[block][16][cols]`.
    pub pages: Ptr,
    /// u32 `[chunk][table_stride]`: block ids of the target.
    pub tables: Ptr,
    /// u32 per row.
    pub chunk_of: Ptr,
    /// u32 per row.
    pub positions: Ptr,
    /// f32 `[rows][cols]`.
    pub x: Ptr,
    /// u32: how many rows there are.
    pub rows: Ptr,
    /// u32 per row: not 0 for a mask token, whose features are not known; null: there is none. Read alone.
    pub masked: Ptr,
    /// f32 `[cols]`: what such a row gets.
    pub unknown: Ptr,
    /// Blocks of a table.
    pub table_stride: u32,
    /// Numbers of a token.
    pub cols: u32,
}

impl FeaturesArgs {
    /// Each row to the page of its position.
    #[must_use]
    pub fn write(self, element: Element, most_rows: u32, sms: u32) -> Launch<FeaturesArgs> {
        let kernel = element.choose("write_features_f32", "write_features_bf16");
        Launch::new(kernel, [strided(most_rows, sms, 8), 1, 1], 256, self)
    }

    /// Each row from the page of the position before its own.
    #[must_use]
    pub fn read(self, element: Element, most_rows: u32, sms: u32) -> Launch<FeaturesArgs> {
        let kernel = element.choose("read_features_f32", "read_features_bf16");
        Launch::new(kernel, [strided(most_rows, sms, 8), 1, 1], 256, self)
    }
}

/// The rows of samples, kept for their chunks: the next row of a head's begins with them.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PassOnArgs {
    /// f32 `[samples][cols]`.
    pub x: Ptr,
    /// [`super::Sample`]s.
    pub samples: Ptr,
    /// u32 per chunk of the pass: its number in `out`; null: the same.
    pub of_plan: Ptr,
    /// f32 `[chunk][cols]`.
    pub out: Ptr,
    /// u32: how many samples there are.
    pub count: Ptr,
    /// Columns.
    pub cols: u32,
}

impl PassOnArgs {
    /// One block for a sample.
    #[must_use]
    pub fn launch(self, most: u32, sms: u32) -> Launch<PassOnArgs> {
        Launch::new("pass_on", [strided(most, sms, 8), 1, 1], 256, self)
    }
}

/// What is known of a chunk that drafts, in device memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DraftState {
    /// Position of its first proposal.
    pub base: u32,
    /// Proposals it may have; at most [`DraftStepArgs::STEPS`].
    pub steps: u32,
    /// Proposals it has.
    pub count: u32,
    /// 1; 0 once it was seen to be cancelled, or no step paid for all chunks that would have gone on.
    pub alive: u32,
    /// Survival of the last proposal, or of what stands before the first.
    pub survival: f32,
    /// Nothing follows a proposal whose survival is below.
    pub below: f32,
    /// What its next proposal is worth, if all before it survive.
    pub next: f32,
    /// What that costs.
    pub each: f32,
    /// What a step of all chunks costs, the same for each of them; 0: it is free, and taken whatever it brings.
    pub step_cost: f32,
    /// Probability of acceptance by confidence: even bins from 0 to 1.
    pub acceptance: [f32; 16],
}

/// Proposals recorded, stop rules applied, the next pass written.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DraftStepArgs {
    /// [`super::Sample`]s of the pass that was drawn.
    pub samples: Ptr,
    /// u32 per sample.
    pub tokens: Ptr,
    /// f32 per sample.
    pub confidence: Ptr,
    /// u32 `[samples][TOP_TOKENS]`, or null.
    pub top: Ptr,
    /// u32 `[samples][CANDIDATES]`, or null.
    pub next: Ptr,
    /// u32: how many samples there are.
    pub sample_count: Ptr,
    /// u32 per chunk of that pass: its number here; null: the same.
    pub of_plan: Ptr,
    /// [`DraftState`] per chunk.
    pub states: Ptr,
    /// u32 per chunk: not 0 if nobody wants it any more. The host may write it at any time.
    pub cancelled: Ptr,
    /// u32 `[chunk][STEPS]`: the proposals.
    pub proposals: Ptr,
    /// f32 `[chunk][STEPS]`.
    pub confidences: Ptr,
    /// u32 `[chunk][STEPS][TOP_TOKENS]`; written if there is `top`.
    pub alternatives: Ptr,
    /// u32 `[chunk][STEPS][CANDIDATES]`; written if there is `next`.
    pub candidates: Ptr,
    /// u32 per chunk: how many proposals it has; 0 to begin with.
    pub proposal_counts: Ptr,
    /// [`super::Chunk`]s of the next pass, in the same order; null: more is drawn before there is one.
    pub chunks: Ptr,
    /// u32 per row of the next pass.
    pub row_tokens: Ptr,
    /// u32 per row.
    pub positions: Ptr,
    /// u32 per row.
    pub chunk_of: Ptr,
    /// [`super::Sample`]s, one per row; may be `samples`.
    pub next_samples: Ptr,
    /// [`super::Tile`]s `[chunk_count][tiles_each]`; padding behind those of the rows.
    pub tiles: Ptr,
    /// u32 x 3: rows, rows, samples; may hold `sample_count`.
    pub counts: Ptr,
    /// u32: steps done, counted up.
    pub step: Ptr,
    /// u32 `[STEPS + 1]` of the host's memory: behind each step the rows that follow, and 1 more.
    pub going: Ptr,
    /// Chunks.
    pub chunk_count: u32,
    /// Tiles of a chunk of one row.
    pub tiles_each: u32,
    /// Queries of a tile.
    pub tile_queries: u32,
}

impl DraftStepArgs {
    /// Proposals of a chunk at most.
    pub const STEPS: usize = 16;

    /// One block.
    #[must_use]
    pub fn launch(self) -> Launch<DraftStepArgs> {
        Launch::new("draft_step", [1, 1, 1], 1024, self)
    }
}

// The kernel's numbers.
const _: () = assert!(TOP_TOKENS == 8 && size_of::<DraftState>() == 100 && size_of::<DraftStepArgs>() == 200);
