//! What a client may wish of its request's scheduling, in the simulator: latency targets, priorities, where proposals come from.

mod common;

use std::time::Duration;

use common::{at_once, request, undivided};
use faser_engine::cost::{AttentionCost, PartitionCosts, PassCost};
use faser_engine::record::PassRecord;
use faser_engine::sim::{Happening, Outcome, Report, SimDevice};
use faser_engine::survival::Source;
use faser_engine::{
    DraftSource, EngineConfig, FinishReason, Handling, K_LIMIT, LaneKind, Mechanisms, Policy, Refusal,
    Request, SeqId, Slo, SpeculationMode, Tuning, Usage,
};

fn config(policy: Policy) -> EngineConfig {
    EngineConfig { partitions: undivided((100, 1), (1000, 5)), ..common::config(policy) }
}

fn of_priority(priority: i32, request: Request) -> Request {
    Request { handling: Handling { priority, ..request.handling }, ..request }
}

fn with_slo(slo: Slo, request: Request) -> Request {
    Request { handling: Handling { slo, ..request.handling }, ..request }
}

fn device(config: &EngineConfig) -> SimDevice {
    common::device(config, 0.7)
}

fn run(config: &EngineConfig, happenings: Vec<(Duration, Happening)>) -> Report {
    common::run(config, 0.7, happenings)
}

/// The sequences in the order of their ends.
fn order(report: &Report) -> Vec<u64> {
    let end = |outcome: &Outcome| outcome.ended_after.map(|after| outcome.arrived + after);
    let mut ended: Vec<_> =
        report.outcomes.iter().filter_map(|(seq, outcome)| Some((end(outcome)?, seq.0))).collect();
    ended.sort_unstable();
    ended.into_iter().map(|(_, seq)| seq).collect()
}

#[test]
fn who_waits_is_admitted_by_priority_and_then_by_arrival() {
    let config = EngineConfig {
        tuning: Tuning { max_running: 1, ..config(Policy::Off).tuning },
        ..config(Policy::Off)
    };
    let priorities = [9, 1, 0, -5, 1, 0, i32::MIN];
    let happenings = (0..).zip(priorities).map(|(seq, priority)| {
        let request = of_priority(priority, request(seq, vec![seq as u32; 5], 10));
        (Duration::from_micros(seq), Happening::Arrival(request))
    });
    let report = run(&config, happenings.collect());
    // Who runs is not stopped for those that wait.
    assert_eq!(order(&report), [0, 6, 3, 2, 5, 1, 4]);
}

#[test]
fn the_least_urgent_gives_way_and_of_equals_the_youngest() {
    // Both prompts fit, both texts do not.
    let config = EngineConfig { target_blocks: 26, max_context: 100, ..config(Policy::Fixed { k: 4 }) };
    for (priorities, first) in [([0, 0], 0), ([1, 0], 1), ([-1, 0], 0), ([5, 5], 0)] {
        let requests = (0..).zip(priorities);
        let requests =
            requests.map(|(seq, priority)| of_priority(priority, request(seq, vec![seq as u32; 20], 60)));
        let report = run(&config, at_once(requests));
        assert!(report.view.totals.preemptions > 0);
        assert_eq!(order(&report)[0], first, "{priorities:?}");
        for seq in 0..2 {
            let right = device(&config).continuation(&[seq as u32; 20], 60, &[]);
            assert_eq!(report.outcomes[&SeqId(seq)].tokens, right);
        }
    }
}

