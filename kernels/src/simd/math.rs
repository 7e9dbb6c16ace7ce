//! Exponential, hyperbolic tangent and logarithm of vectors.
//!
//! They reduce the argument by powers of two and evaluate a polynomial (coefficients: the classic minimax ones of Cephes,
//! Moshier 1989). `exp` uses `mul_add`; `ln` uses single-rounding operations only, so that the sampler's
//! noise is the same number on every device.

use super::Simd;

/// e to the `x`, about 2 ulp; at least e^-87 and at most e^88.
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: S::F) -> S::F {
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23: adding and subtracting it rounds to an integer
    let x = s.max(s.min(x, s.splat(88.0)), s.splat(-87.0));
    let shifted = s.mul_add(x, s.splat(std::f32::consts::LOG2_E), s.splat(ROUND));
    let n = s.sub(shifted, s.splat(ROUND));
    // x - n ln 2, ln 2 in two parts, the first exact in a product with n.
    let r = s.mul_add(n, s.splat(-0.693_359_4), x);
    let r = s.mul_add(n, s.splat(2.121_944_4e-4), r);
    let mut p = s.splat(1.987_569_1e-4);
    for c in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5e-1] {
        p = s.mul_add(p, r, s.splat(c));
    }
    let p = s.add(s.mul_add(p, s.mul(r, r), r), s.splat(1.0));
    // The low bits of `shifted` are n: moved to the exponent they multiply by 2^n.
    let exponent = s.shift_left::<23>(s.bits(shifted));
    s.of_bits(s.add_u32(s.bits(p), exponent))
}

/// Hyperbolic tangent, about 2 ulp; of what is infinite, 1 or -1; what is no number stays none.
#[inline(always)]
pub(crate) fn tanh<S: Simd>(s: S, x: S::F) -> S::F {
    let (zero, one) = (s.splat(0.0), s.splat(1.0));
    // Far from 0 by an exponential; near it that would lose the low bits of x.
    let far = s.sub(one, s.div(s.splat(2.0), s.add(exp(s, s.add(x, x)), one)));
    let far = s.select(s.either(s.less(x, one), s.less(zero, x)), far, x);
    let near = s.less(s.max(x, s.sub(zero, x)), s.splat(0.625));
    let x = s.select(near, x, zero);
    let square = s.mul(x, x);
    let mut p = s.splat(-5.704_988_7e-3);
    for c in [2.063_909e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1] {
        p = s.mul_add(p, square, s.splat(c));
    }
    s.select(near, s.mul_add(s.mul(p, square), x, x), far)
}

/// Natural logarithm of `x` > 0, normal and finite; about 2 ulp, also where `x` is near 1.
#[inline(always)]
pub(crate) fn ln<S: Simd>(s: S, x: S::F) -> S::F {
    const SQRT_HALF: u32 = 0x3f35_04f3; // bits of the square root of 1/2
    // x = m 2^e with m from sqrt(1/2) to sqrt(2)
    let offset = s.add_u32(s.bits(x), s.splat_u32(0x3f80_0000 - SQRT_HALF));
    let e = s.sub(s.to_f32(s.shift_right::<23>(offset)), s.splat(127.0));
    let mantissa = s.and_u32(offset, s.splat_u32(0x007f_ffff));
    let m = s.of_bits(s.add_u32(mantissa, s.splat_u32(SQRT_HALF)));
    ln_scaled(s, s.sub(m, s.splat(1.0)), e)
}

/// `ln(1 + f) + e ln 2` for `f` from sqrt(1/2) - 1 to sqrt(2) - 1.
#[inline(always)]
fn ln_scaled<S: Simd>(s: S, f: S::F, e: S::F) -> S::F {
    let mut p = s.splat(7.037_683_6e-2);
    for c in [
        -1.151_461e-1,
        1.167_699_84e-1,
        -1.242_014_1e-1,
        1.424_932_3e-1,
        -1.666_805_7e-1,
        2.000_071_5e-1,
        -2.499_999_4e-1,
        3.333_333e-1,
    ] {
        p = s.add(s.mul(p, f), s.splat(c)); // not fused: see above
    }
    let square = s.mul(f, f);
    let tail = s.mul(s.mul(p, f), square);
    let tail = s.add(tail, s.mul(e, s.splat(-2.121_944_4e-4)));
    let tail = s.sub(tail, s.mul(square, s.splat(0.5)));
    s.add(s.add(f, tail), s.mul(e, s.splat(0.693_359_4)))
}

