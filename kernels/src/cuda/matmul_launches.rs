//! Launches of the products of few rows.

use super::launch::{Element, Launch, Ptr, strided};

/// `out = x w^T + bias`, added to what `out` holds if asked.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MatmulArgs {
    /// The element's `[rows][inputs]`.
    pub x: Ptr,
    /// The element's `[outputs][inputs]`, row after row.
    pub w: Ptr,
    /// f32 `[outputs]`, or null.
    pub bias: Ptr,
    /// f32 `[rows][outputs]`.
    pub out: Ptr,
    /// u32: how many rows there are.
    pub rows: Ptr,
    /// Inputs; in bf16 a multiple of 32.
    pub inputs: u32,
    /// Outputs.
    pub outputs: u32,
    /// 1: add to `out`; 0: overwrite it.
    pub add: u32,
}

impl MatmulArgs {
    /// Most rows that there is a kernel for in bf16.
    pub const MOST_ROWS: u32 = 16;

    /// The element is that of `x` and `w`.
    ///
    /// # Panics
    /// In bf16, if there may be more than [`MatmulArgs::MOST_ROWS`] rows, or inputs are no multiple of 32.
    #[must_use]
    pub fn launch(self, element: Element, most_rows: u32, sms: u32) -> Launch<MatmulArgs> {
        if element == Element::F32 {
            let blocks = strided((most_rows * self.outputs).div_ceil(8), sms, 8);
            return Launch::new("matmul_f32", [blocks, 1, 1], 256, self);
        }
        assert!(most_rows <= Self::MOST_ROWS, "matmul: {most_rows} rows");
        assert!(self.inputs.is_multiple_of(32), "matmul: {} inputs", self.inputs);
        let kernel = if most_rows <= 8 { "matmul_8_bf16" } else { "matmul_16_bf16" };
        Launch::new(kernel, [strided(self.outputs.div_ceil(16), sms, 8), 1, 1], 256, self)
    }
}

/// Products of each row with a few outputs of a matrix.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ScoreTokensArgs {
    /// The element's `[rows][inputs]`.
    pub x: Ptr,
    /// The element's `[outputs][inputs]`.
    pub w: Ptr,
    /// u32 `[rows][each]`.
    pub tokens: Ptr,
    /// f32 `[rows][each]`.
    pub out: Ptr,
    /// u32: how many rows there are.
    pub rows: Ptr,
    /// Inputs.
    pub inputs: u32,
    /// Outputs; a token without one scores 0.
    pub outputs: u32,
    /// Tokens of each row.
    pub each: u32,
    /// The token of the first output.
    pub first: u32,
    /// The vocabulary; a token beyond it scores negative infinity.
    pub vocabulary: u32,
    /// Scores are at most this large: `cap tanh(score / cap)`; 0: no cap.
    pub soft_cap: f32,
}

impl ScoreTokensArgs {
    /// A warp for a token.
    #[must_use]
    pub fn launch(self, element: Element, most_rows: u32, sms: u32) -> Launch<ScoreTokensArgs> {
        let kernel = element.choose("score_tokens_f32", "score_tokens_bf16");
        let blocks = strided((most_rows * self.each).div_ceil(8), sms, 8);
        Launch::new(kernel, [blocks, 1, 1], 256, self)
    }
}
