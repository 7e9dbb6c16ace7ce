//! router, route, experts and sum_experts: a mixture of experts.

use super::case_bench::{Bench, Memory};
use super::reference::{Random, bf16, close, lane};
use faser_kernels::cuda::{
    Element, ExpertGroups, ExpertsArgs, MatmulActivateArgs, MatmulArgs, MostGroups, Ptr, RmsNormArgs,
    RouteArgs, RouterArgs, SumExpertsArgs, form_of,
};
use faser_kernels::ops::{
    self, Activation, Routing, Write, add_gated, matmul_experts, matmul_experts_activated, route, sum_experts,
};
use faser_kernels::{
    Dtype, EightBitForm, EightBitRecords, FourBitForm, FourBitRecords, Isa, Lane, Matrix, RecordForm, Source,
    Tensor, Vector, View,
};

const ELEMENTS: [Element; 2] = [Element::F32, Element::Bf16];
/// Rows of a pass and their bucket, experts, and how many of them a row goes to.
const SHAPES: [(usize, usize, usize, usize); 7] = [
    (1, 1, 8, 2),
    (5, 8, 6, 6),
    (7, 8, 128, 8),
    (13, 16, 4, 1),
    (33, 48, 40, 3),
    (70, 128, 5, 4),
    (3, 4, 1024, 32),
];

fn cpu() -> Lane {
    lane(Isa::Portable, 1)
}

/// Numbers that an element holds exactly: what is left is the error of the sum.
fn held(element: Element, numbers: Vec<f32>) -> Vec<f32> {
    numbers.into_iter().map(|x| if element == Element::Bf16 { bf16(x) } else { x }).collect()
}

/// Logits of rows, some of them equal, some infinite, and one column more.
fn logits(random: &mut Random, rows: usize, experts: usize) -> Tensor {
    let mut logits = random.tensor(rows, experts + 1);
    for row in 0..rows {
        let row = logits.row_mut(row);
        row[random.below(experts)] = row[random.below(experts)];
        row[random.below(experts)] = [0.0, -0.0, f32::NEG_INFINITY][random.below(3)];
    }
    logits
}

/// What `route` has written.
struct Routed<'e> {
    places: Memory<'e, u32>,
    weights: Memory<'e, f32>,
    groups: [Memory<'e, u32>; 4],
}

impl Routed<'_> {
    fn groups(&self) -> ExpertGroups {
        let [hit, experts, starts, rows] = self.groups.each_ref().map(Memory::ptr);
        ExpertGroups { hit, experts, starts, rows }
    }
}

/// Rows to their experts by the kernel; `sms` says how many blocks there are.
fn routed<'e>(
    bench: &Bench<'e>,
    logits: View<'_>,
    (bucket, experts, active): (usize, usize, usize),
    renormed: bool,
    (sms, order): (u32, i32),
) -> Routed<'e> {
    let (rows, stride) = (logits.rows(), experts + 1);
    let mut all: Vec<f32> = (0..rows).flat_map(|row| logits.row(row).to_vec()).collect();
    all.resize(bucket * stride, f32::NAN);
    let pairs = rows * active;
    let [chosen, places, of_rows, hit, of_groups, starts] =
        [pairs, pairs, pairs, 1, experts, experts + 1].map(|len| bench.words(&vec![9999; len]));
    let (weights, tickets) = (bench.floats(&vec![-1.0; pairs]), bench.words(&[0]));
    let args = RouteArgs {
        logits: bench.lasting(&all),
        chosen: chosen.ptr(),
        weights: weights.ptr(),
        places: places.ptr(),
        group_rows: of_rows.ptr(),
        hit: hit.ptr(),
        experts: of_groups.ptr(),
        starts: starts.ptr(),
        rows: bench.count(rows),
        tickets: tickets.ptr(),
        count: experts as u32,
        stride: stride as u32,
        active: active as u32,
        renormed: u32::from(renormed),
    };
    bench.run(&args.launch(bucket as u32, sms), order);
    assert_eq!(tickets.read(), [0], "a ticket stays taken");
    Routed { places, weights, groups: [hit, of_groups, starts, of_rows] }
}

