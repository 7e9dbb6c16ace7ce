//! The engine on modelled devices: whatever the device's times do, and whatever the draft is good at, texts are the same.

use std::time::Duration;

use faser_engine::sim::{
    Acceptance, Arrivals, Deviation, Faults, Happening, Hardware, Lengths, Pair, Report, Roofline, SimDevice,
    Simulation, Workload,
};
use faser_engine::{
    DraftSource, EngineConfig, FinishReason, LaneKind, Learned, Policy, Request, SeqId, Slo,
    SpeculationBounds, SpeculationMode, Tuning,
};
use proptest::prelude::*;

fn workload(per_s: f64, faults: Faults, seed: u64) -> Workload {
    Workload {
        arrivals: Arrivals::Poisson { per_s },
        duration: Duration::from_secs(2),
        lengths: Lengths::exactly(30, 50),
        trace: None,
        acceptance: Acceptance::mixed(),
        max_context: 128,
        cached_prompts: 0.0,
        slo: Slo::default(),
        mode: SpeculationMode::Auto,
        faults,
        seed,
    }
}

fn config(policy: Policy, device: &Roofline) -> EngineConfig {
    EngineConfig {
        block_size: 16,
        target_blocks: 200,
        draft: DraftSource::model(200),
        max_pass_rows: 256,
        max_context: 128,
        partitions: device.tables(),
        target_layers: 64,
        deterministic: false,
        speculation: SpeculationBounds::default(),
        prefix_cache: false,
        learned: Learned::default(),
        tuning: Tuning { max_running: 24, max_waiting: 1000, policy, ..Tuning::default() },
    }
}

fn device() -> Roofline {
    Roofline::new(Hardware::H100, Pair::QWEN3, &[8, 16, 32])
}

/// With a prefix cache, if prompts begin alike.
fn run(workload: &Workload, policy: Policy, deviation: Deviation) -> Report {
    let roofline = device();
    let config = EngineConfig { prefix_cache: workload.shares_prompts(), ..config(policy, &roofline) };
    let device = workload.device(16, roofline).deviating(deviation);
    Simulation::new(config, device).expect("the configuration is sound").run(workload.happenings())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    /// Invariant 1, where times are noisy and not what the engine was told, lanes become slow and the device is lost.
    #[test]
    fn times_never_change_a_text(
        policy in prop_oneof![Just("fixed:5"), Just("budget"), Just("faser"), Just("faser")],
        (draft, verify, noise) in (0.5..3.0f64, 0.5..3.0f64, 0.0..0.3f64),
        per_s in 1.0..12.0f64,
        (faulty, cached_prompts) in (any::<bool>(), prop_oneof![Just(0.0), 0.1..1.0f64]),
        seed in 0..1000u64,
    ) {
        let every = |faulty: bool, ms| faulty.then(|| Duration::from_millis(ms));
        let faults = Faults {
            cancelled: if faulty { 0.2 } else { 0.0 },
            device_lost_every: every(faulty, 2500),
            slow_lane_every: every(faulty, 700),
        };
        let workload = Workload { cached_prompts, ..workload(per_s, faults, seed) };
        let report = run(&workload, policy.parse().expect("a policy"), Deviation { draft, verify, noise });
        let device = workload.device(16, device());
        for (_, happening) in workload.happenings() {
            let Happening::Arrival(request) = happening else { continue };
            let outcome = &report.outcomes[&request.seq];
            let right = device.continuation(&request.prompt, request.max_new_tokens, &[]);
            match outcome.finish {
                Some(FinishReason::Cancelled) => prop_assert!(right.starts_with(&outcome.tokens)),
                Some(FinishReason::Length) => prop_assert_eq!(&outcome.tokens, &right),
                _ => prop_assert!(false, "{:?}", outcome),
            }
        }
        prop_assert!(report.view.target_pool.whole() && report.view.draft_pool.whole());
    }
}

