//! One item of attention: some rows of a sequence, one key head, its group of query heads.
//!
//! A query is one head of one row. Tile by tile: scores of all queries (keys are read once), softmax, values.

use super::super::soft_cap::capped;
use super::values::Stored;
use super::{AttentionShape, TILE};
use crate::lane::Scratch;
use crate::memory::{KvCache, POSITIONS, Rows, SharedRows, View};
use crate::simd::{Product, Simd, exp, multiply};
use std::ops::Range;

/// The item.
pub(super) struct Item<'a> {
    pub(super) q: View<'a>,
    pub(super) kv: &'a KvCache,
    pub(super) layer: usize,
    pub(super) rows: Rows<'a>,
    pub(super) shape: AttentionShape<'a>,
    pub(super) out: SharedRows<'a>,
    /// Key head.
    pub(super) head: usize,
    /// First row, and how many: all of one sequence.
    pub(super) first: usize,
    pub(super) count: usize,
}

/// State of the online softmax of all queries, in scratch.
pub(super) struct State<'a> {
    pub(super) queries: usize,
    /// Packed for the product: `[steps * words][queries]`.
    q: &'a mut [f32],
    /// `[queries][TILE]`: scores, then their exponentials.
    pub(super) scores: &'a mut [f32],
    /// `[queries][value_dim]`: weighted sums of values.
    pub(super) sums: &'a mut [f32],
    /// Largest score so far.
    largest: &'a mut [f32],
    /// Sum of exponentials so far.
    total: &'a mut [f32],
}

/// Attends.
///
/// # Safety
/// `keys` are packed for `Q`, both are pages of `item.kv`; [`crate::simd::DotBf16`] needs `S::DOTS`. No other worker has the item.
#[inline(always)]
pub(super) unsafe fn attend<S: Simd, Q: Product<S, Weight: Stored>>(
    s: S,
    item: &Item<'_>,
    keys: &[Q::Weight],
    values: &[Q::Weight],
    scratch: &mut Scratch,
) {
    let kv = item.kv.shape();
    let (steps, value_dim) = (kv.head_dim / Q::INPUTS, kv.value_dim());
    let queries = item.count * item.group();
    let [q, scores, sums, largest, total] =
        scratch.floats([steps * Q::WORDS * queries, queries * TILE, queries * value_dim, queries, queries]);
    let mut state = State { queries, q, scores, sums, largest, total };
    state.sums.fill(0.0);
    state.total.fill(0.0);
    state.largest.fill(f32::NEG_INFINITY);
    item.pack_queries::<S, Q>(s, state.q);

    let spans = (0..item.count).map(|row| item.span(row));
    let begin = spans.clone().map(|span| span.start).min().unwrap_or(0);
    let end = spans.map(|span| span.end).max().unwrap_or(0);
    let all = begin / TILE * TILE..end;
    for tile in all.clone().step_by(TILE) {
        let tile = tile..end.min(tile + TILE);
        item.ask_for_next(s, keys, kv.head_dim, &tile, &all);
        // SAFETY: the caller's promises.
        unsafe {
            item.score::<S, Q>(s, keys, &tile, &mut state);
            item.ask_for_next(s, values, value_dim, &tile, &all);
            item.soften(s, &tile, &mut state);
            item.add_values(s, values, &tile, &mut state);
        }
    }
    for query in 0..queries {
        let (row, head) = item.row_and_head(query);
        // SAFETY: rows and heads of this item are this worker's.
        let out = unsafe { item.out.part(row, head * kv.head_dim, kv.head_dim) };
        let sums = &state.sums[query * value_dim..][..kv.head_dim];
        // The lanes' exponential, which is the same on every machine; all lanes have the same.
        let mut total = [state.total[query]; 16];
        if let Some(sinks) = item.shape.sinks {
            let sink = exp(s, s.splat(sinks[head] - state.largest[query]));
            s.store_some(&mut total, s.add(sink, s.splat(state.total[query])));
        }
        let inverse = s.splat(1.0 / total[0]);
        for (out, sums) in out.chunks_mut(S::LANES).zip(sums.chunks(S::LANES)) {
            s.store_some(out, s.mul(s.load_some(sums), inverse));
        }
    }
}