pub(super) fn rows_go_to_the_cpus_experts(bench: &Bench<'_>) {
    for (turn, (rows, bucket, experts, active)) in SHAPES.into_iter().enumerate() {
        let mut random = Random::new(turn as u64 + 40);
        let logits = logits(&mut random, rows, experts);
        let mut routing = Routing::new(rows, experts, active);
        route(&cpu(), logits.view(rows), turn % 2 == 0, &mut routing);
        let groups = routing.batches(usize::MAX).next().expect("rows");
        for order in bench.orders() {
            let found =
                routed(bench, logits.view(rows), (bucket, experts, active), turn % 2 == 0, (2, order));
            let [hit, of_groups, starts, of_rows] = found.groups.each_ref().map(Memory::read);
            let count = hit[0] as usize;
            assert_eq!(of_groups[..count], *groups.experts, "{rows} rows, {active} of {experts} experts");
            assert_eq!(starts[..=count], *groups.starts, "{rows} rows, {active} of {experts} experts");
            assert_eq!(of_rows, groups.rows, "{rows} rows, {active} of {experts} experts");
        }
        // None is there: there are no groups.
        let none =
            routed(bench, Tensor::zeros(0, experts + 1).view(0), (bucket, experts, active), true, (1, 0));
        assert_eq!((none.groups[0].read()[0], none.groups[2].read()[0]), (0, 0));
        // What is no number, and what is infinite, is seen in all weights of its row, as by the CPU.
        for odd in [f32::NAN, f32::INFINITY] {
            let mut logits = random.tensor(1, experts + 1);
            logits.row_mut(0)[experts / 2] = odd;
            let found = routed(bench, logits.view(1), (bucket, experts, active), false, (1, 0));
            assert!(found.weights.read().iter().all(|weight| weight.is_nan()), "{odd} of {experts} experts");
        }

        // The logits, of rows of a residual stream.
        let hidden = 33 + 20 * turn;
        let (x, w) = (random.tensor(rows, hidden), random.numbers((experts + 1) * hidden));
        let (norm, bias) = (random.numbers(hidden), random.numbers(experts + 1));
        let (mut normed, mut expected) = (Tensor::zeros(rows, hidden), Tensor::zeros(rows, experts + 1));
        let (lane, eps) = (cpu(), 1e-5);
        let weight = Vector::new(Source::F32(&norm));
        ops::rms_norm(&lane, x.view(rows), &weight, eps, normed.view_mut(rows), Write::Replace);
        let matrix = Matrix::pack(hidden, &[Source::F32(&w)], Dtype::F32).expect("memory");
        let vector = (turn % 2 == 0).then(|| Vector::new(Source::F32(&bias)));
        let to = expected.view_mut(rows);
        ops::matmul(&lane, normed.view(rows), &matrix, vector.as_ref(), to, Write::Replace);
        let mut all: Vec<f32> = (0..rows).flat_map(|row| x.row(row).to_vec()).collect();
        all.resize(bucket * hidden, f32::NAN);
        let found = bench.floats(&vec![0.0; rows * (experts + 1)]);
        let args = RouterArgs {
            x: bench.lasting(&all),
            norm: bench.lasting(&norm),
            w: bench.lasting(&w),
            bias: if turn % 2 == 0 { bench.lasting(&bias) } else { Ptr::NULL },
            logits: found.ptr(),
            rows: bench.count(rows),
            hidden: hidden as u32,
            outputs: experts as u32 + 1,
            eps,
        };
        bench.run(&args.launch(bucket as u32, 3), bench.order(turn));
        let together = found.read();
        for (place, found) in together.iter().enumerate() {
            let expected = expected.row(place / (experts + 1))[place % (experts + 1)];
            close(*found, f64::from(expected), (hidden as f64).sqrt(), 1e-6, "a logit of an expert");
        }
        // The last row alone has the same bits.
        let alone = bench.floats(&vec![0.0; experts + 1]);
        let one = RouterArgs {
            x: bench.lasting(x.row(rows - 1)),
            logits: alone.ptr(),
            rows: bench.count(1),
            ..args
        };
        bench.run(&one.launch(1, 1), bench.order(turn));
        assert_eq!(alone.read(), together[(rows - 1) * (experts + 1)..]);
    }
}

/// Experts of random numbers, of so many inputs and twice so many outputs, and back.
struct Experts {
    gates: Vec<f32>,
    gates_bias: Vec<f32>,
    back: Vec<f32>,
    back_bias: Vec<f32>,
    packed: Vec<[(Matrix, Vector); 2]>,
}

