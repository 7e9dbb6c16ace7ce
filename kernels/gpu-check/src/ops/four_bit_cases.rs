//! Products with weights of 4 bits, against f64 products over the numbers that they stand for, and against those with the same weights in bf16: the same bits.

use super::case_bench::{Bench, Elements, Memory};
use super::reference::{Random, bf16, close};
use faser_kernels::cuda::{
    DequantiseArgs, Element, MatmulActivateArgs, MatmulArgs, MatmulHeadsArgs, MatmulNormArgs, Ptr, QkvArgs,
    RmsNormArgs, form_of,
};
use faser_kernels::ops::Activation;
use faser_kernels::{Beside, Codes, FourBitForm, FourBitRecords, FourBits, Source};

const BF16: Element = Element::Bf16;
const FORMS: [FourBitForm; 3] = [FourBitForm::Symmetric, FourBitForm::Minima, FourBitForm::ZeroPoints];
/// What is not written.
const UNSET: f32 = -1e30;

/// Numbers, scales and what stands beside them, of noise.
struct NoiseCodes {
    form: FourBitForm,
    blocks: Vec<FourBits>,
}

impl NoiseCodes {
    fn new(form: FourBitForm, count: usize, random: &mut Random) -> NoiseCodes {
        let block = |random: &mut Random| {
            let mut numbers = [0; 32];
            numbers.iter_mut().for_each(|number| *number = random.below(16) as u8);
            let mut half = |size: f32| half::f16::from_f32(size * random.numbers(1)[0]).to_f32();
            let scale = half(0.1);
            let beside = match form {
                FourBitForm::Minima => Beside::Minimum(half(0.8)),
                FourBitForm::ZeroPoints => Beside::ZeroPoint(random.below(17) as u8),
                _ => Beside::Nothing,
            };
            FourBits { numbers, scale, beside }
        };
        NoiseCodes { form, blocks: (0..count).map(|_| block(random)).collect() }
    }
}

impl Codes for NoiseCodes {
    fn widen(&self, _from: usize, _to: &mut [f32]) {
        panic!("they stay of 4 bits");
    }

    fn form(&self) -> Result<FourBitForm, &'static str> {
        Ok(self.form)
    }

    fn four_bits(&self, from: usize) -> Option<FourBits> {
        self.blocks.get(from / 32).copied()
    }
}

/// A matrix in both, and the numbers.
struct HeldTwice<'e> {
    form: u32,
    inputs: usize,
    outputs: usize,
    records: Ptr,
    /// As the device widens it.
    wide: Elements<'e>,
    weights: Vec<f32>,
}

impl<'e> HeldTwice<'e> {
    fn new(bench: &Bench<'e>, form: FourBitForm, [inputs, outputs]: [usize; 2], order: i32) -> HeldTwice<'e> {
        let noise = NoiseCodes::new(form, inputs * outputs / 32, &mut Random::new((inputs * outputs) as u64));
        let source = [Source::Codes(inputs * outputs, &noise)];
        let shape = FourBitRecords::of(inputs, &source).expect("a kernel takes it");
        let records = shape.pack(&source).expect("finite weights");
        let weights = shape.widened(&records);
        let (records, form) = (bench.lasting(&records), form_of(Some(form)));
        let wide = bench.elements(BF16, &vec![UNSET; weights.len()]);
        let args =
            DequantiseArgs { records, out: wide.ptr(), inputs: inputs as u32, outputs: outputs as u32, form };
        bench.run(&args.launch(1), order);
        HeldTwice { form, inputs, outputs, records, wide, weights }
    }

    /// The product in 4 bits, and in bf16.
    fn products(
        &self,
        bench: &Bench<'_>,
        rows: usize,
        x: Ptr,
        bias: Ptr,
        out: [Ptr; 2],
        add: bool,
    ) -> [MatmulArgs; 2] {
        let four = MatmulArgs {
            x,
            w: self.records,
            bias,
            out: out[0],
            rows: bench.count(rows),
            inputs: self.inputs as u32,
            outputs: self.outputs as u32,
            add: u32::from(add),
            form: self.form,
        };
        [four, MatmulArgs { w: self.wide.ptr(), out: out[1], form: 0, ..four }]
    }
}

/// Rows, whose padding is anything.
fn inputs_of<'e>(bench: &Bench<'e>, rows: usize, bucket: usize, inputs: usize) -> (Vec<f32>, Elements<'e>) {
    let x: Vec<f32> =
        Random::new((rows + inputs) as u64).numbers(rows * inputs).iter().map(|x| bf16(*x)).collect();
    let mut padded = x.clone();
    padded.resize(bucket * inputs, f32::NAN);
    (x, bench.elements(BF16, &padded))
}

