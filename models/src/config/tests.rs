//! What a config.json is read as, and what is refused.

use std::path::Path;

use faser_kernels::RopeScaling;
use faser_kernels::ops::Activation;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::head_spec::of_head;
use super::*;
use crate::{Experts, Mlp, QkNorm};

fn llama() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 1000, "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5, "hidden_act": "silu", "eos_token_id": 2, "bos_token_id": 1,
    })
}

/// The base with some keys changed; null takes a key away.
fn with(mut base: Value, changes: &Value) -> Value {
    for (key, value) in changes.as_object().unwrap() {
        base[key] = value.clone();
    }
    base
}

fn keys(json: Value, name: &str) -> Keys {
    Keys::of(Path::new(name), json).unwrap()
}

fn parse(json: Value) -> Result<ModelConfig, ModelError> {
    ModelConfig::from_keys(&keys(json, "m/config.json"), None)
}

fn refusal(changes: &Value) -> String {
    parse(with(llama(), changes)).unwrap_err().to_string()
}

/// The rotary embedding of the first layer.
fn rope(config: &ModelConfig) -> RopeConfig {
    config.layers[0].attention.rope.clone().unwrap()
}

#[test]
fn a_plain_llama() {
    let config = parse(llama()).unwrap();
    assert_eq!((config.head_dim, config.q_width(), config.kv_width()), (16, 64, 32));
    assert_eq!((config.bos, config.eos.as_slice()), (Some(1), &[2][..]));
    assert_eq!(rope(&config), RopeConfig::plain(10_000.0));
    assert_eq!(config.layers, vec![LayerSpec::llama(16, rope(&config)); 2]);
    assert!(!config.tie_embeddings);
    let mha = parse(with(llama(), &json!({"num_key_value_heads": null}))).unwrap();
    assert_eq!(mha.kv_heads, 4);
}

#[test]
fn end_tokens_of_both_files_are_joined() {
    let generation = keys(json!({"eos_token_id": [2, 7, 9]}), "m/generation_config.json");
    let config = ModelConfig::from_keys(&keys(llama(), "m/config.json"), Some(&generation)).unwrap();
    assert_eq!(config.eos, [2, 7, 9]);
    let generation = keys(json!({"eos_token_id": [5000]}), "m/generation_config.json");
    let error =
        ModelConfig::from_keys(&keys(llama(), "m/config.json"), Some(&generation)).unwrap_err().to_string();
    assert!(error.contains("generation_config.json: `eos_token_id` has 5000"), "{error}");
}

fn windows(config: &ModelConfig) -> Vec<Option<usize>> {
    config.layers.iter().map(|layer| layer.attention.window).collect()
}

#[test]
fn families_differ_in_their_switches() {
    let family = |name: &str, changes: &Value| {
        parse(with(with(llama(), &json!({"architectures": [name]})), changes)).unwrap()
    };
    let mistral = family("MistralForCausalLM", &json!({"sliding_window": 100, "head_dim": 32}));
    assert_eq!((windows(&mistral), mistral.head_dim), (vec![Some(100); 2], 32));
    let qwen2 = family("Qwen2ForCausalLM", &json!({"sliding_window": 100, "use_sliding_window": false}));
    assert_eq!(windows(&qwen2), [None, None]);
    let attention = &qwen2.layers[1].attention;
    assert!(attention.qkv_bias && !attention.o_bias);
    let unused = family("LlamaForCausalLM", &json!({"sliding_window": 100, "use_sliding_window": false}));
    assert_eq!(windows(&unused), [None, None]);
    let slides = json!({"sliding_window": 100, "use_sliding_window": true, "max_window_layers": 1});
    assert_eq!(windows(&family("Qwen2ForCausalLM", &slides)), [None, Some(100)]);
    let types = json!({"sliding_window": 9, "use_sliding_window": true,
        "layer_types": ["sliding_attention", "full_attention"]});
    assert_eq!(windows(&family("Qwen3ForCausalLM", &types)), [Some(9), None]);
    let qwen3 = family("Qwen3ForCausalLM", &json!({}));
    let attention = &qwen3.layers[0].attention;
    assert!(attention.qk_norm == Some(QkNorm::Heads) && !attention.qkv_bias && qwen3.head_dim == 128);
    let biased = family("LlamaForCausalLM", &json!({"attention_bias": true, "mlp_bias": true}));
    let LayerSpec { attention, mlp } = &biased.layers[1];
    assert!(attention.qkv_bias && attention.o_bias && mlp.bias);
}