#[test]
fn a_device_slower_than_its_tables_takes_as_much_longer() {
    let workload = workload(4.0, Faults::default(), 1);
    let off = |verify| run(&workload, Policy::Off, Deviation { verify, ..Deviation::default() });
    let (told, slower) = (off(1.0), off(2.0));
    let error = |report: &Report| {
        let totals = &report.view.totals;
        assert_eq!(totals.verify_errors.passes(), totals.target_passes);
        totals.verify_time_error.as_secs_f64() / totals.predicted_verify_time.as_secs_f64()
    };
    let median = |report: &Report| report.view.totals.verify_errors.median();
    assert!(median(&told) < median(&slower), "{:?} {:?}", median(&told), median(&slower));
    let errors = (error(&told), error(&slower));
    assert!(errors.0 < errors.1 && errors.1 > 0.0, "{errors:?}");
    let ratio = slower.any_lane_busy.as_secs_f64() / told.any_lane_busy.as_secs_f64();
    // Larger batches win some of it back.
    assert!((1.3..2.05).contains(&ratio), "{ratio}");
}

/// What begins alike is cached, and drafted as well as if it began for itself.
#[test]
fn prompts_seen_before_come_from_the_cache_and_are_of_their_own_difficulty() {
    let workload = |cached_prompts| Workload {
        cached_prompts,
        lengths: Lengths::exactly(78, 50),
        duration: Duration::from_secs(20),
        ..workload(6.0, Faults::default(), 3)
    };
    let brought = |share| run(&workload(share), Policy::Fixed { k: 4 }, Deviation::default());
    let [none, half, all] = [0.0, 0.5, 1.0].map(brought);
    let cached = |report: &Report| {
        let usage = report.outcomes.values().map(|outcome| outcome.usage);
        let (cached, prompt) =
            usage.fold((0, 0), |sum, u| (sum.0 + u.cached_tokens, sum.1 + u.prompt_tokens));
        cached as f64 / prompt as f64
    };
    // 62 of 78 tokens are common; six classes begin cold.
    assert_eq!(cached(&none), 0.0);
    assert!((0.3..0.41).contains(&cached(&half)), "{}", cached(&half));
    assert!((0.65..=62.0 / 78.0).contains(&cached(&all)), "{}", cached(&all));
    assert!(all.any_lane_busy < none.any_lane_busy);
    let acceptance = |report: &Report| {
        let totals = &report.view.totals;
        totals.accepted_tokens as f64 / totals.draft_tokens as f64
    };
    let [none, all] = [acceptance(&none), acceptance(&all)];
    assert!((none - all).abs() < 0.03, "{none} and {all}");
}

/// An oracle's drafts are all accepted, it changes no text, and what it does not draft costs nothing.
#[test]
fn an_oracle_drafts_what_is_right_and_pays_for_that_alone() {
    let workload = workload(4.0, Faults::default(), 5);
    let brought = |oracle: bool, policy: Policy| {
        let roofline = device();
        let mut config = config(policy, &roofline);
        // What is prepared for verdicts that an oracle never gets is time lost.
        config.tuning.mechanisms.overlap = false;
        let device = workload.device(16, roofline);
        let device = if oracle { device.with_oracle() } else { device };
        Simulation::new(config, device).expect("the configuration is sound").run(workload.happenings())
    };
    for policy in [Policy::Fixed { k: 6 }, Policy::Faser] {
        let [plain, oracle] = [false, true].map(|oracle| brought(oracle, policy.clone()));
        let texts = |report: &Report| report.outcomes.values().map(|o| o.tokens.clone()).collect::<Vec<_>>();
        assert_eq!(texts(&plain), texts(&oracle), "{policy}");
        let totals = &oracle.view.totals;
        assert!(totals.draft_tokens > 100 && totals.draft_tokens == totals.accepted_tokens, "{policy}");
        assert!(plain.view.totals.draft_tokens > plain.view.totals.accepted_tokens, "{policy}");
        assert!(oracle.any_lane_busy < plain.any_lane_busy, "{policy}");
    }
    // The draft is never right: drafting for nothing costs an oracle nothing.
    let roofline = device();
    let alone = |acceptance: f64, policy| {
        let config = config(policy, &roofline);
        let device = SimDevice::new(3, 1000, acceptance, 16, roofline.clone()).with_oracle();
        let request = Request::new(SeqId(1), [5; 20], 100);
        let simulation = Simulation::new(config, device).expect("the configuration is sound");
        simulation.run([(Duration::ZERO, Happening::Arrival(request))]).any_lane_busy
    };
    let [never, off] = [Policy::Fixed { k: 6 }, Policy::Off].map(|policy| alone(0.0, policy));
    // But for the draft's prefill, one pass.
    assert!(never - off < Duration::from_millis(3), "{never:?} and {off:?}");
    assert!(alone(0.9, Policy::Fixed { k: 6 }) < off);
}