pub(super) fn weights_of_four_bits_are_widened_with_one_rounding(bench: &Bench<'_>) {
    for order in bench.orders() {
        for form in FORMS {
            for shape in [[32, 8], [160, 24], [1024, 40]] {
                let matrix = HeldTwice::new(bench, form, shape, order);
                for (found, weight) in matrix.wide.read().iter().zip(&matrix.weights) {
                    // With minima the sum is rounded to f32 twice before: a step of the last digit may be another.
                    let near =
                        form == FourBitForm::Minima && (found - weight).abs() <= weight.abs() / 255.0 + 1e-5;
                    assert!(*found == bf16(*weight) || near, "{form:?} {shape:?}: {found} of {weight}");
                }
            }
        }
    }
}

pub(super) fn products_with_four_bits_are_those_of_their_numbers(bench: &Bench<'_>) {
    let mut largest = [0.0_f64; 3];
    for (turn, form) in FORMS.into_iter().enumerate() {
        for (case, (rows, bucket, shape)) in [
            (1, 1, [32, 16]),
            (3, 4, [96, 40]),
            (8, 8, [320, 24]),
            (13, 16, [1120, 32]),
            (16, 16, [256, 304]),
            (33, 48, [160, 40]),
            (100, 128, [416, 24]),
        ]
        .into_iter()
        .enumerate()
        {
            let order = bench.order(case + turn);
            let matrix = HeldTwice::new(bench, form, shape, order);
            let ([inputs, outputs], add) = (shape, case % 2 == 1);
            let (x, held) = inputs_of(bench, rows, bucket, inputs);
            let mut random = Random::new(case as u64);
            let (before, bias) = (random.numbers(rows * outputs), random.numbers(outputs));
            let out = bench.floats(&before);
            let args =
                matrix.products(bench, rows, held.ptr(), bench.lasting(&bias), [out.ptr(), Ptr::NULL], add)
                    [0];
            bench.run(&args.launch(BF16, bucket as u32, 1), order);
            let found = out.read();
            let (mut squares, mut errors) = (0.0, 0.0);
            for (place, found) in found.iter().enumerate() {
                let (r, o) = (place / outputs, place % outputs);
                let mut exact = f64::from(bias[o]) + if add { f64::from(before[place]) } else { 0.0 };
                let mut sum = exact;
                for i in 0..inputs {
                    let (x, w) = (f64::from(x[r * inputs + i]), matrix.weights[o * inputs + i]);
                    exact += x * f64::from(w);
                    sum += x * f64::from(bf16(w));
                }
                let what = format!("{form:?}, {rows} rows of {shape:?}: row {r} output {o}");
                // Of rounded weights it is their sum; a minimum may be rounded to the other side.
                if form != FourBitForm::Minima {
                    close(*found, sum, (inputs as f64).sqrt(), 1e-6, &what);
                }
                squares += exact * exact;
                errors += (f64::from(*found) - exact) * (f64::from(*found) - exact);
            }
            let error = (errors / squares).sqrt();
            largest[turn] = largest[turn].max(error);
            assert!(error < 0.004, "{form:?}, {rows} rows of {shape:?}: off by {error} of the RMS");
        }
    }
    println!("products with weights of 4 bits, off by at most so much of the RMS: {FORMS:?} {largest:?}");
}