#[test]
fn gemmas_are_read_as_they_are_published() {
    let gemma = |changes: &Value| {
        let base =
            json!({"architectures": ["Gemma2ForCausalLM"], "num_hidden_layers": 3, "hidden_act": null});
        parse(with(with(llama(), &base), changes)).unwrap()
    };
    // As google/gemma-2-9b has them: no `layer_types`, no `tie_word_embeddings`.
    let two = gemma(&json!({"hidden_activation": "gelu_pytorch_tanh", "hidden_act": "silu", "head_dim": 256,
        "query_pre_attn_scalar": 224, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
        "cache_implementation": "hybrid", "sliding_window": 4096}));
    assert_eq!(windows(&two), [Some(4096), None, Some(4096)]);
    assert!(two.tie_embeddings && two.norm_offset == 1.0 && two.embedding_scale == 8.0);
    assert_eq!((two.logit_soft_cap, two.layers[0].attention.soft_cap), (Some(30.0), Some(50.0)));
    assert_eq!(two.layers[0].attention.scale, 1.0 / 224f32.sqrt());
    assert_eq!(two.layers[0].mlp.kind, Mlp::Gated(Activation::GeluTanh));
    let bare = gemma(&json!({"attn_logit_softcapping": null}));
    assert_eq!((bare.logit_soft_cap, bare.layers[0].attention.soft_cap), (Some(30.0), None));
    assert_eq!(bare.layers[0].attention.scale, 1.0 / 16.0);
    // The first Gemma says gelu, and means the one by a hyperbolic tangent.
    let one = gemma(&json!({"architectures": ["GemmaForCausalLM"], "hidden_act": "gelu"}));
    assert_eq!((one.layers[0].mlp.kind, windows(&one)), (Mlp::Gated(Activation::GeluTanh), vec![None; 3]));
    assert_eq!(one.layers[0].attention.norms.after, None);
    // As google/gemma-3-1b-it has it.
    let three = gemma(
        &json!({"architectures": ["Gemma3ForCausalLM"], "num_hidden_layers": 7, "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh", "attn_logit_softcapping": null, "final_logit_softcapping": null,
        "rope_local_base_freq": 10_000, "rope_theta": 1_000_000, "rope_scaling": null, "sliding_window": 512,
        "sliding_window_pattern": 6, "cache_implementation": "hybrid"}),
    );
    let theta: Vec<f32> =
        three.layers.iter().map(|layer| layer.attention.rope.as_ref().unwrap().theta).collect();
    assert_eq!(theta, [1e4, 1e4, 1e4, 1e4, 1e4, 1e6, 1e4]);
    let slides: Vec<bool> = windows(&three).iter().map(Option::is_some).collect();
    assert_eq!(slides, [true, true, true, true, true, false, true]);
    assert_eq!((three.logit_soft_cap, three.layers[0].attention.qk_norm), (None, Some(QkNorm::Heads)));
}