impl Item<'_> {
    /// Query heads of the key head.
    #[inline(always)]
    fn group(&self) -> usize {
        self.shape.heads / self.kv.shape().kv_heads
    }

    /// Row of the pass, and query head, of a query.
    #[inline(always)]
    fn row_and_head(&self, query: usize) -> (usize, usize) {
        let group = self.group();
        (self.first + query / group, self.head * group + query % group)
    }

    /// Positions that a row of the item sees.
    #[inline(always)]
    fn span(&self, row: usize) -> Range<usize> {
        let end = self.rows.positions[self.first + row] as usize + 1;
        end - self.shape.window.map_or(end, |window| window.min(end))..end
    }

    /// What a query sees of a tile, counted from the tile's start.
    #[inline(always)]
    pub(super) fn seen(&self, query: usize, tile: &Range<usize>) -> Range<usize> {
        let span = self.span(query / self.group());
        let start = span.start.max(tile.start);
        start - tile.start..span.end.min(tile.end).max(start) - tile.start
    }

    /// Page of a position's block, and offset in it.
    #[inline(always)]
    pub(super) fn page(&self, position: usize) -> (usize, usize) {
        let block_size = self.kv.shape().block_size;
        (self.page_of(self.head, position / block_size), position % block_size)
    }

    /// Page of a key head, in a block of the sequence.
    #[inline(always)]
    fn page_of(&self, head: usize, block: usize) -> usize {
        let table = self.rows.tables[self.rows.table_of[self.first] as usize];
        self.kv.shape().page(self.layer, table[block], head)
    }

    /// Asks for the pages of the tile after this one, `width` numbers for each position; after the last, for those of the first tile
    /// of the next head, which the worker will probably do next. They lie apart, so the machine does not see by itself which comes.
    /// `all` is from the start of the first tile.
    #[inline(always)]
    fn ask_for_next<S: Simd, T>(
        &self,
        s: S,
        pages: &[T],
        width: usize,
        tile: &Range<usize>,
        all: &Range<usize>,
    ) {
        let Some((head, tile)) = self.next_tile(tile, all) else { return };
        let block_size = self.kv.shape().block_size;
        let page_len = block_size * width;
        for block in tile.start / block_size..tile.end.div_ceil(block_size) {
            let page = pages.as_ptr().wrapping_add(self.page_of(head, block) * page_len).cast::<u8>();
            for line in (0..page_len * size_of::<T>()).step_by(64) {
                s.prefetch(page.wrapping_add(line));
            }
        }
    }

    /// Which head and positions come after a tile.
    #[inline(always)]
    fn next_tile(&self, tile: &Range<usize>, all: &Range<usize>) -> Option<(usize, Range<usize>)> {
        let (head, start) =
            if tile.end < all.end { (self.head, tile.end) } else { (self.head + 1, all.start) };
        (head < self.kv.shape().kv_heads).then(|| (head, start..all.end.min(start + TILE)))
    }

    /// Lays the queries side by side, as pairs of bf16 where the product takes them.
    #[inline(always)]
    fn pack_queries<S: Simd, Q: Product<S>>(&self, s: S, packed: &mut [f32]) {
        let head_dim = self.kv.shape().head_dim;
        let queries = self.count * self.group();
        for query in 0..queries {
            let (row, head) = self.row_and_head(query);
            let q = &self.q.row(row)[head * head_dim..(head + 1) * head_dim];
            Q::lay(s, q, packed, query, queries);
        }
    }

    /// Scores of all queries with the tile's keys, those beyond a row's position too: [`Item::soften`] drops them.
    ///
    /// # Safety
    /// As for [`attend`].
    #[inline(always)]
    unsafe fn score<S: Simd, Q: Product<S>>(
        &self,
        s: S,
        keys: &[Q::Weight],
        tile: &Range<usize>,
        state: &mut State<'_>,
    ) {
        let kv = self.kv.shape();
        let (steps, page_len) = (kv.head_dim / Q::INPUTS, kv.head_dim * kv.block_size);
        let page = |position| {
            let (page, offset) = self.page(position);
            keys[page * page_len..(page + 1) * page_len][offset * Q::INPUTS..].as_ptr()
        };
        if tile.len() == TILE {
            // Few queries are few chains of additions: more of them at once do not wait for each other.
            let pages: [_; TILE / POSITIONS] = std::array::from_fn(|i| page(tile.start + i * POSITIONS));
            let mut query = 0;
            while query < state.queries {
                // SAFETY: pages hold `steps` steps of `POSITIONS` keys from their offset; the block size is a multiple of it.
                query += unsafe {
                    match state.queries - query {
                        8.. if S::REGISTERS >= 32 => {
                            let [a, b, c, d] = pages;
                            self.score_some::<S, Q, 8, 2>(s, steps, [a, b], 0, query, state);
                            self.score_some::<S, Q, 8, 2>(s, steps, [c, d], 2 * POSITIONS, query, state)
                        }
                        4.. if S::REGISTERS >= 32 => {
                            self.score_some::<S, Q, 4, 4>(s, steps, pages, 0, query, state)
                        }
                        2.. => self.score_some::<S, Q, 2, 4>(s, steps, pages, 0, query, state),
                        _ => self.score_some::<S, Q, 1, 4>(s, steps, pages, 0, query, state),
                    }
                };
            }
            return;
        }
        for position in tile.clone().step_by(POSITIONS) {
            let (keys, at) = ([page(position)], position - tile.start);
            let mut query = 0;
            while query < state.queries {
                // SAFETY: as above.
                query += unsafe {
                    match state.queries - query {
                        8.. if S::REGISTERS >= 32 => {
                            self.score_some::<S, Q, 8, 1>(s, steps, keys, at, query, state)
                        }
                        4.. => self.score_some::<S, Q, 4, 1>(s, steps, keys, at, query, state),
                        2.. => self.score_some::<S, Q, 2, 1>(s, steps, keys, at, query, state),
                        _ => self.score_some::<S, Q, 1, 1>(s, steps, keys, at, query, state),
                    }
                };
            }
        }
    }

    /// `R` queries with [`POSITIONS`] keys of each of `P` pages, the first of them at `at` in the tile; returns `R`.
    ///
    /// # Safety
    /// As for [`attend`]; `keys` are valid for `steps` steps.
    #[inline(always)]
    unsafe fn score_some<S: Simd, Q: Product<S>, const R: usize, const P: usize>(
        &self,
        s: S,
        steps: usize,
        keys: [*const Q::Weight; P],
        at: usize,
        query: usize,
        state: &mut State<'_>,
    ) -> usize {
        let scale = s.splat(self.shape.scale);
        let (packed, stride) = (state.q[query..].as_ptr(), state.queries);
        let panel_stride = self.kv.shape().block_size * Q::INPUTS;
        let mut first = 0;
        while first < POSITIONS {
            let keys = keys.map(|keys| keys.wrapping_add(first * Q::INPUTS));
            // SAFETY: the caller's promise.
            let scores =
                unsafe { multiply::<S, Q, R, P, 1>(s, steps, packed, stride, keys, panel_stride, 0) };
            for (r, scores) in scores.into_iter().enumerate() {
                for (p, [scores]) in scores.into_iter().enumerate() {
                    let to = (query + r) * TILE + at + p * POSITIONS + first;
                    s.store_some(&mut state.scores[to..][..S::LANES], s.mul(scores, scale));
                }
            }
            first += S::LANES;
        }
        R
    }

    /// Scores to exponentials, with what was summed before brought to the new largest score.
    #[inline(always)]
    fn soften<S: Simd>(&self, s: S, tile: &Range<usize>, state: &mut State<'_>) {
        let value_dim = self.kv.shape().value_dim();
        for query in 0..state.queries {
            let seen = self.seen(query, tile);
            if seen.is_empty() {
                continue;
            }
            let scores = &mut state.scores[query * TILE..(query + 1) * TILE];
            if let Some(cap) = self.shape.soft_cap {
                for scores in scores.chunks_exact_mut(S::LANES) {
                    s.store_some(scores, capped(s, s.load_some(scores), cap));
                }
            }
            scores[..seen.start].fill(f32::NEG_INFINITY);
            scores[seen.end..].fill(f32::NEG_INFINITY);
            let mut largest = s.splat(state.largest[query]);
            for scores in scores.chunks_exact(S::LANES) {
                largest = s.max(s.load_some(scores), largest);
            }
            let before = state.largest[query];
            let largest = s.largest(largest);
            let (zero, lowest, subtrahend) = (s.splat(0.0), s.splat(f32::NEG_INFINITY), s.splat(largest));
            let mut total = zero;
            for scores in scores.chunks_exact_mut(S::LANES) {
                let score = s.load_some(scores);
                let power = s.select(s.less(lowest, score), exp(s, s.sub(score, subtrahend)), zero);
                s.store_some(scores, power);
                total = s.add(total, power);
            }
            let mut factor = [0.0; 16];
            s.store_some(&mut factor, exp(s, s.splat(before - largest)));
            let factor = if before == largest { 1.0 } else { factor[0] };
            state.total[query] = state.total[query] * factor + s.sum(total);
            state.largest[query] = largest;
            if factor != 1.0 {
                for sums in state.sums[query * value_dim..(query + 1) * value_dim].chunks_exact_mut(S::LANES)
                {
                    s.store_some(sums, s.mul(s.load_some(sums), s.splat(factor)));
                }
            }
        }
    }
}
