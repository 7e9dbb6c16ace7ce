//! AVX2 and FMA: vectors of eight; with `VNNI` also `vpdpbusd`.

use super::{Kernel, Simd};
use half::bf16;
use std::arch::x86_64::*;

/// AVX2 and FMA; AVX-VNNI too if so named.
#[derive(Clone, Copy)]
pub(super) struct Avx2<const VNNI: bool>(());

/// # Safety
/// The machine has AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx2::<false>(()))
}

/// # Safety
/// The machine has AVX2, FMA and AVX-VNNI.
#[target_feature(enable = "avx2,fma,avxvnni")]
pub(super) unsafe fn run_vnni<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx2::<true>(()))
}

// Every `unsafe` below: the token's existence proves the features (see `super::dispatch`), pointers are the caller's promise.
impl<const VNNI: bool> Simd for Avx2<VNNI> {
    const LANES: usize = 8;
    const REGISTERS: usize = 16;
    const DOTS: bool = false;
    const SPLIT: bool = !VNNI;
    type F = __m256;
    type I = __m256i;
    type M = __m256;

    intrinsics! {
        fn splat(x: f32) -> __m256 = _mm256_set1_ps(x);
        fn add(a: __m256, b: __m256) -> __m256 = _mm256_add_ps(a, b);
        fn sub(a: __m256, b: __m256) -> __m256 = _mm256_sub_ps(a, b);
        fn mul(a: __m256, b: __m256) -> __m256 = _mm256_mul_ps(a, b);
        fn div(a: __m256, b: __m256) -> __m256 = _mm256_div_ps(a, b);
        fn max(a: __m256, b: __m256) -> __m256 = _mm256_max_ps(a, b);
        fn min(a: __m256, b: __m256) -> __m256 = _mm256_min_ps(a, b);
        fn mul_add(a: __m256, b: __m256, c: __m256) -> __m256 = _mm256_fmadd_ps(a, b, c);
        fn less(a: __m256, b: __m256) -> __m256 = _mm256_cmp_ps::<_CMP_LT_OQ>(a, b);
        fn both(a: __m256, b: __m256) -> __m256 = _mm256_and_ps(a, b);
        fn either(a: __m256, b: __m256) -> __m256 = _mm256_or_ps(a, b);
        fn not(m: __m256) -> __m256 = _mm256_xor_ps(m, _mm256_castsi256_ps(_mm256_set1_epi32(-1)));
        fn any(m: __m256) -> bool = _mm256_movemask_ps(m) != 0;
        fn select(m: __m256, yes: __m256, no: __m256) -> __m256 = _mm256_blendv_ps(no, yes, m);
        fn splat_u32(x: u32) -> __m256i = _mm256_set1_epi32(x.cast_signed());
        fn add_u32(a: __m256i, b: __m256i) -> __m256i = _mm256_add_epi32(a, b);
        fn mul_u32(a: __m256i, b: __m256i) -> __m256i = _mm256_mullo_epi32(a, b);
        fn and_u32(a: __m256i, b: __m256i) -> __m256i = _mm256_and_si256(a, b);
        fn xor_u32(a: __m256i, b: __m256i) -> __m256i = _mm256_xor_si256(a, b);
        fn select_u32(m: __m256, yes: __m256i, no: __m256i) -> __m256i =
            _mm256_blendv_epi8(no, yes, _mm256_castps_si256(m));
        fn to_f32(x: __m256i) -> __m256 = _mm256_cvtepi32_ps(x);
        fn bits(x: __m256) -> __m256i = _mm256_castps_si256(x);
        fn of_bits(x: __m256i) -> __m256 = _mm256_castsi256_ps(x);
        unsafe fn load(at: *const f32) -> __m256 = _mm256_loadu_ps(at);
        unsafe fn load_u32(at: *const u32) -> __m256i = _mm256_loadu_si256(at.cast());
        unsafe fn store(at: *mut f32, x: __m256) = _mm256_storeu_ps(at, x);
        unsafe fn store_u32(at: *mut u32, x: __m256i) = _mm256_storeu_si256(at.cast(), x);
    }

