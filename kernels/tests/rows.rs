//! The ops that go row by row, against f64: embed, gather_rows, rms_norm, rope, activate, soft_cap.

#[path = "../gpu-check/src/ops/reference.rs"]
mod reference;

use faser_kernels::ops::{
    Activation, Write, activate, embed, gather_rows, matmul, rms_norm, rms_norm_heads, rope, sample, soft_cap,
};
use faser_kernels::{
    Dtype, Isa, Lane, Matrix, RopeScaling, RopeSpec, RopeTable, Source, Table, Tensor, Vector, View,
};
use reference::{Random, bf16, bits, close, lane, on_each_isa};

/// Shapes around the widths of vectors, and one that helpers share.
const SHAPES: [(usize, usize); 6] = [(1, 1), (2, 15), (3, 16), (5, 37), (9, 128), (64, 1000)];

#[test]
fn embed_looks_up_rows_in_both_types() {
    let mut random = Random::new(1);
    let values = random.numbers(50 * 21);
    for dtype in [Dtype::F32, Dtype::Bf16] {
        let table = Table::new(21, Source::F32(&values), dtype).unwrap();
        assert_eq!((table.rows(), table.cols(), table.bytes()), (50, 21, (50 * 21 * dtype.bytes()) as u64));
        let mut out = Tensor::zeros(3, 21);
        embed(&lane(Isa::Portable, 1), &table, &[7, 49, 7], 1.0, out.view_mut(3));
        for (r, token) in [7, 49, 7].into_iter().enumerate() {
            let row = values[token * 21..(token + 1) * 21].iter();
            let expected: Vec<f32> = row.map(|x| if dtype == Dtype::F32 { *x } else { bf16(*x) }).collect();
            assert_eq!(out.row(r), expected);
        }
    }
}

#[test]
#[should_panic(expected = "token 50 of a vocabulary of 50")]
fn embed_refuses_a_token_beyond_the_vocabulary() {
    let table = Table::new(2, Source::F32(&[0.0; 100]), Dtype::F32).unwrap();
    embed(&lane(Isa::Portable, 1), &table, &[50], 1.0, Tensor::zeros(1, 2).view_mut(1));
}

#[test]
fn gather_compacts_rows() {
    let x = Random::new(2).tensor(40, 1000);
    let indices: Vec<u32> = (0..30).map(|i| i * 7 % 40).collect();
    let mut out = Tensor::zeros(30, 1000);
    gather_rows(&lane(Isa::Portable, 2), x.view(40), &indices, out.view_mut(30));
    for (r, index) in indices.iter().enumerate() {
        assert_eq!(out.row(r), x.row(*index as usize));
    }
}

fn normed(lane: &Lane, x: View<'_>, weight: &Vector, eps: f32) -> Tensor {
    let mut out = Tensor::zeros(x.rows(), x.cols());
    rms_norm(lane, x, weight, eps, out.view_mut(x.rows()), Write::Replace);
    out
}

#[test]
fn rms_norm_agrees_with_f64() {
    on_each_isa(|isa| {
        for (rows, cols) in SHAPES {
            let mut random = Random::new(cols as u64);
            let (x, weight) = (random.tensor(rows, cols), random.numbers(cols));
            let out = normed(&lane(isa, 2), x.view(rows), &Vector::new(Source::F32(&weight)), 1e-5);
            for r in 0..rows {
                let mean = x.row(r).iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / cols as f64;
                for (i, weight) in weight.iter().enumerate() {
                    let expected = f64::from(x.row(r)[i]) / (mean + 1e-5).sqrt() * f64::from(*weight);
                    close(out.row(r)[i], expected, expected.abs(), 1e-6, &format!("{isa} {rows}x{cols}"));
                }
            }
        }
    });
}

#[test]
fn rms_norm_heads_is_rms_norm_of_each_head() {
    on_each_isa(|isa| {
        let mut random = Random::new(9);
        let (x, weight) = (random.tensor(7, 5 * 24), Vector::new(Source::F32(&random.numbers(24))));
        let mut heads =
            Tensor::from_rows(5 * 24, &(0..7).flat_map(|r| x.row(r).to_vec()).collect::<Vec<_>>());
        let lane = lane(isa, 2);
        rms_norm_heads(&lane, heads.view_mut(7), &weight, 1e-6);
        for head in 0..5 {
            let alone = normed(&lane, x.view(7).columns(head * 24..(head + 1) * 24), &weight, 1e-6);
            for r in 0..7 {
                assert_eq!(heads.row(r)[head * 24..(head + 1) * 24], *alone.row(r), "{isa}");
            }
        }
    });
}

