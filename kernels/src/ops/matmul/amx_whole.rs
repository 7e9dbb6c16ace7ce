//! Whole-numbered weights in AMX's tiles: the same sums, in the same order, as `simd/int8.rs` makes in vectors.
//!
//! All blocks of rows go through a run of a panel before the next one. Its weights become signed bytes once for all of them: for each half
//! of the panel `[step][2][8][16]` words, a tile for each block of inputs. A step of a block of `R` rows is `[2][R][32]` bytes of activations,
//! their scales `[2][R]`, and `[2][R]` of what is [`Held::beside`] them.
//!
//! Each tile of dot products goes through memory to be scaled, and tiles and vectors hardly work at the same time: many rows take some 0.7 of
//! the time that vectors take.

use super::amx_strip::{Tiles, blocks};
use super::strip::{Job, Strips};
use crate::memory::{BLOCK, BLOCKS, PANEL};
use crate::simd::amx::{TILE, TileShapes, products_of_bytes};
use crate::simd::{Beside, DotWhole, Held, Product, Simd, add_block, quantise};

/// Fewest rows that go in tiles: fewer are one block of vectors, which is about as fast.
pub(super) const LEAST_ROWS: usize = 13;
/// Steps of a run: its tiles and a block's activations for it stay in the nearest cache.
const RUN: usize = 4;
/// Words of a block of inputs: four bytes each.
const WORDS: usize = BLOCK / 4;
/// Words of a step's tiles for half of a panel.
const TILES: usize = BLOCKS * WORDS * TILE;

/// Computes strips for some rows; packs their activations first if they are `fresh`.
///
/// # Safety
/// `S::TILES` is true; `weights` are those of the job's matrix, held as `H`. No other worker has the strips.
#[inline(always)]
pub(super) unsafe fn compute<S: Simd, H: Held>(s: S, strips: Strips<'_>, weights: &[u32]) {
    let rows = strips.rows.len();
    // SAFETY: the caller's promise.
    unsafe {
        // The blocks that they would be evenly; what a last one lacks is computed all the same.
        match rows.div_ceil(rows.div_ceil(TILE)) {
            ..=12 => in_blocks::<S, H, 12>(s, strips, weights),
            _ => in_blocks::<S, H, TILE>(s, strips, weights),
        }
    }
}

/// [`compute`] in blocks of `R` rows.
///
/// # Safety
/// As for [`compute`].
#[inline(always)]
unsafe fn in_blocks<S: Simd, H: Held, const R: usize>(s: S, strips: Strips<'_>, weights: &[u32]) {
    debug_assert_eq!(S::LANES, TILE);
    let Strips { job, rows, outputs, fresh, scratch, .. } = strips;
    let steps = job.w.in_features().div_ceil(BLOCKS * BLOCK);
    let (words, count) = (step_words(R), rows.len().div_ceil(R));
    let [packed, sums, room, factors, scales, dots] = scratch.floats([
        count * steps * words,
        count * R * PANEL,
        job.w.in_features(),
        RUN * 2 * TILES,
        RUN * 2 * SCALES,
        2 * BLOCKS * TILE * TILE,
    ]);
    if fresh {
        for (rows, packed) in blocks(rows.clone(), R).zip(packed.chunks_exact_mut(steps * words)) {
            packed.fill(0.0);
            for (slot, row) in rows.enumerate() {
                lay::<S, H, R>(s, job, row, room, packed, slot);
            }
        }
    }
    let tiles = Tiles { s, job, weights, end: outputs.end };
    let step_len = <DotWhole<H> as Product<S>>::WEIGHTS * PANEL;
    // SAFETY: `TILES` is true, and tiles are used for nothing else below.
    let _shapes = unsafe { TileShapes::of_bytes(R) };
    for first in outputs.step_by(PANEL) {
        job.soon_written(s, &rows, first..tiles.end.min(first + PANEL));
        sums.fill(0.0);
        for step in (0..steps).step_by(RUN) {
            let run = RUN.min(steps - step);
            let weights = &tiles.panel(first)[step * step_len..(step + run) * step_len];
            for (i, weights) in weights.chunks_exact(step_len).enumerate() {
                // SAFETY: it is a step; there is room for a run.
                unsafe { unpack::<S, H>(s, weights, i, factors, scales) };
            }
            // The next run is asked for meanwhile, by each half of each block its part.
            let mut ask = weights.as_ptr_range().end;
            let lines = size_of_val(weights).div_ceil(64).div_ceil(2 * count * run);
            for (packed, sums) in packed.chunks_exact(steps * words).zip(sums.chunks_exact_mut(R * PANEL)) {
                for (half, sums) in sums.chunks_exact_mut(R * TILE).enumerate() {
                    let part = Part {
                        packed: &packed[step * words..(step + run) * words],
                        factors: &factors[half * RUN * TILES..][..run * TILES],
                        scales: &scales[half * RUN * SCALES..][..run * SCALES],
                        ask,
                        lines,
                    };
                    // SAFETY: tiles are set up for `R` rows.
                    unsafe { part.add::<S, H, R>(s, dots, sums) };
                    ask = ask.wrapping_add(lines * run * 64 / size_of::<u32>());
                }
            }
        }
        for (rows, sums) in blocks(rows.clone(), R).zip(sums.chunks_exact(R * PANEL)) {
            // SAFETY: outputs are the caller's promise.
            unsafe { tiles.finish(&rows, first, sums) };
        }
    }
}

/// Words of a step of so many rows.
const fn step_words(rows: usize) -> usize {
    BLOCKS * rows * (WORDS + 2)
}

