//! One vector language for all instruction sets: ops are written once over [`Simd`], and [`dispatch()`] compiles them for each.
//!
//! A token of a type that implements [`Simd`] proves that the machine has its instructions: only `dispatch` makes one.

/// Methods of a [`Simd`] that are one expression each: the existence of the set's token proves its features (see
/// [`dispatch()`]).
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! intrinsics {
    ($(fn $safe:ident($($x:ident: $of:ty),*) -> $made:ty = $by:expr;)*
     $(unsafe fn $name:ident($($at:ident: $to:ty),*) $(-> $read:ty)? = $does:expr;)*) => {
        $(#[inline(always)]
        fn $safe(self, $($x: $of),*) -> $made {
            // SAFETY: the token proves the features.
            unsafe { $by }
        })*
        $(#[inline(always)]
        unsafe fn $name(self, $($at: $to),*) $(-> $read)? {
            // SAFETY: the token proves the features; the pointer is the caller's promise.
            unsafe { $does }
        })*
    };
}

#[cfg(test)]
mod agree;
#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod dispatch;
mod int4;
mod int8;
mod math;
#[cfg(target_arch = "aarch64")]
mod neon;
mod panel;
mod portable;

#[cfg(target_arch = "x86_64")]
pub(crate) use dispatch::dispatch_tiles;
pub(crate) use dispatch::{dispatch, dispatch_bytes, portably};
use half::bf16;
pub(crate) use int4::{E2m1Codes, Int4, Minima, Symmetric, ZeroPoints};
#[cfg(target_arch = "x86_64")]
pub(crate) use int8::{Beside, add_block, quantise};
pub(crate) use int8::{DotWhole, Held, Int8, half_of, shorts};
pub(crate) use math::{exp, ln, minus_ln_one_minus, tanh};
pub(crate) use panel::{Ask, DotBf16, FmaBf16, FmaF32, Product, Steps, multiply, packed_words};