    #[inline(always)]
    unsafe fn load_bf16(self, at: *const bf16) -> __m256 {
        // SAFETY: the token proves the features; `at` is the caller's promise.
        unsafe {
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(at.cast()))))
        }
    }

    #[inline(always)]
    unsafe fn load_i8(self, at: *const i8) -> __m256 {
        // SAFETY: the token proves the features; `at` is the caller's promise.
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(at.cast()))) }
    }

    #[inline(always)]
    unsafe fn store_bf16(self, at: *mut bf16, x: __m256) {
        // SAFETY: the token proves the features; `at` is the caller's promise.
        unsafe {
            let bits = _mm256_castps_si256(x);
            let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
            let up = _mm256_add_epi32(_mm256_add_epi32(bits, odd), _mm256_set1_epi32(0x7fff));
            let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x0040_0000));
            let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(x, x));
            let high = _mm256_srli_epi32::<16>(_mm256_blendv_epi8(up, quiet, nan));
            // Packing works within 128-bit halves: the wanted words are in the first and third quarter.
            let packed = _mm256_permute4x64_epi64::<0b1000>(_mm256_packus_epi32(high, high));
            _mm_storeu_si128(at.cast(), _mm256_castsi256_si128(packed));
        }
    }

    #[inline(always)]
    unsafe fn dot_pairs(self, _: __m256, _: __m256i, _: __m256i) -> __m256 {
        unreachable!("DOTS is false")
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
    fn fused(self, a: __m256, b: __m256, c: __m256) -> __m256 {
        self.mul_add(a, b, c)
    }

    #[inline(always)]
    fn count_from(self, first: u32) -> __m256i {
        // SAFETY: the token proves the features.
        unsafe {
            let steps = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            _mm256_add_epi32(_mm256_set1_epi32(first.cast_signed()), steps)
        }
    }

    #[inline(always)]
    fn dot_bytes(self, sum: __m256i, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the token proves the features, AVX-VNNI too where it is used.
        unsafe {
            if VNNI {
                return _mm256_dpbusd_avx_epi32(sum, a, b);
            }
            // Even bytes and odd ones, as words of 16 bits.
            let (even_a, odd_a) = (_mm256_and_si256(a, _mm256_set1_epi16(0xff)), _mm256_srli_epi16::<8>(a));
            let (even_b, odd_b) =
                (_mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(b)), _mm256_srai_epi16::<8>(b));
            self.dot_shorts(self.dot_shorts(sum, even_a, even_b), odd_a, odd_b)
        }
    }

    #[inline(always)]
    fn dot_shorts(self, sum: __m256i, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the token proves the features.
        unsafe { _mm256_add_epi32(sum, _mm256_madd_epi16(a, b)) }
    }

    #[inline(always)]
    fn dot_halves(self, sum: __m256i, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the token proves the features.
        unsafe { _mm256_add_epi16(sum, _mm256_maddubs_epi16(a, b)) }
    }

    #[inline(always)]
    fn look_up(self, table: &[u8; 16], places: __m256i) -> __m256i {
        // SAFETY: the token proves the features; the table is 16 bytes.
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            _mm256_shuffle_epi8(table, places)
        }
    }

    #[inline(always)]
    fn shift_left<const BITS: u32>(self, a: __m256i) -> __m256i {
        // SAFETY: the token proves the features.
        unsafe { _mm256_sll_epi32(a, _mm_cvtsi32_si128(BITS.cast_signed())) }
    }

    #[inline(always)]
    fn shift_right<const BITS: u32>(self, a: __m256i) -> __m256i {
        // SAFETY: the token proves the features.
        unsafe { _mm256_srl_epi32(a, _mm_cvtsi32_si128(BITS.cast_signed())) }
    }

    #[inline(always)]
    unsafe fn store_bytes(self, at: *mut u8, x: __m256i) {
        // SAFETY: the token proves the features; `at` is the caller's promise.
        unsafe {
            let low = _mm256_and_si256(x, _mm256_set1_epi32(0xff));
            let words = _mm256_packus_epi32(low, low);
            let bytes = _mm256_packus_epi16(words, words);
            // Packing works within 128-bit halves: four bytes are in the low word of each.
            let halves = [_mm256_castsi256_si128(bytes), _mm256_extracti128_si256::<1>(bytes)];
            let halves = [_mm_cvtsi128_si32(halves[0]), _mm_cvtsi128_si32(halves[1])];
            at.cast::<[i32; 2]>().write_unaligned(halves);
        }
    }
}
