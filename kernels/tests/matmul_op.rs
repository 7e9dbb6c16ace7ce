//! matmul against f64, and the same bits whatever the rows, workers and strides.

#[path = "../gpu-check/src/ops/reference.rs"]
mod reference;

use faser_kernels::ops::{
    Activation, Groups, Norm, Routing, Write, activate, matmul, matmul_activated, matmul_experts,
    matmul_experts_activated, matmul_normed, rms_norm, route, sum_experts,
};
use faser_kernels::{Dtype, Isa, Matrix, Source, Tensor, Vector};
use half::{bf16, f16};
use proptest::prelude::*;
use reference::{Random, bf16 as rounded_to_bf16, bits, close, lane, on_each_isa, product};

/// bf16 weights are rounded at packing; activations only where the instruction needs it.
fn rounded(isa: Isa, dtype: Dtype, x: f32, weight: bool) -> f64 {
    let round = dtype == Dtype::Bf16 && (weight || matches!(isa, Isa::Amx | Isa::Avx512Bf16));
    f64::from(if round { rounded_to_bf16(x) } else { x })
}

#[test]
fn it_agrees_with_f64() {
    let shapes = [
        (1, 1, 1),
        (3, 5, 7),
        (2, 64, 64),
        (5, 33, 31),
        (13, 100, 47),
        (17, 96, 200),
        (50, 40, 65),
        (7, 513, 129),
    ];
    on_each_isa(|isa| {
        for (rows, inputs, outputs) in shapes {
            for dtype in [Dtype::F32, Dtype::Bf16] {
                for (with_bias, write) in
                    [(false, Write::Replace), (true, Write::Replace), (true, Write::Add)]
                {
                    let mut random = Random::new((rows * inputs * outputs) as u64);
                    let x = random.tensor(rows, inputs);
                    let w = random.numbers(outputs * inputs);
                    let bias = random.numbers(outputs);
                    let old = random.tensor(rows, outputs);
                    let mut out = Tensor::zeros(rows, outputs);
                    (0..rows).for_each(|r| out.row_mut(r).copy_from_slice(old.row(r)));
                    let matrix = Matrix::pack(inputs, &[Source::F32(&w)], dtype).unwrap();
                    let vector = Vector::new(Source::F32(&bias));
                    let vector = with_bias.then_some(&vector);
                    matmul(&lane(isa, 2), x.view(rows), &matrix, vector, out.view_mut(rows), write);
                    for r in 0..rows {
                        for o in 0..outputs {
                            let products = (0..inputs).map(|k| {
                                rounded(isa, dtype, x.row(r)[k], false)
                                    * rounded(isa, dtype, w[o * inputs + k], true)
                            });
                            let scale: f64 = products.clone().map(f64::abs).sum::<f64>() + 1.0;
                            let mut expected: f64 = products.sum();
                            expected += if with_bias { f64::from(bias[o]) } else { 0.0 };
                            expected += if write == Write::Add { f64::from(old.row(r)[o]) } else { 0.0 };
                            let what = format!("{isa} {dtype} {rows}x{inputs}x{outputs} row {r} output {o}");
                            close(out.row(r)[o], expected, scale, 2e-6, &what);
                        }
                    }
                }
            }
        }
    });
}

#[test]
fn sources_of_all_types_can_be_fused_and_written_to_columns_of_a_wider_tensor() {
    let mut random = Random::new(5);
    let (a, b, c) = (random.numbers(40 * 6), random.numbers(3 * 6), random.numbers(50 * 6));
    let (b16, c16): (Vec<bf16>, Vec<f16>) =
        (b.iter().map(|x| bf16::from_f32(*x)).collect(), c.iter().map(|x| f16::from_f32(*x)).collect());
    let sources = [Source::F32(&a), Source::Bf16(&b16), Source::F16(&c16)];
    let fused = Matrix::pack(6, &sources, Dtype::F32).unwrap();
    let wide = random.tensor(9, 20);
    let mut out = Tensor::zeros(9, 200);
    on_each_isa(|isa| {
        let lane = lane(isa, 2);
        matmul(
            &lane,
            wide.view(9).columns(4..10),
            &fused,
            None,
            out.view_mut(9).columns(100..193),
            Write::Replace,
        );
        let mut first_output = 100;
        for source in sources {
            let alone = Matrix::pack(6, &[source], Dtype::F32).unwrap();
            let apart = product(&lane, wide.view(9).columns(4..10), &alone);
            for r in 0..9 {
                assert_eq!(out.row(r)[first_output..][..alone.out_features()], *apart.row(r), "{isa}");
                assert!(out.row(r)[..100].iter().chain(&out.row(r)[193..]).all(|x| *x == 0.0));
            }
            first_output += alone.out_features();
        }
    });
}

