//! A strip of outputs in AMX's tiles: blocks of 16 rows, two of them at a time where there are as many.

use super::strip::Job;
use super::{STRIP, Strip};
use crate::memory::{DEPTH, PANEL};
use crate::simd::Simd;
use crate::simd::tiles::{SUMS, TILE, by_two_panels, two_blocks};
use half::bf16;
use std::ops::Range;

/// Computes a strip for some rows; packs their activations first if they are `fresh`.
///
/// # Safety
/// `S::TILES` is true; `weights` are those of the job's matrix. No other worker has the strip.
#[inline(always)]
pub(super) unsafe fn compute<S: Simd>(s: S, strip: Strip<'_>, weights: &[bf16]) {
    let Strip { job, rows, strip, fresh, scratch } = strip;
    let steps = job.w.in_features().div_ceil(DEPTH);
    let block = steps * TILE * DEPTH;
    let [packed, sums] = scratch.floats([rows.len().div_ceil(TILE) * block / 2, 4 * SUMS]);
    let packed = halves(packed);
    if fresh {
        for (rows, packed) in blocks(rows.clone()).zip(packed.chunks_exact_mut(block)) {
            for (slot, row) in rows.enumerate() {
                lay(s, job.x.row(row), packed, slot);
            }
        }
    }
    let Some(sums) = sums.first_chunk_mut() else { return };
    let tiles = Tiles { s, job, weights, steps, end: job.w.out_features().min((strip + 1) * STRIP) };
    let mut left = blocks(rows).zip(packed.chunks_exact(block));
    while let Some((rows, packed)) = left.next() {
        let next = if rows.len() == TILE { left.next() } else { None };
        // SAFETY: blocks are packed above, for `steps`; the rest is the caller's promise.
        unsafe {
            match next {
                Some((next, packed_next)) => {
                    let x = [packed.as_ptr(), packed_next.as_ptr()];
                    tiles.two_blocks(strip * STRIP, &[rows, next], x, sums);
                }
                None => tiles.one_block(strip * STRIP, rows, packed.as_ptr(), sums),
            }
        }
    }
}

/// Rows in blocks of a tile, the last one with what is left.
fn blocks(rows: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = rows.end;
    rows.step_by(TILE).map(move |first| first..end.min(first + TILE))
}

/// Rounds a row to bf16 and lays it into its slot of a block; what a last step lacks is zero.
#[inline(always)]
pub(in crate::ops) fn lay<S: Simd>(s: S, row: &[f32], block: &mut [bf16], slot: usize) {
    let steps = block.chunks_exact_mut(TILE * DEPTH);
    for (step, inputs) in steps.zip(row.chunks(DEPTH)) {
        let to = &mut step[slot * DEPTH..(slot + 1) * DEPTH];
        for (i, to) in to.chunks_exact_mut(S::LANES).enumerate() {
            let inputs = inputs.get(i * S::LANES..).unwrap_or_default();
            // SAFETY: the chunk is as long as a vector.
            unsafe { s.store_bf16(to.as_mut_ptr(), s.load_some(&inputs[..inputs.len().min(S::LANES)])) };
        }
    }
}

/// Twice as many bf16 in the place of f32.
pub(in crate::ops) fn halves(words: &mut [f32]) -> &mut [bf16] {
    // SAFETY: the same memory, with less alignment; any bits are a bf16, and any bits are an f32.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), 2 * words.len()) }
}

struct Tiles<'a, S> {
    s: S,
    job: &'a Job<'a>,
    weights: &'a [bf16],
    steps: usize,
    /// End of the strip's outputs.
    end: usize,
}

impl<S: Simd> Tiles<'_, S> {
    /// # Safety
    /// As for [`compute`]; `x` is the packed block of `rows`, the outputs from `first` on are a strip.
    #[inline(always)]
    unsafe fn one_block(&self, first: usize, rows: Range<usize>, x: *const bf16, sums: &mut [f32; 4 * SUMS]) {
        // SAFETY: panels are slices of `steps` steps.
        unsafe {
            let panels = [self.panel(first), self.panel(first + PANEL)].map(<[bf16]>::as_ptr);
            by_two_panels(rows.len(), self.steps, x, panels, sums);
            self.finish(&rows, first, &sums[..2 * SUMS]);
            self.finish(&rows, first + PANEL, &sums[2 * SUMS..]);
        }
    }

    /// # Safety
    /// As for [`compute`]; `x` are the packed blocks of `rows`, the outputs from `first` on are a strip.
    #[inline(always)]
    unsafe fn two_blocks(
        &self,
        first: usize,
        [full, other]: &[Range<usize>; 2],
        x: [*const bf16; 2],
        sums: &mut [f32; 4 * SUMS],
    ) {
        for first in (first..self.end).step_by(PANEL) {
            // SAFETY: the panel is a slice of `steps` steps.
            unsafe {
                two_blocks(other.len(), self.steps, x, self.panel(first).as_ptr(), sums);
                self.finish(full, first, &sums[..2 * SUMS]);
                self.finish(other, first, &sums[2 * SUMS..]);
            }
        }
    }

    /// The panel of an output; beyond the last one the last, whose sums are not written again.
    fn panel(&self, output: usize) -> &[bf16] {
        let len = self.job.w.panel_len();
        let panel = (output / PANEL).min(self.weights.len() / len - 1);
        &self.weights[panel * len..(panel + 1) * len]
    }

    /// Writes the two tiles of a panel.
    ///
    /// # Safety
    /// No other worker has these outputs.
    #[inline(always)]
    unsafe fn finish(&self, rows: &Range<usize>, first: usize, tiles: &[f32]) {
        for (tile, first) in tiles.chunks_exact(SUMS).zip([first, first + TILE]) {
            for (row, sums) in rows.clone().zip(tile.chunks_exact(TILE)) {
                for (sums, output) in sums.chunks_exact(S::LANES).zip((first..self.end).step_by(S::LANES)) {
                    // SAFETY: a vector of sums; outputs are the caller's promise.
                    unsafe {
                        let len = S::LANES.min(self.end - output);
                        self.job.finish(self.s, row, output, len, self.s.load(sums.as_ptr()));
                    }
                }
            }
        }
    }
}
