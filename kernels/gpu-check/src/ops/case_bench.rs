//! Where cases run: memory that notices writes beside it and launches, on fibers of a test or on a GPU.

use std::fmt::Debug;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

use half::bf16;

use faser_kernels::cuda::{BLOCK_SIZE, Element, KvElement, Launch, Plain, Ptr};
use faser_kernels::{of_e4m3, to_e4m3};

/// The most bytes that a kernel's arguments may have here.
const MOST_ARGS: usize = 256;

/// Arguments of any kernel, as the bytes that they are; aligned as they must be.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub struct AnyArgs {
    bytes: MaybeUninit<[u8; MOST_ARGS]>,
    len: usize,
}

impl AnyArgs {
    fn of<A: Copy>(args: &A) -> AnyArgs {
        assert!(size_of::<A>() <= MOST_ARGS && align_of::<A>() <= 8, "arguments of {} bytes", size_of::<A>());
        let mut bytes = MaybeUninit::<[u8; MOST_ARGS]>::uninit();
        // SAFETY: as many bytes as the struct has, which fit; nobody looks at those behind them.
        unsafe {
            bytes
                .as_mut_ptr()
                .cast::<u8>()
                .copy_from_nonoverlapping((&raw const *args).cast(), size_of::<A>());
        }
        AnyArgs { bytes, len: size_of::<A>() }
    }

    /// Where they are, and their size.
    #[must_use]
    pub fn start(&self) -> (*const u8, usize) {
        (self.bytes.as_ptr().cast(), self.len)
    }
}

/// What runs kernels.
pub trait Executor {
    /// Copies to memory that kernels can read and write, where it stays as long as this.
    fn store(&self, bytes: &[u8]) -> Ptr;
    /// Copies from such memory.
    fn load(&self, from: Ptr, to: &mut [u8]);
    /// Orders in which threads can be run, where that is to choose.
    fn orders(&self) -> &'static [i32];
    /// Shared memory that a block may have, in bytes.
    fn most_shared(&self) -> u32;
    /// Runs a launch in one order, to its end.
    ///
    /// # Errors
    /// What went wrong.
    fn run(&self, launch: &Launch<AnyArgs>, order: i32) -> Result<(), String>;
}

/// What cases work with.
pub struct Bench<'e>(pub &'e dyn Executor);

impl<'e> Bench<'e> {
    /// The orders, each to be tried.
    pub fn orders(&self) -> impl Iterator<Item = i32> + use<> {
        self.0.orders().iter().copied()
    }

    /// One of the orders: they take turns.
    #[must_use]
    pub fn order(&self, turn: usize) -> i32 {
        let orders = self.0.orders();
        orders[turn % orders.len()]
    }

    /// Runs a launch.
    ///
    /// # Panics
    /// If it goes wrong.
    #[track_caller]
    pub fn run<A: Copy>(&self, launch: &Launch<A>, order: i32) {
        if launch.grid.contains(&0) {
            return;
        }
        let Launch { kernel, grid, block, shared_bytes, args } = launch;
        let any = Launch {
            kernel,
            grid: *grid,
            block: *block,
            shared_bytes: *shared_bytes,
            args: AnyArgs::of(args),
        };
        if let Err(fault) = self.0.run(&any, order) {
            panic!("{kernel} in order {order}: {fault}");
        }
    }

    /// A copy that stays.
    pub fn lasting<T: Plain>(&self, content: &[T]) -> Ptr {
        self.0.store(bytes_of(content))
    }

    /// A number of rows, where kernels look for it.
    pub fn count(&self, rows: usize) -> Ptr {
        self.lasting(&[rows as u32])
    }

    /// Memory that a kernel may write, with margins of that value.
    pub fn memory<T: Marked>(&self, content: &[T], margin: T) -> Memory<'e, T> {
        let mut all = vec![margin; MARGIN];
        all.extend_from_slice(content);
        all.extend([margin; MARGIN]);
        Memory { executor: self.0, start: self.lasting(&all), len: content.len(), margin, of: PhantomData }
    }

    /// f32 with margins.
    pub fn floats(&self, content: &[f32]) -> Memory<'e, f32> {
        self.memory(content, 77.25)
    }

    /// u32 with margins.
    pub fn words(&self, content: &[u32]) -> Memory<'e, u32> {
        self.memory(content, 0xabcd_1234)
    }

    /// Keys, or values, `[..][16][head_dim]`, as they are held.
    pub fn kept(&self, kv: KvElement, head_dim: usize, content: &[f32]) -> Elements<'e> {
        match kv {
            KvElement::Element(element) => self.elements(element, content),
            KvElement::Fp8 => Elements::Fp8(self.words(&fp8_pages(content, head_dim)), head_dim),
        }
    }

    /// Elements of either type, rounded.
    pub fn elements(&self, element: Element, content: &[f32]) -> Elements<'e> {
        match element {
            Element::F32 => Elements::F32(self.floats(content)),
            Element::Bf16 => {
                let rounded: Vec<bf16> = content.iter().map(|x| bf16::from_f32(*x)).collect();
                Elements::Bf16(self.memory(&rounded, bf16::from_f32(-3.5)))
            }
        }
    }
}

