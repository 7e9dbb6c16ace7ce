//! The sampler draws from the distribution that its parameters describe, reproducibly, and never what it must not.

#[path = "../gpu-check/src/ops/reference.rs"]
mod reference;

use faser_kernels::ops::sample;
use faser_kernels::{History, Isa, Lane, SampleRow, Sampling, Tensor};
use proptest::prelude::*;
use reference::{Random, lane, on_each_isa};

/// Logits of a vocabulary of eight: two likely, a tie, some unlikely.
const LOGITS: [f32; 8] = [2.0, 1.0, 1.0, 0.3, -0.5, -1.0, -2.0, 1.7];

/// Draws a token for each position from `first`, all from the same logits and history.
fn draws(lane: &Lane, sampling: &Sampling, logits: &[f32], history: &History, count: usize) -> Vec<u32> {
    let tensor = Tensor::from_rows(logits.len(), logits);
    let position = history.len() as u32;
    let seeds: Vec<Sampling> = (0..count as u64).map(|seed| Sampling { seed, ..sampling.clone() }).collect();
    let row = |sampling| SampleRow { row: 0, position, sampling, history, since: &[], allowed: None };
    let rows: Vec<SampleRow> = seeds.iter().map(row).collect();
    let mut out = vec![0; count];
    sample(lane, tensor.view(1), &rows, &mut out);
    out
}

/// Draws the token that follows the history and `since`.
fn drawn(
    lane: &Lane,
    sampling: &Sampling,
    history: &History,
    since: &[u32],
    allowed: Option<&[u32]>,
) -> usize {
    let position = (history.len() + since.len()) as u32;
    let mut out = [0];
    let row = SampleRow { row: 0, position, sampling, history, since, allowed };
    sample(lane, Tensor::from_rows(8, &LOGITS).view(1), &[row], &mut out);
    out[0] as usize
}

/// As [`draws`], but one seed and many positions: what a long text draws.
fn draws_along(lane: &Lane, sampling: &Sampling, logits: &[f32], count: usize) -> Vec<u32> {
    let tensor = Tensor::from_rows(logits.len(), logits);
    let tokens: Vec<u32> = vec![0; count];
    let empty = History::new(0, &[], sampling);
    let row = |position| SampleRow {
        row: 0,
        position: position as u32,
        sampling,
        history: &empty,
        since: &tokens[..position],
        allowed: None,
    };
    let rows: Vec<SampleRow> = (0..count).map(row).collect();
    let mut out = vec![0; count];
    sample(lane, tensor.view(1), &rows, &mut out);
    out
}

/// Pearson's statistic against the 0.1 % point of chi-squared (Wilson and Hilferty's approximation).
#[track_caller]
fn chi_squared(tokens: &[u32], probabilities: &[f64], what: &str) {
    let mut counts = vec![0.0f64; probabilities.len()];
    tokens.iter().for_each(|token| counts[*token as usize] += 1.0);
    let mut statistic = 0.0f64;
    let mut degrees = -1.0f64;
    for (token, (count, probability)) in counts.iter().zip(probabilities).enumerate() {
        if *probability == 0.0 {
            assert_eq!(*count, 0.0, "{what}: token {token} is impossible, but drawn");
        } else {
            let expected = probability * tokens.len() as f64;
            assert!(expected > 5.0, "the test needs more draws");
            statistic += (count - expected).powi(2) / expected;
            degrees += 1.0;
        }
    }
    let limit = degrees * (1.0 - 2.0 / (9.0 * degrees) + 3.09 * (2.0 / (9.0 * degrees)).sqrt()).powi(3);
    assert!(statistic < limit, "{what}: chi-squared {statistic:.1} of {limit:.1}, {counts:?}");
}

/// Softmax over those logits that `keep` keeps.
fn softmax(logits: &[f64], temperature: f64, keep: impl Fn(usize) -> bool) -> Vec<f64> {
    let powers: Vec<f64> =
        logits.iter().enumerate().map(|(i, z)| if keep(i) { (z / temperature).exp() } else { 0.0 }).collect();
    let total: f64 = powers.iter().sum();
    powers.iter().map(|power| power / total).collect()
}

fn exact() -> Vec<f64> {
    LOGITS.iter().map(|z| f64::from(*z)).collect()
}

const DRAWS: usize = 100_000;

