//! int8 in AMX's tiles, for blocks of 16 rows: the same sums, in the same order, as `simd/int8.rs` makes of fewer rows.
//!
//! A step of a block is `[2][TILE][32]` bytes of activations, their scales `[2][TILE]`, and `[2][TILE]` of what the weights' offset
//! added.

use super::amx_strip::{Tiles, blocks};
use super::strip::Strips;
use crate::memory::{BLOCK, BLOCKS, PANEL};
use crate::simd::amx::{ForBytes, SUMS, TILE, products_of_bytes};
use crate::simd::{Simd, one_of, quantise};

/// Fewest rows that go in tiles: with fewer, more than half of a block would be padding. Measured level with vectors from here to 64.
pub(super) const LEAST_ROWS: usize = 9;
/// Words of a step: bytes, scales, offsets.
const WORDS: usize = BLOCKS * TILE * (BLOCK / 4 + 2);
const SCALES: usize = BLOCKS * TILE * BLOCK / 4;
const OFFSETS: usize = SCALES + BLOCKS * TILE;
/// Rows of words that a step of weights has: bytes, and the scales.
const ROWS: usize = BLOCKS * BLOCK / 4 + 1;
/// Steps of a panel that all rows go through before the next: they stay in the cache.
const RUN: usize = 16;

/// Computes strips for some rows; packs their activations first if they are `fresh`.
///
/// # Safety
/// `S::TILES` is true; `weights` are those of the job's matrix. No other worker has the strips.
#[inline(always)]
pub(super) unsafe fn compute<S: Simd>(s: S, strips: Strips<'_>, weights: &[u32]) {
    let Strips { job, rows, outputs, fresh, scratch } = strips;
    let steps = job.w.in_features().div_ceil(BLOCKS * BLOCK);
    let count = rows.len().div_ceil(TILE);
    let [packed, sums, room] = scratch.floats([count * steps * WORDS, count * 2 * SUMS, job.w.in_features()]);
    if fresh {
        for (rows, packed) in blocks(rows.clone(), TILE).zip(packed.chunks_exact_mut(steps * WORDS)) {
            packed.fill(0.0);
            for (slot, row) in rows.enumerate() {
                lay(s, job.row(s, row, room), packed, slot);
            }
        }
    }
    let tiles = Tiles { s, job, weights, end: outputs.end };
    // SAFETY: `TILES` is true, and tiles are used for nothing else below.
    let _set_up = unsafe { ForBytes::set_up() };
    for first in outputs.step_by(PANEL) {
        tiles.soon_written(&rows, first..tiles.end.min(first + PANEL));
        sums.fill(0.0);
        for step in (0..steps).step_by(RUN) {
            let end = steps.min(step + RUN);
            let weights = &tiles.panel(first)[step * ROWS * PANEL..end * ROWS * PANEL];
            for (packed, sums) in packed.chunks_exact(steps * WORDS).zip(sums.chunks_exact_mut(2 * SUMS)) {
                for (side, sums) in sums.chunks_exact_mut(SUMS).enumerate() {
                    // SAFETY: tiles are set up; both have whole steps.
                    unsafe { add(s, &packed[step * WORDS..end * WORDS], &weights[side * TILE..], sums) };
                }
            }
        }
        for (rows, sums) in blocks(rows.clone(), TILE).zip(sums.chunks_exact(2 * SUMS)) {
            // SAFETY: outputs are the caller's promise.
            unsafe { tiles.finish(&rows, first, sums) };
        }
    }
}

/// Lays a row into its slot of a block.
#[inline(always)]
fn lay<S: Simd>(s: S, row: &[f32], block: &mut [f32], slot: usize) {
    for (step, inputs) in block.chunks_exact_mut(WORDS).zip(row.chunks(BLOCKS * BLOCK)) {
        for block in 0..BLOCKS {
            let quantised = quantise(s, inputs.get(block * BLOCK..).unwrap_or_default());
            let at = block * TILE + slot;
            let bytes = step[at * BLOCK / 4..].iter_mut().zip(quantised.bytes.as_chunks::<4>().0);
            bytes.for_each(|(word, four)| *word = f32::from_bits(u32::from_le_bytes(*four)));
            step[SCALES + at] = quantised.scale;
            step[OFFSETS + at] = f32::from_bits((-128 * quantised.sum).cast_unsigned());
        }
    }
}

/// Adds some steps of 16 outputs to the sums of a block of rows.
///
/// # Safety
/// `S::TILES` is true, tiles are [`ForBytes`]; `packed` are whole steps, `weights` as many of them, from the first of the outputs on.
#[inline(always)]
unsafe fn add<S: Simd>(s: S, packed: &[f32], weights: &[u32], sums: &mut [f32]) {
    let mut dots = [[[0; SUMS]; BLOCKS]; 2];
    let mut total = [s.splat(0.0); TILE];
    for (total, sums) in total.iter_mut().zip(sums.chunks_exact(TILE)) {
        *total = s.load_some(sums);
    }
    let steps = packed.len() / WORDS;
    // A step's dot products are used while those of the next are made: what a tile has just stored is slow to load.
    for i in 0..=steps {
        if i < steps {
            // SAFETY: a step of each, as laid out.
            unsafe {
                let weights = weights[i * ROWS * PANEL..].as_ptr();
                products_of_bytes(packed[i * WORDS..].as_ptr().cast(), weights, &mut dots[i % 2]);
                for line in 0..ROWS {
                    s.prefetch(weights.wrapping_add(AHEAD + line * PANEL));
                }
            }
        }
        let Some(before) = i.checked_sub(1) else { continue };
        let packed = &packed[before * WORDS..][..WORDS];
        // SAFETY: the last row of words of that step.
        let pairs = unsafe { s.load_u32(weights[(before * ROWS + ROWS - 1) * PANEL..].as_ptr()) };
        for (block, dots) in dots[before % 2].iter().enumerate() {
            let scale = one_of(s, pairs, block);
            let scales = &packed[SCALES + block * TILE..][..TILE];
            let offsets = &packed[OFFSETS + block * TILE..][..TILE];
            for (r, total) in total.iter_mut().enumerate() {
                // SAFETY: a vector of 16 dot products.
                let dot = unsafe { s.load_u32(dots[r * TILE..].as_ptr()) };
                let dot = s.to_f32(s.add_u32(dot, s.splat_u32(offsets[r].to_bits())));
                *total = s.fused(dot, s.mul(scale, s.splat(scales[r])), *total);
            }
        }
    }
    for (total, sums) in total.iter().zip(sums.chunks_exact_mut(TILE)) {
        s.store_some(sums, *total);
    }
}

/// Words that weights are asked for ahead of their use.
const AHEAD: usize = 8 * 1024 / 4;
