//! Tensor parallelism: a pair that is split over ranks gives the tokens that it gives whole, in f32, whatever is drafted, pruned,
//! cancelled, preempted or lost around a request; and every rank comes to the same verdicts, proposals and gaps.

#[path = "rig/cases.rs"]
#[allow(dead_code, reason = "the pair is of another shape here")]
mod cases;
mod rig;

use std::sync::Arc;
use std::time::Duration;

use cases::solo;
use faser_actors::{Dtype, Logprobs};
use faser_engine::{Event, FinishReason};
use faser_models::Shard;
use faser_models::synthetic::{self, SyntheticSpec};
use rig::group::Shards;
use rig::{Pair, Random, Rig};

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
    let of_target =
        |shard| synthetic::shard_pair(&spec(), shard, Dtype::F32, &mut |_| {}).expect("a shard").0;
    let of_draft =
        |shard| synthetic::shard_of_draft(&spec(), shard, Dtype::F32, &mut |_| {}).expect("a shard");
    Shards {
        target: Shard::all(target).map(of_target).map(Arc::new).collect(),
        draft: Shard::all(draft).map(of_draft).map(Arc::new).collect(),
    }
}

/// What happened over all cases.
#[derive(Debug, Default)]
struct Tally {
    tokens: usize,
    accepted: u64,
    rejected: u64,
    pruned: u64,
    gone_inside: u64,
    devices_lost: u64,
    drawn: usize,
    penalties: usize,
    restricted: usize,
    logprobs: usize,
}

/// How many are told, all within rounding of the whole model's.
fn near(found: &[Option<Logprobs>], expected: &[Option<Logprobs>]) -> usize {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        let of = |told: &Option<Logprobs>| told.as_ref().map_or((None, 0.0), |t| (Some(t.token), t.logprob));
        let ((found, a), (expected, b)) = (of(found), of(expected));
        assert!(found == expected && (a - b).abs() < 1e-4, "{found:?} {a} {expected:?} {b}");
    }
    found.iter().flatten().count()
}

fn run(pair: &Pair, shards: &Shards, seed: u64, tally: &mut Tally) {
    let random = &mut Random(seed);
    let (config, mut cases) = (random.config(), random.cases());
    random.want_more(&mut cases);
    let mut rig = Rig::new(&Pair { shards: Some(shards.clone()), ..pair.clone() }, &config);
    rig.disturb(Some(random.next()), random.chance(40).then_some(seed));
    let mut to_come = cases.iter();
    let mut device_may_fail = random.chance(40);
    loop {
        if to_come.len() > 0 && (rig.plans.is_empty() || random.chance(30)) {
            to_come.next().expect("one is to come").submit(&mut rig);
        } else if device_may_fail && random.chance(4) {
            device_may_fail = false;
            tally.devices_lost += 1;
            rig.tell(Event::DeviceLost);
            rig.tell(Event::DeviceReady);
        } else {
            let next = random.between(0, rig.plans.len().saturating_sub(1));
            if !rig.work(next, Duration::from_micros(random.below(3000))) && to_come.len() == 0 {
                break;
            }
        }
    }
    rig.finish();
    let totals = rig.engine.view().totals;
    tally.accepted += totals.accepted_tokens;
    tally.rejected += totals.draft_tokens - totals.accepted_tokens;
    tally.pruned += totals.rows_pruned;
    tally.gone_inside += rig.gone_inside;
    for case in &cases {
        let (found, expected) = (case.outcome(&mut rig), solo(pair, case));
        match found.reason {
            FinishReason::Cancelled => {
                assert!(expected.tokens.starts_with(&found.tokens), "seed {seed}: {case}");
            }
            reason => {
                assert_eq!(
                    (&found.tokens, reason),
                    (&expected.tokens, expected.reason),
                    "seed {seed}: {case}"
                );
                tally.logprobs += near(&found.logprobs, &expected.logprobs);
            }
        }
        tally.tokens += found.tokens.len();
        tally.drawn += usize::from(case.sampling.temperature > 0.0);
        tally.penalties += usize::from(case.sampling.has_penalties());
        tally.restricted += usize::from(case.sampling.top_k > 0 || case.sampling.top_p < 1.0);
    }
}

fn requests_get_their_tokens(target: usize, draft: usize) {
    let (pair, shards) = (whole(), split(target, draft));
    let mut tally = Tally::default();
    for seed in 1..=40 {
        run(&pair, &shards, seed, &mut tally);
    }
    println!("target over {target}, draft over {draft}: {tally:?}");
    let happened = [tally.accepted, tally.rejected, tally.pruned, tally.gone_inside, tally.devices_lost];
    assert!(
        happened.iter().all(|count| *count > 0)
            && [tally.drawn, tally.penalties, tally.restricted, tally.logprobs]
                .iter()
                .all(|count| *count > 5),
        "{tally:?}"
    );
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
    use faser_actors::{RunnerSpec, VerifyRunner, VerifyWork};
    use faser_engine::VerifyPlan;
    use faser_kernels::{Isa, Partition};
    let group = faser_kernels::collective::in_process(2, Duration::from_secs(60));
    let ranks = split(2, 1).target.into_iter().zip(group).zip([7, 8]);
    let threads = ranks.map(|((model, way), step)| {
        std::thread::spawn(move || {
            let spec = RunnerSpec {
                partitions: vec![Partition { cores: vec![0] }],
                isa: Isa::detect(),
                blocks: 4,
                block_size: 16,
                max_rows: 8,
                max_logit_rows: 8,
            };
            let mut runner = VerifyRunner::new(model, &spec).expect("a lane");
            runner.join(&(Arc::new(way) as _));
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
