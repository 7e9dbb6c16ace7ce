//! attention: causal softmax attention of each row over its own sequence's keys and values, up to its own position.
//!
//! Query heads share key heads in groups (GQA). The softmax is computed online (Milakov and Gimelshein 2018) over
//! tiles of [`TILE`] positions counted from position 0, so the order of every sum depends on the row's position
//! alone. An item of work is one key head for a few rows of one sequence: they read the keys once. A query is one head
//! of one row. Tile by tile: scores of all queries, softmax, values, weighted by the exponentials of the scores.
//!
//! Of a cache in int8 nothing is widened but in registers: a query is quantised too, its scores are dot products of whole numbers, which are
//! exact, times the scales of query and key; values are weighted by the exponentials times their scales.

use super::activate::capped;
use super::store_kv::Scaled;
use crate::lane::Scratch;
use crate::memory::{KvCache, KvShape, POSITIONS, Pages, Rows, SharedRows, View, ViewMut};
use crate::simd::{
    Ask, DotBf16, FmaBf16, FmaF32, Kernel, Product, Simd, Steps, dispatch, dispatch_bytes, exp, half_of,
    multiply, packed_words, shorts,
};
use crate::{Lane, Op};
use half::bf16;
use std::marker::PhantomData;
use std::ops::Range;

/// Positions of a tile of the online softmax.
pub(crate) const TILE: usize = 64;
/// Most rows of an item.
const ROWS: usize = 8;

/// What attention needs beside its tensors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape<'a> {
    /// Query heads; a multiple of the cache's.
    pub heads: usize,
    /// Factor of the scores, usually `1 / sqrt(head_dim)`.
    pub scale: f32,
    /// Scores, so scaled, are at most this large: `cap tanh(score / cap)`.
    pub soft_cap: Option<f32>,
    /// Sliding window: a row sees this many positions, its own included.
    pub window: Option<usize>,
    /// Nobody attends to positions before this one, but such a row to itself.
    pub first: usize,
    /// A score more in the softmax of each head, which has no value (the sinks of gpt-oss, learned).
    pub sinks: Option<&'a [f32]>,
}

/// Attends with `q` (`heads * head_dim` columns, rotated) to what [`store_kv`](super::store_kv) stored in `layer`.
///
/// # Panics
/// If shapes do not fit, a window is zero, or a block table is too short for a row's position.
pub fn attention(
    lane: &Lane,
    q: View<'_>,
    kv: &KvCache,
    layer: usize,
    rows: Rows<'_>,
    shape: AttentionShape<'_>,
    out: ViewMut<'_>,
) {
    let KvShape { kv_heads, head_dim, .. } = *kv.shape();
    let count = rows.positions.len();
    assert_eq!((q.rows(), q.cols()), (count, shape.heads * head_dim), "attention: shape of q");
    assert_eq!((out.rows(), out.cols()), (count, q.cols()), "attention: shape of out");
    assert_eq!(rows.table_of.len(), count, "attention: length of table_of");
    assert!(
        shape.heads.is_multiple_of(kv_heads),
        "attention: {} heads over {kv_heads} kv heads",
        shape.heads
    );
    assert!(shape.window != Some(0), "attention: an empty window");
    assert!(shape.sinks.is_none_or(|sinks| sinks.len() == shape.heads), "attention: number of sinks");
    let context: usize = rows.positions.iter().map(|position| *position as usize + 1).sum();
    // Fewer rows per item when there are too few items for the workers. Rows of one sequence cost alike and share its keys: an
    // item for each worker is enough.
    let alike = rows.table_of.windows(2).all(|pair| pair[0] == pair[1]);
    let items = if alike { lane.workers() } else { 4 * lane.workers() };
    let rows_per_item = (count * kv_heads / items).clamp(1, ROWS);
    let chunks = count.div_ceil(rows_per_item);
    // At some 60 GFLOP/s: products with keys and with values, softmax between them.
    let item_ns = 4 * context * shape.heads * head_dim / 60 / (chunks * kv_heads).max(1);
    let out = out.share();
    let isa = lane.supported();
    lane.for_each(Op::Attention, chunks * kv_heads, item_ns, |item, scratch| {
        let (chunk, head) = (item / kv_heads, item % kv_heads);
        let mut first = chunk * rows_per_item;
        let end = count.min(first + rows_per_item);
        while first < end {
            let table = rows.table_of[first];
            let same = rows.table_of[first..end].iter().take_while(|of| **of == table).count();
            let item = Item { q, kv, layer, rows, shape, out, head, first, count: same };
            match kv.pages() {
                Pages::Int8 { .. } => dispatch_bytes(isa, AttendBytes { item, scratch }),
                Pages::F32 { .. } | Pages::Bf16 { .. } => dispatch(isa, Attend { item, scratch }),
            }
            first += same;
        }
    });
}

