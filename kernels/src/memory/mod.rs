//! What a lane works on: activations, packed weights, paged KV memory.

mod buffer;
mod int8;
mod kv;
mod mapped;
mod matrix;
mod nodes;
mod rope;
mod share;
mod source;
mod spare;
mod table;
mod tensor;

pub(crate) use buffer::Buffer;
pub(crate) use int8::{BLOCK, BLOCKS, SCALE_UNIT};
pub use kv::{BlockId, KV_BLOCK_MULTIPLE, KvCache, KvShape, Rows};
pub(crate) use kv::{POSITIONS, Pages};
pub use mapped::MappedFile;
#[cfg(target_arch = "x86_64")]
pub(crate) use matrix::DEPTH;
pub use matrix::Matrix;
pub(crate) use matrix::{PANEL, Panels};
pub use nodes::on_nodes;
pub use rope::{RopeScaling, RopeSpec, RopeTable};
pub(crate) use share::SharedMut;
pub(crate) use source::FromSource;
pub use source::{Make, Slice, Source, Stored};
pub use spare::give_memory_back;
pub(crate) use table::TableRows;
pub use table::{Table, Vector};
pub(crate) use tensor::SharedRows;
pub use tensor::{Tensor, View, ViewMut};