#[test]
fn experts_are_read_as_published_models_have_them() {
    let family = |name: &str, changes: &Value| {
        let bare = json!({"architectures": [name], "num_hidden_layers": 4});
        parse(with(bare, changes)).unwrap()
    };
    let with_experts = |config: &ModelConfig| -> Vec<bool> {
        config.layers.iter().map(|layer| layer.mlp.kind.experts().is_some()).collect()
    };
    // As Qwen/Qwen3-30B-A3B has it.
    let thirty = json!({"decoder_sparse_step": 1, "mlp_only_layers": [], "moe_intermediate_size": 768, "norm_topk_prob": true,
        "num_experts": 128, "num_experts_per_tok": 8, "head_dim": 128, "max_window_layers": 48, "sliding_window": null,
        "output_router_logits": false, "router_aux_loss_coef": 0.001, "use_sliding_window": false, "rope_theta": 1e6});
    let qwen3 = family("Qwen3MoeForCausalLM", &thirty);
    let experts = Experts {
        bias: false,
        activation: Activation::Silu,
        count: 128,
        active: 8,
        width: 768,
        renormed: true,
        shared: None,
    };
    assert_eq!(qwen3.experts(), Some(&experts));
    let attention = &qwen3.layers[0].attention;
    assert!(
        attention.qk_norm == Some(QkNorm::Heads)
            && attention.window.is_none()
            && with_experts(&qwen3) == [true; 4]
    );
    // As transformers 5 writes it, and with dense layers between.
    let newer = json!({"num_experts": null, "num_local_experts": 16, "decoder_sparse_step": 2, "mlp_only_layers": [3, 99]});
    let newer = family("Qwen3MoeForCausalLM", &with(thirty, &newer));
    assert_eq!(with_experts(&newer), [false, true, false, false]);
    assert_eq!(newer.experts().map(|experts| experts.count), Some(16));
    // As mistralai/Mixtral-8x7B-v0.1 has it.
    let mixtral = json!({"num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 14_336, "router_jitter_noise": 0.0,
        "sliding_window": null, "router_aux_loss_coef": 0.02});
    let mixtral = family("MixtralForCausalLM", &mixtral);
    assert_eq!(mixtral.experts(), Some(&Experts { count: 8, active: 2, width: 14_336, ..experts }));
    assert_eq!((rope(&mixtral).theta, mixtral.layers[3].attention.window), (1e6, None));
    // As Qwen/Qwen1.5-MoE-A2.7B has it, and as transformers 5 writes that.
    let qwen2 = json!({"num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632, "norm_topk_prob": false, "sliding_window": 0, "use_sliding_window": false});
    let qwen2 = family("Qwen2MoeForCausalLM", &qwen2);
    let expected =
        Experts { count: 60, active: 4, width: 1408, renormed: false, shared: Some(5632), ..experts };
    assert_eq!(qwen2.experts(), Some(&expected));
    assert!(qwen2.layers[0].attention.qkv_bias && windows(&qwen2) == [None; 4]);
    let slides =
        json!({"use_sliding_window": true, "sliding_window": 9, "max_window_layers": 3, "qkv_bias": false});
    let slides = family("Qwen2MoeForCausalLM", &slides);
    assert_eq!(windows(&slides), [Some(9), None, Some(9), None]);
    assert!(!slides.layers[0].attention.qkv_bias);
}

#[test]
fn experts_that_cannot_be_are_refused_by_name() {
    let cases = [
        (json!({"num_experts": 0}), "`num_experts` is 0"),
        (json!({"num_experts": 5000}), "`num_experts` is 5000, a whole number from 1 to 1024"),
        (json!({"num_experts": 2.5}), "`num_experts` is 2.5"),
        (
            json!({"num_experts": 8, "num_local_experts": 9}),
            "`num_experts` is 8, and `num_local_experts` is 9",
        ),
        (json!({"num_experts": 4, "num_experts_per_tok": 5}), "`num_experts_per_tok` is 5, and there are 4"),
        (json!({"num_experts_per_tok": 0}), "`num_experts_per_tok` is 0"),
        (json!({"moe_intermediate_size": 0}), "`moe_intermediate_size` is 0"),
        (json!({"moe_intermediate_size": 1_000_000}), "`moe_intermediate_size` times 128 experts"),
        (json!({"decoder_sparse_step": 0}), "`decoder_sparse_step` is 0"),
        (json!({"mlp_only_layers": 3}), "`mlp_only_layers` is 3, a list"),
        (json!({"mlp_only_layers": [-1]}), "`mlp_only_layers` is [-1], a list"),
        (json!({"norm_topk_prob": 1}), "`norm_topk_prob` is 1, true or false"),
        (json!({"hidden_act": "quick_gelu"}), "`hidden_act`"),
        (
            json!({"architectures": ["Qwen2MoeForCausalLM"], "shared_expert_intermediate_size": -1}),
            "`shared_expert_intermediate_size` is -1",
        ),
        (
            json!({"architectures": ["MixtralForCausalLM"], "intermediate_size": 1 << 20, "num_local_experts": 1024}),
            "`intermediate_size` times 1024 experts",
        ),
        (json!({"architectures": ["MixtralForCausalLM"], "attention_bias": true}), "`attention_bias`"),
    ];
    for (changes, part) in cases {
        let base = with(llama(), &json!({"architectures": ["Qwen3MoeForCausalLM"]}));
        let message = parse(with(base, &changes)).unwrap_err().to_string();
        assert!(message.starts_with("m/config.json: ") && message.contains(part), "{part}: {message}");
    }
}

#[test]
fn what_an_absent_key_makes_of_a_head_is_checked_too() {
    let glm = |head_dim: usize| {
        let keys = json!({"architectures": ["Glm4ForCausalLM"], "hidden_size": 24, "num_attention_heads": 4, "head_dim": head_dim});
        parse(with(llama(), &keys))
    };
    assert!(glm(12).is_ok());
    for head_dim in [2, 6, 10] {
        let message = glm(head_dim).unwrap_err().to_string();
        assert!(message.contains("`partial_rotary_factor` is 0.5, which makes"), "{message}");
    }
}

/// As configs of SpecForge are: all that a target's config.json says, and its own class.
#[test]
fn a_head_of_specforge_has_the_layers_of_a_llama_whatever_its_target_is() {
    for (target, beside) in [
        ("qwen2", json!({"sliding_window": 131_072, "use_sliding_window": false, "max_window_layers": 28})),
        ("phi3", json!({"attention_bias": false})),
        ("llama", json!({})),
    ] {
        let own = json!({"architectures": ["LlamaForCausalLMEagle3"], "model_type": target, "num_hidden_layers": 1,
            "draft_vocab_size": 64, "tie_word_embeddings": false});
        let json = with(with(llama(), &own), &beside);
        let head = of_head(&keys(json, "m/config.json"), Path::new("m")).unwrap().expect("a head");
        let layer = &head.layers[0].attention;
        assert!(!layer.qkv_bias && layer.window.is_none() && head.head.is_some(), "{target}");
    }
}

#[test]
fn a_head_that_names_no_layers_reads_the_usual_ones_and_knows_that_they_are_a_guess() {
    let target = parse(with(llama(), &json!({"num_hidden_layers": 8}))).unwrap();
    let own =
        json!({"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "draft_vocab_size": 64});
    for (ids, streams, usual) in [
        (json!({}), [2, 4, 5], true),
        (json!({"eagle_aux_hidden_state_layer_ids": []}), [2, 4, 5], true),
        (json!({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 3, 7]}}), [2, 3, 7], false),
    ] {
        let head = of_head(&keys(with(with(llama(), &own), &ids), "m/config.json"), Path::new("m"));
        let fitted = fitted(&target, head.unwrap().expect("a head"), None).unwrap();
        let spec = fitted.head.expect("a head");
        assert_eq!((&spec.streams[..], spec.streams_key.is_none()), (&streams[..], usual), "{ids}");
    }
}

#[test]
fn a_base_of_sliding_layers_is_read_of_the_family_that_has_it() {
    let theta = |family: &str| {
        let keys = json!({"architectures": [family], "hidden_act": null, "rope_theta": 7e5, "rope_local_base_freq": 10.0});
        let config = parse(with(llama(), &keys)).unwrap();
        config.layers[0].attention.rope.as_ref().map(|rope| rope.theta)
    };
    assert_eq!(theta("Gemma3ForCausalLM"), Some(10.0));
    assert_eq!(theta("Olmo3ForCausalLM"), Some(5e5));
}

#[test]
fn numbers_that_32_bits_do_not_hold_are_refused() {
    for changes in [
        json!({"rope_theta": 1e-300}),
        json!({"rms_norm_eps": 1e300}),
        json!({"rope_scaling": {"rope_type": "linear", "factor": 1e-40}}),
        json!({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "attention_factor": 1e300}}),
    ] {
        let message = parse(with(llama(), &changes)).unwrap_err().to_string();
        assert!(message.contains("which is no number of 32 bits"), "{message}");
    }
}

#[test]
fn old_and_new_rope_keys_say_the_same() {
    let scaling = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192});
    let old = parse(with(llama(), &json!({"rope_theta": 500_000.0, "rope_scaling": scaling}))).unwrap();
    let new = with(scaling, &json!({"rope_theta": 500_000.0}));
    assert_eq!(rope(&old), rope(&parse(with(llama(), &json!({"rope_parameters": new}))).unwrap()));
    let expected = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_positions: 8192,
    };
    assert_eq!(rope(&old), RopeConfig { scaling: expected, ..RopeConfig::plain(500_000.0) });
    let linear = parse(with(llama(), &json!({"rope_scaling": {"type": "linear", "factor": 2}}))).unwrap();
    assert_eq!(rope(&linear).scaling, RopeScaling::Linear { factor: 2.0 });
}