impl Experts {
    fn new(random: &mut Random, element: Element, count: usize, hidden: usize, width: usize) -> Experts {
        let mut numbers = |len: usize| held(element, random.numbers(len));
        let (gates, back) = (numbers(count * 2 * width * hidden), numbers(count * hidden * width));
        let (gates_bias, back_bias) = (numbers(count * 2 * width), numbers(count * hidden));
        let pack = |all: &[f32], bias: &[f32], inputs: usize, outputs: usize, at: usize| {
            let of = &all[at * outputs * inputs..(at + 1) * outputs * inputs];
            let matrix = Matrix::pack(inputs, &[Source::F32(of)], Dtype::F32).expect("memory");
            (matrix, Vector::new(Source::F32(&bias[at * outputs..(at + 1) * outputs])))
        };
        let packed = (0..count).map(|at| {
            [pack(&gates, &gates_bias, hidden, 2 * width, at), pack(&back, &back_bias, width, hidden, at)]
        });
        let packed = packed.collect();
        Experts { gates, gates_bias, back, back_bias, packed }
    }
}

pub(super) fn products_of_experts_are_the_cpus(bench: &Bench<'_>) {
    // With tiles in bf16, whole and not, and without.
    for (turn, (hidden, width)) in
        [(32, 16), (64, 40), (96, 32), (288, 64), (40, 24), (64, 8), (32, 64)].into_iter().enumerate()
    {
        let (rows, bucket, count, active) = SHAPES[turn % 6];
        let (activation, biased) = (Activation::ALL[turn % Activation::ALL.len()], turn % 2 == 1);
        for element in ELEMENTS {
            let mut random = Random::new(turn as u64 + 70);
            let experts = Experts::new(&mut random, element, count, hidden, width);
            let x = Tensor::from_rows(hidden, &held(element, random.numbers(rows * hidden)));
            let logits = logits(&mut random, rows, count);
            let mut routing = Routing::new(rows, count, active);
            route(&cpu(), logits.view(rows), true, &mut routing);
            let (groups, pairs) = (routing.batches(usize::MAX).next().expect("rows"), rows * active);
            let (mut wide, mut activated) = (Tensor::zeros(pairs, 2 * width), Tensor::zeros(pairs, width));
            let of = |which: usize, at: usize| {
                let (matrix, bias) = &experts.packed[at][which];
                (matrix, biased.then_some(bias))
            };
            let to = (activation, activated.view_mut(pairs));
            matmul_experts_activated(&cpu(), x.view(rows), groups, &|at| of(0, at), wide.view_mut(pairs), to);
            // The projection back is held against the CPU's of the same rounded rows.
            let rounded: Vec<f32> = (0..pairs).flat_map(|row| activated.row(row).to_vec()).collect();
            let rounded = Tensor::from_rows(width, &held(element, rounded));
            let mut back = Tensor::zeros(pairs, hidden);
            matmul_experts(&cpu(), rounded.view(pairs), groups, &|at| of(1, at), back.view_mut(pairs));

            let order = bench.order(turn);
            let routed = routed(bench, logits.view(rows), (bucket, count, active), true, (1, order));
            let ExpertGroups { hit, experts: of_groups, starts, rows: group_rows } = routed.groups();
            let most = MostGroups::of(bucket as u32, active as u32, count as u32);
            let bias = |bias: &[f32]| if biased { bench.lasting(bias) } else { Ptr::NULL };
            let rows_of = |tensor: &Tensor, rows| -> Vec<f32> {
                (0..rows).flat_map(|row| tensor.row(row).to_vec()).collect()
            };
            let found = bench.elements(element, &vec![-1e30; pairs * width]);
            let (stream, gates) =
                (bench.elements(element, &rows_of(&x, rows)), bench.elements(element, &experts.gates));
            let args = ExpertsArgs {
                x: stream.ptr(),
                w: gates.ptr(),
                bias: bias(&experts.gates_bias),
                out: found.ptr(),
                hit,
                experts: of_groups,
                starts,
                group_rows,
                inputs: hidden as u32,
                outputs: 2 * width as u32,
                activation: activation as u32,
                form: 0,
            };
            bench.run(&args.activate(element, most, 2), order);
            let what = format!("{element:?}, {rows} rows, {active} of {count} experts, {hidden} to {width}");
            // A product of two sums has the errors of both; what is rounded may be rounded the other way.
            let tolerance = if element == Element::Bf16 { 4e-3 } else { 1e-5 };
            for (place, found) in found.read().iter().enumerate() {
                let expected = f64::from(activated.row(place / width)[place % width]);
                let scale = expected.abs().max((hidden as f64).sqrt());
                close(*found, expected, scale, tolerance, &format!("{what}: activated"));
            }
            let products = bench.floats(&vec![-1e30; pairs * hidden]);
            let (inner, matrices) =
                (bench.elements(element, &rows_of(&rounded, pairs)), bench.elements(element, &experts.back));
            let args = ExpertsArgs {
                x: inner.ptr(),
                w: matrices.ptr(),
                bias: bias(&experts.back_bias),
                out: products.ptr(),
                group_rows: Ptr::NULL,
                inputs: width as u32,
                outputs: hidden as u32,
                ..args
            };
            bench.run(&args.launch(element, most, 2), order);
            for (place, found) in products.read().iter().enumerate() {
                let expected = f64::from(back.row(place / hidden)[place % hidden]);
                let inner = rounded.row(place / hidden).iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
                close(*found, expected, 1.0 + inner.sqrt(), 1e-6, &format!("{what}: back"));
            }
        }
    }
}

