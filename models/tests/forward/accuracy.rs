//! How far a model's logits are from those of the same model in f32.
#![allow(dead_code, reason = "a module of a test and an example, each uses a part")]

use std::path::{Path, PathBuf};

use faser_kernels::Isa;
use faser_models::{Model, Tokenizer};

use crate::draft_acceptance::{arg_max, follow, write};

/// Errors along greedy texts of the f32 model, which the other model only follows: they do not add up. All are shares of the
/// spread of the f32 logits, their RMS distance from their mean: what is added to all logits alike changes no probability.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Errors {
    /// RMS over all logits.
    pub(crate) rms: f64,
    /// The largest of any logit.
    pub(crate) largest: f64,
    /// Share of positions at which both models have the same most likely token.
    pub(crate) greedy: f64,
    /// Positions.
    pub(crate) positions: usize,
}

/// Lets `exact` write `length` tokens after each prompt.
pub(crate) fn compare(exact: &Model, other: &Model, isa: Isa, prompts: &[Vec<u32>], length: usize) -> Errors {
    let (mut squares, mut spread, mut largest, mut count) = (0.0, 0.0, 0.0f64, 0);
    let (mut same, mut positions) = (0, 0);
    for prompt in prompts {
        let (text, expected) = write(exact, isa, prompt, length);
        let found = follow(other, isa, prompt, &text);
        for (expected, found) in expected.iter().zip(&found) {
            let mean =
                |logits: &[f32]| logits.iter().copied().map(f64::from).sum::<f64>() / logits.len() as f64;
            let (shift, centre) = (mean(found) - mean(expected), mean(expected));
            for (expected, found) in expected.iter().zip(found) {
                let error = f64::from(*found) - f64::from(*expected) - shift;
                squares += error * error;
                largest = largest.max(error.abs());
                spread += (f64::from(*expected) - centre).powi(2);
            }
            count += expected.len();
            positions += 1;
            same += usize::from(arg_max(expected) == arg_max(found));
        }
    }
    let scale = (spread / count as f64).sqrt();
    Errors {
        rms: (squares / count as f64).sqrt() / scale,
        largest: largest / scale,
        greedy: same as f64 / positions as f64,
        positions,
    }
}

/// A folder of the demo pair: `target` or `draft`.
pub(crate) fn demo(model: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("rustdoc").join(model)
}

/// The first prompts of the demo pair that it was not trained on.
pub(crate) fn demo_prompts(model: &Model, count: usize) -> Vec<Vec<u32>> {
    let text = std::fs::read_to_string(demo("heldout_prompts.json")).expect("the prompts are there");
    let prompts: Vec<serde_json::Value> = serde_json::from_str(&text).expect("the prompts are JSON");
    let tokenizer = Tokenizer::load(&demo("target"), model.config()).expect("the tokenizer is there");
    let encode = |prompt: &serde_json::Value| {
        let text = prompt["prompt"].as_str().expect("a prompt is a text");
        tokenizer.encode(text, true).expect("a prompt can be tokenized")
    };
    prompts.iter().take(count).map(encode).collect()
}
