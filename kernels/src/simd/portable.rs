//! Vectors of four that any machine's compiler turns into what it has.

use super::Simd;
use half::bf16;
use std::array::from_fn;

/// Needs nothing.
#[derive(Clone, Copy)]
pub(super) struct Portable;

const N: usize = 4;

impl Simd for Portable {
    const LANES: usize = N;
    const REGISTERS: usize = 16;
    const DOTS: bool = false;
    type F = [f32; N];
    type I = [u32; N];
    type M = [bool; N];

    #[inline(always)]
    fn splat(self, x: f32) -> [f32; N] {
        [x; N]
    }
    #[inline(always)]
    unsafe fn load(self, at: *const f32) -> [f32; N] {
        // SAFETY: the caller's promise; arrays of f32 have its alignment.
        unsafe { at.cast::<[f32; N]>().read() }
    }
    #[inline(always)]
    unsafe fn store(self, at: *mut f32, x: [f32; N]) {
        // SAFETY: the caller's promise.
        unsafe { at.cast::<[f32; N]>().write(x) }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, at: *const bf16) -> [f32; N] {
        // SAFETY: the caller's promise.
        let x = unsafe { at.cast::<[u16; N]>().read() };
        x.map(|x| f32::from_bits(u32::from(x) << 16))
    }
    #[inline(always)]
    unsafe fn load_i8(self, at: *const i8) -> [f32; N] {
        // SAFETY: the caller's promise.
        let x = unsafe { at.cast::<[i8; N]>().read() };
        x.map(f32::from)
    }
    #[inline(always)]
    unsafe fn store_bf16(self, at: *mut bf16, x: [f32; N]) {
        // SAFETY: the caller's promise.
        unsafe { at.cast::<[bf16; N]>().write(x.map(bf16::from_f32)) }
    }
    #[inline(always)]
    unsafe fn dot_pairs(self, _: [f32; N], _: [u32; N], _: [u32; N]) -> [f32; N] {
        unreachable!("DOTS is false")
    }

    #[inline(always)]
    fn prefetch<T>(self, _at: *const T) {
        #[cfg(test)]
        super::asked::note(_at.addr());
    }

    #[inline(always)]
    fn add(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        from_fn(|i| a[i] + b[i])
    }
    #[inline(always)]
    fn sub(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        from_fn(|i| a[i] - b[i])
    }
    #[inline(always)]
    fn mul(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        from_fn(|i| a[i] * b[i])
    }
    #[inline(always)]
    fn div(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        from_fn(|i| a[i] / b[i])
    }
    #[inline(always)]
    fn mul_add(self, a: [f32; N], b: [f32; N], c: [f32; N]) -> [f32; N] {
        // Not fused: without the instruction, `f32::mul_add` is a slow call.
        from_fn(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    fn fused(self, a: [f32; N], b: [f32; N], c: [f32; N]) -> [f32; N] {
        from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    fn max(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        from_fn(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn min(self, a: [f32; N], b: [f32; N]) -> [f32; N] {
        from_fn(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn less(self, a: [f32; N], b: [f32; N]) -> [bool; N] {
        from_fn(|i| a[i] < b[i])
    }
    #[inline(always)]
    fn both(self, a: [bool; N], b: [bool; N]) -> [bool; N] {
        from_fn(|i| a[i] & b[i])
    }
    #[inline(always)]
    fn either(self, a: [bool; N], b: [bool; N]) -> [bool; N] {
        from_fn(|i| a[i] | b[i])
    }
    #[inline(always)]
    fn not(self, m: [bool; N]) -> [bool; N] {
        m.map(|m| !m)
    }
    #[inline(always)]
    fn any(self, m: [bool; N]) -> bool {
        m.contains(&true)
    }
    #[inline(always)]
    fn select(self, m: [bool; N], yes: [f32; N], no: [f32; N]) -> [f32; N] {
        from_fn(|i| if m[i] { yes[i] } else { no[i] })
    }

    #[inline(always)]
    fn splat_u32(self, x: u32) -> [u32; N] {
        [x; N]
    }
    #[inline(always)]
    fn count_from(self, first: u32) -> [u32; N] {
        from_fn(|i| first.wrapping_add(i as u32))
    }
    #[inline(always)]
    fn add_u32(self, a: [u32; N], b: [u32; N]) -> [u32; N] {
        from_fn(|i| a[i].wrapping_add(b[i]))
    }
    #[inline(always)]
    fn mul_u32(self, a: [u32; N], b: [u32; N]) -> [u32; N] {
        from_fn(|i| a[i].wrapping_mul(b[i]))
    }
    #[inline(always)]
    fn and_u32(self, a: [u32; N], b: [u32; N]) -> [u32; N] {
        from_fn(|i| a[i] & b[i])
    }
    #[inline(always)]
    fn xor_u32(self, a: [u32; N], b: [u32; N]) -> [u32; N] {
        from_fn(|i| a[i] ^ b[i])
    }
    #[inline(always)]
    fn dot_bytes(self, sum: [u32; N], a: [u32; N], b: [u32; N]) -> [u32; N] {
        from_fn(|i| {
            let products = a[i].to_le_bytes().into_iter().zip(b[i].to_le_bytes());
            let dot: i32 = products.map(|(a, b)| i32::from(a) * i32::from(b.cast_signed())).sum();
            sum[i].wrapping_add_signed(dot)
        })
    }
    #[inline(always)]
    fn look_up(self, table: &[u8; 16], places: [u32; N]) -> [u32; N] {
        places.map(|four| u32::from_le_bytes(four.to_le_bytes().map(|place| table[usize::from(place & 15)])))
    }
    #[inline(always)]
    fn shift_left<const BITS: u32>(self, a: [u32; N]) -> [u32; N] {
        a.map(|x| x << BITS)
    }
    #[inline(always)]
    fn shift_right<const BITS: u32>(self, a: [u32; N]) -> [u32; N] {
        a.map(|x| x >> BITS)
    }
    #[inline(always)]
    fn select_u32(self, m: [bool; N], yes: [u32; N], no: [u32; N]) -> [u32; N] {
        from_fn(|i| if m[i] { yes[i] } else { no[i] })
    }
    #[inline(always)]
    unsafe fn load_u32(self, at: *const u32) -> [u32; N] {
        // SAFETY: the caller's promise.
        unsafe { at.cast::<[u32; N]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store_u32(self, at: *mut u32, x: [u32; N]) {
        // SAFETY: the caller's promise.
        unsafe { at.cast::<[u32; N]>().write(x) }
    }
    #[inline(always)]
    unsafe fn store_bytes(self, at: *mut u8, x: [u32; N]) {
        // SAFETY: the caller's promise.
        unsafe { at.cast::<[u8; N]>().write(x.map(|x| x as u8)) }
    }
    #[inline(always)]
    fn to_f32(self, x: [u32; N]) -> [f32; N] {
        x.map(|x| x.cast_signed() as f32)
    }
    #[inline(always)]
    fn bits(self, x: [f32; N]) -> [u32; N] {
        x.map(f32::to_bits)
    }
    #[inline(always)]
    fn of_bits(self, x: [u32; N]) -> [f32; N] {
        x.map(f32::from_bits)
    }
}
