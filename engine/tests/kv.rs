//! Whose KV is kept for others, and how the draft's comes to be, in the simulator.

mod common;

use std::time::Duration;

use common::{VOCABULARY, at_once, config, request, undivided};
use faser_engine::record::ChunkRecord;
use faser_engine::sim::{Happening, Report};
use faser_engine::{
    Command, DraftSource, EngineConfig, Handling, LaneKind, Policy, Request, SeqId, SpeculationBounds,
    TokenId, Tuning,
};

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
        assert_eq!(of(first(1), vec![]), 41, "one token");
        assert_eq!(of(Request { whole_prompt: true, ..first(1) }, vec![]), 41, "scored");
        for stop in [text[0], text[5]] {
            let stopped = Request { stop_tokens: [stop].into(), ..first(30) };
            assert_eq!(of(stopped, vec![]), 41, "ended by a token");
        }
        let cancel = (Duration::from_millis(5), Happening::Cancel(SeqId(1)));
        assert_eq!(of(first(80), vec![cancel]), 41, "cancelled");
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
    assert_eq!(report.outcomes[&SeqId(9)].usage.cached_tokens, 41);
}

/// Rows of a lane that bring a sequence's KV of the first `prompt` positions.
fn prompt_rows(report: &Report, lane: LaneKind, seq: u64, prompt: usize) -> usize {
    let passes = report.passes.iter().filter(|pass| pass.lane == lane);
    let chunks = passes.flat_map(|pass| &pass.chunks).filter(|chunk| chunk.seq == SeqId(seq));
    chunks.map(|chunk| (chunk.start + chunk.rows).min(prompt).saturating_sub(chunk.start)).sum()
}

/// Of a prompt that was there before, target and draft compute the last token alone; of one that parts from it, what is behind that place,
/// wherever it is in a block.
#[test]
fn a_prompt_is_computed_from_the_token_on_where_it_is_new() {
    for length in [41, 42, 43, 44] {
        let prompt: Vec<TokenId> = (0..length).map(|token| token % VOCABULARY).collect();
        for parts_at in [0, 1, 17, 39, 40, 41, length as usize] {
            let mut other = prompt.clone();
            other.iter_mut().skip(parts_at).for_each(|token| *token = (*token + 1) % VOCABULARY);
            let of_seq = |seq, prompt: &[TokenId], n| {
                let at = Duration::from_millis(100 * seq);
                (at, Happening::Arrival(request(seq, prompt.to_vec(), n)))
            };
            for (policy, first) in [(Policy::Off, 1), (Policy::Fixed { k: 4 }, 30)] {
                let happenings = vec![of_seq(0, &prompt, first), of_seq(1, &other, 20)];
                let report = run(&config(policy.clone()), 0.7, happenings);
                let cached = parts_at.min(length as usize - 1);
                let usage = report.outcomes[&SeqId(1)].usage;
                assert_eq!(usage.cached_tokens, cached, "{length} {parts_at}");
                let rows = |lane| prompt_rows(&report, lane, 1, length as usize);
                assert_eq!(rows(LaneKind::Verify), length as usize - cached, "{length} {parts_at}");
                if policy != Policy::Off {
                    assert_eq!(rows(LaneKind::Draft), length as usize - cached, "{length} {parts_at}");
                }
                let right = common::device(&config(policy), 0.7).continuation(&other, 20, &[]);
                assert_eq!(report.outcomes[&SeqId(1)].tokens, right);
            }
        }
    }
}

/// Where the target has all of a prompt in the cache and the draft has nothing of it, the first token comes before the draft catches up.
#[test]
fn a_first_token_waits_for_no_draft() {
    let prompt: Vec<TokenId> = (0..60).map(|token| token % VOCABULARY).collect();
    let first_token = |policy| {
        let arrive =
            |ms, seq, n| (Duration::from_millis(ms), Happening::Arrival(request(seq, prompt.clone(), n)));
        let report = run(&config(policy), 0.7, vec![arrive(0, 1, 1), arrive(100, 2, 40)]);
        let outcome = &report.outcomes[&SeqId(2)];
        (outcome.first_token_after, outcome.usage.cached_tokens, outcome.usage.proposed > 0)
    };
    let (plain, cached, _) = first_token(Policy::Off);
    assert_eq!(cached, 59);
    assert_eq!(first_token(Policy::Fixed { k: 4 }), (plain, cached, true));
}