#[test]
fn a_lost_device_puts_back_in_the_same_order_and_before_who_had_not_begun() {
    let config = EngineConfig {
        tuning: Tuning { max_running: 2, ..config(Policy::Off).tuning },
        ..config(Policy::Off)
    };
    let priorities = [3, 3, 3, 1, 3];
    let mut happenings: Vec<_> = (0..)
        .zip(priorities)
        .map(|(seq, priority)| {
            let at = if seq == 3 { Duration::from_micros(1500) } else { Duration::ZERO };
            (at, Happening::Arrival(of_priority(priority, request(seq, vec![seq as u32; 5], 10))))
        })
        .collect();
    let rebuild = Duration::from_millis(1);
    happenings.push((Duration::from_micros(4500), Happening::DeviceLost { rebuild }));
    let report = run(&config, happenings);
    assert_eq!(order(&report)[0], 0, "it had come furthest");
    // The urgent one goes in front of the second that ran, and nobody else in front of that one.
    let begun = |seq| report.outcomes[&SeqId(seq)].first_token_after.is_some();
    assert!((0..5).all(begun));
    assert_eq!(report.outcomes.values().filter(|o| o.finish == Some(FinishReason::Length)).count(), 5);
    let place = |seq| order(&report).iter().position(|other| *other == seq);
    assert!(place(3) < place(1) && place(1) < place(2) && place(2) < place(4), "{:?}", order(&report));
}

#[test]
fn a_full_queue_refuses_the_most_urgent_too() {
    let config = EngineConfig {
        tuning: Tuning { max_running: 1, max_waiting: 2, ..config(Policy::Off).tuning },
        ..config(Policy::Off)
    };
    let requests = (0..4).map(|seq| of_priority(-(seq as i32), request(seq, vec![1; 4], 8)));
    let report = run(&config, at_once(requests));
    let refused = |seq| report.outcomes[&SeqId(seq)].refusal.clone();
    assert_eq!(refused(3), Some(Refusal::QueueFull { waiting: 2, capacity: 2 }));
    assert!((0..3).all(|seq| refused(seq).is_none()));
}

#[test]
fn proposals_come_from_where_the_request_lets_them() {
    for policy in [Policy::Budget, Policy::Faser] {
        let config = config(policy);
        let right = device(&config).continuation(&[3; 10], 60, &[]);
        let usage = |mode, k_max| {
            let handling = Handling { mode, k_max, ..Handling::default() };
            let expected = right.iter().take(30).copied().collect();
            let request = Request { handling, prediction: expected, ..request(1, vec![3; 10], 60) };
            let report = run(&config, at_once([request]));
            assert_eq!(report.outcomes[&SeqId(1)].tokens, right);
            report.outcomes[&SeqId(1)].usage
        };
        let tried = |mode, k_max| Source::ALL.map(|source| usage(mode, k_max).by_source[source].proposed > 0);
        let of = |mode| (tried(mode, None)[0], tried(mode, None)[2]);
        assert_eq!(of(SpeculationMode::Auto), (true, true));
        assert_eq!(of(SpeculationMode::Lookup), (false, true));
        assert_eq!(of(SpeculationMode::Draft), (true, false));
        assert_eq!(tried(SpeculationMode::Off, None), [false; 4]);
        // A cap of its own lifts nothing.
        assert_eq!(tried(SpeculationMode::Off, Some(4)), [false; 4]);
        assert!((1..=3).contains(&usage(SpeculationMode::Lookup, Some(3)).longest));
        assert!(usage(SpeculationMode::Lookup, None).longest <= K_LIMIT);
    }
}

#[test]
fn what_came_of_passes_adds_up() {
    let request = request(1, vec![3; 10], 90);
    let report = run(&config(Policy::Fixed { k: 4 }), at_once([request]));
    let usage = report.outcomes[&SeqId(1)].usage;
    let passes = usage.passes_by_accepted;
    let accepted: usize = passes.iter().enumerate().map(|(accepted, &n)| accepted * n as usize).sum();
    assert_eq!((accepted, usage.longest), (usage.accepted, 4));
    // The pass of the prompt has no proposals, and the last tokens may leave no room for any.
    let with = passes.iter().sum::<u32>() as usize;
    assert!((usage.target_passes - 2..usage.target_passes).contains(&with), "{usage:?}");
    assert!(passes[0] > 0 && passes[4] > 0 && passes[5..].iter().all(|n| *n == 0), "{passes:?}");
    let drafted = usage.by_source[Source::Draft];
    assert_eq!((drafted.proposed, drafted.accepted), (usage.proposed, usage.accepted));
    let moments = usage.moments;
    assert_eq!(moments.admitted, Some(Duration::ZERO));
    assert_eq!(moments.first_token, report.outcomes[&SeqId(1)].first_token_after);
    assert_eq!(moments.last_token, report.outcomes[&SeqId(1)].ended_after);
}

