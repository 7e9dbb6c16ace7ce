//! What models compute: against transformers' logits, against candle, on shards, on a GPU over a fake driver, in int8 and int4; heads on
//! hidden states.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod accuracy;
#[path = "../../../kernels/tests/cuda_fake/mod.rs"]
mod cuda_fake;
mod cuda_fp8_kv;
mod cuda_heads;
mod cuda_logits;
mod cuda_records;
mod draft_acceptance;
mod golden;
mod heads;
mod int4_logits;
mod int8_kv;
mod int8_logits;
mod oracle;
mod own_bits;
mod quantised_files;
mod segments;
#[path = "../../../kernels/gpu-check/src/two_sequences.rs"]
mod sequences;
mod session;
mod shard_logits;
mod synthetic;
mod text_within;
