//! Weights of 4 bits: whole numbers exact, all instruction sets agreeing, a row the same in any batch, and how far the rounding is from f64.

#[path = "../gpu-check/src/ops/reference.rs"]
mod reference;
mod whole_numbers;

use faser_kernels::ops::{Write, matmul};
use faser_kernels::{
    Beside, Blocks, Codes, Dtype, FourBitForm, FourBits, Isa, Matrix, Source, Tensor, Vector,
};
use half::f16;
use proptest::prelude::*;
use reference::{Random, bits, lane, on_each_isa, product};
use whole_numbers::{BLOCK, Whole, normal, one_of_them_is_not_finite, relative_error};

/// Numbers of 4 bits, as a file has them.
struct Stored {
    form: FourBitForm,
    /// Those of all blocks, each from 0 to 15.
    numbers: Vec<[u8; BLOCK]>,
    /// A scale of each, and its minimum or zero point.
    scales: Vec<(f32, f32)>,
    /// Rows of Q4_0 or Q4_1.
    bytes: Vec<u8>,
    inputs: usize,
}

/// What codes of E2M1 without their sign stand for.
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

const FORMS: [FourBitForm; 4] =
    [FourBitForm::Symmetric, FourBitForm::Minima, FourBitForm::ZeroPoints, FourBitForm::E2m1];

impl Stored {
    fn new(random: &mut Random, outputs: usize, inputs: usize, form: FourBitForm) -> Stored {
        let (mut numbers, mut scales, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..outputs * inputs / BLOCK {
            let mut half = || f16::from_f32(random.number());
            let own = [half(), half()];
            let halves: [u8; BLOCK / 2] = std::array::from_fn(|_| random.below(256) as u8);
            own.iter()
                .take(1 + usize::from(form == FourBitForm::Minima))
                .for_each(|half| bytes.extend(half.to_le_bytes()));
            bytes.extend(halves);
            numbers.push(std::array::from_fn(|i| halves[i % 16] >> (4 * (i / 16)) & 15));
            let [scale, minimum] = own.map(f16::to_f32);
            scales.push(match form {
                FourBitForm::Symmetric | FourBitForm::Minima => (scale, minimum),
                FourBitForm::ZeroPoints => (scale, random.below(17) as f32),
                FourBitForm::E2m1 => (2f32.powi(random.below(20) as i32 - 16), 0.0),
            });
        }
        Stored { form, numbers, scales, bytes, inputs }
    }

    fn matrix(&self) -> Matrix {
        let matrix =
            Matrix::pack(self.inputs, &[self.source()], Dtype::Int4).expect("weights that int4 holds");
        assert_eq!(matrix.dtype(), Dtype::Int4);
        matrix
    }

    fn source(&self) -> Source<'_> {
        match self.form {
            FourBitForm::Symmetric => Source::Blocks(Blocks::Q4_0, &self.bytes),
            FourBitForm::Minima => Source::Blocks(Blocks::Q4_1, &self.bytes),
            FourBitForm::ZeroPoints | FourBitForm::E2m1 => Source::Codes(self.numbers.len() * BLOCK, self),
        }
    }

    /// Whole numbers, their scale and what is added to each block of an output.
    fn of_output(&self, output: usize) -> impl Iterator<Item = (Vec<i64>, f32, Option<f32>)> {
        let blocks = self.inputs / BLOCK;
        (output * blocks..(output + 1) * blocks).map(|block| {
            let (scale, beside) = self.scales[block];
            let number = |code: u8| match self.form {
                FourBitForm::Symmetric => i64::from(code) - 8,
                FourBitForm::Minima => i64::from(code),
                FourBitForm::ZeroPoints => i64::from(code) - beside as i64,
                FourBitForm::E2m1 => {
                    let double = (2.0 * E2M1[usize::from(code & 7)]) as i64;
                    if code < 8 { double } else { -double }
                }
            };
            let scale = if self.form == FourBitForm::E2m1 { scale / 2.0 } else { scale };
            let minimum = (self.form == FourBitForm::Minima).then_some(beside);
            (self.numbers[block].map(number).to_vec(), scale, minimum)
        })
    }
}

impl Codes for Stored {
    fn widen(&self, from: usize, to: &mut [f32]) {
        for (to, at) in to.iter_mut().zip(from..) {
            let (output, block) = (at / self.inputs, at % self.inputs / BLOCK);
            let (numbers, scale, minimum) = self.of_output(output).nth(block).expect("it is there");
            *to = numbers[at % BLOCK] as f32 * scale + minimum.unwrap_or(0.0);
        }
    }

    fn form(&self) -> Result<FourBitForm, &'static str> {
        Ok(self.form)
    }

    fn four_bits(&self, from: usize) -> Option<FourBits> {
        let (scale, beside) = *self.scales.get(from / BLOCK)?;
        let zero = Beside::ZeroPoint(beside as u8);
        let beside = if self.form == FourBitForm::ZeroPoints { zero } else { Beside::Nothing };
        Some(FourBits { numbers: self.numbers[from / BLOCK], scale, beside })
    }
}