struct Attend<'a> {
    item: Item<'a>,
    scratch: &'a mut Scratch,
}

impl Kernel for Attend<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Attend { item, scratch } = self;
        match item.kv.pages() {
            // SAFETY: keys are packed as bf16, and `DOTS` is true; the item is this worker's.
            Pages::Bf16 { k, v } if S::DOTS => unsafe {
                attend(s, &item, Plain::<DotBf16, _> { k, v, product: PhantomData }, scratch);
            },
            // SAFETY: keys are packed as bf16; the item is this worker's.
            Pages::Bf16 { k, v } => unsafe {
                attend(s, &item, Plain::<FmaBf16, _> { k, v, product: PhantomData }, scratch);
            },
            // SAFETY: keys are packed as f32; the item is this worker's.
            Pages::F32 { k, v } => unsafe {
                attend(s, &item, Plain::<FmaF32, _> { k, v, product: PhantomData }, scratch);
            },
            Pages::Int8 { .. } => unreachable!("bytes are attended to by `AttendBytes`"),
        }
    }
}

/// The same over pages in int8, for which VNNI and `sdot` count.
struct AttendBytes<'a> {
    item: Item<'a>,
    scratch: &'a mut Scratch,
}

impl Kernel for AttendBytes<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let AttendBytes { item, scratch } = self;
        let Pages::Int8 { k, v, k_scales, v_scales } = item.kv.pages() else { return };
        // SAFETY: the pages are the cache's; the item is this worker's.
        unsafe { attend(s, &item, Int8Pages { k, v, k_scales, v_scales }, scratch) };
    }
}

/// Keys and values of a cache, as they are read.
trait KvPages<S: Simd>: Copy {
    /// In what values are stored.
    type Value: Stored;

    /// Words of a query that is laid out for scores.
    fn query_words(head_dim: usize) -> usize;

    /// Lays a query out, in its slot of so many.
    fn lay(s: S, q: &[f32], packed: &mut [f32], slot: usize, queries: usize);

    fn values(&self) -> &[Self::Value];

    /// Scores of all queries with the tile's keys, those beyond a row's position too: [`Item::soften`] drops them. Asks for the keys of the next
    /// tile.
    ///
    /// # Safety
    /// As for [`attend`].
    unsafe fn score(&self, s: S, item: &Item<'_>, tile: &Range<usize>, next: &Next, state: &mut State<'_>);

    /// Makes of exponentials what values are multiplied by.
    fn weigh(&self, _s: S, _item: &Item<'_>, _tile: &Range<usize>, _state: &mut State<'_>) {}
}

/// Keys packed for a product, and values in the same type.
struct Plain<'a, Q, T> {
    k: &'a [T],
    v: &'a [T],
    product: PhantomData<Q>,
}

impl<Q, T> Clone for Plain<'_, Q, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<Q, T> Copy for Plain<'_, Q, T> {}

impl<S: Simd, T: Stored, Q: Product<S, Weight = T>> KvPages<S> for Plain<'_, Q, T> {
    type Value = T;

    #[inline(always)]
    fn query_words(head_dim: usize) -> usize {
        packed_words::<S, Q>(head_dim)
    }

    #[inline(always)]
    fn lay(s: S, q: &[f32], packed: &mut [f32], slot: usize, queries: usize) {
        Q::lay(s, q, packed, slot, queries);
    }

    #[inline(always)]
    fn values(&self) -> &[T] {
        self.v
    }

    #[inline(always)]
    unsafe fn score(&self, s: S, item: &Item<'_>, tile: &Range<usize>, next: &Next, state: &mut State<'_>) {
        if both_whole(tile, next).is_none() {
            item.ask_for(s, self.k, item.kv.shape().head_dim, next);
        }
        // SAFETY: the caller's promise.
        unsafe { item.score::<S, Q>(s, self.k, tile, next, state) }
    }
}

/// The item.
struct Item<'a> {
    q: View<'a>,
    kv: &'a KvCache,
    layer: usize,
    rows: Rows<'a>,
    shape: AttentionShape<'a>,
    out: SharedRows<'a>,
    /// Key head.
    head: usize,
    /// First row, and how many: all of one sequence.
    first: usize,
    count: usize,
}

/// The tile that comes after one: which key head's, and its positions. After the last tile it is the first of the next head, which a worker does next unless
/// its item has another sequence. Tiles lie apart, so the machine does not see by itself which comes: it is asked for. The line buffers of a core are few: what
/// is asked for at once has to wait for memory, what is asked for line by line, beside the lines that are worked on, comes meanwhile.
type Next = Option<(usize, Range<usize>)>;

/// The next tile, if its lines can be asked for one by one beside those of this.
#[inline(always)]
fn both_whole<'n>(tile: &Range<usize>, next: &'n Next) -> Option<&'n (usize, Range<usize>)> {
    next.as_ref().filter(|(_, next)| (tile.len(), next.len()) == (TILE, TILE))
}

