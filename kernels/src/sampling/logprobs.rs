//! Log-probabilities: of a row's token, and of the likeliest, under the softmax of the plain logits.

use super::confidence::Exponentials;
use super::top_tokens::{Best, likeliest};
use crate::memory::View;
use crate::simd::dispatch;
use crate::{Lane, Op};

/// How many of the likeliest tokens can be asked for.
pub const MAX_TOP_LOGPROBS: usize = 20;

/// Logits that are summed up in f32; the sums of such parts are added in f64.
const PART: usize = 4096;

/// A row of logits, and what is asked of it.
#[derive(Clone, Copy, Debug)]
pub struct LogprobRow {
    /// Row of the logits.
    pub row: usize,
    /// The token whose log-probability is wanted.
    pub token: u32,
    /// How many of the likeliest tokens are wanted; more than [`MAX_TOP_LOGPROBS`] is as many as that.
    pub top: usize,
}

/// Natural logarithms of probabilities, before bias, penalties, temperature, and whatever else may keep a token from being drawn.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Logprobs {
    /// The token.
    pub token: u32,
    /// Its log-probability; negative infinity if its logit is not finite.
    pub logprob: f32,
    /// The likeliest tokens and their log-probabilities, the likeliest first; of equal ones the lower token.
    pub top: Vec<(u32, f32)>,
}

/// The log-probabilities that are asked for, in the order of `rows`.
///
/// # Panics
/// If `out` is not as long as `rows`, or a row or a token does not exist.
pub fn logprobs(lane: &Lane, logits: View<'_>, rows: &[LogprobRow], out: &mut [Logprobs]) {
    assert_eq!(rows.len(), out.len(), "logprobs: one place per row");
    let out = crate::memory::SharedMut::new(out);
    let isa = lane.supported();
    lane.for_each(Op::Logprobs, rows.len(), logits.cols(), |i, _| {
        let LogprobRow { row, token, top } = rows[i];
        let logits = logits.row(row);
        let best: Best<MAX_TOP_LOGPROBS> = likeliest(isa, logits);
        let largest = best.logits[0];
        let parts = logits.chunks(PART);
        let sum: f64 = parts.map(|logits| f64::from(dispatch(isa, Exponentials { logits, largest }))).sum();
        let normaliser = f64::from(largest) + sum.ln();
        let of = |logit| logprob(logit, normaliser);
        let likeliest = best.tokens.iter().zip(best.logits).take(best.found.min(top));
        // SAFETY: each row is one item, done once.
        let place = unsafe { out.part(i, 1) };
        place[0] = Logprobs {
            token,
            logprob: of(logits[token as usize]),
            top: likeliest.map(|(token, logit)| (*token, of(logit))).collect(),
        };
    });
}

/// The logarithm of a token's probability.
pub(crate) fn logprob(logit: f32, normaliser: f64) -> f32 {
    let logprob = (f64::from(logit) - normaliser) as f32;
    // Of logits that are no numbers, nothing can be said.
    if logprob <= 0.0 {
        logprob
    } else if logprob < 1e-3 {
        0.0
    } else {
        f32::NEG_INFINITY
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Isa, Partition, Tensor};

    fn of(isa: Isa, cols: usize, logits: &[f32], rows: &[LogprobRow]) -> Vec<Logprobs> {
        let lane = Lane::new(&Partition { cores: vec![0, 0] }, isa).unwrap();
        let tensor = Tensor::from_rows(cols, logits);
        let mut out = vec![Logprobs::default(); rows.len()];
        logprobs(&lane, tensor.view(logits.len() / cols), rows, &mut out);
        out
    }

    #[test]
    fn they_are_the_logarithm_of_the_softmax_in_any_order_of_rows() {
        let cols = 9001;
        let logits: Vec<f32> = (0..2 * cols).map(|i| ((i * 7919) % 10_007) as f32 / 900.0 - 5.0).collect();
        let rows: Vec<LogprobRow> =
            (0..40).map(|i| LogprobRow { row: i % 2, token: (i * 223) as u32, top: i % 22 }).collect();
        for isa in Isa::available() {
            for (asked, found) in rows.iter().zip(of(isa, cols, &logits, &rows)) {
                let row = &logits[asked.row * cols..][..cols];
                let normaliser = row.iter().map(|&z| f64::from(z).exp()).sum::<f64>().ln();
                let near = |token: u32, found: f32| {
                    let expected = f64::from(row[token as usize]) - normaliser;
                    assert!((f64::from(found) - expected).abs() < 1e-5, "{isa}: {found} {expected}");
                };
                assert_eq!(found.token, asked.token);
                near(found.token, found.logprob);
                let mut sorted: Vec<u32> = (0..cols as u32).collect();
                sorted.sort_by(|a, b| row[*b as usize].partial_cmp(&row[*a as usize]).unwrap());
                let tokens: Vec<u32> = found.top.iter().map(|(token, _)| *token).collect();
                assert_eq!(tokens, sorted[..asked.top.min(MAX_TOP_LOGPROBS)], "{isa}");
                found.top.iter().for_each(|(token, logprob)| near(*token, *logprob));
            }
        }
    }

    #[test]
    fn what_has_no_finite_logit_has_no_probability() {
        let (out, nan) = (f32::NEG_INFINITY, f32::NAN);
        for isa in Isa::available() {
            let ask = |token| LogprobRow { row: 0, token, top: 3 };
            let found = of(isa, 2, &[out, 1.0], &[ask(0), ask(1)]);
            assert_eq!((found[0].logprob, found[1].logprob), (out, 0.0), "{isa}");
            assert_eq!(found[0].top, [(1, 0.0)]);
            let found = of(isa, 2, &[nan, 1.0], &[ask(0), ask(1)]);
            assert_eq!((found[0].logprob, found[1].logprob), (out, out), "{isa}");
        }
    }
}
