//! A model's logits against the CPU's.

use std::sync::Arc;

use faser_kernels::Dtype;
use faser_kernels::cuda::{CudaError, Gpu};
use faser_models::cuda::{CudaModel, CudaPasses, PassInput};
use faser_models::rounding::Distance;
use faser_models::synthetic::SyntheticSpec;
use faser_models::{Model, Shard, WeightSource};

use super::two_sequences::{on_cpu, on_gpu, spec, spec_with_experts};
use super::{CheckResult, Report, Setting};

/// Logits of a synthetic model against the CPU's: prefill of two sequences together, then a row of one and some of the other. How far those
/// in f32 and bf16 are from those of the f32 model on the CPU, beside how far rounding puts them: so it does not matter which instruction set
/// this CPU has.
///
/// # Errors
/// The GPU cannot be opened, or memory is short.
pub fn logits(setting: &Setting, report: &mut Report<'_>) -> CheckResult {
    let gpu = Gpu::open(setting.ordinal, None)?;
    const DTYPES: [Dtype; 2] = [Dtype::F32, Dtype::Bf16];
    for kv_heads in [8, 4, 1] {
        let spec = spec(setting.small, kv_heads);
        compare(&gpu, &format!("8 heads over {kv_heads}"), &spec, &DTYPES, report)?;
    }
    for dtype in DTYPES {
        let spec = spec_with_experts(setting.small, dtype);
        let what = format!("{} of {} experts", spec.experts_per_token, spec.experts);
        compare(&gpu, &what, &spec, &[dtype], report)?;
    }
    Ok(())
}

/// One model's, held in each of these.
fn compare(
    gpu: &Arc<Gpu>,
    what: &str,
    spec: &SyntheticSpec,
    dtypes: &[Dtype],
    report: &mut Report<'_>,
) -> CheckResult {
    let source = WeightSource::Synthetic(spec.clone());
    let target = Model::load(&source, Shard::WHOLE, Dtype::F32, &mut |_| {})?;
    let expected = on_cpu(&target)?;
    for &dtype in dtypes {
        let model = CudaModel::load(gpu, &source, Shard::WHOLE, dtype, &mut |_| {})?;
        let distance = Distance::between(&[on_gpu(&Arc::new(model), &mut whole)?], &[&expected]);
        let most = Distance::of_rounding(dtype, spec.layers);
        let of = format!("of logits in {dtype}, {what}");
        report.at_most(format!("error {of}"), distance.rms, "", most.rms);
        report.at_most(format!("largest error {of}"), distance.largest, "", most.largest);
    }
    Ok(())
}

fn whole(passes: &mut CudaPasses, input: &PassInput<'_>, _: bool) -> Result<Vec<f32>, CudaError> {
    passes.stage(input)?;
    passes.layers(0..passes.model().config().layers.len())?;
    passes.finish()?;
    passes.read_logits(input.tokens.len())
}
