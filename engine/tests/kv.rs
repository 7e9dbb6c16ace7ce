//! Whose KV is kept for others, and how the draft's comes to be, in the simulator.

use std::time::Duration;

use faser_engine::cost::{AttentionCost, PartitionCosts, PassCost, ROW_GRID};
use faser_engine::record::ChunkRecord;
use faser_engine::sim::{Happening, Report, SimDevice, Simulation};
use faser_engine::{
    DraftSource, EngineConfig, Handling, LaneKind, Policy, Request, SeqId, SpeculationBounds, TokenId, Tuning,
};

const VOCABULARY: u32 = 50;

/// The whole device, and a partition on which both lanes are slower.
fn partitions() -> Vec<PartitionCosts> {
    let cost = |pass: u64, row: u64| {
        PassCost::new(
            ROW_GRID.map(|rows| Duration::from_micros(pass + row * rows as u64)),
            AttentionCost { per_kv_fs: 1_000_000, per_row_fs: 9_000_000 },
        )
    };
    vec![
        PartitionCosts { draft: cost(100, 1), verify: cost(1000, 5) },
        PartitionCosts { draft: cost(150, 2), verify: cost(1100, 8) },
    ]
}

fn config(policy: Policy) -> EngineConfig {
    EngineConfig {
        block_size: 4,
        target_blocks: 200,
        draft: DraftSource::model(200),
        max_pass_rows: 64,
        max_context: 128,
        partitions: partitions(),
        target_layers: 32,
        speculation: SpeculationBounds::default(),
        prefix_cache: true,
        tuning: Tuning { max_running: 8, max_waiting: 100, policy, ..Tuning::default() },
    }
}

fn request(seq: u64, prompt: Vec<TokenId>, max_new_tokens: usize) -> Request {
    Request {
        seq: SeqId(seq),
        prompt: prompt.into(),
        output: [].into(),
        max_new_tokens,
        stop_tokens: [].into(),
        prediction: [].into(),
        whole_prompt: false,
        handling: Handling::default(),
    }
}

fn device(acceptance: f64, block_size: usize) -> SimDevice {
    SimDevice::new(7, VOCABULARY, acceptance, block_size, partitions())
}

fn run(config: &EngineConfig, acceptance: f64, happenings: Vec<(Duration, Happening)>) -> Report {
    let device = device(acceptance, config.block_size);
    let simulation = Simulation::new(config.clone(), device).expect("the configuration is sound");
    simulation.in_detail().run(happenings)
}

/// However short a request was, and however it ended, the KV of its prompt is there for the next one.
#[test]
fn what_has_ended_is_cached_for_the_next_one() {
    let prompt: Vec<TokenId> = (0..42).map(|token| token % VOCABULARY).collect();
    let second = |at: Duration| (at, Happening::Arrival(request(9, prompt.clone(), 8)));
    let (begin, later) = (Duration::ZERO, Duration::from_millis(100));
    let cached = |policy: Policy, first: Request, more: Vec<(Duration, Happening)>| {
        let mut happenings = vec![(begin, Happening::Arrival(first)), second(later)];
        happenings.extend(more);
        happenings.sort_by_key(|(at, _)| *at);
        let report = run(&config(policy), 0.7, happenings);
        let outcome = &report.outcomes[&SeqId(9)];
        assert_eq!(outcome.tokens.len(), 8);
        outcome.usage.cached_tokens
    };
    let alone = run(&config(Policy::Off), 0.7, vec![second(begin)]);
    let text = alone.outcomes[&SeqId(9)].tokens.clone();
    let first = |n: usize| request(1, prompt.clone(), n);
    for policy in [Policy::Off, Policy::Fixed { k: 4 }, Policy::Faser] {
        let of = |first, more| cached(policy.clone(), first, more);
        assert_eq!(of(first(1), vec![]), 40, "one token");
        assert_eq!(of(Request { whole_prompt: true, ..first(1) }, vec![]), 40, "scored");
        for stop in [text[0], text[5]] {
            let stopped = Request { stop_tokens: [stop].into(), ..first(30) };
            assert_eq!(of(stopped, vec![]), 40, "ended by a token");
        }
        let cancel = (Duration::from_millis(5), Happening::Cancel(SeqId(1)));
        assert_eq!(of(first(80), vec![cancel]), 40, "cancelled");
    }
    // One that was put back computes what nobody has kept, and leaves it.
    let small = EngineConfig { target_blocks: 33, draft: DraftSource::model(33), ..config(Policy::Off) };
    let other: Vec<TokenId> = (0..50).map(|token| (token * 7 + 3) % VOCABULARY).collect();
    let happenings = vec![
        (begin, Happening::Arrival(request(2, other, 60))),
        (begin, Happening::Arrival(first(40))),
        second(Duration::from_secs(1)),
    ];
    let report = run(&small, 0.7, happenings);
    assert!(report.view.totals.preemptions > 0, "nobody was put back");
    assert_eq!(report.outcomes[&SeqId(9)].usage.cached_tokens, 40);
}

