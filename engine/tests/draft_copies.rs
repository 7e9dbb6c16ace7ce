//! A draft that several ranks have whole: sequences are divided among them, with KV in the pool of their own rank.

mod common;

use std::time::Duration;

use common::{config, request};
use faser_engine::cost::{AttentionCost, PartitionCosts, PassCost};
use faser_engine::sim::Report;
use faser_engine::{
    Command, DraftPlan, DraftSource, Drafted, Engine, EngineConfig, EngineError, Event, LaneKind, Policy,
    SpeculationBounds, Verdict, VerifyPlan,
};

fn copies(draft_copies: usize) -> EngineConfig {
    let config = config(Policy::Fixed { k: 2 });
    EngineConfig { speculation: SpeculationBounds { draft_copies, ..config.speculation }, ..config }
}

/// Answers plans until a draft plan has a chunk of each of so many sequences that drafts.
fn first_drafts(engine: &mut Engine, sequences: usize) -> DraftPlan {
    let (mut commands, mut now) = (Vec::new(), Duration::ZERO);
    for seq in 0..sequences as u64 {
        // Prompts have nothing in common.
        let prompt = (0..20).map(|i| (100 * seq as u32 + i) % 1000).collect();
        engine.handle(now, Event::Submit(request(seq, prompt, 30)), &mut commands);
    }
    for _ in 0..200 {
        now += Duration::from_millis(1);
        let command = commands.remove(0);
        let event = match command {
            Command::Draft(plan)
                if plan.chunks.iter().filter(|chunk| chunk.steps > 0).count() == sequences =>
            {
                return plan;
            }
            Command::Draft(mut plan) => {
                plan.outcome.took = engine.predicted(LaneKind::Draft).unwrap_or_default();
                for chunk in &plan.chunks {
                    plan.outcome.counts.push(chunk.steps);
                    let drafted = Drafted { token: 7, confidence: 0.9, ..Drafted::default() };
                    plan.outcome.proposals.extend(std::iter::repeat_n(drafted, chunk.steps));
                }
                Event::DraftDone(plan)
            }
            Command::Verify(plan) => Event::VerifyDone(answered(plan)),
            _ => continue,
        };
        engine.handle(now, event, &mut commands);
    }
    panic!("they never draft together");
}

fn answered(mut plan: VerifyPlan) -> VerifyPlan {
    let verdict = |sample: bool| Verdict { next: sample.then_some(9), ..Verdict::default() };
    let verdicts: Vec<_> = plan.chunks.iter().map(|chunk| verdict(chunk.sample)).collect();
    plan.outcome.verdicts = verdicts;
    plan
}

#[test]
fn sequences_are_spread_evenly_with_blocks_of_each_ranks_own_pool() {
    let mut engine = Engine::new(copies(4)).expect("a valid config");
    let blocks = engine.config().draft.needs().blocks;
    assert_eq!(engine.view().draft_pool.total, 4 * blocks);
    let plan = first_drafts(&mut engine, 8);
    let on = |rank| plan.chunks.iter().filter(move |chunk| chunk.rank == rank);
    for rank in 0..4 {
        assert_eq!(on(rank).count(), 2, "{:?}", plan.chunks);
        // Numbers of a rank's own pool, each in one table.
        let mut ids: Vec<_> = on(rank).flat_map(|chunk| plan.table(chunk).to_vec()).collect();
        let all = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert!(ids.len() == all && ids.iter().all(|id| (*id as usize) < blocks), "{ids:?}");
    }
    let lowest = |rank| on(rank).flat_map(|chunk| plan.table(chunk)).min();
    assert_eq!([lowest(0), lowest(1)], [lowest(2), lowest(3)], "pools are numbered alike");
}

#[test]
fn a_draft_plan_is_predicted_by_the_fullest_rank() {
    let attention = AttentionCost::default();
    let costs = PartitionCosts {
        draft: PassCost::linear(0, 1000, attention),
        verify: PassCost::linear(1000, 10, attention),
    };
    let of = |draft_copies| {
        let config = EngineConfig { partitions: vec![costs.clone()], ..copies(draft_copies) };
        let mut engine = Engine::new(config).expect("a valid config");
        let plan = first_drafts(&mut engine, 8);
        let rows = |rank| plan.chunks.iter().filter(|chunk| chunk.rank == rank).map(|c| c.rows.len()).sum();
        let fullest: usize = (0..draft_copies).map(rows).max().unwrap_or(0);
        let predicted = engine.predicted(LaneKind::Draft).expect("there are tables");
        // A first step of all rows, and one more of a row each.
        let steps_s = (fullest + 8 / draft_copies) as f64 * 1e-3;
        (predicted.as_secs_f64(), predicted.as_secs_f64() / steps_s)
    };
    let [(one, speed), two, four] = [1, 2, 4].map(of);
    assert!(four.0 < two.0 && two.0 < one);
    // The pass before took its own time, and drafts go with the machine's speed.
    assert!([two, four].iter().all(|(_, its)| (its / speed - 1.0).abs() < 0.01), "{speed} {two:?} {four:?}");
    assert!((0.5..2.0).contains(&speed), "{speed}");
}

#[test]
fn what_cannot_be_divided_is_refused() {
    let head = EngineConfig { draft: DraftSource::head(64), ..copies(2) };
    assert!(matches!(Engine::new(head), Err(EngineError::Copies { copies: 2, .. })));
    assert!(matches!(Engine::new(copies(0)), Err(EngineError::Copies { copies: 0, .. })));
    assert!(matches!(Engine::new(copies(65)), Err(EngineError::Copies { copies: 65, .. })));
}

#[test]
fn where_a_ranks_pool_is_too_small_for_all_texts_are_the_same_and_some_are_drafted() {
    let run_with = |draft_blocks| {
        let config = EngineConfig { draft: DraftSource::model(draft_blocks), ..copies(2) };
        let requests = (0..8).map(|seq| request(seq, (0..20).map(|i| seq as u32 + i).collect(), 60));
        common::run(&config, 0.9, common::at_once(requests))
    };
    // Of four sequences of 80 tokens on each rank, for all and for two.
    let (all, half) = (run_with(96), run_with(40));
    let texts = |report: &Report| report.outcomes.values().map(|of| of.tokens.clone()).collect::<Vec<_>>();
    assert_eq!(texts(&all), texts(&half));
    let [all, half] = [&all, &half].map(|report| report.view.totals.draft_tokens);
    assert!(half < all && 4 * half > all, "{half} of {all}");
}
