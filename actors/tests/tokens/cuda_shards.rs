//! Tensor parallelism on GPUs, over a fake driver and a fake NCCL: a pair that is split over GPUs gives the CPU's tokens of the whole pair, in
//! f32, whatever is drafted, pruned, cancelled, preempted or lost around a request; and every rank comes to the same verdicts and proposals.

use std::sync::Arc;

use faser_actors::Dtype;
use faser_kernels::cuda::Gpu;
use faser_models::cuda::CudaModel;
use faser_models::synthetic::SyntheticSpec;
use faser_models::{Shard, WeightSource};

use crate::cases::{pair_of, split_spec, with_experts_spec};
use crate::cuda_fake;
use crate::rig::{OnGpu, Pair, shares};
use crate::runs::{Tally, run};

/// A rank of the target over `target` GPUs, with its shard of the draft, if that goes so far; lanes on the whole GPU, and on two splits.
fn rank(spec: &SyntheticSpec, number: usize, target: usize, draft: usize) -> OnGpu {
    let gpu = Gpu::open(number, None).expect("a fake GPU opens");
    let shard = Shard::of(number, target);
    let load =
        |source, shard| CudaModel::load(&gpu, &source, shard, Dtype::F32, &mut |_| {}).expect("a shard");
    let own = load(WeightSource::Synthetic(spec.clone()), shard);
    let draft =
        (number < draft).then(|| load(WeightSource::SyntheticDraft(spec.clone()), Shard::of(number, draft)));
    OnGpu { target: Arc::new(own), draft: draft.map(Arc::new), shares: shares(&gpu), others: Vec::new() }
}

/// Who adds up what ranks have.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sums {
    Nccl,
    /// Kernels, over the GPUs' memory.
    Peers,
}

fn requests_get_the_cpus_tokens(name: &str, ranks: (usize, usize), sums: Sums) {
    requests_get_the_cpus_tokens_of(&split_spec(), name, ranks, sums);
}

fn requests_get_the_cpus_tokens_of(
    spec: &SyntheticSpec,
    name: &str,
    (target, draft): (usize, usize),
    sums: Sums,
) {
    let seeds = 6;
    let peers = if sums == Sums::Peers { "all" } else { "none" };
    let report = cuda_fake::inside(name, &[("FASER_FAKE_GPUS", "4"), ("FASER_FAKE_PEERS", peers)], || {
        let pair = pair_of(spec, Dtype::F32);
        let mut ranks = (0..target).map(|number| rank(spec, number, target, draft));
        let first = ranks.next().expect("a first rank");
        let cuda = OnGpu { others: ranks.collect(), ..first };
        let split = Pair { cuda: Some(cuda), ..pair.clone() };
        let mut tally = Tally::default();
        // Which seed brings what depends on all that cases are drawn from.
        for seed in 1..=4 * seeds {
            run(&pair, &split, seed, &mut tally);
            if seed >= seeds && tally.all_happened() {
                break;
            }
        }
        println!("target over {target}, draft over {draft}: {tally:?}");
        tally.assert_all_happened();
    });
    let Some(report) = report else { return };
    println!("{report}");
    for nothing in ["memory left 0\n", "streams left 0\n", "communicators left 0\n", "graphs left 0\n"] {
        assert!(report.contains(nothing), "{report}");
    }
    // NCCL's sums run without graphs; a whole draft has them.
    let launched = !report.contains("graphs launched 0\n");
    let by = [!report.contains("all-reduces 0\n"), report.contains("runs of sum_ranks ")];
    let several = target > 1;
    assert_eq!(by, [several && sums == Sums::Nccl, several && sums == Sums::Peers], "{report}");
    assert_eq!(launched, draft == 1 || sums == Sums::Peers, "{report}");
}

#[test]
fn a_target_over_two_gpus_that_each_have_the_draft_gives_the_cpus_tokens() {
    let name = "cuda_shards::a_target_over_two_gpus_that_each_have_the_draft_gives_the_cpus_tokens";
    let report = cuda_fake::inside(name, &[("FASER_FAKE_GPUS", "2")], || {
        let pair = pair_of(&split_spec(), Dtype::F32);
        let with_draft = |number| {
            let OnGpu { target, shares, .. } = rank(&split_spec(), number, 2, 0);
            let gpu = Gpu::open(number, None).expect("a fake GPU opens");
            let source = WeightSource::SyntheticDraft(split_spec());
            let draft =
                CudaModel::load(&gpu, &source, Shard::WHOLE, Dtype::F32, &mut |_| {}).expect("a draft");
            OnGpu { target, draft: Some(Arc::new(draft)), shares, others: Vec::new() }
        };
        let cuda = OnGpu { others: vec![with_draft(1)], ..with_draft(0) };
        let copies = Pair { cuda: Some(cuda), ..pair.clone() };
        assert_eq!(copies.draft_copies(), 2);
        let mut tally = Tally::default();
        for seed in 1..=24 {
            run(&pair, &copies, seed, &mut tally);
            if seed >= 6 && tally.all_happened() {
                break;
            }
        }
        println!("{tally:?}");
        tally.assert_all_happened();
    });
    let Some(report) = report else { return };
    println!("{report}");
    assert!(report.contains("memory left 0\n"), "{report}");
}

#[test]
fn one_gpu_gives_the_cpus_tokens() {
    requests_get_the_cpus_tokens("cuda_shards::one_gpu_gives_the_cpus_tokens", (1, 1), Sums::Nccl);
}

#[test]
fn a_target_over_two_gpus_gives_the_cpus_tokens() {
    let name = "cuda_shards::a_target_over_two_gpus_gives_the_cpus_tokens";
    requests_get_the_cpus_tokens(name, (2, 1), Sums::Nccl);
}

#[test]
fn experts_over_two_gpus_give_the_cpus_tokens() {
    let name = "cuda_shards::experts_over_two_gpus_give_the_cpus_tokens";
    requests_get_the_cpus_tokens_of(&with_experts_spec(&split_spec()), name, (2, 2), Sums::Nccl);
}

#[test]
fn a_target_over_four_gpus_with_a_whole_draft_gives_the_cpus_tokens() {
    let name = "cuda_shards::a_target_over_four_gpus_with_a_whole_draft_gives_the_cpus_tokens";
    requests_get_the_cpus_tokens(name, (4, 1), Sums::Peers);
}

#[test]
fn target_and_draft_may_be_split_differently() {
    let name = "cuda_shards::target_and_draft_may_be_split_differently";
    requests_get_the_cpus_tokens(name, (4, 2), Sums::Peers);
}
