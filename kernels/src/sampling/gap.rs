//! By how much rivals beat a proposal: what a verify pass asks of a row that is still under way.

use super::noise::Noise;
use super::{GREEDY_BELOW, Sampling};

/// By how much, in logits, the best of `rivals` beats `proposal` at `position` (as in [`super::SampleRow`]): the difference of what the
/// sampler compares, scaled logits with the request's noise, times the temperature; greedy, the difference of the logits. `scores`
/// are logits of the rivals, one each, `own` is that of the proposal; a rival that is the proposal itself is skipped.
///
/// Where the rivals are all there is, it is at most 0 exactly when the sampler takes the proposal: a tie that goes to a rival, of lower
/// token, is the least positive number. Scores that are not finite are never drawn: as a rival one does not count, as `own` it
/// loses to any rival, by infinity. Without a rival: negative infinity. The request's logit bias and the tokens that it never has drawn count;
/// its penalties, top-k, top-p and min-p are ignored.
///
/// # Panics
/// If there is not one score per rival.
#[must_use]
pub fn gap(
    sampling: &Sampling,
    position: u32,
    proposal: u32,
    rivals: &[u32],
    scores: &[f32],
    own: f32,
) -> f32 {
    assert_eq!(rivals.len(), scores.len(), "gap: one score per rival");
    let greedy = sampling.temperature < GREEDY_BELOW;
    let noise = Noise::new(sampling.seed, position);
    let value = |token: u32, score: f32| {
        let of_token = sampling.logit_bias.iter().filter(|(biased, _)| *biased == token);
        let logit = of_token.fold(score, |logit, (_, bias)| logit + bias);
        // The sampler's own operations in its order: the comparison comes out as it does there.
        if greedy { logit } else { logit * (1.0 / sampling.temperature) + noise.of(token) }
    };
    let mut best: Option<(f32, u32)> = None;
    for (&rival, &score) in
        rivals.iter().zip(scores).filter(|(rival, _)| **rival != proposal && !sampling.never(**rival))
    {
        let value = value(rival, score);
        let leads = best.is_none_or(|(v, token)| value > v || (value == v && rival < token));
        if value.is_finite() && leads {
            best = Some((value, rival));
        }
    }
    let own = value(proposal, own);
    match best {
        None => f32::NEG_INFINITY,
        Some(_) if !own.is_finite() => f32::INFINITY,
        Some((value, rival)) if value == own => {
            if rival < proposal {
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
                        let gap =
                            gap(&sampling, position, proposal, &all, &logits, logits[proposal as usize]);
                        ties += usize::from(gap == f32::MIN_POSITIVE);
                        assert_eq!(
                            gap <= 0.0,
                            drawn == proposal,
                            "{isa} temperature {temperature} position {position}: {gap} for {proposal}, drawn {drawn}"
                        );
                    }
                }
            }
        }
        assert!(ties > 10, "ties were not tested");
    }

    #[test]
    fn it_is_in_logits_of_the_best_other_rival() {
        let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
        assert_eq!(gap(&greedy, 5, 3, &[7, 3, 9], &[2.0, 9.0, 3.5], 1.0), 2.5);
        assert_eq!(gap(&greedy, 5, 3, &[7, 3, 9], &[2.0, 9.0, 3.5], 4.0), -0.5);
        // What a logit more for the rival changes is one, at any temperature.
        for temperature in [0.0, 0.5, 3.0] {
            let sampling = Sampling { temperature, seed: 9, ..Sampling::default() };
            let [less, more] = [2.0, 3.0].map(|score| gap(&sampling, 5, 3, &[7, 9], &[score, -100.0], 1.0));
            assert!((more - less - 1.0).abs() < 1e-5, "{temperature}: {less} {more}");
        }
    }

    #[test]
    fn what_cannot_be_drawn_does_not_count() {
        let sampling = Sampling::default();
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        assert_eq!(gap(&sampling, 0, 3, &[], &[], 1.0), -inf);
        assert_eq!(gap(&sampling, 0, 3, &[3, 3], &[9.0, 9.0], 1.0), -inf);
        assert_eq!(gap(&sampling, 0, 3, &[1, 2], &[inf, nan], 1.0), -inf);
        assert_eq!(gap(&sampling, 0, 3, &[1, 2, 4], &[inf, 1.0, nan], -inf), inf);
        assert_eq!(gap(&sampling, 0, 3, &[1, 2, 4], &[inf, 1.0, nan], nan), inf);
    }
}
