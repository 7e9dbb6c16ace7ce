//! The kernels that checks are made of (kernels/gpu-check/cuda/check.cu), and launches of them.

use faser_kernels::cuda::{CudaError, Element, File, Gpu, Launch, Ptr};

/// Their files; no GPU loads them to serve.
pub const FILES: &[File] = &[File::new("check", include_str!("../cuda/check.cu"))];

/// Loads them. The calling thread is bound to the GPU.
///
/// # Errors
/// They do not compile or load.
pub(super) fn load(gpu: &Gpu) -> Result<(), CudaError> {
    gpu.load_also(FILES)
}

/// Blocks of one kernel, without shared memory.
fn launch_of<A>(kernel: &'static str, blocks: u32, block: u32, args: A) -> Launch<A> {
    Launch { kernel, grid: [blocks, 1, 1], block, shared_bytes: 0, args }
}

/// Blocks by the SM they run on.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct SmsArgs {
    /// u32 for each SM, and one for blocks that cannot say.
    pub(super) seen: Ptr,
    /// SMs.
    pub(super) sms: u32,
    /// How long a block stays.
    pub(super) turns: u32,
}

impl SmsArgs {
    pub(super) fn launch(self, blocks: u32) -> Launch<SmsArgs> {
        launch_of("check_sms", blocks, 32, self)
    }
}

/// Blocks for each SM where memory is to be kept busy: all threads that an SM holds.
const PER_SM: u32 = 4;

/// Blocks of 512 threads for so many words.
fn blocks(count: u64, sms: u32) -> u32 {
    count.div_ceil(512).clamp(1, u64::from(sms * PER_SM)) as u32
}

/// A copy by a kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct CopyArgs {
    pub(super) from: Ptr,
    pub(super) to: Ptr,
    /// Words of 16 bytes.
    pub(super) count: u64,
}

impl CopyArgs {
    pub(super) fn launch(self, sms: u32) -> Launch<CopyArgs> {
        launch_of("check_copy", blocks(self.count, sms), 512, self)
    }
}

/// Memory that is only read.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadArgs {
    pub(super) from: Ptr,
    /// u32, to which all words of 4 bytes are added.
    pub(super) sum: Ptr,
    /// Words of 16 bytes.
    pub(super) count: u64,
}

impl ReadArgs {
    pub(super) fn launch(self, sms: u32) -> Launch<ReadArgs> {
        launch_of("check_read", blocks(self.count, sms), 512, self)
    }
}

/// Numbers between `-scale` and `scale`, by a seed.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct FillArgs {
    /// Where to.
    pub(super) to: Ptr,
    /// How many.
    pub(super) count: u64,
    /// Of which seed.
    pub(super) seed: u64,
    /// The largest.
    pub(super) scale: f32,
    /// 0: f32, 1: bf16, 2: words.
    kind: u32,
}

impl FillArgs {
    /// `count` numbers of the element.
    #[must_use]
    pub(super) fn new(element: Element, to: Ptr, count: usize, seed: u64, scale: f32) -> FillArgs {
        FillArgs { to, count: count as u64, seed, scale, kind: u32::from(element == Element::Bf16) }
    }

    /// `count` words of 4 bytes, finite whether they are read as f32, as halves or as codes of 4 or 8 bits.
    #[must_use]
    pub(super) fn words(to: Ptr, count: usize, seed: u64) -> FillArgs {
        FillArgs { to, count: count as u64, seed, scale: 0.0, kind: 2 }
    }

    /// On all SMs of a share; blocks stride over what is to be filled.
    #[must_use]
    pub(super) fn launch(self, sms: u32) -> Launch<FillArgs> {
        let blocks = self.count.div_ceil(256).clamp(1, u64::from(sms) * 8);
        launch_of("check_fill", blocks as u32, 256, self)
    }
}

/// Noise of a position.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct NoiseArgs {
    /// f32 for each token.
    pub(super) out: Ptr,
    /// Tokens.
    pub(super) count: u32,
    pub(super) position: u32,
    pub(super) seed: u64,
}

impl NoiseArgs {
    pub(super) fn launch(self) -> Launch<NoiseArgs> {
        launch_of("check_noise", 1, 32, self)
    }
}

/// A kernel that stays until a flag is set.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitArgs {
    pub(super) flag: Ptr,
    /// u32: how often it looked.
    pub(super) looks: Ptr,
    /// It looks no more often than that.
    pub(super) most: u32,
}

impl WaitArgs {
    pub(super) fn launch(self) -> Launch<WaitArgs> {
        launch_of("check_wait", 1, 32, self)
    }
}

/// A write to where no memory is: the context is lost.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct IllegalWriteArgs {
    /// Where to.
    pub(super) at: Ptr,
}

impl IllegalWriteArgs {
    /// A write to an address that no allocation has.
    #[must_use]
    pub(super) fn launch() -> Launch<IllegalWriteArgs> {
        launch_of("check_illegal_write", 1, 32, IllegalWriteArgs { at: Ptr(64) })
    }
}
