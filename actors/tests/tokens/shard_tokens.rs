//! Tensor parallelism: a pair that is split over ranks gives the tokens that it gives whole, in f32, whatever is drafted, pruned,
//! cancelled, preempted or lost around a request; and every rank comes to the same verdicts, proposals and margins.

use std::sync::Arc;
use std::time::Duration;

use faser_actors::Dtype;
use faser_models::synthetic::SyntheticSpec;
use faser_models::{Model, Shard, WeightSource};

use crate::cases::{pair_of, split_spec};
use crate::rank_group::Shards;
use crate::rig::{Pair, Times};
use crate::runs::{Tally, run, run_timed};

/// The pair with its target over `target` ranks and its draft over `draft`.
fn split(target: usize, draft: usize) -> Shards {
    split_in_stages((target, 1), draft)
}

/// The same with the target's ranks in so many stages.
fn split_in_stages((target, stages): (usize, usize), draft: usize) -> Shards {
    let of = |source: WeightSource, ranks, stages| {
        let load = |shard| Model::load(&source, shard, Dtype::F32, &mut |_| {}).expect("a shard");
        Shard::all_in_stages(ranks, stages).map(load).map(Arc::new).collect()
    };
    Shards {
        target: of(WeightSource::Synthetic(split_spec()), target, stages),
        draft: of(WeightSource::SyntheticDraft(split_spec()), draft, 1),
    }
}

fn requests_get_their_tokens(target: usize, draft: usize) {
    requests_get_them_in_stages((target, 1), draft);
}

fn requests_get_them_in_stages(target: (usize, usize), draft: usize) {
    let pair = pair_of(&split_spec(), Dtype::F32);
    let shards = Pair { shards: Some(split_in_stages(target, draft)), ..pair.clone() };
    let mut tally = Tally::default();
    for seed in 1..=40 {
        run(&pair, &shards, seed, &mut tally);
    }
    println!("target over {target:?}, draft over {draft}: {tally:?}");
    tally.assert_all_happened();
    assert!(tally.logprobs > 5, "{tally:?}");
}

#[test]
fn a_target_over_two_ranks_gives_the_tokens_of_one() {
    requests_get_their_tokens(2, 1);
}

#[test]
fn a_target_over_four_ranks_with_a_whole_draft_gives_the_tokens_of_one() {
    requests_get_their_tokens(4, 1);
}

#[test]
fn a_target_in_two_stages_of_two_ranks_gives_the_tokens_of_one() {
    requests_get_them_in_stages((4, 2), 1);
}

#[test]
fn a_target_whose_layers_are_each_a_stage_gives_the_tokens_of_one() {
    let layers = split_spec().layers;
    requests_get_them_in_stages((layers, layers), 1);
}

#[test]
fn target_and_draft_may_be_split_differently() {
    requests_get_their_tokens(2, 4);
}

#[test]
fn a_target_over_four_ranks_that_each_have_the_draft_gives_the_tokens_of_one() {
    // A draft that is often right, or none would be of use.
    let spec = SyntheticSpec { residual_scale: 0.1, ..split_spec() };
    let pair = pair_of(&spec, Dtype::F32);
    let draft = pair.draft.clone().expect("a draft");
    let source = WeightSource::Synthetic(spec);
    let load = |shard| Model::load(&source, shard, Dtype::F32, &mut |_| {}).expect("a shard");
    let target = Shard::all(4).map(load).map(Arc::new).collect();
    let copies = Pair { shards: Some(Shards { target, draft: vec![draft; 4] }), ..pair.clone() };
    assert_eq!(copies.draft_copies(), 4);
    let mut tally = Tally::default();
    for seed in 1..=60 {
        run(&pair, &copies, seed, &mut tally);
        run_timed(&pair, &copies, seed, Times::Told, &mut tally);
    }
    println!("{tally:?}");
    tally.assert_all_happened();
    assert!(tally.outcomes_taken >= 5, "{tally:?}");
}

#[test]
fn ranks_with_different_plans_say_so() {
    use faser_actors::{CpuBackend, CpuLaneSpec, MASK_PATIENCE, VerifyRunner, VerifyWork};
    use faser_engine::VerifyPlan;
    use faser_kernels::{Isa, Partition};
    let group = faser_kernels::collective::ways_in_process(2, 1, Duration::from_secs(60));
    let ranks = split(2, 1).target.into_iter().zip(group).zip([7, 8]);
    let threads = ranks.map(|((model, way), step)| {
        std::thread::spawn(move || {
            let spec = CpuLaneSpec {
                partitions: vec![Partition { cores: vec![0] }],
                isa: Isa::detect(),
                blocks: 4,
                block_size: 16,
                max_rows: 8,
                max_logit_rows: 8,
                features: None,
            };
            let mut backend = CpuBackend::new(model, &spec).expect("a lane");
            backend.join(&way);
            let mut runner = VerifyRunner::new(backend, MASK_PATIENCE);
            let plan = VerifyPlan { step, ..VerifyPlan::default() };
            runner.run(VerifyWork { plan, requests: Vec::new() });
        })
    });
    for (rank, thread) in threads.collect::<Vec<_>>().into_iter().enumerate() {
        let words = thread.join().expect_err("it panics");
        let words = words.downcast_ref::<String>().expect("words");
        let other = 1 - rank;
        let expected = format!("rank {rank} has plan {}, rank {other} plan {}", 7 + rank, 7 + other);
        assert_eq!(*words, expected);
    }
}