#[test]
fn what_cannot_be_honoured_is_refused_by_name() {
    let gemma3 =
        |changes| with(json!({"architectures": ["Gemma3ForCausalLM"], "hidden_act": null}), &changes);
    let cases = [
        (json!({"architectures": ["GPT2LMHeadModel"]}), "`architectures`", "Qwen3ForCausalLM"),
        (json!({"architectures": null}), "`architectures`", "LlamaForCausalLM"),
        (json!({"hidden_act": "quick_gelu"}), "`hidden_act`", "silu"),
        (json!({"use_bidirectional_attention": true}), "`use_bidirectional_attention`", "left to right"),
        (json!({"rope_scaling": {"rope_type": "proportional"}}), "`rope_scaling.rope_type`", "llama3"),
        (json!({"rope_scaling": {"rope_type": "yarn"}}), "`rope_scaling.factor`", "missing"),
        (
            json!({"rope_scaling": {"rope_type": "yarn", "factor": 1e6}}),
            "`rope_scaling.factor`",
            "512 positions",
        ),
        (
            json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 0.5}}),
            "`rope_scaling.beta_fast`",
            "beta_slow",
        ),
        (
            json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}, "rope_theta": 1}),
            "`rope_theta`",
            "above 1",
        ),
        (json!({"rope_parameters": {"rope_type": "dynamic"}}), "`rope_parameters.factor`", "missing"),
        (
            json!({"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}}),
            "`rope_scaling.short_factor`",
            "numbers above 0",
        ),
        (
            json!({"architectures": ["Phi3ForCausalLM"], "rope_scaling": {"type": "yarn", "factor": 4.0}}),
            "`rope_scaling.rope_type`",
            "longrope",
        ),
        (
            json!({"architectures": ["Phi3ForCausalLM"], "partial_rotary_factor": 1.5}),
            "`partial_rotary_factor`",
            "at most all",
        ),
        (
            json!({"architectures": ["SmolLM3ForCausalLM"], "no_rope_layers": [1, 2]}),
            "`no_rope_layers`",
            "without",
        ),
        (
            json!({"architectures": ["GraniteForCausalLM"], "residual_multiplier": 0}),
            "`residual_multiplier`",
            "above 0",
        ),
        (
            json!({"architectures": ["Olmo3ForCausalLM"], "rope_parameters":
                {"full_attention": {"rope_type": "yarn", "factor": 2, "truncate": false}}}),
            "`rope_parameters.full_attention.truncate`",
            "leave it out",
        ),
        (json!({"rope_parameters": {"full_attention": {}}}), "`rope_parameters`", "layer type"),
        (gemma3(json!({"rope_parameters": {"rope_theta": 1e6}})), "`rope_parameters`", "sliding_attention"),
        (
            gemma3(json!({"rope_parameters": {"sliding_attention": {"rope_type": "ntk"}}})),
            "`rope_parameters.sliding_attention.rope_type`",
            "linear",
        ),
        (
            gemma3(json!({"rope_scaling": {"type": "linear", "factor": 8}})),
            "`rope_scaling.rope_type`",
            "missing",
        ),
        (gemma3(json!({"attn_logit_softcapping": 50.0})), "`attn_logit_softcapping`", "leave it out"),
        (gemma3(json!({"sliding_window": null})), "`sliding_window`", "layer_types"),
        (
            gemma3(json!({"rope_parameters": {}, "rope_scaling": {"rope_type": "linear", "factor": 8}})),
            "`rope_scaling`",
            "full_attention",
        ),
        (json!({"rope_scaling": {"rope_type": "linear"}}), "`rope_scaling.factor`", "missing"),
        (json!({"partial_rotary_factor": 0.5}), "`partial_rotary_factor`", "1.0"),
        (json!({"quantization_config": {"bits": 4}}), "`quantization_config.quant_method`", "awq"),
        (
            json!({"quantization_config": {"quant_method": "hqq"}}),
            "`quantization_config.quant_method`",
            "bf16",
        ),
        (
            json!({"quantization_config": {"quant_method": "gptq", "bits": 3, "group_size": 128}}),
            "`quantization_config.bits`",
            "4 and 8",
        ),
        (
            json!({"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 0}}),
            "`quantization_config.group_size`",
            "from 1",
        ),
        (
            json!({"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemv"}}),
            "`quantization_config.version`",
            "gemm",
        ),
        (
            json!({"quantization_config": {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}}),
            "`quantization_config.format`",
            "pack-quantized",
        ),
        (
            json!({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128]}}),
            "`quantization_config.weight_block_size`",
            "two whole numbers",
        ),
        (json!({"sliding_window": 64}), "`sliding_window`", "Mistral"),
        (json!({"sliding_window": "64"}), "`sliding_window`", "Mistral"),
        (
            json!({"architectures": ["Gemma2ForCausalLM"], "hidden_act": null, "final_logit_softcapping": 1e7}),
            "`final_logit_softcapping`",
            "1e6",
        ),
        (json!({"architectures": ["Qwen2ForCausalLM"], "mlp_bias": true}), "`mlp_bias`", "Qwen2"),
        (
            json!({"architectures": ["Qwen2ForCausalLM"], "layer_types": ["full_attention", "sliding_attention"]}),
            "`layer_types`",
            "use_sliding_window",
        ),
        (
            json!({"rope_parameters": {"rope_theta": 1e6}, "rope_scaling": {"rope_type": "linear", "factor": 2}}),
            "`rope_scaling`",
            "10000 instead of 1000000",
        ),
        (
            json!({"architectures": ["MistralForCausalLM"], "attention_bias": true}),
            "`attention_bias`",
            "Mistral",
        ),
    ];
    for (changes, key, hint) in cases {
        let message = refusal(&changes);
        assert!(
            message.starts_with("m/config.json: ") && message.contains(key) && message.contains(hint),
            "{message}"
        );
    }
}