/// What the kernels promise for a row and an output, in scalar arithmetic with dot products in i64.
fn promised(x: &Whole, row: usize, w: &Stored, output: usize) -> f32 {
    x.blocks(row).zip(w.of_output(output)).fold(0.0, |sum, ((x, x_scale), (w, w_scale, minimum))| {
        let dot: i64 = x.iter().zip(&w).map(|(x, w)| x * w).sum();
        let sum = (dot as f32).mul_add(w_scale * x_scale, sum);
        let all = x.iter().sum::<i64>() as f32;
        minimum.map_or(sum, |minimum| minimum.mul_add(x_scale * all, sum))
    })
}

#[test]
fn dot_products_of_whole_numbers_are_exact() {
    for (rows, inputs, outputs) in
        [(1, 32, 1), (2, 32, 33), (3, 64, 64), (5, 96, 31), (9, 64, 70), (17, 224, 130), (6, 2048, 40)]
    {
        for form in FORMS {
            let random = &mut Random::new((rows * inputs * outputs) as u64);
            let (x, w) = (Whole::new(random, rows, inputs), Stored::new(random, outputs, inputs, form));
            let (matrix, activations) = (w.matrix(), Tensor::from_rows(inputs, &x.values()));
            on_each_isa(|isa| {
                let out = product(&lane(isa, 2), activations.view(rows), &matrix);
                for r in 0..rows {
                    for (o, found) in out.row(r).iter().enumerate() {
                        let promised = promised(&x, r, &w, o);
                        let what = format!("{isa} {rows}x{inputs}x{outputs} {form:?} {r} {o}");
                        assert_eq!(found.to_bits(), promised.to_bits(), "{what}: {found} {promised}");
                    }
                }
            });
        }
    }
}

/// Of random numbers, with odd sizes; or of blocks of this form.
fn any_matrix(random: &mut Random, outputs: usize, inputs: usize, form: Option<FourBitForm>) -> Matrix {
    if let Some(form) = form {
        return Stored::new(random, outputs, inputs, form).matrix();
    }
    Matrix::pack(inputs, &[Source::F32(&random.numbers(outputs * inputs))], Dtype::Int4)
        .expect("weights that int4 holds")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn all_instruction_sets_give_the_same_bits(
        rows in 1usize..=64, inputs in 1usize..500, outputs in 1usize..200, workers in 1usize..=3, seed in any::<u64>(),
        add in any::<bool>(), form in 0usize..5, size in -30i32..30,
    ) {
        let mut random = Random::new(seed);
        let size = 2f32.powi(size);
        let form = FORMS.get(form).copied();
        let inputs = if form.is_some() { inputs.next_multiple_of(BLOCK) } else { inputs };
        let values: Vec<f32> = random.numbers(rows * inputs).iter().map(|x| x.powi(5) * size).collect();
        let x = Tensor::from_rows(inputs, &values);
        let matrix = any_matrix(&mut random, outputs, inputs, form);
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

    #[test]
    fn a_row_has_the_same_bits_alone_and_in_any_batch(
        rows in 1usize..=64, blocks in 1usize..14, outputs in 1usize..300, workers in 1usize..=4, seed in any::<u64>(),
        form in 0usize..4,
    ) {
        let mut random = Random::new(seed);
        let x = random.tensor(rows, blocks * BLOCK);
        let matrix = any_matrix(&mut random, outputs, blocks * BLOCK, Some(FORMS[form]));
        for isa in Isa::available() {
            let batch = product(&lane(isa, workers), x.view(rows), &matrix);
            let alone = lane(isa, 1);
            for (r, batched) in bits(&batch, rows).into_iter().enumerate() {
                let row = Tensor::from_rows(blocks * BLOCK, x.row(r));
                prop_assert_eq!(&bits(&product(&alone, row.view(1), &matrix), 1)[0], &batched, "{} row {}", isa, r);
            }
        }
    }
}

/// Steps of 4 bits that fit normal numbers best are a third of a deviation, so rounding alone is off by 1/3/sqrt(12) = 9.7 % of a weight;
/// scales of their own for each 32 take some of it. What activations lose (0.5 %) is nothing beside it.
#[test]
fn the_rms_error_of_a_product_is_that_of_4_bits() {
    let random = &mut Random::new(3);
    let (rows, inputs, outputs) = (32, 1024, 256);
    let mut numbers = |count: usize| (0..count).map(|_| normal(random)).collect::<Vec<f32>>();
    let (values, w) = (numbers(rows * inputs), numbers(outputs * inputs));
    let matrix = Matrix::pack(inputs, &[Source::F32(&w)], Dtype::Int4).unwrap();
    let x = Tensor::from_rows(inputs, &values);
    let relative = relative_error(&x, rows, &matrix, &w);
    println!("relative RMS error of int4: {relative:.4}");
    assert!((0.03..0.1).contains(&relative), "{relative}");
}

/// Activations alone are rounded where the weights are the file's own.
#[test]
fn blocks_of_files_lose_no_more_than_activations_do() {
    let random = &mut Random::new(8);
    let (rows, inputs, outputs) = (16, 1024, 128);
    let x = Tensor::from_rows(inputs, &(0..rows * inputs).map(|_| normal(random)).collect::<Vec<f32>>());
    for form in FORMS {
        let stored = Stored::new(random, outputs, inputs, form);
        let mut w = vec![0.0; outputs * inputs];
        stored.source().read_f32(0, &mut w);
        let relative = relative_error(&x, rows, &stored.matrix(), &w);
        println!("relative RMS error, {form:?}: {relative:.4}");
        assert!((0.002..0.01).contains(&relative), "{relative}");
    }
}

#[test]
fn rows_that_are_not_finite_stay_so_and_harm_no_other() {
    for (inputs, form) in [(70, None)].into_iter().chain(FORMS.map(|form| (96, Some(form)))) {
        let outputs = 40;
        let random = &mut Random::new(5);
        let matrix = any_matrix(random, outputs, inputs, form);
        let good = random.numbers(inputs);
        on_each_isa(|isa| {
            let lane = lane(isa, 1);
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                for at in [0, 31, 40, 69] {
                    one_of_them_is_not_finite(&lane, &matrix, &good, (bad, at));
                }
            }
            let x = Tensor::from_rows(inputs, &[vec![1e-40; inputs], vec![0.0; inputs]].concat());
            let out = product(&lane, x.view(2), &matrix);
            assert!(out.row(0).iter().chain(out.row(1)).all(|y| *y == 0.0), "{isa}");
        });
    }
}

