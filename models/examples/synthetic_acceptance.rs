//! Prints how the acceptance of a synthetic pair follows from epsilon:
//! `cargo run --release -p faser-models --example synthetic_acceptance -- 110m [epsilon ..]`

#[path = "../tests/forward/draft_acceptance.rs"]
mod draft_acceptance;
#[path = "../tests/forward/session.rs"]
mod session;

use std::time::Instant;

use faser_kernels::{Dtype, Isa};
use faser_models::synthetic::{SyntheticSpec, pair};

const PROMPTS: usize = 8;
const PROMPT_LENGTH: usize = 64;
const LENGTH: usize = 96;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let preset = arguments.next().unwrap_or_else(|| "tiny".to_owned());
    let mut epsilons = arguments.map(|epsilon| epsilon.parse()).collect::<Result<Vec<f32>, _>>()?;
    if epsilons.is_empty() {
        epsilons = vec![0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 1.0];
    }
    let isa = Isa::detect();
    println!(
        "{preset}, bf16, {PROMPTS} greedy texts of {LENGTH} tokens after {PROMPT_LENGTH} random ones, {isa}\n"
    );
    println!(
        "| epsilon | greedy acceptance | overlap at T = 1 | entropy (nats) | distinct tokens | looped | made in |"
    );
    println!("|---|---|---|---|---|---|---|");
    for residual_scale in epsilons {
        let spec = SyntheticSpec { residual_scale, ..SyntheticSpec::preset(&preset)? };
        let start = Instant::now();
        let (target, draft) = pair(&spec, Dtype::Bf16, &mut |_| {})?;
        let seconds = start.elapsed().as_secs_f64();
        let figures = draft_acceptance::measure(&target, &draft, isa, &prompts(spec.vocab), LENGTH);
        println!(
            "| {residual_scale} | {:.3} | {:.3} | {:.2} | {:.2} | {:.2} | {seconds:.1} s |",
            figures.greedy, figures.overlap, figures.entropy, figures.distinct, figures.looped
        );
    }
    Ok(())
}

/// Prompts all over the vocabulary.
fn prompts(vocab: usize) -> Vec<Vec<u32>> {
    let token = |index: usize| (index.wrapping_mul(2_654_435_761) >> 7) % vocab;
    (0..PROMPTS)
        .map(|prompt| (0..PROMPT_LENGTH).map(|i| token(prompt * PROMPT_LENGTH + i + 1) as u32).collect())
        .collect()
}
