//! Text models within models of images and text: the same logits as where they are published alone.

use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use faser_kernels::{Dtype, Isa};
use faser_models::{Model, ModelConfig, Shard, WeightSource};
use serde_json::{Value, json};

use crate::quantised_files::{file, plain};
use crate::session::{Session, golden};

/// A folder that goes when it is dropped.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// The model of a folder within one of images and text, whose tensors have other names.
fn within(case: &str, class: &str, kind: &str, named: &dyn Fn(&str) -> String) -> Folder {
    let from = golden(case);
    let to = std::env::temp_dir().join(format!(
        "faser-within-{}-{class}-{}",
        std::process::id(),
        named("model.x")
    ));
    std::fs::create_dir_all(&to).unwrap();
    let text = std::fs::read_to_string(from.join("config.json")).unwrap();
    let mut inner: Value = serde_json::from_str(&text).unwrap();
    let keys = inner.as_object_mut().unwrap();
    let mut outer = json!({"architectures": [class], "vision_config": {"hidden_size": 8}});
    keys.remove("architectures");
    for key in ["bos_token_id", "eos_token_id", "tie_word_embeddings"] {
        if let Some(value) = keys.remove(key) {
            outer[key] = value;
        }
    }
    keys.insert("model_type".to_owned(), kind.into());
    outer["text_config"] = inner;
    std::fs::write(to.join("config.json"), outer.to_string()).unwrap();
    std::fs::copy(from.join("generation_config.json"), to.join("generation_config.json")).unwrap();
    let tensors = candle_core::safetensors::load(from.join("model.safetensors"), &Device::Cpu).unwrap();
    let mut stored: Vec<_> = tensors.iter().map(|(name, tensor)| plain(named(name), tensor)).collect();
    let image = Tensor::zeros((2, 3), DType::F32, &Device::Cpu).unwrap();
    for name in ["vision_tower.vision_model.embeddings.weight", "model.multi_modal_projector.norm.weight"] {
        stored.push(plain(name.to_owned(), &image));
    }
    std::fs::write(to.join("model.safetensors"), file(&stored)).unwrap();
    Folder(to)
}

fn logits(folder: &Path) -> Vec<f32> {
    let source = WeightSource::folder(folder).unwrap();
    let model = Model::load(&source, Shard::WHOLE, Dtype::F32, &mut |_| {}).unwrap();
    let tokens = [3, 17, 40, 5, 22];
    Session::new(&model, Isa::detect(), tokens.len(), tokens.len()).feed(0, &tokens).concat()
}

#[test]
fn a_text_model_within_another_has_the_logits_that_it_has_alone() {
    let before = |name: &str| format!("language_model.{name}");
    let newer = |name: &str| match name.strip_prefix("model.") {
        Some(rest) => format!("model.language_model.{rest}"),
        None => name.to_owned(),
    };
    let gemma = ("gemma3-older-keys", "Gemma3ForConditionalGeneration", "gemma3_text");
    let mistral = ("mistral", "Mistral3ForConditionalGeneration", "mistral");
    for (case, class, kind) in [gemma, mistral] {
        let alone = golden(case);
        let right = logits(&alone);
        for named in [&before as &dyn Fn(&str) -> String, &newer] {
            let folder = within(case, class, kind, named);
            let [found, wanted] = [&folder.0, &alone].map(|folder| ModelConfig::load(folder).unwrap());
            assert_eq!((found.eos, found.bos, found.vocab), (wanted.eos, wanted.bos, wanted.vocab));
            assert_eq!(logits(&folder.0), right, "{class}");
        }
    }
}

#[test]
fn a_text_model_of_another_kind_is_refused_by_name() {
    let folder =
        within("llama", "Mistral3ForConditionalGeneration", "ministral3", &|name: &str| name.to_owned());
    let refused = ModelConfig::load(&folder.0).unwrap_err().to_string();
    assert!(
        refused.contains("`text_config.model_type` is \"ministral3\", and \"mistral\" is served"),
        "{refused}"
    );
}
