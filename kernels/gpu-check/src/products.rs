//! Products on a split, by cublasLt with its SMs as target and by our own kernel for few rows, also of weights in 4 and 8 bits: right, and how fast.

use std::sync::Arc;

use super::ops::reference::{Random, bf16};
use super::probes::{self, FillArgs};
use super::rates::read_bytes_per_s;
use super::{CheckResult, Report, Setting, seconds};
use faser_kernels::cuda::{
    Arena, CudaError, CudaLane, DequantiseArgs, DeviceBuffer, Element, Gpu, MatmulArgs, Product, Ptr, Share,
    form_of,
};
use faser_kernels::{EightBitForm, EightBitRecords, FourBitRecords, Source, WeightRecords};

/// SMs of the first half.
const SPLIT: u32 = 32;
/// Rows that are timed; few go to our own kernel too.
const ROWS: [usize; 9] = [1, 4, 8, 16, 32, 64, 128, 256, 512];
/// Error of a sum over the root of its length: f32 has less than a tenth of it, TF32 ten times as much.
const MOST_ERROR: f64 = 1e-5;

/// Products on the whole GPU and on both halves of a split.
///
/// # Errors
/// The GPU cannot be opened or split, its memory is short, or cublasLt has no algorithm.
pub fn products(setting: &Setting, report: &mut Report<'_>) -> CheckResult {
    let gpu = Gpu::open(setting.ordinal, None)?;
    probes::load(&gpu)?;
    let pair = Share::split(&gpu, SPLIT)?;
    for share in [Share::whole(&gpu), pair.draft, pair.verify] {
        let lane = &mut CudaLane::new(&[share], false)?;
        let sms = lane.sms();
        for element in [Element::F32, Element::Bf16] {
            let error = error(lane, element, setting)?;
            report.at_most(
                format!("{element:?}: error over root of inputs on {sms} SMs"),
                error,
                "",
                MOST_ERROR,
            );
        }
        speed(lane, setting, report)?;
    }
    Ok(())
}

/// The largest error of a product against sums in f64, over the root of the inputs. Twice, for the second one takes the algorithm as chosen.
fn error(lane: &mut CudaLane, element: Element, setting: &Setting) -> Result<f64, CudaError> {
    let (rows, inputs, outputs) = setting.size((24, 2048, 512), (3, 64, 9));
    let mut random = Random::new(inputs as u64);
    let round = |x: f32| if element == Element::Bf16 { bf16(x) } else { x };
    let mut numbers = |count| random.numbers(count).into_iter().map(round).collect::<Vec<f32>>();
    let (x, w, bias) = (numbers(rows * inputs), numbers(outputs * inputs), numbers(outputs));
    let bytes = 4 * (x.len() + w.len() + bias.len() + rows * outputs) + 256;
    let mut arena = Arena::new(lane.gpu(), bytes, "a product")?;
    let mut put = |values: &[f32]| match element {
        Element::F32 => arena.put(values),
        Element::Bf16 => arena.put(&values.iter().map(|x| half::bf16::from_f32(*x)).collect::<Vec<_>>()),
    };
    let (at_x, at_w) = (put(&x), put(&w));
    let at_bias = arena.put(&bias);
    let (out, place) = arena.reserve::<f32>(rows * outputs);
    let mut worst = 0.0f64;
    for bias_at in [at_bias, Ptr::NULL, at_bias] {
        lane.send(&mut arena)?;
        let product = Product {
            element,
            x: at_x,
            w: at_w,
            bias: bias_at,
            out,
            rows,
            inputs,
            outputs,
            add: false,
            records: None,
        };
        lane.multiply(&product)?;
        lane.fetch(&mut arena)?;
        lane.wait(&mut || {})?;
        for (i, found) in arena.get::<f32>(place).iter().enumerate() {
            let (row, output) = (i / outputs, i % outputs);
            let pairs = x[row * inputs..][..inputs].iter().zip(&w[output * inputs..][..inputs]);
            let sum: f64 = pairs.map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
            let right = sum + if bias_at == Ptr::NULL { 0.0 } else { f64::from(bias[output]) };
            let error = (f64::from(*found) - right).abs() / (inputs as f64).sqrt();
            worst = if error.is_nan() { f64::INFINITY } else { worst.max(error) };
        }
    }
    Ok(worst)
}

