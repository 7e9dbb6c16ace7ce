//! What products of few rows do of the ops that follow them, against those ops by kernels of their own: the same bits.

use super::case_bench::{Bench, Elements};
use super::reference::Random;
use faser_kernels::cuda::{
    ActivateArgs, BLOCK_SIZE, Element, KvElement, MatmulActivateArgs, MatmulArgs, MatmulHeadsArgs,
    MatmulNormArgs, Ptr, QkvArgs, RmsNormArgs,
};
use faser_kernels::ops::Activation;

const BF16: Element = Element::Bf16;
/// Rows, and their bucket: both kernels, whole and not.
const ROWS: [(usize, usize); 5] = [(1, 1), (5, 8), (8, 8), (13, 16), (16, 16)];
/// Those that a last block normalises.
const OF_NORMS: [(usize, usize); 6] = [(1, 1), (2, 2), (1, 2), (2, 2), (1, 1), (1, 1)];
/// What is not written.
const UNSET: f32 = -1e30;

/// A product of random numbers, whose padding is anything.
struct Operands<'e> {
    x: Elements<'e>,
    w: Elements<'e>,
    bias: Ptr,
    rows: Ptr,
}

fn operands<'e>(
    bench: &Bench<'e>,
    (rows, bucket): (usize, usize),
    inputs: usize,
    outputs: usize,
) -> Operands<'e> {
    let mut random = Random::new((rows * inputs + outputs) as u64);
    let mut x = random.numbers(rows * inputs);
    x.resize(bucket * inputs, f32::NAN);
    let w = random.numbers(outputs * inputs);
    let bias = bench.lasting(&random.numbers(outputs));
    Operands { x: bench.elements(BF16, &x), w: bench.elements(BF16, &w), bias, rows: bench.count(rows) }
}

impl Operands<'_> {
    fn product(&self, out: Ptr, inputs: usize, outputs: usize, bias: bool, add: bool) -> MatmulArgs {
        MatmulArgs {
            x: self.x.ptr(),
            w: self.w.ptr(),
            bias: if bias { self.bias } else { Ptr::NULL },
            out,
            rows: self.rows,
            inputs: inputs as u32,
            outputs: outputs as u32,
            add: u32::from(add),
            form: 0,
            ..MatmulArgs::default()
        }
    }
}

pub(super) fn activations_in_products_are_those_behind_them(bench: &Bench<'_>) {
    for order in bench.orders() {
        for ((rows, bucket), (inputs, cols)) in
            ROWS.into_iter().zip([(32, 8), (320, 21), (96, 300), (64, 5), (288, 40)])
        {
            let held = operands(bench, (rows, bucket), inputs, 2 * cols);
            for (turn, activation) in Activation::ALL.into_iter().enumerate() {
                let bias = turn % 2 == 0;
                let (wide, behind) = (
                    bench.floats(&vec![UNSET; rows * 2 * cols]),
                    bench.elements(BF16, &vec![UNSET; rows * cols]),
                );
                let product = held.product(wide.ptr(), inputs, 2 * cols, bias, false);
                bench.run(&product.launch(BF16, bucket as u32, 1), order);
                let args = ActivateArgs {
                    x: wide.ptr(),
                    out: behind.ptr(),
                    rows: held.rows,
                    cols: cols as u32,
                    activation: activation as u32,
                    gated: 1,
                };
                bench.run(&args.launch(BF16, bucket as u32, 1), order);
                let within = bench.elements(BF16, &vec![UNSET; rows * cols]);
                let product = held.product(within.ptr(), inputs, 2 * cols, bias, false);
                let args = MatmulActivateArgs { product, activation: activation as u32 };
                bench.run(&args.launch(bucket as u32, 1), order);
                assert_eq!(within.read(), behind.read(), "{activation:?}, {rows} rows of {inputs} to {cols}");
                assert!(
                    within.read().iter().all(|x| *x > UNSET / 2.0),
                    "{activation:?}: not all was written"
                );
            }
        }
    }
}

