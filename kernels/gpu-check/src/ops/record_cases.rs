//! Products with weights of 4 bits, int8 and FP8, against f64 products over the numbers that they stand for, and, of sums that nothing rounds, against those with the same weights in bf16: the same bits.

use super::case_bench::{Bench, Elements, Memory};
use super::reference::{Random, bf16, close};
use faser_kernels::cuda::{
    BLOCK_SIZE, DequantiseArgs, Element, MatmulActivateArgs, MatmulArgs, MatmulHeadsArgs, MatmulNormArgs,
    Ptr, QkvArgs, RmsNormArgs, form_of,
};
use faser_kernels::ops::Activation;
use faser_kernels::{
    Beside, Blocks, Codes, EightBitForm, EightBitRecords, FourBitForm, FourBitRecords, FourBits, RecordForm,
    Source, of_e4m3,
};

const BF16: Element = Element::Bf16;
const FORMS: [RecordForm; 5] = [
    RecordForm::FourBits(FourBitForm::Symmetric),
    RecordForm::FourBits(FourBitForm::Minima),
    RecordForm::FourBits(FourBitForm::ZeroPoints),
    RecordForm::EightBits(EightBitForm::Fp8),
    RecordForm::EightBits(EightBitForm::Int8),
];
/// What is not written.
const UNSET: f32 = -1e30;

/// Numbers, scales and what stands beside them.
struct NoiseCodes {
    form: FourBitForm,
    blocks: Vec<FourBits>,
}

impl NoiseCodes {
    /// Of noise.
    fn new(form: FourBitForm, count: usize, random: &mut Random) -> NoiseCodes {
        let half = |size: f32, random: &mut Random| half::f16::from_f32(size * random.numbers(1)[0]).to_f32();
        NoiseCodes::of(form, count, random, |random| [half(0.1, random), half(0.8, random)])
    }

    /// Of quarters up to 8, and halves of them, so that no sum of a few is rounded.
    fn of_quarters(form: FourBitForm, count: usize, random: &mut Random) -> NoiseCodes {
        NoiseCodes::of(form, count, random, |random| {
            [[0.25, -0.125][random.below(2)], random.below(9) as f32 * 0.25 - 1.0]
        })
    }

