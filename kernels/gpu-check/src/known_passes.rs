//! Passes of models that people know: the list whose times are predicted on paper (`tests/gpu_times`), and the check that measures them on a GPU.

use std::fmt;
use std::sync::Arc;

use faser_actors::ServiceError;
use faser_kernels::Dtype;
use faser_kernels::cuda::{Element, Gpu, KvElement, Share, SharePair};
use faser_models::cuda::{CudaModel, CudaSizes};

use super::filled::filled;
use super::probes;
use super::shapes::Shape;
use super::timed_lanes::{Load, draft_lane, median_seconds, shape, verify_lane};
use super::{CheckResult, Report, Setting};

/// What a lane does of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Rows of which each gets a token: decoding too.
    Verify,
    /// Rows of which the last gets one.
    Prefill,
    /// One step of a draft plan, of one row for each sequence.
    DraftStep,
}

impl fmt::Display for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Pass::Verify => "verify pass",
            Pass::Prefill => "prefill",
            Pass::DraftStep => "draft step",
        })
    }
}

/// A pass of a known model.
#[derive(Clone, Copy, Debug)]
pub struct KnownPass {
    /// The model.
    pub shape: Shape,
    /// GPUs that it is split over.
    pub ranks: usize,
    /// Sequences and rows.
    pub load: Load,
    /// What is done with them.
    pub pass: Pass,
    /// By kernels that give a row the same bits in any pass.
    pub deterministic: bool,
    /// In what keys and values are held.
    pub kv: KvElement,
}

/// As `golden.txt` of `tests/gpu_times` calls it.
impl fmt::Display for KnownPass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Load { sequences, rows, context } = self.load;
        f.write_str(self.shape.name())?;
        if self.ranks > 1 {
            write!(f, " on {} GPUs", self.ranks)?;
        }
        if self.deterministic {
            f.write_str(", deterministic")?;
        }
        if self.kv == KvElement::Fp8 {
            f.write_str(", KV in fp8")?;
        }
        write!(f, ": {} of {sequences} x {rows} rows at {context}", self.pass)
    }
}

const PASSES: [(Shape, usize, Load, Pass); 37] = [
    (Shape::Llama1B, 1, Load { sequences: 1, rows: 1, context: 512 }, Pass::Verify),
    (Shape::Llama8B, 1, Load { sequences: 1, rows: 1, context: 512 }, Pass::Verify),
    (Shape::Qwen8B, 1, Load { sequences: 1, rows: 1, context: 512 }, Pass::Verify),
    (Shape::Qwen600M, 1, Load { sequences: 1, rows: 5, context: 512 }, Pass::DraftStep),
    (Shape::Qwen600M, 1, Load { sequences: 32, rows: 5, context: 512 }, Pass::DraftStep),
    (Shape::Llama8B, 1, Load { sequences: 1, rows: 5, context: 512 }, Pass::Verify),
    (Shape::Llama8B, 1, Load { sequences: 16, rows: 4, context: 512 }, Pass::Verify),
    (Shape::Llama8B, 1, Load { sequences: 128, rows: 4, context: 512 }, Pass::Verify),
    (Shape::Llama8B, 1, Load { sequences: 1, rows: 1, context: 16_384 }, Pass::Verify),
    (Shape::Llama8B, 1, Load { sequences: 32, rows: 4, context: 4096 }, Pass::Verify),
    (Shape::Llama8B, 1, Load { sequences: 1, rows: 2048, context: 2048 }, Pass::Prefill),
    (Shape::Llama8B, 8, Load { sequences: 1, rows: 1, context: 512 }, Pass::Verify),
    (Shape::Qwen8B, 8, Load { sequences: 1, rows: 1, context: 512 }, Pass::Verify),
    (Shape::Qwen30BA3B, 1, Load { sequences: 1, rows: 1, context: 512 }, Pass::Verify),
    (Shape::Qwen30BA3B, 1, Load { sequences: 4, rows: 1, context: 512 }, Pass::Verify),
    (Shape::Qwen30BA3B, 1, Load { sequences: 16, rows: 1, context: 512 }, Pass::Verify),
    (Shape::Qwen30BA3B, 1, Load { sequences: 64, rows: 1, context: 512 }, Pass::Verify),
    (Shape::Qwen30BA3B, 1, Load { sequences: 1, rows: 4, context: 512 }, Pass::Verify),
    (Shape::Llama8BInt4, 1, Load { sequences: 1, rows: 1, context: 512 }, Pass::Verify),
    (Shape::Llama8BInt4, 1, Load { sequences: 1, rows: 5, context: 512 }, Pass::Verify),
    (Shape::Llama8BInt4, 1, Load { sequences: 16, rows: 4, context: 512 }, Pass::Verify),
    (Shape::Llama8BInt4, 1, Load { sequences: 128, rows: 4, context: 512 }, Pass::Verify),
    (Shape::Llama8BInt4, 1, Load { sequences: 1, rows: 2048, context: 2048 }, Pass::Prefill),
    (Shape::Llama8BInt4, 8, Load { sequences: 1, rows: 1, context: 512 }, Pass::Verify),
    (Shape::Qwen600MInt4, 1, Load { sequences: 1, rows: 5, context: 512 }, Pass::DraftStep),
    (Shape::Llama8BFp8, 1, Load { sequences: 1, rows: 1, context: 512 }, Pass::Verify),
    (Shape::Llama8BFp8, 1, Load { sequences: 1, rows: 5, context: 512 }, Pass::Verify),
    (Shape::Llama8BFp8, 1, Load { sequences: 16, rows: 4, context: 512 }, Pass::Verify),
    (Shape::Llama8BFp8, 1, Load { sequences: 128, rows: 4, context: 512 }, Pass::Verify),
    (Shape::Llama8BFp8, 1, Load { sequences: 1, rows: 2048, context: 2048 }, Pass::Prefill),
    (Shape::Llama8BFp8, 8, Load { sequences: 1, rows: 1, context: 512 }, Pass::Verify),
    (Shape::Qwen600MFp8, 1, Load { sequences: 1, rows: 5, context: 512 }, Pass::DraftStep),
    (Shape::Qwen30BA3BFp8, 1, Load { sequences: 1, rows: 1, context: 512 }, Pass::Verify),
    (Shape::Qwen30BA3BFp8, 1, Load { sequences: 16, rows: 1, context: 512 }, Pass::Verify),
    (Shape::Qwen30BA3BFp8, 1, Load { sequences: 64, rows: 1, context: 512 }, Pass::Verify),
    (Shape::Qwen30BA3BInt4, 1, Load { sequences: 1, rows: 1, context: 512 }, Pass::Verify),
    (Shape::Qwen30BA3BInt4, 1, Load { sequences: 16, rows: 1, context: 512 }, Pass::Verify),
];