pub(super) fn norms_by_the_last_block_are_those_behind_it(bench: &Bench<'_>) {
    for order in bench.orders() {
        for ((rows, bucket), (inputs, outputs)) in
            OF_NORMS.into_iter().zip([(32, 16), (320, 40), (96, 600), (64, 5), (288, 48), (64, 4100)])
        {
            let held = operands(bench, (rows, bucket), inputs, outputs);
            let mut random = Random::new(outputs as u64);
            let (stream, weight) = (random.numbers(rows * outputs), bench.lasting(&random.numbers(outputs)));
            for (bias, add, weight) in [(false, true, weight), (true, true, Ptr::NULL), (true, false, weight)]
            {
                let found = [false, true].map(|fused| {
                    let (x, normed) =
                        (bench.floats(&stream), bench.elements(BF16, &vec![UNSET; rows * outputs]));
                    let product = held.product(x.ptr(), inputs, outputs, bias, add);
                    let norm = RmsNormArgs {
                        x: x.ptr(),
                        weight,
                        out: normed.ptr(),
                        rows: held.rows,
                        cols: outputs as u32,
                        x_stride: outputs as u32,
                        out_stride: outputs as u32,
                        eps: 1e-6,
                    };
                    if fused {
                        let tickets = bench.words(&[0]);
                        let args = MatmulNormArgs { product, norm, tickets: tickets.ptr() };
                        // The ticket is as it was: twice is once, where nothing is added.
                        for _ in 0..if add { 1 } else { 2 } {
                            bench.run(&args.launch(bucket as u32, 2), order);
                            assert_eq!(tickets.read(), [0], "a ticket stays taken");
                        }
                    } else {
                        bench.run(&product.launch(BF16, bucket as u32, 2), order);
                        bench.run(&norm.launch(BF16, bucket as u32, 2), order);
                    }
                    (x.read(), normed.read())
                });
                assert_eq!(found[0], found[1], "{rows} rows of {inputs} to {outputs}");
                assert!(found[1].1.iter().all(|x| *x > UNSET / 2.0), "not all was written");
            }
        }
    }
}

pub(super) fn heads_by_their_last_blocks_are_those_behind_them(bench: &Bench<'_>) {
    let (blocks, stride) = (6, 3);
    let tables = bench.lasting(&[5u32, 2, 0, 3, 4, 1]);
    for order in bench.orders() {
        for (case, (heads, kv_heads, head_dim)) in
            [(4, 2, 64), (3, 3, 16), (2, 1, 128), (1, 1, 256), (2, 1, 48)].into_iter().enumerate()
        {
            let ((rows, bucket), inputs) = (ROWS[case], 96);
            let all = heads + 2 * kv_heads;
            let held = operands(bench, (rows, bucket), inputs, all * head_dim);
            let mut random = Random::new(case as u64 + 90);
            // Two sequences, with a position of each for every row.
            let chunk_of: Vec<u32> = (0..rows).map(|row| u32::from(row >= rows.div_ceil(2))).collect();
            let positions: Vec<u32> = (0..rows).map(|row| (14 + row % rows.div_ceil(2)) as u32).collect();
            let [chunk_of, positions] = [chunk_of, positions].map(|words| bench.lasting(&words));
            let [bias, q_norm, k_norm, cos_sin] = [all * head_dim, head_dim, head_dim, 64 * head_dim]
                .map(|len| bench.lasting(&random.numbers(len)));
            let only = |wanted: bool, at: Ptr| if wanted { at } else { Ptr::NULL };
            let cache = vec![UNSET; blocks * kv_heads * BLOCK_SIZE * head_dim];
            let kv = if case % 2 == 0 { KvElement::Element(BF16) } else { KvElement::Fp8 };
            let found = [false, true].map(|fused| {
                let qkv = bench.floats(&vec![UNSET; rows * all * head_dim]);
                let [keys, values] = [(); 2].map(|()| bench.kept(kv, head_dim, &cache));
                let product = held.product(qkv.ptr(), inputs, all * head_dim, case == 2, false);
                let args = QkvArgs {
                    qkv: qkv.ptr(),
                    bias: only(case == 0, bias),
                    q_norm: only(case != 2, q_norm),
                    k_norm: only(case != 2, k_norm),
                    cos_sin: only(case != 1, cos_sin),
                    positions,
                    chunk_of,
                    tables,
                    keys: keys.ptr(),
                    values: values.ptr(),
                    rows: held.rows,
                    heads: heads as u32,
                    kv_heads: kv_heads as u32,
                    head_dim: head_dim as u32,
                    table_stride: stride,
                    eps: 1e-6,
                    fp8: QkvArgs::fp8(kv),
                };
                if fused {
                    let tickets = bench.words(&vec![0; all]);
                    let args = MatmulHeadsArgs { product, heads: args, tickets: tickets.ptr() };
                    bench.run(&args.launch(bucket as u32, 1), order);
                    assert!(tickets.read().iter().all(|ticket| *ticket == 0), "tickets stay taken");
                } else {
                    bench.run(&product.launch(BF16, bucket as u32, 1), order);
                    bench.run(&args.launch(BF16, bucket as u32, 2), order);
                }
                (qkv.read(), keys.read(), values.read())
            });
            assert_eq!(found[0], found[1], "{heads} and {kv_heads} heads of {head_dim}, {rows} rows");
            assert!(found[1].1.iter().any(|x| *x > UNSET / 2.0), "no key was written");
        }
    }
}