#[test]
fn temperatures_follow_the_softmax_over_seeds_and_over_positions() {
    on_each_isa(|isa| {
        for temperature in [0.7, 1.0, 1.8] {
            let sampling = Sampling { temperature: temperature as f32, ..Sampling::default() };
            let expected = softmax(&exact(), temperature, |_| true);
            let history = History::new(0, &[], &sampling);
            let tokens = draws(&lane(isa, 2), &sampling, &LOGITS, &history, DRAWS);
            chi_squared(&tokens, &expected, &format!("{isa}, temperature {temperature}, seeds"));
        }
        let sampling = Sampling { seed: 99, ..Sampling::default() };
        let tokens = draws_along(&lane(isa, 2), &sampling, &LOGITS, DRAWS);
        chi_squared(&tokens, &softmax(&exact(), 1.0, |_| true), &format!("{isa}, positions"));
    });
}

#[test]
fn cut_distributions_are_the_softmax_of_what_is_left() {
    // Sorted: 0 (.36 at temperature 1), 7 (.26), 1 and 2 (.13 each), 3, 4, 5, 6.
    let cases: [(&str, Sampling, &[usize]); 6] = [
        ("top-p 0.9", Sampling { top_p: 0.9, ..Sampling::default() }, &[0, 7, 1, 2, 3]),
        ("top-p 0.7: of a tie the lower", Sampling { top_p: 0.7, ..Sampling::default() }, &[0, 7, 1]),
        ("top-k 3: of a tie the lower", Sampling { top_k: 3, ..Sampling::default() }, &[0, 7, 1]),
        (
            "top-k beyond the vocabulary",
            Sampling { top_k: 99, ..Sampling::default() },
            &[0, 1, 2, 3, 4, 5, 6, 7],
        ),
        // Of the 4 likeliest the first 2 have 0.70 of the probability.
        ("top-k 4, then top-p 0.69", Sampling { top_k: 4, top_p: 0.69, ..Sampling::default() }, &[0, 7]),
        ("min-p 0.3", Sampling { min_p: 0.3, ..Sampling::default() }, &[0, 7, 1, 2]),
    ];
    for (name, sampling, kept) in cases {
        let expected = softmax(&exact(), 1.0, |token| kept.contains(&token));
        let history = History::new(0, &[], &sampling);
        on_each_isa(|isa| {
            let tokens = draws(&lane(isa, 2), &sampling, &LOGITS, &history, DRAWS);
            chi_squared(&tokens, &expected, &format!("{isa}, {name}"));
        });
    }
}

#[test]
fn penalties_and_bias_shift_the_distribution_as_documented() {
    let sampling = Sampling {
        temperature: 0.7,
        repetition_penalty: 1.3,
        presence_penalty: 0.4,
        frequency_penalty: 0.2,
        logit_bias: vec![(5, 1.5)],
        ..Sampling::default()
    };
    // Prompt: 0, 4. Output: 1, 1, 6.
    let history = History::new(2, &[0, 4, 1, 1, 6], &sampling);
    let mut logits = exact();
    logits[5] += 1.5;
    for token in [0, 4, 1, 6] {
        logits[token] = if logits[token] > 0.0 { logits[token] / 1.3 } else { logits[token] * 1.3 };
    }
    logits[1] -= 0.4 + 2.0 * 0.2;
    logits[6] -= 0.4 + 0.2;
    on_each_isa(|isa| {
        let tokens = draws(&lane(isa, 2), &sampling, &LOGITS, &history, DRAWS);
        chi_squared(&tokens, &softmax(&logits, 0.7, |_| true), &format!("{isa}, penalties"));
    });
}

#[test]
fn proposals_since_the_history_count_as_the_history_does() {
    let sampling = Sampling { frequency_penalty: 0.9, repetition_penalty: 1.5, ..Sampling::default() };
    let lane = lane(Isa::detect(), 1);
    for seed in 0..500 {
        let sampling = Sampling { seed, ..sampling.clone() };
        let (short, long) = (History::new(1, &[3], &sampling), History::new(1, &[3, 0, 7, 0], &sampling));
        let since = drawn(&lane, &sampling, &short, &[0, 7, 0], None);
        assert_eq!(since, drawn(&lane, &sampling, &long, &[], None));
    }
}