#[test]
fn a_slow_spell_costs_time_and_nothing_else() {
    let calm = workload(4.0, Faults::default(), 3);
    let faults = Faults { slow_lane_every: Some(Duration::from_millis(200)), ..Faults::default() };
    let policy = Policy::Fixed { k: 3 };
    let calm = run(&calm, policy.clone(), Deviation::default());
    let slow = run(&workload(4.0, faults, 3), policy, Deviation::default());
    assert!(slow.any_lane_busy > calm.any_lane_busy);
    assert_eq!(slow.view.totals.output_tokens, calm.view.totals.output_tokens);
    assert_eq!(slow.view.totals.preemptions, calm.view.totals.preemptions);
}

/// Tables that have learned of a slow spell on one partition, and not on another, foresee rounds of less than no time.
#[test]
fn slow_spells_and_noise_under_overlap_end_nothing() {
    for seed in 1..12 {
        for per_s in [1.0, 4.0] {
            let every = Duration::from_secs(2);
            let faults = Faults { slow_lane_every: Some(every), ..Faults::default() };
            let workload = Workload {
                duration: Duration::from_secs(20),
                lengths: Lengths::exactly(300, 100),
                max_context: 512,
                ..workload(per_s, faults, seed)
            };
            let roofline = device();
            let mut config = EngineConfig {
                target_blocks: 2000,
                draft: DraftSource::model(2000),
                max_context: 512,
                max_pass_rows: 2048,
                ..config(Policy::Faser, &roofline)
            };
            config.tuning.max_running = 64;
            let deviation = Deviation { noise: 0.3, ..Deviation::default() };
            let device = workload.device(16, roofline).deviating(deviation);
            let happenings = workload.happenings();
            let arrivals =
                happenings.iter().filter(|(_, what)| matches!(what, Happening::Arrival(_))).count();
            let report = Simulation::new(config, device).expect("the configuration is sound").run(happenings);
            assert_eq!(report.view.totals.output_tokens, 100 * arrivals as u64);
        }
    }
}

/// Speculative lengths of the verify passes of one request alone, pass after pass, from its second token on.
fn lengths_alone(acceptance: f64, policy: Policy) -> Vec<usize> {
    let roofline = device();
    let config = EngineConfig { max_context: 1024, ..config(policy, &roofline) };
    let device = SimDevice::new(3, 1000, acceptance, 16, roofline);
    let request = Request::new(SeqId(1), [5; 20], 400);
    let simulation = Simulation::new(config, device).expect("the configuration is sound");
    let report = simulation.run([(Duration::ZERO, Happening::Arrival(request))]);
    let verify = report.passes.iter().filter(|pass| pass.lane == LaneKind::Verify);
    verify.skip(1).map(|pass| pass.proposals).collect()
}

#[test]
fn an_easy_text_is_found_out_within_twenty_passes() {
    for policy in [Policy::Budget, Policy::Faser] {
        let lengths = lengths_alone(0.95, policy.clone());
        let settled = &lengths[20..lengths.len() - 2];
        let mean = settled.iter().sum::<usize>() as f64 / settled.len() as f64;
        // What was prepared under the pass before is verified as it is: it may be less than would have been drafted, and costs no time.
        let least = if policy == Policy::Faser { 8.0 } else { 10.0 };
        assert!(mean > least, "{policy}: {lengths:?}");
        let found = lengths.iter().position(|&k| k >= 10).unwrap_or(lengths.len());
        assert!(found < 20, "{policy}: {lengths:?}");
    }
}

#[test]
fn a_hopeless_draft_is_given_up_and_looked_at_now_and_then() {
    for policy in [Policy::Budget, Policy::Faser] {
        let lengths = lengths_alone(0.0, policy.clone());
        let late = &lengths[40..];
        let speculated = late.iter().filter(|&&k| k > 0).count();
        assert!(speculated > 0 && speculated < late.len() / 10, "{policy}: {lengths:?}");
    }
}

