//! Tests: what rounds once or not at all gives the same bits on every instruction set.

use super::{Kernel, Simd, dispatch, portably};
use crate::Isa;
use crate::isa::Supported;
use half::bf16;

const N: usize = 16;

const TABLE: [u8; 16] = [3, 0, 255, 7, 128, 90, 17, 1, 200, 33, 127, 64, 5, 250, 99, 12];

/// Three numbers per lane: what each operation makes of them.
#[derive(Clone, Copy)]
struct All([[f32; N]; 3]);

impl Kernel for All {
    type Output = Vec<(&'static str, [u32; N])>;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Self::Output {
        let mut found = Vec::new();
        let mut any = false;
        for i in (0..N).step_by(S::LANES) {
            // SAFETY: vectors divide 16.
            let [a, b, c] = unsafe {
                [
                    s.load(self.0[0][i..].as_ptr()),
                    s.load(self.0[1][i..].as_ptr()),
                    s.load(self.0[2][i..].as_ptr()),
                ]
            };
            let (x, y) = (s.bits(a), s.bits(b));
            let (less, more) = (s.less(a, b), s.less(b, a));
            let mut halves = [bf16::ZERO; N];
            // SAFETY: the array holds 16.
            let rounded = unsafe {
                s.store_bf16(halves.as_mut_ptr(), a);
                s.load_bf16(halves.as_ptr())
            };
            // Any bytes will do.
            let bytes = self.0[0].map(|x| x.to_bits() as i8);
            // SAFETY: vectors divide 16.
            let bytes = unsafe { s.load_i8(bytes[i..].as_ptr()) };
            any |= s.any(s.less(a, s.splat(-1.0)));
            let results = [
                ("add", s.bits(s.add(a, b))),
                ("sub", s.bits(s.sub(a, b))),
                ("mul", s.bits(s.mul(a, b))),
                ("div", s.bits(s.div(a, b))),
                ("fused", s.bits(s.fused(a, b, c))),
                ("max", s.bits(s.max(a, b))),
                ("min", s.bits(s.min(a, b))),
                ("select", s.bits(s.select(less, a, c))),
                ("both", s.select_u32(s.both(less, s.not(more)), x, y)),
                ("either", s.select_u32(s.either(less, more), x, y)),
                ("count_from", s.count_from(i as u32)),
                ("add_u32", s.add_u32(x, y)),
                ("mul_u32", s.mul_u32(x, y)),
                ("and_u32", s.and_u32(x, y)),
                ("xor_u32", s.xor_u32(x, y)),
                ("look_up", s.look_up(&TABLE, s.and_u32(x, s.splat_u32(0x0f0f_0f0f)))),
                ("shift_left", s.shift_left::<13>(x)),
                ("shift_right", s.shift_right::<3>(x)),
                ("to_f32", s.bits(s.to_f32(x))),
                ("bf16", s.bits(rounded)),
                ("load_i8", s.bits(bytes)),
            ];
            found.resize(results.len(), ("", [0; N])); // the first time
            for (place, (name, vector)) in found.iter_mut().zip(results) {
                place.0 = name;
                // SAFETY: vectors divide 16.
                unsafe { s.store_u32(place.1[i..].as_mut_ptr(), vector) };
            }
        }
        found.push(("any", [u32::from(any); N]));
        found
    }
}

#[test]
fn all_sets_give_the_same_bits() {
    let mut state = 1_u64;
    let mut number = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let bits = (state >> 32) as u32;
        // Numbers of all sizes but subnormal ones, which `vcvtneps2bf16` takes for zero; every eighth is special.
        let special =
            [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, 0.0, 1.003_906_3, 1.011_718_8, 3.389_531_4e38];
        if bits.is_multiple_of(8) {
            special[bits as usize / 8 % 8]
        } else {
            f32::from_bits(bits & 0xbfff_ffff | 1 << 29)
        }
    };
    // NaNs may differ in what they carry.
    let bits = |x: &u32| if f32::from_bits(*x).is_nan() { f32::NAN.to_bits() } else { *x };
    for _ in 0..2000 {
        let mut numbers = [[0.0; N]; 3];
        numbers.as_flattened_mut().iter_mut().for_each(|x| *x = number());
        let expected = portably(All(numbers));
        for isa in Isa::available() {
            let found = dispatch(Supported::new(isa).unwrap(), All(numbers));
            for ((name, found), (_, expected)) in found.iter().zip(&expected) {
                let (found, expected): (Vec<_>, Vec<_>) =
                    (found.iter().map(bits).collect(), expected.iter().map(bits).collect());
                assert_eq!(found, expected, "{isa}: {name} of {numbers:?}");
            }
        }
    }
}