const DETERMINISTIC: [(Shape, Load, Pass); 7] = [
    (Shape::Llama8B, Load { sequences: 1, rows: 1, context: 512 }, Pass::Verify),
    (Shape::Llama8B, Load { sequences: 16, rows: 4, context: 512 }, Pass::Verify),
    (Shape::Llama8B, Load { sequences: 128, rows: 4, context: 512 }, Pass::Verify),
    (Shape::Llama8B, Load { sequences: 1, rows: 2048, context: 2048 }, Pass::Prefill),
    (Shape::Qwen30BA3B, Load { sequences: 64, rows: 1, context: 512 }, Pass::Verify),
    (Shape::Llama8BInt4, Load { sequences: 128, rows: 4, context: 512 }, Pass::Verify),
    (Shape::Llama8BFp8, Load { sequences: 128, rows: 4, context: 512 }, Pass::Verify),
];

const FP8_KV: [(Shape, Load, Pass); 4] = [
    (Shape::Llama8B, Load { sequences: 1, rows: 1, context: 16_384 }, Pass::Verify),
    (Shape::Llama8B, Load { sequences: 32, rows: 4, context: 4096 }, Pass::Verify),
    (Shape::Llama8B, Load { sequences: 128, rows: 4, context: 512 }, Pass::Verify),
    (Shape::Llama8B, Load { sequences: 1, rows: 2048, context: 2048 }, Pass::Prefill),
];

/// All of them, in the order of `golden.txt`.
pub fn known_passes() -> impl Iterator<Item = KnownPass> {
    let of = |(shape, ranks, load, pass), deterministic, kv| KnownPass {
        shape,
        ranks,
        load,
        pass,
        deterministic,
        kv,
    };
    let bf16 = KvElement::Element(Element::Bf16);
    let deterministic = DETERMINISTIC.map(|(shape, load, pass)| of((shape, 1, load, pass), true, bf16));
    let in_fp8 = FP8_KV.map(|(shape, load, pass)| of((shape, 1, load, pass), false, KvElement::Fp8));
    PASSES.into_iter().map(move |pass| of(pass, false, bf16)).chain(deterministic).chain(in_fp8)
}

const PREDICTED: &str = include_str!("../tests/gpu_times/golden.txt");
/// GPUs that times are predicted of, as they call themselves, in the order of its columns.
const GPUS: [&str; 4] = ["NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA L40S", "NVIDIA GeForce RTX 4090"];
const COLUMNS_BEFORE: usize = 3;

/// Milliseconds that were predicted of a pass, if the GPU is one of those.
fn predicted_ms(device: &str, title: &str) -> Option<f64> {
    let gpu = GPUS.iter().position(|name| *name == device)?;
    let line = PREDICTED.lines().find(|line| line.split_once(" %  ").is_some_and(|(_, of)| of == title))?;
    line.split_whitespace().nth(COLUMNS_BEFORE + gpu)?.parse().ok()
}

