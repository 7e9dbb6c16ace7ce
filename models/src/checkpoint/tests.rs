//! Damaged and mismatching checkpoints: every refusal names the file and what to look at.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use faser_kernels::Dtype;

use super::weight_files;
use crate::{Model, ModelError, Progress, Shard, WeightSource};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");

fn load(dir: &Path, dtype: Dtype, progress: &mut dyn FnMut(Progress)) -> Result<Model, ModelError> {
    Model::load(&WeightSource::folder(dir)?, Shard::WHOLE, dtype, progress)
}

/// A copy of a golden model that a test may damage; removed when dropped.
struct Copy(PathBuf);

impl Copy {
    fn of(model: &str, test: &str) -> Copy {
        let dir = std::env::temp_dir().join(format!("faser-models-{}-{test}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        for file in fs::read_dir(PathBuf::from(GOLDEN).join(model)).unwrap() {
            let file = file.unwrap();
            fs::copy(file.path(), dir.join(file.file_name())).unwrap();
        }
        Copy(dir)
    }

    fn load(&self) -> Result<Model, ModelError> {
        load(&self.0, Dtype::F32, &mut |_| {})
    }

    fn refusal(&self) -> String {
        self.load().unwrap_err().to_string()
    }

    /// It is refused in words that have all of these.
    #[track_caller]
    fn refuses(&self, parts: &[&str]) {
        let message = self.refusal();
        for part in parts {
            assert!(message.contains(part), "{part}: {message}");
        }
    }

    fn path(&self, file: &str) -> PathBuf {
        self.0.join(file)
    }

    fn change_key(&self, from: &str, to: &str) {
        let path = self.path("config.json");
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from));
        fs::write(path, text.replace(from, to)).unwrap();
    }

    fn change_tensors(&self, change: impl FnOnce(&mut HashMap<String, Tensor>)) {
        let path = self.path("model.safetensors");
        let mut tensors = candle_core::safetensors::load(&path, &Device::Cpu).unwrap();
        change(&mut tensors);
        candle_core::safetensors::save(&tensors, path).unwrap();
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

#[test]
fn progress_counts_every_byte_once() {
    let copy = Copy::of("qwen3-sharded", "progress");
    let mut seen = Vec::new();
    load(&copy.0, Dtype::F32, &mut |progress| seen.push(progress)).unwrap();
    assert_eq!(seen[0].done_bytes, 0);
    assert!(seen.windows(2).all(|pair| pair[0].done_bytes < pair[1].done_bytes));
    let last = seen.last().unwrap();
    assert_eq!(last.done_bytes, last.total_bytes);
}

#[test]
fn the_weight_files_are_those_of_the_index_or_the_single_one() {
    let names = |model: &str| -> Vec<String> {
        let files = weight_files(&PathBuf::from(GOLDEN).join(model)).unwrap();
        files.iter().map(|file| file.file_name().unwrap().to_string_lossy().into_owned()).collect()
    };
    assert_eq!(names("llama"), ["model.safetensors"]);
    let shards = names("qwen3-sharded");
    assert!(shards.len() > 1 && shards.is_sorted(), "{shards:?}");
    assert!(weight_files(&PathBuf::from(GOLDEN)).is_err());
}

#[test]
fn a_missing_weight_file_is_named() {
    let copy = Copy::of("llama", "missing");
    fs::remove_file(copy.path("model.safetensors")).unwrap();
    copy.refuses(&["model.safetensors", "model.safetensors.index.json"]);
}

#[test]
fn a_missing_config_is_named() {
    let copy = Copy::of("llama", "no-config");
    fs::remove_file(copy.path("config.json")).unwrap();
    copy.refuses(&["config.json"]);
    fs::write(copy.path("config.json"), "{\"hidden_size\": 3,").unwrap();
    copy.refuses(&["config.json is not valid", "line 1"]);
}

#[test]
fn a_truncated_file_is_named_wherever_it_was_cut() {
    let copy = Copy::of("llama", "truncated");
    let path = copy.path("model.safetensors");
    let whole = fs::read(&path).unwrap();
    for length in [0, 5, 8, 100, whole.len() / 2, whole.len() - 1] {
        fs::write(&path, &whole[..length]).unwrap();
        copy.refuses(&["model.safetensors", "truncated"]);
    }
}

#[test]
fn a_missing_or_truncated_shard_is_named() {
    let copy = Copy::of("qwen3-sharded", "shard");
    let shard = copy.path("model-00002-of-00003.safetensors");
    let whole = fs::read(&shard).unwrap();
    fs::write(&shard, &whole[..whole.len() - 10]).unwrap();
    copy.refuses(&["model-00002-of-00003.safetensors", "truncated"]);
    fs::remove_file(&shard).unwrap();
    copy.refuses(&["cannot read", "model-00002-of-00003"]);
}

#[test]
fn an_index_that_leaves_its_folder_is_refused() {
    let copy = Copy::of("qwen3-sharded", "outside");
    fs::write(copy.path("model.safetensors.index.json"), r#"{"weight_map": {"x": "../other.safetensors"}}"#)
        .unwrap();
    copy.refuses(&["index.json: `weight_map.x`", "../other.safetensors"]);
}

#[test]
fn a_shape_that_does_not_fit_names_tensor_and_keys() {
    let copy = Copy::of("llama", "shape");
    copy.change_key("\"intermediate_size\": 56", "\"intermediate_size\": 64");
    copy.refuses(&["model.safetensors", "mlp.gate_proj.weight", "[56, 32]", "[64, 32]", "intermediate_size"]);
}

#[test]
fn a_missing_tensor_names_the_keys_that_ask_for_it() {
    let copy = Copy::of("llama", "tensor");
    copy.change_key("\"attention_bias\": false", "\"attention_bias\": true");
    copy.refuses(&["self_attn.q_proj.bias", "attention_bias"]);
    let copy = Copy::of("llama", "head");
    copy.change_tensors(|tensors| drop(tensors.remove("lm_head.weight")));
    copy.refuses(&["`lm_head.weight`", "tie_word_embeddings"]);
}

#[test]
fn a_tensor_without_a_place_is_not_ignored() {
    let copy = Copy::of("llama", "layers");
    copy.change_key("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1");
    copy.refuses(&["model.layers.1.", "num_hidden_layers"]);
    let copy = Copy::of("qwen2-tied", "bias");
    copy.change_key("Qwen2ForCausalLM", "LlamaForCausalLM");
    copy.refuses(&["k_proj.bias", "attention_bias"]);
}

#[test]
fn experts_that_are_not_as_config_json_has_them_are_named_as_they_are_stored() {
    let copy = Copy::of("qwen3-moe", "experts");
    copy.change_key("\"num_local_experts\": 8", "\"num_local_experts\": 7");
    copy.refuses(&["layers.0.mlp.gate.weight", "[8, 32]", "[7, 32]", "num_experts"]);
    let copy = Copy::of("qwen3-moe", "expert");
    copy.change_tensors(|tensors| drop(tensors.remove("model.layers.1.mlp.experts.5.down_proj.weight")));
    copy.refuses(&["`model.layers.1.mlp.experts.5.down_proj.weight`", "moe_intermediate_size"]);
    let copy = Copy::of("qwen3-moe", "dense");
    copy.change_key("\"mlp_only_layers\": []", "\"mlp_only_layers\": [0]");
    copy.refuses(&["there is no tensor `model.layers.0.mlp.gate_proj.weight`"]);
    let copy = Copy::of("mixtral", "expert");
    copy.change_tensors(|tensors| {
        drop(tensors.remove("model.layers.0.block_sparse_moe.experts.3.w3.weight"));
    });
    copy.refuses(&["`model.layers.0.block_sparse_moe.experts.3.w3.weight`"]);
    let copy = Copy::of("qwen3-moe-stacked", "width");
    copy.change_key("\"moe_intermediate_size\": 16", "\"moe_intermediate_size\": 24");
    copy.refuses(&["`model.layers.1.mlp.experts.gate_up_proj`", "[6, 32, 32]", "[6, 48, 32]"]);
    for (change, parts) in [(7, ["has no place", "num_experts"]), (5, ["[5, 32, 16]", "[6, 32, 16]"])] {
        let copy = Copy::of("qwen3-moe-stacked", &format!("stack-{change}"));
        copy.change_tensors(|tensors| {
            let stack = tensors.get_mut("model.layers.1.mlp.experts.down_proj").unwrap();
            let more = stack.narrow(0, 0, 1).unwrap();
            let longer = Tensor::cat(&[&*stack, &more], 0).unwrap();
            *stack = longer.narrow(0, 0, change).unwrap().contiguous().unwrap();
        });
        copy.refuses(&["`model.layers.1.mlp.experts.down_proj`", parts[0], parts[1]]);
    }
}

#[test]
fn copies_that_follow_from_the_rest_are_harmless() {
    let copy = Copy::of("qwen2-tied", "harmless");
    copy.change_tensors(|tensors| {
        tensors.insert("lm_head.weight".to_owned(), tensors["model.embed_tokens.weight"].clone());
        let frequencies = Tensor::zeros(4, DType::F32, &Device::Cpu).unwrap();
        tensors.insert("model.layers.0.self_attn.rotary_emb.inv_freq".to_owned(), frequencies);
    });
    copy.load().unwrap();
}

#[test]
fn what_is_no_number_is_named_in_every_type() {
    for (number, (tensor, value)) in [
        ("model.layers.1.mlp.up_proj.weight", f32::NAN),
        ("model.embed_tokens.weight", f32::INFINITY),
        ("lm_head.weight", f32::NEG_INFINITY),
        ("model.layers.0.input_layernorm.weight", f32::NAN),
    ]
    .into_iter()
    .enumerate()
    {
        let copy = Copy::of("llama", &format!("no-number-{number}"));
        copy.change_tensors(|tensors| {
            let old = &tensors[tensor];
            let mut numbers: Vec<f32> = old.flatten_all().unwrap().to_vec1().unwrap();
            numbers[3] = value;
            let new = Tensor::from_vec(numbers, old.shape(), &Device::Cpu).unwrap();
            tensors.insert(tensor.to_owned(), new);
        });
        for dtype in [Dtype::F32, Dtype::Bf16, Dtype::Int8] {
            let refused = load(&copy.0, dtype, &mut |_| {}).unwrap_err().to_string();
            let said = format!("`{tensor}` has {value} at place 3");
            assert!(refused.contains(&said), "{said}, {dtype}: {refused}");
        }
        // The headers alone do not tell.
        assert!(crate::ModelConfig::load(&copy.0).unwrap().check_headers(&copy.0).unwrap());
    }
}

/// transformers serves such a checkpoint, with logits that are no numbers (models/tests/golden/make_greedy.py).
#[test]
fn what_transformers_makes_no_number_of_is_refused() {
    let dir = PathBuf::from(GOLDEN).join("damaged/llama");
    let expected: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(dir.join("expected.json")).unwrap()).unwrap();
    assert_eq!(expected["logits_that_are_numbers"], 0);
    let said = format!("`{}` has NaN at place {}", expected["tensor"].as_str().unwrap(), expected["place"]);
    let refused = load(&dir, Dtype::Bf16, &mut |_| {}).unwrap_err().to_string();
    assert!(refused.contains(&said), "{said}: {refused}");
}

#[test]
fn a_head_that_calls_itself_a_llama_is_told_what_it_is() {
    let copy = Copy::of("llama", "head");
    copy.change_tensors(|tensors| {
        let own = tensors.drain().filter_map(|(name, tensor)| {
            Some((format!("midlayer.{}", name.strip_prefix("model.layers.0.")?), tensor))
        });
        *tensors = own.collect();
    });
    copy.refuses(&["is a head of EAGLE 1 or 2", "of heads EAGLE-3 is served"]);
}

#[test]
fn a_pointer_in_the_place_of_weights_says_so() {
    let copy = Copy::of("llama", "pointer");
    fs::write(copy.path("model.safetensors"), "version https://git-lfs.example/spec/v1\n").unwrap();
    copy.refuses(&["git lfs pull"]);
}

#[test]
fn an_unsupported_number_format_is_named() {
    let copy = Copy::of("llama", "format");
    copy.change_tensors(|tensors| {
        let norm = tensors["model.norm.weight"].to_dtype(DType::I64).unwrap();
        tensors.insert("model.norm.weight".to_owned(), norm);
    });
    copy.refuses(&["model.norm.weight", "I64", "BF16"]);
}

impl Copy {
    /// Writes bytes into a tensor, from its `first` byte on.
    fn overwrite(&self, tensor: &str, first: usize, bytes: &[u8]) {
        let path = self.path("model.safetensors");
        let mut file = fs::read(&path).unwrap();
        let at = super::Header::read(&file).unwrap().get(tensor).unwrap().bytes.start + first;
        file[at..at + bytes.len()].copy_from_slice(bytes);
        fs::write(path, file).unwrap();
    }

    /// Gives a tensor another name of the same length.
    fn rename(&self, tensor: &str, other: &str) {
        assert_eq!(tensor.len(), other.len());
        let path = self.path("model.safetensors");
        let mut file = fs::read(&path).unwrap();
        let at = file.windows(tensor.len()).position(|window| window == tensor.as_bytes()).unwrap();
        file[at..at + other.len()].copy_from_slice(other.as_bytes());
        fs::write(path, file).unwrap();
    }
}

#[test]
fn quantised_matrices_that_do_not_go_together_are_refused_by_name() {
    const MODULE: &str = "model.layers.0.mlp.down_proj";
    let gptq = Copy::of("quantised-gptq", "no-such-group");
    gptq.overwrite(&format!("{MODULE}.g_idx"), 0, &[9, 0, 0, 0]);
    gptq.refuses(&["mlp.down_proj.g_idx", "group 9 of 3"]);

    let awq = Copy::of("quantised-awq", "no-zeros");
    awq.rename(&format!("{MODULE}.qzeros"), &format!("{MODULE}.qzerox"));
    awq.refuses(&["mlp.down_proj.qzeros", "quantization_config"]);

    let groups = Copy::of("quantised-awq", "other-groups");
    groups.change_key("\"group_size\": 16", "\"group_size\": 32");
    groups.refuses(&["qzeros", "`quantization_config` says otherwise"]);

    let bytes = Copy::of("quantised-fp8-channel", "no-number");
    bytes.overwrite(&format!("{MODULE}.weight"), 5, &[0xFF]);
    bytes.refuses(&["mlp.down_proj, weights", "place 5", "NaN"]);

    let scales = Copy::of("quantised-fp8-blocks", "no-scale");
    scales.overwrite(&format!("{MODULE}.weight_scale_inv"), 4, &f32::INFINITY.to_le_bytes());
    scales.refuses(&["mlp.down_proj, scales", "place 1", "inf"]);

    let integers = Copy::of("quantised-w8a8", "as-floats");
    integers.change_key("\"type\": \"int\"", "\"type\": \"float\"");
    integers.refuses(&["weight` is I8", "F8_E4M3", "`quantization_config` says otherwise"]);

    // As many scales as there are, of other blocks.
    let turned = Copy::of("quantised-fp8-blocks", "turned");
    turned.change_key("24,\n      20", "20,\n      24");
    turned.refuses(&["weight_scale_inv", "is expected"]);

    let plain = Copy::of("quantised-fp8-tensor", "not-said");
    plain.change_key("\"quantization_config\"", "\"quantisation_of_nobody\"");
    plain.refuses(&["is stored as F8_E4M3"]);
}

#[test]
fn stacks_of_gpt_oss_that_do_not_go_together_are_refused_by_name() {
    const EXPERTS: &str = "model.layers.1.mlp.experts";
    let no_number = Copy::of("gpt-oss-mxfp4", "gpt-oss-no-number");
    no_number.overwrite(&format!("{EXPERTS}.down_proj_scales"), 3, &[255]);
    no_number.refuses(&["experts.0.down_proj.weight", "NaN"]);

    let no_scales = Copy::of("gpt-oss-mxfp4", "gpt-oss-no-scales");
    no_scales.rename(&format!("{EXPERTS}.down_proj_scales"), &format!("{EXPERTS}.down_proj_scalex"));
    no_scales.refuses(&["mlp.experts.down_proj_scales", "quantization_config"]);

    let fewer = Copy::of("gpt-oss-mxfp4", "gpt-oss-fewer");
    fewer.change_tensors(|tensors| {
        let scales = tensors.get_mut(&format!("{EXPERTS}.gate_up_proj_scales")).unwrap();
        *scales = scales.narrow(1, 0, 64).unwrap().contiguous().unwrap();
    });
    fewer.refuses(&["gate_up_proj_scales` is U8 [3, 64, 1]", "[3, 128, 1]"]);

    let wider = Copy::of("gpt-oss", "gpt-oss-wider");
    wider.change_key("\"intermediate_size\": 24", "\"intermediate_size\": 20");
    wider.refuses(&["experts.0.gate_proj", "[24, 40]", "[20, 40]"]);

    let more = Copy::of("gpt-oss", "gpt-oss-more");
    more.change_key("\"num_local_experts\": 5", "\"num_local_experts\": 6");
    more.refuses(&[" [5, ", "6 experts (`num_local_experts`)"]);

    let plain = Copy::of("gpt-oss", "gpt-oss-plain-rope");
    plain.change_key("\"rope_type\": \"yarn\"", "\"rope_type\": \"linear\"");
    plain.refuses(&["`rope_scaling` is not of rope_type yarn"]);

    let limit = Copy::of("gpt-oss", "gpt-oss-limit");
    limit.change_key("\"swiglu_limit\": 7.0", "\"swiglu_limit\": 5.0");
    limit.refuses(&["`swiglu_limit` is 5; supported is 7"]);

    let others = Copy::of("quantised-awq", "gpt-oss-mxfp4");
    others.change_key("\"quant_method\": \"awq\"", "\"quant_method\": \"mxfp4\"");
    others.refuses(&["mxfp4, which is read of gpt-oss alone"]);
}

/// Widening makes four bytes of each number, and all that is read is told of.
#[test]
fn progress_of_quantised_matrices_ends_at_all_of_it() {
    for model in
        ["quantised-awq", "quantised-w4a16-zero-points", "quantised-fp8-blocks", "gpt-oss-mxfp4", "gpt-oss"]
    {
        let (mut last, mut first) = (None, None);
        load(&PathBuf::from(GOLDEN).join(model), Dtype::Int8, &mut |progress: Progress| {
            first.get_or_insert(progress.total_bytes);
            last = Some(progress);
        })
        .unwrap();
        let total = first.unwrap();
        assert_eq!(last, Some(Progress { done_bytes: total, total_bytes: total }), "{model}");
    }
}