#[test]
fn a_weight_takes_half_a_byte_and_its_share_of_a_scale() {
    let zeros = vec![0.5; 2048 * 64];
    let matrix = Matrix::pack(2048, &[Source::F32(&zeros)], Dtype::Int4).unwrap();
    assert_eq!((matrix.dtype(), matrix.bytes()), (Dtype::Int4, 2048 * 64 / 32 * 18));
    assert_eq!(Matrix::packed_bytes(33, 65, Dtype::Int4), 64 * 2 * 36);
    // With minima or zero points 20 bytes for 32; where a source has more bits, as int8.
    let random = &mut Random::new(9);
    for (form, bytes) in FORMS.into_iter().zip([18, 20, 20, 18]) {
        let stored = Stored::new(random, 64, 2048, form);
        assert_eq!(stored.matrix().bytes(), 2048 * 64 / 32 * bytes, "{form:?}");
        assert_eq!(Matrix::bytes_of(2048, &[stored.source()], Dtype::Int4), stored.matrix().bytes());
    }
    let stored = Stored::new(random, 64, 2048, FourBitForm::Minima);
    let eight = vec![0; 34 * 64 * 64];
    let sources = [stored.source(), Source::Blocks(Blocks::Q8_0, &eight)];
    let matrix = Matrix::pack(2048, &sources, Dtype::Int4).unwrap();
    assert_eq!((matrix.dtype(), matrix.bytes()), (Dtype::Int8, 2 * 2048 * 64 / 32 * 34));
    for sources in [&sources[..], &sources[..1], &[Source::F32(&zeros)]] {
        let packed = Matrix::pack(2048, sources, Dtype::Int4).unwrap();
        assert_eq!(Matrix::bytes_of(2048, sources, Dtype::Int4), packed.bytes());
    }
}

/// In int8, blocks of 8 bits keep theirs, whether or not one of them is at the end of the range.
#[test]
fn blocks_of_8_bits_stay_as_they_are() {
    let random = &mut Random::new(10);
    let (inputs, outputs) = (96, 40);
    let mut bytes = Vec::new();
    for _ in 0..outputs * inputs / BLOCK {
        bytes.extend(f16::from_f32(random.number().abs()).to_le_bytes());
        bytes.extend((0..BLOCK).map(|_| (random.below(41) as i8 - 20).cast_unsigned()));
    }
    let source = Source::Blocks(Blocks::Q8_0, &bytes);
    let mut w = vec![0.0; outputs * inputs];
    source.read_f32(0, &mut w);
    let matrix = Matrix::pack(inputs, &[source], Dtype::Int8).unwrap();
    // One activation at a time is exact: 127 steps of its own.
    let mut x = vec![0.0; inputs * inputs];
    (0..inputs).for_each(|i| x[i * inputs + i] = 127.0);
    let out = product(&lane(Isa::detect(), 1), Tensor::from_rows(inputs, &x).view(inputs), &matrix);
    for (i, row) in (0..inputs).map(|i| (i, out.row(i))) {
        for (o, found) in row.iter().enumerate() {
            assert_eq!(*found, 127.0 * w[o * inputs + i], "{i} {o}");
        }
    }
}
