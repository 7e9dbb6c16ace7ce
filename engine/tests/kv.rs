//! Whose KV is kept for others, and how the draft's comes to be, in the simulator.

mod common;

use std::time::Duration;

use common::{VOCABULARY, at_once, config, request, undivided};
use faser_engine::record::ChunkRecord;
use faser_engine::sim::{Happening, Report};
use faser_engine::{DraftSource, EngineConfig, LaneKind, Policy, Request, SeqId, SpeculationBounds, TokenId};

fn run(config: &EngineConfig, acceptance: f64, happenings: Vec<(Duration, Happening)>) -> Report {
    common::simulation(config, acceptance).in_detail().run(happenings)
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
    // One that was preempted computes what nobody has kept, and leaves it.
    let small = EngineConfig { target_blocks: 33, draft: DraftSource::model(33), ..config(Policy::Off) };
    let other: Vec<TokenId> = (0..50).map(|token| (token * 7 + 3) % VOCABULARY).collect();
    let happenings = vec![
        (begin, Happening::Arrival(request(2, other, 60))),
        (begin, Happening::Arrival(first(40))),
        second(Duration::from_secs(1)),
    ];
    let report = run(&small, 0.7, happenings);
    assert!(report.view.totals.preemptions > 0, "nobody was preempted");
    assert_eq!(report.outcomes[&SeqId(9)].usage.cached_tokens, 40);
}

/// A draft model with a shorter context drafts as far as that goes, and no row of it lies beyond.
#[test]
fn beyond_the_drafts_context_the_target_goes_on_alone() {
    let arrivals = || at_once([request(1, vec![3; 30], 90), request(2, vec![4; 70], 30)]);
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
    for (policy, least, most) in [(Policy::Fixed { k: 2 }, 65, 128), (Policy::Budget, 64, 64)] {
        let config = EngineConfig {
            max_context: 1024,
            max_pass_rows: 512,
            target_blocks: 600,
            draft: DraftSource::model(600),
            partitions: undivided((100, 10), (1000, 5)),
            ..config(policy.clone())
        };
        let happenings = vec![
            (Duration::ZERO, Happening::Arrival(request(1, vec![3; 30], 400))),
            (Duration::from_millis(20), Happening::Arrival(request(2, vec![4; 900], 100))),
        ];
        let report = run(&config, 1.0, happenings);
        let drafted = report.passes.iter().filter(|pass| pass.lane == LaneKind::Draft);
        let of_second = drafted.flat_map(|pass| &pass.chunks).filter(|chunk| chunk.seq == SeqId(2));
        let rows: Vec<usize> = of_second.clone().map(|chunk| chunk.rows).collect();
        // More is no wait once the other has ended.
        let many = rows.iter().filter(|rows| **rows > most).count();
        let within = rows.iter().filter(|rows| (least..=most).contains(*rows)).count();
        assert!(many <= 3 && within > 2, "{policy}: {rows:?}");
        assert!(of_second.map(|chunk| chunk.k).sum::<usize>() > 0, "{policy}: it never drafts");
    }
}