/// Proposals verified per pass of two requests alike, of which the first has latency targets.
fn proposals_per_pass(slo: Slo) -> [f64; 2] {
    // Rows are dear, so that not everyone gets what it could use.
    let config = EngineConfig {
        partitions: undivided((20, 1), (500, 250)),
        tuning: Tuning { max_running: 2, ..config(Policy::Budget).tuning },
        ..config(Policy::Budget)
    };
    let requests = (0..2).map(|seq| {
        let slo = if seq == 0 { slo } else { Slo::default() };
        with_slo(slo, request(seq, vec![seq as u32; 10], 100))
    });
    let report = run(&config, at_once(requests));
    [0, 1].map(|seq| {
        let usage = report.outcomes[&SeqId(seq)].usage;
        usage.proposed as f64 / usage.target_passes as f64
    })
}

#[test]
fn a_long_prompt_takes_no_more_rows_of_a_pass_than_it_may_while_others_decode() {
    let longest = |max_prefill_rows| {
        let tuning = Tuning { max_prefill_rows, ..config(Policy::Off).tuning };
        let config = EngineConfig { tuning, ..config(Policy::Off) };
        let happenings = [(0, 2, 60), (1, 100, 3)].map(|(seq, prompt, output)| {
            let begin = Duration::from_micros(seq * 2000);
            (begin, Happening::Arrival(request(seq, vec![seq as u32; prompt], output)))
        });
        let report = run(&config, happenings.to_vec());
        assert_eq!(report.outcomes[&SeqId(1)].tokens.len(), 3);
        let verified = report.passes.iter().filter(|pass| pass.lane == LaneKind::Verify);
        verified.map(|pass| pass.rows).max().expect("a pass")
    };
    assert_eq!((longest(None), longest(Some(7)), longest(Some(3))), (64, 8, 4));
}

#[test]
fn what_prompts_may_not_take_is_for_proposals() {
    let proposed = |max_prefill_rows| {
        let tuning = Tuning { max_prefill_rows, ..config(Policy::Fixed { k: 8 }).tuning };
        let config = EngineConfig { tuning, max_pass_rows: 20, ..config(Policy::Fixed { k: 8 }) };
        let happenings = [(0, 2, 40), (1, 2, 40), (2, 100, 3)].map(|(seq, prompt, output)| {
            let begin = Duration::from_micros(if seq == 2 { 2000 } else { 0 });
            (begin, Happening::Arrival(request(seq, vec![seq as u32; prompt], output)))
        });
        let report = run(&config, happenings.to_vec());
        let passes = report.passes.iter().filter(|pass| pass.lane == LaneKind::Verify);
        passes.filter(|pass| pass.sequences == 3).map(|pass| pass.proposals).max().unwrap_or(0)
    };
    assert!(proposed(Some(1)) > proposed(None), "{} {}", proposed(Some(1)), proposed(None));
}

#[test]
fn p_min_drafts_less_and_is_right_more_often_the_more_it_asks() {
    let [all, half, most] = ["p-min:0.01", "p-min:0.5", "p-min:0.9"].map(|policy| {
        let requests = (0..2).map(|seq| request(seq, vec![seq as u32; 10], 100));
        let report = run(&config(policy.parse().expect("a policy")), at_once(requests));
        let usage = [0, 1].map(|seq| report.outcomes[&SeqId(seq)].usage);
        let [proposed, accepted] = [|u: &Usage| u.proposed, |u: &Usage| u.accepted]
            .map(|of| usage.iter().map(of).sum::<usize>() as f64);
        (proposed, accepted / proposed)
    });
    assert!(all.0 > half.0 && half.0 > most.0 && most.0 > 0.0, "{all:?} {half:?} {most:?}");
    assert!(all.1 < half.1 && half.1 < most.1, "{all:?} {half:?} {most:?}");
}

