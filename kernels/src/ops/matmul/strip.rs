//! A strip of outputs for a block of rows: packs activations, chooses kernels by the number of rows, and writes the
//! results.
//!
//! Activations are packed in row blocks of up to 14 rows, and inside a block the rows' words for one input lie side by
//! side.

use crate::lane::Scratch;
use crate::memory::{Matrix, PANEL, SharedRows, View};
use crate::simd::{AHEAD, Product, Simd, multiply};
use std::ops::Range;

/// What becomes of the old content of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// Overwritten.
    Replace,
    /// Added to.
    Add,
}

/// Outputs of a strip, what one worker does at a time: two panels.
pub(super) const STRIP: usize = 2 * PANEL;

/// A matmul.
pub(super) struct Job<'a> {
    pub(super) x: View<'a>,
    pub(super) w: &'a Matrix,
    pub(super) bias: Option<&'a [f32]>,
    pub(super) out: SharedRows<'a>,
    pub(super) write: Write,
}

impl Job<'_> {
    /// Adds bias and old value to `len` sums and stores them.
    ///
    /// # Safety
    /// No other worker has these outputs.
    #[inline(always)]
    pub(super) unsafe fn finish<S: Simd>(&self, s: S, row: usize, output: usize, len: usize, mut sum: S::F) {
        // SAFETY: the caller's promise.
        let out = unsafe { self.out.part(row, output, len) };
        if let Some(bias) = self.bias {
            sum = s.add(sum, s.load_some(&bias[output..output + len]));
        }
        if self.write == Write::Add {
            sum = s.add(sum, s.load_some(out));
        }
        s.store_some(out, sum);
    }
}

/// One strip for one slab of rows.
pub(super) struct Strip<'a> {
    pub(super) job: &'a Job<'a>,
    pub(super) rows: Range<usize>,
    pub(super) strip: usize,
    /// Whether the activations of these rows must be packed first.
    pub(super) fresh: bool,
    pub(super) scratch: &'a mut Scratch,
}

/// Computes a strip for some rows; packs their activations first if they are `fresh`.
///
/// # Safety
/// `weights` are those of the job's matrix, packed for `Q`; [`crate::simd::DotBf16`] needs `S::DOTS`. No other worker has the strip.
#[inline(always)]
pub(super) unsafe fn compute<S: Simd, Q: Product<S>>(s: S, strip: Strip<'_>, weights: &[Q::Weight]) {
    let Strip { job, rows, strip, fresh, scratch } = strip;
    let steps = job.w.in_features().div_ceil(Q::INPUTS);
    let words_per_row = steps * Q::WORDS;
    let [packed] = scratch.floats([packed_len::<S, Q>(rows.len(), words_per_row)]);
    if fresh {
        pack::<S, Q>(s, job.x, rows.clone(), words_per_row, packed);
    }
    let tile = Tiles { s, job, weights, steps, strip };
    let (mut row, mut start) = (rows.start, 0);
    while row < rows.end {
        let size = block_size::<S, Q>(rows.end - row);
        let rows = row..rows.end.min(row + size);
        let block = &packed[start..start + size * words_per_row];
        // SAFETY: `block` is `steps` steps of `size` rows; the strip is this worker's.
        unsafe {
            if S::REGISTERS >= 32 && S::LANES == 4 {
                // Short vectors: with few rows a whole panel at once, so that its memory is read in one run.
                match size {
                    1 => tile.strip::<Q, 1, 1, 8>(block, rows),
                    2 => tile.strip::<Q, 2, 1, 8>(block, rows),
                    4 => tile.strip::<Q, 4, 1, 4>(block, rows),
                    6 => tile.strip::<Q, 6, 1, 4>(block, rows),
                    8 => tile.strip::<Q, 8, 1, 2>(block, rows),
                    12 => tile.strip::<Q, 12, 1, 2>(block, rows),
                    _ => tile.strip::<Q, 14, 1, 2>(block, rows),
                }
            } else if S::REGISTERS >= 32 {
                match size {
                    1 => tile.strip::<Q, 1, 2, 2>(block, rows),
                    2 => tile.strip::<Q, 2, 2, 2>(block, rows),
                    4 => tile.strip::<Q, 4, 2, 2>(block, rows),
                    6 => tile.strip::<Q, 6, 1, 2>(block, rows),
                    8 => tile.strip::<Q, 8, 1, 2>(block, rows),
                    12 => tile.strip::<Q, 12, 1, 2>(block, rows),
                    _ => tile.strip::<Q, 14, 1, 2>(block, rows),
                }
            } else {
                match size {
                    1 => tile.strip::<Q, 1, 1, 4>(block, rows),
                    2 => tile.strip::<Q, 2, 1, 4>(block, rows),
                    4 => tile.strip::<Q, 4, 1, 2>(block, rows),
                    _ => tile.strip::<Q, 6, 1, 2>(block, rows),
                }
            }
        }
        (row, start) = (row + size, start + size * words_per_row);
    }
}

