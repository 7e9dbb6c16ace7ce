//! The second half of attention: values, weighted by the exponentials of the scores.

use super::TILE;
use super::attend::{Item, State};
use crate::simd::Simd;
use half::bf16;
use std::ops::Range;

/// Stored values, widened when read.
pub(super) trait Stored: Copy {
    /// # Safety
    /// `at` is valid for reading a vector.
    unsafe fn load<S: Simd>(s: S, at: *const Self) -> S::F;
}

impl Stored for f32 {
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, at: *const f32) -> S::F {
        // SAFETY: the caller's promise.
        unsafe { s.load(at) }
    }
}

impl Stored for bf16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, at: *const bf16) -> S::F {
        // SAFETY: the caller's promise.
        unsafe { s.load_bf16(at) }
    }
}

impl Item<'_> {
    /// Adds the tile's values, weighted by the exponentials, position after position.
    ///
    /// # Safety
    /// As for [`attend`].
    #[inline(always)]
    pub(super) unsafe fn add_values<S: Simd, T: Stored>(
        &self,
        s: S,
        values: &[T],
        tile: &Range<usize>,
        state: &mut State<'_>,
    ) {
        let mut query = 0;
        while query < state.queries {
            let count = if state.queries - query >= 4 { 4 } else { 1 };
            let seen = |i| self.seen(query + i, tile);
            let start = (0..count).map(|i| seen(i).start).max().unwrap_or(0);
            let end = (0..count).map(|i| seen(i).end).min().unwrap_or(0);
            // SAFETY: the caller's promises.
            unsafe {
                if count == 1 || start >= end {
                    for i in 0..count {
                        self.add_range::<S, T, 1>(s, values, tile, seen(i), query + i, state);
                    }
                } else {
                    // What all four see together; before and after it each alone, so that every query's order stays.
                    for i in 0..count {
                        self.add_range::<S, T, 1>(s, values, tile, seen(i).start..start, query + i, state);
                    }
                    self.add_range::<S, T, 4>(s, values, tile, start..end, query, state);
                    for i in 0..count {
                        self.add_range::<S, T, 1>(s, values, tile, end..seen(i).end, query + i, state);
                    }
                }
            }
            query += count;
        }
    }

    /// `R` queries, positions `range` of the tile.
    ///
    /// # Safety
    /// As for [`attend`].
    #[inline(always)]
    unsafe fn add_range<S: Simd, T: Stored, const R: usize>(
        &self,
        s: S,
        values: &[T],
        tile: &Range<usize>,
        range: Range<usize>,
        query: usize,
        state: &mut State<'_>,
    ) {
        let kv = self.kv.shape();
        let value_dim = kv.value_dim();
        let mut at = range.start;
        while at < range.end {
            let (page, offset) = self.page(tile.start + at);
            let run = (kv.block_size - offset).min(range.end - at);
            let values = &values[(page * kv.block_size + offset) * value_dim..][..run * value_dim];
            let powers = &state.scores[query * TILE + at..];
            let mut dim = 0;
            while dim < value_dim {
                let sums = &mut state.sums[query * value_dim + dim..];
                let values = &values[dim..];
                // SAFETY: `run` values of `value_dim`, from `dim`, with a vector or four left of it.
                dim += unsafe {
                    if S::REGISTERS >= 32 && value_dim - dim >= 4 * S::LANES {
                        add_some::<S, T, R, 4>(s, values, value_dim, powers, run, sums)
                    } else if value_dim - dim >= 2 * S::LANES {
                        add_some::<S, T, R, 2>(s, values, value_dim, powers, run, sums)
                    } else {
                        add_some::<S, T, R, 1>(s, values, value_dim, powers, run, sums)
                    }
                };
            }
            at += run;
        }
    }
}

/// Adds `run` values, `V` vectors of each, to the sums of `R` queries. Returns the elements done of each value.
///
/// # Safety
/// `values` and each query's `sums` hold that much at a stride of `value_dim`, `powers` at a stride of [`TILE`].
#[inline(always)]
unsafe fn add_some<S: Simd, T: Stored, const R: usize, const V: usize>(
    s: S,
    values: &[T],
    value_dim: usize,
    powers: &[f32],
    run: usize,
    sums: &mut [f32],
) -> usize {
    debug_assert!(values.len() >= (run - 1) * value_dim + V * S::LANES);
    debug_assert!(sums.len() >= (R - 1) * value_dim + V * S::LANES && powers.len() >= (R - 1) * TILE + run);
    let mut totals = [[s.splat(0.0); V]; R];
    // SAFETY: the caller's promise, for all pointers.
    unsafe {
        for (r, totals) in totals.iter_mut().enumerate() {
            for (v, total) in totals.iter_mut().enumerate() {
                *total = s.load(sums.as_ptr().add(r * value_dim + v * S::LANES));
            }
        }
        for i in 0..run {
            let mut value = [s.splat(0.0); V];
            for (v, value) in value.iter_mut().enumerate() {
                *value = T::load(s, values.as_ptr().add(i * value_dim + v * S::LANES));
            }
            for (r, totals) in totals.iter_mut().enumerate() {
                let power = s.splat(*powers.as_ptr().add(r * TILE + i));
                for (total, value) in totals.iter_mut().zip(value) {
                    *total = s.mul_add(power, value, *total);
                }
            }
        }
        for (r, totals) in totals.iter().enumerate() {
            for (v, total) in totals.iter().enumerate() {
                s.store(sums.as_mut_ptr().add(r * value_dim + v * S::LANES), *total);
            }
        }
    }
    V * S::LANES
}