#[test]
fn who_is_behind_its_target_gets_more_and_who_is_ahead_less() {
    let with = |micros| proposals_per_pass(Slo { tpot: Some(Duration::from_micros(micros)), ttft: None });
    let [plain, _] = proposals_per_pass(Slo::default());
    let [behind, beside] = with(1);
    assert!(behind > plain && behind > beside + 0.3, "{behind} {beside} {plain}");
    let [ahead, beside] = with(1_000_000);
    assert!(ahead < plain && ahead < beside - 0.3, "{ahead} {beside} {plain}");
}

#[test]
fn prefill_goes_first_to_the_most_urgent_and_among_equals_to_whose_first_token_is_due_first() {
    let config = EngineConfig {
        max_pass_rows: 10,
        tuning: Tuning { max_running: 5, ..config(Policy::Off).tuning },
        ..config(Policy::Off)
    };
    let requests = (0..5).map(|seq| {
        let ttft = (seq == 3).then_some(Duration::from_millis(1));
        let request = with_slo(Slo { ttft, tpot: None }, request(seq, vec![seq as u32; 40], 5));
        of_priority(if seq == 4 { -1 } else { 0 }, request)
    });
    let report = run(&config, at_once(requests));
    let first = |seq| report.outcomes[&SeqId(seq)].first_token_after;
    assert!(first(4) < first(3), "{:?}", (0..5).map(first).collect::<Vec<_>>());
    assert!((0..3).all(|seq| first(3) < first(seq)), "{:?}", (0..5).map(first).collect::<Vec<_>>());
}

/// Rows of a pass of 10 go to prompts of 40 tokens, in about 1.2 ms each.
fn due_in(ttfts: &[u64], every: Duration) -> Report {
    let config = EngineConfig {
        max_pass_rows: 10,
        partitions: undivided((20, 1), (1000, 20)),
        tuning: Tuning { max_running: 10, ..config(Policy::Budget).tuning },
        target_blocks: 1024,
        ..config(Policy::Budget)
    };
    let arrivals = ttfts.iter().zip(0..).map(|(&ms, seq)| {
        let slo = Slo { ttft: Some(Duration::from_millis(ms)), tpot: None };
        (every * seq as u32, Happening::Arrival(with_slo(slo, request(seq, vec![seq as u32 % 50; 40], 1))))
    });
    run(&config, arrivals.collect())
}

#[test]
fn who_cannot_meet_its_target_any_more_makes_nobody_else_miss_it() {
    // The first would take 5 ms.
    let report = due_in(&[1, 8, 14], Duration::ZERO);
    let first = [0, 1, 2].map(|seq| report.outcomes[&SeqId(seq)].first_token_after);
    assert!(first[1] < first[2] && first[2] < first[0], "{first:?}");
}

#[test]
fn nobody_is_late_for_ever() {
    // More prompts than can be computed, all of which could meet their target when they come.
    let mut ttfts = vec![10; 60];
    ttfts[5] = 1;
    let report = due_in(&ttfts, Duration::from_micros(4600));
    let late = report.outcomes[&SeqId(5)].first_token_after;
    assert!(late.is_some_and(|late| late < Duration::from_millis(100)), "{late:?}");
}

