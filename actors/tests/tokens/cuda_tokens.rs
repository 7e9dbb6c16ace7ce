//! The CUDA runners over a fake driver: in f32 every request gets the tokens that it gets on the CPU, alone and without speculation,
//! whatever is drafted, pruned, cancelled, preempted or lost around it, on partitions of green contexts.

use std::sync::Arc;

use faser_actors::Dtype;
use faser_kernels::cuda::{CudaError, Element, Gpu, KvElement};
use faser_models::cuda::CudaModel;
use faser_models::synthetic::{self, SyntheticSpec};
use faser_models::{HeadKind, Shard, WeightSource};

use crate::cases::{
    BLOCK_KINDS, HEAD_SEED, HEAD_STREAMS, HEAD_TOKENS, MASK, often_right, often_right_spec, pair, spec,
    with_experts, with_experts_spec, with_head,
};
use crate::cuda_drafts::reported;
use crate::cuda_fake;
use crate::rig::{OnGpu, Pair, Random, Rig, Times, shares};
use crate::runs::{Tally, run, run_timed};

/// The pair with its weights on the fake GPU: the whole of it, and two splits.
fn on_gpu() -> Pair {
    put_on_gpu(pair(Dtype::F32), spec())
}

/// The same of another pair, of this spec.
fn put_on_gpu(pair: Pair, spec: SyntheticSpec) -> Pair {
    put_on_gpu_with(KvElement::Element(Element::F32), pair, spec)
}

fn put_on_gpu_with(kv: KvElement, pair: Pair, spec: SyntheticSpec) -> Pair {
    let gpu = Gpu::open(0, None).expect("the fake GPU opens");
    let draft_layers = spec.draft_layers;
    let source = WeightSource::Synthetic(spec);
    let target = CudaModel::load(&gpu, &source, Shard::WHOLE, Dtype::F32, &mut |_| {}).expect("memory");
    let target = target.with_kv(kv);
    let draft = target.first_layers(draft_layers);
    let cuda = OnGpu {
        target: Arc::new(target),
        draft: Some(Arc::new(draft)),
        shares: shares(&gpu),
        others: Vec::new(),
    };
    Pair { cuda: Some(cuda), ..pair }
}

#[test]
fn requests_get_the_cpus_tokens_on_a_gpu() {
    let report = cuda_fake::inside("cuda_tokens::requests_get_the_cpus_tokens_on_a_gpu", &[], || {
        let gpu = on_gpu();
        let cpu = Pair { cuda: None, ..gpu.clone() };
        let mut tally = Tally::default();
        for seed in 1..=16 {
            run(&cpu, &gpu, seed, &mut tally);
        }
        println!("{tally:?}");
        tally.assert_all_happened();
    });
    let Some(report) = report else { return };
    println!("{report}");
    assert!(report.contains("memory left 0\n") && report.contains("streams left 0\n"), "{report}");
    // Small passes went by graphs, captured on each partition, and none is left over.
    let number = |words| reported(&report, words);
    assert!(number("graphs launched") > 300 && number("launches by graphs") > 3000, "{report}");
    assert_eq!(number("graphs left"), 0);
    // Both halves of a split were used, by our kernels and by cublasLt.
    for sms in [132, 16, 116] {
        let used = |what: &str| report.contains(&format!("{what} on {sms} SMs"));
        assert!(used("launches") && used("products"), "{sms}: {report}");
    }
}

#[test]
fn keys_in_fp8_give_the_same_tokens_whatever_the_schedule() {
    let name = "cuda_tokens::keys_in_fp8_give_the_same_tokens_whatever_the_schedule";
    let report = cuda_fake::inside(name, &[], || {
        let gpu = put_on_gpu_with(KvElement::Fp8, pair(Dtype::F32), spec());
        let mut tally = Tally::default();
        for seed in 1..=16 {
            run(&gpu, &gpu, seed, &mut tally);
        }
        println!("{tally:?}");
        tally.assert_all_happened();
    });
    let Some(report) = report else { return };
    println!("{report}");
    assert!(report.contains("memory left 0\n") && report.contains("graphs left 0\n"), "{report}");
    assert!(report.contains("runs of attention_f32_fp8 ") && !report.contains("runs of attention_f32 "));
}