#[test]
fn greedy_takes_the_largest_lowest_finite_logit_after_bias_and_penalties() {
    on_each_isa(|isa| {
        let greedy = |logits: &[f32], sampling: Sampling, tokens: &[u32]| {
            let sampling = Sampling { temperature: 0.0, ..sampling };
            draws(&lane(isa, 1), &sampling, logits, &History::new(0, tokens, &sampling), 1)[0]
        };
        let off = Sampling::default;
        let mut logits = vec![0.5; 100];
        assert_eq!(greedy(&logits, off(), &[]), 0, "{isa}");
        // A tie whose lower token is in a later lane of every vector width.
        (logits[38], logits[53], logits[99]) = (3.0, 3.0, 2.9);
        assert_eq!(greedy(&logits, off(), &[]), 38, "{isa}");
        assert_eq!(greedy(&logits, Sampling { logit_bias: vec![(99, 0.2)], ..off() }, &[]), 99, "{isa}");
        assert_eq!(greedy(&logits, Sampling { presence_penalty: 0.05, ..off() }, &[38]), 53, "{isa}");
        (logits[1], logits[2], logits[38]) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY);
        assert_eq!(greedy(&logits, off(), &[]), 53, "{isa}");
        assert_eq!(greedy(&[f32::NAN; 20], off(), &[]), 0, "{isa}");
    });
}

#[test]
fn what_is_not_finite_is_never_drawn() {
    let mut logits = vec![f32::NAN; 50];
    for token in [3, 20, 49] {
        logits[token] = token as f32 * 0.01;
    }
    (logits[7], logits[8]) = (f32::INFINITY, f32::NEG_INFINITY);
    let variants = [
        Sampling::default(),
        Sampling { top_k: 10, ..Sampling::default() },
        Sampling { top_k: 2, top_p: 0.99, ..Sampling::default() },
        Sampling { top_p: 0.95, min_p: 0.01, ..Sampling::default() },
        Sampling { temperature: 1e-30, ..Sampling::default() },
        Sampling { temperature: 1e30, ..Sampling::default() },
        Sampling { presence_penalty: 0.1, ..Sampling::default() },
    ];
    on_each_isa(|isa| {
        for sampling in &variants {
            let history = History::new(0, &[], sampling);
            let tokens = draws(&lane(isa, 1), sampling, &logits, &history, 200);
            assert!(tokens.iter().all(|token| [3, 20, 49].contains(token)), "{isa} {sampling:?} {tokens:?}");
            let none = draws(&lane(isa, 1), sampling, &[f32::NAN; 9], &history, 3);
            assert_eq!(none, [0; 3], "{isa} {sampling:?}");
        }
    });
}

#[test]
fn only_allowed_tokens_are_drawn_however_likely_the_others_are() {
    // Of the tokens that are left, the distribution is the one that they have among themselves.
    let plain = Sampling { temperature: 0.8, ..Sampling::default() };
    let samplings = [
        (plain.clone(), vec![1, 3, 6]),
        (Sampling { top_k: 2, ..plain.clone() }, vec![1, 3]),
        (Sampling { top_p: 0.7, ..plain.clone() }, vec![1, 3]),
        (Sampling { min_p: 0.3, ..plain.clone() }, vec![1, 3]),
        (Sampling { logit_bias: vec![(6, 9.0)], top_k: 1, ..plain }, vec![6]),
    ];
    on_each_isa(|isa| {
        let lane = lane(isa, 1);
        for (sampling, possible) in &samplings {
            let mut seen = [0; 8];
            for seed in 0..400 {
                let sampling = Sampling { seed, ..sampling.clone() };
                let history = History::new(0, &[], &sampling);
                let allowed = [1 << 1 | 1 << 3 | 1 << 6];
                seen[drawn(&lane, &sampling, &history, &[], Some(&allowed))] += 1;
            }
            let drawn: Vec<usize> = (0..8).filter(|token| seen[*token] > 0).collect();
            assert_eq!(drawn, *possible, "{isa} {sampling:?}");
        }
    });
}

#[test]
fn a_requests_own_tokens_alone_are_drawn_and_none_that_ends_a_banned_row() {
    let allowed = Some([1 << 1 | 1 << 3 | 1 << 6].as_slice().into());
    let banned = vec![vec![9], vec![2, 4, 1], vec![4, 3], vec![4, 4, 6]];
    let plain = Sampling { temperature: 0.8, ..Sampling::default() };
    on_each_isa(|isa| {
        let lane = lane(isa, 1);
        // The prompt is 2; behind it 4 is the output's.
        for (output, since, barred) in [
            (&[4][..], &[][..], vec![3]),
            (&[2, 4], &[], vec![1, 3]),
            (&[2], &[4], vec![1, 3]),
            (&[], &[2, 4], vec![1, 3]),
            (&[5, 4], &[4], vec![3, 6]),
            (&[4, 5], &[], vec![]),
        ] {
            let mut seen = [0; 8];
            for seed in 0..400 {
                let sampling = Sampling {
                    seed,
                    allowed: Option::clone(&allowed),
                    banned: banned.clone(),
                    ..plain.clone()
                };
                let history = History::new(1, &[&[2], output].concat(), &sampling);
                seen[drawn(&lane, &sampling, &history, since, None)] += 1;
            }
            let drawn: Vec<usize> = (0..8).filter(|token| seen[*token] > 0).collect();
            let possible: Vec<usize> =
                [1, 3, 6].into_iter().filter(|token| !barred.contains(token)).collect();
            assert_eq!(drawn, possible, "{isa} {output:?} {since:?}");
        }
    });
}