pub(super) fn a_row_has_the_bits_of_a_product_with_its_expert(bench: &Bench<'_>) {
    let (hidden, width, count, active, element) = (320, 24, 3, 2, Element::Bf16);
    let mut random = Random::new(11);
    let all = 70;
    let (x, w) = (random.numbers(all * hidden), random.numbers(count * 2 * width * hidden));
    let logits = random.tensor(all, count + 1);
    let each = 2 * width * hidden;
    let plain = bench.elements(element, &w);
    // The matrices in bf16, 4 bits, FP8 and int8, one expert after the other, and how many bytes one has.
    let packed = |pack: &dyn Fn(&[Source<'_>; 1]) -> Vec<u32>| {
        let words: Vec<u32> = w.chunks(each).flat_map(|own| pack(&[Source::F32(own)])).collect();
        (bench.lasting(&words), words.len() / count * size_of::<u32>())
    };
    let four_bits =
        packed(&|own| FourBitRecords::of(hidden, own).expect("a kernel").pack(own).expect("finite"));
    let [fp8, int8] = [EightBitForm::Fp8, EightBitForm::Int8].map(|form| {
        let records = |own: &[Source<'_>; 1]| EightBitRecords::of(hidden, own, form).expect("a kernel");
        (Some(RecordForm::EightBits(form)), packed(&|own| records(own).pack(own).expect("finite")))
    });
    let held = [
        (None, (plain.ptr(), each * element.bytes())),
        (Some(RecordForm::FourBits(FourBitForm::Symmetric)), four_bits),
        fp8,
        int8,
    ];
    let cases =
        [(1, 1), (8, 8), (20, 24), (70, 128)].into_iter().flat_map(|rows| held.map(|held| (rows, held)));
    for ((rows, bucket), (form, (weights, bytes))) in cases {
        let form = form_of(form);
        let own =
            Tensor::from_rows(count + 1, &(0..rows).flat_map(|r| logits.row(r).to_vec()).collect::<Vec<_>>());
        let routed = routed(bench, own.view(rows), (bucket, count, active), true, (1, 0));
        let ExpertGroups { hit, experts, starts, rows: group_rows } = routed.groups();
        let found = bench.elements(element, &vec![-1e30; rows * active * width]);
        let stream = bench.elements(element, &x[..rows * hidden]);
        let args = ExpertsArgs {
            x: stream.ptr(),
            w: weights,
            bias: Ptr::NULL,
            out: found.ptr(),
            hit,
            experts,
            starts,
            group_rows,
            inputs: hidden as u32,
            outputs: 2 * width as u32,
            activation: Activation::Silu as u32,
            form,
        };
        let most = MostGroups::of(bucket as u32, active as u32, count as u32);
        bench.run(&args.activate(element, most, 3), 0);
        let (found, [hit, experts, starts, of_rows]) =
            (found.read(), routed.groups.each_ref().map(Memory::read));
        for group in 0..hit[0] as usize {
            for place in starts[group] as usize..starts[group + 1] as usize {
                let row = of_rows[place] as usize;
                let alone = bench.elements(element, &vec![-1e30; width]);
                let one = bench.elements(element, &x[row * hidden..][..hidden]);
                let product = MatmulArgs {
                    x: one.ptr(),
                    w: weights.behind(experts[group] as usize * bytes),
                    bias: Ptr::NULL,
                    out: alone.ptr(),
                    rows: bench.count(1),
                    inputs: hidden as u32,
                    outputs: 2 * width as u32,
                    add: 0,
                    form,
                    ..MatmulArgs::default()
                };
                // A few of many.
                if rows > 8 && place % 9 > 0 {
                    continue;
                }
                let args = MatmulActivateArgs { product, activation: Activation::Silu as u32 };
                bench.run(&args.launch(1, 1), 0);
                let own = &found[place * width..(place + 1) * width];
                assert_eq!(alone.read(), own, "row {row} of {rows}, form {form}");
            }
        }
    }
}

pub(super) fn sums_of_experts_are_the_cpus(bench: &Bench<'_>) {
    for (turn, (rows, bucket, count, active)) in SHAPES.into_iter().enumerate() {
        let (cols, mut random) = (20 + 60 * turn, Random::new(turn as u64 + 90));
        let (shared, add, normed) = (turn % 2 == 0, turn % 3 != 0, turn % 3 != 1);
        let logits = logits(&mut random, rows, count);
        let mut routing = Routing::new(rows, count, active);
        route(&cpu(), logits.view(rows), shared, &mut routing);
        let groups = routing.batches(usize::MAX).next().expect("rows");
        let (products, before) = (random.tensor(rows * active, cols), random.numbers(rows * cols));
        let of_all = random.tensor(rows, cols);
        let (lane, mut expected) = (cpu(), Tensor::from_rows(cols, &before));
        let write = if add { Write::Add } else { Write::Replace };
        let to = expected.view_mut(rows);
        sum_experts(&lane, products.view(rows * active), groups, &routing, to, write);
        if shared {
            let gates = logits.view(rows).columns(count..count + 1);
            add_gated(&lane, gates, of_all.view(rows), expected.view_mut(rows));
        }
        for element in ELEMENTS {
            let order = bench.order(turn);
            let routed = routed(bench, logits.view(rows), (bucket, count, active), shared, (1, order));
            let all = |view: View<'_>| -> Vec<f32> {
                (0..view.rows()).flat_map(|row| view.row(row).to_vec()).collect()
            };
            let (out, weight) = (bench.floats(&before), random.numbers(cols));
            let [by_sum, behind] = [0; 2].map(|_| bench.elements(element, &vec![-7.0; rows * cols]));
            let (of_rows, gates) = (bench.count(rows), bench.lasting(&all(logits.view(rows))));
            let norm = RmsNormArgs {
                x: out.ptr(),
                weight: bench.lasting(&weight),
                out: if normed { by_sum.ptr() } else { Ptr::NULL },
                rows: of_rows,
                cols: cols as u32,
                x_stride: cols as u32,
                out_stride: cols as u32,
                eps: 1e-6,
            };
            let args = SumExpertsArgs {
                norm,
                products: bench.lasting(&all(products.view(rows * active))),
                places: routed.places.ptr(),
                weights: routed.weights.ptr(),
                shared: if shared { bench.lasting(&all(of_all.view(rows))) } else { Ptr::NULL },
                gates: gates.behind(count * size_of::<f32>()),
                out: out.ptr(),
                rows: of_rows,
                cols: cols as u32,
                active: active as u32,
                gate_stride: count as u32 + 1,
                add: u32::from(add),
            };
            bench.run(&args.launch(element, bucket as u32, 1), order);
            for (place, found) in out.read().iter().enumerate() {
                let expected = f64::from(expected.row(place / cols)[place % cols]);
                close(*found, expected, 2.0, 1e-6, &format!("{rows} rows, {active} of {count} experts"));
            }
            let separate = RmsNormArgs { out: behind.ptr(), ..norm };
            bench.run(&separate.launch(element, bucket as u32, 1), order);
            let expected = if normed { behind.read() } else { vec![-7.0; rows * cols] };
            assert_eq!(by_sum.read(), expected, "the norm of the sum");
        }
    }
}