#[test]
fn who_has_no_target_is_not_late_for_ever_beside_those_that_have_one() {
    let config = EngineConfig {
        max_pass_rows: 6,
        partitions: undivided((20, 1), (1000, 20)),
        tuning: Tuning { max_running: 6, ..config(Policy::Budget).tuning },
        target_blocks: 1024,
        ..config(Policy::Budget)
    };
    let prompt = |seq: u32| [vec![seq / 2500, seq / 50 % 50, seq % 50], vec![1; 37]].concat();
    // More prompts than can be computed, of which no target can be met; a pass has fewer rows than parts.
    let arrivals = (0..3600).map(|seq| {
        let slo = Slo { ttft: (seq != 5).then_some(Duration::from_millis(1)), tpot: None };
        let request = request(seq, prompt(seq as u32), 1);
        (Duration::from_millis(4) * seq as u32, Happening::Arrival(with_slo(slo, request)))
    });
    let report = run(&config, arrivals.collect());
    let late = report.outcomes[&SeqId(5)].first_token_after;
    assert!(late.is_some_and(|late| late < Duration::from_secs(12)), "{late:?}");
}

/// That others were cut off after two tokens says nothing of how much this one writes: its draft catches up with its prompt.
#[test]
fn requests_that_their_limit_cut_off_do_not_make_others_short() {
    let config = EngineConfig {
        partitions: undivided((1000, 400), (10_000, 200)),
        max_pass_rows: 128,
        tuning: Tuning {
            mechanisms: Mechanisms { lookup: false, ..Mechanisms::default() },
            ..config(Policy::Budget).tuning
        },
        ..config(Policy::Budget)
    };
    let prompt = |seq: u64| (0..60).map(|i| (i * 7 + seq as u32 * 13) % 50).collect::<Vec<_>>();
    let short = at_once((0..20).map(|seq| request(seq, prompt(seq), 2)));
    let later =
        (20..24).map(|seq| (Duration::from_secs(60), Happening::Arrival(request(seq, prompt(seq), 60))));
    let report = common::run(&config, 0.9, short.into_iter().chain(later).collect());
    let drafted = |seqs: std::ops::Range<u64>| -> u64 {
        seqs.map(|seq| report.outcomes[&SeqId(seq)].usage.by_source[Source::Draft].proposed as u64).sum()
    };
    // The last token is the target's own, and so is the first.
    assert_eq!(drafted(0..20), 0);
    assert!(drafted(20..24) > 100, "{}", drafted(20..24));
}

/// A device on which a prompt's rows cost far more than draft KV, and long prompts whose target KV is cached.
fn cold(policy: Policy) -> EngineConfig {
    // Sizes of passes are chosen among the points of the table.
    let verify = [1, 8, 16, 24, 32, 48, 64, 128, 256, 512]
        .map(|rows| (rows, Duration::from_millis(40 + 4 * rows as u64)));
    let verify = PassCost::new(&verify, AttentionCost::default());
    let draft = PassCost::linear(9000, 500, AttentionCost::default());
    EngineConfig {
        partitions: vec![PartitionCosts { draft, verify }],
        block_size: 16,
        max_pass_rows: 512,
        max_context: 512,
        tuning: Tuning {
            mechanisms: Mechanisms { lookup: false, ..Mechanisms::default() },
            ..config(policy.clone()).tuning
        },
        ..config(policy)
    }
}

fn long_prompt(seq: u64) -> Vec<u32> {
    (0..128).map(|i| (i * 7 + seq as u32 % 100 * 13) % 50).collect()
}

/// After all have their first token, nobody catches up alone while the others wait.
#[test]
fn sequences_without_draft_kv_catch_up_together_once_all_have_their_first_token() {
    // Two tokens are not worth the draft's prefill.
    let warm = (0..4).map(|seq| request(seq, long_prompt(seq), 2));
    let later = |seq| Happening::Arrival(request(seq, long_prompt(seq), 48));
    let later = (100..104).map(|seq| (Duration::from_secs(60), later(seq)));
    let simulation = common::simulation(&cold(Policy::Budget), 0.7).in_detail();
    let report = simulation.run(at_once(warm).into_iter().chain(later));
    let first = (100..104).filter_map(|seq| report.outcomes[&SeqId(seq)].first_token_after).max();
    let first = Duration::from_secs(60) + first.expect("a first token");
    let caught_up = report.passes.iter().filter(|pass| {
        let long = |seq: u64| pass.chunks.iter().any(|chunk| chunk.seq == SeqId(seq) && chunk.rows > 32);
        pass.lane == LaneKind::Draft && (100..104).any(long)
    });
    let plans: Vec<_> = caught_up.map(|pass| (pass.began, pass.ended, pass.rows)).collect();
    assert!(plans.iter().all(|(began, ..)| *began >= first), "{first:?} {plans:?}");
    // A pass that prompts fill has 48 rows and takes 232 ms.
    let longest = Duration::from_millis(270);
    assert!(plans.len() == 2 && plans.iter().all(|(b, e, _)| *e - *b < longest), "{plans:?}");
}

