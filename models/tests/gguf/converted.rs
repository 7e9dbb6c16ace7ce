//! Checkpoints of tests/golden as GGUF files: what llama.cpp's converter would write of them.

use std::collections::HashMap;
use std::path::Path;

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Tensor};
use faser_models::weight_files;
use serde_json::Value;

use crate::session::golden;
use crate::writer::Writer;

/// ggml's number of a format.
pub(crate) fn number(format: GgmlDType) -> u32 {
    match format {
        GgmlDType::F32 => 0,
        GgmlDType::F16 => 1,
        GgmlDType::Q4_0 => 2,
        GgmlDType::Q4_1 => 3,
        GgmlDType::Q5_0 => 6,
        GgmlDType::Q5_1 => 7,
        GgmlDType::Q8_0 => 8,
        GgmlDType::Q8_1 => 9,
        GgmlDType::Q2K => 10,
        GgmlDType::Q3K => 11,
        GgmlDType::Q4K => 12,
        GgmlDType::Q5K => 13,
        GgmlDType::Q6K => 14,
        GgmlDType::Q8K => 15,
        GgmlDType::BF16 => 30,
    }
}

/// The GGUF file of a checkpoint of tests/golden; matrices whose rows allow it are of the format, all else is F32.
pub(crate) fn golden_case(case: &str, format: GgmlDType) -> Writer {
    folder(&golden(case), format)
}

/// The same of any folder.
pub(crate) fn folder(dir: &Path, format: GgmlDType) -> Writer {
    let config: Value =
        serde_json::from_str(&std::fs::read_to_string(dir.join("config.json")).unwrap()).unwrap();
    let size = |key: &str| config[key].as_u64().unwrap() as usize;
    let architecture = match config["model_type"].as_str().unwrap() {
        "mistral" | "mixtral" => "llama",
        "qwen2_moe" => "qwen2moe",
        "qwen3_moe" => "qwen3moe",
        other => other,
    };
    let mut writer = Writer::new(architecture);
    let own = |key: &str| format!("{architecture}.{key}");
    for (theirs, ours) in [
        ("embedding_length", "hidden_size"),
        ("block_count", "num_hidden_layers"),
        ("feed_forward_length", "intermediate_size"),
        ("attention.head_count", "num_attention_heads"),
        ("attention.head_count_kv", "num_key_value_heads"),
        ("context_length", "max_position_embeddings"),
        ("vocab_size", "vocab_size"),
    ] {
        writer.whole(&own(theirs), size(ours) as u32);
    }
    for (theirs, ours) in [
        ("expert_count", "num_experts"),
        ("expert_count", "num_local_experts"),
        ("expert_used_count", "num_experts_per_tok"),
        ("expert_feed_forward_length", "moe_intermediate_size"),
        ("expert_shared_feed_forward_length", "shared_expert_intermediate_size"),
    ] {
        if config[ours].is_u64() {
            writer.whole(&own(theirs), size(ours) as u32);
        }
    }
    let heads = size("num_attention_heads");
    let head_dim = config["head_dim"].as_u64().map_or(size("hidden_size") / heads, |dim| dim as usize);
    for key in ["attention.key_length", "attention.value_length"] {
        writer.whole(&own(key), head_dim as u32);
    }
    let part = config["rope_parameters"]["partial_rotary_factor"].as_f64().unwrap_or(1.0);
    writer.whole(&own("rope.dimension_count"), (head_dim as f64 * part) as u32);
    let epsilon = config["rms_norm_eps"].as_f64().unwrap();
    writer.number(&own("attention.layer_norm_rms_epsilon"), epsilon as f32);
    let rope = if config["rope_parameters"].is_object() { &config["rope_parameters"] } else { &config };
    let theta = rope["rope_theta"].as_f64().unwrap_or(10_000.0);
    writer.number(&own("rope.freq_base"), theta as f32);
    let window = config["sliding_window"].as_u64();
    match architecture {
        "phi3" => {
            writer.whole(&own("attention.sliding_window"), window.unwrap_or(0) as u32);
            let original = config["original_max_position_embeddings"].as_u64().unwrap();
            writer.whole(&own("rope.scaling.original_context_length"), original as u32);
        }
        "llama" => {
            window.iter().for_each(|window| {
                writer.whole(&own("attention.sliding_window"), *window as u32);
            });
        }
        _ => {}
    }
    for key in ["bos", "eos"] {
        if let Some(id) = config[format!("{key}_token_id")].as_u64() {
            writer.whole(&format!("tokenizer.ggml.{key}_token_id"), id as u32);
        }
    }
    let scaling = if config["rope_scaling"].is_object() { &config["rope_scaling"] } else { rope };
    match scaling["rope_type"].as_str() {
        Some("linear") => {
            writer.text(&own("rope.scaling.type"), "linear");
            writer.number(&own("rope.scaling.factor"), scaling["factor"].as_f64().unwrap() as f32);
        }
        Some("yarn") => {
            writer.text(&own("rope.scaling.type"), "yarn");
            for (theirs, ours) in
                [("factor", "factor"), ("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")]
            {
                if let Some(number) = scaling[ours].as_f64() {
                    writer.number(&own(&format!("rope.scaling.{theirs}")), number as f32);
                }
            }
            let original = scaling["original_max_position_embeddings"].as_u64().unwrap();
            writer.whole(&own("rope.scaling.original_context_length"), original as u32);
        }
        Some("longrope") => {
            writer.text(&own("rope.scaling.type"), "longrope");
            let original = size("original_max_position_embeddings") as f64;
            let grown = size("max_position_embeddings") as f64 / original;
            let factor = (1.0 + grown.ln() / original.ln()).sqrt();
            writer.number(&own("rope.scaling.attn_factor"), factor as f32);
            for kind in ["long", "short"] {
                let factors = scaling[format!("{kind}_factor")].as_array().unwrap();
                let bytes = factors.iter().flat_map(|x| (x.as_f64().unwrap() as f32).to_le_bytes()).collect();
                let name = format!("rope_factors_{kind}.weight");
                writer.tensor(&name, &[factors.len()], crate::writer::F32, bytes);
            }
        }
        Some("llama3") => {
            let factors = llama3_factors(scaling, theta as f32, head_dim);
            let bytes = factors.iter().flat_map(|factor| factor.to_le_bytes()).collect();
            writer.tensor("rope_freqs.weight", &[head_dim / 2], crate::writer::F32, bytes);
        }
        _ => {}
    }
    let mut stored: Vec<(String, Tensor)> = weight_files(dir)
        .unwrap()
        .iter()
        .flat_map(|file| candle_core::safetensors::load(file, &Device::Cpu).unwrap())
        .collect();
    stored.sort_by(|a, b| a.0.cmp(&b.0));
    let turned = HashMap::from([("attn_q", heads), ("attn_k", size("num_key_value_heads"))]);
    // Each expert's matrices by the name of their stack.
    let mut experts: HashMap<String, Vec<(usize, Tensor)>> = HashMap::new();
    for (name, tensor) in stored {
        let name = theirs(&name, architecture);
        let mut tensor = tensor.to_dtype(DType::F32).unwrap();
        if let Some((layer, rest)) = name.split_once("experts.") {
            let (expert, projection) = rest.split_once('.').unwrap();
            experts
                .entry(format!("{layer}{}", stacked(projection)))
                .or_default()
                .push((expert.parse().unwrap(), tensor));
            continue;
        }
        if name.contains("ffn_gate_inp_shexp") {
            tensor = tensor.squeeze(0).unwrap();
        }
        let part = name.rsplit('.').nth(1).unwrap();
        if let Some(heads) = turned.get(part).filter(|_| ["llama", "smollm3"].contains(&architecture)) {
            tensor = paired(&tensor, *heads);
        }
        add(&mut writer, &name, &tensor, format);
    }
    let mut experts: Vec<_> = experts.into_iter().collect();
    experts.sort_by(|a, b| a.0.cmp(&b.0));
    for (name, mut each) in experts {
        each.sort_by_key(|(expert, _)| *expert);
        let each: Vec<Tensor> = each.into_iter().map(|(_, tensor)| tensor).collect();
        add(&mut writer, &name, &Tensor::stack(&each, 0).unwrap(), format);
    }
    writer
}