/// Times of a product with a matrix of a 7B model, against the time that reading it takes.
fn speed(lane: &mut CudaLane, setting: &Setting, report: &mut Report<'_>) -> CheckResult {
    let (inputs, outputs) = setting.size((3584, 18_944), (32, 24));
    // As many matrices as no cache holds.
    let matrices = setting.size(4, 1);
    let (gpu, sms) = (lane.gpu().clone(), lane.sms());
    let bandwidth = read_bytes_per_s(lane, setting)?;
    let (element, most) = (Element::Bf16, ROWS[ROWS.len() - 1]);
    let buffer = |count: usize, bytes: usize| DeviceBuffer::zeroed(&gpu, count * bytes, "a product");
    let records = records(inputs, outputs);
    let most_bytes =
        records.iter().map(|(_, records)| records.bytes()).fold(inputs * outputs * 2, usize::max);
    let weights = (0..matrices).map(|_| buffer(most_bytes, 1)).collect::<Result<Vec<_>, _>>()?;
    let (x, out) = (buffer(most * inputs, 2)?, buffer(most * outputs, 4)?);
    let (parts, tickets) =
        (buffer(MatmulArgs::SPLITS as usize * most * outputs, 4)?, buffer(MatmulArgs::TICKETS as usize, 4)?);
    for (to, count) in weights.iter().map(|w| (w, inputs * outputs)).chain([(&x, most * inputs)]) {
        lane.launch(&FillArgs::new(element, to.ptr(), count, 5, 0.05).launch(sms))?;
    }
    let floor = (inputs * outputs * 2) as f64 / bandwidth * 1e6;
    let name = |rows: usize, by: &str| format!("{rows} rows of {inputs} x {outputs} {by} on {sms} SMs");
    for rows in ROWS.into_iter().take(setting.size(ROWS.len(), 4)) {
        let of = |run: usize| weights[run % matrices].ptr();
        let took = seconds(lane, setting.small, &mut |lane, run| {
            let (x, out, bias) = (x.ptr(), out.ptr(), Ptr::NULL);
            lane.multiply(&Product {
                element,
                x,
                w: of(run),
                bias,
                out,
                rows,
                inputs,
                outputs,
                add: false,
                records: None,
            })
        })?;
        report.timed(name(rows, "by cublasLt"), took * 1e6, "us", Some(floor));
        if rows as u32 <= MatmulArgs::MOST_ROWS {
            let count = counted(&gpu, lane, rows)?;
            let took = seconds(lane, setting.small, &mut |lane, run| {
                let args = MatmulArgs {
                    x: x.ptr(),
                    w: of(run),
                    bias: Ptr::NULL,
                    out: out.ptr(),
                    rows: count.0,
                    inputs: inputs as u32,
                    outputs: outputs as u32,
                    add: 0,
                    form: 0,
                    ..MatmulArgs::default()
                };
                lane.launch(&args.launch(element, rows as u32, sms))
            })?;
            report.timed(name(rows, "by our kernel"), took * 1e6, "us", Some(floor));
        }
        for (held_in, records) in &records {
            let (count, form) = (counted(&gpu, lane, rows)?, form_of(Some(records.form())));
            let (parts, tickets) = (parts.ptr(), tickets.ptr());
            let took = seconds(lane, setting.small, &mut |lane, run| {
                let args = MatmulArgs {
                    x: x.ptr(),
                    w: of(run),
                    bias: Ptr::NULL,
                    out: out.ptr(),
                    rows: count.0,
                    inputs: inputs as u32,
                    outputs: outputs as u32,
                    add: 0,
                    form,
                    parts,
                    tickets,
                };
                lane.launch(&args.launch_of_any_bits(element, rows as u32, sms, MatmulArgs::SPLITS))
            })?;
            let floor = records.bytes() as f64 / bandwidth * 1e6;
            report.timed(name(rows, &format!("in {held_in} by our kernel")), took * 1e6, "us", Some(floor));
        }
    }
    let wide = buffer(inputs * outputs, 2)?;
    for (held_in, records) in &records {
        let (out, form) = (wide.ptr(), form_of(Some(records.form())));
        let (inputs, outputs) = (inputs as u32, outputs as u32);
        let took = seconds(lane, setting.small, &mut |lane, run| {
            let records = weights[run % matrices].ptr();
            lane.launch(&DequantiseArgs { records, out, inputs, outputs, form }.launch(sms))
        })?;
        let floor = (records.bytes() as f64 + 2.0 * f64::from(inputs) * f64::from(outputs)) / bandwidth * 1e6;
        let what = format!("{inputs} x {outputs} from {held_in} to bf16 on {sms} SMs");
        report.timed(what, took * 1e6, "us", Some(floor));
    }
    Ok(())
}

/// How a matrix lies in fewer bits than bf16; what its numbers are does not count here.
fn records(inputs: usize, outputs: usize) -> [(&'static str, WeightRecords); 3] {
    let source = [Source::Made(inputs * outputs, &|_, _| {})];
    let eight = |form| {
        let records =
            EightBitRecords::of(inputs, &source, form).expect("whole steps of inputs, and eights of outputs");
        WeightRecords::EightBits(records)
    };
    let four = FourBitRecords::of(inputs, &source).expect("whole steps of inputs, and eights of outputs");
    [
        ("int4", WeightRecords::FourBits(four)),
        ("fp8", eight(EightBitForm::Fp8)),
        ("int8", eight(EightBitForm::Int8)),
    ]
}

/// A number of rows where kernels look for it, and what holds it.
pub(super) fn counted(gpu: &Arc<Gpu>, lane: &mut CudaLane, rows: usize) -> Result<(Ptr, Arena), CudaError> {
    let mut arena = Arena::new(gpu, 64, "a number of rows")?;
    let at = arena.put(&[rows as u32]);
    lane.send(&mut arena)?;
    lane.wait(&mut || {})?;
    Ok((at, arena))
}