/// The tiles of a strip: as many outputs as fit in registers together.
struct Tiles<'a, S, W> {
    s: S,
    job: &'a Job<'a>,
    weights: &'a [W],
    steps: usize,
    strip: usize,
}

impl<S: Simd, W: Copy> Tiles<'_, S, W> {
    /// All tiles of `P` panels by `V` vectors, for a block of `R` packed rows of which `rows` are real.
    ///
    /// # Safety
    /// `packed` is `steps` steps of `R` rows; `weights` are packed for `Q`; the strip is this worker's alone.
    #[inline(always)]
    unsafe fn strip<Q: Product<S, Weight = W>, const R: usize, const P: usize, const V: usize>(
        &self,
        packed: &[f32],
        rows: Range<usize>,
    ) {
        let outputs = self.job.w.out_features();
        let panel_len = self.job.w.panel_len();
        let last_panel = outputs.div_ceil(PANEL) - 1;
        let end = outputs.min((self.strip + 1) * STRIP);
        let tile_outputs = if P == 1 { V * S::LANES } else { P * PANEL };
        let weights_per_word = size_of::<u32>() / size_of::<W>();
        let mut first = self.strip * STRIP;
        while first < end {
            let mut starts = [self.weights.as_ptr(); P];
            for (p, start) in starts.iter_mut().enumerate() {
                // Beyond the last panel the last one is computed again, and not written.
                let panel = (first / PANEL + p).min(last_panel);
                let weights = &self.weights[panel * panel_len..(panel + 1) * panel_len];
                *start = weights[first % PANEL * weights_per_word..].as_ptr();
            }
            // SAFETY: the panels hold `steps` steps (sliced above), `packed` too (the caller's promise).
            let sums = unsafe {
                multiply::<S, Q, R, P, V>(
                    self.s,
                    self.steps,
                    packed.as_ptr(),
                    R,
                    starts,
                    PANEL * Q::WEIGHTS,
                    AHEAD,
                )
            };
            for (sums, row) in sums.iter().zip(rows.clone()) {
                for (p, sums) in sums.iter().enumerate() {
                    for (v, sum) in sums.iter().enumerate() {
                        let output = first + p * PANEL + v * S::LANES;
                        if output < end {
                            // SAFETY: this strip's outputs are this worker's.
                            unsafe { self.job.finish(self.s, row, output, S::LANES.min(end - output), *sum) };
                        }
                    }
                }
            }
            first += tile_outputs;
        }
    }
}

/// Sizes of row blocks there are kernels for: as many as the machine has registers for.
fn block_sizes<S: Simd, Q: Product<S>>() -> &'static [usize] {
    let all: &[usize] = if S::REGISTERS < 32 { &[1, 2, 4, 6] } else { &[1, 2, 4, 6, 8, 12, 14] };
    let most = if S::REGISTERS < 32 { 6 } else { Q::MOST_ROWS };
    &all[..all.iter().filter(|size| **size <= most).count()]
}

/// Size of the next block when `rows` are left: even parts of as few blocks as there must be, the size rounded up to one
/// there is a kernel for. A block may be larger than the rows left: the rest is padding.
fn block_size<S: Simd, Q: Product<S>>(rows: usize) -> usize {
    let sizes = block_sizes::<S, Q>();
    let largest = sizes[sizes.len() - 1];
    let wanted = rows.div_ceil(rows.div_ceil(largest));
    sizes.iter().copied().find(|size| *size >= wanted).unwrap_or(largest)
}

/// Words the packed `rows` take.
fn packed_len<S: Simd, Q: Product<S>>(rows: usize, words_per_row: usize) -> usize {
    let mut left = rows;
    let mut len = 0;
    while left > 0 {
        let size = block_size::<S, Q>(left);
        len += size * words_per_row;
        left = left.saturating_sub(size);
    }
    len
}

/// Packs `rows` of `x` for `Q`, block after block.
#[inline(always)]
fn pack<S: Simd, Q: Product<S>>(s: S, x: View<'_>, rows: Range<usize>, words_per_row: usize, to: &mut [f32]) {
    let (mut row, mut rest) = (rows.start, to);
    while row < rows.end {
        let size = block_size::<S, Q>(rows.end - row);
        let (block, tail) = std::mem::take(&mut rest).split_at_mut(size * words_per_row);
        for slot in 0..size {
            if row + slot >= rows.end {
                block.iter_mut().skip(slot).step_by(size).for_each(|word| *word = 0.0);
            } else {
                Q::lay(s, x.row(row + slot), block, slot, size);
            }
        }
        (row, rest) = (row + size, tail);
    }
}
