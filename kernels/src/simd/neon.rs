//! NEON: vectors of four on every 64-bit ARM; with `SDOT` also that instruction.

use super::{Kernel, Simd};
use half::bf16;
use std::arch::aarch64::*;
use std::arch::asm;

/// NEON; the dot products of ARMv8.2 too if so named.
#[derive(Clone, Copy)]
pub(super) struct Neon<const SDOT: bool>(());

/// # Safety
/// The machine has NEON.
#[target_feature(enable = "neon")]
pub(super) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Neon::<false>(()))
}

/// # Safety
/// The machine has NEON and `sdot`.
#[target_feature(enable = "neon,dotprod")]
pub(super) unsafe fn run_dot<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Neon::<true>(()))
}

// Every `unsafe` below: the token's existence proves the features (see `super::dispatch`), pointers are the caller's promise.
impl<const SDOT: bool> Simd for Neon<SDOT> {
    const LANES: usize = 4;
    const REGISTERS: usize = 32;
    const DOTS: bool = false;
    const SIGNED: bool = true;
    type F = float32x4_t;
    type I = uint32x4_t;
    type M = uint32x4_t;

    intrinsics! {
        fn splat(x: f32) -> float32x4_t = vdupq_n_f32(x);
        fn add(a: float32x4_t, b: float32x4_t) -> float32x4_t = vaddq_f32(a, b);
        fn sub(a: float32x4_t, b: float32x4_t) -> float32x4_t = vsubq_f32(a, b);
        fn mul(a: float32x4_t, b: float32x4_t) -> float32x4_t = vmulq_f32(a, b);
        fn div(a: float32x4_t, b: float32x4_t) -> float32x4_t = vdivq_f32(a, b);
        // `fmax` and `fmin` would give NaN where either is.
        fn max(a: float32x4_t, b: float32x4_t) -> float32x4_t = vbslq_f32(vcgtq_f32(a, b), a, b);
        fn min(a: float32x4_t, b: float32x4_t) -> float32x4_t = vbslq_f32(vcltq_f32(a, b), a, b);
        fn mul_add(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t = vfmaq_f32(c, a, b);
        fn less(a: float32x4_t, b: float32x4_t) -> uint32x4_t = vcltq_f32(a, b);
        fn either(a: uint32x4_t, b: uint32x4_t) -> uint32x4_t = vorrq_u32(a, b);
        fn not(m: uint32x4_t) -> uint32x4_t = vmvnq_u32(m);
        fn any(m: uint32x4_t) -> bool = vmaxvq_u32(m) != 0;
        fn select(m: uint32x4_t, yes: float32x4_t, no: float32x4_t) -> float32x4_t = vbslq_f32(m, yes, no);
        fn splat_u32(x: u32) -> uint32x4_t = vdupq_n_u32(x);
        fn add_u32(a: uint32x4_t, b: uint32x4_t) -> uint32x4_t = vaddq_u32(a, b);
        fn mul_u32(a: uint32x4_t, b: uint32x4_t) -> uint32x4_t = vmulq_u32(a, b);
        fn and_u32(a: uint32x4_t, b: uint32x4_t) -> uint32x4_t = vandq_u32(a, b);
        fn xor_u32(a: uint32x4_t, b: uint32x4_t) -> uint32x4_t = veorq_u32(a, b);
        fn select_u32(m: uint32x4_t, yes: uint32x4_t, no: uint32x4_t) -> uint32x4_t = vbslq_u32(m, yes, no);
        fn to_f32(x: uint32x4_t) -> float32x4_t = vcvtq_f32_s32(vreinterpretq_s32_u32(x));
        fn bits(x: float32x4_t) -> uint32x4_t = vreinterpretq_u32_f32(x);
        fn of_bits(x: uint32x4_t) -> float32x4_t = vreinterpretq_f32_u32(x);
        unsafe fn load(at: *const f32) -> float32x4_t = vld1q_f32(at);
        unsafe fn load_bf16(at: *const bf16) -> float32x4_t =
            vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(at.cast())));
        unsafe fn store(at: *mut f32, x: float32x4_t) = vst1q_f32(at, x);
        unsafe fn store_u32(at: *mut u32, x: uint32x4_t) = vst1q_u32(at, x);
    }

    #[inline(always)]
    unsafe fn load_i8(self, at: *const i8) -> float32x4_t {
        // SAFETY: the token proves the features; `at` is the caller's promise, for four bytes.
        unsafe {
            let four = vreinterpret_s8_u32(vdup_n_u32(at.cast::<u32>().read_unaligned()));
            vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(four))))
        }
    }

    #[inline(always)]
    unsafe fn store_bf16(self, at: *mut bf16, x: float32x4_t) {
        // SAFETY: the token proves the features; `at` is the caller's promise.
        unsafe {
            let bits = vreinterpretq_u32_f32(x);
            let odd = vandq_u32(vshrq_n_u32::<16>(bits), vdupq_n_u32(1));
            let up = vaddq_u32(vaddq_u32(bits, odd), vdupq_n_u32(0x7fff));
            let quiet = vorrq_u32(bits, vdupq_n_u32(0x0040_0000));
            let rounded = vbslq_u32(vceqq_f32(x, x), up, quiet);
            vst1_u16(at.cast(), vshrn_n_u32::<16>(rounded));
        }
    }

    #[inline(always)]
    unsafe fn dot_pairs(self, _: float32x4_t, _: uint32x4_t, _: uint32x4_t) -> float32x4_t {
        unreachable!("DOTS is false")
    }

    #[inline(always)]
    fn prefetch<T>(self, at: *const T) {
        #[cfg(test)]
        super::asked::note(at.addr());
        // SAFETY: a hint; no address is wrong.
        unsafe { asm!("prfm pldl1keep, [{}]", in(reg) at, options(nostack, preserves_flags, readonly)) };
    }

    #[inline(always)]
    fn fused(self, a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        self.mul_add(a, b, c)
    }

    #[inline(always)]
    fn both(self, a: uint32x4_t, b: uint32x4_t) -> uint32x4_t {
        self.and_u32(a, b)
    }

    #[inline(always)]
    fn count_from(self, first: u32) -> uint32x4_t {
        // SAFETY: the token proves the features; the array is four numbers.
        unsafe { vaddq_u32(vdupq_n_u32(first), vld1q_u32([0, 1, 2, 3].as_ptr())) }
    }

    #[inline(always)]
    fn dot_bytes(self, sum: uint32x4_t, a: uint32x4_t, b: uint32x4_t) -> uint32x4_t {
        // SAFETY: the token proves the features, those of `sdot` too where it is used.
        unsafe {
            if SDOT {
                let mut sum = sum;
                // Its intrinsic is not stable.
                asm!(
                    "sdot {sum:v}.4s, {a:v}.16b, {b:v}.16b",
                    sum = inout(vreg) sum,
                    a = in(vreg) a,
                    b = in(vreg) b,
                    options(pure, nomem, nostack, preserves_flags),
                );
                return sum;
            }
            // Products fit 16 bits, sums of two of them 32.
            let (a, b) = (vreinterpretq_s8_u32(a), vreinterpretq_s8_u32(b));
            let first = vpaddlq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)));
            let second = vpaddlq_s16(vmull_high_s8(a, b));
            vaddq_u32(sum, vreinterpretq_u32_s32(vpaddq_s32(first, second)))
        }
    }

    #[inline(always)]
    fn look_up(self, table: &[u8; 16], places: uint32x4_t) -> uint32x4_t {
        // SAFETY: the token proves the features; the table is 16 bytes.
        unsafe { vreinterpretq_u32_u8(vqtbl1q_u8(vld1q_u8(table.as_ptr()), vreinterpretq_u8_u32(places))) }
    }

    // Shifts by a constant in a register: the compiler makes immediate ones of them.
    #[inline(always)]
    fn shift_left<const BITS: u32>(self, a: uint32x4_t) -> uint32x4_t {
        // SAFETY: the token proves the features.
        unsafe { vshlq_u32(a, vdupq_n_s32(BITS.cast_signed())) }
    }

    #[inline(always)]
    fn shift_right<const BITS: u32>(self, a: uint32x4_t) -> uint32x4_t {
        // SAFETY: the token proves the features.
        unsafe { vshlq_u32(a, vdupq_n_s32(-BITS.cast_signed())) }
    }

    #[inline(always)]
    unsafe fn load_u32(self, at: *const u32) -> uint32x4_t {
        // Bytes: words would be taken for aligned.
        // SAFETY: the token proves the features; `at` is the caller's promise.
        unsafe { vreinterpretq_u32_u8(vld1q_u8(at.cast())) }
    }

    #[inline(always)]
    unsafe fn store_bytes(self, at: *mut u8, x: uint32x4_t) {
        // SAFETY: the token proves the features; `at` is the caller's promise.
        unsafe {
            let words = vmovn_u32(x);
            let bytes = vmovn_u16(vcombine_u16(words, words));
            at.cast::<u32>().write_unaligned(vget_lane_u32::<0>(vreinterpret_u32_u8(bytes)));
        }
    }
}
