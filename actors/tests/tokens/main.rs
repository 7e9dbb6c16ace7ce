//! What requests get, and from what: the engine and its runners without actors, threads or clock, on cores, over groups of ranks, and on GPUs
//! over a fake driver.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod cases;
mod cuda_drafts;
#[path = "../../../kernels/tests/cuda_fake/mod.rs"]
mod cuda_fake;
mod cuda_shards;
mod cuda_tokens;
mod distribution;
mod one_pass;
mod outcome_hits;
mod rank_group;
mod rig;
mod runs;
mod same_tokens;
mod shard_tokens;
