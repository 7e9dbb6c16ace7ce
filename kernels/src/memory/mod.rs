//! What a lane works on: activations, packed weights, paged KV memory.

mod buffer;
mod kv;
mod mapped;
mod matrix;
mod nodes;
mod rope;
mod source;
mod table;
mod tensor;

pub(crate) use buffer::Buffer;
pub use kv::{BlockId, KV_BLOCK_MULTIPLE, KvCache, KvShape, Rows};
pub(crate) use kv::{POSITIONS, Pages};
pub use mapped::MappedFile;
#[cfg(target_arch = "x86_64")]
pub(crate) use matrix::DEPTH;
pub use matrix::Matrix;
pub(crate) use matrix::{BLOCK, BLOCKS, PANEL, Panels, SCALE_UNIT};
pub use nodes::on_nodes;
pub use rope::{RopeScaling, RopeSpec, RopeTable};
pub(crate) use source::FromSource;
pub use source::{Make, Slice, Source, Stored};
pub(crate) use table::TableRows;
pub use table::{Table, Vector};
pub(crate) use tensor::{SharedMut, SharedRows};
pub use tensor::{Tensor, View, ViewMut};
