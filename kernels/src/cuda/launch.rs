//! What all launches share: pointers, numbers of a pass that lie on the device, the launch itself.

use crate::Dtype;

/// Positions of a KV block on a device.
pub const BLOCK_SIZE: usize = 16;
/// No row, no chunk.
pub const NOTHING: u32 = u32::MAX;

/// An address in device memory; 0 where an argument may be absent.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ptr(pub u64);

impl Ptr {
    /// Nothing.
    pub const NULL: Ptr = Ptr(0);

    /// So many bytes further on.
    #[must_use]
    pub fn behind(self, bytes: usize) -> Ptr {
        Ptr(self.0 + bytes as u64)
    }
}

/// What weights, KV and the inputs of matrices are held in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// For tests, and to compare devices.
    F32,
    /// To serve.
    Bf16,
}

impl Element {
    /// Size of one, in bytes.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Element::F32 => 4,
            Element::Bf16 => 2,
        }
    }

    /// The dtype that it is.
    #[must_use]
    pub fn dtype(self) -> Dtype {
        match self {
            Element::F32 => Dtype::F32,
            Element::Bf16 => Dtype::Bf16,
        }
    }

    pub(super) fn choose(self, f32: &'static str, bf16: &'static str) -> &'static str {
        match self {
            Element::F32 => f32,
            Element::Bf16 => bf16,
        }
    }
}

/// A kernel with everything it is launched with.
#[derive(Clone, Copy, Debug)]
pub struct Launch<A> {
    /// Name in the table of [`kernels`](super::kernels).
    pub kernel: &'static str,
    /// Blocks; 0 in any direction: nothing to do, do not launch.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: u32,
    /// Dynamic shared memory of a block, in bytes; above 48 KiB a device wants to be asked for it once per kernel.
    pub shared_bytes: u32,
    /// The kernel's one parameter, by value.
    pub args: A,
}

impl<A> Launch<A> {
    pub(super) fn new(kernel: &'static str, grid: [u32; 3], block: u32, args: A) -> Launch<A> {
        Launch { kernel, grid, block, shared_bytes: 0, args }
    }
}

/// The rows of one sequence in a pass, in device memory. Rows of a chunk stand together; they leave from its end only.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chunk {
    /// First row.
    pub first: u32,
    /// Rows that it has (still).
    pub rows: u32,
    /// From this row on, counted in the chunk, rows are samples; [`NOTHING`] if none is.
    pub sampled_from: u32,
    /// Proposals that stand before the place of the first sample; negative: so many samples come before any proposal may.
    pub since: i32,
}

impl Chunk {
    /// Proposals that stand before the place of a sample, by its row in the chunk.
    #[must_use]
    pub fn since(&self, offset: u32) -> u32 {
        (self.since + (offset - self.sampled_from) as i32).max(0) as u32
    }
}

/// A row that has logits, and gets a token, in device memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Row of the pass.
    pub row: u32,
    /// Its chunk.
    pub chunk: u32,
    /// Position of the token in prompt and output.
    pub position: u32,
    /// Proposals of the chunk that stand before that position.
    pub since: u32,
}

/// Blocks for a kernel that strides over `items`: no more than keep the lane's SMs busy, at least one.
pub(super) fn strided(items: u32, sms: u32, per_sm: u32) -> u32 {
    items.min(sms.saturating_mul(per_sm)).max(1)
}
