//! Every kernel against the CPU's op: cases that run on a GPU, and in tests on fibers of the host.

mod attention;
pub mod bench;
mod drafting;
mod matmul;
mod on_gpu;
mod passes;
pub mod reference;
mod rows;
mod sampling;

use bench::Bench;
pub use on_gpu::ops;

/// A case, which panics if it fails.
pub type Case = fn(&Bench<'_>);

/// All cases, for a macro that makes something of each: `module::name`.
#[macro_export]
macro_rules! cuda_cases {
    ($each:ident) => {
        $each! {
            rows::embed_is_the_cpus,
            rows::an_unknown_token_is_nan,
            rows::rms_norm_is_the_cpus_with_and_without_a_partial_sum,
            rows::silu_mul_is_the_cpus,
            rows::gather_and_compact_are_the_cpus,
            rows::qkv_is_bias_norm_rotation_and_store,
            matmul::matmul_is_the_cpus,
            matmul::a_row_has_the_same_bits_in_any_bucket,
            matmul::score_tokens_is_the_cpus,
            attention::attention_is_the_cpus,
            attention::a_row_has_the_same_bits_alone_and_among_others,
            sampling::noise_is_the_cpus_bit_for_bit,
            sampling::tokens_are_the_cpus,
            sampling::ranks_with_parts_of_the_tokens_draw_the_same,
            sampling::a_row_without_a_finite_logit_gives_token_0,
            sampling::confidence_and_top_tokens_are_the_cpus,
            sampling::logprobs_are_the_cpus,
            drafting::steps_record_proposals_and_go_on_with_those_that_may,
            passes::cancelled_chunks_and_rows_behind_the_live_ones_leave,
            passes::gaps_are_the_cpus_and_end_chunks,
        }
    };
}

macro_rules! list {
    ($($module:ident::$name:ident),+ $(,)?) => {
        &[$((stringify!($name), $module::$name as Case)),+]
    };
}

/// All cases by name.
pub const CASES: &[(&str, Case)] = cuda_cases!(list);
