//! The ops of a transformer pass, one file each: the contract in words, then the CPU version.
//!
//! The number of rows is that of the views. Shapes that do not fit are a mistake of the caller's code and panic with both shapes.

mod all_gather;
mod all_reduce;
mod attention;
mod compact_rows;
mod embed;
mod gather_rows;
mod matmul;
mod rms_norm;
mod rope;
mod score_tokens;
mod silu_mul;
mod store_kv;
mod sum_rows;

pub use crate::sampling::{TOP_TOKENS, confidence, logprobs, sample, top_tokens};
pub use all_gather::all_gather;
pub use all_reduce::all_reduce;
pub use attention::{AttentionShape, attention};
pub use compact_rows::compact_rows;
pub use embed::{embed, embed_part};
pub use gather_rows::gather_rows;
pub use matmul::{Write, matmul};
pub use rms_norm::{rms_norm, rms_norm_heads};
pub use rope::rope;
pub use score_tokens::score_tokens;
pub use silu_mul::silu_mul;
pub use store_kv::store_kv;
pub use sum_rows::sum_rows;
