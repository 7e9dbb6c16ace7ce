//! By how much alternatives beat a proposal: what a verify pass asks of a row that is still under way.

use super::Sampling;
use super::noise::Noise;

/// By how much, in logits, the best of `alternatives` beats `proposal` at `position` (as in [`super::SampleRow`]): the difference of what the
/// sampler compares, scaled logits with the request's noise, times the temperature; greedy, the difference of the logits. `scores`
/// are logits of the alternatives, one each, `own` is that of the proposal; an alternative that is the proposal itself is skipped.
///
/// Where the alternatives are all there is, it is at most 0 exactly when the sampler takes the proposal: a tie that goes to an alternative, of lower
/// token, is the least positive number. Scores that are not finite are never drawn: as an alternative one does not count, as `own` it
/// loses to any alternative, by infinity. Without an alternative: negative infinity. The request's logit bias and the tokens that it never has drawn count;
/// its penalties, top-k, top-p and min-p are ignored.
///
/// # Panics
/// If there is not one score per alternative.
#[must_use]
pub fn margin(
    sampling: &Sampling,
    position: u32,
    proposal: u32,
    alternatives: &[u32],
    scores: &[f32],
    own: f32,
) -> f32 {
    assert_eq!(alternatives.len(), scores.len(), "margin: one score per alternative");
    let greedy = sampling.is_greedy();
    let noise = Noise::new(sampling.seed, position);
    let value = |token: u32, score: f32| {
        let of_token = sampling.logit_bias.iter().filter(|(biased, _)| *biased == token);
        let logit = of_token.fold(score, |logit, (_, bias)| logit + bias);
        // The sampler's own operations in its order: the comparison comes out as it does there.
        if greedy { logit } else { logit * (1.0 / sampling.temperature) + noise.of(token) }
    };
    let mut best: Option<(f32, u32)> = None;
    for (&alternative, &score) in alternatives
        .iter()
        .zip(scores)
        .filter(|(alternative, _)| **alternative != proposal && !sampling.never(**alternative))
    {
        let value = value(alternative, score);
        let leads = best.is_none_or(|(v, token)| value > v || (value == v && alternative < token));
        if value.is_finite() && leads {
            best = Some((value, alternative));
        }
    }
    let own = value(proposal, own);
    match best {
        None => f32::NEG_INFINITY,
        Some(_) if !own.is_finite() => f32::INFINITY,
        Some((value, alternative)) if value == own => {
            if alternative < proposal {
                f32::MIN_POSITIVE
            } else {
                0.0
            }
        }
        Some((value, _)) => (value - own) * if greedy { 1.0 } else { sampling.temperature },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{History, Isa, Lane, Partition, SampleRow, Tensor, ops};

    const VOCABULARY: u32 = 11;

    /// Logits of few levels, so that some are equal.
    fn logits(position: u32) -> Vec<f32> {
        let at = |token: u32| (token + 1).wrapping_mul((position + 1).wrapping_mul(0x9e37_79b9)) >> 20;
        (0..VOCABULARY).map(|token| (at(token) % 9) as f32 / 2.0 - 2.0).collect()
    }

    fn sampled(isa: Isa, sampling: &Sampling, position: u32, logits: &[f32]) -> u32 {
        let lane = Lane::new(&Partition { cores: vec![0] }, isa).unwrap();
        let history = History::new(position as usize, &vec![0; position as usize], sampling);
        let row = SampleRow { row: 0, position, sampling, history: &history, since: &[], allowed: None };
        let mut out = [0];
        ops::sample(&lane, Tensor::from_rows(logits.len(), logits).view(1), &[row], &mut out);
        out[0]
    }

    #[test]
    fn it_is_positive_exactly_where_the_sampler_takes_another_token() {
        let all: Vec<u32> = (0..VOCABULARY).collect();
        let mut ties = 0;
        for isa in Isa::available() {
            for temperature in [0.0, 0.3, 1.0, 1.7] {
                for position in 0..150 {
                    let bias =
                        if position % 3 == 0 { vec![(4, 1.5), (7, -100.0), (4, 0.25)] } else { vec![] };
                    let sampling =
                        Sampling { temperature, seed: 77, logit_bias: bias, ..Sampling::default() };
                    let logits = logits(position);
                    let drawn = sampled(isa, &sampling, position, &logits);
                    for proposal in all.iter().copied() {
                        let margin =
                            margin(&sampling, position, proposal, &all, &logits, logits[proposal as usize]);
                        ties += usize::from(margin == f32::MIN_POSITIVE);
                        assert_eq!(
                            margin <= 0.0,
                            drawn == proposal,
                            "{isa} temperature {temperature} position {position}: {margin} for {proposal}, drawn {drawn}"
                        );
                    }
                }
            }
        }
        assert!(ties > 10, "ties were not tested");
    }

    #[test]
    fn it_is_in_logits_of_the_best_other_alternative() {
        let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
        assert_eq!(margin(&greedy, 5, 3, &[7, 3, 9], &[2.0, 9.0, 3.5], 1.0), 2.5);
        assert_eq!(margin(&greedy, 5, 3, &[7, 3, 9], &[2.0, 9.0, 3.5], 4.0), -0.5);
        // What a logit more for the alternative changes is one, at any temperature.
        for temperature in [0.0, 0.5, 3.0] {
            let sampling = Sampling { temperature, seed: 9, ..Sampling::default() };
            let [less, more] =
                [2.0, 3.0].map(|score| margin(&sampling, 5, 3, &[7, 9], &[score, -100.0], 1.0));
            assert!((more - less - 1.0).abs() < 1e-5, "{temperature}: {less} {more}");
        }
    }

    #[test]
    fn what_cannot_be_drawn_does_not_count() {
        let sampling = Sampling::default();
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        assert_eq!(margin(&sampling, 0, 3, &[], &[], 1.0), -inf);
        assert_eq!(margin(&sampling, 0, 3, &[3, 3], &[9.0, 9.0], 1.0), -inf);
        assert_eq!(margin(&sampling, 0, 3, &[1, 2], &[inf, nan], 1.0), -inf);
        assert_eq!(margin(&sampling, 0, 3, &[1, 2, 4], &[inf, 1.0, nan], -inf), inf);
        assert_eq!(margin(&sampling, 0, 3, &[1, 2, 4], &[inf, 1.0, nan], nan), inf);
    }
}
