//! Multiply-adds over vector registers: [`CHAINS`] sums at a time, more than latency times rate of any of these instructions.

use super::peak::Loop;
use std::arch::{asm, x86_64::*};
use std::hint::black_box;
use std::mem::transmute;

/// Sums that do not wait for each other. With the factors and two products they still fit in 16 registers.
const CHAINS: usize = 12;

/// A loop over `CHAINS` sums: `step` makes the new sum of the old one and two factors, with `ops` operations.
macro_rules! chains {
    (
        $(#[$doc:meta])*
        $loop:ident = $name:literal: $ops:expr, $features:literal, $available:expr,
        $class:ident from $sum_type:ident $start:expr, $factor:expr, |$sum:ident, $a:ident, $b:ident| $step:expr
    ) => {
        $(#[$doc])*
        pub(super) const $loop: Loop = {
            #[target_feature(enable = $features)]
            fn run(rounds: u64) {
                let ($a, mut $b) = (black_box($factor), black_box($factor));
                let mut sums: [$sum_type; CHAINS] = [$start; CHAINS];
                for _ in 0..rounds {
                    for sum in &mut sums {
                        // SAFETY: no instruction at all. The compiler must take it that the factor is another one each time,
                        // or it would take products out of the loop.
                        unsafe { asm!("/* {0} */", inout($class) $b, options(nomem, nostack, preserves_flags)) };
                        let $sum = *sum;
                        *sum = $step;
                    }
                }
                black_box(sums);
            }
            Loop { name: $name, ops: CHAINS as u64 * $ops, available: $available, run }
        };
    };
}

chains! {
    /// Products and sums apart: what every x86-64 has, and the portable kernels are compiled to.
    MUL_ADD_XMM = "mulps + addps xmm": 2 * 4, "sse2", || true,
    xmm_reg from __m128 _mm_set1_ps(1.0), _mm_set1_ps(0.75), |sum, a, b| _mm_add_ps(sum, _mm_mul_ps(a, b))
}

chains! {
    /// f32 on AVX2.
    FMA_YMM = "vfmadd ymm": 2 * 8, "avx2,fma",
    || is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
    ymm_reg from __m256 _mm256_set1_ps(1.0), _mm256_set1_ps(0.75), |sum, a, b| _mm256_fmadd_ps(a, b, sum)
}

chains! {
    /// f32 on AVX-512.
    FMA_ZMM = "vfmadd zmm": 2 * 16, "avx512f", || is_x86_feature_detected!("avx512f"),
    zmm_reg from __m512 _mm512_set1_ps(1.0), _mm512_set1_ps(0.75), |sum, a, b| _mm512_fmadd_ps(a, b, sum)
}

chains! {
    /// Pairs of bf16.
    BF16_ZMM = "vdpbf16ps zmm": 4 * 16, "avx512f,avx512bf16",
    || is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bf16"),
    zmm_reg from __m512 _mm512_set1_ps(1.0), _mm512_set1_epi32(0x3f40_3f40),
    // SAFETY: both types are 64 bytes, of which any are allowed.
    |sum, a, b| unsafe { _mm512_dpbf16_ps(sum, transmute::<__m512i, __m512bh>(a), transmute::<__m512i, __m512bh>(b)) }
}

chains! {
    /// Fours of bytes, where AVX2 has VNNI beside it.
    VNNI_YMM = "vpdpbusd ymm": 8 * 8, "avx2,avxvnni",
    || is_x86_feature_detected!("avx2") && is_x86_feature_detected!("avxvnni"),
    ymm_reg from __m256i _mm256_setzero_si256(), _mm256_set1_epi32(0x5a3c_7b19),
    |sum, a, b| _mm256_dpbusd_avx_epi32(sum, a, b)
}

chains! {
    /// Fours of bytes.
    VNNI_ZMM = "vpdpbusd zmm": 8 * 16, "avx512f,avx512vnni",
    || is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vnni"),
    zmm_reg from __m512i _mm512_setzero_si512(), _mm512_set1_epi32(0x5a3c_7b19),
    |sum, a, b| _mm512_dpbusd_epi32(sum, a, b)
}

/// Fours of bytes without VNNI: the kernels widen the bytes, even ones and odd ones apart, so that no product is cut off (as
/// `vpmaddubsw` would). What is counted is multiplying and adding alone: widening can be shared by several rows.
macro_rules! madd {
    ($madd:ident, $add:ident, $sum:ident, $a:ident, $b:ident) => {{
        let sum = $add($sum, $madd($a, $b));
        $add(sum, $madd($b, $b))
    }};
}

chains! {
    /// Fours of bytes on AVX2.
    MADD_YMM = "2 (vpmaddwd + vpaddd) ymm, no VNNI": 8 * 8, "avx2", || is_x86_feature_detected!("avx2"),
    ymm_reg from __m256i _mm256_setzero_si256(), _mm256_set1_epi16(0x5a),
    |sum, a, b| madd!(_mm256_madd_epi16, _mm256_add_epi32, sum, a, b)
}

chains! {
    /// Fours of bytes on AVX-512.
    MADD_ZMM = "2 (vpmaddwd + vpaddd) zmm, no VNNI": 8 * 16, "avx512f,avx512bw",
    || is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw"),
    zmm_reg from __m512i _mm512_setzero_si512(), _mm512_set1_epi16(0x5a),
    |sum, a, b| madd!(_mm512_madd_epi16, _mm512_add_epi32, sum, a, b)
}
