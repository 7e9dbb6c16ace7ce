//! Log-probabilities of a checkpoint in f32, for `tests/golden/compare_random.py` and `compare_gguf.py`: of each folder named, the text in its
//! `tokens.json`, or beside a GGUF file `x.gguf` in `x.tokens.json`, goes through the model in chunks, and a line of JSON has a list for each of its tokens.
//!
//! ```text
//! cargo run --release -p faser-models --example logprobs -- CHUNK FOLDER ...
//! ```

use std::error::Error;
use std::path::Path;

use faser_kernels::{Dtype, Isa};
use faser_models::{Model, Shard, WeightSource};

#[path = "../tests/forward/session.rs"]
mod session;

use session::Session;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let chunk: usize = arguments.next().ok_or("tokens of a chunk are missing")?.parse()?;
    if chunk == 0 {
        return Err("a chunk has a token at least".into());
    }
    for folder in arguments {
        let folder = Path::new(&folder);
        let beside = folder.with_extension("tokens.json");
        let text = if folder.is_dir() { folder.join("tokens.json") } else { beside };
        let tokens: Vec<u32> = serde_json::from_str(&std::fs::read_to_string(text)?)?;
        let model = Model::load(&WeightSource::folder(folder)?, Shard::WHOLE, Dtype::F32, &mut |_| {})?;
        let mut session = Session::new(&model, Isa::detect(), tokens.len(), chunk);
        let starts = (0..).step_by(chunk);
        let rows = tokens.chunks(chunk).zip(starts).flat_map(|(tokens, start)| session.feed(start, tokens));
        let rows: Vec<Vec<f64>> = rows.map(|logits| logprobs(&logits)).collect();
        println!("{}", serde_json::to_string(&rows)?);
    }
    Ok(())
}

fn logprobs(logits: &[f32]) -> Vec<f64> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - most).exp()).sum();
    logits.iter().map(|logit| f64::from(logit - most) - sum.ln()).collect()
}
