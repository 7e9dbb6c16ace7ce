//! AVX-512: vectors of sixteen; with `BF16` also `vdpbf16ps`, with `VNNI` also `vpdpbusd`, with `TILES` also AMX.

use super::{Kernel, Simd};
use half::bf16;
use std::arch::x86_64::*;
use std::mem::transmute;

/// AVX-512 F, BW, DQ, VL; BF16, VNNI and AMX too if so named.
#[derive(Clone, Copy)]
pub(super) struct Avx512<const BF16: bool, const VNNI: bool, const TILES: bool>(());

/// # Safety
/// The machine has AVX-512 F, BW, DQ, VL, and FMA.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
pub(super) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx512::<false, false, false>(()))
}

/// # Safety
/// The machine has what [`run_bf16`] and [`run_vnni`] need, and AMX.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vnni,avx2,fma")]
pub(super) unsafe fn run_tiles<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx512::<false, true, true>(()))
}

/// # Safety
/// The machine has what [`run`] needs, and AVX-512 BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")]
pub(super) unsafe fn run_bf16<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx512::<true, false, false>(()))
}

/// # Safety
/// The machine has what [`run`] needs, and AVX-512 VNNI.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
pub(super) unsafe fn run_vnni<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx512::<false, true, false>(()))
}

// Every `unsafe` below: the token's existence proves the features (see `super::dispatch`), pointers are the caller's promise.
impl<const BF16: bool, const VNNI: bool, const TILES: bool> Simd for Avx512<BF16, VNNI, TILES> {
    const LANES: usize = 16;
    const REGISTERS: usize = 32;
    const DOTS: bool = BF16;
    const TILES: bool = TILES;
    type F = __m512;
    type I = __m512i;
    type M = __mmask16;