#[test]
fn impossible_values_are_refused_by_name() {
    let cases = [
        (json!({"hidden_size": null}), "`hidden_size`"),
        (json!({"hidden_size": 0}), "`hidden_size`"),
        (json!({"hidden_size": "64"}), "`hidden_size`"),
        (json!({"hidden_size": 66}), "`head_dim`"),
        (json!({"head_dim": 15}), "`head_dim`"),
        (json!({"head_dim": 4096, "num_attention_heads": 1024, "num_key_value_heads": 1}), "`head_dim`"),
        (json!({"num_key_value_heads": 3}), "`num_key_value_heads`"),
        (json!({"num_hidden_layers": 1e9}), "`num_hidden_layers`"),
        (json!({"vocab_size": -1}), "`vocab_size`"),
        (json!({"vocab_size": 18_446_744_073_709_551_615_u64}), "`vocab_size`"),
        (json!({"rms_norm_eps": 0}), "`rms_norm_eps`"),
        (json!({"rope_theta": -1.0}), "`rope_theta`"),
        (json!({"eos_token_id": "</s>"}), "`eos_token_id`"),
        (json!({"bos_token_id": 1000}), "`bos_token_id`"),
        (json!({"tie_word_embeddings": "yes"}), "`tie_word_embeddings`"),
        (json!({"max_position_embeddings": null}), "`max_position_embeddings`"),
        (json!({"pard_token": 1000}), "`pard_token`"),
        (json!({"pard_token": [1, 2]}), "`pard_token`"),
        (json!({"spd_type": "pard"}), "`pard_token`"),
        (json!({"spd_type": "pard2", "pard_token": 3}), "`spd_type`"),
        (json!({"spd_type": 1, "pard_token": 3}), "`spd_type`"),
    ];
    for (changes, key) in cases {
        let message = refusal(&changes);
        assert!(message.contains(key), "{key}: {message}");
    }
}

