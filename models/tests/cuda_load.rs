//! Weights into a GPU's memory over a fake driver: how much of the host's they take, what is told meanwhile, and what is refused.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../../kernels/tests/counting/mod.rs"]
mod counting;
#[path = "../../kernels/tests/cuda_fake/mod.rs"]
mod cuda_fake;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use faser_kernels::Dtype;
use faser_kernels::cuda::{Gpu, Upload};
use faser_models::cuda::CudaModel;
use faser_models::synthetic::SyntheticSpec;
use faser_models::{ModelConfig, Progress, Shard, WeightSource};

/// A model directory that is removed when dropped.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// A directory with a model of f16 weights, 24 MB of them in the embedding alone.
fn large() -> Folder {
    let folder = Folder(std::env::temp_dir().join(format!("faser-cuda-load-{}", std::process::id())));
    std::fs::create_dir_all(&folder.0).unwrap();
    let config = r#"{"architectures": ["LlamaForCausalLM"], "hidden_size": 256, "intermediate_size": 4096,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 48000,
        "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "tie_word_embeddings": true, "hidden_act": "silu",
        "rope_theta": 10000.0}"#;
    std::fs::write(folder.0.join("config.json"), config).unwrap();
    let mut tensors = HashMap::new();
    let mut add = |name: String, shape: &[usize]| {
        tensors.insert(name, Tensor::ones(shape, DType::F16, &Device::Cpu).unwrap());
    };
    add("model.embed_tokens.weight".to_owned(), &[48_000, 256]);
    add("model.norm.weight".to_owned(), &[256]);
    for layer in 0..2 {
        let shapes: [(&str, &[usize]); 9] = [
            ("input_layernorm", &[256]),
            ("post_attention_layernorm", &[256]),
            ("self_attn.q_proj", &[256, 256]),
            ("self_attn.k_proj", &[128, 256]),
            ("self_attn.v_proj", &[128, 256]),
            ("self_attn.o_proj", &[256, 256]),
            ("mlp.gate_proj", &[4096, 256]),
            ("mlp.up_proj", &[4096, 256]),
            ("mlp.down_proj", &[256, 4096]),
        ];
        shapes.iter().for_each(|(part, shape)| add(format!("model.layers.{layer}.{part}.weight"), shape));
    }
    candle_core::safetensors::save(&tensors, folder.0.join("model.safetensors")).unwrap();
    folder
}

#[test]
fn loading_takes_two_pieces_of_the_hosts_memory_and_tells_how_far_it_is() {
    let name = "loading_takes_two_pieces_of_the_hosts_memory_and_tells_how_far_it_is";
    let report = cuda_fake::inside(name, &[], || {
        let folder = large();
        let gpu = Gpu::open(0, None).unwrap();
        let source = WeightSource::folder(&folder.0).unwrap();
        for dtype in [Dtype::Bf16, Dtype::F32] {
            let (free, _) = gpu.memory().unwrap();
            let mut told: Vec<Progress> = Vec::new();
            let before = counting::begin_bytes();
            let model = CudaModel::load(&gpu, &source, Shard::WHOLE, dtype, &mut |at| told.push(at)).unwrap();
            let taken = counting::largest_bytes() - before;
            assert!(taken < 256 << 10, "{taken} bytes of the heap for {dtype}");
            let needed = CudaModel::weight_bytes(model.config(), None, Shard::WHOLE, dtype).unwrap();
            // A tied head is the embedding: it is there once.
            let used = (free - gpu.memory().unwrap().0) as u64;
            assert!((needed..needed + 1024).contains(&used), "{used} bytes of {needed} in {dtype}");
            assert_eq!(told[0].done_bytes, 0);
            assert!(told.windows(2).all(|pair| pair[0].done_bytes < pair[1].done_bytes), "{told:?}");
            let last = told.last().unwrap();
            assert!(last.done_bytes == last.total_bytes && last.total_bytes > 30 << 20, "{last:?}");
        }
    });
    let Some(report) = report else { return };
    let pinned = report.lines().find_map(|line| line.strip_prefix("most pinned memory ")).unwrap();
    assert_eq!(pinned.parse::<usize>().unwrap(), 2 * Upload::HALF_BYTES);
}

#[test]
fn weights_that_do_not_fit_are_refused_with_numbers_before_any_is_copied() {
    let name = "weights_that_do_not_fit_are_refused_with_numbers_before_any_is_copied";
    let report = cuda_fake::inside(name, &[("FASER_FAKE_MEMORY", "60000")], || {
        let gpu = Gpu::open(0, None).unwrap();
        let case = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/llama");
        let needed =
            CudaModel::weight_bytes(&ModelConfig::load(&case).unwrap(), None, Shard::WHOLE, Dtype::F32)
                .unwrap();
        let load = |source: &_, dtype| CudaModel::load(&gpu, source, Shard::WHOLE, dtype, &mut |_| {});
        let case = WeightSource::folder(&case).unwrap();
        let refusal = load(&case, Dtype::F32).err().unwrap().to_string();
        for part in [&format!("take {needed} bytes"), "f32", "60000 of 60000 are free", "smaller model"] {
            assert!(refusal.contains(part), "{part}: {refusal}");
        }
        let refusal = load(&case, Dtype::Int8).err().unwrap().to_string();
        assert!(refusal.contains("int8") && refusal.contains("bf16"), "{refusal}");
        let spec = SyntheticSpec::preset("tiny").unwrap();
        let refusal = load(&WeightSource::Synthetic(spec), Dtype::Bf16).err().unwrap();
        assert!(refusal.to_string().contains("bf16"), "{refusal}");
        let many =
            SyntheticSpec { experts: 40, experts_per_token: 33, ..SyntheticSpec::preset("tiny").unwrap() };
        let refusal = load(&WeightSource::Synthetic(many), Dtype::F32).err().unwrap().to_string();
        for part in ["33 of 40 experts", "kernels for 32", "`num_experts_per_tok`", "`device.kind: cpu`"] {
            assert!(refusal.contains(part), "{part}: {refusal}");
        }
    });
    let Some(report) = report else { return };
    assert!(report.contains("memory left 0\n") && report.contains("copies 0\n"), "{report}");
}