/// Numbers that a step has for half of a panel: scales of each block of inputs, and what is beside them.
const SCALES: usize = 2 * BLOCKS * TILE;

/// Quantises a row and lays it into its slot of a block.
#[inline(always)]
fn lay<S: Simd, H: Held, const R: usize>(
    s: S,
    job: &Job<'_>,
    row: usize,
    room: &mut [f32],
    packed: &mut [f32],
    slot: usize,
) {
    let row = job.row(s, row, room);
    for (step, inputs) in packed.chunks_exact_mut(step_words(R)).zip(row.chunks(BLOCKS * BLOCK)) {
        for block in 0..BLOCKS {
            let quantised = quantise(s, inputs.get(block * BLOCK..).unwrap_or_default());
            let at = block * R + slot;
            let bytes = step[at * WORDS..].iter_mut().zip(quantised.bytes.as_chunks::<4>().0);
            bytes.for_each(|(word, four)| *word = f32::from_bits(u32::from_le_bytes(*four)));
            step[BLOCKS * R * WORDS + at] = quantised.scale;
            step[BLOCKS * R * (WORDS + 1) + at] = f32::from_bits(H::beside::<S>(&quantised));
        }
    }
}

/// Makes tiles of signed bytes, and f32 scales, of a step of weights: step `i` of a run.
///
/// # Safety
/// `weights` are a step; `factors` and `scales` have room for a run.
#[inline(always)]
unsafe fn unpack<S: Simd, H: Held>(s: S, weights: &[u32], i: usize, factors: &mut [f32], scales: &mut [f32]) {
    for half in 0..2 {
        let weights = weights[half * TILE..].as_ptr();
        let factors = factors[(half * RUN + i) * TILES..][..TILES].as_mut_ptr();
        let scales = scales[(half * RUN + i) * SCALES..][..SCALES].as_mut_ptr();
        // SAFETY: all rows of words are the step's; a vector is half of a panel's row.
        unsafe {
            for word in 0..BLOCKS * WORDS {
                let four = s.load_u32(weights.add(H::row(word) * PANEL));
                let signed = H::signed(s, four, word / WORDS);
                s.store_u32(factors.add(word * TILE).cast(), signed);
            }
            for block in 0..BLOCKS {
                let pairs = s.load_u32(weights.add(H::ROWS * PANEL));
                s.store(scales.add(block * TILE), H::scales(s, pairs, block));
                if !matches!(H::BESIDE, Beside::Nothing) {
                    let pairs = s.load_u32(weights.add((H::ROWS + 1) * PANEL));
                    s.store(scales.add((BLOCKS + block) * TILE), H::beside_scales(s, pairs, block));
                }
            }
        }
    }
}

/// A run of a block of rows, for half of a panel.
struct Part<'a> {
    packed: &'a [f32],
    factors: &'a [f32],
    scales: &'a [f32],
    /// What is asked for beside each step: so many lines from here on.
    ask: *const u32,
    lines: usize,
}

impl Part<'_> {
    /// Adds it to the sums; `dots` has room for the products of two steps.
    ///
    /// # Safety
    /// Tiles are [`TileShapes::of_bytes`] of `R` rows.
    #[inline(always)]
    unsafe fn add<S: Simd, H: Held, const R: usize>(&self, s: S, dots: &mut [f32], sums: &mut [f32]) {
        let mut total = [s.splat(0.0); R];
        for (total, sums) in total.iter_mut().zip(sums.chunks_exact(TILE)) {
            *total = s.load_some(sums);
        }
        let steps = self.factors.len() / TILES;
        let (even, odd) = dots.split_at_mut(BLOCKS * TILE * TILE);
        let dots = [even, odd].map(<[f32]>::as_mut_ptr);
        let mut ask = self.ask;
        // A step's dot products are used while those of the next are made: what a tile has just stored is slow to load.
        for i in 0..=steps {
            if i < steps {
                let packed = self.packed[i * step_words(R)..][..step_words(R)].as_ptr();
                let factors = self.factors[i * TILES..][..TILES].as_ptr();
                // SAFETY: a step of each; the tiles are the caller's promise.
                unsafe { products_of_bytes(R, packed.cast(), factors.cast(), dots[i % 2].cast()) };
                for _ in 0..self.lines {
                    s.prefetch(ask);
                    ask = ask.wrapping_add(64 / size_of::<u32>());
                }
            }
            let Some(before) = i.checked_sub(1) else { continue };
            let of_rows = &self.packed[before * step_words(R) + BLOCKS * R * WORDS..][..2 * BLOCKS * R];
            let scales = self.scales[before * SCALES..][..SCALES].as_ptr();
            for block in 0..BLOCKS {
                // SAFETY: vectors of the step's scales, and of its dot products, which are whole tiles.
                unsafe {
                    let scale = s.load(scales.add(block * TILE));
                    let beside = match H::BESIDE {
                        Beside::Nothing => scale,
                        _ => s.load(scales.add((BLOCKS + block) * TILE)),
                    };
                    for (r, total) in total.iter_mut().enumerate() {
                        let dot = s.load_u32(dots[before % 2].add((block * TILE + r) * TILE).cast());
                        let at = block * R + r;
                        let of_row = [s.splat(of_rows[at]), s.splat(of_rows[BLOCKS * R + at])];
                        *total = add_block::<S, H>(s, *total, dot, [scale, beside], of_row);
                    }
                }
            }
        }
        for (total, sums) in total.iter().zip(sums.chunks_exact_mut(TILE)) {
            s.store_some(sums, *total);
        }
    }
}
