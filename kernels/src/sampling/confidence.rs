//! How sure a model is of a token: its probability under the softmax of the plain logits, among the tokens that may be drawn.

use super::choose::Greedy;
use super::mask;
use crate::memory::View;
use crate::simd::{Kernel, Simd, dispatch, exp};
use crate::{Lane, Op};

/// The probability each row's logits give to its token, 0 to 1; before bias, penalties and temperature, and among the tokens that are
/// `allowed` in its row (as in [`super::SampleRow`]), where there is an entry for it. 0 for a token whose logit is not finite.
///
/// # Panics
/// If `tokens` or `out` are not as long as `logits` has rows, or a token is no column.
pub fn confidence(
    lane: &Lane,
    logits: View<'_>,
    tokens: &[u32],
    allowed: &[Option<&[u32]>],
    out: &mut [f32],
) {
    assert_eq!(
        (tokens.len(), out.len()),
        (logits.rows(), logits.rows()),
        "confidence: one token and one place per row"
    );
    let out = crate::memory::SharedMut::new(out);
    let isa = lane.supported();
    lane.for_each(Op::Confidence, tokens.len(), logits.cols(), |i, scratch| {
        let mut logits = logits.row(i);
        if let Some(allowed) = allowed.get(i).copied().flatten() {
            let [some] = scratch.floats([logits.len()]);
            some.copy_from_slice(logits);
            mask::only(allowed, 0, some);
            logits = some;
        }
        let largest = dispatch(isa, Greedy { logits, first: 0 }).logit;
        let sum = dispatch(isa, Exponentials { logits, largest });
        let probability = (logits[tokens[i] as usize] - largest).exp() / sum;
        // SAFETY: each row is one item, done once.
        let place = unsafe { out.part(i, 1) };
        place[0] = if probability.is_finite() { probability } else { 0.0 };
    });
}

/// The sum of `e^(logit - largest)`.
pub(super) struct Exponentials<'a> {
    pub(super) logits: &'a [f32],
    pub(super) largest: f32,
}

impl Kernel for Exponentials<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let largest = s.splat(self.largest);
        let mut sum = s.splat(0.0);
        let mut chunks = self.logits.chunks_exact(S::LANES);
        for chunk in &mut chunks {
            sum = s.add(sum, exp(s, s.sub(s.load_some(chunk), largest)));
        }
        let rest: f32 = chunks.remainder().iter().map(|logit| (logit - self.largest).exp()).sum();
        s.sum(sum) + rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Isa, Partition, Tensor};

    #[test]
    fn confidence_is_the_softmax() {
        let cols = 37;
        let logits: Vec<f32> = (0..2 * cols).map(|i| ((i * 7919) % 101) as f32 / 9.0 - 5.0).collect();
        let tensor = Tensor::from_rows(cols, &logits);
        for isa in Isa::available() {
            let lane = Lane::new(&Partition { cores: vec![0] }, isa).unwrap();
            for token in 0..cols as u32 {
                let mut out = [0.0; 2];
                confidence(&lane, tensor.view(2), &[token; 2], &[], &mut out);
                for (row, found) in logits.chunks(cols).zip(out) {
                    let sum: f64 = row.iter().map(|&z| f64::from(z).exp()).sum();
                    let expected = f64::from(row[token as usize]).exp() / sum;
                    assert!((f64::from(found) / expected - 1.0).abs() < 1e-5, "{isa}: {found} {expected}");
                }
            }
        }
    }

    #[test]
    fn what_cannot_be_drawn_has_no_confidence() {
        let lane = Lane::new(&Partition { cores: vec![0] }, Isa::Portable).unwrap();
        let tensor = Tensor::from_rows(2, &[f32::NEG_INFINITY, 1.0, f32::NEG_INFINITY, f32::NEG_INFINITY]);
        let mut out = [9.0; 2];
        confidence(&lane, tensor.view(2), &[0, 1], &[], &mut out);
        assert_eq!(out, [0.0, 0.0]);
    }

    #[test]
    fn tokens_that_may_not_be_drawn_do_not_share_in_it() {
        for isa in Isa::available() {
            let lane = Lane::new(&Partition { cores: vec![0] }, isa).unwrap();
            let tensor = Tensor::from_rows(3, &[2.0, 9.0, 2.0, 2.0, 9.0, 2.0]);
            let mut out = [9.0; 2];
            confidence(&lane, tensor.view(2), &[0, 2], &[Some(&[0b101]), Some(&[0b100])], &mut out);
            assert!((out[0] - 0.5).abs() < 1e-6 && out[1] == 1.0, "{isa}: {out:?}");
        }
    }
}