/// A draft model with a shorter context drafts as far as that goes, and no row of it lies beyond.
#[test]
fn beyond_the_drafts_context_the_target_goes_on_alone() {
    let arrivals = || {
        vec![
            (Duration::ZERO, Happening::Arrival(request(1, vec![3; 30], 90))),
            (Duration::ZERO, Happening::Arrival(request(2, vec![4; 70], 30))),
        ]
    };
    let plain = run(&config(Policy::Off), 1.0, arrivals());
    for policy in [Policy::Fixed { k: 4 }, Policy::Budget, Policy::Faser] {
        let speculation = SpeculationBounds { draft_context: 60, ..SpeculationBounds::default() };
        let config = EngineConfig { speculation, ..config(policy.clone()) };
        let report = run(&config, 1.0, arrivals());
        for seq in [SeqId(1), SeqId(2)] {
            assert_eq!(report.outcomes[&seq].tokens, plain.outcomes[&seq].tokens, "{policy}");
        }
        let drafted = report.passes.iter().filter(|pass| pass.lane == LaneKind::Draft);
        let chunks: Vec<_> = drafted.flat_map(|pass| &pass.chunks).collect();
        let last_row = |chunk: &&ChunkRecord| chunk.start + chunk.rows + chunk.k.saturating_sub(1);
        let last = chunks.iter().map(last_row).max().unwrap_or(0);
        assert!((56..=60).contains(&last), "{policy}: {last}");
        assert!(chunks.iter().all(|chunk| chunk.seq == SeqId(1)), "{policy}");
    }
}

/// Whoever decodes does not wait for the whole history of one that begins to draft.
#[test]
fn a_draft_catches_up_in_parts_while_others_decode() {
    let slow_draft = |pass: u64, row: u64| {
        let times = ROW_GRID.map(|rows| Duration::from_micros(pass + row * rows as u64));
        PassCost::new(times, AttentionCost::default())
    };
    let costs = PartitionCosts { draft: slow_draft(100, 10), verify: slow_draft(1000, 5) };
    for (policy, most) in [(Policy::Fixed { k: 2 }, 128), (Policy::Budget, 64)] {
        let config = EngineConfig {
            max_context: 1024,
            max_pass_rows: 512,
            target_blocks: 600,
            draft: DraftSource::model(600),
            partitions: vec![costs.clone()],
            ..config(policy.clone())
        };
        let happenings = vec![
            (Duration::ZERO, Happening::Arrival(request(1, vec![3; 30], 200))),
            (Duration::from_millis(20), Happening::Arrival(request(2, vec![4; 900], 100))),
        ];
        let report = run(&config, 1.0, happenings);
        let drafted = report.passes.iter().filter(|pass| pass.lane == LaneKind::Draft);
        let of_second = drafted.flat_map(|pass| &pass.chunks).filter(|chunk| chunk.seq == SeqId(2));
        let rows: Vec<usize> = of_second.clone().map(|chunk| chunk.rows).collect();
        // More is no wait beside the target's prefill, whose two passes are long, nor once the other has ended.
        let many = rows.iter().filter(|rows| **rows > most).count();
        assert!(many <= 3 && rows.iter().filter(|rows| **rows == most).count() > 2, "{policy}: {rows:?}");
        assert!(of_second.map(|chunk| chunk.k).sum::<usize>() > 0, "{policy}: it never drafts");
    }
}