#[test]
fn rope_rotates_each_head_and_leaves_other_columns_alone() {
    let spec = RopeSpec {
        head_dim: 36,
        rotated: 36,
        theta: 10_000.0,
        scaling: RopeScaling::None,
        max_positions: 3000,
    };
    let table = RopeTable::new(&spec).unwrap();
    on_each_isa(|isa| {
        let x = Random::new(3).tensor(40, 3 * 36 + 10);
        let mut out = Tensor::from_rows(118, &(0..40).flat_map(|r| x.row(r).to_vec()).collect::<Vec<_>>());
        let positions: Vec<u32> = (0..40).map(|r| r * 73).collect();
        rope(&lane(isa, 2), out.view_mut(40).columns(0..108), &positions, &table);
        for (r, position) in positions.iter().enumerate() {
            assert_eq!(out.row(r)[108..], x.row(r)[108..]);
            for i in 0..108 {
                let (head, j) = (i / 36 * 36, i % 18);
                let frequency = 1.0 / 10_000f64.powf(2.0 * j as f64 / 36.0);
                let (sin, cos) = (f64::from(*position) * frequency).sin_cos();
                let (a, b) = (f64::from(x.row(r)[head + j]), f64::from(x.row(r)[head + j + 18]));
                let expected = if i % 36 < 18 { a * cos - b * sin } else { b * cos + a * sin };
                // Angles are f32 products, as in the reference implementations: their error grows with the position.
                close(out.row(r)[i], expected, 1.0, 4e-4, &format!("{isa} row {r} column {i}"));
            }
        }
    });
}

/// The functions as they are defined, of a number and of what multiplies it.
fn activation(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
            x / (1.0 + (-2.0 * u).exp())
        }
        // 1 - Phi by its continued fraction, Phi near 0 by its series.
        Activation::Gelu => {
            let z = x.abs();
            let density = (-z * z / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
            let tail = if z > 3.0 {
                density / (1..200).rev().fold(z, |f, k| z + f64::from(k) / f)
            } else {
                let (series, _) = (1..100).fold((z, z), |(sum, term), k| {
                    let next = term * z * z / f64::from(2 * k + 1);
                    (sum + next, next)
                });
                0.5 - density * series
            };
            x * if x > 0.0 { 1.0 - tail } else { tail }
        }
        Activation::ReluSquared => x.max(0.0).powi(2),
        Activation::SwigluOai => x.min(7.0) / (1.0 + (-1.702 * x.min(7.0)).exp()),
    }
}

/// What its value is multiplied by.
fn gated_by(activation: Activation, up: f64) -> f64 {
    if activation == Activation::SwigluOai { up.clamp(-7.0, 7.0) + 1.0 } else { up }
}

#[test]
fn activations_agree_with_f64_gated_and_plain() {
    for one in Activation::ALL {
        on_each_isa(|isa| {
            for (rows, cols) in SHAPES {
                let mut random = Random::new(cols as u64 + 1);
                let size = match one {
                    Activation::Silu => 30.0,
                    Activation::SwigluOai => 12.0,
                    _ => 6.0,
                };
                let values: Vec<f32> = random.numbers(rows * 2 * cols).iter().map(|x| x * size).collect();
                let x = Tensor::from_rows(2 * cols, &values);
                let (mut gated, mut plain) = (Tensor::zeros(rows, cols), Tensor::zeros(rows, 2 * cols));
                activate(&lane(isa, 2), x.view(rows), one, gated.view_mut(rows));
                activate(&lane(isa, 2), x.view(rows), one, plain.view_mut(rows));
                // The exponential's argument is a square: its rounding counts where it is large.
                let tolerance = if one == Activation::Silu { 1e-6 } else { 1e-5 };
                for r in 0..rows {
                    let what = format!("{isa} {one:?} {rows}x{cols}");
                    for i in 0..2 * cols {
                        let expected = activation(one, f64::from(x.row(r)[i]));
                        close(plain.row(r)[i], expected, expected.abs(), tolerance, &what);
                        if i < cols {
                            let expected = expected * gated_by(one, f64::from(x.row(r)[cols + i]));
                            close(gated.row(r)[i], expected, expected.abs(), tolerance, &what);
                        }
                    }
                }
            }
        });
    }
}