#[test]
fn a_pair_needs_one_vocabulary_but_for_padding() {
    let target = parse(llama()).unwrap();
    let of = |vocab: usize| parse(with(llama(), &json!({"vocab_size": vocab}))).unwrap();
    assert_eq!(fitted(&target, of(1000), None).unwrap(), target);
    for (vocab, known) in [(1024, 1000), (990, 990)] {
        let draft = fitted(&target, of(vocab), Some(980)).unwrap();
        assert_eq!((draft.vocab, draft.stored_vocab, draft.known_vocab()), (1000, vocab, known));
    }
    let masked = |mask: u32| {
        let keys = json!({"vocab_size": 1024, "pard_token": mask, "spd_type": "pard"});
        fitted(&target, parse(with(llama(), &keys)).unwrap(), Some(980))
    };
    assert_eq!(masked(999).unwrap().mask_token, Some(999));
    assert!(masked(1000).unwrap_err().to_string().contains("pard_token"), "the target has no such row");
    for (vocab, tokens) in [(1024, None), (1024, Some(1001)), (990, Some(995))] {
        let message = fitted(&target, of(vocab), tokens).unwrap_err().to_string();
        for part in ["1000", &vocab.to_string(), "vocab_size", "tokenizer"] {
            assert!(message.contains(part), "{message}");
        }
    }
}

