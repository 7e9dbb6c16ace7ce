//! Pages in int8: see `memory/kv_cache.rs` for how they lie.

use super::{Item, KvPages, State, TILE};
use crate::memory::POSITIONS;
use crate::simd::Simd;
use std::ops::Range;

/// Keys and values, and the scales of both.
#[derive(Clone, Copy)]
pub(super) struct Int8Pages<'a> {
    pub(super) k: &'a [u32],
    pub(super) v: &'a [i8],
    pub(super) k_scales: &'a [f32],
    pub(super) v_scales: &'a [f32],
}

/// Words behind those of a query's numbers: its scale, and what its dot products begin with.
const BESIDE: usize = 2;
/// If all elements are smaller they are zero: their inverse would be none.
const TINY: f32 = 1e-35;
/// Adding it rounds a small number to an integer, ties to even, which stands in the low bits.
const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23

impl<S: Simd> KvPages<S> for Int8Pages<'_> {
    type Value = i8;

    #[inline(always)]
    fn query_words(head_dim: usize) -> usize {
        head_dim.div_ceil(4) + BESIDE
    }

    /// The largest element becomes 127 or -127.
    #[inline(always)]
    fn lay(_s: S, q: &[f32], packed: &mut [f32], slot: usize, _queries: usize) {
        let words = q.len().div_ceil(4);
        let to = &mut packed[slot * (words + BESIDE)..][..words + BESIDE];
        let largest = q.iter().fold(0, |most: u32, x| most.max(x.abs().to_bits()));
        let largest = f32::from_bits(largest);
        let inverse = if largest > TINY { 127.0 / largest } else { 0.0 };
        let mut sum = 0;
        for (to, four) in to.iter_mut().zip(q.chunks(4)) {
            let mut bytes = [0; 4];
            for (byte, x) in bytes.iter_mut().zip(four) {
                *byte = (x * inverse + ROUND).to_bits() as u8;
                sum += i32::from(byte.cast_signed());
            }
            *to = f32::from_bits(u32::from_le_bytes(bytes));
        }
        to[words] = if largest.is_finite() { largest * (1.0 / 127.0) } else { f32::NAN };
        // Unsigned keys are 128 more.
        to[words + 1] = f32::from_bits(if S::SIGNED { 0 } else { (-128 * sum).cast_unsigned() });
    }

    #[inline(always)]
    fn values(&self) -> &[i8] {
        self.v
    }

    #[inline(always)]
    fn ask_for_keys(&self, s: S, item: &Item<'_>, tile: &Range<usize>, all: &Range<usize>) {
        item.ask_for_next(s, self.k, item.kv.shape().key_words(), tile, all);
    }

    #[inline(always)]
    unsafe fn score(&self, s: S, item: &Item<'_>, tile: &Range<usize>, state: &mut State<'_>) {
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
            let (page, offset) = item.page(position);
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
    /// As for [`super::attend`]; there are `R` queries from `query` on, and the tile has whole runs of `P` times [`POSITIONS`].
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
        let queries = &state.q[query * (words + BESIDE)..(query + R) * (words + BESIDE)];
        for start in tile.clone().step_by(P * POSITIONS) {
            let places: [(usize, usize); P] = std::array::from_fn(|p| item.page(start + p * POSITIONS));
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
                        let offset = *queries.as_ptr().add(r * (words + BESIDE) + words + 1);
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
                        for (r, dots) in dots.iter_mut().enumerate() {
                            let x = *queries.as_ptr().add(r * (words + BESIDE) + w);
                            let x = s.splat_u32(x.to_bits());
                            for (dot, four) in dots.iter_mut().zip(four) {
                                *dot = s.dot_bytes(*dot, four, x);
                            }
                        }
                    }
                    for (r, dots) in dots.into_iter().enumerate() {
                        let scale = *queries.as_ptr().add(r * (words + BESIDE) + words) * item.shape.scale;
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
