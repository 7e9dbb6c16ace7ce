//! Strips of outputs for some rows: packs activations, chooses kernels by the number of rows, and writes the results.
//!
//! Activations are packed in blocks of up to 14 rows, and inside a block in chunks: a cache line of each row. One block goes
//! through the weights from end to end. Several would wait for memory in the first and calculate in the others; so all of them
//! go through a run of a panel before the next run, which they ask for meanwhile, each for its part: reading and arithmetic go
//! on at the same time. So does one block that must go through a panel more than once.

use crate::lane::Scratch;
use crate::memory::{Matrix, PANEL, SharedRows, View};
use crate::ops::Norm;
use crate::ops::write::Write;
use crate::simd::{Ask, Product, Simd, Steps, packed_words};
use std::ops::Range;

/// Outputs of a strip of vectors, the least that one worker does at a time: two panels.
pub(super) const STRIP: usize = 2 * PANEL;

/// A matmul.
#[derive(Clone, Copy)]
pub(super) struct Job<'a> {
    pub(super) x: View<'a>,
    /// Which row of `x` each row is, if they are not those of `x` in order.
    pub(super) chosen: Option<&'a [u32]>,
    /// In front of it.
    pub(super) norm: Option<Norm<'a>>,
    pub(super) w: &'a Matrix,
    pub(super) bias: Option<&'a [f32]>,
    pub(super) out: SharedRows<'a>,
    pub(super) write: Write,
}

impl Job<'_> {
    /// Row `r` of what is multiplied; `room` is for one row.
    #[inline(always)]
    pub(super) fn row<'r, S: Simd>(&'r self, s: S, r: usize, room: &'r mut [f32]) -> &'r [f32] {
        let row = self.x.row(self.chosen.map_or(r, |chosen| chosen[r] as usize));
        let Some(norm) = self.norm else { return row };
        norm.write(s, row, room);
        room
    }

    /// Asks for the outputs' lines, so that they are here when the sums are.
    #[inline(always)]
    pub(super) fn soon_written<S: Simd>(&self, s: S, rows: &Range<usize>, outputs: Range<usize>) {
        for row in rows.clone() {
            for output in outputs.clone().step_by(64 / size_of::<f32>()) {
                s.prefetch(self.out.address(row, output));
            }
        }
    }

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

/// Consecutive strips for one slab of rows.
pub(super) struct Strips<'a> {
    pub(super) job: &'a Job<'a>,
    pub(super) rows: Range<usize>,
    /// From the first strip's first one on.
    pub(super) outputs: Range<usize>,
    /// Whether the activations of these rows must be packed first.
    pub(super) fresh: bool,
    pub(super) scratch: &'a mut Scratch,
    /// Bytes of a panel that vectors ask for ahead of their use, where a block goes through it alone.
    pub(super) ahead: usize,
}

/// Computes strips for some rows; packs their activations first if they are `fresh`.
///
/// # Safety
/// `weights` are those of the job's matrix, packed for `Q`; [`crate::simd::DotBf16`] needs `S::DOTS`. No other worker has the strips.
#[inline(always)]
pub(super) unsafe fn compute<S: Simd, Q: Product<S>>(s: S, strips: Strips<'_>, weights: &[Q::Weight]) {
    let Strips { job, rows, outputs, fresh, scratch, ahead } = strips;
    let steps = job.w.in_features().div_ceil(Q::INPUTS);
    let words_per_row = packed_words::<S, Q>(job.w.in_features());
    let padded = padded_rows::<S, Q>(rows.len());
    let [packed, sums, room] = scratch.floats([padded * words_per_row, padded * STRIP, job.w.in_features()]);
    if fresh {
        pack::<S, Q>(s, job, rows.clone(), packed, room);
    }
    let blocks = Blocks { s, job, weights, steps, rows, outputs, ahead };
    // SAFETY: rows are packed and have room for sums; the rest is the caller's promise.
    unsafe {
        if padded == block_size::<S, Q>(blocks.rows.len()) && from_end_to_end::<S>(padded) {
            blocks.one::<Q>(packed, sums);
        } else {
            blocks.several::<Q>(packed, sums);
        }
    }
}

/// Bytes of a panel's run: the first cache holds it, the next one and the rows' activations for it.
const RUN: usize = 8 * 1024;

/// The blocks of rows of some strips.
struct Blocks<'a, S, W> {
    s: S,
    job: &'a Job<'a>,
    weights: &'a [W],
    steps: usize,
    rows: Range<usize>,
    outputs: Range<usize>,
    ahead: usize,
}