#[test]
fn no_end_is_drawn_before_there_are_enough_tokens_of_output() {
    let sampling = Sampling { temperature: 0.0, min_tokens: 2, ends: vec![0, 7, 99], ..Sampling::default() };
    on_each_isa(|isa| {
        let lane = lane(isa, 1);
        let prompt = History::new(3, &[0, 0, 0], &sampling);
        let drawn = [&[][..], &[1], &[1, 1]].map(|since| drawn(&lane, &sampling, &prompt, since, None));
        assert_eq!(drawn, [1, 1, 0], "{isa}");
    });
}

#[test]
#[should_panic(expected = "tokens before position 5")]
fn a_history_that_is_read_and_does_not_reach_the_position_is_refused() {
    let sampling = Sampling { presence_penalty: 0.5, ..Sampling::default() };
    let row = SampleRow {
        row: 0,
        position: 5,
        sampling: &sampling,
        history: &History::new(0, &[1], &sampling),
        since: &[2],
        allowed: None,
    };
    sample(&lane(Isa::Portable, 1), Tensor::zeros(1, 4).view(1), &[row], &mut [0]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    /// All cuts at once against a plain reading of their definition; and neither batch nor workers nor instruction
    /// set change a draw.
    #[test]
    fn cuts_keep_what_their_definition_keeps(
        vocabulary in 2usize..400, spread in 0.1f32..12.0, temperature in 0.2f32..2.0, top_k in 0u32..60,
        top_p in 0.05f32..=1.0, min_p in 0.0f32..0.5, seed in any::<u64>(), workers in 1usize..4,
    ) {
        let mut random = Random::new(seed);
        let logits: Vec<f32> = random.numbers(vocabulary).iter().map(|x| x * spread).collect();
        let sampling = Sampling { temperature, top_k, top_p, min_p, ..Sampling::default() };
        let mut order: Vec<usize> = (0..vocabulary).collect();
        order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
        order.truncate(if top_k == 0 { vocabulary } else { top_k as usize });
        let weight = |token: &usize| ((f64::from(logits[*token]) - f64::from(logits[order[0]])) / f64::from(temperature)).exp();
        let total: f64 = order.iter().map(weight).sum();
        let (mut sum, mut allowed) = (0.0, Vec::new());
        for token in &order {
            // A hair more than the definition: the sampler sums in f32.
            if sum <= (f64::from(top_p) + 1e-5) * total && weight(token) >= f64::from(min_p) * 0.9999 {
                allowed.push(*token as u32);
            }
            sum += weight(token);
        }
        let history = History::new(0, &[], &sampling);
        let mut first = None;
        for isa in Isa::available() {
            let tokens = draws(&lane(isa, workers), &sampling, &logits, &history, 300);
            prop_assert!(tokens.iter().all(|token| allowed.contains(token)), "{} {:?} of {:?}", isa, tokens, allowed);
            // Sums of exponentials may differ in the last bit between sets: only cuts without a sum must agree.
            if top_p == 1.0 {
                prop_assert_eq!(first.get_or_insert_with(|| tokens.clone()), &tokens);
            }
        }
    }

    /// Skipping tokens that no noise could lift changes nothing: top-k of the whole vocabulary less one token, with that
    /// token impossible, draws among candidates without any skipping.
    #[test]
    fn skipping_the_hopeless_is_exact(vocabulary in 2usize..300, spread in 1.0f32..60.0, seed in any::<u64>()) {
        let mut random = Random::new(seed);
        let mut logits: Vec<f32> = random.numbers(vocabulary).iter().map(|x| x * spread).collect();
        logits[random.below(vocabulary)] = f32::NAN;
        let all = Sampling::default();
        let among = Sampling { top_k: vocabulary as u32 - 1, ..Sampling::default() };
        for isa in Isa::available() {
            let lane = lane(isa, 1);
            let history = History::new(0, &[], &all);
            let skipping = draws(&lane, &all, &logits, &history, 200);
            prop_assert_eq!(skipping, draws(&lane, &among, &logits, &history, 200), "{}", isa);
        }
    }
}