/// Whoever is past its prompt shares it, to the token, while it goes on.
#[test]
fn a_prompt_is_there_for_others_once_it_is_computed() {
    let prompt: Vec<TokenId> = (0..42).map(|token| token % VOCABULARY).collect();
    for policy in [Policy::Off, Policy::Fixed { k: 4 }, Policy::Faser] {
        let arrive = |ms, seq, n| {
            (Duration::from_millis(ms), Happening::Arrival(request(seq, prompt[..n].to_vec(), 80)))
        };
        let report =
            run(&config(policy.clone()), 0.7, vec![arrive(0, 1, 42), arrive(5, 2, 42), arrive(6, 3, 38)]);
        let outcome = |seq| &report.outcomes[&SeqId(seq)];
        assert!(outcome(1).ended_after > Some(Duration::from_millis(6)));
        assert_eq!([1, 2, 3].map(|seq| outcome(seq).usage.cached_tokens), [0, 41, 37], "{policy}");
        for (seq, n) in [(1, 42), (2, 42), (3, 38)] {
            let right = common::device(&config(policy.clone()), 0.7).continuation(&prompt[..n], 80, &[]);
            assert_eq!(outcome(seq).tokens, right, "{policy}");
        }
    }
}

/// Several that come at once go on behind the same block, and those of another salt behind none.
#[test]
fn one_block_is_copied_for_all_that_come_at_once() {
    let prompt: Vec<TokenId> = (0..43).map(|token| token % VOCABULARY).collect();
    for policy in [Policy::Off, Policy::Fixed { k: 3 }, Policy::Faser] {
        let mut happenings = vec![(Duration::ZERO, Happening::Arrival(request(0, prompt.clone(), 5)))];
        happenings.extend((1..7).map(|seq| {
            let salt = u128::from(seq > 4);
            let handling = Handling { salt, ..Handling::default() };
            let request = Request { handling, ..request(seq, prompt.clone(), 40) };
            (Duration::from_millis(100), Happening::Arrival(request))
        }));
        let report = run(&config(policy.clone()), 0.7, happenings);
        let cached = |seq| report.outcomes[&SeqId(seq)].usage.cached_tokens;
        assert_eq!((0..7).map(cached).collect::<Vec<_>>(), [0, 42, 42, 42, 42, 0, 0], "{policy}");
        let right = common::device(&config(policy), 0.7).continuation(&prompt, 40, &[]);
        assert!((1..7).all(|seq| report.outcomes[&SeqId(seq)].tokens == right));
        assert_eq!(report.view.totals.cached_prompt_tokens, 4 * 42);
    }
}

