//! The cases of all kernels, on fibers in three orders.

use crate::host::host;
use faser_kernels::cuda::check::ops::CASES;
use faser_kernels::cuda::check::ops::bench::Bench;

/// Runs a case; its name is the test's.
fn run(name: &str) {
    let Some(host) = host(name) else { return };
    let (_, case) = CASES.iter().find(|(known, _)| *known == name).expect("a case of that name");
    case(&Bench(host));
}

macro_rules! tests {
    ($($name:ident),+ $(,)?) => {
        $(#[test]
        fn $name() {
            run(stringify!($name));
        })+

        #[test]
        fn every_case_is_a_test() {
            let tests = [$(stringify!($name)),+];
            let cases: Vec<&str> = CASES.iter().map(|(name, _)| *name).collect();
            assert_eq!(tests[..], cases);
        }
    };
}

tests! {
    embed_is_the_cpus,
    an_unknown_token_is_nan,
    rms_norm_is_the_cpus_with_and_without_a_partial_sum,
    silu_mul_is_the_cpus,
    gather_and_compact_are_the_cpus,
    qkv_is_bias_norm_rotation_and_store,
    matmul_is_the_cpus,
    a_row_has_the_same_bits_in_any_bucket,
    score_tokens_is_the_cpus,
    attention_is_the_cpus,
    a_row_has_the_same_bits_alone_and_among_others,
    noise_is_the_cpus_bit_for_bit,
    tokens_are_the_cpus,
    ranks_with_parts_of_the_tokens_draw_the_same,
    a_row_without_a_finite_logit_gives_token_0,
    confidence_and_top_tokens_are_the_cpus,
    logprobs_are_the_cpus,
    steps_record_proposals_and_go_on_with_those_that_may,
    cancelled_chunks_and_rows_behind_the_live_ones_leave,
    gaps_are_the_cpus_and_end_chunks,
}