/// What a block goes through at once.
struct Part {
    rows: Range<usize>,
    /// Of the strips.
    outputs: Range<usize>,
    /// From the first step on sums are zero, and after the last one they are finished.
    steps: Range<usize>,
    /// Which block of how many it is: they ask for the next steps together.
    share: (usize, usize),
}

impl<S: Simd, W: Copy> Blocks<'_, S, W> {
    /// All of one block.
    ///
    /// # Safety
    /// `packed` is the block, `sums` has its rows times a strip; weights are packed for `Q`; the strips are this worker's alone.
    #[inline(always)]
    unsafe fn one<Q: Product<S, Weight = W>>(&self, packed: &[f32], sums: &mut [f32]) {
        let Blocks { rows, outputs, steps, .. } = self;
        let part = Part { rows: rows.clone(), outputs: outputs.clone(), steps: 0..*steps, share: (0, 1) };
        // SAFETY: the caller's promise.
        unsafe { self.part::<Q>(block_size::<S, Q>(rows.len()), &part, packed, sums) };
    }

    /// All of them, run by run: several, which are of more rows than go through two panels, or one whose tiles are narrower than a panel.
    ///
    /// # Safety
    /// As for [`Blocks::one`], with all blocks.
    #[inline(always)]
    unsafe fn several<Q: Product<S, Weight = W>>(&self, packed: &[f32], sums: &mut [f32]) {
        let blocks = || row_blocks::<S, Q>(self.rows.clone());
        let (of, words_per_row) = (blocks().count(), packed_words::<S, Q>(self.job.w.in_features()));
        // Even runs, as the next one is asked for in step with this one.
        let runs = self.steps.div_ceil((RUN / step_bytes::<S, Q>()).max(1));
        for first in self.outputs.clone().step_by(PANEL) {
            let outputs = first..self.outputs.end.min(first + PANEL);
            for run in 0..runs {
                let steps = self.steps * run / runs..self.steps * (run + 1) / runs;
                let mut start = 0;
                for (block, (rows, size)) in blocks().enumerate() {
                    let part =
                        Part { rows, outputs: outputs.clone(), steps: steps.clone(), share: (block, of) };
                    let packed = &packed[start * words_per_row..(start + size) * words_per_row];
                    let sums = &mut sums[start * PANEL..(start + size) * PANEL];
                    // SAFETY: the caller's promise.
                    unsafe { self.part::<Q>(size, &part, packed, sums) };
                    start += size;
                }
            }
        }
    }

    /// A part of a block of `size` rows.
    ///
    /// # Safety
    /// As for [`Blocks::one`].
    #[inline(always)]
    unsafe fn part<Q: Product<S, Weight = W>>(
        &self,
        size: usize,
        part: &Part,
        packed: &[f32],
        sums: &mut [f32],
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            if S::REGISTERS >= 32 && S::LANES == 4 {
                // Short vectors: with few rows a whole panel at once, so that its memory is read in one run.
                match size {
                    1 => self.tiles::<Q, 1, 1, 8>(part, packed, sums),
                    2 => self.tiles::<Q, 2, 1, 8>(part, packed, sums),
                    4 => self.tiles::<Q, 4, 1, 4>(part, packed, sums),
                    6 => self.tiles::<Q, 6, 1, 4>(part, packed, sums),
                    8 => self.tiles::<Q, 8, 1, 2>(part, packed, sums),
                    12 => self.tiles::<Q, 12, 1, 2>(part, packed, sums),
                    _ => self.tiles::<Q, 14, 1, 2>(part, packed, sums),
                }
            } else if S::REGISTERS >= 32 {
                // Few rows are few chains of additions: two panels at once do not wait for each other.
                let two = size <= Q::MOST_ROWS_OF_TWO;
                match size {
                    1 => self.tiles::<Q, 1, 2, 2>(part, packed, sums),
                    2 => self.tiles::<Q, 2, 2, 2>(part, packed, sums),
                    3 => self.tiles::<Q, 3, 2, 2>(part, packed, sums),
                    4 => self.tiles::<Q, 4, 2, 2>(part, packed, sums),
                    5 if two => self.tiles::<Q, 5, 2, 2>(part, packed, sums),
                    6 if two => self.tiles::<Q, 6, 2, 2>(part, packed, sums),
                    5 => self.tiles::<Q, 5, 1, 2>(part, packed, sums),
                    6 => self.tiles::<Q, 6, 1, 2>(part, packed, sums),
                    7 => self.tiles::<Q, 7, 1, 2>(part, packed, sums),
                    8 => self.tiles::<Q, 8, 1, 2>(part, packed, sums),
                    10 => self.tiles::<Q, 10, 1, 2>(part, packed, sums),
                    12 => self.tiles::<Q, 12, 1, 2>(part, packed, sums),
                    _ => self.tiles::<Q, 14, 1, 2>(part, packed, sums),
                }
            } else {
                match size {
                    1 => self.tiles::<Q, 1, 1, 4>(part, packed, sums),
                    2 => self.tiles::<Q, 2, 1, 4>(part, packed, sums),
                    4 => self.tiles::<Q, 4, 1, 2>(part, packed, sums),
                    _ => self.tiles::<Q, 6, 1, 2>(part, packed, sums),
                }
            }
        }
    }

    /// A part in tiles, as many outputs as fit in registers together: `P` panels by `V` vectors, for `R` packed rows.
    ///
    /// # Safety
    /// As for [`Blocks::one`]; `packed` has `R` rows.
    #[inline(always)]
    unsafe fn tiles<Q: Product<S, Weight = W>, const R: usize, const P: usize, const V: usize>(
        &self,
        part: &Part,
        packed: &[f32],
        sums: &mut [f32],
    ) {
        let panel_len = self.job.w.panel_len();
        let last_panel = self.job.w.out_features().div_ceil(PANEL) - 1;
        let tile_outputs = if P == 1 { V * S::LANES } else { P * PANEL };
        let tile_sums = R * P * V * S::LANES;
        let weights_per_word = size_of::<u32>() / size_of::<W>();
        for first in part.outputs.clone().step_by(tile_outputs) {
            // Panels follow one another in the same place: several blocks have one at a time.
            let sums =
                &mut sums[if P == 1 { (first - part.outputs.start) % PANEL * R } else { 0 }..][..tile_sums];
            let mut starts = [self.weights.as_ptr(); P];
            for (p, start) in starts.iter_mut().enumerate() {
                // Beyond the last panel the last one is computed again, and not written.
                let panel = (first / PANEL + p).min(last_panel);
                let weights = &self.weights[panel * panel_len..(panel + 1) * panel_len];
                *start = weights[first % PANEL * weights_per_word..].as_ptr();
            }
            if part.steps.start == 0 {
                sums.fill(0.0);
            }
            if part.steps.end == self.steps {
                let outputs = first..part.outputs.end.min(first + tile_outputs);
                self.job.soon_written(self.s, &part.rows, outputs);
            }
            // SAFETY: the panels hold the steps (sliced above), `packed` too (the caller's promise).
            unsafe { self.add::<Q, R, P, V>(part, packed, starts, sums.as_mut_ptr()) };
            if part.steps.end == self.steps {
                // SAFETY: these outputs are this worker's.
                unsafe { self.finish::<P, V>(part, first, sums) };
            }
        }
    }

    /// Adds the steps of a part to the sums of a tile.
    ///
    /// # Safety
    /// As for [`Blocks::one`]; panels begin at `starts`.
    #[inline(always)]
    unsafe fn add<Q: Product<S, Weight = W>, const R: usize, const P: usize, const V: usize>(
        &self,
        part: &Part,
        packed: &[f32],
        starts: [*const W; P],
        sums: *mut f32,
    ) {
        let Part { steps, share: (block, blocks), .. } = part;
        let (panel_stride, step_bytes) = (PANEL * Q::WEIGHTS, step_bytes::<S, Q>());
        let row_bytes = PANEL * size_of::<u32>();
        let part = |from: usize, count: usize, beyond: usize| {
            let weights = starts.map(|panel| panel.wrapping_add(from * panel_stride));
            let at = weights.map(|panel| panel.cast::<u8>().wrapping_add(beyond));
            let (chunk, place) = (from * Q::WORDS / Q::CHUNK, from * Q::WORDS % Q::CHUNK);
            let chunk_stride = R * Q::CHUNK;
            let activations = packed.as_ptr().wrapping_add(chunk * chunk_stride + place);
            let ask = Ask { at, stride: row_bytes / blocks };
            Steps { count, activations, place, chunk_stride, weights, panel_stride, ask }
        };
        let count = steps.len();
        // The end of a panel asks for the beginning of what comes next: if two are read side by side that is behind both.
        let (ahead, last) = if *blocks > 1 {
            (count * step_bytes * (blocks + block) / blocks, 0)
        } else {
            let last = (self.ahead / step_bytes).clamp(1, count);
            (last * step_bytes, last)
        };
        let behind = ahead + (P - 1) * self.steps * step_bytes;
        let both = [part(steps.start, count - last, ahead), part(steps.end - last, last, behind)];
        // SAFETY: the caller's promise.
        unsafe { Q::add_steps::<R, P, V>(self.s, both, sums) };
    }

    /// Writes the finished sums of a tile.
    ///
    /// # Safety
    /// The outputs are this worker's.
    #[inline(always)]
    unsafe fn finish<const P: usize, const V: usize>(&self, part: &Part, first: usize, sums: &[f32]) {
        for (sums, row) in sums.chunks_exact(P * V * S::LANES).zip(part.rows.clone()) {
            for (i, sums) in sums.chunks_exact(S::LANES).enumerate() {
                let output = first + i / V * PANEL + i % V * S::LANES;
                if output < part.outputs.end {
                    let len = S::LANES.min(part.outputs.end - output);
                    // SAFETY: the caller's promise.
                    unsafe { self.job.finish(self.s, row, output, len, self.s.load_some(sums)) };
                }
            }
        }
    }
}