/// Passes of known models on one GPU by the runners of a service, beside what the model of time says of the launches that they are made of. Weights are
/// numbers of a generator. What does not fit is left out.
///
/// # Errors
/// The GPU cannot be opened.
pub fn models(setting: &Setting, report: &mut Report<'_>) -> CheckResult {
    let gpu = Gpu::open(setting.ordinal, None)?;
    probes::load(&gpu)?;
    let device = gpu.info().name.clone();
    let mut passes: Vec<KnownPass> = known_passes().filter(|known| known.ranks == 1).collect();
    // Each model is there once, and alone.
    passes.sort_by_key(|known| known.shape as usize);
    if setting.small {
        passes.dedup_by_key(|known| (known.shape, known.deterministic, known.kv));
    }
    let mut held: Option<(Shape, Arc<CudaModel>)> = None;
    for known in passes {
        if !setting.small && !fits(&gpu, &known)? {
            report.no_meaning(format!("{known}: it does not fit"));
            continue;
        }
        let model = match held.take() {
            Some((shape, model)) if shape == known.shape => model,
            before => {
                drop(before);
                Arc::new(model_of(&gpu, known.shape, setting)?)
            }
        };
        held = Some((known.shape, model.clone()));
        // The same weights, whatever KV is held in.
        let layers = model.config().layers.len();
        let model = Arc::new(model.first_layers(layers).with_kv(known.kv));
        let load = Load {
            sequences: setting.size(known.load.sequences, known.load.sequences.min(2)),
            rows: setting.size(known.load.rows, known.load.rows.min(3)),
            context: setting.size(known.load.context, 20),
        };
        let ms = 1e3 * seconds(&gpu, &model, load, &known, setting.small)?;
        let title = known.to_string();
        report.timed(&title, ms, "ms", None);
        if let Some(predicted) = predicted_ms(&device, &title) {
            report.timed(format!("{title}: to what is predicted"), ms / predicted, "x", None);
        }
    }
    Ok(())
}

/// Whether the weights of its model, keys and values have room, and as much again as passes may need.
fn fits(gpu: &Gpu, known: &KnownPass) -> Result<bool, Box<dyn std::error::Error + Send + Sync>> {
    const WORK: f64 = 3e9;
    let config = known.shape.config()?;
    // Embeddings and heads are bf16 in any.
    let each = match known.shape.dtype() {
        Dtype::Int4 => 0.8,
        Dtype::Fp8 => 1.3,
        _ => 2.0,
    };
    let needed = config.parameters()?.0 as f64 * each + known.load.kv_bytes(&config, known.kv) + WORK;
    Ok(needed < gpu.info().memory_bytes as f64)
}

fn model_of(
    gpu: &Arc<Gpu>,
    known: Shape,
    setting: &Setting,
) -> Result<CudaModel, Box<dyn std::error::Error + Send + Sync>> {
    let config = if setting.small { shape(false, true, 64) } else { known.config()? };
    Ok(filled(gpu, config, known.dtype())?)
}

/// Seconds of a pass; of a step the part that each further one takes.
fn seconds(
    gpu: &Arc<Gpu>,
    model: &Arc<CudaModel>,
    load: Load,
    known: &KnownPass,
    small: bool,
) -> Result<f64, ServiceError> {
    const STEPS: usize = 4;
    let whole = [SharePair { draft: Share::whole(gpu), verify: Share::whole(gpu) }];
    let sizes = CudaSizes { deterministic: known.deterministic, ..load.sizes() };
    let mut step = 0..;
    let mut next = || step.next().unwrap_or(0);
    if known.pass == Pass::DraftStep {
        let lane = draft_lane(model, &whole, sizes)?;
        let mut of = |steps| {
            median_seconds(small, || {
                lane.begin(load.draft(next(), 0, steps));
                lane.wait()
            })
        };
        return Ok((of(STEPS)? - of(1)?) / (STEPS - 1) as f64);
    }
    let lane = verify_lane(model, &whole, sizes)?;
    median_seconds(small, || {
        let step = next();
        lane.begin(if known.pass == Pass::Prefill { load.prefill(step, 0) } else { load.verify(step, 0) });
        lane.wait()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pass_has_a_prediction_for_the_gpus_that_are_known_and_for_no_other() {
        for known in known_passes() {
            for gpu in GPUS {
                let predicted = predicted_ms(gpu, &known.to_string());
                assert!(predicted.is_some_and(|ms| ms > 0.0), "{known} on {gpu}");
            }
            for other in ["NVIDIA A10", "NVIDIA GH200 480GB", "NVIDIA H100 PCIe"] {
                assert_eq!(predicted_ms(other, &known.to_string()), None);
            }
        }
        let of = |gpu: usize| predicted_ms(GPUS[gpu], "Llama-3.1-8B: verify pass of 1 x 1 rows at 512");
        assert!(of(1) < of(0) && of(0) < of(2), "more bandwidth, less time");
    }
}
