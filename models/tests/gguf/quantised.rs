//! Every format of blocks, widened as candle and so ggml widens it.

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use faser_kernels::{Blocks, Source};

const FORMATS: [(Blocks, GgmlDType); 10] = [
    (Blocks::Q4_0, GgmlDType::Q4_0),
    (Blocks::Q4_1, GgmlDType::Q4_1),
    (Blocks::Q5_0, GgmlDType::Q5_0),
    (Blocks::Q5_1, GgmlDType::Q5_1),
    (Blocks::Q8_0, GgmlDType::Q8_0),
    (Blocks::Q2K, GgmlDType::Q2K),
    (Blocks::Q3K, GgmlDType::Q3K),
    (Blocks::Q4K, GgmlDType::Q4K),
    (Blocks::Q5K, GgmlDType::Q5K),
    (Blocks::Q6K, GgmlDType::Q6K),
];

/// Numbers of a magnitude that differs from block to block.
fn numbers(count: usize) -> Vec<f32> {
    let mut state = 12345_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.45
    };
    (0..count).map(|i| next() * (1 + i / 64 % 7) as f32).collect()
}

#[test]
fn blocks_are_what_candle_makes_of_them() {
    let values = numbers(6 * 512);
    let tensor = Tensor::from_slice(&values, (6, 512), &Device::Cpu).unwrap();
    for (blocks, format) in FORMATS {
        assert_eq!(
            (blocks.numbers(), blocks.bytes()),
            (format.block_size(), format.type_size()),
            "{format:?}"
        );
        let quantised = QTensor::quantize(&tensor, format).unwrap();
        let bytes = quantised.data().unwrap();
        let expected: Vec<f32> =
            quantised.dequantize(&Device::Cpu).unwrap().flatten_all().unwrap().to_vec1().unwrap();
        let source = Source::Blocks(blocks, &bytes);
        assert_eq!(source.len(), values.len(), "{format:?}");
        let mut found = vec![0.0; values.len()];
        source.read_f32(0, &mut found);
        assert_eq!(found, expected, "{format:?}");
        // From any place, of any length.
        for (from, count) in [(1, 1), (31, 2), (250, 300), (511, 513), (3071, 1)] {
            let mut part = vec![0.0; count];
            source.read_f32(from, &mut part);
            assert_eq!(part, expected[from..from + count], "{format:?} {from}");
        }
        assert_eq!(source.first_not_finite(), None);
    }
}

#[test]
fn a_scale_that_is_no_number_is_found_in_every_format() {
    for (blocks, format) in FORMATS {
        let tensor = Tensor::from_slice(&numbers(1024), (2, 512), &Device::Cpu).unwrap();
        let quantised = QTensor::quantize(&tensor, format).unwrap();
        let mut bytes = quantised.data().unwrap().to_vec();
        let last = bytes.len() - blocks.bytes();
        let finite = |bytes: &[u8]| {
            let source = Source::Blocks(blocks, bytes);
            let mut all = vec![0.0; source.len()];
            source.read_f32(0, &mut all);
            (source.first_not_finite().is_none(), all.iter().all(|x| x.is_finite()))
        };
        let mut found = 0;
        for at in last..bytes.len() - 1 {
            let kept = [bytes[at], bytes[at + 1]];
            // Infinity in f16, if that is what these bytes are.
            bytes[at..at + 2].copy_from_slice(&[0x00, 0x7c]);
            let (said, is) = finite(&bytes);
            assert!(is || !said, "{format:?}: bytes {at}");
            found += usize::from(!said);
            bytes[at..at + 2].copy_from_slice(&kept);
        }
        assert!((1..=2).contains(&found), "{format:?}: {found}");
    }
}
