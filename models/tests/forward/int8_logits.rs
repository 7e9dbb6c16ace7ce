//! Models whose matrices are int8: how far their logits are from f32, and that nothing else is int8.

use std::path::Path;

use faser_kernels::{Dtype, Isa};
use faser_models::synthetic::{SyntheticSpec, pair};
use faser_models::{Model, ModelError, Progress, Shard, WeightSource};

use crate::accuracy::{Errors, compare, demo, demo_prompts};

/// A product of normal numbers is off by 0.8 % (kernels' tests). A branch is two products in a row, with attention's weights
/// between them, which turn an absolute error of 1.1 % times the scores' deviation (3 in the synthetic model) into a relative
/// one: 3 % or 4 % of an attention branch, 1.5 % of an MLP. The errors of branches are independent and each is part of the sum:
/// the stream is off by no more than its worst branch, the head adds its 0.8 %. Beyond 5 % something else than rounding is wrong.
#[track_caller]
fn is_rounding(what: &str, errors: Errors) {
    println!("{what}: {errors:?}");
    assert!(errors.rms < 0.05, "{what}: {errors:?}");
    // The farthest of a million normal errors is five deviations away, and some rows are three times as bad as the mean: tokens
    // with a small embedding amplify what the branches add.
    assert!(errors.largest < 5.0 * 3.0 * 0.05, "{what}: {errors:?}");
    // Two likeliest tokens nearer to each other than the error are rare.
    assert!(errors.greedy > 0.93, "{what}: {errors:?}");
    // Rounded it is: the model under test is not the f32 one.
    assert!(errors.rms > 0.002, "{what}: {errors:?}");
}

fn load(folder: &Path, dtype: Dtype) -> Result<Model, ModelError> {
    Model::load(&WeightSource::folder(folder)?, Shard::WHOLE, dtype, &mut |_| {})
}

#[test]
fn logits_of_the_demo_pair_stay_near_those_of_f32() {
    for model in ["target", "draft"] {
        let [exact, int8] = [Dtype::F32, Dtype::Int8].map(|dtype| load(&demo(model), dtype).unwrap());
        is_rounding(model, compare(&exact, &int8, Isa::detect(), &demo_prompts(&exact, 6), 32));
    }
}

#[test]
fn logits_of_a_synthetic_model_stay_near_those_of_f32() {
    let spec = SyntheticSpec::preset("tiny").unwrap();
    let [exact, int8] = [Dtype::F32, Dtype::Int8].map(|dtype| pair(&spec, dtype, &mut |_| {}).unwrap().0);
    let prompts: Vec<Vec<u32>> = (1..7).map(|p| (0..20).map(|i| (p * i * i) % 2048).collect()).collect();
    is_rounding("tiny", compare(&exact, &int8, Isa::detect(), &prompts, 32));
}

#[test]
fn matrices_shrink_and_embedding_and_kv_stay_bf16() {
    let [bf16, int8] = [Dtype::Bf16, Dtype::Int8].map(|dtype| load(&demo("target"), dtype).unwrap());
    assert_eq!((int8.dtype(), int8.kv_dtype()), (Dtype::Int8, Dtype::Bf16));
    assert_eq!(int8.kv_bytes_per_token(), bf16.kv_bytes_per_token());
    let config = bf16.config();
    let (embedding, norms) =
        (2 * config.vocab * config.hidden, 4 * (2 * config.layers.len() + 1) * config.hidden);
    let matrices = bf16.weight_bytes() - (embedding + norms) as u64;
    // 34 bytes for 32 weights; the inputs of all matrices here are multiples of 64.
    assert_eq!(int8.weight_bytes(), matrices * 34 / 64 + (embedding + norms) as u64);
}

#[test]
fn progress_counts_what_a_synthetic_pair_is_made_of() {
    let spec = SyntheticSpec::preset("tiny").unwrap();
    let mut made_bytes = None;
    for dtype in [Dtype::F32, Dtype::Bf16, Dtype::Int8] {
        let mut last = Progress { done_bytes: 0, total_bytes: 1 };
        let (target, _) = pair(&spec, dtype, &mut |progress| last = progress).unwrap();
        // All is made in f32, whatever it is held in.
        let made_bytes = *made_bytes.get_or_insert(target.weight_bytes());
        assert_eq!((last.done_bytes, last.total_bytes), (made_bytes, made_bytes), "{dtype}");
    }
}

#[test]
fn a_weight_that_int8_cannot_hold_is_named() {
    let folder = std::env::temp_dir().join(format!("faser-int8-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::copy(demo("draft/config.json"), folder.join("config.json")).unwrap();
    let mut file = std::fs::read(demo("draft/model.safetensors")).unwrap();
    let header_bytes = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&file[8..8 + header_bytes]).unwrap();
    let name = "model.layers.0.mlp.down_proj.weight";
    let at = 8 + header_bytes + header[name]["data_offsets"][0].as_u64().unwrap() as usize;
    // A billion in bf16.
    file[at..at + 2].copy_from_slice(&[0x6e, 0x4e]);
    std::fs::write(folder.join("model.safetensors"), file).unwrap();
    let error = load(&folder, Dtype::Int8).unwrap_err().to_string();
    assert!(error.contains(name) && error.contains("int8") && error.contains("bf16"), "{error}");
    assert!(load(&folder, Dtype::Bf16).is_ok());
    std::fs::remove_dir_all(&folder).unwrap();
}
