//! int8 weights: whole numbers exact, all instruction sets agreeing, and how far the rounding is from f64.

#[path = "../gpu-check/src/ops/reference.rs"]
mod reference;
mod whole_numbers;

use faser_kernels::ops::{Write, matmul};
use faser_kernels::{Dtype, Isa, Matrix, Source, Tensor, Vector};
use proptest::prelude::*;
use reference::{Random, bits, lane, on_each_isa, product};
use whole_numbers::{BLOCK, Whole, normal, one_of_them_is_not_finite, relative_error};

/// What the kernels promise for a row and an output, in scalar arithmetic with dot products in i64.
fn promised(x: &Whole, row: usize, w: &Whole, output: usize) -> f32 {
    x.blocks(row).zip(w.blocks(output)).fold(0.0, |sum, ((x, x_scale), (w, w_scale))| {
        let dot: i64 = x.iter().zip(w).map(|(x, w)| x * w).sum();
        (dot as f32).mul_add(w_scale * x_scale, sum)
    })
}

#[test]
fn dot_products_of_whole_numbers_are_exact() {
    for (rows, inputs, outputs) in
        [(1, 1, 1), (2, 31, 33), (3, 32, 64), (5, 33, 31), (9, 64, 70), (17, 200, 130), (6, 2048, 40)]
    {
        let random = &mut Random::new((rows * inputs * outputs) as u64);
        let (x, w) = (Whole::new(random, rows, inputs), Whole::new(random, outputs, inputs));
        let matrix = Matrix::pack(inputs, &[Source::F32(&w.values())], Dtype::Int8).unwrap();
        let activations = Tensor::from_rows(inputs, &x.values());
        on_each_isa(|isa| {
            let out = product(&lane(isa, 2), activations.view(rows), &matrix);
            for r in 0..rows {
                for (o, found) in out.row(r).iter().enumerate() {
                    let promised = promised(&x, r, &w, o);
                    assert_eq!(
                        found.to_bits(),
                        promised.to_bits(),
                        "{isa} {rows}x{inputs}x{outputs} {r} {o}"
                    );
                }
            }
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn all_instruction_sets_give_the_same_bits(
        rows in 1usize..=64, inputs in 1usize..500, outputs in 1usize..200, workers in 1usize..=3, seed in any::<u64>(),
        add in any::<bool>(), size in -30i32..30,
    ) {
        let mut random = Random::new(seed);
        let size = 2f32.powi(size);
        let values: Vec<f32> = random.numbers(rows * inputs).iter().map(|x| x.powi(5) * size).collect();
        let x = Tensor::from_rows(inputs, &values);
        let matrix = Matrix::pack(inputs, &[Source::F32(&random.numbers(outputs * inputs))], Dtype::Int8).unwrap();
        let bias = Vector::new(Source::F32(&random.numbers(outputs)));
        let old = random.tensor(rows, outputs);
        let write = if add { Write::Add } else { Write::Replace };
        let of = |isa, workers| {
            let mut out = Tensor::zeros(rows, outputs);
            (0..rows).for_each(|r| out.row_mut(r).copy_from_slice(old.row(r)));
            matmul(&lane(isa, workers), x.view(rows), &matrix, Some(&bias), out.view_mut(rows), write);
            bits(&out, rows)
        };
        let portable = of(Isa::Portable, 1);
        for isa in Isa::available() {
            prop_assert_eq!(&of(isa, workers), &portable, "{}", isa);
        }
    }
}

/// The largest of 32 normal numbers is about 2.1 to 2.6 standard deviations, so a step is 1/50 of one and rounding is off by
/// 1/50/sqrt(12) = 0.6 %; both factors are rounded, independently: 0.8 % of a product, and of a sum of products.
#[test]
fn the_rms_error_of_a_product_is_below_one_percent() {
    let random = &mut Random::new(3);
    let (rows, inputs, outputs) = (32, 1024, 256);
    let mut numbers = |count: usize| (0..count).map(|_| normal(random)).collect::<Vec<f32>>();
    let (values, w) = (numbers(rows * inputs), numbers(outputs * inputs));
    let matrix = Matrix::pack(inputs, &[Source::F32(&w)], Dtype::Int8).unwrap();
    let x = Tensor::from_rows(inputs, &values);
    let relative = relative_error(&x, rows, &matrix, &w);
    println!("relative RMS error of int8: {relative:.4}");
    assert!((0.002..0.01).contains(&relative), "{relative}");
}

#[test]
fn an_outlier_costs_digits_in_its_own_block_alone() {
    let (inputs, outputs) = (256, 40);
    let random = &mut Random::new(4);
    let w = random.numbers(outputs * inputs);
    let mut x = random.numbers(inputs);
    x[100] = 1000.0;
    let matrix = Matrix::pack(inputs, &[Source::F32(&w)], Dtype::Int8).unwrap();
    // Without the outlier's block: what it lost is not in here.
    let without: Vec<f32> = (0..inputs).map(|i| if i / BLOCK == 3 { 0.0 } else { x[i] }).collect();
    let rows = Tensor::from_rows(inputs, &[without.clone(), x].concat());
    let out = product(&lane(Isa::detect(), 1), rows.view(2), &matrix);
    for o in 0..outputs {
        let exact: f32 = without.iter().zip(&w[o * inputs..]).map(|(x, w)| x * w).sum();
        assert!((out.row(0)[o] - exact).abs() < 0.3, "{} {exact}", out.row(0)[o]);
        let outlier = 1000.0 * w[o * inputs + 100];
        // Half a step of 1000/127 for each of 31 weights up to 1, and half a step of the outlier's own weight.
        assert!((out.row(1)[o] - out.row(0)[o] - outlier).abs() < 31.0 * 4.5 + 5.0);
    }
}

#[test]
fn rows_that_are_not_finite_stay_so_and_harm_no_other() {
    let (inputs, outputs) = (70, 40);
    let random = &mut Random::new(5);
    let matrix =
        Matrix::pack(inputs, &[Source::F32(&random.numbers(outputs * inputs))], Dtype::Int8).unwrap();
    let good = random.numbers(inputs);
    on_each_isa(|isa| {
        let lane = lane(isa, 1);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, 31, 40, 69] {
                one_of_them_is_not_finite(&lane, &matrix, &good, (bad, at));
            }
        }
        // Activations too small to have an inverse, and none at all.
        let x = Tensor::from_rows(inputs, &[vec![1e-40; inputs], vec![0.0; inputs]].concat());
        let out = product(&lane, x.view(2), &matrix);
        assert!(out.row(0).iter().chain(out.row(1)).all(|y| *y == 0.0), "{isa}");
    });
}

#[test]
fn a_weight_takes_a_byte_and_a_sixteenth() {
    let matrix = Matrix::pack(2048, &[Source::F32(&vec![0.5; 2048 * 64])], Dtype::Int8).unwrap();
    assert_eq!((matrix.dtype(), matrix.bytes()), (Dtype::Int8, 2048 * 64 / 32 * 34));
    assert_eq!(Matrix::packed_bytes(33, 65, Dtype::Int8), 64 * 2 * 68);
}