/// What may lie in a [`Memory`].
pub trait Marked: Plain + PartialEq + Debug {}
impl<T: Plain + PartialEq + Debug> Marked for T {}

/// Memory that a kernel may write, with a margin on each side that it must not.
pub struct Memory<'e, T> {
    executor: &'e dyn Executor,
    start: Ptr,
    len: usize,
    margin: T,
    of: PhantomData<T>,
}

/// Values of a margin.
const MARGIN: usize = 64;

impl<T: Marked> Memory<'_, T> {
    /// Where the content is.
    #[must_use]
    pub fn ptr(&self) -> Ptr {
        Ptr(self.start.0 + (MARGIN * size_of::<T>()) as u64)
    }

    /// The content.
    ///
    /// # Panics
    /// If something was written beside it.
    #[must_use]
    #[track_caller]
    pub fn read(&self) -> Vec<T> {
        let mut all = vec![self.margin; self.len + 2 * MARGIN];
        self.executor.load(self.start, bytes_of_mut(&mut all));
        let after = all.split_off(MARGIN + self.len);
        let content = all.split_off(MARGIN);
        assert!(all.iter().chain(&after).all(|x| *x == self.margin), "a write beside the memory");
        content
    }
}

/// Pages of FP8 with these numbers, `[..][16][head_dim]`: codes, then scales. What is not finite makes its token none.
fn fp8_pages(numbers: &[f32], head_dim: usize) -> Vec<u32> {
    let mut words = Vec::new();
    for page in numbers.chunks(BLOCK_SIZE * head_dim) {
        let (mut codes, mut scales) = (Vec::new(), Vec::new());
        for token in page.chunks(head_dim) {
            let finite = token.iter().all(|x| x.is_finite());
            let largest = token.iter().fold(0f32, |most, x| most.max(x.abs()));
            codes.extend(token.iter().map(|x| if finite { fp8_of(*x, largest) } else { 0x7F }));
            scales.push(if finite { scale_of(largest).to_bits() } else { f32::NAN.to_bits() });
        }
        words.extend(codes.chunks(4).map(|four| u32::from_le_bytes(four.try_into().expect("16 tokens"))));
        words.extend(scales);
    }
    words
}

/// Heads of smaller numbers are 0.
const FP8_LEAST: f32 = 1.5e-36;

fn fp8_of(x: f32, largest: f32) -> u8 {
    if largest > FP8_LEAST { to_e4m3(x * (448.0 / largest)) } else { 0 }
}

fn scale_of(largest: f32) -> f32 {
    if largest > FP8_LEAST { largest / 448.0 } else { 0.0 }
}

/// What a token's number is in FP8, where the largest of its head is so large.
#[must_use]
pub fn in_fp8(x: f32, largest: f32) -> f32 {
    of_e4m3(fp8_of(x, largest)) * scale_of(largest)
}

/// Elements of either type, filled from f32 and read as f32.
pub enum Elements<'e> {
    /// As they are.
    F32(Memory<'e, f32>),
    /// Rounded.
    Bf16(Memory<'e, bf16>),
    /// Keys, or values, in FP8, of heads so wide.
    Fp8(Memory<'e, u32>, usize),
}

impl Elements<'_> {
    /// Where the content is.
    #[must_use]
    pub fn ptr(&self) -> Ptr {
        match self {
            Elements::F32(memory) => memory.ptr(),
            Elements::Bf16(memory) => memory.ptr(),
            Elements::Fp8(memory, _) => memory.ptr(),
        }
    }

    /// The content.
    ///
    /// # Panics
    /// If something was written beside it.
    #[must_use]
    #[track_caller]
    pub fn read(&self) -> Vec<f32> {
        match self {
            Elements::F32(memory) => memory.read(),
            Elements::Bf16(memory) => memory.read().iter().map(|x| x.to_f32()).collect(),
            Elements::Fp8(memory, head_dim) => {
                let words = memory.read();
                let pages = words.chunks(BLOCK_SIZE * head_dim / 4 + BLOCK_SIZE);
                pages.flat_map(|page| of_fp8_page(page, *head_dim)).collect()
            }
        }
    }
}

fn of_fp8_page(page: &[u32], head_dim: usize) -> Vec<f32> {
    let (codes, scales) = page.split_at(BLOCK_SIZE * head_dim / 4);
    let codes = codes.iter().flat_map(|word| word.to_le_bytes());
    codes.enumerate().map(|(i, code)| of_e4m3(code) * f32::from_bits(scales[i / head_dim])).collect()
}

fn bytes_of<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: plain values have no padding.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

fn bytes_of_mut<T: Plain>(values: &mut [T]) -> &mut [u8] {
    // SAFETY: as above, and any bytes are a value.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
}