/// Where draft plans are too small for a prompt, several of them catch up with it in front of one round's drafts.
#[test]
fn a_prompt_of_many_small_passes_is_caught_up_with_in_one_round() {
    let config = EngineConfig {
        max_pass_rows: 32,
        partitions: vec![PartitionCosts {
            draft: PassCost::linear(500, 1, AttentionCost::default()),
            verify: PassCost::linear(20_000, 20, AttentionCost::default()),
        }],
        ..cold(Policy::Budget)
    };
    let late = |seq| (Duration::from_secs(2), Happening::Arrival(request(seq, long_prompt(seq), 60)));
    let simulation = common::simulation(&config, 0.8).in_detail();
    let report = simulation.run(at_once([request(1, vec![1; 8], 200)]).into_iter().chain([late(2)]));
    let passes = report.passes.iter().filter(|pass| pass.lane == LaneKind::Verify);
    let proposals: Vec<usize> = passes
        .flat_map(|pass| pass.chunks.iter().filter(|chunk| chunk.seq == SeqId(2)))
        .map(|chunk| chunk.proposals)
        .collect();
    // Its prefill takes five passes beside the other's rows; the last brings its first token.
    let begins = proposals.iter().position(|&k| k > 0);
    assert!(begins.is_some_and(|begins| begins <= 6), "{proposals:?}");
}

/// However many plans catch up in front of a round's drafts, together they take no longer than a pass.
#[test]
fn plans_that_catch_up_in_one_round_take_no_longer_than_a_pass() {
    let config = EngineConfig {
        max_pass_rows: 64,
        max_context: 1200,
        target_blocks: 200,
        draft: DraftSource::model(200),
        partitions: vec![PartitionCosts {
            draft: PassCost::linear(5000, 1, AttentionCost::default()),
            verify: PassCost::linear(16_000, 10, AttentionCost::default()),
        }],
        ..cold(Policy::Budget)
    };
    let long = (Duration::from_secs(1), Happening::Arrival(request(2, vec![4; 1000], 150)));
    let simulation = common::simulation(&config, 0.8).in_detail();
    let report = simulation.run(at_once([request(1, vec![1; 8], 300)]).into_iter().chain([long]));
    let (mut longest, mut together, mut plans) = (Duration::ZERO, Duration::ZERO, 0);
    for pass in &report.passes {
        // One that drafts too has steps behind it.
        let only_catches_up = pass.chunks.iter().all(|chunk| chunk.k == 0);
        match pass.lane {
            LaneKind::Verify => together = Duration::ZERO,
            LaneKind::Draft if only_catches_up => {
                together += pass.ended - pass.began;
                plans += 1;
            }
            LaneKind::Draft => {}
        }
        longest = longest.max(together);
    }
    assert!(plans > 8 && longest < Duration::from_millis(17), "{plans} plans, {longest:?}");
}