pub(super) fn products_with_four_bits_have_the_bits_of_the_widened_ones(bench: &Bench<'_>) {
    let (inputs, cols, head_dim) = (1024, 40, 16);
    for (turn, form) in FORMS.into_iter().enumerate() {
        for (rows, bucket) in [(1, 1), (5, 8), (13, 16)] {
            let order = bench.order(turn + rows);
            let matrix = HeldTwice::new(bench, form, [inputs, 2 * cols], order);
            let (_, held) = inputs_of(bench, rows, bucket, inputs);
            let outputs = 2 * cols;
            let bias = bench.lasting(&Random::new(3).numbers(outputs));
            let floats = || [(); 2].map(|()| bench.floats(&vec![0.5; rows * outputs]));
            let halves = |each: usize| [(); 2].map(|()| bench.elements(BF16, &vec![UNSET; rows * each]));
            let ptrs = |memory: &[Memory<'_, f32>; 2]| [memory[0].ptr(), memory[1].ptr()];
            let (bucket, same) = (bucket as u32, format!("{form:?}, {rows} rows"));

            let out = floats();
            for product in matrix.products(bench, rows, held.ptr(), bias, ptrs(&out), true) {
                bench.run(&product.launch(BF16, bucket, 1), order);
            }
            assert_eq!(out[0].read(), out[1].read(), "{same}: alone");

            let out = halves(cols);
            let at = [out[0].ptr(), out[1].ptr()];
            for product in matrix.products(bench, rows, held.ptr(), bias, at, false) {
                let args = MatmulActivateArgs { product, activation: Activation::ALL[turn] as u32 };
                bench.run(&args.launch(bucket, 1), order);
            }
            assert_eq!(out[0].read(), out[1].read(), "{same}: activated");
            assert!(out[0].read().iter().all(|x| *x > UNSET / 2.0), "{same}: not all was written");

            let (out, normed, tickets) = (floats(), halves(outputs), bench.words(&[0]));
            let products = matrix.products(bench, rows, held.ptr(), Ptr::NULL, ptrs(&out), true);
            for (product, normed) in products.into_iter().zip(&normed) {
                let norm = RmsNormArgs {
                    x: product.out,
                    weight: bias,
                    out: normed.ptr(),
                    rows: product.rows,
                    cols: outputs as u32,
                    x_stride: outputs as u32,
                    out_stride: outputs as u32,
                    eps: 1e-6,
                };
                let args = MatmulNormArgs { product, norm, tickets: tickets.ptr() };
                bench.run(&args.launch(bucket, 2), order);
            }
            assert_eq!(
                (out[0].read(), normed[0].read()),
                (out[1].read(), normed[1].read()),
                "{same}: normed"
            );

            // Three heads of queries, one of keys, one of values; one sequence.
            let (out, tickets) = (floats(), bench.words(&[0; 5]));
            let positions: Vec<u32> = (0..rows as u32).collect();
            let (positions, chunk_of) = (bench.lasting(&positions), bench.lasting(&vec![0_u32; rows]));
            let cache = vec![UNSET; QkvArgs::layer_elements(1, 1, head_dim)];
            let kept = [(); 2].map(|()| [(); 2].map(|()| bench.elements(BF16, &cache)));
            let products = matrix.products(bench, rows, held.ptr(), Ptr::NULL, ptrs(&out), false);
            for (product, [keys, values]) in products.into_iter().zip(&kept) {
                let heads = QkvArgs {
                    qkv: product.out,
                    bias,
                    q_norm: Ptr::NULL,
                    k_norm: Ptr::NULL,
                    cos_sin: Ptr::NULL,
                    positions,
                    chunk_of,
                    tables: bench.lasting(&[0_u32]),
                    keys: keys.ptr(),
                    values: values.ptr(),
                    rows: product.rows,
                    heads: 3,
                    kv_heads: 1,
                    head_dim: head_dim as u32,
                    table_stride: 1,
                    eps: 1e-6,
                };
                let args = MatmulHeadsArgs { product, heads, tickets: tickets.ptr() };
                bench.run(&args.launch(bucket, 1), order);
            }
            let read = |of: &[Elements<'_>; 2]| [of[0].read(), of[1].read()];
            assert_eq!((out[0].read(), read(&kept[0])), (out[1].read(), read(&kept[1])), "{same}: heads");
            assert!(kept[0][0].read().iter().any(|x| *x > UNSET / 2.0), "{same}: no key was written");
        }
    }
}

pub(super) fn a_row_with_four_bits_has_the_same_bits_in_any_bucket(bench: &Bench<'_>) {
    // The last record is half, and one warp has none.
    let (inputs, outputs, most) = (928, 24, 150);
    for (turn, form) in FORMS.into_iter().enumerate() {
        let matrix = HeldTwice::new(bench, form, [inputs, outputs], 0);
        let (x, _) = inputs_of(bench, most, most, inputs);
        let run = |rows: std::ops::Range<usize>, bucket: u32| {
            let held = bench.elements(BF16, &x[rows.start * inputs..rows.end * inputs]);
            let out = bench.floats(&vec![0.0; rows.len() * outputs]);
            let args = matrix.products(bench, rows.len(), held.ptr(), Ptr::NULL, [out.ptr(); 2], false)[0];
            bench.run(&args.launch(BF16, bucket, 3), bench.order(turn));
            out.read()
        };
        let together = run(0..most, 192);
        for (rows, bucket) in
            [(0..1, 1), (7..15, 8), (60..76, 16), (30..62, 32), (40..140, 128), (149..150, 1)]
        {
            let own = &together[rows.start * outputs..rows.end * outputs];
            assert_eq!(run(rows.clone(), bucket), own, "{form:?}, rows {rows:?}");
        }
    }
}