#[test]
fn requests_get_the_cpus_tokens_of_experts_on_a_gpu() {
    let name = "cuda_tokens::requests_get_the_cpus_tokens_of_experts_on_a_gpu";
    let report = cuda_fake::inside(name, &[], || {
        let gpu = put_on_gpu(with_experts(Dtype::F32), with_experts_spec(&spec()));
        let cpu = Pair { cuda: None, ..gpu.clone() };
        let mut tally = Tally::default();
        for seed in 1..=16 {
            run(&cpu, &gpu, seed, &mut tally);
        }
        println!("{tally:?}");
        tally.assert_all_happened();
    });
    let Some(report) = report else { return };
    println!("{report}");
    assert!(report.contains("memory left 0\n") && report.contains("graphs left 0\n"), "{report}");
    // Target and draft have experts, and small passes of both went by graphs.
    let number = |words| reported(&report, words);
    assert!(number("graphs launched") > 300 && number("launches by graphs") > 3000, "{report}");
    for kernel in ["router", "route", "experts_activate_f32", "experts_f32", "sum_experts_f32"] {
        assert!(report.contains(&format!("runs of {kernel} ")), "{kernel}: {report}");
    }
}

#[test]
fn what_is_prepared_for_verdicts_changes_no_text_on_a_gpu() {
    let name = "cuda_tokens::what_is_prepared_for_verdicts_changes_no_text_on_a_gpu";
    let report = cuda_fake::inside(name, &[], || {
        let gpu = put_on_gpu(often_right(Dtype::F32), often_right_spec());
        let cpu = Pair { cuda: None, ..gpu.clone() };
        let mut tally = Tally::default();
        for seed in 1..=40 {
            run_timed(&cpu, &gpu, seed, Times::Told, &mut tally);
        }
        println!("{tally:?}");
        assert!(tally.outcomes > 30 && tally.outcomes_taken > 1 && tally.devices_lost > 0, "{tally:?}");
    });
    let Some(report) = report else { return };
    assert!(report.contains("memory left 0\n") && report.contains("graphs left 0\n"), "{report}");
    assert!(report.contains("runs of candidates "), "{report}");
}

/// The same target with a head on its hidden states, which was never trained.
fn with_head_on_gpu(kind: HeadKind) -> Pair {
    let (pair, gpu) = (with_head(Dtype::F32, Dtype::F32, kind), on_gpu());
    let shape = (HEAD_TOKENS, kind, (kind != HeadKind::Steps).then_some(MASK));
    let cuda = gpu.cuda.map(|cuda| {
        let head = synthetic::head_on_gpu(&cuda.target, &HEAD_STREAMS, shape, HEAD_SEED);
        OnGpu { draft: Some(Arc::new(head.expect("a head"))), ..cuda }
    });
    Pair { cuda, ..pair }
}

#[test]
fn requests_get_the_cpus_tokens_with_a_head_on_a_gpu() {
    let name = "cuda_tokens::requests_get_the_cpus_tokens_with_a_head_on_a_gpu";
    let report = cuda_fake::inside(name, &[], || {
        for kind in [HeadKind::Steps, HeadKind::Masks].into_iter().chain(BLOCK_KINDS.map(HeadKind::Block)) {
            let gpu = with_head_on_gpu(kind);
            let cpu = Pair { cuda: None, ..gpu.clone() };
            let mut tally = Tally::default();
            // A block proposes less in a round than others may.
            let seeds = if matches!(kind, HeadKind::Block(_)) { 30 } else { 10 };
            for seed in 1..=seeds {
                run(&cpu, &gpu, seed, &mut tally);
            }
            println!("{kind:?}: {tally:?}");
            assert!(tally.rejected > 100 && tally.pruned > 0 && tally.devices_lost > 0, "{tally:?}");
            assert!(tally.parted_hits > 0 && tally.drawn > 5, "{tally:?}");
        }
    });
    let Some(report) = report else { return };
    assert!(report.contains("memory left 0\n") && report.contains("graphs left 0\n"), "{report}");
    // The target wrote, the head read, and steps went on from what was passed on.
    for kernel in [
        "write_features_f32",
        "read_features_f32",
        "pass_on",
        "spread_logits",
        "mix_gates_f32",
        "surety_f32",
        "note_drawn",
    ] {
        assert!(report.contains(&format!("runs of {kernel} ")), "{kernel}: {report}");
    }
}

#[test]
fn a_lost_gpu_ends_the_lane_with_its_reason() {
    let variables = [("FASER_FAKE_LOSE", "activate_f32:2")];
    cuda_fake::inside("cuda_tokens::a_lost_gpu_ends_the_lane_with_its_reason", &variables, || {
        let pair = on_gpu();
        let random = &mut Random(3);
        let (config, cases) = (random.config(), random.cases());
        let lost = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut rig = Rig::new(&pair, &config);
            cases[0].submit(&mut rig);
            rig.finish();
        }));
        let words = lost.expect_err("the lane panics, and is rebuilt by its watchdog");
        let words = words.downcast_ref::<String>().expect("words");
        assert!(words.contains("the GPU failed") && words.contains("LAUNCH_FAILED"), "{words}");
        let gone = Gpu::open(0, None).err().map(|error| matches!(error, CudaError::Driver { .. }));
        assert_eq!(gone, Some(true), "a lost context stays lost");
    });
}