/// In which verify pass each of two sequences, that come together with prompts and outputs of so many tokens, has its first proposals.
fn first_proposals(policy: Policy, [one, other]: [(u32, usize); 2]) -> [usize; 2] {
    let config = EngineConfig {
        max_pass_rows: 512,
        max_context: 2000,
        target_blocks: 400,
        draft: DraftSource::model(400),
        partitions: vec![PartitionCosts {
            draft: PassCost::linear(500, 200, AttentionCost::default()),
            verify: PassCost::linear(20_000, 20, AttentionCost::default()),
        }],
        ..cold(policy)
    };
    let prompt = |tokens: u32, seq: u32| (0..tokens).map(|i| (i * 7 + seq * 13) % 50).collect::<Vec<_>>();
    let requests = [request(1, prompt(one.0, 1), one.1), request(2, prompt(other.0, 2), other.1)];
    let report = common::simulation(&config, 0.8).in_detail().run(at_once(requests));
    let passes: Vec<_> = report.passes.iter().filter(|pass| pass.lane == LaneKind::Verify).collect();
    [1, 2].map(|seq| {
        let proposes = |pass: &&PassRecord| {
            pass.chunks.iter().any(|chunk| chunk.seq == SeqId(seq) && chunk.proposals > 0)
        };
        passes.iter().position(proposes).expect("it drafts")
    })
}

/// Rows to catch up with go where they bring the most: who came first with a long prompt lets one begin to draft whose prompt is short, or as long
/// beside far more tokens to come. Fixed lengths go by the order of admission.
#[test]
fn who_has_few_rows_to_catch_up_with_for_its_tokens_begins_first() {
    for (two, at_least) in [([(1000, 150), (40, 150)], 3), ([(600, 100), (700, 400)], 3)] {
        let [first, second] = first_proposals(Policy::Budget, two);
        assert!(second + at_least <= first, "{two:?}: {first} {second}");
        let [first, second] = first_proposals(Policy::Fixed { k: 3 }, two);
        assert!(first < second, "{two:?}, fixed: {first} {second}");
    }
}

/// Where the first rows of a pass are dearer than those behind them, as with a mixture of experts, all rows of a round say whether a draft pays.
#[test]
fn a_draft_that_pays_for_all_together_is_caught_up_with() {
    let verify = [(1, 24), (2, 37), (4, 64), (8, 110), (12, 138), (16, 173), (24, 213), (32, 248), (64, 339)]
        .map(|(rows, tenths)| (rows, Duration::from_micros(100 * tenths)));
    let config = EngineConfig {
        partitions: vec![PartitionCosts {
            draft: PassCost::linear(180, 90, AttentionCost::default()),
            verify: PassCost::new(&verify, AttentionCost::default()),
        }],
        ..cold(Policy::Budget)
    };
    let prompt = |seq: u64| (0..32).map(|i| (i * 7 + seq as u32 * 13) % 50).collect::<Vec<_>>();
    let report = common::run(&config, 0.9, at_once((0..4).map(|seq| request(seq, prompt(seq), 256))));
    let proposed = report
        .outcomes
        .values()
        .map(|outcome| outcome.usage.by_source[Source::Draft].proposed)
        .sum::<usize>();
    assert!(proposed > 700, "{proposed}");
}

/// While somebody awaits its first token, a plan takes no longer than the next pass.
#[test]
fn a_first_token_waits_for_no_long_catch_up() {
    let warm = (0..4).map(|seq| request(seq, long_prompt(seq), 2));
    let begun = |offset: u64| Duration::from_secs(60) + Duration::from_millis(offset);
    // Two begin; then one comes in their first pass, and one as they have begun to draft.
    let later = [(0, 0), (1, 0), (2, 10), (3, 60)]
        .map(|(seq, offset)| (begun(offset), Happening::Arrival(request(100 + seq, long_prompt(seq), 48))));
    let first = |policy| {
        let report = run(&cold(policy), at_once(warm.clone()).into_iter().chain(later.clone()).collect());
        (100..104).map(|seq| report.outcomes[&SeqId(seq)].first_token_after).collect::<Vec<_>>()
    };
    let (budget, off) = (first(Policy::Budget), first(Policy::Off));
    // One pass with five rows more.
    let pass = Duration::from_millis(80);
    let late = budget.iter().zip(&off).filter(|(budget, off)| **budget > off.map(|off| off + pass)).count();
    assert_eq!(late, 0, "{budget:?} {off:?}");
}