#[test]
fn granites_factors_are_those_of_the_stream_that_is_held() {
    let granite = parse(with(
        llama(),
        &json!({"architectures": ["GraniteForCausalLM"], "embedding_multiplier": 12, "residual_multiplier": 0.5,
            "attention_multiplier": 0.25, "logits_scaling": 8}),
    ))
    .unwrap();
    assert_eq!((granite.embedding_scale, granite.rms_eps, granite.logit_scale), (24.0, 4e-5, 0.125));
    assert_eq!(granite.layers[0].attention.scale, 0.25);
    let head = crate::HeadSpec {
        layout: HeadLayout::Eagle,
        kind: HeadKind::Steps,
        streams: vec![0],
        streams_key: None,
        target_hidden: 64,
        fuse_norm: FuseNorm::None,
        proposed_vocab: None,
        own_embedding: false,
        own_lm_head: false,
        output_normed: false,
    };
    let draft = ModelConfig { head: Some(head), ..parse(llama()).unwrap() };
    assert!(fitted(&parse(llama()).unwrap(), draft.clone(), None).is_ok());
    let message = fitted(&granite, draft, None).unwrap_err().to_string();
    assert!(message.contains("residual_multiplier"), "{message}");
}

#[test]
fn yarn_makes_the_context_longer_and_says_so() {
    let yarn = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256});
    let longer = parse(with(llama(), &json!({"rope_scaling": yarn}))).unwrap();
    assert_eq!(longer.max_context, 1024);
    assert!(longer.notes[0].contains("512") && longer.notes[0].contains("1024"), "{:?}", longer.notes);
    let written = parse(with(llama(), &json!({"rope_scaling": yarn, "max_position_embeddings": 2048})));
    assert_eq!((written.as_ref().unwrap().max_context, written.unwrap().notes), (2048, vec![]));
}

