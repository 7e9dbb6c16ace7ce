//! Models whose matrices are int4: how far their logits are from f32, and what is not int4.

use std::path::Path;

use faser_kernels::{Dtype, Isa};
use faser_models::synthetic::{SyntheticSpec, pair};
use faser_models::{Model, ModelError, Shard, WeightSource};

use crate::accuracy::{Errors, compare, demo, demo_prompts};

/// A weight is off by some 8 % of their deviation (kernels' tests), ten times as much as in int8, and the head as there: so the stream is
/// off by less than ten times the 5 % at which int8 is wrong. What was rounded otherwise than to the nearest would be as far as noise is.
#[track_caller]
fn is_rounding(what: &str, errors: Errors) {
    println!("{what}: {errors:?}");
    assert!(errors.rms < 0.3 && errors.rms > 0.02, "{what}: {errors:?}");
    assert!(errors.greedy > 0.7, "{what}: {errors:?}");
}

fn load(folder: &Path, dtype: Dtype) -> Result<Model, ModelError> {
    Model::load(&WeightSource::folder(folder)?, Shard::WHOLE, dtype, &mut |_| {})
}

#[test]
fn logits_of_the_demo_pair_stay_near_those_of_f32() {
    for model in ["target", "draft"] {
        let [exact, int4] = [Dtype::F32, Dtype::Int4].map(|dtype| load(&demo(model), dtype).unwrap());
        is_rounding(model, compare(&exact, &int4, Isa::detect(), &demo_prompts(&exact, 6), 32));
    }
}

#[test]
fn logits_of_a_synthetic_model_stay_near_those_of_f32() {
    let spec = SyntheticSpec::preset("tiny").unwrap();
    let [exact, int4] = [Dtype::F32, Dtype::Int4].map(|dtype| pair(&spec, dtype, &mut |_| {}).unwrap().0);
    let prompts: Vec<Vec<u32>> = (1..7).map(|p| (0..20).map(|i| (p * i * i) % 2048).collect()).collect();
    is_rounding("tiny", compare(&exact, &int4, Isa::detect(), &prompts, 32));
}

#[test]
fn layers_shrink_and_the_head_is_int8_and_embedding_and_kv_stay_bf16() {
    let [bf16, int4] = [Dtype::Bf16, Dtype::Int4].map(|dtype| load(&demo("target"), dtype).unwrap());
    assert_eq!((int4.dtype(), int4.kv_dtype()), (Dtype::Int4, Dtype::Bf16));
    assert_eq!(int4.kv_bytes_per_token(), bf16.kv_bytes_per_token());
    let config = bf16.config();
    let embedding = (2 * config.vocab * config.hidden) as u64;
    let norms = (4 * (2 * config.layers.len() + 1) * config.hidden) as u64;
    // The head is padded to whole panels.
    let head = (2 * config.vocab.next_multiple_of(32) * config.hidden) as u64;
    let layers = bf16.weight_bytes() - embedding - norms - head;
    // 18 bytes for 32 weights, 34 in the head; the inputs of all matrices here are multiples of 64.
    assert_eq!(int4.weight_bytes(), layers * 18 / 64 + head * 34 / 64 + embedding + norms);
}

#[test]
fn a_weight_that_int4_cannot_hold_is_named() {
    let folder = std::env::temp_dir().join(format!("faser-int4-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::copy(demo("draft/config.json"), folder.join("config.json")).unwrap();
    let mut file = std::fs::read(demo("draft/model.safetensors")).unwrap();
    let header_bytes = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&file[8..8 + header_bytes]).unwrap();
    let name = "model.layers.0.mlp.down_proj.weight";
    let at = 8 + header_bytes + header[name]["data_offsets"][0].as_u64().unwrap() as usize;
    // A million in bf16: int8 holds it.
    file[at..at + 2].copy_from_slice(&[0x74, 0x49]);
    std::fs::write(folder.join("model.safetensors"), file).unwrap();
    let error = load(&folder, Dtype::Int4).unwrap_err().to_string();
    assert!(error.contains(name) && error.contains("int4") && error.contains("bf16"), "{error}");
    assert!(load(&folder, Dtype::Int8).is_ok());
    std::fs::remove_dir_all(&folder).unwrap();
}
