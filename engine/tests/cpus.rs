//! On what passes cost on CPUs, where rows are dear, passes go by steps and a draft reads prompts slowly: what the policy decides is worth about what
//! the best fixed length is, whichever that is.

mod common;

use std::time::Duration;

use common::{at_once, config, request, undivided};
use faser_engine::cost::{AttentionCost, PartitionCosts, PassCost};
use faser_engine::sim::{Happening, Report};
use faser_engine::{DraftSource, EngineConfig, Mechanisms, Policy, Request, Tuning};

fn served(policy: Policy, partitions: &[PartitionCosts], running: usize) -> EngineConfig {
    EngineConfig {
        partitions: partitions.to_vec(),
        block_size: 16,
        max_pass_rows: 512,
        max_context: 9000,
        target_blocks: 9000,
        draft: DraftSource::model(9000),
        tuning: Tuning {
            max_running: running,
            max_waiting: 1000,
            mechanisms: Mechanisms { lookup: false, ..Mechanisms::default() },
            ..config(policy.clone()).tuning
        },
        ..config(policy)
    }
}

/// A request with a prompt of so many tokens that no other has.
fn fresh(seq: u64, prompt: u64, tokens: usize) -> Request {
    let token =
        |i: u64| ((i + 10_000 * seq).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as u32 % common::VOCABULARY;
    request(seq, (0..prompt).map(token).collect(), tokens)
}

/// Seconds that requests take in all, whose prompts of so many tokens come so many at a time, and a draft reads 2,000 in the time of some 35 passes.
fn fresh_prompts(policy: Policy, together: u32, prompt: u64) -> f64 {
    let config = served(policy, &undivided((9000, 1300), (78_000, 4000)), 8);
    let every = Duration::from_secs(100);
    let arrivals =
        (0..8).map(|seq| (seq / together * every, Happening::Arrival(fresh(seq.into(), prompt, 200))));
    let report = common::run(&config, 0.85, arrivals.collect());
    let ended: Vec<Duration> = report.outcomes.values().filter_map(|outcome| outcome.ended_after).collect();
    assert_eq!(ended.len(), 8);
    ended.iter().map(Duration::as_secs_f64).sum()
}

#[test]
fn fresh_prompts_are_caught_up_with_where_it_pays_however_slowly() {
    for (together, prompt) in [(1, 2000), (1, 8000), (2, 2000), (4, 500), (8, 500)] {
        let policies = [Policy::Off, Policy::Fixed { k: 4 }, Policy::Faser];
        let [off, fixed, faser] = policies.map(|policy| fresh_prompts(policy, together, prompt));
        let best = off.min(fixed);
        assert!(faser < 1.03 * best, "{together} of {prompt} tokens: {faser} beside {off} and {fixed}");
    }
}

/// Made up after the two curves that CPUs have: rows that are dear from a few on, and steps of 16 rows, as of AMX's tiles. Rows, and tenths of a ms.
const CURVE: [(usize, u64); 11] = [
    (1, 800),
    (2, 820),
    (4, 850),
    (8, 950),
    (16, 1320),
    (24, 1650),
    (32, 2000),
    (48, 2600),
    (64, 3250),
    (128, 6000),
    (512, 23_000),
];
const STEPS: [(usize, u64); 13] = [
    (1, 780),
    (2, 785),
    (4, 795),
    (8, 815),
    (16, 850),
    (17, 1020),
    (32, 1050),
    (33, 1300),
    (48, 1350),
    (49, 1700),
    (64, 1750),
    (128, 2600),
    (512, 9000),
];
/// Of a draft a tenth as large.
const DRAFT: [(usize, u64); 6] = [(1, 70), (4, 85), (16, 150), (32, 280), (128, 1000), (512, 4000)];

fn cost(points: &[(usize, u64)]) -> PassCost {
    let points: Vec<_> =
        points.iter().map(|&(rows, tenths)| (rows, Duration::from_micros(100 * tenths))).collect();
    PassCost::new(&points, AttentionCost::default())
}

#[test]
fn lengths_are_worth_what_the_best_fixed_one_is_for_any_number_of_streams() {
    for (name, verify) in [("curve", cost(&CURVE)), ("steps", cost(&STEPS))] {
        let partitions = [PartitionCosts { draft: cost(&DRAFT), verify }];
        for streams in [1, 2, 4, 8, 16] {
            let seconds = |policy: Policy| {
                let config = served(policy, &partitions, streams);
                let requests = (0..8 * streams as u64).map(|seq| fresh(seq, 16, 128));
                let Report { passes, outcomes, .. } = common::run(&config, 0.83, at_once(requests));
                assert!(outcomes.values().all(|outcome| outcome.tokens.len() == 128));
                passes.iter().map(|pass| pass.ended.as_secs_f64()).fold(0.0, f64::max)
            };
            let fixed = [1, 2, 3, 4, 6].map(|k| seconds(Policy::Fixed { k }));
            let best = fixed.into_iter().fold(seconds(Policy::Off), f64::min);
            let faser = seconds(Policy::Faser);
            assert!(faser < 1.035 * best, "{name}, {streams} streams: {faser} beside {fixed:?}");
        }
    }
}

/// As whole numbers go in vectors, five rows at a time: measured on an Intel Xeon in int8 up to 14 rows, made up beyond. Rows, and tenths of a ms.
const BLOCKS: [(usize, u64); 12] = [
    (2, 385),
    (4, 403),
    (5, 424),
    (6, 505),
    (8, 533),
    (9, 561),
    (10, 583),
    (12, 585),
    (14, 669),
    (32, 900),
    (64, 1430),
    (512, 9000),
];

#[test]
fn one_sequence_alone_loses_nothing_at_the_edge_of_a_step_or_where_drafts_are_cheap() {
    let edge = [(2, 45), (5, 47), (6, 65), (16, 90), (512, 1500)];
    let (dear_rows, cheap_drafts) = ([(1, 900), (512, 21_340)], [(1, 10), (16, 20), (512, 600)]);
    for (name, draft, verify) in
        [("edge", cost(&edge), cost(&BLOCKS)), ("cheap drafts", cost(&cheap_drafts), cost(&dear_rows))]
    {
        let partitions = [PartitionCosts { draft, verify }];
        for acceptance in [0.6, 0.75, 0.83, 0.9] {
            let seconds = |policy: Policy| {
                let config = served(policy, &partitions, 1);
                let requests = (0..16).map(|seq| fresh(seq, 16, 128));
                let report = common::run(&config, acceptance, at_once(requests));
                report.passes.iter().map(|pass| pass.ended.as_secs_f64()).fold(0.0, f64::max)
            };
            let fixed = [2, 3, 4, 6, 8].map(|k| seconds(Policy::Fixed { k }));
            let best = fixed.into_iter().fold(f64::MAX, f64::min);
            let faser = seconds(Policy::Faser);
            println!("{name}, acceptance {acceptance}: {:.3}", faser / best);
            assert!(faser < 1.02 * best, "{name}, acceptance {acceptance}: {faser} beside {fixed:?}");
        }
    }
}
