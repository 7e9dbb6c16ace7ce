//! Floating-point numbers of a sign, four bits of exponent and three of mantissa (E4M3): finite ones up to 448, and one that is none.

/// The largest.
pub(super) const LARGEST: f32 = 448.0;

/// The number that a code is; exact.
#[must_use]
pub fn of_e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let size = match exponent {
        0 => mantissa / 512.0,
        _ => (1.0 + mantissa / 8.0) * f32::from_bits(((exponent - 7 + 127) as u32) << 23),
    };
    match code & 0x7F {
        0x7F => f32::NAN,
        _ if code >= 0x80 => -size,
        _ => size,
    }
}

/// The code nearest to a finite `x`, of two the one with an even mantissa; what is larger than all becomes the largest.
#[must_use]
pub fn to_e4m3(x: f32) -> u8 {
    let sign = (x.to_bits() >> 24) as u8 & 0x80;
    let size = x.abs().min(LARGEST);
    // Eighths of a power of two; below 2^-6 all are as far apart.
    let exponent = ((size.to_bits() >> 23) as i32 - 127).max(-6);
    let eighths = (size * 2f32.powi(3 - exponent)).round_ties_even() as u8;
    // 16 of them are 8 of the next power, and the code says so.
    sign | ((((exponent + 7) as u8) << 3) + eighths - 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_their_numbers_and_the_other_way_round() {
        for (code, number) in [
            (0x00, 0.0),
            (0x01, 2f32.powi(-9)),
            (0x08, 2f32.powi(-6)),
            (0x38, 1.0),
            (0xBC, -1.5),
            (0x7E, LARGEST),
        ] {
            assert_eq!(of_e4m3(code), number, "{code:#x}");
        }
        assert!(of_e4m3(0xFF).is_nan());
        let finite = || (0..=255_u8).filter(|code| code & 0x7F != 0x7F);
        for code in finite() {
            assert_eq!(to_e4m3(of_e4m3(code)), code, "{code:#x}");
        }
        assert_eq!((to_e4m3(1e9), to_e4m3(-460.0)), (0x7E, 0xFE));
        // Between two: the nearer one, and of two that are as near the even one.
        for code in 0..0x7E {
            let (low, high) = (of_e4m3(code), of_e4m3(code + 1));
            let (middle, even) = (f32::midpoint(low, high), code + code % 2);
            for sign in [1.0, -1.0] {
                let of = |x: f32| to_e4m3(sign * x) & 0x7F;
                assert_eq!(of(middle), even, "{middle}");
                assert_eq!((of(middle.next_down()), of(middle.next_up())), (code, code + 1), "{middle}");
            }
        }
    }
}
