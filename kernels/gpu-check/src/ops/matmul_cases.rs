//! matmul and score_tokens.

use super::case_bench::Bench;
use super::reference::{Random, bf16, close, lane};
use faser_kernels::cuda::{Element, MatmulArgs, Ptr, ScoreTokensArgs};
use faser_kernels::ops::{Write, matmul, score_tokens, soft_cap};
use faser_kernels::{Dtype, Isa, Matrix, Source, Tensor, Vector, ViewMut};
use std::ops::Range;

/// Numbers that an element holds exactly: what is left is the error of the sum.
fn held(element: Element, numbers: &[f32]) -> Vec<f32> {
    numbers.iter().map(|x| if element == Element::Bf16 { bf16(*x) } else { *x }).collect()
}

struct Case {
    element: Element,
    rows: usize,
    bucket: usize,
    inputs: usize,
    outputs: usize,
    bias: bool,
    add: bool,
}

fn check(bench: &Bench<'_>, case: &Case, order: i32) {
    let Case { element, rows, bucket, inputs, outputs, bias, add } = *case;
    let mut random = Random::new((rows * inputs * outputs) as u64);
    let x = held(element, &random.numbers(rows * inputs));
    let w = held(element, &random.numbers(outputs * inputs));
    let (offsets, before) = (random.numbers(outputs), random.numbers(rows * outputs));
    // The numbers are the same in f32: the CPU's plain op is the judge of both.
    let matrix = Matrix::pack(inputs, &[Source::F32(&w)], Dtype::F32).expect("memory");
    let mut expected = Tensor::from_rows(outputs, &before);
    let vector = Vector::new(Source::F32(&offsets));
    let write = if add { Write::Add } else { Write::Replace };
    matmul(
        &lane(Isa::Portable, 1),
        Tensor::from_rows(inputs, &x).view(rows),
        &matrix,
        bias.then_some(&vector),
        expected.view_mut(rows),
        write,
    );
    // Rows beyond are the bucket's padding: they hold anything.
    let mut padded = x.clone();
    padded.resize(bucket * inputs, f32::NAN);
    let (x, w, out) = (bench.elements(element, &padded), bench.elements(element, &w), bench.floats(&before));
    let args = MatmulArgs {
        x: x.ptr(),
        w: w.ptr(),
        bias: if bias { bench.lasting(&offsets) } else { Ptr::NULL },
        out: out.ptr(),
        rows: bench.count(rows),
        inputs: inputs as u32,
        outputs: outputs as u32,
        add: u32::from(add),
        form: 0,
        ..MatmulArgs::default()
    };
    bench.run(&args.launch(element, bucket as u32, 1), order);
    for r in 0..rows {
        for (o, expected) in expected.row(r).iter().enumerate() {
            let what = format!("{element:?} {rows} of {bucket} rows, {inputs} inputs: row {r} output {o}");
            close(out.read()[r * outputs + o], f64::from(*expected), (inputs as f64).sqrt(), 1e-6, &what);
        }
    }
}

pub(super) fn matmul_is_the_cpus(bench: &Bench<'_>) {
    for order in bench.orders() {
        for (rows, bucket, inputs, outputs) in [
            (1, 1, 32, 16),
            (3, 4, 96, 40),
            (8, 8, 320, 21),
            (5, 16, 64, 5),
            (13, 16, 288, 33),
            (16, 16, 256, 48),
            // More tiles than blocks.
            (3, 8, 64, 300),
        ] {
            for (bias, add) in [(false, false), (true, false), (true, true)] {
                let case = |element| Case { element, rows, bucket, inputs, outputs, bias, add };
                check(bench, &case(Element::Bf16), order);
                check(bench, &case(Element::F32), order);
            }
        }
        // Any number of inputs in f32.
        check(
            bench,
            &Case {
                element: Element::F32,
                rows: 2,
                bucket: 2,
                inputs: 77,
                outputs: 9,
                bias: true,
                add: false,
            },
            order,
        );
    }
}