/// Bytes of a panel's step.
fn step_bytes<S: Simd, Q: Product<S>>() -> usize {
    PANEL * Q::WEIGHTS * size_of::<Q::Weight>()
}

/// Sizes of row blocks there are kernels for: as many as the machine has registers for.
fn block_sizes<S: Simd, Q: Product<S>>() -> &'static [usize] {
    let (all, most): (&[usize], usize) = match (S::REGISTERS, S::LANES) {
        (32.., 16) => (&[1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14], Q::MOST_ROWS),
        (32.., _) => (&[1, 2, 4, 6, 8, 12, 14], Q::MOST_ROWS),
        _ => (&[1, 2, 4, 6], 6),
    };
    &all[..all.iter().filter(|size| **size <= most).count()]
}

/// Whether a block by itself goes from end to end though its tiles may be narrower than a panel, whose memory is then read more than once,
/// each time with holes. With few registers most tiles are (see [`Blocks::part`]); with many, NEON's, it was not measured.
fn from_end_to_end<S: Simd>(size: usize) -> bool {
    S::REGISTERS >= 32 || S::LANES == 8 && size <= 2
}

/// Size of the next block when `rows` are left: even parts of as few blocks as there must be, the size rounded up to one
/// there is a kernel for. A block may be larger than the rows left: the rest is padding.
fn block_size<S: Simd, Q: Product<S>>(rows: usize) -> usize {
    let sizes = block_sizes::<S, Q>();
    let largest = sizes[sizes.len() - 1];
    let wanted = rows.div_ceil(rows.div_ceil(largest));
    sizes.iter().copied().find(|size| *size >= wanted).unwrap_or(largest)
}