    intrinsics! {
        fn splat(x: f32) -> __m512 = _mm512_set1_ps(x);
        fn sum(x: __m512) -> f32 = _mm512_reduce_add_ps(x);
        fn largest(x: __m512) -> f32 = _mm512_reduce_max_ps(x);
        fn add(a: __m512, b: __m512) -> __m512 = _mm512_add_ps(a, b);
        fn sub(a: __m512, b: __m512) -> __m512 = _mm512_sub_ps(a, b);
        fn mul(a: __m512, b: __m512) -> __m512 = _mm512_mul_ps(a, b);
        fn div(a: __m512, b: __m512) -> __m512 = _mm512_div_ps(a, b);
        fn max(a: __m512, b: __m512) -> __m512 = _mm512_max_ps(a, b);
        fn min(a: __m512, b: __m512) -> __m512 = _mm512_min_ps(a, b);
        fn mul_add(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fmadd_ps(a, b, c);
        fn less(a: __m512, b: __m512) -> __mmask16 = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b);
        fn select(m: __mmask16, yes: __m512, no: __m512) -> __m512 = _mm512_mask_blend_ps(m, no, yes);
        fn splat_u32(x: u32) -> __m512i = _mm512_set1_epi32(x.cast_signed());
        fn add_u32(a: __m512i, b: __m512i) -> __m512i = _mm512_add_epi32(a, b);
        fn mul_u32(a: __m512i, b: __m512i) -> __m512i = _mm512_mullo_epi32(a, b);
        fn and_u32(a: __m512i, b: __m512i) -> __m512i = _mm512_and_si512(a, b);
        fn xor_u32(a: __m512i, b: __m512i) -> __m512i = _mm512_xor_si512(a, b);
        fn select_u32(m: __mmask16, yes: __m512i, no: __m512i) -> __m512i = _mm512_mask_blend_epi32(m, no, yes);
        fn to_f32(x: __m512i) -> __m512 = _mm512_cvtepi32_ps(x);
        fn bits(x: __m512) -> __m512i = _mm512_castps_si512(x);
        fn of_bits(x: __m512i) -> __m512 = _mm512_castsi512_ps(x);
        unsafe fn load(at: *const f32) -> __m512 = _mm512_loadu_ps(at);
        unsafe fn load_bf16(at: *const bf16) -> __m512 = widen(_mm256_loadu_si256(at.cast()));
        unsafe fn load_i8(at: *const i8) -> __m512 =
            _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(at.cast())));
        unsafe fn load_u32(at: *const u32) -> __m512i = _mm512_loadu_si512(at.cast());
        unsafe fn store(at: *mut f32, x: __m512) = _mm512_storeu_ps(at, x);
        unsafe fn store_u32(at: *mut u32, x: __m512i) = _mm512_storeu_si512(at.cast(), x);
        unsafe fn store_bytes(at: *mut u8, x: __m512i) = _mm_storeu_si128(at.cast(), _mm512_cvtepi32_epi8(x));
    }

    #[inline(always)]
    unsafe fn store_bf16(self, at: *mut bf16, x: __m512) {
        // SAFETY: the token proves the features; `at` is the caller's promise.
        unsafe {
            let rounded = if BF16 || TILES {
                transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(x))
            } else {
                let bits = _mm512_castps_si512(x);
                let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
                let up = _mm512_add_epi32(_mm512_add_epi32(bits, odd), _mm512_set1_epi32(0x7fff));
                let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x0040_0000));
                let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x);
                _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(_mm512_mask_blend_epi32(nan, up, quiet)))
            };
            _mm256_storeu_si256(at.cast(), rounded);
        }
    }

    #[inline(always)]
    unsafe fn dot_pairs(self, sum: __m512, a: __m512i, b: __m512i) -> __m512 {
        // SAFETY: `DOTS` is true by the caller's promise, so the token proves BF16 too.
        unsafe { _mm512_dpbf16_ps(sum, transmute::<__m512i, __m512bh>(a), transmute::<__m512i, __m512bh>(b)) }
    }

    #[inline(always)]
    fn prefetch<T>(self, at: *const T) {
        #[cfg(test)]
        super::asked::note(at.addr());
        // SAFETY: the token proves the features.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(at.cast());
        }
    }

    #[inline(always)]
    fn fused(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        self.mul_add(a, b, c)
    }

    #[inline(always)]
    fn both(self, a: __mmask16, b: __mmask16) -> __mmask16 {
        a & b
    }

    #[inline(always)]
    fn either(self, a: __mmask16, b: __mmask16) -> __mmask16 {
        a | b
    }

    #[inline(always)]
    fn not(self, m: __mmask16) -> __mmask16 {
        !m
    }

    #[inline(always)]
    fn any(self, m: __mmask16) -> bool {
        m != 0
    }

    #[inline(always)]
    fn count_from(self, first: u32) -> __m512i {
        // SAFETY: the token proves the features.
        unsafe {
            let steps = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
            _mm512_add_epi32(_mm512_set1_epi32(first.cast_signed()), steps)
        }
    }

    #[inline(always)]
    fn dot_bytes(self, sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the token proves the features, VNNI too where it is used.
        unsafe {
            if VNNI {
                return _mm512_dpbusd_epi32(sum, a, b);
            }
            // Even bytes and odd ones, as words of 16 bits.
            let (even_a, odd_a) = (_mm512_and_si512(a, _mm512_set1_epi16(0xff)), _mm512_srli_epi16::<8>(a));
            let (even_b, odd_b) =
                (_mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(b)), _mm512_srai_epi16::<8>(b));
            let sum = _mm512_add_epi32(sum, _mm512_madd_epi16(even_a, even_b));
            _mm512_add_epi32(sum, _mm512_madd_epi16(odd_a, odd_b))
        }
    }

    #[inline(always)]
    fn look_up(self, table: &[u8; 16], places: __m512i) -> __m512i {
        // SAFETY: the token proves the features; the table is 16 bytes.
        unsafe {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            _mm512_shuffle_epi8(table, places)
        }
    }

    #[inline(always)]
    fn shift_left<const BITS: u32>(self, a: __m512i) -> __m512i {
        // SAFETY: the token proves the features.
        unsafe { _mm512_sll_epi32(a, _mm_cvtsi32_si128(BITS.cast_signed())) }
    }

    #[inline(always)]
    fn shift_right<const BITS: u32>(self, a: __m512i) -> __m512i {
        // SAFETY: the token proves the features.
        unsafe { _mm512_srl_epi32(a, _mm_cvtsi32_si128(BITS.cast_signed())) }
    }
}

/// Sixteen bf16 to f32.
///
/// # Safety
/// The machine has AVX-512 F.
#[inline(always)]
unsafe fn widen(x: __m256i) -> __m512 {
    // SAFETY: the caller's promise.
    unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(x))) }
}
