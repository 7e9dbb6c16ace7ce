//! What a lane works on: activations, packed weights, paged KV memory.

mod buffer;
mod codes;
mod e4m3;
mod eight_bit_records;
mod four_bit_records;
mod four_bits;
mod kv_cache;
mod mapped;
mod matrix;
mod numa_memory;
mod number_source;
mod packing;
mod panel_sizes;
mod quantised_blocks;
mod rope_table;
mod tensor;
mod weight_records;
mod weight_table;

pub(crate) use buffer::Buffer;
pub use codes::{Beside, Codes, FourBitForm, FourBits};
pub use e4m3::{of_e4m3, to_e4m3};
pub use eight_bit_records::{EightBitForm, EightBitRecords};
pub use four_bit_records::FourBitRecords;
pub(crate) use four_bits::E2M1;
pub use kv_cache::{BlockId, KV_BLOCK_MULTIPLE, KvCache, KvShape, Rows};
pub(crate) use kv_cache::{POSITIONS, Pages};
pub use mapped::MappedFile;
#[cfg(target_arch = "x86_64")]
pub(crate) use matrix::DEPTH;
pub use matrix::Matrix;
pub(crate) use matrix::{Panels, SCALE_UNIT};
pub use numa_memory::on_nodes;
pub(crate) use number_source::FromSource;
pub use number_source::{HeadRows, Make, Slice, Source, Stored};
pub(crate) use panel_sizes::{BLOCK, BLOCKS, PANEL};
pub use quantised_blocks::Blocks;
pub use rope_table::{RopeScaling, RopeSpec, RopeTable};
pub(crate) use tensor::{SharedMut, SharedRows};
pub use tensor::{Tensor, View, ViewMut};
pub use weight_records::{RecordForm, WeightRecords};
pub(crate) use weight_table::TableRows;
pub use weight_table::{Table, Vector};