/// `LANES` f32 or u32 at once. Methods are inlined into the function that [`dispatch()`] compiled for the instruction set.
///
/// Arithmetic is IEEE: `add`, `sub`, `mul`, `div` round once each and agree on all sets; `mul_add` is fused
/// where the set has it.
pub(crate) trait Simd: Copy + Send + Sync + 'static {
    /// f32 in a vector; divides 16.
    const LANES: usize;
    /// Vectors the machine holds at once.
    const REGISTERS: usize;
    /// Whether [`Simd::dot_pairs`] exists.
    const DOTS: bool;
    /// Whether matrices are multiplied in tiles (`amx.rs`).
    #[cfg(target_arch = "x86_64")]
    const TILES: bool = false;
    /// Whether [`Simd::dot_bytes`] takes both factors as signed.
    const SIGNED: bool = false;
    /// Whether that is several instructions, and [`Simd::dot_shorts`] and [`Simd::dot_halves`], which are fewer, are there instead.
    const SPLIT: bool = false;
    /// A vector of f32.
    type F: Copy;
    /// A vector of u32.
    type I: Copy;
    /// A truth value per lane.
    type M: Copy;

    fn splat(self, x: f32) -> Self::F;
    /// # Safety
    /// `at` is valid for reading `LANES` numbers.
    unsafe fn load(self, at: *const f32) -> Self::F;
    /// # Safety
    /// `at` is valid for writing `LANES` numbers.
    unsafe fn store(self, at: *mut f32, x: Self::F);
    /// # Safety
    /// `at` is valid for reading `LANES` numbers.
    unsafe fn load_bf16(self, at: *const bf16) -> Self::F;
    /// # Safety
    /// `at` is valid for reading `LANES` numbers.
    unsafe fn load_i8(self, at: *const i8) -> Self::F;
    /// Rounded to nearest even; numbers below 2^-126 may become zero (`vcvtneps2bf16`).
    ///
    /// # Safety
    /// `at` is valid for writing `LANES` numbers.
    unsafe fn store_bf16(self, at: *mut bf16, x: Self::F);
    /// Adds to each lane of `sum` the two products of the lane's pair of bf16 in `a` with that in `b`.
    ///
    /// # Safety
    /// `DOTS` is true.
    unsafe fn dot_pairs(self, sum: Self::F, a: Self::I, b: Self::I) -> Self::F;

    /// Asks for a cache line that will be read soon; any address will do.
    fn prefetch<T>(self, at: *const T);

    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`
    fn mul_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `a * b + c`, rounded once on all sets: slow where there is no instruction for it.
    fn fused(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `b` where either is NaN.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// `b` where either is NaN.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// False where either is NaN.
    fn less(self, a: Self::F, b: Self::F) -> Self::M;
    fn both(self, a: Self::M, b: Self::M) -> Self::M;
    fn either(self, a: Self::M, b: Self::M) -> Self::M;
    fn not(self, m: Self::M) -> Self::M;
    fn any(self, m: Self::M) -> bool;
    fn select(self, m: Self::M, yes: Self::F, no: Self::F) -> Self::F;

    fn splat_u32(self, x: u32) -> Self::I;
    /// `first, first + 1, ..`
    fn count_from(self, first: u32) -> Self::I;
    fn add_u32(self, a: Self::I, b: Self::I) -> Self::I;
    /// The low 32 bits.
    fn mul_u32(self, a: Self::I, b: Self::I) -> Self::I;
    fn and_u32(self, a: Self::I, b: Self::I) -> Self::I;
    fn xor_u32(self, a: Self::I, b: Self::I) -> Self::I;
    /// Adds to each lane of `sum` the products of the lane's four bytes of `a`, unsigned if not [`Simd::SIGNED`], with those of `b`,
    /// signed. Exact.
    fn dot_bytes(self, sum: Self::I, a: Self::I, b: Self::I) -> Self::I;
    /// Adds to each lane of `sum` the products of its two signed numbers of 16 bits in `a` with those in `b`. Exact.
    ///
    /// # Panics
    /// If [`Simd::SPLIT`] is false.
    fn dot_shorts(self, _sum: Self::I, _a: Self::I, _b: Self::I) -> Self::I {
        unreachable!("SPLIT is false")
    }
    /// As [`Simd::dot_bytes`], but each half of a lane of `sum` has two of the four products: exact below 2^15.
    ///
    /// # Panics
    /// If [`Simd::SPLIT`] is false.
    fn dot_halves(self, _sum: Self::I, _a: Self::I, _b: Self::I) -> Self::I {
        unreachable!("SPLIT is false")
    }
    /// The byte of `table` that each byte of `places` names; those are below 16.
    fn look_up(self, table: &[u8; 16], places: Self::I) -> Self::I;
    fn shift_left<const N: u32>(self, a: Self::I) -> Self::I;
    fn shift_right<const N: u32>(self, a: Self::I) -> Self::I;
    fn select_u32(self, m: Self::M, yes: Self::I, no: Self::I) -> Self::I;
    /// # Safety
    /// `at` is valid for reading `LANES` numbers, aligned or not.
    unsafe fn load_u32(self, at: *const u32) -> Self::I;
    /// # Safety
    /// `at` is valid for writing `LANES` numbers.
    unsafe fn store_u32(self, at: *mut u32, x: Self::I);
    /// The low byte of each lane.
    ///
    /// # Safety
    /// `at` is valid for writing `LANES` bytes.
    unsafe fn store_bytes(self, at: *mut u8, x: Self::I);
    /// As a signed number.
    fn to_f32(self, x: Self::I) -> Self::F;
    fn bits(self, x: Self::F) -> Self::I;
    fn of_bits(self, x: Self::I) -> Self::F;

    /// Sum of all lanes, in a fixed order.
    #[inline(always)]
    fn sum(self, x: Self::F) -> f32 {
        self.fold(x, |a, b| a + b)
    }

    /// Largest of all lanes.
    #[inline(always)]
    fn largest(self, x: Self::F) -> f32 {
        self.fold(x, |a, b| if a > b { a } else { b })
    }

    /// Folds halves onto each other.
    #[inline(always)]
    fn fold(self, x: Self::F, op: impl Fn(f32, f32) -> f32) -> f32 {
        let mut lanes = [0.0; 16];
        // SAFETY: the array holds 16, a vector at most that.
        unsafe { self.store(lanes.as_mut_ptr(), x) };
        let mut width = Self::LANES;
        while width > 1 {
            width /= 2;
            for i in 0..width {
                lanes[i] = op(lanes[i], lanes[i + width]);
            }
        }
        lanes[0]
    }

    /// The first numbers of `from`, at most `LANES`; zeros after.
    #[inline(always)]
    fn load_some(self, from: &[f32]) -> Self::F {
        if from.len() >= Self::LANES {
            // SAFETY: there are enough.
            return unsafe { self.load(from.as_ptr()) };
        }
        let mut lanes = [0.0; 16];
        lanes[..from.len()].copy_from_slice(from);
        // SAFETY: the array holds 16, a vector at most that.
        unsafe { self.load(lanes.as_ptr()) }
    }

    /// As many of the first lanes as `to` takes, at most `LANES`.
    #[inline(always)]
    fn store_some(self, to: &mut [f32], x: Self::F) {
        if to.len() >= Self::LANES {
            // SAFETY: there is room.
            return unsafe { self.store(to.as_mut_ptr(), x) };
        }
        let mut lanes = [0.0; 16];
        // SAFETY: the array holds 16, a vector at most that.
        unsafe { self.store(lanes.as_mut_ptr(), x) };
        to.copy_from_slice(&lanes[..to.len()]);
    }
}

/// Work written over [`Simd`]. Implementations mark `run` `#[inline(always)]`, or it is compiled for the least machine.
pub(crate) trait Kernel {
    /// What it computes.
    type Output;
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// What kernels compiled for any machine ask for with [`Simd::prefetch`], for tests: there it does nothing else.
#[cfg(test)]
pub(crate) mod asked {
    use std::cell::RefCell;

    thread_local! { static ASKED: RefCell<Option<Vec<usize>>> = const { RefCell::new(None) } }

    pub(super) fn note(address: usize) {
        ASKED.with_borrow_mut(|asked| asked.iter_mut().for_each(|asked| asked.push(address)));
    }

    /// The addresses that this thread asks for while it does `work`.
    pub(crate) fn during(work: impl FnOnce()) -> Vec<usize> {
        ASKED.set(Some(Vec::new()));
        work();
        ASKED.take().unwrap_or_default()
    }
}