#[test]
fn what_was_computed_before_leaves_no_trace() {
    let mut random = Random::new(6);
    let (x, w) = (random.tensor(17, 33), random.numbers(40 * 33));
    let (nan, old) = (Tensor::from_rows(64, &[f32::NAN; 40 * 64]), random.numbers(40 * 64));
    for dtype in [Dtype::F32, Dtype::Bf16, Dtype::Int8, Dtype::Int4] {
        let matrix = Matrix::pack(33, &[Source::F32(&w)], dtype).unwrap();
        let before = Matrix::pack(64, &[Source::F32(&old)], dtype).unwrap();
        on_each_isa(|isa| {
            // Few rows and many have kernels of their own in some sets.
            for (rows, rows_before) in [(3, 14), (17, 40)] {
                let used = lane(isa, 1);
                // NaN in all of the scratch: an odd last input and padded rows must not meet them.
                product(&used, nan.view(rows_before), &before);
                let actual = product(&used, x.view(rows), &matrix);
                let expected = product(&lane(isa, 1), x.view(rows), &matrix);
                assert_eq!(bits(&actual, rows), bits(&expected, rows), "{isa} {dtype}");
            }
        });
    }
}

#[test]
#[should_panic(expected = "a group without rows")]
fn a_group_of_experts_without_rows_is_refused() {
    let w = Matrix::pack(32, &[Source::F32(&[0.0; 32 * 32])], Dtype::Bf16).unwrap();
    let (x, mut out) = (Tensor::zeros(200, 32), Tensor::zeros(200, 32));
    let rows: Vec<u32> = (0..200).collect();
    let groups = Groups { experts: &[0, 1], starts: &[0, 0, 200], rows: &rows };
    matmul_experts(&lane(Isa::detect(), 1), x.view(200), groups, &|_| (&w, None), out.view_mut(200));
}

#[test]
#[should_panic(expected = "columns of x and inputs of w")]
fn a_wrong_shape_is_refused() {
    let matrix = Matrix::pack(4, &[Source::F32(&[0.0; 8])], Dtype::F32).unwrap();
    let (x, mut out) = (Tensor::zeros(1, 5), Tensor::zeros(1, 2));
    matmul(&lane(Isa::Portable, 1), x.view(1), &matrix, None, out.view_mut(1), Write::Replace);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_row_has_the_same_bits_alone_and_in_any_batch(
        rows in 1usize..=64, inputs in 1usize..150, outputs in 1usize..300, workers in 1usize..=4, seed in any::<u64>(),
        dtype in prop::sample::select(vec![Dtype::F32, Dtype::Bf16, Dtype::Int8, Dtype::Int4]), add in any::<bool>(),
    ) {
        let mut random = Random::new(seed);
        let x = random.tensor(rows, inputs);
        let w = random.numbers(outputs * inputs);
        let matrix = Matrix::pack(inputs, &[Source::F32(&w)], dtype).unwrap();
        let write = if add { Write::Add } else { Write::Replace };
        for isa in Isa::available() {
            let mut batch = Tensor::zeros(rows, outputs);
            matmul(&lane(isa, workers), x.view(rows), &matrix, None, batch.view_mut(rows), write);
            let alone = lane(isa, 1);
            for (r, batched) in bits(&batch, rows).into_iter().enumerate() {
                let mut out = Tensor::zeros(1, outputs);
                let row = Tensor::from_rows(inputs, x.row(r));
                matmul(&alone, row.view(1), &matrix, None, out.view_mut(1), write);
                prop_assert_eq!(&bits(&out, 1)[0], &batched, "{} row {} of {}", isa, r, rows);
            }
        }
    }
}