/// Who arrives while drafts are made is in the verify pass that follows.
#[test]
fn a_prompt_that_comes_while_others_draft_waits_for_no_further_round() {
    let config =
        EngineConfig { partitions: undivided((5000, 1), (10_000, 5)), ..config(Policy::Fixed { k: 4 }) };
    let report = run(&config, vec![(Duration::ZERO, Happening::Arrival(request(0, vec![1; 6], 60)))]);
    let round = report.passes.iter().filter(|pass| pass.lane == LaneKind::Draft).nth(4).expect("a round");
    let comes = round.began + (round.ended - round.began) / 2;
    let report = run(
        &config,
        vec![
            (Duration::ZERO, Happening::Arrival(request(0, vec![1; 6], 60))),
            (comes, Happening::Arrival(request(1, vec![2; 6], 5))),
        ],
    );
    let first = report.outcomes[&SeqId(1)].first_token_after.expect("a first token");
    // What is left of the draft plan, and a pass.
    assert!(first < Duration::from_millis(21), "{first:?}");
}

/// A first token that will be late in any case makes no pass longer for those that decode.
#[test]
fn passes_are_filled_for_first_tokens_that_come_in_time_by_it() {
    let prompt = |seq: u32| (0..400).map(|i| (i * 7 + seq * 13) % 50).collect();
    let longest = |ttft: Option<u64>| {
        let slo = Slo { ttft: ttft.map(Duration::from_millis), tpot: None };
        let late = with_slo(slo, request(2, prompt(2), 2));
        let arrivals = at_once([request(1, vec![1; 8], 60)]);
        let late = (Duration::from_secs(1), Happening::Arrival(late));
        let report = common::simulation(&cold(Policy::Budget), 0.7).in_detail();
        let report = report.run(arrivals.into_iter().chain([late]));
        report.passes.iter().filter(|pass| pass.lane == LaneKind::Verify).map(|pass| pass.rows).max()
    };
    // All at once they take 1.64 s, beside the other in small passes more than 2 s.
    let [untargeted, early, tight, late] = [None, Some(1000), Some(1800), Some(10_000)].map(longest);
    assert!(tight >= Some(350) && untargeted < Some(300), "{tight:?} {untargeted:?}");
    assert!(early == untargeted && late == untargeted, "{early:?} {late:?} {untargeted:?}");
}

/// Who is far behind a draft keeps nobody from having verdicts prepared for, though it was admitted first and others wait to be admitted.
#[test]
fn who_is_far_behind_keeps_nobody_from_what_is_prepared() {
    let cost = |pass_us, row_us| PassCost::linear(pass_us, row_us, AttentionCost::default());
    let policy = Policy::Faser;
    let config = EngineConfig {
        max_context: 4000,
        target_blocks: 600,
        draft: DraftSource::model(600),
        partitions: vec![
            PartitionCosts { draft: cost(3000, 30), verify: cost(20_000, 20) },
            PartitionCosts { draft: cost(3100, 30), verify: cost(20_100, 20) },
        ],
        tuning: Tuning { max_running: 4, ..cold(policy.clone()).tuning },
        ..cold(policy)
    };
    let prompt = |seq: u64| vec![seq as u32; if seq == 1 { 3000 } else { 20 }];
    let report = common::simulation(&config, 0.8)
        .in_detail()
        .run(at_once((1..=8).map(|seq| request(seq, prompt(seq), 300))));
    let under = report.passes.iter().filter(|pass| pass.lane == LaneKind::Draft && pass.partition > 0);
    let (mut alone, mut besides) = (0, 0);
    for pass in under {
        let drafts = pass.chunks.iter().any(|chunk| chunk.k > 0);
        let catches_up = pass.chunks.iter().any(|chunk| chunk.seq == SeqId(1) && chunk.k == 0);
        alone += usize::from(!drafts);
        besides += usize::from(drafts && catches_up);
    }
    assert!(alone == 0 && besides > 0, "plans that only catch up {alone}, besides drafts {besides}");
}
