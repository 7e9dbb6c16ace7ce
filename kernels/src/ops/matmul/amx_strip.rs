//! Strips of outputs in AMX's tiles, and bf16 there: blocks of 16 rows, two of them at a time where there are as many.

use super::strip::{Job, Strips};
use crate::memory::{DEPTH, PANEL};
use crate::simd::Simd;
use crate::simd::amx::{SUMS, Soon, TILE, TileShapes, one_block, two_blocks};
use half::bf16;
use std::ops::Range;

/// Computes strips for some rows; packs their activations first if they are `fresh`.
///
/// # Safety
/// `S::TILES` is true; `weights` are those of the job's matrix. No other worker has the strips.
#[inline(always)]
pub(super) unsafe fn compute<S: Simd>(s: S, strips: Strips<'_>, weights: &[bf16]) {
    let Strips { job, rows, outputs, fresh, scratch, .. } = strips;
    let steps = job.w.in_features().div_ceil(DEPTH);
    let block = steps * TILE * DEPTH;
    let pairs = rows.len().saturating_sub(TILE).div_ceil(2 * TILE);
    let packed_len = rows.len().div_ceil(TILE) * block / 2;
    let sums = 2 * SUMS * if pairs == 0 { GROUP } else { 2 * pairs };
    let [packed, sums, room] = scratch.floats([packed_len, sums, job.w.in_features()]);
    let packed = halves(packed);
    if fresh {
        for (rows, packed) in blocks(rows.clone(), TILE).zip(packed.chunks_exact_mut(block)) {
            for (slot, row) in rows.enumerate() {
                lay(s, job.row(s, row, room), packed, slot);
            }
        }
    }
    let tiles = Tiles { s, job, weights, end: outputs.end };
    let alone = rows.start + pairs * 2 * TILE..rows.end;
    let last = packed[pairs * 2 * block..].as_ptr();
    // SAFETY: blocks are packed above, for `steps`; the rest is the caller's promise.
    unsafe {
        if pairs == 0 {
            return tiles.alone(outputs, &alone, last, sums.as_chunks_mut().0);
        }
        for first in outputs.step_by(PANEL) {
            tiles.pairs(first, rows.start..rows.end.min(alone.start), packed, sums.as_chunks_mut().0);
            if !alone.is_empty() {
                let outputs = first..tiles.end.min(first + PANEL);
                tiles.alone(outputs, &alone, last, &mut sums.as_chunks_mut().0[..1]);
            }
        }
    }
}

/// Panels at most whose sums a block has at once: they, and the outputs that they become, stay in the nearest cache.
const GROUP: usize = 4;
/// Steps of a panel that all rows go through before the next: they stay in the cache.
const RUN: usize = 32;
/// Weights of a line of memory, and lines of a step of a panel.
const LINE: usize = 64 / size_of::<bf16>();
const STEP_LINES: usize = PANEL * DEPTH / LINE;

/// Rows in blocks, the last one with what is left.
pub(super) fn blocks(rows: Range<usize>, size: usize) -> impl Iterator<Item = Range<usize>> {
    let end = rows.end;
    rows.step_by(size).map(move |first| first..end.min(first + size))
}

/// Rounds a row to bf16 and lays it into its slot of a block; what a last step lacks is zero.
#[inline(always)]
pub(crate) fn lay<S: Simd>(s: S, row: &[f32], block: &mut [bf16], slot: usize) {
    let steps = block.chunks_exact_mut(TILE * DEPTH);
    for (step, inputs) in steps.zip(row.chunks(DEPTH)) {
        let to = &mut step[slot * DEPTH..(slot + 1) * DEPTH];
        if inputs.len() == DEPTH {
            for (to, inputs) in to.chunks_exact_mut(S::LANES).zip(inputs.chunks_exact(S::LANES)) {
                // SAFETY: both are as long as a vector.
                unsafe { s.store_bf16(to.as_mut_ptr(), s.load(inputs.as_ptr())) };
            }
            continue;
        }
        for (i, to) in to.chunks_exact_mut(S::LANES).enumerate() {
            let inputs = inputs.get(i * S::LANES..).unwrap_or_default();
            // SAFETY: the chunk is as long as a vector.
            unsafe { s.store_bf16(to.as_mut_ptr(), s.load_some(&inputs[..inputs.len().min(S::LANES)])) };
        }
    }
}

/// Twice as many bf16 in the place of f32.
pub(crate) fn halves(words: &mut [f32]) -> &mut [bf16] {
    // SAFETY: the same memory, with less alignment; any bits are a bf16, and any bits are an f32.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), 2 * words.len()) }
}