/// A draft of a GPU catches up with many rows in no time: nobody is kept from speculating for it.
#[test]
fn prompts_that_come_fast_leave_a_fixed_length_its_proposals() {
    let roofline = device();
    let mut config = EngineConfig {
        target_blocks: 4000,
        draft: DraftSource::model(4000),
        max_pass_rows: 512,
        max_context: 512,
        ..config(Policy::Fixed { k: 6 }, &roofline)
    };
    config.tuning.max_running = 64;
    let workload = Workload {
        lengths: Lengths::exactly(200, 50),
        max_context: 512,
        ..workload(40.0, Faults::default(), 1)
    };
    let device = workload.device(16, roofline);
    let report =
        Simulation::new(config, device).expect("the configuration is sound").run(workload.happenings());
    let verify = report.passes.iter().filter(|pass| pass.lane == LaneKind::Verify);
    let (sequences, proposals) =
        verify.fold((0, 0), |sum, pass| (sum.0 + pass.sequences, sum.1 + pass.proposals));
    let mean = proposals as f64 / sequences as f64;
    assert!(sequences > 300 && mean > 4.0, "{sequences} chunks with {mean} proposals in the mean");
}

/// Estimates see to that here; where they are wrong the regret account does, which has tests of its own.
#[test]
fn a_draft_that_is_hardly_ever_right_costs_next_to_nothing() {
    for draft in [1.0, 4.0] {
        let ratios = (1..9).map(|seed| {
            let workload = Workload {
                arrivals: Arrivals::Backlog { requests: 200 },
                lengths: Lengths::exactly(30, 90),
                acceptance: Acceptance::from(0.03),
                ..workload(1.0, Faults::default(), seed)
            };
            let deviation = Deviation { draft, ..Deviation::default() };
            let rate = |policy| run(&workload, policy, deviation).tokens_per_second();
            rate(Policy::Faser) / rate(Policy::Off)
        });
        let mean = ratios.sum::<f64>() / 8.0;
        // What is prepared under the first passes is slower than told too, until the tables have learned.
        assert!(mean > 0.965, "{mean} of off, drafts take {draft} times as long");
    }
}

/// A sequence alone, whose drafts are right seven times in ten: under each pass its likely verdicts are prepared for.
#[test]
fn outcomes_are_prepared_found_and_cancelled_by_the_verdict() {
    let roofline = device();
    let alone = |policy| {
        let config = EngineConfig { max_context: 1024, ..config(policy, &roofline) };
        let device = SimDevice::new(3, 1000, 0.7, 16, roofline.clone());
        let request = Request::new(SeqId(1), [5; 20], 600);
        let simulation = Simulation::new(config, device).expect("the configuration is sound");
        simulation.in_detail().run([(Duration::ZERO, Happening::Arrival(request))])
    };
    let [serial, outcomes] = [Policy::Budget, Policy::Faser].map(alone);
    let texts = |report: &Report| report.outcomes[&SeqId(1)].tokens.clone();
    assert_eq!(texts(&serial), texts(&outcomes));
    let totals = &outcomes.view.totals;
    assert_eq!(serial.view.totals.outcomes_drafted, 0);
    assert!(
        totals.outcome_verdicts > 50 && totals.outcomes_drafted > 2 * totals.outcome_verdicts,
        "{totals:?}"
    );
    let hits = totals.outcome_hits as f64 / totals.outcome_verdicts as f64;
    assert!((0.4..0.9).contains(&hits), "{hits}");
    // A branch is a chunk beside the sequence's own, and what no verdict picks is late.
    let drafts = outcomes.passes.iter().filter(|pass| pass.lane == LaneKind::Draft);
    let branches: usize = drafts.map(|pass| pass.chunks.iter().filter(|chunk| chunk.outcome).count()).sum();
    assert_eq!(branches as u64, totals.outcomes_drafted);
    // The target's token is where the device puts it.
    let seen: u64 = totals.recovered_ranks.iter().sum();
    let first = totals.recovered_ranks[0] as f64 / seen as f64;
    assert!(seen > 50 && (0.25..0.55).contains(&first), "{:?}", totals.recovered_ranks);
}
