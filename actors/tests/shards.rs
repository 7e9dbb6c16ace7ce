//! Tensor parallelism: a pair that is split over ranks gives the tokens that it gives whole, in f32, whatever is drafted, pruned,
//! cancelled, preempted or lost around a request; and every rank comes to the same verdicts, proposals and gaps.

#[path = "rig/cases.rs"]
#[allow(dead_code, reason = "the pair is of another shape here")]
mod cases;
mod rig;
#[path = "rig/runs.rs"]
mod runs;

use std::sync::Arc;
use std::time::Duration;

use faser_actors::Dtype;
use faser_models::synthetic::{self, SyntheticSpec};
use faser_models::{Model, Shard, WeightSource};
use rig::Pair;
use rig::group::Shards;
use runs::{Tally, run};

/// As the cases want it, with eight query heads and two KV heads.
fn spec() -> SyntheticSpec {
    SyntheticSpec {
        layers: 3,
        draft_layers: 1,
        hidden: 64,
        intermediate: 48,
        heads: 8,
        kv_heads: 2,
        vocab: 256,
        max_context: 96,
        seed: 7,
        residual_scale: 0.3,
    }
}

fn whole() -> Pair {
    let (target, draft) = synthetic::pair(&spec(), Dtype::F32, &mut |_| {}).expect("a synthetic pair");
    Pair { target: Arc::new(target), draft: Some(Arc::new(draft)), cuda: None, shards: None }
}

/// The pair with its target over `target` ranks and its draft over `draft`.
fn split(target: usize, draft: usize) -> Shards {
    let of = |source: WeightSource, ranks| {
        let load = |shard| Model::load(&source, shard, Dtype::F32, &mut |_| {}).expect("a shard");
        Shard::all(ranks).map(load).map(Arc::new).collect()
    };
    Shards {
        target: of(WeightSource::Synthetic(spec()), target),
        draft: of(WeightSource::SyntheticDraft(spec()), draft),
    }
}

fn requests_get_their_tokens(target: usize, draft: usize) {
    let pair = whole();
    let shards = Pair { shards: Some(split(target, draft)), ..pair.clone() };
    let mut tally = Tally::default();
    for seed in 1..=40 {
        run(&pair, &shards, seed, &mut tally);
    }
    println!("target over {target}, draft over {draft}: {tally:?}");
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
fn target_and_draft_may_be_split_differently() {
    requests_get_their_tokens(2, 4);
}

#[test]
fn ranks_with_different_plans_say_so() {
    use faser_actors::{CpuBackend, CpuLaneSpec, MASK_PATIENCE, VerifyRunner, VerifyWork};
    use faser_engine::VerifyPlan;
    use faser_kernels::{Isa, Partition};
    let group = faser_kernels::collective::in_process(2, Duration::from_secs(60));
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
                hidden: None,
            };
            let mut backend = CpuBackend::new(model, &spec).expect("a lane");
            backend.join(&(Arc::new(way) as _));
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