/// State of the online softmax of all queries, in scratch.
struct State<'a> {
    queries: usize,
    /// Packed for the product.
    q: &'a mut [f32],
    /// `[queries][TILE]`: scores, then their exponentials.
    scores: &'a mut [f32],
    /// `[queries][value_dim]`: weighted sums of values.
    sums: &'a mut [f32],
    /// Largest score so far.
    largest: &'a mut [f32],
    /// Sum of exponentials so far.
    total: &'a mut [f32],
}

/// Attends.
///
/// # Safety
/// They are the pages of `item.kv`, keys packed for their product; [`crate::simd::DotBf16`] needs `S::DOTS`. No other worker has the item.
#[inline(always)]
unsafe fn attend<S: Simd, P: KvPages<S>>(s: S, item: &Item<'_>, pages: P, scratch: &mut Scratch) {
    let kv = item.kv.shape();
    let value_dim = kv.value_dim();
    let queries = item.count * item.group();
    let words = P::query_words(kv.head_dim);
    let [q, scores, sums, largest, total] =
        scratch.floats([words * queries, queries * TILE, queries * value_dim, queries, queries]);
    let mut state = State { queries, q, scores, sums, largest, total };
    state.sums.fill(0.0);
    state.total.fill(0.0);
    state.largest.fill(f32::NEG_INFINITY);
    item.pack_queries::<S, P>(s, state.q);

    let spans = (0..item.count).map(|row| item.span(row));
    let begin = spans.clone().map(|span| span.start).min().unwrap_or(0);
    let end = spans.map(|span| span.end).max().unwrap_or(0);
    let all = begin / TILE * TILE..end;
    for tile in all.clone().step_by(TILE) {
        let tile = tile..end.min(tile + TILE);
        let next = item.next_tile(&tile, &all);
        let beside = item.values_beside::<S, P::Value>(&tile, &next);
        // SAFETY: the caller's promises.
        unsafe {
            pages.score(s, item, &tile, &next, &mut state);
            if beside.is_none() {
                item.ask_for(s, pages.values(), value_dim, &next);
            }
            item.soften(s, &tile, &mut state);
            pages.weigh(s, item, &tile, &mut state);
            item.add_values(s, pages.values(), (&tile, beside), &mut state);
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
        let begin = end - self.shape.window.map_or(end, |window| window.min(end));
        begin.max(self.shape.first.min(end - 1))..end
    }

    /// What a query sees of a tile, counted from the tile's start.
    #[inline(always)]
    fn seen(&self, query: usize, tile: &Range<usize>) -> Range<usize> {
        let span = self.span(query / self.group());
        let start = span.start.max(tile.start);
        start - tile.start..span.end.min(tile.end).max(start) - tile.start
    }

    /// Page of a key head in a position's block, and offset in it.
    #[inline(always)]
    fn page(&self, head: usize, position: usize) -> (usize, usize) {
        let block_size = self.kv.shape().block_size;
        (self.page_of(head, position / block_size), position % block_size)
    }

    /// Page of a key head, in a block of the sequence.
    #[inline(always)]
    fn page_of(&self, head: usize, block: usize) -> usize {
        let table = self.rows.tables[self.rows.table_of[self.first] as usize];
        self.kv.shape().page(self.layer, table[block], head)
    }

    /// Asks for all pages of the next tile at once, `width` numbers for each position.
    #[inline(always)]
    fn ask_for<S: Simd, T>(&self, s: S, pages: &[T], width: usize, next: &Next) {
        let Some((head, tile)) = next else { return };
        let block_size = self.kv.shape().block_size;
        let page_len = block_size * width;
        for block in tile.start / block_size..tile.end.div_ceil(block_size) {
            let page = pages.as_ptr().wrapping_add(self.page_of(*head, block) * page_len).cast::<u8>();
            for line in (0..page_len * size_of::<T>()).step_by(64) {
                s.prefetch(page.wrapping_add(line));
            }
        }
    }

    /// What comes after a tile; `all` is from the start of the first.
    #[inline(always)]
    fn next_tile(&self, tile: &Range<usize>, all: &Range<usize>) -> Next {
        let (head, start) =
            if tile.end < all.end { (self.head, tile.end) } else { (self.head + 1, all.start) };
        (head < self.kv.shape().kv_heads).then(|| (head, start..all.end.min(start + TILE)))
    }

    /// Lays the queries out for the product.
    #[inline(always)]
    fn pack_queries<S: Simd, P: KvPages<S>>(&self, s: S, packed: &mut [f32]) {
        let head_dim = self.kv.shape().head_dim;
        let queries = self.count * self.group();
        for query in 0..queries {
            let (row, head) = self.row_and_head(query);
            let q = &self.q.row(row)[head * head_dim..(head + 1) * head_dim];
            P::lay(s, q, packed, query, queries);
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
        next: &Next,
        state: &mut State<'_>,
    ) {
        let kv = self.kv.shape();
        let (steps, page_len) = (kv.head_dim / Q::INPUTS, kv.head_dim * kv.block_size);
        let page = |head, position| {
            let (page, offset) = self.page(head, position);
            keys[page * page_len..(page + 1) * page_len][offset * Q::INPUTS..].as_ptr()
        };
        if tile.len() == TILE {
            // Few queries are few chains of additions: more of them at once do not wait for each other.
            let places = |head, start: usize| -> [_; TILE / POSITIONS] {
                std::array::from_fn(|i| page(head, start + i * POSITIONS))
            };
            let pages = places(self.head, tile.start);
            // The first queries go through the keys with all others behind them.
            let asked = both_whole(tile, next).map(|(head, next)| places(*head, next.start));
            let mut query = 0;
            while query < state.queries {
                let asked = asked.filter(|_| query == 0);
                // SAFETY: pages hold `steps` steps of `POSITIONS` keys from their offset; the block size is a multiple of it.
                query += unsafe {
                    match state.queries - query {
                        8.. if S::REGISTERS >= 32 => {
                            let [a, b, c, d] = pages;
                            let halves = asked.map(|[a, b, c, d]| ([a, b], [c, d]));
                            let (first, second) = halves.unzip();
                            self.score_some::<S, Q, 8, 2, 1>(s, steps, ([a, b], first), 0, query, state);
                            let at = 2 * POSITIONS;
                            self.score_some::<S, Q, 8, 2, 1>(s, steps, ([c, d], second), at, query, state)
                        }
                        4.. if S::REGISTERS >= 32 => {
                            self.score_some::<S, Q, 4, 4, 1>(s, steps, (pages, asked), 0, query, state)
                        }
                        2.. => self.score_some::<S, Q, 2, 4, 1>(s, steps, (pages, asked), 0, query, state),
                        // Two vectors are a cache line of keys.
                        _ if S::LANES == 8 => {
                            self.score_some::<S, Q, 1, 4, 2>(s, steps, (pages, asked), 0, query, state)
                        }
                        _ => self.score_some::<S, Q, 1, 4, 1>(s, steps, (pages, asked), 0, query, state),
                    }
                };
            }
            return;
        }
        for position in tile.clone().step_by(POSITIONS) {
            let (keys, at) = (([page(self.head, position)], None), position - tile.start);
            let mut query = 0;
            while query < state.queries {
                // SAFETY: as above.
                query += unsafe {
                    match state.queries - query {
                        8.. if S::REGISTERS >= 32 => {
                            self.score_some::<S, Q, 8, 1, 1>(s, steps, keys, at, query, state)
                        }
                        4.. => self.score_some::<S, Q, 4, 1, 1>(s, steps, keys, at, query, state),
                        2.. => self.score_some::<S, Q, 2, 1, 1>(s, steps, keys, at, query, state),
                        _ => self.score_some::<S, Q, 1, 1, 1>(s, steps, keys, at, query, state),
                    }
                };
            }
        }
    }

    /// `R` queries with [`POSITIONS`] keys of each of `P` pages, `V` vectors at once, the first of them at `at` in the tile; returns `R`. As many keys may be
    /// asked for meanwhile.
    ///
    /// # Safety
    /// As for [`attend`]; `keys` are valid for `count` steps.
    #[inline(always)]
    unsafe fn score_some<S: Simd, Q: Product<S>, const R: usize, const P: usize, const V: usize>(
        &self,
        s: S,
        count: usize,
        (keys, asked): ([*const Q::Weight; P], Option<[*const Q::Weight; P]>),
        at: usize,
        query: usize,
        state: &mut State<'_>,
    ) -> usize {
        let scale = s.splat(self.shape.scale);
        let (activations, chunk_stride) = (state.q[query * Q::CHUNK..].as_ptr(), state.queries * Q::CHUNK);
        let panel_stride = self.kv.shape().block_size * Q::INPUTS;
        let mut first = 0;
        while first < POSITIONS {
            let weights = keys.map(|keys| keys.wrapping_add(first * Q::INPUTS));
            // A line has the keys of all positions.
            let ask = match asked.filter(|_| first == 0) {
                Some(asked) => {
                    Ask { at: asked.map(<*const _>::cast), stride: panel_stride * size_of::<Q::Weight>() }
                }
                None => Ask::NOTHING,
            };
            let steps = Steps { count, activations, place: 0, chunk_stride, weights, panel_stride, ask };
            // SAFETY: the caller's promise.
            let scores = unsafe { multiply::<S, Q, R, P, V>(s, steps) };
            for (r, scores) in scores.iter().enumerate() {
                for (i, score) in scores.as_flattened().iter().enumerate() {
                    let to = (query + r) * TILE + at + i / V * POSITIONS + first + i % V * S::LANES;
                    s.store_some(&mut state.scores[to..][..S::LANES], s.mul(*score, scale));
                }
            }
            first += V * S::LANES;
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

    /// The next tile, if its values can be asked for line by line: beside the first queries, if they go through the whole tile together, and lines begin where
    /// values do.
    #[inline(always)]
    fn values_beside<'n, S: Simd, T>(
        &self,
        tile: &Range<usize>,
        next: &'n Next,
    ) -> Option<&'n (usize, Range<usize>)> {
        let whole_lines = (self.kv.shape().value_dim() * size_of::<T>()).is_multiple_of(64);
        let mut first = 0..first_queries::<S>(self.count * self.group());
        both_whole(tile, next)
            .filter(|_| whole_lines && first.all(|query| self.seen(query, tile) == (0..TILE)))
    }

    /// Adds the tile's values, weighted by the exponentials, position after position; those of the next may be asked for meanwhile.
    ///
    /// # Safety
    /// As for [`attend`].
    #[inline(always)]
    unsafe fn add_values<S: Simd, T: Stored>(
        &self,
        s: S,
        values: &[T],
        (tile, beside): (&Range<usize>, Option<&(usize, Range<usize>)>),
        state: &mut State<'_>,
    ) {
        let mut query = 0;
        while query < state.queries {
            let beside = beside.filter(|_| query == 0);
            let count = first_queries::<S>(state.queries - query);
            let seen = |i| self.seen(query + i, tile);
            let start = (0..count).map(|i| seen(i).start).max().unwrap_or(0);
            let end = (0..count).map(|i| seen(i).end).min().unwrap_or(0);
            // SAFETY: the caller's promises.
            unsafe {
                if count == 1 || start >= end {
                    for i in 0..count {
                        self.add_range::<S, T, 1>(s, values, (tile, beside), seen(i), query + i, state);
                    }
                } else {
                    // What all see together; before and after it each alone, so that every query's order stays.
                    for i in 0..count {
                        let before = seen(i).start..start;
                        self.add_range::<S, T, 1>(s, values, (tile, None), before, query + i, state);
                    }
                    let (tiles, all) = ((tile, beside), start..end);
                    match count {
                        6 => self.add_range::<S, T, 6>(s, values, tiles, all, query, state),
                        4 => self.add_range::<S, T, 4>(s, values, tiles, all, query, state),
                        _ => self.add_range::<S, T, 2>(s, values, tiles, all, query, state),
                    }
                    for i in 0..count {
                        let behind = end..seen(i).end;
                        self.add_range::<S, T, 1>(s, values, (tile, None), behind, query + i, state);
                    }
                }
            }
            query += count;
        }
    }

    /// `R` queries, positions `range` of the tile; the same of another may be asked for meanwhile.
    ///
    /// # Safety
    /// As for [`attend`].
    #[inline(always)]
    unsafe fn add_range<S: Simd, T: Stored, const R: usize>(
        &self,
        s: S,
        values: &[T],
        (tile, asked): (&Range<usize>, Option<&(usize, Range<usize>)>),
        range: Range<usize>,
        query: usize,
        state: &mut State<'_>,
    ) {
        let kv = self.kv.shape();
        let value_dim = kv.value_dim();
        let mut at = range.start;
        while at < range.end {
            let (page, offset) = self.page(self.head, tile.start + at);
            // Blocks are as long in both tiles, but may begin elsewhere: where lines are asked for, a run ends with either.
            let mut run = (kv.block_size - offset).min(range.end - at);
            let mut asks = std::ptr::null();
            if let Some((head, next)) = asked {
                let (page, offset) = self.page(*head, next.start + at);
                run = run.min(kv.block_size - offset);
                asks = values.as_ptr().wrapping_add((page * kv.block_size + offset) * value_dim);
            }
            let values = &values[(page * kv.block_size + offset) * value_dim..][..run * value_dim];
            let powers = &state.scores[query * TILE + at..];
            let mut dim = 0;
            while dim < value_dim {
                let sums = &mut state.sums[query * value_dim + dim..];
                let values = &values[dim..];
                // Asked for where they begin.
                let begins = !asks.is_null() && (dim * size_of::<T>()).is_multiple_of(64);
                let asks = if begins { asks.wrapping_add(dim) } else { std::ptr::null() };
                let left = (value_dim - dim) / S::LANES;
                // Few queries are few chains of additions: more of them at once do not wait for each other.
                // SAFETY: `run` values of `value_dim`, from `dim`, with so many vectors left of it.
                dim += unsafe {
                    match left {
                        8.. if R == 1 && S::LANES < 16 => {
                            add_some::<S, T, R, 8>(s, (values, asks), value_dim, powers, run, sums)
                        }
                        4.. if R <= 2 || S::REGISTERS >= 32 => {
                            add_some::<S, T, R, 4>(s, (values, asks), value_dim, powers, run, sums)
                        }
                        2.. => add_some::<S, T, R, 2>(s, (values, asks), value_dim, powers, run, sums),
                        _ => add_some::<S, T, R, 1>(s, (values, asks), value_dim, powers, run, sums),
                    }
                };
            }
            at += run;
        }
    }
}

/// How many of so many queries go through the values together first.
#[inline(always)]
fn first_queries<S: Simd>(queries: usize) -> usize {
    match queries {
        6.. if S::REGISTERS >= 32 => 6,
        4.. => 4,
        2.. => 2,
        _ => 1,
    }
}

/// Adds `run` values, `V` vectors of each, to the sums of `R` queries; lines of others, if not null, are asked for beside theirs. Returns the elements done of each value.
///
/// # Safety
/// `values` and each query's `sums` hold that much at a stride of `value_dim`, `powers` at a stride of [`TILE`].
#[inline(always)]
unsafe fn add_some<S: Simd, T: Stored, const R: usize, const V: usize>(
    s: S,
    (values, asks): (&[T], *const T),
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
            if !asks.is_null() {
                for line in (0..V * S::LANES * size_of::<T>()).step_by(64) {
                    s.prefetch(asks.wrapping_add(i * value_dim).cast::<u8>().wrapping_add(line));
                }
            }
            let mut power = [s.splat(0.0); R];
            for (r, power) in power.iter_mut().enumerate() {
                *power = s.splat(*powers.as_ptr().add(r * TILE + i));
            }
            for v in 0..V {
                let value = T::load(s, values.as_ptr().add(i * value_dim + v * S::LANES));
                for (totals, power) in totals.iter_mut().zip(power) {
                    totals[v] = s.mul_add(power, value, totals[v]);
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

/// Stored values, widened when read.
trait Stored: Copy {
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

impl Stored for i8 {
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, at: *const i8) -> S::F {
        // SAFETY: the caller's promise.
        unsafe { s.load_i8(at) }
    }
}

impl Stored for bf16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, at: *const bf16) -> S::F {
        // SAFETY: the caller's promise.
        unsafe { s.load_bf16(at) }
    }
}

/// Keys and values in int8, and the scales of both: `memory/kv_cache.rs` says how they lie.
#[derive(Clone, Copy)]
struct Int8Pages<'a> {
    k: &'a [u32],
    v: &'a [i8],
    k_scales: &'a [f32],
    v_scales: &'a [f32],
}

/// Words behind those of a query's numbers: its scale, and what its dot products begin with.
const BESIDE: usize = 2;

/// Words of four numbers of a query: their bytes, or pairs of 16 bits where products of bytes are split.
const fn words_of_four<S: Simd>() -> usize {
    if S::SPLIT { 2 } else { 1 }
}

impl<S: Simd> KvPages<S> for Int8Pages<'_> {
    type Value = i8;

    #[inline(always)]
    fn query_words(head_dim: usize) -> usize {
        head_dim.div_ceil(4) * words_of_four::<S>() + BESIDE
    }

    /// The largest element becomes 127 or -127.
    #[inline(always)]
    fn lay(_s: S, q: &[f32], packed: &mut [f32], slot: usize, _queries: usize) {
        let words = q.len().div_ceil(4) * words_of_four::<S>();
        let to = &mut packed[slot * (words + BESIDE)..][..words + BESIDE];
        let scaled = Scaled::of(q);
        let mut sum = 0;
        for (to, four) in to[..words].chunks_exact_mut(words_of_four::<S>()).zip(q.chunks(4)) {
            let mut bytes = [0; 4];
            for (byte, x) in bytes.iter_mut().zip(four) {
                let number = scaled.number(*x);
                *byte = number.cast_unsigned();
                sum += i32::from(number);
            }
            let four = u32::from_le_bytes(bytes);
            let all = if S::SPLIT { shorts(four) } else { [four, 0] };
            to.iter_mut().zip(all).for_each(|(to, word)| *to = f32::from_bits(word));
        }
        to[words] = scaled.scale;
        // Unsigned keys are 128 more.
        to[words + 1] = f32::from_bits(if S::SIGNED { 0 } else { (-128 * sum).cast_unsigned() });
    }

    #[inline(always)]
    fn values(&self) -> &[i8] {
        self.v
    }

    #[inline(always)]
    unsafe fn score(&self, s: S, item: &Item<'_>, tile: &Range<usize>, next: &Next, state: &mut State<'_>) {
        // Words of four elements have other rows than `Ask` goes by.
        item.ask_for(s, self.k, item.kv.shape().key_words(), next);
        let mut query = 0;
        while query < state.queries {
            let left = state.queries - query;
            // SAFETY: the caller's promise; `left` queries are there.
            query += unsafe {
                match (left, tile.len() == TILE) {
                    (4.., true) if S::REGISTERS >= 32 => self.some::<S, 4, 4>(s, item, tile, query, state),
                    (2.., true) => self.some::<S, 2, 4>(s, item, tile, query, state),
                    (_, true) => self.some::<S, 1, 4>(s, item, tile, query, state),
                    (4.., false) => self.some::<S, 4, 1>(s, item, tile, query, state),
                    (_, false) => self.some::<S, 1, 1>(s, item, tile, query, state),
                }
            };
        }
    }

    #[inline(always)]
    fn weigh(&self, s: S, item: &Item<'_>, tile: &Range<usize>, state: &mut State<'_>) {
        let block_size = item.kv.shape().block_size;
        let mut scales = [0.0; TILE];
        for (to, position) in scales.chunks_exact_mut(POSITIONS).zip(tile.clone().step_by(POSITIONS)) {
            let (page, offset) = item.page(item.head, position);
            to.copy_from_slice(&self.v_scales[page * block_size + offset..][..POSITIONS]);
        }
        for powers in state.scores[..state.queries * TILE].chunks_exact_mut(TILE) {
            for (powers, scales) in powers.chunks_exact_mut(S::LANES).zip(scales.chunks_exact(S::LANES)) {
                s.store_some(powers, s.mul(s.load_some(powers), s.load_some(scales)));
            }
        }
    }
}

impl Int8Pages<'_> {
    /// The scores of `R` queries, with `P` times [`POSITIONS`] keys at a time; returns `R`.
    ///
    /// # Safety
    /// As for [`attend`]; there are `R` queries from `query` on, and the tile has whole runs of `P` times [`POSITIONS`].
    #[inline(always)]
    unsafe fn some<S: Simd, const R: usize, const P: usize>(
        &self,
        s: S,
        item: &Item<'_>,
        tile: &Range<usize>,
        query: usize,
        state: &mut State<'_>,
    ) -> usize {
        let shape = item.kv.shape();
        let (block_size, words) = (shape.block_size, shape.key_words());
        let numbers = words * words_of_four::<S>();
        let queries = &state.q[query * (numbers + BESIDE)..(query + R) * (numbers + BESIDE)];
        for start in tile.clone().step_by(P * POSITIONS) {
            let places: [(usize, usize); P] =
                std::array::from_fn(|p| item.page(item.head, start + p * POSITIONS));
            for first in (0..POSITIONS).step_by(S::LANES) {
                let keys = places.map(|(page, offset)| {
                    self.k[page * words * block_size..(page + 1) * words * block_size][offset + first..]
                        .as_ptr()
                });
                let scales = places.map(|(page, offset)| {
                    self.k_scales[page * block_size + offset + first..][..S::LANES].as_ptr()
                });
                // SAFETY: a page has `words` rows of `block_size` words, and `POSITIONS` from its offset are in it; so are scales, sliced
                // above; queries are sliced above.
                unsafe {
                    let mut dots = [[s.splat_u32(0); P]; R];
                    for (r, dots) in dots.iter_mut().enumerate() {
                        let offset = *queries.as_ptr().add(r * (numbers + BESIDE) + numbers + 1);
                        *dots = [s.splat_u32(offset.to_bits()); P];
                    }
                    for w in 0..words {
                        let mut four = [s.splat_u32(0); P];
                        for (four, keys) in four.iter_mut().zip(keys) {
                            *four = s.load_u32(keys.add(w * block_size));
                            if S::SIGNED {
                                *four = s.xor_u32(*four, s.splat_u32(0x8080_8080));
                            }
                        }
                        for part in 0..words_of_four::<S>() {
                            let mut factors = four;
                            if S::SPLIT {
                                for two in &mut factors {
                                    *two = half_of(s, *two, part);
                                }
                            }
                            for (r, dots) in dots.iter_mut().enumerate() {
                                let at = r * (numbers + BESIDE) + w * words_of_four::<S>() + part;
                                let x = s.splat_u32((*queries.as_ptr().add(at)).to_bits());
                                for (dot, factors) in dots.iter_mut().zip(factors) {
                                    *dot = if S::SPLIT {
                                        s.dot_shorts(*dot, factors, x)
                                    } else {
                                        s.dot_bytes(*dot, factors, x)
                                    };
                                }
                            }
                        }
                    }
                    for (r, dots) in dots.into_iter().enumerate() {
                        let scale =
                            *queries.as_ptr().add(r * (numbers + BESIDE) + numbers) * item.shape.scale;
                        for (p, (dot, scales)) in dots.into_iter().zip(scales).enumerate() {
                            let to = (query + r) * TILE + start - tile.start + p * POSITIONS + first;
                            let scales = s.mul(s.load(scales), s.splat(scale));
                            s.store_some(&mut state.scores[to..][..S::LANES], s.mul(s.to_f32(dot), scales));
                        }
                    }
                }
            }
        }
        R
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::asked;
    use crate::{Dtype, Isa, Partition, Tensor};

    /// Where a cache has its keys and its values, and bytes of a number of each.
    fn starts(kv: &KvCache) -> [(usize, usize); 2] {
        match kv.pages() {
            Pages::F32 { k, v } => [(k.as_ptr().addr(), 4), (v.as_ptr().addr(), 4)],
            Pages::Bf16 { k, v } => [(k.as_ptr().addr(), 2), (v.as_ptr().addr(), 2)],
            Pages::Int8 { k, v, .. } => [(k.as_ptr().addr(), 4), (v.as_ptr().addr(), 1)],
        }
    }

    /// What is asked for by a row at the last of 291 positions: line by line beside a whole tile, if the next one is whole too, else whole pages.
    fn expected(kv: &KvCache, window: Option<usize>, table: &[u32]) -> Vec<usize> {
        const SEEN: usize = 291;
        let (shape, [(keys, key_bytes), (values, value_bytes)]) = (*kv.shape(), starts(kv));
        let (block_size, int8) = (shape.block_size, kv.dtype() == Dtype::Int8);
        let key_width = if int8 { shape.key_words() } else { shape.head_dim };
        let row_bytes = shape.value_dim() * value_bytes;
        let begin = SEEN - window.unwrap_or(SEEN);
        let tiles: Vec<Range<usize>> =
            (begin / TILE * TILE..SEEN).step_by(TILE).map(|start| start..SEEN.min(start + TILE)).collect();
        let all = (0..shape.kv_heads).flat_map(|head| tiles.iter().map(move |tile| (head, tile.clone())));
        let all: Vec<(usize, Range<usize>)> = all.collect();
        let mut lines = Vec::new();
        for pair in all.windows(2) {
            let [(_, tile), (head, next)] = pair else { unreachable!("two") };
            let page = |position: usize| shape.page(1, table[position / block_size], *head);
            let mut pages = |start: usize, bytes: usize| {
                for block in next.start / block_size..next.end.div_ceil(block_size) {
                    let page = start + page(block * block_size) * bytes;
                    lines.extend((page..page + bytes).step_by(64));
                }
            };
            let both_whole = tile.len() == TILE && next.len() == TILE;
            let (keys_beside, values_beside) =
                (both_whole && !int8, both_whole && tile.start >= begin && row_bytes % 64 == 0);
            if !keys_beside {
                pages(keys, block_size * key_width * key_bytes);
            }
            if !values_beside {
                pages(values, block_size * row_bytes);
            }
            if keys_beside {
                // A line has 16 positions of a pair of elements, or of one of f32.
                let rows = key_width * key_bytes / 4;
                for position in next.clone().step_by(POSITIONS) {
                    let page = keys + page(position) * block_size * key_width * key_bytes;
                    let at = page + position % block_size * 4;
                    lines.extend((0..rows).map(|row| at + row * block_size * 4));
                }
            }
            if values_beside {
                for position in next.clone() {
                    let at = values + (page(position) * block_size + position % block_size) * row_bytes;
                    lines.extend((at..at + row_bytes).step_by(64));
                }
            }
        }
        lines.sort_unstable();
        lines
    }

    #[test]
    fn the_lines_that_come_next_are_asked_for_once_and_no_others() {
        let mut cases = Vec::new();
        for isa in Isa::available() {
            for dtype in [Dtype::F32, Dtype::Bf16, Dtype::Int8] {
                for group in [1, 2, 5, 9] {
                    for (block_size, head_dim) in [(16, 20), (16, 64), (48, 64), (256, 64), (16, 80)] {
                        cases.push((isa, dtype, group, block_size, head_dim));
                    }
                }
            }
        }
        for (isa, dtype, group, block_size, head_dim) in cases {
            let lane = Lane::new(&Partition { cores: vec![0] }, isa).unwrap();
            let shape = KvShape { layers: 2, blocks: 20, block_size, kv_heads: 2, head_dim };
            let kv = KvCache::new(shape, dtype).unwrap();
            let table: Vec<u32> = (0..20).map(|block| block * 7 % 20).collect();
            let rows = Rows { positions: &[290], table_of: &[0], tables: &[&table] };
            let heads = 2 * group;
            let (q, mut out) = (Tensor::zeros(1, heads * head_dim), Tensor::zeros(1, heads * head_dim));
            // The second window begins inside a tile that another whole one follows.
            for window in [None, Some(150), Some(40)] {
                let attended =
                    AttentionShape { heads, scale: 1.0, soft_cap: None, window, first: 0, sinks: None };
                let mut found = asked::during(|| {
                    attention(&lane, q.view(1), &kv, 1, rows, attended, out.view_mut(1));
                });
                found.sort_unstable();
                let what = format!("{isa} {dtype} {group} {block_size} {head_dim} {window:?}");
                assert!(found == expected(&kv, window, &table), "{what}");
            }
        }
    }
}