/// The keys that transformers' class has, and those that it is written with, are another matter than null.
#[test]
fn what_is_left_out_is_what_transformers_takes() {
    let bare = |name: &str, changes: &Value| {
        parse(with(json!({"architectures": [name], "num_hidden_layers": 1}), changes)).unwrap()
    };
    let mistral = bare("MistralForCausalLM", &json!({}));
    assert_eq!(
        (windows(&mistral).as_slice(), mistral.kv_heads, mistral.max_context),
        (&[Some(4096)][..], 8, 131_072)
    );
    assert_eq!((mistral.bos, mistral.eos.as_slice()), (Some(1), &[2][..]));
    let full = bare(
        "MistralForCausalLM",
        &json!({"sliding_window": null, "num_key_value_heads": null, "eos_token_id": null}),
    );
    assert_eq!((windows(&full).as_slice(), full.kv_heads, full.eos.len()), (&[None][..], 32, 0));
    let qwen = bare("Qwen2ForCausalLM", &json!({"use_sliding_window": true, "max_window_layers": 0}));
    assert_eq!((windows(&qwen).as_slice(), qwen.vocab, qwen.eos.len()), (&[Some(4096)][..], 151_936, 0));
    let no_window = json!({"use_sliding_window": true, "max_window_layers": 0, "sliding_window": null});
    assert_eq!(windows(&bare("Qwen3ForCausalLM", &no_window)), [None]);
    // Of a file that says how texts end, nothing is made up.
    let (config, generation) = (json!({"architectures": ["LlamaForCausalLM"]}), json!({"eos_token_id": 9}));
    let of = |generation: Option<&Value>| {
        let generation = generation.map(|file| keys(file.clone(), "m/generation_config.json"));
        ModelConfig::from_keys(&keys(config.clone(), "m/config.json"), generation.as_ref()).unwrap().eos
    };
    assert_eq!((of(None), of(Some(&generation)), of(Some(&json!({})))), (vec![2], vec![9], vec![]));
}

/// Of both rotary keys the older one counts, as in transformers, with the base that it or the top level gives.
#[test]
fn a_scaling_beside_parameters_takes_their_place() {
    let parameters = json!({"rope_type": "llama3", "rope_theta": 7e5, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192});
    let scaling = json!({"type": "linear", "factor": 2});
    let both = json!({"rope_parameters": parameters, "rope_scaling": scaling, "rope_theta": 7e5});
    let both = parse(with(llama(), &both)).unwrap();
    assert_eq!(
        rope(&both),
        RopeConfig { scaling: RopeScaling::Linear { factor: 2.0 }, ..RopeConfig::plain(7e5) }
    );
    let empty =
        parse(with(llama(), &json!({"rope_parameters": {"rope_theta": 7e5}, "rope_scaling": {}}))).unwrap();
    assert_eq!(rope(&empty), RopeConfig::plain(7e5));
}

proptest! {
    /// Whatever numbers stand there: an error, or a config that keeps its promises.
    #[test]
    fn any_sizes_are_refused_or_sound(
        hidden in prop_oneof![0..300_u64, any::<u64>()], heads in prop_oneof![0..40_u64, any::<u64>()],
        kv_heads in prop_oneof![0..40_u64, any::<u64>()], head_dim in prop_oneof![0..300_u64, any::<u64>()],
        vocab in any::<u64>(), layers in 0..100_u64,
    ) {
        let changes = json!({"hidden_size": hidden, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
            "head_dim": head_dim, "vocab_size": vocab, "num_hidden_layers": layers});
        if let Ok(config) = parse(with(llama(), &changes)) {
            prop_assert_eq!(config.heads % config.kv_heads, 0);
            prop_assert_eq!(config.head_dim % 2, 0);
            prop_assert!(config.vocab.checked_mul(config.hidden).is_some());
            prop_assert_eq!(config.layers.len() as u64, layers);
        }
    }
}