pub(super) fn a_row_has_the_same_bits_in_any_bucket(bench: &Bench<'_>) {
    // Warps have a step too few, one more than others, several; tiles are split among blocks where there are as many SMs.
    for (inputs, outputs) in [(32, 5), (320, 24), (544, 150), (1344, 260)] {
        let mut random = Random::new(8);
        let (x, w) = (random.numbers(200 * inputs), random.numbers(outputs * inputs));
        let (bias, before) = (bench.lasting(&random.numbers(outputs)), random.numbers(200 * outputs));
        let (parts, tickets) =
            (bench.floats(&vec![f32::NAN; MatmulArgs::SPLITS as usize * 256 * outputs]), {
                bench.words(&vec![0; MatmulArgs::TICKETS as usize])
            });
        let held = bench.elements(Element::Bf16, &w);
        let run = |rows: Range<usize>, bucket: u32, (splits, order): (bool, i32)| {
            let values = &x[rows.start * inputs..rows.end * inputs];
            let mut padded = values.to_vec();
            padded.resize(bucket as usize * inputs, f32::NAN);
            let x = bench.elements(Element::Bf16, &padded);
            let out = bench.floats(&before[rows.start * outputs..rows.end * outputs]);
            let args = MatmulArgs {
                x: x.ptr(),
                w: held.ptr(),
                bias,
                out: out.ptr(),
                rows: bench.count(rows.len()),
                inputs: inputs as u32,
                outputs: outputs as u32,
                add: 1,
                parts: if splits { parts.ptr() } else { Ptr::NULL },
                tickets: tickets.ptr(),
                ..MatmulArgs::default()
            };
            let launch = args.launch(Element::Bf16, bucket, 12);
            assert!(bucket <= 16 || splits == (launch.grid[1] > 1), "{:?} for {bucket} rows", launch.grid);
            bench.run(&launch, order);
            assert!(tickets.read().iter().all(|ticket| *ticket == 0), "a ticket stays taken");
            out.read()
        };
        let few = run(0..16, 16, (false, 0));
        for r in 0..16 {
            let alone = run(r..r + 1, 1, (false, 0));
            assert_eq!(alone, few[r * outputs..(r + 1) * outputs], "{inputs} inputs, row {r}");
        }
        for (turn, (rows, bucket)) in [(17, 32), (33, 48), (100, 128), (129, 192), (200, 256)]
            .into_iter()
            .flat_map(|rows| [(false, rows), (true, rows)])
            .enumerate()
            .map(|(turn, (splits, rows))| ((splits, bench.order(turn)), rows))
        {
            let many = run(0..rows, bucket, turn);
            assert_eq!(many[..16 * outputs], few, "{inputs} inputs, among {rows}");
            for last in [rows - 1, rows - 9] {
                let alone = run(last..last + 1, 8, (false, 0));
                assert_eq!(
                    many[last * outputs..(last + 1) * outputs],
                    alone,
                    "{inputs} inputs, {last} of {rows}"
                );
            }
        }
    }
}

pub(super) fn score_tokens_is_the_cpus(bench: &Bench<'_>) {
    for (case, element) in [Element::F32, Element::Bf16].into_iter().cycle().take(12).enumerate() {
        let mut random = Random::new(case as u64);
        let (rows, inputs, outputs, each) =
            (1 + random.below(6), 1 + random.below(200), 1 + random.below(90), 9);
        let x = held(element, &random.numbers(rows * inputs));
        let w = held(element, &random.numbers(outputs * inputs));
        let mut tokens: Vec<u32> = (0..rows * each).map(|_| random.below(outputs) as u32).collect();
        let matrix = Matrix::pack(inputs, &[Source::F32(&w)], Dtype::F32).expect("memory");
        let mut expected = vec![0.0; tokens.len()];
        let tensor = Tensor::from_rows(inputs, &x);
        score_tokens(&lane(Isa::Portable, 1), tensor.view(rows), &matrix, &tokens, &mut expected);
        let cap = if case % 3 == 0 { 4.0 } else { 0.0 };
        if cap > 0.0 {
            soft_cap(&lane(Isa::Portable, 1), ViewMut::of_row(&mut expected), cap);
        }
        tokens[each - 1] = outputs as u32; // is none
        let (x, stored, out) =
            (bench.elements(element, &x), bench.elements(element, &w), bench.floats(&expected));
        let args = ScoreTokensArgs {
            x: x.ptr(),
            w: stored.ptr(),
            tokens: bench.lasting(&tokens),
            out: out.ptr(),
            rows: bench.count(rows),
            inputs: inputs as u32,
            outputs: outputs as u32,
            each: each as u32,
            first: 0,
            vocabulary: outputs as u32,
            soft_cap: cap,
        };
        bench.run(&args.launch(element, rows as u32, 1), bench.order(case));
        for (i, (found, expected)) in out.read().iter().zip(&expected).enumerate() {
            if i == each - 1 {
                assert_eq!(*found, f32::NEG_INFINITY);
            } else {
                close(*found, f64::from(*expected), (inputs as f64).sqrt(), 1e-6, "score_tokens");
            }
        }
        // Two ranks, each with some of the outputs: the scores are in their sum.
        let (whole, half) = (out.read(), outputs.div_ceil(2));
        let mut sums = vec![0.0; whole.len()];
        for own in [0..half, half..outputs] {
            let part = bench.elements(element, &w[own.start * inputs..own.end * inputs]);
            let (first, held) = (own.start as u32, own.len() as u32);
            let args = ScoreTokensArgs { w: part.ptr(), outputs: held, first, ..args };
            bench.run(&args.launch(element, rows as u32, 1), bench.order(case));
            sums.iter_mut().zip(out.read()).for_each(|(sum, own)| *sum += own);
        }
        assert_eq!(sums, whole, "score_tokens in parts");
    }
}