/// `-ln(1 - x)` for `x` from 0 to 1 - 2^-24, with full relative precision near 0.
#[inline(always)]
pub(crate) fn minus_ln_one_minus<S: Simd>(s: S, x: S::F) -> S::F {
    // Near 0, forming 1 - x would lose the low bits of x: take -x itself as the argument of the series.
    let zero = s.splat(0.0);
    let small = s.less(x, s.splat(0.25));
    let near = ln_scaled(s, s.sub(zero, s.select(small, x, zero)), zero);
    let far = ln(s, s.sub(s.splat(1.0), x));
    s.sub(zero, s.select(small, near, far))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Supported;
    use crate::simd::{Kernel, dispatch};

    /// Applies a vector function to a slice of whole vectors.
    struct Map<'a, O>(&'a mut [f32], O);
    trait Op {
        fn at<S: Simd>(&self, s: S, x: S::F) -> S::F;
    }
    impl<O: Op> Kernel for Map<'_, O> {
        type Output = ();
        #[inline(always)]
        fn run<S: Simd>(self, s: S) {
            for chunk in self.0.chunks_mut(S::LANES) {
                let y = self.1.at(s, s.load_some(chunk));
                s.store_some(chunk, y);
            }
        }
    }
    #[derive(Clone, Copy)]
    struct Exp;
    impl Op for Exp {
        #[inline(always)]
        fn at<S: Simd>(&self, s: S, x: S::F) -> S::F {
            exp(s, x)
        }
    }
    #[derive(Clone, Copy)]
    struct Tanh;
    impl Op for Tanh {
        #[inline(always)]
        fn at<S: Simd>(&self, s: S, x: S::F) -> S::F {
            tanh(s, x)
        }
    }
    #[derive(Clone, Copy)]
    struct Ln;
    impl Op for Ln {
        #[inline(always)]
        fn at<S: Simd>(&self, s: S, x: S::F) -> S::F {
            ln(s, x)
        }
    }
    #[derive(Clone, Copy)]
    struct MinusLnOneMinus;
    impl Op for MinusLnOneMinus {
        #[inline(always)]
        fn at<S: Simd>(&self, s: S, x: S::F) -> S::F {
            minus_ln_one_minus(s, x)
        }
    }

    fn check<O: Op + Copy>(op: O, inputs: &[f32], exact: impl Fn(f64) -> f64, equal_on_all: bool) {
        let mut first: Option<Vec<f32>> = None;
        for isa in crate::Isa::available() {
            let mut outputs = inputs.to_vec();
            dispatch(Supported::new(isa).unwrap(), Map(&mut outputs, op));
            for (x, y) in inputs.iter().zip(&outputs) {
                let expected = exact(f64::from(*x));
                let error = ((f64::from(*y) - expected) / expected.abs().max(1e-37)).abs();
                assert!(error < 4e-7, "{isa}: {x} gives {y}, not {expected}");
            }
            let first = first.get_or_insert_with(|| outputs.clone());
            assert!(!equal_on_all || *first == outputs, "{isa} differs");
        }
    }

    #[test]
    fn exponentials() {
        let inputs: Vec<f32> = (-8690..8790).map(|i| i as f32 / 100.0 + 0.003).collect();
        check(Exp, &inputs, f64::exp, false);
    }

    #[test]
    fn hyperbolic_tangents() {
        for isa in crate::Isa::available() {
            let mut none = [f32::NAN, -1.0].repeat(9);
            dispatch(Supported::new(isa).unwrap(), Map(&mut none, Tanh));
            assert!(none.chunks(2).all(|pair| pair[0].is_nan() && pair[1] < -0.7), "{isa} {none:?}");
        }
        let mut inputs: Vec<f32> = (-2000..2000).map(|i| i as f32 / 150.0 + 0.001).collect();
        inputs.extend((0..60).map(|i| 0.8f32.powi(i) * 1e-3));
        check(Tanh, &inputs, f64::tanh, false);
        check(Tanh, &[f32::INFINITY, f32::NEG_INFINITY, 1e30, -1e30], f64::tanh, false);
    }

    #[test]
    fn logarithms_agree_on_every_instruction_set() {
        let inputs: Vec<f32> =
            (1..4000).map(|i| (i as f32).powi(3) * 1e-9).filter(|x| (x - 1.0).abs() > 1e-3).collect();
        check(Ln, &inputs, f64::ln, true);
    }

    #[test]
    fn small_exponential_variates_keep_their_precision() {
        let mut inputs: Vec<f32> = (0..4095).map(|i| (i as f32 + 0.5) / 4096.0).collect();
        inputs.extend((1..33).map(|i| 0.7f32.powi(i * 2)));
        inputs.push(1.0 - 2f32.powi(-24));
        check(MinusLnOneMinus, &inputs, |x| -(-x).ln_1p(), true);
    }
}