    /// Of such scales and minima.
    fn of(
        form: FourBitForm,
        count: usize,
        random: &mut Random,
        halves: impl Fn(&mut Random) -> [f32; 2],
    ) -> NoiseCodes {
        let block = |random: &mut Random| {
            let mut numbers = [0; 32];
            numbers.iter_mut().for_each(|number| *number = random.below(16) as u8);
            let [scale, minimum] = halves(random);
            let beside = match form {
                FourBitForm::Minima => Beside::Minimum(minimum),
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

/// FP8 of noise, and a scale for each output and 128 inputs.
struct NoiseFp8 {
    codes: Vec<u8>,
    scales: Vec<f32>,
    inputs: usize,
}

impl NoiseFp8 {
    fn new([inputs, outputs]: [usize; 2], random: &mut Random) -> NoiseFp8 {
        // Codes of all sizes but the one that is no number, and scales of either sign.
        let code = |random: &mut Random| {
            let code = random.below(256) as u8;
            if code & 0x7F == 0x7F { code & 0xF0 } else { code }
        };
        let codes = (0..inputs * outputs).map(|_| code(random)).collect();
        let scales = random.numbers(outputs * inputs.div_ceil(128));
        NoiseFp8 { codes, scales: scales.iter().map(|scale| scale / 100.0).collect(), inputs }
    }

    /// Whole numbers of quarters up to 4, so that no sum of a few is rounded.
    fn of_quarters([inputs, outputs]: [usize; 2], random: &mut Random) -> NoiseFp8 {
        let whole = |code: &u8| of_e4m3(*code).fract() == 0.0 && of_e4m3(*code).abs() <= 16.0;
        let known: Vec<u8> = (0..=255).filter(whole).collect();
        let codes = (0..inputs * outputs).map(|_| known[random.below(known.len())]).collect();
        let scales = (0..outputs * inputs.div_ceil(128)).map(|i| [0.25, -0.25, 0.125][i % 3]).collect();
        NoiseFp8 { codes, scales, inputs }
    }
}

impl Codes for NoiseFp8 {
    fn widen(&self, _from: usize, _to: &mut [f32]) {
        panic!("they stay in FP8");
    }

    fn form(&self) -> Result<FourBitForm, &'static str> {
        Err("not of 4 bits")
    }

    fn four_bits(&self, _from: usize) -> Option<FourBits> {
        None
    }

    fn fp8_run(&self) -> Option<usize> {
        Some(128)
    }

    fn fp8(&self, from: usize, len: usize) -> Option<(&[u8], f32)> {
        let scale = from / self.inputs * self.inputs.div_ceil(128) + from % self.inputs / 128;
        Some((&self.codes[from..from + len], self.scales[scale]))
    }
}

/// Blocks of int8 with an f16 scale, of so many numbers around zero.
fn q8_0(
    [inputs, outputs]: [usize; 2],
    numbers: usize,
    scale: impl Fn(&mut Random) -> f32,
    random: &mut Random,
) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..inputs * outputs / 32 {
        bytes.extend(half::f16::from_f32(scale(random)).to_le_bytes());
        bytes.extend((0..32).map(|_| (random.below(numbers) as i32 - numbers as i32 / 2) as i8 as u8));
    }
    bytes
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
    fn new(bench: &Bench<'e>, form: RecordForm, shape: [usize; 2], order: i32) -> HeldTwice<'e> {
        let mut random = Random::new((shape[0] * shape[1]) as u64);
        match form {
            RecordForm::FourBits(form) => {
                let noise = NoiseCodes::new(form, shape[0] * shape[1] / 32, &mut random);
                HeldTwice::four(bench, &noise, shape, order)
            }
            RecordForm::EightBits(EightBitForm::Fp8) => {
                HeldTwice::fp8(bench, &NoiseFp8::new(shape, &mut random), order)
            }
            RecordForm::EightBits(EightBitForm::Int8) => {
                let scale = |random: &mut Random| 0.001 + random.numbers(1)[0].abs() / 100.0;
                HeldTwice::int8(bench, &q8_0(shape, 256, scale, &mut random), shape, order)
            }
        }
    }

    /// Of whole numbers and scales whose products and sums are not rounded.
    fn of_quarters(bench: &Bench<'e>, form: RecordForm, shape: [usize; 2], order: i32) -> HeldTwice<'e> {
        let mut random = Random::new(shape[1] as u64);
        match form {
            RecordForm::FourBits(form) => {
                let noise = NoiseCodes::of_quarters(form, shape[0] * shape[1] / 32, &mut random);
                HeldTwice::four(bench, &noise, shape, order)
            }
            RecordForm::EightBits(EightBitForm::Fp8) => {
                HeldTwice::fp8(bench, &NoiseFp8::of_quarters(shape, &mut random), order)
            }
            RecordForm::EightBits(EightBitForm::Int8) => {
                let scale = |random: &mut Random| [0.25, 0.125][random.below(2)];
                HeldTwice::int8(bench, &q8_0(shape, 32, scale, &mut random), shape, order)
            }
        }
    }

    fn four(bench: &Bench<'e>, noise: &NoiseCodes, shape: [usize; 2], order: i32) -> HeldTwice<'e> {
        let source = [Source::Codes(shape[0] * shape[1], noise)];
        let held = FourBitRecords::of(shape[0], &source).expect("a kernel takes it");
        let records = held.pack(&source).expect("finite weights");
        let weights = held.widened(&records);
        HeldTwice::of(bench, RecordForm::FourBits(noise.form), shape, (&records, weights), order)
    }

    fn fp8(bench: &Bench<'e>, noise: &NoiseFp8, order: i32) -> HeldTwice<'e> {
        let shape = [noise.inputs, noise.codes.len() / noise.inputs];
        HeldTwice::eight(bench, EightBitForm::Fp8, shape, Source::Codes(noise.codes.len(), noise), order)
    }

    fn int8(bench: &Bench<'e>, blocks: &[u8], shape: [usize; 2], order: i32) -> HeldTwice<'e> {
        HeldTwice::eight(bench, EightBitForm::Int8, shape, Source::Blocks(Blocks::Q8_0, blocks), order)
    }

    fn eight(
        bench: &Bench<'e>,
        form: EightBitForm,
        shape: [usize; 2],
        source: Source<'_>,
        order: i32,
    ) -> HeldTwice<'e> {
        let held = EightBitRecords::of(shape[0], &[source], form).expect("a kernel takes it");
        let records = held.pack(&[source]).expect("finite weights");
        let weights = held.widened(&records);
        HeldTwice::of(bench, RecordForm::EightBits(form), shape, (&records, weights), order)
    }

    fn of(
        bench: &Bench<'e>,
        form: RecordForm,
        [inputs, outputs]: [usize; 2],
        (records, weights): (&[u32], Vec<f32>),
        order: i32,
    ) -> HeldTwice<'e> {
        let (records, form) = (bench.lasting(records), form_of(Some(form)));
        let wide = bench.elements(BF16, &vec![UNSET; weights.len()]);
        let args =
            DequantiseArgs { records, out: wide.ptr(), inputs: inputs as u32, outputs: outputs as u32, form };
        bench.run(&args.launch(1), order);
        HeldTwice { form, inputs, outputs, records, wide, weights }
    }

    /// The product in records, and in bf16.
    fn products(
        &self,
        bench: &Bench<'_>,
        rows: usize,
        x: Ptr,
        bias: Ptr,
        out: [Ptr; 2],
        add: bool,
    ) -> [MatmulArgs; 2] {
        let own = MatmulArgs {
            x,
            w: self.records,
            bias,
            out: out[0],
            rows: bench.count(rows),
            inputs: self.inputs as u32,
            outputs: self.outputs as u32,
            add: u32::from(add),
            form: self.form,
            ..MatmulArgs::default()
        };
        [own, MatmulArgs { w: self.wide.ptr(), out: out[1], form: 0, ..own }]
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

pub(super) fn weights_in_records_are_widened_with_one_rounding(bench: &Bench<'_>) {
    for order in bench.orders() {
        for form in FORMS {
            for shape in [[32, 8], [160, 24], [1024, 40]] {
                let matrix = HeldTwice::new(bench, form, shape, order);
                for (found, weight) in matrix.wide.read().iter().zip(&matrix.weights) {
                    // With minima the sum is rounded to f32 twice before: a step of the last digit may be another.
                    let near = form == FORMS[1] && (found - weight).abs() <= weight.abs() / 255.0 + 1e-5;
                    assert!(*found == bf16(*weight) || near, "{form:?} {shape:?}: {found} of {weight}");
                }
            }
        }
    }
}

pub(super) fn products_with_records_are_those_of_their_numbers(bench: &Bench<'_>) {
    let mut largest = [0.0_f64; 5];
    for (turn, form) in FORMS.into_iter().enumerate() {
        let is_exact = form != FORMS[1];
        for (case, (rows, bucket, shape)) in [
            (1, 1, [32, 16]),
            (3, 4, [96, 40]),
            (8, 8, [320, 24]),
            (13, 16, [1120, 32]),
            (16, 16, [256, 304]),
            (33, 48, [160, 40]),
            (100, 128, [416, 24]),
            (70, 96, [544, 152]),
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
            let bias_there = bench.lasting(&bias);
            let [parts, tickets] = split_workspace(bench, bucket, outputs);
            let run = |any_bits: Option<u32>, splits: bool, sms: u32| {
                let out = bench.floats(&before);
                let args =
                    matrix.products(bench, rows, held.ptr(), bias_there, [out.ptr(), Ptr::NULL], add)[0];
                let parts = if splits { parts } else { Ptr::NULL };
                let args = MatmulArgs { parts, tickets, ..args };
                let launch = match any_bits {
                    Some(most) => args.launch_of_any_bits(BF16, bucket as u32, sms, most),
                    None => args.launch(BF16, bucket as u32, sms),
                };
                assert!(any_bits.is_none_or(|most| launch.grid[1] <= most), "{:?}", launch.grid);
                assert_eq!(launch.grid[1] > 1, splits && bucket > 16);
                bench.run(&launch, order);
                out.read()
            };
            let found = run(None, false, 4);
            // Split into eight, the bits are those of eight parts.
            for (any_bits, sms) in [(None, 4), (Some(8), 40)] {
                assert_eq!(run(any_bits, true, sms), found, "{form:?}, {rows} rows of {shape:?}: split");
            }
            let whole = [run(Some(1), false, 4), run(Some(8), true, 6), run(Some(3), true, 40)];
            let (mut squares, mut errors) = (0.0, 0.0);
            for (place, found) in found.iter().enumerate() {
                let (r, o) = (place / outputs, place % outputs);
                let mut exact = f64::from(bias[o]) + if add { f64::from(before[place]) } else { 0.0 };
                let mut sum = exact;
                for i in 0..inputs {
                    let (x, w) = (f64::from(x[r * inputs + i]), matrix.weights[o * inputs + i]);
                    exact += x * f64::from(w);
                    sum += x * f64::from(if is_exact { w } else { bf16(w) });
                }
                let what = format!("{form:?}, {rows} rows of {shape:?}: row {r} output {o}");
                // Sums of codes are scaled in f32; a weight with a minimum may be rounded to the other side.
                if form != FORMS[1] {
                    close(*found, sum, (inputs as f64).sqrt(), 1e-6, &what);
                }
                for whole in &whole {
                    close(whole[place], f64::from(*found), (inputs as f64).sqrt(), 1e-6, &what);
                }
                squares += exact * exact;
                errors += (f64::from(*found) - exact) * (f64::from(*found) - exact);
            }
            let error = (errors / squares).sqrt();
            largest[turn] = largest[turn].max(error);
            let most = if is_exact { 1e-6 } else { 0.004 };
            assert!(error < most, "{form:?}, {rows} rows of {shape:?}: off by {error} of the RMS");
        }
    }
    println!("products with weights in records, off by at most so much of the RMS: {FORMS:?} {largest:?}");
}

pub(super) fn products_with_records_have_the_bits_of_the_widened_ones(bench: &Bench<'_>) {
    let (inputs, cols, head_dim) = (1024, 40, 16);
    for (turn, form) in FORMS.into_iter().enumerate() {
        for (rows, bucket) in [(1, 1), (2, 2), (5, 8), (13, 16)] {
            let order = bench.order(turn + rows);
            let shape = [inputs, 2 * cols];
            // Sums are scaled one by one: those that nothing rounds have the same bits.
            let mut random = Random::new(rows as u64);
            let x: Vec<f32> = (0..bucket * inputs).map(|_| random.below(9) as f32 - 4.0).collect();
            let (matrix, held) =
                (HeldTwice::of_quarters(bench, form, shape, order), bench.elements(BF16, &x));
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

            if bucket <= MatmulNormArgs::MOST_ROWS {
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
            }

            // Three heads of queries, one of keys, one of values; one sequence.
            let (out, tickets) = (floats(), bench.words(&[0; 5]));
            let positions: Vec<u32> = (0..rows as u32).collect();
            let (positions, chunk_of) = (bench.lasting(&positions), bench.lasting(&vec![0_u32; rows]));
            let cache = vec![UNSET; BLOCK_SIZE * head_dim];
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
                    fp8: 0,
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

/// Parts that are no numbers, and tickets.
fn split_workspace(bench: &Bench<'_>, bucket: usize, outputs: usize) -> [Ptr; 2] {
    let parts = vec![f32::NAN; MatmulArgs::SPLITS as usize * bucket * outputs];
    [bench.lasting(&parts), bench.lasting(&vec![0_u32; MatmulArgs::TICKETS as usize])]
}

pub(super) fn a_row_of_a_product_with_records_has_the_same_bits_in_any_bucket(bench: &Bench<'_>) {
    // The last record is half, and one warp has none.
    let (inputs, outputs, most) = (928, 24, 150);
    for (turn, form) in FORMS.into_iter().enumerate() {
        let matrix = HeldTwice::new(bench, form, [inputs, outputs], 0);
        let (x, _) = inputs_of(bench, most, most, inputs);
        let [parts, tickets] = split_workspace(bench, 192, outputs);
        let run = |rows: std::ops::Range<usize>, bucket: u32, splits: bool| {
            let held = bench.elements(BF16, &x[rows.start * inputs..rows.end * inputs]);
            let out = bench.floats(&vec![0.0; rows.len() * outputs]);
            let args = matrix.products(bench, rows.len(), held.ptr(), Ptr::NULL, [out.ptr(); 2], false)[0];
            let args = MatmulArgs { parts: if splits { parts } else { Ptr::NULL }, tickets, ..args };
            bench.run(&args.launch(BF16, bucket, 3), bench.order(turn));
            out.read()
        };
        let together = run(0..most, 192, false);
        for (rows, bucket) in
            [(0..1, 1), (7..15, 8), (60..76, 16), (30..62, 32), (40..140, 128), (149..150, 1)]
        {
            let own = &together[rows.start * outputs..rows.end * outputs];
            for splits in [false, true] {
                assert_eq!(run(rows.clone(), bucket, splits), own, "{form:?}, rows {rows:?}");
            }
        }
    }
}