/// Adds a tensor in the format, if it is a matrix whose rows allow it.
pub(crate) fn add(writer: &mut Writer, name: &str, tensor: &Tensor, format: GgmlDType) {
    let shape = tensor.dims().to_vec();
    let fits = shape.len() >= 2 && shape[shape.len() - 1].is_multiple_of(format.block_size());
    let format = if fits { format } else { GgmlDType::F32 };
    let quantised = QTensor::quantize(tensor, format).unwrap();
    writer.tensor(name, &shape, number(format), quantised.data().unwrap().to_vec());
}

fn theirs(ours: &str, architecture: &str) -> String {
    let behind = if architecture == "olmo2" { "post_attention_norm" } else { "ffn_norm" };
    [
        ("model.layers.", "blk."),
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.qkv_proj", "attn_qkv"),
        ("post_attention_layernorm", behind),
        ("post_self_attn_layernorm", "post_attention_norm"),
        ("post_mlp_layernorm", "post_ffw_norm"),
        ("post_feedforward_layernorm", "post_ffw_norm"),
        ("input_layernorm", "attn_norm"),
        ("block_sparse_moe.", "mlp."),
        (".w1.", ".gate_proj."),
        (".w2.", ".down_proj."),
        (".w3.", ".up_proj."),
        ("mlp.shared_expert_gate.", "ffn_gate_inp_shexp."),
        ("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
        ("mlp.shared_expert.up_proj", "ffn_up_shexp"),
        ("mlp.shared_expert.down_proj", "ffn_down_shexp"),
        ("mlp.gate.", "ffn_gate_inp."),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.gate_up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
        ("mlp.experts.", "experts."),
    ]
    .iter()
    .fold(ours.to_owned(), |name, (from, to)| name.replace(from, to))
}

/// The stack that an expert's projection is in.
fn stacked(projection: &str) -> String {
    let (part, kind) = projection.split_once("_proj.").unwrap();
    format!("ffn_{part}_exps.{kind}")
}

/// Rows of each head as llama.cpp turns them: those of the two halves in turns.
fn paired(tensor: &Tensor, heads: usize) -> Tensor {
    let shape = tensor.dims().to_vec();
    let mut split = vec![heads, 2, shape[0] / heads / 2];
    split.extend(&shape[1..]);
    let tensor = tensor.reshape(split).unwrap().transpose(1, 2).unwrap().contiguous().unwrap();
    tensor.reshape(shape).unwrap()
}

fn llama3_factors(scaling: &Value, theta: f32, head_dim: usize) -> Vec<f32> {
    let number = |key: &str| scaling[key].as_f64().unwrap() as f32;
    let (factor, low, high) = (number("factor"), number("low_freq_factor"), number("high_freq_factor"));
    let original = number("original_max_position_embeddings");
    let of = |i: usize| {
        let wavelength = 2.0 * std::f32::consts::PI * theta.powf((2 * i) as f32 / head_dim as f32);
        if wavelength < original / high {
            1.0
        } else if wavelength > original / low {
            factor
        } else {
            let smooth = (original / wavelength - low) / (high - low);
            1.0 / ((1.0 - smooth) / factor + smooth)
        }
    };
    (0..head_dim / 2).map(of).collect()
}
