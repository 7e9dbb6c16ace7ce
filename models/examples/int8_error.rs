//! What holding a model's matrices in bf16, int8 or int4 does to its logits, against f32, for the demo pair and synthetic models:
//! `cargo run --release -p faser-models --example int8_error -- [PROMPTS [PRESET ..]]`

#[path = "../tests/forward/accuracy.rs"]
mod accuracy;
#[path = "../tests/forward/draft_acceptance.rs"]
mod draft_acceptance;
#[path = "../tests/forward/session.rs"]
mod session;

use faser_kernels::{Dtype, Isa};
use faser_models::synthetic::{SyntheticSpec, pair};
use faser_models::{Model, ModelError, Shard, WeightSource};

const LENGTH: usize = 64;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let prompts = arguments.next().map_or(Ok(16), |text| text.parse())?;
    println!("greedy texts of {LENGTH} tokens, {}; errors are shares of the logits' spread\n", Isa::detect());
    println!("| model | matrices | RMS error | largest error | same greedy token | weights |");
    println!("|---|---|---|---|---|---|");
    for name in ["target", "draft"] {
        let load = |dtype| {
            let source = WeightSource::folder(&accuracy::demo(name))?;
            Model::load(&source, Shard::WHOLE, dtype, &mut |_| {})
        };
        let exact = load(Dtype::F32)?;
        report(&format!("rustdoc {name}"), &exact, load, &accuracy::demo_prompts(&exact, prompts))?;
    }
    for preset in arguments {
        let spec = SyntheticSpec::preset(&preset)?;
        let make = |dtype| Ok(pair(&spec, dtype, &mut |_| {})?.0);
        let token = |i: usize| ((i.wrapping_mul(2_654_435_761) >> 7) % spec.vocab) as u32;
        let texts: Vec<Vec<u32>> =
            (0..prompts).map(|p| (0..64).map(|i| token(p * 64 + i + 1)).collect()).collect();
        report(&format!("synthetic {preset}"), &make(Dtype::F32)?, make, &texts)?;
    }
    Ok(())
}

fn report(
    name: &str,
    exact: &Model,
    load: impl Fn(Dtype) -> Result<Model, ModelError>,
    prompts: &[Vec<u32>],
) -> Result<(), ModelError> {
    for dtype in [Dtype::Bf16, Dtype::Int8, Dtype::Int4] {
        let model = load(dtype)?;
        let errors = accuracy::compare(exact, &model, Isa::detect(), prompts, LENGTH);
        println!(
            "| {name} | {dtype} | {:.2} % | {:.1} % | {:.2} % of {} | {:.1} MB |",
            100.0 * errors.rms,
            100.0 * errors.largest,
            100.0 * errors.greedy,
            errors.positions,
            model.weight_bytes() as f64 / 1e6
        );
    }
    Ok(())
}
