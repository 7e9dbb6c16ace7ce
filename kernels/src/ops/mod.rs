//! The ops of a transformer pass, each in one file, with its kin: the contract in words, then the CPU version.
//!
//! [`each_op`](crate::each_op) is the one list of them, the GPU's included. One more op is a function here, a line of
//! that list, a source in `kernels/cuda`, its arguments in `kernels/src/cuda`, and a case in
//! `kernels/gpu-check/src/ops`.
//!
//! The number of rows is that of the views. Shapes that do not fit are a mistake of the caller's code and panic with both shapes.

mod across_ranks;
mod activate;
mod attention;
mod copy_rows;
mod matmul;
mod rms_norm;
mod rope;
mod route;
mod score_tokens;
mod store_kv;
mod sum_rows;
mod write;

pub use crate::sampling::{TOP_TOKENS, candidates, confidence, logprobs, sample, top_tokens};
pub use across_ranks::{all_gather, all_reduce, all_reduce_of_stage, broadcast};
pub use activate::{Activation, activate, soft_cap};
pub use attention::{AttentionShape, attention};
pub use copy_rows::{compact_rows, embed, embed_part, gather_rows};
pub use matmul::{Groups, matmul, matmul_activated, matmul_experts, matmul_experts_activated, matmul_normed};
pub use rms_norm::{Norm, rms_norm, rms_norm_heads};
pub use rope::rope;
pub use route::{Routing, add_gated, route, sum_experts};
pub use score_tokens::score_tokens;
pub use store_kv::store_kv;
pub use sum_rows::sum_rows;
pub use write::Write;

/// Every op, for a macro that makes something of each: its name, `(Slot)` in the times of a CPU lane if it runs there, its `["source"]`s in
/// `kernels/cuda`, and the `[module::case]`s of `kernels/gpu-check/src/ops` that hold those against the CPU's.
#[macro_export]
macro_rules! each_op {
    ($each:ident) => {
        $each! {
            embed (Embed) ["embed"] [row_cases::embed_is_the_cpus, row_cases::an_unknown_token_is_nan];
            rms_norm (RmsNorm) ["rms_norm"] [row_cases::rms_norm_is_the_cpus_and_adds_where_asked, row_cases::rows_are_normed_and_copied_into_wider_ones];
            activate (Activate) ["activate"] [row_cases::activations_are_the_cpus];
            soft_cap (SoftCap) ["soft_cap"] [row_cases::soft_cap_is_the_cpus];
            qkv () ["qkv"] [row_cases::qkv_is_bias_norm_rotation_and_store];
            rope (Rope) [] [];
            store_kv (StoreKv) [] [];
            gather_rows (GatherRows) ["gather_rows"] [row_cases::gather_and_compact_are_the_cpus];
            compact_rows () ["compact_rows"] [];
            matmul (Matmul) ["matmul"]
                [matmul_cases::matmul_is_the_cpus, matmul_cases::a_row_has_the_same_bits_in_any_bucket,
                 tail_cases::activations_in_products_are_those_behind_them, tail_cases::norms_by_the_last_block_are_those_behind_it,
                 tail_cases::heads_by_their_last_blocks_are_those_behind_them];
            dequantise () ["dequantise"]
                [record_cases::weights_in_records_are_widened_with_one_rounding,
                 record_cases::products_with_records_are_those_of_their_numbers,
                 record_cases::products_with_records_have_the_bits_of_the_widened_ones,
                 record_cases::a_row_of_a_product_with_records_has_the_same_bits_in_any_bucket];
            route (Route) ["route"] [expert_cases::rows_go_to_the_cpus_experts];
            matmul_experts (MatmulExperts) ["experts"]
                [expert_cases::products_of_experts_are_the_cpus, expert_cases::a_row_has_the_bits_of_a_product_with_its_expert];
            sum_experts (SumExperts) ["sum_experts"] [expert_cases::sums_of_experts_are_the_cpus];
            add_gated (AddGated) [] [];
            score_tokens (ScoreTokens) ["score_tokens"] [matmul_cases::score_tokens_is_the_cpus];
            spread_logits () ["spread_logits"] [row_cases::logits_of_some_tokens_are_those_of_all];
            markov () ["markov"] [markov_cases::rows_of_blocks_take_from_the_token_before, markov_cases::drawn_tokens_are_noted_where_there_is_room];
            attention (Attention) ["attention", "attention_mma"]
                [attention_cases::attention_is_the_cpus, attention_cases::a_row_has_the_same_bits_alone_and_among_others];
            sample (Sample) ["count_tokens", "adjust_logits", "logit_stats", "nucleus", "draw_tokens"]
                [sampling_cases::noise_is_the_cpus_bit_for_bit, sampling_cases::tokens_are_the_cpus,
                 sampling_cases::ranks_with_parts_of_the_tokens_draw_the_same,
                 sampling_cases::a_row_without_a_finite_logit_gives_token_0];
            confidence (Confidence) ["confidence"] [sampling_cases::confidence_and_top_tokens_are_the_cpus];
            top_tokens (TopTokens) ["top_tokens"] [];
            candidates (Candidates) ["candidates"] [sampling_cases::candidates_are_the_cpus];
            logprobs (Logprobs) ["logprobs"] [sampling_cases::logprobs_are_the_cpus];
            draft_step () ["draft_step"] [drafting_cases::steps_record_proposals_and_go_on_with_those_that_may];
            features () ["features"] [drafting_cases::features_are_read_where_they_were_written];
            compact_pass () ["compact_pass"] [pruning_cases::cancelled_chunks_and_rows_behind_the_live_ones_leave];
            prune () ["prune"] [pruning_cases::margins_are_the_cpus_and_end_chunks];
            sum_ranks () ["sum_ranks"] [];
            all_gather (AllGather) [] [];
            all_reduce (AllReduce) [] [];
            all_reduce_of_stage () [] [];
            broadcast (Broadcast) [] [];
            sum_rows (SumRows) [] [];
        }
    };
}