#[test]
fn every_number_of_rows_gives_the_same_bits_with_enough_work_to_share() {
    // Large enough that helpers join: several strips, and more than one block of rows.
    let (inputs, outputs) = (301, 650);
    let mut random = Random::new(77);
    let x = random.tensor(130, inputs);
    let w = random.numbers(outputs * inputs);
    for dtype in [Dtype::Bf16, Dtype::F32, Dtype::Int8, Dtype::Int4] {
        let matrix = Matrix::pack(inputs, &[Source::F32(&w)], dtype).unwrap();
        on_each_isa(|isa| {
            let mut expected = Tensor::zeros(130, outputs);
            for r in 0..130 {
                let row = Tensor::from_rows(inputs, x.row(r));
                expected.row_mut(r).copy_from_slice(product(&lane(isa, 1), row.view(1), &matrix).row(0));
            }
            for workers in [1, 2, 3] {
                let lane = lane(isa, workers);
                for rows in (1..=64).chain([97, 130]) {
                    let out = product(&lane, x.view(rows), &matrix);
                    assert_eq!(
                        bits(&out, rows),
                        bits(&expected, rows),
                        "{isa} {dtype} {rows} rows, {workers} workers"
                    );
                }
            }
        });
    }
}

#[test]
fn a_norm_before_it_and_an_activation_behind_it_are_those_of_their_ops() {
    // Strips whole and not, with and without gates, alone and shared; rows of one block and of several.
    let shapes = [(64, 256, false), (300, 256, true), (301, 45, true), (301, 100, false), (130, 640, true)];
    for (inputs, width, gated) in shapes {
        let outputs = if gated { 2 * width } else { width };
        let mut random = Random::new((inputs * width) as u64);
        let (x, w) = (random.tensor(70, inputs), random.numbers(outputs * inputs));
        let (weight, bias) = (random.numbers(inputs), random.numbers(outputs));
        let [weight, bias] = [&weight, &bias].map(|numbers| Vector::new(Source::F32(numbers)));
        for dtype in [Dtype::Bf16, Dtype::F32, Dtype::Int8, Dtype::Int4] {
            let matrix = Matrix::pack(inputs, &[Source::F32(&w)], dtype).unwrap();
            on_each_isa(|isa| {
                for (rows, workers) in [(1, 1), (5, 2), (17, 2), (70, 3)] {
                    let lane = lane(isa, workers);
                    let what = format!("{isa} {dtype} {rows} rows, {inputs} to {outputs}");
                    let x = x.view(rows);
                    let (mut normed, mut projected) =
                        (Tensor::zeros(rows, inputs), Tensor::zeros(rows, outputs));
                    let mut activated = Tensor::zeros(rows, width);
                    rms_norm(&lane, x, &weight, 1e-5, normed.view_mut(rows), Write::Replace);
                    let to = projected.view_mut(rows);
                    matmul(&lane, normed.view(rows), &matrix, Some(&bias), to, Write::Replace);
                    activate(&lane, projected.view(rows), Activation::Silu, activated.view_mut(rows));

                    let norm = Some(Norm { weight: &weight, eps: 1e-5 });
                    let mut out = Tensor::zeros(rows, outputs);
                    matmul_normed(&lane, x, norm, &matrix, Some(&bias), out.view_mut(rows));
                    assert_eq!(bits(&out, rows), bits(&projected, rows), "{what}");
                    let (mut between, mut out) = (Tensor::zeros(rows, outputs), Tensor::zeros(rows, width));
                    let (to, then) = (between.view_mut(rows), (Activation::Silu, out.view_mut(rows)));
                    matmul_activated(&lane, x, norm, &matrix, Some(&bias), to, then);
                    assert_eq!(bits(&out, rows), bits(&activated, rows), "{what}");
                    let (to, then) = (between.view_mut(rows), (Activation::Silu, out.view_mut(rows)));
                    matmul_activated(&lane, normed.view(rows), None, &matrix, Some(&bias), to, then);
                    assert_eq!(bits(&out, rows), bits(&activated, rows), "{what}, without a norm");
                }
            });
        }
    }
}

