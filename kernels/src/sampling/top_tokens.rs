//! The likeliest few tokens of a row, without sorting the vocabulary.

use crate::isa::Supported;
use crate::memory::View;
use crate::simd::{Kernel, Simd, dispatch};
use crate::{Lane, Op};

/// How many tokens [`top_tokens`] finds in each row.
pub const TOP_TOKENS: usize = 8;

/// The tokens of the largest logits of each row, the largest first; of equal ones the lower token. Logits that are not finite do
/// not count; places that are left over repeat the first token, which is 0 if no logit is finite.
///
/// # Panics
/// If `out` is not as long as `logits` has rows.
pub fn top_tokens(lane: &Lane, logits: View<'_>, out: &mut [[u32; TOP_TOKENS]]) {
    assert_eq!(out.len(), logits.rows(), "top_tokens: one place per row");
    let out = crate::memory::SharedMut::new(out);
    let isa = lane.supported();
    lane.for_each(Op::TopTokens, logits.rows(), logits.cols() / 16, |r, _| {
        // SAFETY: each row is one item, done once.
        let place = unsafe { out.part(r, 1) };
        let Best { mut tokens, found, .. } = likeliest(isa, logits.row(r));
        let likeliest = tokens[0];
        tokens[found..].fill(likeliest);
        place[0] = tokens;
    });
}

/// The `N` largest logits of a row.
pub(super) fn likeliest<const N: usize>(isa: Supported, logits: &[f32]) -> Best<N> {
    dispatch(isa, Top { logits })
}

/// The best so far, the largest first.
pub(super) struct Best<const N: usize> {
    pub(super) logits: [f32; N],
    pub(super) tokens: [u32; N],
    pub(super) found: usize,
}

impl<const N: usize> Best<N> {
    /// What a logit must be above: equal ones of later, higher tokens lose.
    #[inline(always)]
    fn bar(&self) -> f32 {
        self.logits[N - 1]
    }

    /// Tokens come in ascending order.
    #[inline(always)]
    fn offer(&mut self, logit: f32, token: u32) {
        // Not above -inf, where the bar starts: not finite.
        if logit > self.bar() && logit < f32::INFINITY {
            let at = self.logits.iter().take_while(|better| **better >= logit).count();
            self.logits.copy_within(at..N - 1, at + 1);
            self.tokens.copy_within(at..N - 1, at + 1);
            (self.logits[at], self.tokens[at]) = (logit, token);
            self.found = N.min(self.found + 1);
        }
    }
}

struct Top<'a, const N: usize> {
    logits: &'a [f32],
}

/// Vectors that are looked at together: nearly always none of them has anything above the bar.
const BLOCK: usize = 8;

impl<const N: usize> Kernel for Top<'_, N> {
    type Output = Best<N>;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Best<N> {
        let mut best = Best { logits: [f32::NEG_INFINITY; N], tokens: [0; N], found: 0 };
        let blocks = self.logits.chunks_exact(BLOCK * S::LANES);
        let rest = blocks.remainder();
        for (i, block) in blocks.enumerate() {
            let bar = s.splat(best.bar());
            let mut highest = bar;
            for vector in block.chunks_exact(S::LANES) {
                // In this order a NaN leaves `highest` as it is.
                highest = s.max(s.load_some(vector), highest);
            }
            if s.any(s.less(bar, highest)) {
                for (v, vector) in block.chunks_exact(S::LANES).enumerate() {
                    if s.any(s.less(s.splat(best.bar()), s.load_some(vector))) {
                        let first = (i * BLOCK + v) * S::LANES;
                        vector.iter().zip(first as u32..).for_each(|(z, token)| best.offer(*z, token));
                    }
                }
            }
        }
        let first = self.logits.len() - rest.len();
        rest.iter().zip(first as u32..).for_each(|(z, token)| best.offer(*z, token));
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Isa, Partition, Tensor};
    use proptest::prelude::*;

    fn found(isa: Isa, cols: usize, logits: &[f32]) -> Vec<[u32; TOP_TOKENS]> {
        let lane = Lane::new(&Partition { cores: vec![0, 0] }, isa).unwrap();
        let tensor = Tensor::from_rows(cols, logits);
        let mut out = vec![[u32::MAX; TOP_TOKENS]; logits.len() / cols];
        top_tokens(&lane, tensor.view(out.len()), &mut out);
        out
    }

    fn sorted(logits: &[f32]) -> [u32; TOP_TOKENS] {
        let mut tokens: Vec<u32> = (0..logits.len() as u32).collect();
        tokens.retain(|token| logits[*token as usize].is_finite());
        // Stable: equal logits stay in the order of their tokens.
        tokens.sort_by(|a, b| logits[*b as usize].partial_cmp(&logits[*a as usize]).unwrap());
        let likeliest = tokens.first().copied().unwrap_or(0);
        std::array::from_fn(|i| tokens.get(i).copied().unwrap_or(likeliest))
    }

    #[test]
    fn missing_tokens_are_the_likeliest_again() {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        for isa in Isa::available() {
            assert_eq!(found(isa, 3, &[1.0, 3.0, 2.0]), [[1, 2, 0, 1, 1, 1, 1, 1]], "{isa}");
            assert_eq!(
                found(isa, 4, &[nan, -inf, inf, nan, 5.0, inf, 6.0, -inf]),
                [[0; 8], [2, 0, 2, 2, 2, 2, 2, 2]]
            );
            // A NaN behind a large logit, in the same lane of every vector, hides nothing.
            let mut logits = vec![nan; 1000];
            logits[0] = 1.0;
            logits[517] = 2.0;
            assert_eq!(found(isa, 1000, &logits), [[517, 0, 517, 517, 517, 517, 517, 517]], "{isa}");
        }
    }

    #[test]
    fn ascending_logits_and_equal_ones_are_in_order() {
        let ascending: Vec<f32> = (0..3000).map(|i| i as f32).collect();
        for isa in Isa::available() {
            assert_eq!(found(isa, 3000, &ascending)[0], std::array::from_fn(|i| 2999 - i as u32), "{isa}");
            assert_eq!(found(isa, 3000, &[-0.5; 3000])[0], std::array::from_fn(|i| i as u32), "{isa}");
        }
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_sort(
            cols in 1usize..700, rows in 1usize..4, levels in 1u32..2000, odd in 0u32..40, seed in any::<u32>(),
        ) {
            // Few levels: many are equal. Some are not finite.
            let mut state = seed | 1;
            let mut next = || {
                state ^= state << 13;
                state ^= state >> 17;
                state ^= state << 5;
                state
            };
            let logits: Vec<f32> = (0..rows * cols).map(|_| match next() % 100 {
                chance if chance < odd => [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][next() as usize % 3],
                _ => (next() % levels) as f32 / 7.0 - 100.0,
            }).collect();
            let expected: Vec<_> = logits.chunks(cols).map(sorted).collect();
            for isa in Isa::available() {
                prop_assert_eq!(&found(isa, cols, &logits), &expected, "{}", isa);
            }
        }
    }
}