/// Strips of outputs, and the matrix's weights.
pub(super) struct Tiles<'a, S, W> {
    pub(super) s: S,
    pub(super) job: &'a Job<'a>,
    pub(super) weights: &'a [W],
    /// End of the strips' outputs.
    pub(super) end: usize,
}

impl<S: Simd> Tiles<'_, S, bf16> {
    /// Steps of a panel.
    fn steps(&self) -> usize {
        self.job.w.panel_len() / (PANEL * DEPTH)
    }

    /// One block of rows times the panels of some outputs, as many at a time as there are sums.
    ///
    /// # Safety
    /// As for [`compute`]; `x` is the packed block, of one row at least.
    #[inline(always)]
    unsafe fn alone(
        &self,
        outputs: Range<usize>,
        rows: &Range<usize>,
        x: *const bf16,
        sums: &mut [[f32; 2 * SUMS]],
    ) {
        // SAFETY: `TILES` is true, and tiles are used for nothing else below.
        let _shapes = unsafe { TileShapes::of_block(rows.len()) };
        for outputs in blocks(outputs, sums.len() * PANEL) {
            let sums = &mut sums[..outputs.len().div_ceil(PANEL)];
            let panels = self.panels(outputs.start, sums.len()).as_ptr();
            // SAFETY: panels are slices of `steps` steps, one behind the other.
            unsafe { one_block(self.steps(), x, panels, sums) };
            for (sums, first) in sums.iter().zip(outputs.step_by(PANEL)) {
                // SAFETY: outputs are the caller's promise.
                unsafe { self.finish(rows, first, sums) };
            }
        }
    }

    /// Rows in pairs of blocks times a panel, some steps of it at a time.
    ///
    /// # Safety
    /// As for [`compute`]; `x` are the packed blocks; the second of a pair has at least one row.
    #[inline(always)]
    unsafe fn pairs(&self, first: usize, rows: Range<usize>, x: &[bf16], sums: &mut [[f32; 4 * SUMS]]) {
        let all_steps = self.steps();
        let block = all_steps * TILE * DEPTH;
        let panel = self.panel(first);
        self.job.soon_written(self.s, &rows, first..self.end.min(first + PANEL));
        let pairs = || blocks(rows.clone(), 2 * TILE);
        sums.as_flattened_mut().fill(0.0);
        for step in (0..all_steps).step_by(RUN) {
            let steps = RUN.min(all_steps - step);
            let weights = panel[step * PANEL * DEPTH..].as_ptr();
            // The next run is asked for meanwhile, by each pair its part; where there is one pair alone, what is a few steps ahead.
            let ahead = if sums.len() > 1 { steps } else { 4 };
            let lines = STEP_LINES.div_ceil(sums.len());
            let mut soon = Soon { from: weights.wrapping_add(ahead * PANEL * DEPTH), lines };
            for ((rows, x), sums) in pairs().zip(x.chunks(2 * block)).zip(&mut *sums) {
                let x = [&x[step * TILE * DEPTH..], &x[block + step * TILE * DEPTH..]].map(<[bf16]>::as_ptr);
                // SAFETY: blocks and panel have so many steps left.
                unsafe {
                    two_blocks(rows.len() - TILE, steps, x, weights, soon, sums);
                }
                soon.from = soon.from.wrapping_add(steps * lines * LINE);
            }
        }
        for (rows, sums) in pairs().zip(sums) {
            // SAFETY: outputs are the caller's promise.
            unsafe {
                self.finish(&(rows.start..rows.start + TILE), first, &sums[..2 * SUMS]);
                self.finish(&(rows.start + TILE..rows.end), first, &sums[2 * SUMS..]);
            }
        }
    }
}

impl<S: Simd, W> Tiles<'_, S, W> {
    /// The panel of an output.
    pub(super) fn panel(&self, output: usize) -> &[W] {
        self.panels(output, 1)
    }

    /// So many panels, from that of an output on.
    fn panels(&self, output: usize, count: usize) -> &[W] {
        let len = self.job.w.panel_len();
        let first = output / PANEL;
        &self.weights[first * len..(first + count) * len]
    }

    /// Writes the two tiles of a panel, of as many rows as there is room for.
    ///
    /// # Safety
    /// No other worker has these outputs.
    #[inline(always)]
    pub(super) unsafe fn finish(&self, rows: &Range<usize>, first: usize, tiles: &[f32]) {
        for (tile, first) in tiles.chunks_exact(tiles.len() / 2).zip([first, first + TILE]) {
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
