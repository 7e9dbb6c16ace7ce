//! The checks of a GPU, over a fake driver: what it can answer is right, and nothing else is called so.

#[path = "../../tests/cuda_fake/mod.rs"]
mod cuda_fake;

use cuda_fake::inside;
use faser_gpu_check::{self as check, Check, Figure, Report, Setting, Verdict};

const SETTING: Setting = Setting { ordinal: 0, small: true };

/// The figures of a check on the fake GPU.
fn figures(check: Check) -> Vec<Figure> {
    let mut all = Vec::new();
    check(&SETTING, &mut Report::new(true, &mut |figure| all.push(figure))).expect("it goes through");
    for figure in &all {
        println!("{} | {} | {:?} | {}", figure.what, figure.number(), figure.bound, figure.verdict.words());
        assert_ne!(figure.verdict, Verdict::Wrong, "{figure:?}");
    }
    assert!(!all.is_empty());
    all
}

fn count(all: &[Figure], verdict: Verdict) -> usize {
    all.iter().filter(|figure| figure.verdict == verdict).count()
}

#[test]
fn every_op_is_the_cpus_through_the_driver() {
    inside("every_op_is_the_cpus_through_the_driver", &[], || {
        let all = figures(check::ops);
        assert_eq!(count(&all, Verdict::Right), check::ops::CASES.len());
    });
}

#[test]
fn kernels_compile_and_a_compiler_that_is_silent_proves_nothing() {
    inside("kernels_compile_and_a_compiler_that_is_silent_proves_nothing", &[], || {
        assert_eq!(count(&figures(check::compile), Verdict::NoMeaning), 1);
        let mut all = Vec::new();
        let large = Setting { small: false, ..SETTING };
        check::compile(&large, &mut Report::new(false, &mut |figure| all.push(figure))).expect("it compiles");
        assert_eq!(count(&all, Verdict::Wrong), 1, "a real compiler tells of every kernel");
    });
}

#[test]
fn work_on_a_split_is_in_order_and_where_it_ran_cannot_be_said() {
    let name = "work_on_a_split_is_in_order_and_where_it_ran_cannot_be_said";
    inside(name, &[], || {
        let all = figures(check::split);
        assert_eq!((count(&all, Verdict::Right), count(&all, Verdict::NoMeaning)), (3, 1));
    });
}

#[test]
fn graphs_do_what_their_launches_did() {
    let report = inside("graphs_do_what_their_launches_did", &[], || {
        let all = figures(check::graph);
        assert_eq!(count(&all, Verdict::Right), 4);
    });
    let Some(report) = report else { return };
    assert!(report.contains("graphs left 0\n") && report.contains("graphs captured 8\n"), "{report}");
}

#[test]
fn what_is_timed_has_no_meaning_here() {
    inside("what_is_timed_has_no_meaning_here", &[], || {
        for (check, right) in [(check::rates as Check, 1), (check::products, 6), (check::attention, 0)] {
            let all = figures(check);
            assert_eq!(count(&all, Verdict::Right), right);
            assert_eq!(count(&all, Verdict::NoMeaning), all.len() - right);
        }
    });
}

#[test]
fn two_ranks_sum_and_one_that_is_lost_is_noticed() {
    inside("two_ranks_sum_and_one_that_is_lost_is_noticed", &[("FASER_FAKE_GPUS", "2")], || {
        let all = figures(check::nccl);
        assert!(
            all[0].what.starts_with("NCCL 2.30.3 (libnccl.so.2 at ") && count(&all, Verdict::Right) == 12,
            "{all:?}"
        );
    });
}

#[test]
fn both_ranks_may_be_on_one_gpu() {
    inside("both_ranks_may_be_on_one_gpu", &[("NCCL_MULTI_RANK_GPU_ENABLE", "1")], || {
        let all = figures(check::nccl);
        assert!(all[1].what == "two ranks on GPUs 0 and 0" && count(&all, Verdict::Right) == 12, "{all:?}");
    });
}

#[test]
fn two_ranks_on_one_gpu_take_a_newer_nccl() {
    inside("two_ranks_on_one_gpu_take_a_newer_nccl", &[("FASER_FAKE_NCCL", "22703")], || {
        let all = figures(check::nccl);
        assert_eq!((all.len(), count(&all, Verdict::NoMeaning)), (2, 1), "{all:?}");
    });
}

#[test]
fn flags_are_seen_by_what_was_queued_before() {
    inside("flags_are_seen_by_what_was_queued_before", &[], || {
        assert_eq!(count(&figures(check::flags), Verdict::Right), 2);
    });
}

#[test]
fn kernels_run_where_a_block_has_99_kib() {
    // Compute capability 8.6, 8.9, 12.0.
    let small = [("FASER_FAKE_CAPABILITY", "89"), ("FASER_FAKE_SHARED", "101376")];
    let report = inside("kernels_run_where_a_block_has_99_kib", &small, || {
        let all = figures(check::ops);
        assert_eq!(count(&all, Verdict::Right), all.len(), "{all:?}");
    });
    let Some(report) = report else { return };
    for (kernel, runs) in [("128_64_two", true), ("128_64", false), ("64_64", true), ("128_64_fp8", true)] {
        let ran = report.contains(&format!("runs of attention_mma_{kernel} "));
        assert_eq!(ran, runs, "{kernel}: {report}");
    }
}

#[test]
fn an_illegal_address_is_reported_in_the_drivers_words() {
    inside("an_illegal_address_is_reported_in_the_drivers_words", &[], || {
        let all = figures(check::illegal_address);
        assert!(all[0].what.contains("LAUNCH_FAILED"), "{all:?}");
        assert_eq!(count(&all, Verdict::Right), 3);
        assert!(all[3].what.starts_with("another context in the same process does not work"), "{all:?}");
    });
}