/// The rows of each block, and its size.
fn row_blocks<S: Simd, Q: Product<S>>(rows: Range<usize>) -> impl Iterator<Item = (Range<usize>, usize)> {
    let mut first = rows.start;
    std::iter::from_fn(move || {
        let size = (first < rows.end).then(|| block_size::<S, Q>(rows.end - first))?;
        let block = first..rows.end.min(first + size);
        first += size;
        Some((block, size))
    })
}

/// Rows that all blocks have, padding included.
fn padded_rows<S: Simd, Q: Product<S>>(rows: usize) -> usize {
    row_blocks::<S, Q>(0..rows).map(|(_, size)| size).sum()
}

/// Packs `rows` for `Q`, block after block; `room` is for one row.
#[inline(always)]
fn pack<S: Simd, Q: Product<S>>(s: S, job: &Job<'_>, rows: Range<usize>, to: &mut [f32], room: &mut [f32]) {
    let words_per_row = packed_words::<S, Q>(job.w.in_features());
    let mut rest = to;
    for (rows, size) in row_blocks::<S, Q>(rows) {
        let (block, tail) = std::mem::take(&mut rest).split_at_mut(size * words_per_row);
        for slot in 0..size {
            let row = match rows.clone().nth(slot) {
                Some(row) => job.row(s, row, room),
                None => &[],
            };
            Q::lay(s, row, block, slot, size);
        }
        rest = tail;
    }
}