/// A client may go before its copy was made, and the pool may be so small that the block that is copied is taken at once.
#[test]
fn copies_that_nobody_waits_for_do_no_harm() {
    let prompt: Vec<TokenId> = (0..42).map(|token| token % VOCABULARY).collect();
    for policy in [Policy::Off, Policy::Fixed { k: 4 }, Policy::Faser] {
        for (blocks, cancelled_at) in (33..37).flat_map(|blocks| (0..40).map(move |at| (blocks, at))) {
            let draft = DraftSource::model(blocks);
            let config = EngineConfig { target_blocks: blocks, draft, ..config(policy.clone()) };
            let ms = Duration::from_millis;
            let mut happenings = vec![(ms(0), Happening::Arrival(request(0, prompt.clone(), 1)))];
            for seq in 1..6 {
                let parted = prompt.iter().take(36 + seq as usize).copied().chain([1, 2, 3]).collect();
                happenings.push((ms(50), Happening::Arrival(request(seq, parted, 10 + 9 * seq as usize))));
            }
            let at = ms(50) + Duration::from_micros(250 * cancelled_at);
            happenings.push((at, Happening::Cancel(SeqId(1))));
            happenings.push((at, Happening::Cancel(SeqId(3))));
            let report = run(&config, 0.7, happenings);
            assert!(report.view.target_pool.whole() && report.view.draft_pool.whole());
            assert!((1..6).all(|seq| seq % 2 == 1 || report.outcomes[&SeqId(seq)].tokens.len() > 9));
        }
    }
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

/// Where a draft's pool is full, who drafts takes the blocks of one that does not yet: here of one whose draft reads its prompt along.
#[test]
fn who_drafts_takes_draft_kv_from_one_that_does_not() {
    let config = EngineConfig {
        max_context: 256,
        max_pass_rows: 16,
        draft: DraftSource::model(64),
        ..config(Policy::Fixed { k: 2 })
    };
    let happenings = vec![
        (Duration::ZERO, Happening::Arrival(request(1, vec![3; 60], 120))),
        (Duration::from_millis(20), Happening::Arrival(request(2, vec![4; 240], 2))),
    ];
    let report = run(&config, 1.0, happenings);
    let (verify, draft): (Vec<_>, Vec<_>) =
        report.passes.iter().partition(|pass| pass.lane == LaneKind::Verify);
    let beside: Vec<usize> = verify
        .iter()
        .filter(|pass| pass.chunks.iter().any(|chunk| chunk.seq == SeqId(2)))
        .flat_map(|pass| pass.chunks.iter().filter(|chunk| chunk.seq == SeqId(1)))
        .map(|chunk| chunk.proposals)
        .collect();
    assert!(beside.len() > 12 && beside.iter().all(|&k| k == 2), "{beside:?}");
    // It does not read its prompt again and again meanwhile.
    let of_second = draft.iter().flat_map(|pass| &pass.chunks).filter(|chunk| chunk.seq == SeqId(2));
    let rows: usize = of_second.map(|chunk| chunk.rows).sum();
    assert!(rows < 300, "{rows}");
}

/// A draft reads a prompt when its sequence first drafts; where others wait for KV, along with the target.
#[test]
fn where_others_wait_for_kv_the_draft_reads_prompts_along() {
    let config = EngineConfig {
        max_context: 512,
        max_pass_rows: 64,
        target_blocks: 160,
        draft: DraftSource::model(600),
        partitions: undivided((100, 1), (1000, 5)),
        ..config(Policy::Budget)
    };
    let rows_along = |third: &[u64]| {
        let arrive = |ms, seq, length, n| {
            let prompt = vec![seq as u32; length];
            (Duration::from_millis(ms), Happening::Arrival(request(seq, prompt, n)))
        };
        let mut happenings = vec![arrive(0, 1, 30, 200), arrive(20, 2, 300, 60)];
        happenings.extend(third.iter().map(|&seq| arrive(21, seq, 300, 8)));
        let report = run(&config, 0.8, happenings);
        let of_second = report.passes.iter().map(|pass| (pass.lane, &pass.chunks));
        let of_second = of_second.flat_map(|(lane, chunks)| chunks.iter().map(move |chunk| (lane, chunk)));
        of_second
            .filter(|(_, chunk)| chunk.seq == SeqId(2))
            .take_while(|(lane, chunk)| *lane == LaneKind::Draft || chunk.start + chunk.rows < 300)
            .filter(|(lane, _)| *lane == LaneKind::Draft)
            .map(|(_, chunk)| chunk.rows)
            .sum::<usize>()
    };
    assert_eq!(rows_along(&[]), 0);
    let along = rows_along(&[3]);
    assert!(along > 100, "{along}");
}

/// Whoever decodes does not wait for the whole history of one that begins to draft.
#[test]
fn a_draft_catches_up_in_parts_while_others_decode() {
    // Where costs decide, in as many rows as take no longer than a pass that prompts fill: that has 512, and takes 3.6 ms.
    for (policy, least, most) in [(Policy::Fixed { k: 2 }, 65, 128), (Policy::Budget, 200, 346)] {
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

/// Where blocks are short, what is drafted has room: nearly all of it is verified.
#[test]
fn what_no_block_is_left_for_is_not_drafted() {
    let config = EngineConfig {
        block_size: 16,
        target_blocks: 30,
        tuning: Tuning { max_running: 24, ..config(Policy::Budget).tuning },
        ..config(Policy::Budget)
    };
    let requests = (0..48).map(|seq| request(seq, vec![seq as u32; 8], 60));
    let (mut drafted, mut verified, mut short) = (0, 0, 0);
    let simulation = common::simulation(&config, 0.8);
    simulation.run_seen(at_once(requests), |_, engine, commands| {
        let view = engine.view();
        short += usize::from(view.steering.kv_short);
        // Few may draft further than they are to, and end before. Of many some steps are not taken in the end, for they do not pay.
        for command in commands.iter().filter(|_| view.running > 4) {
            match command {
                Command::Draft(plan) => drafted += plan.chunks.iter().map(|chunk| chunk.steps).sum::<usize>(),
                Command::Verify(plan) => {
                    verified += plan.chunks.iter().map(|chunk| chunk.proposals).sum::<usize>();
                }
                _ => {}
            }
        }
    });
    assert!(short > 10, "{short}");
    assert!(drafted > 100 && verified * 100 > drafted * 94, "{verified} of {drafted}");
}