#[test]
fn activations_are_finite_at_the_ends() {
    let x = Tensor::from_rows(8, &[-1e30, -200.0, 200.0, 1e30, 1.0, 1.0, 1.0, 1.0]);
    for one in Activation::ALL {
        on_each_isa(|isa| {
            let mut out = Tensor::zeros(1, 4);
            activate(&lane(isa, 1), x.view(1), one, out.view_mut(1));
            let expected = match one {
                Activation::ReluSquared => [4e4, f32::INFINITY],
                // Twice what is clamped: its `up` is 1, and 1 more.
                Activation::SwigluOai => [2.0 * activation(one, 7.0) as f32; 2],
                _ => [200.0, 1e30],
            };
            assert_eq!(out.row(0)[2..], expected, "{isa} {one:?}");
            assert!(
                out.row(0)[1].abs() < 1e-30 && out.row(0)[0].is_finite(),
                "{isa} {one:?} {:?}",
                out.row(0)
            );
        });
    }
}

#[test]
fn soft_caps_agree_with_f64() {
    on_each_isa(|isa| {
        for (rows, cols) in SHAPES {
            let mut random = Random::new(cols as u64 + 3);
            let values: Vec<f32> = random.numbers(rows * cols).iter().map(|x| x * 90.0).collect();
            let mut x = Tensor::from_rows(cols, &values);
            soft_cap(&lane(isa, 2), x.view_mut(rows), 30.0);
            for (found, value) in (0..rows).flat_map(|r| x.row(r)).zip(&values) {
                let expected = 30.0 * (f64::from(*value) / 30.0).tanh();
                close(*found, expected, expected.abs(), 1e-6, &format!("{isa} {value}"));
            }
        }
    });
}

#[test]
fn a_norm_that_is_added_is_the_norm() {
    on_each_isa(|isa| {
        let mut random = Random::new(21);
        let (x, before) = (random.tensor(9, 301), random.tensor(9, 301));
        let weight = Vector::new(Source::F32(&random.numbers(301)));
        let mut sum = Tensor::zeros(9, 301);
        (0..9).for_each(|r| sum.row_mut(r).copy_from_slice(before.row(r)));
        let normal = normed(&lane(isa, 2), x.view(9), &weight, 1e-5);
        rms_norm(&lane(isa, 2), x.view(9), &weight, 1e-5, sum.view_mut(9), Write::Add);
        for r in 0..9 {
            for (i, sum) in sum.row(r).iter().enumerate() {
                assert_eq!(*sum, before.row(r)[i] + normal.row(r)[i], "{isa}");
            }
        }
    });
}

#[test]
fn a_pass_may_want_no_rows_of_an_op() {
    // The LM head of a pass that only fills KV.
    let (x, mut out) = (Tensor::zeros(4, 8), Tensor::zeros(4, 8));
    let matrix = Matrix::pack(8, &[Source::F32(&[1.0; 64])], Dtype::F32).unwrap();
    on_each_isa(|isa| {
        let lane = lane(isa, 2);
        gather_rows(&lane, x.view(4), &[], out.view_mut(0));
        matmul(&lane, x.view(0), &matrix, None, out.view_mut(0), Write::Replace);
        normed(&lane, x.view(0), &Vector::new(Source::F32(&[1.0; 8])), 1e-5);
        sample(&lane, out.view(0), &[], &mut []);
    });
}

#[test]
fn rows_have_the_same_bits_alone_and_together() {
    on_each_isa(|isa| {
        let mut random = Random::new(12);
        let (x, weight) = (random.tensor(64, 1000), Vector::new(Source::F32(&random.numbers(1000))));
        let gates = random.tensor(64, 2000);
        let (several, mut activated) = (lane(isa, 3), Tensor::zeros(64, 1000));
        let norms = normed(&several, x.view(64), &weight, 1e-5);
        activate(&several, gates.view(64), Activation::Gelu, activated.view_mut(64));
        let one = lane(isa, 1);
        for r in 0..64 {
            let mut out = normed(&one, Tensor::from_rows(1000, x.row(r)).view(1), &weight, 1e-5);
            assert_eq!(bits(&out, 1)[0], bits(&norms, 64)[r], "{isa}");
            activate(&one, Tensor::from_rows(2000, gates.row(r)).view(1), Activation::Gelu, out.view_mut(1));
            assert_eq!(bits(&out, 1)[0], bits(&activated, 64)[r], "{isa}");
        }
    });
}