#[test]
fn rows_of_experts_are_those_of_each_experts_matmul_and_their_sums_those_of_a_row_alone() {
    const EXPERTS: usize = 5;
    // Strips whole and not; experts without rows, with one, and with more than one block and slab of them.
    for (rows, active, width, favoured) in [(1, 2, 64, 0), (7, 3, 40, 1), (9, 5, 128, 0), (150, 2, 64, 150)] {
        let inputs = 70;
        let mut random = Random::new((rows * width) as u64);
        let x = random.tensor(rows, inputs);
        let mut logits = random.tensor(rows, EXPERTS);
        (0..favoured).for_each(|row| logits.row_mut(row)[3] = 9.0);
        for dtype in [Dtype::Bf16, Dtype::F32, Dtype::Int8, Dtype::Int4] {
            let mut matrices = |outputs: usize, inputs: usize| -> Vec<Matrix> {
                let mut made =
                    || Matrix::pack(inputs, &[Source::F32(&random.numbers(outputs * inputs))], dtype);
                (0..EXPERTS).map(|_| made().unwrap()).collect()
            };
            let (up, down) = (matrices(2 * width, inputs), matrices(inputs, width));
            let mut biases = |outputs: usize| -> Vec<Vector> {
                (0..EXPERTS).map(|_| Vector::new(Source::F32(&random.numbers(outputs)))).collect()
            };
            let (up_bias, down_bias) = (biases(2 * width), biases(inputs));
            let biased = |lane: &_, x: &Tensor, w: &Matrix, bias: &Vector| {
                let mut out = Tensor::zeros(1, w.out_features());
                matmul(lane, x.view(1), w, Some(bias), out.view_mut(1), Write::Replace);
                out
            };
            // What comes of some rows, in batches of so many.
            let run = |isa, workers, x: &Tensor, logits: &Tensor, rows: usize, most: usize| {
                let lane = lane(isa, workers);
                let mut routing = Routing::new(rows, EXPERTS, active);
                route(&lane, logits.view(rows), true, &mut routing);
                let mut out = Tensor::zeros(rows, inputs);
                let mut write = Write::Replace;
                for groups in routing.batches(most) {
                    let n = groups.len();
                    let (mut between, mut activated, mut back) =
                        (Tensor::zeros(n, 2 * width), Tensor::zeros(n, width), Tensor::zeros(n, inputs));
                    let to = (Activation::Silu, activated.view_mut(n));
                    matmul_experts_activated(
                        &lane,
                        x.view(rows),
                        groups,
                        &|e| (&up[e], Some(&up_bias[e])),
                        between.view_mut(n),
                        to,
                    );
                    matmul_experts(
                        &lane,
                        activated.view(n),
                        groups,
                        &|e| (&down[e], Some(&down_bias[e])),
                        back.view_mut(n),
                    );
                    for (place, row) in groups.rows.iter().enumerate() {
                        let starts =
                            groups.starts.iter().take_while(|s| **s - groups.starts[0] <= place as u32);
                        let expert = groups.experts[starts.count() - 1] as usize;
                        let row = Tensor::from_rows(inputs, x.row(*row as usize));
                        let mut alone = Tensor::zeros(1, width);
                        let product_of_row = biased(&lane, &row, &up[expert], &up_bias[expert]);
                        activate(&lane, product_of_row.view(1), Activation::Silu, alone.view_mut(1));
                        assert_eq!(bits(&alone, 1)[0], bits(&activated, n)[place], "{isa} {dtype} {place}");
                        let alone = biased(&lane, &alone, &down[expert], &down_bias[expert]);
                        assert_eq!(bits(&alone, 1)[0], bits(&back, n)[place], "{isa} {dtype} {place}");
                    }
                    sum_experts(&lane, back.view(n), groups, &routing, out.view_mut(rows), write);
                    write = Write::Add;
                }
                bits(&out, rows)
            };
            on_each_isa(|isa| {
                let whole = run(isa, 1, &x, &logits, rows, usize::MAX);
                assert!(whole.iter().flatten().any(|sum| *sum != 0));
                for (workers, most) in [(2, usize::MAX), (3, 1), (2, rows)] {
                    assert_eq!(run(isa, workers, &x, &logits, rows, most), whole, "{isa} {dtype} {most}");
                }
                for row in [0, rows / 2, rows - 1] {
                    let [x, logits] = [&x, &logits].map(|all| Tensor::from_rows(all.cols(), all.row(row)));
                    let alone = run(isa, 1, &x, &logits, 1, usize::MAX);
                    assert_eq!(alone[0], whole[row], "{isa} {dtype} row {row} of {rows}");
                }
            });
        }
    }
}

/// Every test of ops runs on each instruction set that there is; here it is said which there are not.
#[test]
fn instruction_sets_that_are_not_here_are_said() {
    let missing = |isa: &Isa| !isa.is_available();
    for isa in Isa::ALL.into_iter().filter(missing) {
        faser_skipped::skip(&format!("kernels on {isa}"), "this processor has no such instructions");
    }
    assert!(Isa::available().contains(&Isa::Portable));
}
