//! score_tokens: the dot products of each row of `x` with a few outputs of a matrix: the LM head's logits of a few tokens.
//!
//! Each is the chain of additions that [`matmul`](super::matmul) does for that output, so the bits are the same. A vector of a panel is
//! read for one of its lanes: the others are in the same cache line, which memory gives whole. Several tokens go together, as
//! one chain alone would wait for its own additions.

use super::matmul::{OverPanels, over_panels};
use crate::lane::Scratch;
use crate::memory::{Matrix, PANEL, View};
use crate::simd::{Ask, Product, Simd, Steps, multiply, packed_words};
use crate::{Lane, Op};
#[cfg(target_arch = "x86_64")]
use half::bf16;

/// `out[r * c + i]` becomes row `r` of `x` times output `tokens[r * c + i]` of `w`, `c` tokens per row. The columns of `x` are the
/// matrix's inputs.
///
/// # Panics
/// If shapes do not fit, `tokens` are not the same number for each row, or one is no output.
pub fn score_tokens(lane: &Lane, x: View<'_>, w: &Matrix, tokens: &[u32], out: &mut [f32]) {
    let (rows, outputs) = (x.rows(), w.out_features());
    assert_eq!(x.cols(), w.in_features(), "score_tokens: columns of x and inputs of w");
    assert_eq!(tokens.len(), out.len(), "score_tokens: one place per token");
    assert!(tokens.len().is_multiple_of(rows), "score_tokens: {} tokens for {rows} rows", tokens.len());
    if let Some(token) = tokens.iter().find(|token| **token as usize >= outputs) {
        panic!("score_tokens: token {token} of {outputs}");
    }
    if tokens.is_empty() {
        return;
    }
    let each = tokens.len() / rows;
    let out = crate::memory::SharedMut::new(out);
    let isa = lane.supported();
    // A cache line of 64 bytes for each step of each token.
    let line_ns = 4;
    let row_ns = each * w.in_features() * w.dtype().bits() / 32 * line_ns;
    lane.for_each(Op::ScoreTokens, rows, row_ns, |r, scratch| {
        // SAFETY: each row is one item, done once.
        let out = unsafe { out.part(r * each, each) };
        let (x, tokens, panel_len) = (x.row(r), &tokens[r * each..(r + 1) * each], w.panel_len());
        // SAFETY: they are tokens of this matrix; each row is one item, done once.
        unsafe { over_panels(isa, w, Score { x, tokens, out, panel_len, scratch }) };
    });
}

/// One row.
struct Score<'a> {
    x: &'a [f32],
    tokens: &'a [u32],
    out: &'a mut [f32],
    /// Weights of a panel.
    panel_len: usize,
    scratch: &'a mut Scratch,
}

impl OverPanels for Score<'_> {
    #[inline(always)]
    unsafe fn in_vectors<S: Simd, Q: Product<S>>(self, s: S, weights: &[Q::Weight]) {
        let [packed] = self.scratch.floats([packed_words::<S, Q>(self.x.len())]);
        Q::lay(s, self.x, packed, 0, 1);
        let (mut tokens, mut out) = (self.tokens, self.out);
        let panels = (weights, self.panel_len);
        let steps = self.x.len().div_ceil(Q::INPUTS);
        while !tokens.is_empty() {
            // SAFETY: `packed` is a row laid out for `Q`; the rest is the caller's promise.
            let done = unsafe {
                match tokens.len() {
                    8.. if S::REGISTERS >= 32 => together::<S, Q, 8>(s, (packed, steps), panels, tokens, out),
                    4.. => together::<S, Q, 4>(s, (packed, steps), panels, tokens, out),
                    _ => together::<S, Q, 1>(s, (packed, steps), panels, tokens, out),
                }
            };
            tokens = &tokens[done..];
            out = &mut out[done..];
        }
    }

    /// The weights of up to a panel's number of tokens are gathered to a panel.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn in_tiles<S: Simd>(self, s: S, weights: &[bf16]) {
        use super::matmul::amx_strip::{halves, lay};
        use crate::memory::DEPTH;
        use crate::simd::amx::{SUMS, TILE, TileShapes, one_block};
        let steps = self.x.len().div_ceil(DEPTH);
        let words = steps * DEPTH / 2;
        let [packed, gathered, sums] = self.scratch.floats([words * TILE, words * PANEL, 2 * SUMS]);
        let (sums, _) = sums.as_chunks_mut();
        let (packed, gathered) = (halves(packed), halves(gathered));
        lay(s, self.x, packed, 0);
        // SAFETY: `TILES` is true, and tiles are used for nothing else below.
        let _shapes = unsafe { TileShapes::of_block(1) };
        for (tokens, out) in self.tokens.chunks(PANEL).zip(self.out.chunks_mut(PANEL)) {
            for (place, token) in tokens.iter().enumerate() {
                let token = *token as usize;
                let panel = &weights[token / PANEL * self.panel_len..][..self.panel_len];
                let from = panel.chunks_exact(2).skip(token % PANEL).step_by(PANEL);
                let to = gathered.chunks_exact_mut(2).skip(place).step_by(PANEL);
                to.zip(from).for_each(|(to, from)| to.copy_from_slice(from));
            }
            // SAFETY: one row of a block is packed, and one panel.
            unsafe { one_block(steps, packed.as_ptr(), gathered.as_ptr(), sums) };
            // Sums of one row: 16 in the first tile, the others in the second.
            for (place, out) in out.iter_mut().enumerate() {
                *out = sums.as_flattened()[place / TILE * SUMS + place % TILE];
            }
        }
    }
}

/// Bytes that weights are asked for ahead of their use.
const AHEAD: usize = 12 * 1024;

/// The first `P` of `tokens`; `P`, for the caller to go on.
///
/// # Safety
/// `packed` is a row of `count` steps and `weights` are a matrix, laid out for `Q`, with all tokens in it; [`crate::simd::DotBf16`] needs
/// `S::DOTS`.
#[inline(always)]
unsafe fn together<S: Simd, Q: Product<S>, const P: usize>(
    s: S,
    (packed, count): (&[f32], usize),
    (weights, panel_len): (&[Q::Weight], usize),
    tokens: &[u32],
    out: &mut [f32],
) -> usize {
    let weights_per_word = size_of::<u32>() / size_of::<Q::Weight>();
    let mut starts = [weights.as_ptr(); P];
    for (start, token) in starts.iter_mut().zip(tokens) {
        let token = *token as usize;
        let panel = &weights[token / PANEL * panel_len..][..panel_len];
        *start = panel[token % PANEL / S::LANES * S::LANES * weights_per_word..].as_ptr();
    }
    let ask = Ask { at: starts.map(|start| start.cast::<u8>().wrapping_add(AHEAD)), stride: 4 * PANEL };
    let (activations, panel_stride) = (packed.as_ptr(), PANEL * Q::WEIGHTS);
    let (place, chunk_stride) = (0, Q::CHUNK);
    let steps = Steps { count, activations, place, chunk_stride, weights: starts, panel_stride, ask };
    // SAFETY: `packed` is `count` steps of one row; so are the panels (sliced above), and vectors divide a panel.
    let [sums] = unsafe { multiply::<S, Q, 1, P, 1>(s, steps) };
    for ((out, [sum]), token) in out.iter_mut().zip(sums).zip(tokens) {
        let mut lanes = [0.0; 16];
        // SAFETY: the array holds 16, a vector at most that.
        unsafe { s.store(lanes.as_mut_ptr(), sum) };
        *out = lanes[*token as usize % S::LANES];
    }
    P
}
